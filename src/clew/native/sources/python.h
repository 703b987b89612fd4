// Call Python from a callback that may raise nothing: with the GIL, and the thread's error set aside.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <exception>
#include <memory>
#include <string>

namespace clew {

// Return a function that takes its arguments as an array, as tables of methods have it.
inline PyCFunction fast(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

// Begin a type that lives as long as the process; the caller fills in what it can do.
inline void begin_type(PyTypeObject& type, const char* name, size_t size) {
  Py_SET_REFCNT(reinterpret_cast<PyObject*>(&type), 1);
  type.tp_name = name;
  type.tp_basicsize = static_cast<Py_ssize_t>(size);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
}

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) { PyErr_Fetch(&type_, &value_, &trace_); }
  ~Gil() {
    PyErr_Restore(type_, value_, trace_);
    PyGILState_Release(state_);
  }
  Gil(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
  PyObject *type_, *value_, *trace_;
};

// Let other threads run Python while this one reads so many bytes; handing the GIL over costs more
// than a small tensor.
class Unlocked {
 public:
  static constexpr int64_t LARGE = 64 << 10;
  explicit Unlocked(int64_t bytes) : state_(bytes >= LARGE ? PyEval_SaveThread() : nullptr) {}
  ~Unlocked() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  Unlocked(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

// Own a reference.
class Ref {
 public:
  explicit Ref(PyObject* object) : object_(object) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(const Ref&) = delete;
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// Raise an exception where Python looks next for signals on the main thread; return whether it will.
inline bool raise_soon(PyObject* exception) {
  auto raise = [](void* given) {
    Ref taken(static_cast<PyObject*>(given));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(taken.get())), taken.get());
    return -1;
  };
  Py_INCREF(exception);
  if (Py_AddPendingCall(raise, exception) == 0) return true;
  Py_DECREF(exception);
  return false;
}

// The Python error that is set, taken, as an exception of C++; its text is `Type: message`. A function
// that Python has called raises it again, so that what a signal handler raised comes out.
class PythonError : public std::exception {
 public:
  PythonError() : held_(std::make_shared<Held>()) {
    PyErr_Fetch(&held_->type, &held_->value, &held_->trace);
    PyErr_NormalizeException(&held_->type, &held_->value, &held_->trace);
    Ref text(held_->value == nullptr ? nullptr : PyObject_Str(held_->value));
    const char* said = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    if (held_->type != nullptr) held_->text = reinterpret_cast<PyTypeObject*>(held_->type)->tp_name;
    if (said != nullptr) held_->text += std::string(": ") + said;
    PyErr_Clear();
  }

  const char* what() const noexcept override { return held_->text.c_str(); }

  bool is_a(PyObject* type) const {
    return held_->type != nullptr && PyErr_GivenExceptionMatches(held_->type, type) != 0;
  }

  void raise_again() const {
    PyErr_Restore(Py_XNewRef(held_->type), Py_XNewRef(held_->value), Py_XNewRef(held_->trace));
  }

  // Return the exception with its traceback, borrowed; null if there is none.
  PyObject* exception() const {
    if (held_->value != nullptr && held_->trace != nullptr) PyException_SetTraceback(held_->value, held_->trace);
    return held_->value;
  }

 private:
  struct Held {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    std::string text;
    ~Held() {
      Gil gil;
      Py_XDECREF(type);
      Py_XDECREF(value);
      Py_XDECREF(trace);
    }
  };
  std::shared_ptr<Held> held_;
};

}  // namespace clew
