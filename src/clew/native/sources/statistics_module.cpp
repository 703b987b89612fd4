// Python functions over statistics.h. Addresses are of memory that lives as long as the call.
#include "statistics_module.h"

#include <vector>

#include "fingerprint.h"
#include "python.h"

namespace clew {
namespace {

const char* const NAMES[] = {
#define CLEW_ELEMENT(name, text) text,
    CLEW_ELEMENTS(CLEW_ELEMENT)
#undef CLEW_ELEMENT
};

// A buffer of bytes that is given back at the end of the scope.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() {
    if (view.obj != nullptr) PyBuffer_Release(&view);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  bool open(PyObject* from, int flags) { return PyObject_GetBuffer(from, &view, flags) == 0; }

  Py_buffer view{};
};

// The keys of the dicts, made once.
struct Keys {
  PyObject *min, *max, *mean, *std, *norm, *nan, *inf, *zeros, *lowest, *highest, *digest, *count;
};
const Keys& keys() {
  const auto text = PyUnicode_InternFromString;
  static const Keys made = {text("min"),    text("max"),     text("mean"),   text("std"),
                            text("norm"),   text("nan"),     text("inf"),    text("zeros"),
                            text("lowest"), text("highest"), text("digest"), text("count")};
  return made;
}

bool put(PyObject* dict, PyObject* key, PyObject* value) {
  if (key == nullptr || value == nullptr) {
    Py_XDECREF(value);
    return false;
  }
  const int failed = PyDict_SetItem(dict, key, value);
  Py_DECREF(value);
  return failed == 0;
}

bool put(PyObject* dict, PyObject* key, double value) {
  return put(dict, key, PyFloat_FromDouble(value));
}

bool put(PyObject* dict, PyObject* key, int64_t value) {
  return put(dict, key, PyLong_FromLongLong(value));
}

PyObject* hexadecimal(uint64_t number) {
  char text[16];
  for (int i = 15; i >= 0; --i, number >>= 4) text[i] = "0123456789abcdef"[number & 15];
  return PyUnicode_FromStringAndSize(text, sizeof text);
}

bool is_element(int element) {
  if (element >= 0 && element < ELEMENTS) return true;
  PyErr_Format(PyExc_ValueError, "%d is no type of elements; ask elements() for them", element);
  return false;
}

PyObject* measure_memory(PyObject*, PyObject* arguments) {
  unsigned long long address = 0, copy_to = 0;
  long long count = 0;
  int element = 0, digest = 0;
  if (!PyArg_ParseTuple(arguments, "KLip|K", &address, &count, &element, &digest, &copy_to)) {
    return nullptr;
  }
  if (!is_element(element)) return nullptr;
  const auto type = static_cast<Element>(element);
  Statistics found;
  {
    const Unlocked unlocked(count * size_of(type));
    found = measure(reinterpret_cast<const void*>(address), count, type, digest != 0,
                    reinterpret_cast<void*>(copy_to));
  }
  return dict_of(found);
}

PyObject* measure_bytes(PyObject*, PyObject* const* arguments, Py_ssize_t given) {
  if (given < 3 || given > 4) {
    PyErr_SetString(PyExc_TypeError, "measure_bytes(data, element, digest, source=None)");
    return nullptr;
  }
  const int element = static_cast<int>(PyLong_AsLong(arguments[1]));
  const int digest = PyObject_IsTrue(arguments[2]);
  if (PyErr_Occurred() != nullptr || !is_element(element)) return nullptr;
  const bool copies = given == 4 && arguments[3] != Py_None;
  Buffer data, source;
  if (!data.open(arguments[0], copies ? PyBUF_WRITABLE : PyBUF_SIMPLE)) return nullptr;
  if (copies && !source.open(arguments[3], PyBUF_SIMPLE)) return nullptr;
  if (copies && source.view.len != data.view.len) {
    PyErr_Format(PyExc_ValueError, "%zd bytes cannot be copied into %zd", source.view.len,
                 data.view.len);
    return nullptr;
  }
  const auto type = static_cast<Element>(element);
  Statistics found;
  {
    const Unlocked unlocked(data.view.len);
    found = measure(copies ? source.view.buf : data.view.buf, data.view.len / size_of(type), type,
                    digest != 0, copies ? data.view.buf : nullptr);
  }
  return dict_of(found);
}

bool numbers_of(PyObject* sequence, std::vector<int64_t>& into) {
  PyObject* items = PySequence_Fast(sequence, "sizes and strides are sequences of integers");
  if (items == nullptr) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); ++i) {
    into.push_back(PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items, i)));
  }
  Py_DECREF(items);
  return PyErr_Occurred() == nullptr;
}

// Elements that lie apart in memory, as Python names them.
struct StridedView {
  Element type{};
  std::vector<int64_t> size, stride;
  int64_t bytes = 0;

  // Returns false, with an exception set, for what is no view.
  bool read(int element, PyObject* sizes, PyObject* strides) {
    if (!is_element(element) || !numbers_of(sizes, size) || !numbers_of(strides, stride)) {
      return false;
    }
    if (size.size() != stride.size()) {
      PyErr_Format(PyExc_ValueError, "%zu sizes and %zu strides", size.size(), stride.size());
      return false;
    }
    type = static_cast<Element>(element);
    bytes = size_of(type);
    for (const int64_t each : size) bytes *= each;
    return true;
  }

  int dimensions() const { return static_cast<int>(size.size()); }
};

PyObject* measure_view(PyObject*, PyObject* arguments) {
  unsigned long long address = 0, copy_to = 0;
  int element = 0, digest = 0;
  PyObject *sizes = nullptr, *strides = nullptr;
  if (!PyArg_ParseTuple(arguments, "KiOOp|K", &address, &element, &sizes, &strides, &digest,
                        &copy_to)) {
    return nullptr;
  }
  StridedView view;
  if (!view.read(element, sizes, strides)) return nullptr;
  Statistics found;
  {
    const Unlocked unlocked(view.bytes);
    found = measure_strided(reinterpret_cast<const void*>(address), view.type, view.dimensions(),
                            view.size.data(), view.stride.data(), digest != 0,
                            reinterpret_cast<void*>(copy_to));
  }
  return dict_of(found);
}

PyObject* fingerprint_view(PyObject*, PyObject* arguments) {
  unsigned long long address = 0;
  int element = 0;
  PyObject *sizes = nullptr, *strides = nullptr;
  if (!PyArg_ParseTuple(arguments, "KiOO", &address, &element, &sizes, &strides)) return nullptr;
  StridedView view;
  if (!view.read(element, sizes, strides)) return nullptr;
  std::vector<double> packed;
  {
    const Unlocked unlocked(view.bytes);
    fingerprint_strided(reinterpret_cast<const void*>(address), view.type, view.dimensions(),
                        view.size.data(), view.stride.data(), packed);
  }
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(packed.data()),
                                   static_cast<Py_ssize_t>(packed.size() * sizeof(double)));
}

PyObject* elements(PyObject*, PyObject*) {
  PyObject* numbers = PyDict_New();
  if (numbers == nullptr) return nullptr;
  for (int i = 0; i < ELEMENTS; ++i) {
    PyObject* name = PyUnicode_FromString(NAMES[i]);
    const bool done = put(numbers, name, int64_t{i});
    Py_XDECREF(name);
    if (!done) {
      Py_DECREF(numbers);
      return nullptr;
    }
  }
  return numbers;
}

PyObject* instructions(PyObject*, PyObject*) { return PyUnicode_FromString(instruction_set()); }

PyObject* use_instructions(PyObject*, PyObject* arguments) {
  const char* name = nullptr;
  if (!PyArg_ParseTuple(arguments, "z", &name)) return nullptr;
  return PyBool_FromLong(use_instruction_set(name));
}

}  // namespace

PyObject* dict_of(const Statistics& found) {
  PyObject* dict = PyDict_New();
  if (dict == nullptr) return nullptr;
  const Keys& key = keys();
  bool done = true;
  if (found.has_moments) {
    done = put(dict, key.min, found.min) && put(dict, key.max, found.max) &&
           put(dict, key.mean, found.mean) && put(dict, key.std, found.std) &&
           put(dict, key.norm, found.norm);
  }
  done = done && put(dict, key.nan, found.nan) && put(dict, key.inf, found.inf) &&
         put(dict, key.zeros, found.zeros);
  if (found.has_ends) {
    done = done && put(dict, key.lowest, found.lowest) && put(dict, key.highest, found.highest);
  }
  if (found.has_digest) done = done && put(dict, key.digest, hexadecimal(found.digest));
  done = done && put(dict, key.count, found.count);
  if (done) return dict;
  Py_DECREF(dict);
  return nullptr;
}

PyMethodDef statistics_methods[] = {
    {"measure", measure_memory, METH_VARARGS,
     "measure(address, count, element, digest, copy_to=0) -> dict"},
    {"measure_bytes", fast(measure_bytes),
     METH_FASTCALL, "measure_bytes(data, element, digest, source=None) -> dict"},
    {"measure_view", measure_view, METH_VARARGS,
     "measure_view(address, element, sizes, strides, digest, copy_to=0) -> dict"},
    {"fingerprint_view", fingerprint_view, METH_VARARGS,
     "fingerprint_view(address, element, sizes, strides) -> bytes of packed doubles"},
    {"elements", elements, METH_NOARGS, "elements() -> the number of each type, by torch's name"},
    {"instruction_set", instructions, METH_NOARGS, "instruction_set() -> avx512, avx2 or scalar"},
    {"use_instruction_set", use_instructions, METH_VARARGS,
     "use_instruction_set(name) -> whether the processor has it; None chooses the best"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace clew
