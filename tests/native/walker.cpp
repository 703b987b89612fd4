// A Python module that walks frames as the native engine does, and as Python does.
#include "frames.h"

namespace {

struct Walked {
  clew::Frame frame;
  void* object;
};

std::vector<Walked> walked() {
  std::vector<Walked> found;
  Py_BEGIN_ALLOW_THREADS
  clew::walk_frames([&](const clew::Frame& frame, void* object) {
    found.push_back({frame, object});
    return true;
  });
  Py_END_ALLOW_THREADS
  return found;
}

// walk() -> [(code, f_lasti, id of the frame object or 0)], innermost first.
PyObject* walk(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const Walked& one : walked()) {
    PyObject* object = PyLong_FromVoidPtr(one.object);
    PyObject* row = Py_BuildValue("(OiN)", one.frame.code, one.frame.instruction, object);
    PyList_Append(list, row);
    Py_DECREF(row);
  }
  return list;
}

// both() -> what `walk` returns, and the same as `sys._getframe` and `f_back` tell it.
PyObject* both(PyObject* self, PyObject*) {
  PyObject* first = walk(self, nullptr);
  PyObject* list = PyList_New(0);
  PyObject* frame = PyObject_CallNoArgs(PySys_GetObject("_getframe"));
  while (frame != nullptr && frame != Py_None) {
    PyObject* code = PyObject_GetAttrString(frame, "f_code");
    PyObject* last = PyObject_GetAttrString(frame, "f_lasti");
    PyObject* row = Py_BuildValue("(NNN)", code, last, PyLong_FromVoidPtr(frame));
    PyList_Append(list, row);
    Py_DECREF(row);
    PyObject* back = PyObject_GetAttrString(frame, "f_back");
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  return Py_BuildValue("(NN)", first, list);
}

// local(depth, index) -> a local variable of a frame; NotImplemented if it has no value.
PyObject* local(PyObject*, PyObject* args) {
  int depth, index;
  if (!PyArg_ParseTuple(args, "ii", &depth, &index)) return nullptr;
  PyObject* found = clew::local_of(walked()[static_cast<size_t>(depth)].frame.frame, index);
  return Py_NewRef(found == nullptr ? Py_NotImplemented : found);
}

PyMethodDef methods[] = {
    {"walk", walk, METH_NOARGS, nullptr},
    {"both", both, METH_NOARGS, nullptr},
    {"local", local, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "walker", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_walker() {
  PyObject* module = PyModule_Create(&definition);
  PyModule_AddIntConstant(module, "reads_memory", CLEW_WALKS_FRAMES);
  return module;
}
