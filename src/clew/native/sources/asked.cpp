// Hand the tensors of ops whose values were asked for to Python code, as each op ends.
#include "python.h"
#include "recording.h"

namespace clew {

bool Recording::is_asked(Thread& thread, const OpFacts& facts) {
  auto at = static_cast<size_t>(facts.number);
  {
    std::lock_guard<Lock> guard(lock);
    if (at >= asked_.size()) asked_.resize(at + 1);
    if (asked_[at] != 0) return asked_[at] == 2;
  }
  Gil gil;
  thread.is_asking = true;
  Ref found(PyObject_CallFunction(host.wants, "i", facts.number));
  thread.is_asking = false;
  if (!found) throw PythonError();
  bool is_wanted = found.get() == Py_True;
  std::lock_guard<Lock> guard(lock);
  asked_[at] = is_wanted ? 2 : 1;
  return is_wanted;
}

void Recording::hold_given(Thread& thread, AskedCall& call) {
  Gil gil;
  for (size_t i = call.tensors.size(); i < thread.given.size(); ++i) {
    call.tensors.emplace_back(thread.given[i].lock());
  }
}

void Recording::describe_asked(Thread& thread, const OpenOp& op, AskedCall& call) {
  call.op = op.facts->number;
  call.words.assign(thread.words.begin() + op.first_word, thread.words.end());
  call.texts = texts.all;
  for (size_t i = 0; i < thread.given.size() && op.first_ref + i < thread.refs.size(); ++i) {
    int64_t value = thread.refs[op.first_ref + i];
    // The op may have written to an argument, or to memory that one shows.
    if (i < call.tensors.size() && call.tensors[i].defined() &&
        !is_odd(call.tensors[i].unsafeGetTensorImpl())) {
      value = values.used(call.tensors[i].unsafeGetTensorImpl(), -1, NOTHING);
    }
    call.values.push_back(value);
  }
}

void Recording::tell_ran(Thread& thread, AskedCall& call) {
  hold_given(thread, call);
  thread.given.clear();
  Gil gil;
  thread.is_asking = true;
  ++here().hidden;
  Ref texts(PyList_New(0)), tensors(PyList_New(0)), numbers(PyList_New(0));
  for (const auto& text : call.texts) {
    Ref one(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
    if (one) PyList_Append(texts.get(), one.get());
  }
  for (size_t i = 0; i < call.values.size(); ++i) {
    Ref tensor(call.tensors[i].defined() ? wrapped(call.tensors[i]) : Py_NewRef(Py_None));
    Ref number(PyLong_FromLongLong(call.values[i]));
    if (!tensor || !number) break;
    PyList_Append(tensors.get(), tensor.get());
    PyList_Append(numbers.get(), number.get());
  }
  Ref done(PyErr_Occurred() != nullptr
               ? nullptr
               : PyObject_CallFunction(host.ran, "iy#OOO", call.op, reinterpret_cast<const char*>(call.words.data()),
                                       static_cast<Py_ssize_t>(call.words.size() * sizeof(uint64_t)),
                                       texts.get(), tensors.get(), numbers.get()));
  --here().hidden;
  thread.is_asking = false;
  if (!done) note_fault(op_at(call.op).name.c_str(), PythonError());
}

}  // namespace clew
