// Keep a trace function from slowing down functions that nobody follows (Python 3.10 and 3.11).
//
// While a trace function is set, Python checks at each instruction whether to call it, and calls it
// for each call. `evaluate`, which Python calls in place of its interpreter for each call (PEP 523),
// switches that off in frames whose code `pass_over` was given, and on again in frames that they
// call. Only for the trace function of `start`: under any other one, or a profiler, it does nothing.
//
// Needs neither torch nor the rest of the native engine. Called with the GIL, so without locks.
#include "../frames.h"

#include <pthread.h>

#include <cstdint>

namespace {

#if PY_VERSION_HEX >= 0x030B0000
using PythonFrame = struct _PyInterpreterFrame;
constexpr int TRACED = 255;  // combined with each opcode, which then is that of tracing

PyCodeObject* code_of(PythonFrame* frame) {
  return reinterpret_cast<clew::InterpreterFrame*>(frame)->code;
}
PythonFrame* running_frame(PyThreadState* state) { return state->cframe->current_frame; }
#else
using PythonFrame = PyFrameObject;
constexpr int TRACED = 1;

PyCodeObject* code_of(PythonFrame* frame) { return frame->f_code; }
PythonFrame* running_frame(PyThreadState* state) { return state->frame; }
#endif

// The trace function that is set; null while there is nothing to do.
PyObject* tracer = nullptr;
// What runs a frame: Python's interpreter, as `start` leaves any other in its place.
_PyFrameEvalFunction interpreter = nullptr;
// Code is passed over if its extra value is this number: another number ends that for all code.
uintptr_t round_number = 1;
// Counts calls of `pass_over` and of what ends it.
uint64_t changes = 0;
Py_ssize_t extra_index = -1;

bool is_passed_over(PyCodeObject* code) {
  void* found = nullptr;
  _PyCode_GetExtra(reinterpret_cast<PyObject*>(code), extra_index, &found);
  return reinterpret_cast<uintptr_t>(found) == round_number;
}

// While a trace function runs, Python traces nothing.
bool is_traced(PyThreadState* state) {
  return state->c_traceobj == tracer && tracer != nullptr && state->c_profilefunc == nullptr &&
         state->tracing == 0;
}

// Python switches tracing on or off for all frames that one call of its interpreter runs, and hands
// what it has at its end to the caller's.
void choose_tracing(PyThreadState* state, PythonFrame* frame) {
  bool off = frame != nullptr && is_passed_over(code_of(frame));
  state->cframe->use_tracing = off ? 0 : TRACED;
}

PyObject* evaluate(PyThreadState* state, PythonFrame* frame, int throwing);

void leave_interpreter(PyInterpreterState* all) {
  if (_PyInterpreterState_GetEvalFrameFunc(all) == evaluate) {
    _PyInterpreterState_SetEvalFrameFunc(all, interpreter);
  }
}

// Let every frame of every thread be traced, and Python call its interpreter by itself again.
void step_aside(PyInterpreterState* all) {
  PyObject* was = tracer;
  tracer = nullptr;
  leave_interpreter(all);
  for (auto* state = PyInterpreterState_ThreadHead(all); state; state = PyThreadState_Next(state)) {
    if (state->c_traceobj != was) continue;
    for (auto* part = state->cframe; part != nullptr; part = part->previous) {
      part->use_tracing = TRACED;
    }
  }
  Py_XDECREF(was);
}

// Return the address below which less than half of this thread's stack is left.
uintptr_t half_of_stack() {
  pthread_attr_t about;
  void* lowest = nullptr;
  size_t size = 0;
  if (pthread_getattr_np(pthread_self(), &about) == 0) {
    pthread_attr_getstack(&about, &lowest, &size);
    pthread_attr_destroy(&about);
  }
  return reinterpret_cast<uintptr_t>(lowest) + size / 2;
}

// From 3.11 on Python runs calls without the C stack, and programs may recurse deeper than that.
bool is_deep() {
  static thread_local uintptr_t half = half_of_stack();
  char here = 0;
  return reinterpret_cast<uintptr_t>(&here) < half;
}

PyObject* evaluate(PyThreadState* state, PythonFrame* frame, int throwing) {
  if (tracer == nullptr) {
    leave_interpreter(state->interp);
  } else if (is_deep()) {
    step_aside(state->interp);
  }
  uint64_t known = changes;
  bool off_here = false;
  if (is_traced(state)) {
    off_here = state->cframe->use_tracing == 0;
    choose_tracing(state, frame);
  }
  PyObject* result = interpreter(state, frame, throwing);
  if (is_traced(state)) {
    if (off_here && known == changes) {
      state->cframe->use_tracing = 0;
    } else {
      choose_tracing(state, running_frame(state));
    }
  }
  return result;
}

PyObject* start(PyObject*, PyObject* function) {
  PyInterpreterState* all = PyInterpreterState_Get();
  auto* now = _PyInterpreterState_GetEvalFrameFunc(all);
  if (tracer != nullptr || (now != _PyEval_EvalFrameDefault && now != evaluate)) Py_RETURN_FALSE;
  interpreter = _PyEval_EvalFrameDefault;
  tracer = Py_NewRef(function);
  round_number += 1;
  _PyInterpreterState_SetEvalFrameFunc(all, evaluate);
  Py_RETURN_TRUE;
}

PyObject* stop(PyObject*, PyObject*) {
  leave_interpreter(PyInterpreterState_Get());
  Py_CLEAR(tracer);
  Py_RETURN_NONE;
}

PyObject* set_extra(PyObject* code, uintptr_t value) {
  if (!PyCode_Check(code)) {
    PyErr_SetString(PyExc_TypeError, "a code object is needed");
    return nullptr;
  }
  changes += 1;
  if (_PyCode_SetExtra(code, extra_index, reinterpret_cast<void*>(value)) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* pass_over(PyObject*, PyObject* code) { return set_extra(code, round_number); }

PyObject* trace_again(PyObject*, PyObject* code) { return set_extra(code, 0); }

PyObject* trace_all_again(PyObject*, PyObject*) {
  changes += 1;
  round_number += 1;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"start", start, METH_O,
     "Begin, for a trace function that is then set with sys.settrace; False if other code already "
     "runs in place of Python's interpreter."},
    {"stop", stop, METH_NOARGS, "Let Python run calls by itself again."},
    {"pass_over", pass_over, METH_O, "Trace no frame of a code object that begins from now on."},
    {"trace_again", trace_again, METH_O, "End `pass_over` for a code object."},
    {"trace_all_again", trace_all_again, METH_NOARGS, "End `pass_over` for all code objects."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_clew_tracing", nullptr, -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__clew_tracing() {
  extra_index = _PyEval_RequestCodeExtraIndex(nullptr);
  if (extra_index < 0) {
    PyErr_SetString(PyExc_ImportError, "no place for a value of code objects is left");
    return nullptr;
  }
  return PyModule_Create(&definition);
}
