#include "names.h"

#include <torch/csrc/autograd/python_variable.h>

#include "python.h"
#include "values.h"

namespace clew {

namespace {

constexpr const char* DICTS[3] = {"_modules", "_parameters", "_buffers"};

PyObject* dict_name(int which) {
  static PyObject* names[3] = {PyUnicode_InternFromString(DICTS[0]), PyUnicode_InternFromString(DICTS[1]),
                               PyUnicode_InternFromString(DICTS[2])};
  return names[which];
}

// Return one of the dicts of a module, borrowed; null for one of another kind, as TorchScript has.
PyObject* dict_of(PyObject* module, int which) {
  PyObject* attributes = attributes_of(module);
  PyObject* found = attributes == nullptr ? nullptr : PyDict_GetItemWithError(attributes, dict_name(which));
  return found != nullptr && PyDict_CheckExact(found) ? found : nullptr;
}

TensorImpl* tensor_in(PyObject* value) { return THPVariable_Unpack(value).unsafeGetTensorImpl(); }

bool read_items(PyObject* dict, std::vector<HeldItem>& items) {
  PyObject *key, *value;
  Py_ssize_t at = 0;
  while (PyDict_Next(dict, &at, &key, &value)) {
    if (!PyUnicode_CheckExact(key)) return false;
    bool is_tensor = THPVariable_Check(value);
    if (is_tensor && is_odd(tensor_in(value))) return false;
    items.push_back({Py_NewRef(key), value, Py_TYPE(value), is_tensor ? tensor_in(value)->numel() : -1});
  }
  return true;
}

bool has_items(PyObject* dict, const std::vector<HeldItem>& items) {
  if (static_cast<size_t>(PyDict_GET_SIZE(dict)) != items.size()) return false;
  PyObject *key, *value;
  Py_ssize_t at = 0;
  for (const HeldItem& item : items) {
    if (!PyDict_Next(dict, &at, &key, &value) || key != item.key || value != item.value ||
        Py_TYPE(value) != item.cls) {
      return false;
    }
    // A tensor may have got other data.
    if (item.size >= 0 && (is_odd(tensor_in(value)) || tensor_in(value)->numel() != item.size)) return false;
  }
  return true;
}

struct Object {
  PyObject_HEAD
  Names* names;
};

// Names(rows): see `Names::read`.
int init(PyObject* self, PyObject* args, PyObject*) {
  PyObject* rows;
  if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &rows)) return -1;
  auto made = std::make_unique<Names>();
  if (!made->read(rows)) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_ValueError, "modules that cannot be checked");
    return -1;
  }
  reinterpret_cast<Object*>(self)->names = made.release();
  return 0;
}

void dealloc(PyObject* self) {
  delete reinterpret_cast<Object*>(self)->names;
  Py_TYPE(self)->tp_free(self);
}

PyObject* is_same(PyObject* self, PyObject*) {
  return PyBool_FromLong(names_in(self).is_same());
}

// any_sets(name) -> whether any of the modules has an attribute of this name that is not None.
PyObject* any_sets(PyObject* self, PyObject* name) {
  for (const NamedModule& row : names_in(self).rows) {
    PyObject* attributes = attributes_of(PyWeakref_GET_OBJECT(row.ref));
    PyObject* found = attributes == nullptr ? nullptr : PyDict_GetItemWithError(attributes, name);
    if (found != nullptr && found != Py_None) Py_RETURN_TRUE;
    if (found == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  }
  Py_RETURN_FALSE;
}

// Return the path of a parameter or buffer by its name in `by_id`, borrowed; null if it has none, or its
// module has another tensor by now. May set an error.
PyObject* path_of(PyObject* tensor, PyObject* by_id) {
  Ref id(PyLong_FromVoidPtr(tensor));
  PyObject* name = id ? PyDict_GetItemWithError(by_id, id.get()) : nullptr;
  if (name == nullptr || !PyTuple_Check(name) || PyTuple_GET_SIZE(name) != 3) return nullptr;
  PyObject* row = PyTuple_GET_ITEM(name, 0);
  PyObject* ref = PyTuple_Check(row) && PyTuple_GET_SIZE(row) > 0 ? PyTuple_GET_ITEM(row, 0) : nullptr;
  if (ref == nullptr || !PyWeakref_CheckRef(ref)) return nullptr;
  PyObject* module = PyWeakref_GET_OBJECT(ref);
  if (module == Py_None) return nullptr;
  for (int which = 1; which < 3; ++which) {
    PyObject* dict = dict_of(module, which);
    PyObject* held = dict == nullptr ? nullptr : PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(name, 1));
    if (held != nullptr) return held == tensor ? PyTuple_GET_ITEM(name, 2) : nullptr;
  }
  return nullptr;
}

// paths(tensors, by_id) -> the paths of parameters and buffers, None for any other tensor. `by_id` is
// that of `clew.record.model_names.ModelNames`.
PyObject* paths(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyList_Check(args[0]) || !PyDict_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "paths(tensors, by_id)");
    return nullptr;
  }
  Py_ssize_t size = PyList_GET_SIZE(args[0]);
  Ref found(PyList_New(size));
  for (Py_ssize_t i = 0; found && i < size; ++i) {
    PyObject* path = path_of(PyList_GET_ITEM(args[0], i), args[1]);
    if (path == nullptr && PyErr_Occurred() != nullptr) return nullptr;
    PyList_SET_ITEM(found.get(), i, Py_NewRef(path == nullptr ? Py_None : path));
  }
  return found ? Py_NewRef(found.get()) : nullptr;
}

PyMethodDef methods[] = {
    {"is_same", is_same, METH_NOARGS, nullptr},
    {"any_sets", any_sets, METH_O, nullptr},
    {"paths", fast(paths), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

Names::~Names() {
  for (NamedModule& row : rows) {
    Py_XDECREF(row.ref);
    Py_XDECREF(row.settings);
    for (auto& items : row.held) {
      for (HeldItem& item : items) Py_DECREF(item.key);
    }
  }
}

bool Names::read(PyObject* given) {
  auto count = static_cast<size_t>(PyList_GET_SIZE(given));
  rows.resize(count);
  size_t size = 4;
  while (size < 2 * count) size *= 2;
  slots_.assign(size, -1);
  for (size_t i = 0; i < count; ++i) {
    NamedModule& row = rows[i];
    PyObject* ref;
    int is_only;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(given, static_cast<Py_ssize_t>(i)), "Oip", &ref, &row.number,
                          &is_only) ||
        !PyWeakref_CheckRef(ref)) {
      return false;
    }
    row.ref = Py_NewRef(ref);
    row.is_only_name = is_only != 0;
    PyObject* module = PyWeakref_GET_OBJECT(ref);
    if (module == Py_None) return false;
    row.cls = Py_TYPE(module);
    for (int which = 0; which < 3; ++which) {
      PyObject* dict = dict_of(module, which);
      if (dict == nullptr || !read_items(dict, row.held[which])) return false;
    }
    if (!row.is_only_name) continue;
    size_t at = slot_of(module);
    while (slots_[at] >= 0) at = (at + 1) & (size - 1);
    slots_[at] = static_cast<int32_t>(i);
  }
  return true;
}

bool Names::is_same() const {
  for (const NamedModule& row : rows) {
    PyObject* module = PyWeakref_GET_OBJECT(row.ref);
    if (module == Py_None || Py_TYPE(module) != row.cls) return false;
    for (int which = 0; which < 3; ++which) {
      PyObject* dict = dict_of(module, which);
      if (dict == nullptr || !has_items(dict, row.held[which])) return false;
    }
  }
  return true;
}

namespace {

// Whether `clew.record.attributes` may record an attribute: numbers, texts, None, lists of numbers.
bool may_be_plain(PyObject* value) {
  return value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value) ||
         PyUnicode_Check(value) || PyList_Check(value) || PyTuple_Check(value);
}

}  // namespace

bool Names::has_settings(const NamedModule& row, PyObject* attributes) const {
  if (row.settings == nullptr || PyDict_GET_SIZE(attributes) != row.attributes) return false;
  PyObject* names = PyTuple_GET_ITEM(row.settings, 0);
  PyObject* values = PyTuple_GET_ITEM(row.settings, 1);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    if (PyDict_GetItemWithError(attributes, PyTuple_GET_ITEM(names, i)) != PyTuple_GET_ITEM(values, i)) {
      return false;
    }
  }
  PyObject* others = PyTuple_GET_ITEM(row.settings, 2);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(others); ++i) {
    PyObject* other = PyDict_GetItemWithError(attributes, PyTuple_GET_ITEM(others, i));
    if (other == nullptr || may_be_plain(other)) return false;
  }
  return true;
}

Names& names_in(PyObject* object) { return *reinterpret_cast<Object*>(object)->names; }

PyTypeObject* names_type() {
  static PyTypeObject type{};
  if (type.tp_name != nullptr) return &type;
  begin_type(type, "_clew_native.Names", sizeof(Object));
  type.tp_new = PyType_GenericNew;
  type.tp_init = init;
  type.tp_dealloc = dealloc;
  type.tp_methods = methods;
  return PyType_Ready(&type) < 0 ? nullptr : &type;
}

}  // namespace clew
