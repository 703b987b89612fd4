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
  PyObject* path = nullptr;  // of a tensor, owned, once it was asked for
};

// Return a number that a dict gives up when it is changed, and no other dict ever has; 0 if there is none.
inline uint64_t state_of(PyObject* dict) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#else
  return 0;
#endif
}

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
  // The states of all its attributes when the dicts above were found among them, borrowed, of these
  // dicts when they had the items above, and of the attributes when these were the plain ones.
  uint64_t state = 0, settings_state = 0;
  PyObject* dicts[3] = {};
  uint64_t dict_states[3] = {};
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
  bool is_same();

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
  bool has_settings(NamedModule& row, PyObject* attributes) const;

  // Return the entry of a tensor, null if there is none or its module may have another one by now.
  HeldItem* item_of(PyObject* tensor);

  // Remember the path of the entry, if it is about this module, by its weak reference, and this name.
  void set_path(PyObject* tensor, PyObject* ref, PyObject* key, PyObject* path);

  std::vector<NamedModule> rows;

 private:
  static size_t slot_in(const void* object, size_t mask) {
    return ((reinterpret_cast<size_t>(object) >> 4) * 0x9E3779B97F4A7C15ull >> 32) & mask;
  }
  size_t slot_of(const void* module) const { return slot_in(module, slots_.size() - 1); }

  // A tensor of a module.
  struct Place {
    PyObject* tensor = nullptr;
    int32_t row = -1, which = 0;
    size_t item = 0;
  };
  Place* place_of(PyObject* tensor);
  bool is_same(NamedModule& row) const;

  std::vector<int32_t> slots_ = std::vector<int32_t>(1, -1);  // rows, by the address of the module
  std::vector<Place> places_ = std::vector<Place>(1);
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
