#include "raised.h"

#include <utility>
#include <vector>

#include "python.h"
#include "recording.h"

namespace clew {

namespace {

struct Waiting {
  // The last op of each recording that raised, then the composites around it.
  std::vector<std::pair<Recording*, std::vector<int64_t>>> raised;
  // The trace function that the program has on this thread.
  Py_tracefunc function = nullptr;
  PyObject* object = nullptr;
};
thread_local Waiting waiting;

void hand_over(const Waiting& was, PyObject* exception) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  ++here().hidden;
  for (const auto& [recording, numbers] : was.raised) {
    Ref event(PyLong_FromLongLong(numbers.front()));
    if (!is_active(recording) || !event) continue;
    Ref text(PyObject_CallFunctionObjArgs(recording->host.raised, exception, event.get(), nullptr));
    const char* said = text && text.get() != Py_None ? PyUnicode_AsUTF8(text.get()) : nullptr;
    if (text.get() == Py_None || said != nullptr) {
      for (int64_t number : numbers) recording->set_error(number, said);
    }
    if (!text) recording->note_fault("an exception", PythonError());
    PyErr_Clear();
  }
  --here().hidden;
  PyErr_Restore(type, value, trace);
}

int on_event(PyObject*, PyFrameObject* frame, int what, PyObject* argument) {
  Waiting was = std::exchange(waiting, Waiting{});
  PyEval_SetTrace(was.function, was.object);
  if (what == PyTrace_EXCEPTION && PyTuple_Check(argument) && PyTuple_GET_SIZE(argument) == 3) {
    hand_over(was, PyTuple_GET_ITEM(argument, 1));
  }
  int result = was.function == nullptr ? 0 : was.function(was.object, frame, what, argument);
  Py_XDECREF(was.object);
  return result;
}

}  // namespace

void note_raised(Recording* recording, int64_t event, bool is_around) {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr) return;
  if (!waiting.raised.empty() && state->c_tracefunc != on_event) {
    // The program has set a trace function of its own meanwhile.
    Gil gil;
    Py_CLEAR(waiting.object);
    waiting.raised.clear();
  }
  for (auto& [other, raised] : waiting.raised) {
    if (other != recording) continue;
    if (!is_around) raised.clear();
    raised.push_back(event);
    return;
  }
  waiting.raised.emplace_back(recording, std::vector<int64_t>{event});
  if (waiting.raised.size() > 1) return;
  Gil gil;
  waiting.function = state->c_tracefunc;
  waiting.object = state->c_traceobj;
  Py_XINCREF(waiting.object);
  PyEval_SetTrace(on_event, nullptr);
}

}  // namespace clew
