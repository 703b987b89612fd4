// The names of a model, shared by all recordings of it: found once, and checked before they are used.
//
// Comes in: the modules that `clew.record.model_names` has named. Goes out: the row of a module, if the
// model is still built as it was. Nothing of the program is kept alive: modules are known by weak
// references, tensors by their addresses. Everything here runs with the GIL.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <vector>

namespace clew {

// An entry of one of the dicts in which a module has its children and tensors.
struct HeldItem {
  PyObject* key = nullptr;    // owned
  PyObject* value = nullptr;  // an address
  PyTypeObject* cls = nullptr;
  int64_t size = -1;  // of a tensor: how many elements
};

// A module, by one of its names.
struct NamedModule {
  PyObject* ref = nullptr;  // a weak reference, owned
  PyTypeObject* cls = nullptr;
  int32_t number = -1;        // of the module, in the order in which modules are met
  bool is_only_name = false;  // no other row is about the same module
  std::vector<HeldItem> held[3];  // `_modules`, `_parameters`, `_buffers`
  // Its plain attributes as they were read last, owned: (names, values); and how many it had in all.
  PyObject* settings = nullptr;
  Py_ssize_t attributes = 0;
};

class Names {
 public:
  Names() = default;
  ~Names();
  Names(const Names&) = delete;

  // Read the modules of `rows`, [(weak reference, number, is it the only name)]; return whether all of
  // them can be checked later: not those of TorchScript, nor tensors that only Python can read.
  bool read(PyObject* rows);

  // Return whether the model is as it was: its modules, their tensors, and the sizes of these.
  bool is_same() const;

  // Return the row of a module that has one name; -1 if there is none.
  int32_t find(PyObject* module) const {
    size_t mask = slots_.size() - 1;
    for (size_t at = slot_of(module); slots_[at] >= 0; at = (at + 1) & mask) {
      const NamedModule& row = rows[static_cast<size_t>(slots_[at])];
      if (PyWeakref_GET_OBJECT(row.ref) == module) return slots_[at];
    }
    return -1;
  }

  // Return whether the plain attributes of a module are the objects that were read last.
  bool has_settings(const NamedModule& row, PyObject* attributes) const;

  std::vector<NamedModule> rows;

 private:
  size_t slot_of(const void* module) const {
    return ((reinterpret_cast<size_t>(module) >> 4) * 0x9E3779B97F4A7C15ull >> 32) & (slots_.size() - 1);
  }

  std::vector<int32_t> slots_ = std::vector<int32_t>(1, -1);  // rows, by the address of the module
};

// Return the attributes of an object, borrowed; null if it has no dict.
inline PyObject* attributes_of(PyObject* object) {
  PyObject** held = _PyObject_GetDictPtr(object);
  return held == nullptr ? nullptr : *held;
}

// The type `Names` of Python, and the names in an object of it.
PyTypeObject* names_type();
Names& names_in(PyObject* object);

}  // namespace clew
