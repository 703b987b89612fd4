// Walk the Python frames of the running thread, innermost first, without the GIL.
//
// Nobody else changes the frames of a thread while it is in C code, so they can be read although
// the GIL is released. CPython has no public functions for that; each layout is mirrored here, so
// that its internal headers are not needed. Other versions use the public functions, with the GIL;
// so do all with CLEW_PUBLIC_FRAMES, for tests.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

#include <cstdint>
#include <vector>

namespace clew {

struct Frame {
  void* frame;          // tells one activation from another, while it runs
  PyCodeObject* code;   // borrowed: the frame keeps it alive
  int32_t instruction;  // `f_lasti`
};

#if PY_VERSION_HEX < 0x030B0000
#define CLEW_WALKS_FRAMES 1

inline PyObject* local_of(void* frame, int index) {
  return static_cast<PyFrameObject*>(frame)->f_localsplus[index];
}

// 3.10: frames are objects.
template <typename Visit>
inline void walk_frames(Visit visit) {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return;
  for (PyFrameObject* f = state->frame; f != nullptr; f = f->f_back) {
    // Counted in code units; -1 before the first one has run.
    int32_t at = f->f_lasti < 0 ? -1 : f->f_lasti * 2;
    if (!visit(Frame{f, f->f_code, at}, f)) return;
  }
}

#elif PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED) && !defined(CLEW_PUBLIC_FRAMES)
#define CLEW_WALKS_FRAMES 1

using CodeUnit = uint16_t;  // which has no name in the headers of 3.13

struct InterpreterFrame {
#if PY_VERSION_HEX < 0x030C0000
  PyFunctionObject* function;
  PyObject *globals, *builtins, *locals;
  PyCodeObject* code;
  PyFrameObject* object;
  InterpreterFrame* previous;
  CodeUnit* instruction;
  int stack_top;
  bool is_entry;
  char owner;
  PyObject* locals_and_stack[1];
#else
  PyObject* executable;
  InterpreterFrame* previous;
  PyObject *function, *globals, *builtins, *locals;
  PyFrameObject* object;
  CodeUnit* instruction;
  int stack_top;
  uint16_t return_offset;
  char owner;
  PyObject* locals_and_stack[1];
#endif
};

// Return a local variable of a frame by its index, borrowed; null if it has no value.
inline PyObject* local_of(void* frame, int index) {
  return static_cast<InterpreterFrame*>(frame)->locals_and_stack[index];
}

constexpr char OWNED_BY_GENERATOR = 1;
constexpr char OWNED_BY_C_STACK = 3;

template <typename Visit>
inline void walk_frames(Visit visit) {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return;
#if PY_VERSION_HEX < 0x030D0000
  if (state->cframe == nullptr) return;
  auto* f = reinterpret_cast<InterpreterFrame*>(state->cframe->current_frame);
#else
  auto* f = reinterpret_cast<InterpreterFrame*>(state->current_frame);
#endif
  for (; f != nullptr; f = f->previous) {
#if PY_VERSION_HEX < 0x030C0000
    PyCodeObject* code = f->code;
#else
    // A shim where C calls Python, which is no frame of the program.
    if (f->owner == OWNED_BY_C_STACK) continue;
    auto* code = reinterpret_cast<PyCodeObject*>(f->executable);
#endif
    auto* first = reinterpret_cast<CodeUnit*>(code->co_code_adaptive);
    auto at = static_cast<int32_t>(f->instruction - first);
    // A frame that is still being made, as 3.13's shim of `__init__` is.
    if (f->owner != OWNED_BY_GENERATOR && at < code->_co_firsttraceable) continue;
    if (!visit(Frame{f, code, at * 2}, f->object)) return;
  }
}

#else
#define CLEW_WALKS_FRAMES 0

// No version without public functions for it gets here: see `CLEW_WALKS_FRAMES`.
inline PyObject* local_of(void*, int) { return nullptr; }

// Any other version, by the public functions.
template <typename Visit>
inline void walk_frames(Visit visit) {
  if (PyGILState_GetThisThreadState() == nullptr) return;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyFrameObject* f = PyThreadState_GetFrame(PyThreadState_Get());
  bool more = true;
  while (f != nullptr && more) {
    PyCodeObject* code = PyFrame_GetCode(f);
    more = visit(Frame{f, code, PyFrame_GetLasti(f)}, f);
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(f);
    Py_DECREF(f);
    f = back;
  }
  Py_XDECREF(f);
  PyGILState_Release(gil);
}
#endif

// Return the innermost frame of the running thread; one without a frame if there is none.
inline Frame innermost_frame() {
  Frame found{};
  walk_frames([&](const Frame& frame, void*) {
    found = frame;
    return false;
  });
  return found;
}

}  // namespace clew
