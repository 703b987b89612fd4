// Follow module calls where all of them pass: through the function `nn.Module._call_impl`.
//
// Python calls a function by a pointer that the function has. While a recording follows calls, that
// pointer is `called`, which records that a call begins, calls the function as before, and records
// how the call ended. A program can see nothing of it, and torch takes its short way through
// `_call_impl`, which any hook bars. Everything here runs with the GIL.
#include <c10/util/SmallVector.h>

#include <algorithm>

#include "python.h"
#include "recording.h"

namespace clew {

namespace {

// A recording, the Python object that has it, and the function that installs hooks instead.
struct Follower {
  Recording* recording;
  PyObject* object;
  PyObject* use_hooks;
};

// A call that a recording has begun to record; the object is owned.
struct Followed {
  Recording* recording;
  PyObject* object;
  int64_t event;
};

std::vector<Follower> followers;
PyFunctionObject* followed = nullptr;  // owned
vectorcallfunc before = nullptr;

// Have Python report the error that is set; return false, with it set, if it is the program's: what a
// signal handler raised has to come out.
bool is_reported(Recording* recording, const char* where) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Ref done(PyObject_CallFunction(recording->host.fault, "Os", value, where));
  for (PyObject* one : {type, value, trace}) Py_XDECREF(one);
  return static_cast<bool>(done);
}

// Run what a recording does about a call; return false, with an error set, if that raised what is
// the program's.
template <typename Action>
bool is_done(Recording* recording, const char* where, Action action) {
  try {
    action();
  } catch (const PythonError& error) {
    error.raise_again();
    return is_reported(recording, where);
  } catch (const std::exception& fault) {
    recording->note_fault(where, fault);
  }
  PyErr_Clear();  // which an object may have set that does not want to be looked at
  return true;
}

bool begin(const Follower& one, PyObject* const* args, Py_ssize_t count, PyObject* names, int64_t& event) {
  return is_done(one.recording, "a module call", [&] {
    event = one.recording->begin_call(args, count, names);
    if (event != NEEDS_HOOKS) return;
    Ref use_hooks(Py_NewRef(one.use_hooks));
    unfollow_calls(one.recording);
    Ref done(PyObject_CallNoArgs(use_hooks.get()));
    if (!done) throw PythonError();
  });
}

// Record how a call ended; return its result, null with an exception set.
PyObject* end(const Followed& call, PyObject* module, PyObject* result) {
  constexpr const char* where = "the end of a module call";
  if (result != nullptr) {
    bool is_result = is_done(call.recording, where, [&] {
      try {
        call.recording->return_from(call.event, module, result);
      } catch (const PythonError& error) {
        // Told of by the calls around this one, which have the room.
        if (!error.is_a(PyExc_RecursionError)) throw;
      }
    });
    if (!is_result) Py_CLEAR(result);
    return result;
  }
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  bool is_told = is_done(call.recording, where, [&] {
    if (PyErr_GivenExceptionMatches(type, PyExc_Exception) == 0) return call.recording->break_off(call.event);
    if (trace != nullptr) PyException_SetTraceback(value, trace);
    call.recording->raise_from(call.event, module, value);
  });
  if (is_told) {
    PyErr_Restore(type, value, trace);
  } else {
    for (PyObject* one : {type, value, trace}) Py_XDECREF(one);
  }
  return nullptr;
}

PyObject* called(PyObject* function, PyObject* const* args, size_t flags, PyObject* names) {
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (followers.empty() || count < 1) return before(function, args, flags, names);
  c10::SmallVector<Followed, 2> open;
  bool goes_on = true;
  for (size_t at = 0; at < followers.size() && goes_on; ++at) {
    // Python code that is asked something may change the list.
    Follower one = followers[at];
    Ref object(Py_NewRef(one.object));
    int64_t event = UNRECORDED;
    goes_on = begin(one, args, count, names, event);
    if (event >= 0) open.push_back({one.recording, Py_NewRef(one.object), event});
    if (event == NEEDS_HOOKS) --at;
  }
  PyObject* result = goes_on ? before(function, args, flags, names) : nullptr;
  while (!open.empty()) {
    Followed call = open.pop_back_val();
    result = end(call, args[0], result);
    Py_DECREF(call.object);
  }
  return result;
}

void set_pointer(PyFunctionObject* function, vectorcallfunc pointer) {
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(function, pointer);
#else
  function->vectorcall = pointer;
#endif
}

}  // namespace

bool follow_calls(Recording* recording, PyObject* object, PyObject* function, PyObject* use_hooks) {
#if CLEW_WALKS_FRAMES
  auto* found = reinterpret_cast<PyFunctionObject*>(function);
  if (!PyFunction_Check(function) || (!followers.empty() && followed != found)) return false;
  if (followers.empty()) {
    followed = reinterpret_cast<PyFunctionObject*>(Py_NewRef(function));
    before = found->vectorcall;
    set_pointer(found, called);
  }
  followers.push_back({recording, Py_NewRef(object), Py_NewRef(use_hooks)});
  return true;
#else
  return false;
#endif
}

void unfollow_calls(Recording* recording) {
  auto at = std::find_if(followers.begin(), followers.end(),
                         [&](const Follower& one) { return one.recording == recording; });
  if (at == followers.end()) return;
  Follower one = *at;
  followers.erase(at);
  if (followers.empty()) {
    if (followed->vectorcall == called) set_pointer(followed, before);
    Py_CLEAR(followed);
  }
  Py_DECREF(one.use_hooks);
  Py_DECREF(one.object);
}

}  // namespace clew
