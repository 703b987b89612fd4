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

// The same, where it is known that the dict is as it was.
bool are_tensors_same(const std::vector<HeldItem>& items) {
  for (const HeldItem& item : items) {
    if (Py_TYPE(item.value) != item.cls) return false;
    if (item.size >= 0 && (is_odd(tensor_in(item.value)) || tensor_in(item.value)->numel() != item.size)) return false;
  }
  return true;
}

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

// The same, from what was found before if the module is as it was.
PyObject* known_path_of(Names& names, PyObject* tensor, PyObject* by_id) {
  if (tensor == Py_None) return nullptr;
  HeldItem* item = names.item_of(tensor);
  if (item != nullptr && item->path != nullptr) return item->path;
  PyObject* path = path_of(tensor, by_id);
  if (path == nullptr || item == nullptr) return path;
  Ref id(PyLong_FromVoidPtr(tensor));
  PyObject* name = id ? PyDict_GetItemWithError(by_id, id.get()) : nullptr;
  if (name != nullptr) {
    names.set_path(tensor, PyTuple_GET_ITEM(PyTuple_GET_ITEM(name, 0), 0), PyTuple_GET_ITEM(name, 1), path);
  }
  return path;
}

// paths(tensors, by_id) -> the paths of parameters and buffers, None for any other tensor. `by_id` is
// that of `clew.record.model_names.ModelNames`.
PyObject* paths(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyList_Check(args[0]) || !PyDict_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "paths(tensors, by_id)");
    return nullptr;
  }
  Py_ssize_t size = PyList_GET_SIZE(args[0]);
  Ref found(PyList_New(size));
  for (Py_ssize_t i = 0; found && i < size; ++i) {
    PyObject* path = known_path_of(names_in(self), PyList_GET_ITEM(args[0], i), args[1]);
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
      for (HeldItem& item : items) {
        Py_DECREF(item.key);
        Py_XDECREF(item.path);
      }
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
  size_t tensors = 0;
  for (const NamedModule& row : rows) tensors += row.held[1].size() + row.held[2].size();
  for (size = 4; size < 2 * tensors;) size *= 2;
  places_.assign(size, Place{});
  for (size_t i = 0; i < count; ++i) {
    for (int which = 1; which < 3; ++which) {
      for (size_t item = 0; item < rows[i].held[which].size(); ++item) {
        const HeldItem& held = rows[i].held[which][item];
        if (held.size < 0) continue;
        Place* place = place_of(held.value);
        if (place->tensor == nullptr) *place = {held.value, static_cast<int32_t>(i), which, item};
      }
    }
  }
  return true;
}

bool Names::is_same() {
  for (NamedModule& row : rows) {
    if (!is_same(row)) return false;
  }
  return true;
}

bool Names::is_same(NamedModule& row) const {
  PyObject* module = PyWeakref_GET_OBJECT(row.ref);
  if (module == Py_None || Py_TYPE(module) != row.cls) return false;
  PyObject* attributes = attributes_of(module);
  if (attributes == nullptr) return false;
  uint64_t state = state_of(attributes);
  bool is_known = state != 0 && state == row.state;
  for (int which = 0; which < 3; ++which) {
    PyObject* dict = is_known ? row.dicts[which] : dict_of(module, which);
    if (dict == nullptr) return false;
    uint64_t dict_state = state_of(dict);
    bool are_same = is_known && dict_state == row.dict_states[which] ? are_tensors_same(row.held[which])
                                                                     : has_items(dict, row.held[which]);
    if (!are_same) return false;
    row.dicts[which] = dict;
    row.dict_states[which] = dict_state;
  }
  row.state = state;
  return true;
}

Names::Place* Names::place_of(PyObject* tensor) {
  size_t mask = places_.size() - 1, at = slot_in(tensor, mask);
  while (places_[at].tensor != nullptr && places_[at].tensor != tensor) at = (at + 1) & mask;
  return &places_[at];
}

HeldItem* Names::item_of(PyObject* tensor) {
  Place* place = place_of(tensor);
  if (place->tensor == nullptr) return nullptr;
  NamedModule& row = rows[static_cast<size_t>(place->row)];
  PyObject* module = PyWeakref_GET_OBJECT(row.ref);
  PyObject* attributes = module == Py_None ? nullptr : attributes_of(module);
  bool is_known = attributes != nullptr && row.state != 0 && state_of(attributes) == row.state &&
                  state_of(row.dicts[place->which]) == row.dict_states[place->which];
  return is_known ? &row.held[place->which][place->item] : nullptr;
}

void Names::set_path(PyObject* tensor, PyObject* ref, PyObject* key, PyObject* path) {
  Place* place = place_of(tensor);
  if (place->tensor == nullptr) return;
  NamedModule& row = rows[static_cast<size_t>(place->row)];
  HeldItem& item = row.held[place->which][place->item];
  if (row.ref == ref && item.key == key) Py_XSETREF(item.path, Py_NewRef(path));
}

namespace {

// Whether `clew.record.attributes` may record an attribute: numbers, texts, None, lists of numbers.
bool may_be_plain(PyObject* value) {
  return value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value) ||
         PyUnicode_Check(value) || PyList_Check(value) || PyTuple_Check(value);
}

}  // namespace

bool Names::has_settings(NamedModule& row, PyObject* attributes) const {
  uint64_t state = state_of(attributes);
  if (state != 0 && state == row.settings_state) return true;
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
  row.settings_state = state;
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
