// The Python module of the native engine: `Recording`, and what hides Clew's own ops from it.
#include <ATen/core/Tensor.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>

#include "python.h"
#include "recording.h"
#include "statistics_module.h"

namespace {

using clew::Ref;

struct Object {
  PyObject_HEAD
  clew::Recording* recording;
};

clew::Recording& of(PyObject* self) { return *reinterpret_cast<Object*>(self)->recording; }

// Call a function that may throw; an exception of C++ becomes one of Python.
template <typename Function>
PyObject* guarded(Function function) {
  try {
    return function();
  } catch (const clew::PythonError& error) {
    error.raise_again();
    return nullptr;
  } catch (const std::exception& fault) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, fault.what());
    return nullptr;
  }
}

// `name` is interned and kept, as Python finds attributes by the address of their names.
PyObject* attribute(PyObject* host, PyObject* name) {
  PyObject* found = name == nullptr ? nullptr : PyObject_GetAttr(host, name);
  if (found == nullptr) throw std::runtime_error("the host lacks an attribute");
  return found;
}

// Recording(host, hidden, call_frame, wrapped_call, reads_versions, most_rows)
int init(PyObject* self, PyObject* args, PyObject*) {
  PyObject *host, *hidden, *call_frame, *wrapped;
  int reads_versions;
  Py_ssize_t most_rows;
  if (!PyArg_ParseTuple(args, "OOO!O!pn", &host, &hidden, &PyCode_Type, &call_frame, &PyCode_Type,
                        &wrapped, &reads_versions, &most_rows)) {
    return -1;
  }
  try {
    static PyObject* const turn = PyUnicode_InternFromString("turn");
    static PyObject* const waiting = PyUnicode_InternFromString("waiting");
    static PyObject* const failed = PyUnicode_InternFromString("failed");
    auto made = std::make_unique<clew::Recording>(host, reads_versions != 0);
    made->most_rows = static_cast<size_t>(most_rows);
    made->torch.call = reinterpret_cast<PyCodeObject*>(call_frame);
    made->torch.wrapped = reinterpret_cast<PyCodeObject*>(wrapped);
    made->hooks = {attribute(host, turn), attribute(host, waiting), attribute(host, failed)};
    Ref codes(PySequence_Fast(hidden, "hidden must be a sequence of code objects"));
    if (!codes) return -1;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(codes.get()); ++i) {
      made->torch.hidden.add(
          reinterpret_cast<PyCodeObject*>(PySequence_Fast_GET_ITEM(codes.get(), i)));
    }
    reinterpret_cast<Object*>(self)->recording = made.release();
    return 0;
  } catch (const std::exception& fault) {
    PyErr_SetString(PyExc_RuntimeError, fault.what());
    return -1;
  }
}

void dealloc(PyObject* self) {
  clew::Recording* recording = reinterpret_cast<Object*>(self)->recording;
  if (recording != nullptr) {
    clew::deactivate(recording);
    delete recording;
  }
  Py_TYPE(self)->tp_free(self);
}

PyObject* next(PyObject* self) { return PyLong_FromLongLong(of(self).next_id()); }

// activate(sees_ops): begin on the running thread; without `sees_ops` record no ops.
PyObject* activate(PyObject* self, PyObject* sees_ops) {
  return guarded([&] {
    // Threads that begin from here on have a higher number.
    uint64_t newest = 0;
    for (auto* state = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); state != nullptr;
         state = PyThreadState_Next(state)) {
      newest = std::max<uint64_t>(newest, PyThreadState_GetID(state));
    }
    of(self).begin_threads(newest);
    of(self).sees_ops = PyObject_IsTrue(sees_ops) == 1;
    if (of(self).sees_ops) clew::activate(&of(self));
    return Py_NewRef(Py_None);
  });
}

PyObject* deactivate(PyObject* self, PyObject*) {
  clew::deactivate(&of(self));
  Py_RETURN_NONE;
}

// is_inside_call() -> whether the running thread is in a module call, which may not be recorded.
PyObject* is_inside_call(PyObject* self, PyObject*) {
  bool found = false;
  clew::walk_frames([&](const clew::Frame& frame, void*) {
    found = frame.code == of(self).torch.call;
    return !found;
  });
  return PyBool_FromLong(found);
}

PyObject* abandon(PyObject* self, PyObject*) {
  clew::abandon(&of(self));
  Py_RETURN_NONE;
}

// release(): drop what is known of tensors; their values were handed over.
PyObject* release(PyObject* self, PyObject*) {
  {
    std::lock_guard<clew::Lock> guard(of(self).lock);
    of(self).values.release();
  }
  of(self).let_go();
  Py_RETURN_NONE;
}

// keep(level, most_bytes, bytes, elements, sample, until): what is kept of each value, and limits.
PyObject* keep(PyObject* self, PyObject* args) {
  int level;
  long long most, bytes, elements, sample, until;
  if (!PyArg_ParseTuple(args, "iLLLLL", &level, &most, &bytes, &elements, &sample, &until)) {
    return nullptr;
  }
  of(self).most_bytes = most;
  of(self).values.kept.level = static_cast<clew::Level>(level);
  of(self).values.kept.limits = {bytes, elements, sample, until};
  Py_RETURN_NONE;
}

// skip_digests(): statistics are taken without digests from here on, a third faster.
PyObject* skip_digests(PyObject* self, PyObject*) {
  std::lock_guard<clew::Lock> guard(of(self).lock);
  of(self).values.kept.digests = false;
  Py_RETURN_NONE;
}

// give_back(bytes): so many bytes of data that were kept have been deleted.
PyObject* give_back(PyObject* self, PyObject* bytes) {
  std::lock_guard<clew::Lock> guard(of(self).lock);
  of(self).values.kept.given_back += PyLong_AsLongLong(bytes);
  Py_RETURN_NONE;
}

// pending() -> bytes of data that were kept and not taken yet.
PyObject* pending(PyObject* self, PyObject*) {
  std::lock_guard<clew::Lock> guard(of(self).lock);
  return PyLong_FromLongLong(of(self).values.kept.pending);
}

// ask_ops(wants, ran): the functions that are called for ops whose values were asked for.
PyObject* ask_ops(PyObject* self, PyObject* args) {
  PyObject *wants, *ran;
  if (!PyArg_ParseTuple(args, "OO", &wants, &ran)) return nullptr;
  of(self).host.wants = Py_NewRef(wants);
  of(self).host.ran = Py_NewRef(ran);
  Py_RETURN_NONE;
}

PyObject* peek_id(PyObject* self, PyObject*) { return PyLong_FromLongLong(of(self).peek_id()); }

// push_call(event, frame): a module call begins in a frame, given by its id.
PyObject* push_call(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count != 2) throw std::runtime_error("push_call(event, frame)");
    clew::Thread* thread = of(self).thread(true);
    if (thread != nullptr) {
      clew::OpenCall call;
      call.event = PyLong_AsLongLong(args[0]);
      call.frame = PyLong_AsVoidPtr(args[1]);
      thread->calls.push_back(call);
    }
    return Py_NewRef(Py_None);
  });
}

// pop_call(event): a module call is over, and all that began in it.
PyObject* pop_call(PyObject* self, PyObject* event) {
  return guarded([&]() -> PyObject* {
    clew::Thread* thread = of(self).thread(false);
    int64_t wanted = PyLong_AsLongLong(event);
    if (thread != nullptr) {
      for (size_t at = thread->calls.size(); at-- > 0;) {
        if (thread->calls[at].event == wanted) {
          of(self).abandon_calls(*thread, at);
          break;
        }
      }
    }
    return Py_NewRef(Py_None);
  });
}

// enter(module, args), leave(module, args, result): a module call begins or ends, told by a hook.
// Return whether it was recorded.
PyObject* enter(PyObject* self, PyObject* const* args, Py_ssize_t) {
  return guarded([&] { return PyBool_FromLong(of(self).enter_module(args[0], args[1])); });
}

PyObject* leave(PyObject* self, PyObject* const* args, Py_ssize_t) {
  return guarded([&] { return PyBool_FromLong(of(self).leave_module(args[0], args[2])); });
}

// follow(function, use_hooks) -> whether the module calls that pass through a function are recorded
// from here on. unfollow(): they are not.
PyObject* follow(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return guarded([&] {
    if (count != 2) throw std::runtime_error("follow(function, use_hooks)");
    return PyBool_FromLong(clew::follow_calls(&of(self), self, args[0], args[1]));
  });
}

PyObject* unfollow(PyObject* self, PyObject*) {
  clew::unfollow_calls(&of(self));
  Py_RETURN_NONE;
}

// fail(event, text): an open call ends with an exception; None for one that is no error.
PyObject* fail(PyObject* self, PyObject* args) {
  long long event;
  const char* text;
  if (!PyArg_ParseTuple(args, "Lz", &event, &text)) return nullptr;
  return guarded([&] { return PyBool_FromLong(of(self).fail_call(event, text)); });
}

// finish(event, result): an open call ends with a result.
PyObject* finish(PyObject* self, PyObject* args) {
  long long event;
  PyObject* result;
  if (!PyArg_ParseTuple(args, "LO", &event, &result)) return nullptr;
  return guarded([&] { return PyBool_FromLong(of(self).finish_call(event, result)); });
}

// abandon_above(thread, count): end the calls of a thread above the first `count`.
PyObject* abandon_above(PyObject* self, PyObject* args) {
  int index, count;
  if (!PyArg_ParseTuple(args, "ii", &index, &count)) return nullptr;
  return guarded([&] {
    for (auto& thread : of(self).threads) {
      if (thread->index == index) of(self).abandon_calls(*thread, static_cast<size_t>(count));
    }
    return Py_NewRef(Py_None);
  });
}

// calls(thread) -> the open calls of a thread that are recorded here, outermost first: (event,
// node, frame, name, parent, start, number). A frame is None where another thread runs it.
PyObject* calls(PyObject* self, PyObject* index) {
  return guarded([&]() -> PyObject* {
    clew::Recording& recording = of(self);
    long wanted = PyLong_AsLong(index);
    for (auto& one : recording.threads) {
      if (one->index == wanted && !one->calls.empty()) recording.need_names();
    }
    clew::Thread* thread = nullptr;
    for (auto& one : recording.threads) {
      if (one->index == wanted && (thread == nullptr || !one->calls.empty())) thread = one.get();
    }
    Ref list(PyList_New(0));
    if (thread == nullptr) return Py_NewRef(list.get());
    bool is_ours = recording.known_thread() == thread;
    if (is_ours && !thread->calls.empty()) {
      // Have an object made of each frame, which is what Python knows it by.
      PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
      while (frame != nullptr) {
        PyFrameObject* back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
      }
    }
    for (const auto& call : thread->calls) {
      void* object = call.frame;
      if (call.is_ours) {
        object = nullptr;
        if (is_ours) {
          clew::walk_frames([&](const clew::Frame& frame, void* made) {
            if (frame.frame == call.frame) object = made;
            return object == nullptr;
          });
        }
      }
      Ref row(Py_BuildValue("(LiNOLLL)", static_cast<long long>(call.event), call.node.number,
                            object == nullptr ? Py_NewRef(Py_None) : PyLong_FromVoidPtr(object),
                            call.name == nullptr ? Py_None : call.name,
                            static_cast<long long>(call.parent), static_cast<long long>(call.start),
                            static_cast<long long>(call.number)));
      if (!row) return nullptr;
      PyList_Append(list.get(), row.get());
    }
    return Py_NewRef(list.get());
  });
}

// offer_names(names): what an earlier recording has found of the model.
PyObject* offer_names(PyObject* self, PyObject* names) {
  if (!PyObject_TypeCheck(names, clew::names_type())) {
    PyErr_SetString(PyExc_TypeError, "offer_names(Names)");
    return nullptr;
  }
  of(self).offer_names(names);
  Py_RETURN_NONE;
}

// used_names() -> the `Names` that module calls refer to and Python code has not got yet, or None.
PyObject* used_names(PyObject* self, PyObject*) {
  PyObject* names = of(self).used_names();
  return Py_NewRef(names == nullptr ? Py_None : names);
}

// named(names, objects): the objects that Python code has made of a `Names`.
PyObject* named(PyObject* self, PyObject* args) {
  PyObject *names, *objects;
  if (!PyArg_ParseTuple(args, "O!O!", clew::names_type(), &names, &PyList_Type, &objects)) return nullptr;
  return guarded([&] {
    of(self).set_named(names, objects);
    return Py_NewRef(Py_None);
  });
}

// renamed(row): a module has got another name.
PyObject* renamed(PyObject* self, PyObject* row) {
  of(self).set_renamed(PyLong_AsSize_t(row));
  Py_RETURN_NONE;
}

PyObject* has_calls(PyObject* self, PyObject*) { return PyBool_FromLong(of(self).has_calls()); }

const at::Tensor& tensor_of(PyObject* object) {
  if (!THPVariable_Check(object)) throw std::runtime_error("not a tensor");
  return THPVariable_Unpack(object);
}

PyObject* value(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return guarded([&] {
    int64_t producer = count > 1 ? PyLong_AsLongLong(args[1]) : -1;
    return PyLong_FromLongLong(of(self).value_of(tensor_of(args[0]), producer));
  });
}

PyObject* made(PyObject* self, PyObject* const* args, Py_ssize_t) {
  return guarded([&] {
    int64_t event = PyLong_AsLongLong(args[1]);
    return PyLong_FromLongLong(of(self).made_value(tensor_of(args[0]), event));
  });
}

PyObject* written(PyObject* self, PyObject* const* args, Py_ssize_t) {
  return guarded([&] {
    int64_t event = PyLong_AsLongLong(args[1]);
    return PyLong_FromLongLong(of(self).written_value(tensor_of(args[0]), event));
  });
}

// nonfinite() -> how many values with NaN or Inf were met so far.
PyObject* nonfinite(PyObject* self, PyObject*) {
  return PyLong_FromLongLong(of(self).values.kept.nonfinite.load(std::memory_order_relaxed));
}

// near_overflow() -> how many values of float16 had elements of more than half its range.
PyObject* near_overflow(PyObject* self, PyObject*) {
  return PyLong_FromLongLong(of(self).values.kept.near_overflow.load(std::memory_order_relaxed));
}

// nonfinite_in(tensor) -> 1 if it was seen to hold NaN, 2 for Inf, 3 for both, -1 if not known.
PyObject* nonfinite_in(PyObject* self, PyObject* tensor) {
  return guarded([&] {
    c10::TensorImpl* given = tensor_of(tensor).unsafeGetTensorImpl();
    std::lock_guard<clew::Lock> guard(of(self).lock);
    return PyLong_FromLong(of(self).values.nonfinite(given));
  });
}

PyObject* forget(PyObject* self, PyObject* tensor) {
  return guarded([&] {
    of(self).forget(tensor_of(tensor));
    return Py_NewRef(Py_None);
  });
}

// mute(thread, on): record no ops of a thread, or record them again.
PyObject* mute(PyObject* self, PyObject* args) {
  int index, on;
  if (!PyArg_ParseTuple(args, "ip", &index, &on)) return nullptr;
  std::lock_guard<clew::Lock> guard(of(self).lock);
  for (auto& thread : of(self).threads) {
    if (thread->index == index) thread->is_muted = on != 0;
  }
  Py_RETURN_NONE;
}

PyObject* halt(PyObject* self, PyObject*) {
  of(self).is_halted = true;
  std::lock_guard<clew::Lock> guard(of(self).lock);
  for (auto& thread : of(self).threads) thread->is_muted = true;
  Py_RETURN_NONE;
}

template <typename Rows>
PyObject* bytes_of(const Rows& rows) {
  return PyBytes_FromStringAndSize(
      reinterpret_cast<const char*>(rows.data()), static_cast<Py_ssize_t>(rows.size() * sizeof(*rows.data())));
}

// Rows of words, one behind the other, and how many each has.
struct WordRows {
  clew::Words words;
  std::vector<size_t> counts;
};

WordRows words_since(const clew::Interned& table, int32_t from) {
  WordRows found;
  table.since(from, [&](const uint64_t* words, size_t count) {
    found.words.add(words, words + count);
    found.counts.push_back(count);
  });
  return found;
}

PyObject* words_list(const WordRows& rows) {
  Ref list(PyList_New(0));
  const uint64_t* words = rows.words.data();
  for (size_t count : rows.counts) {
    Ref row(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(words),
                                      static_cast<Py_ssize_t>(count * sizeof(uint64_t))));
    if (row) PyList_Append(list.get(), row.get());
    words += count;
  }
  return Py_NewRef(list.get());
}

PyObject* text_list(const std::vector<std::string>& texts, size_t from = 0) {
  Ref list(PyList_New(0));
  for (size_t i = from; i < texts.size(); ++i) {
    Ref text(PyUnicode_DecodeUTF8(texts[i].data(), static_cast<Py_ssize_t>(texts[i].size()), "replace"));
    if (text) PyList_Append(list.get(), text.get());
  }
  return Py_NewRef(list.get());
}

// Texts, None for what is no error.
PyObject* error_list(const std::vector<clew::Recording::Raised>& errors) {
  Ref list(PyList_New(0));
  for (const auto& raised : errors) {
    Ref text(raised.is_error ? PyUnicode_DecodeUTF8(raised.text.data(),
                                                    static_cast<Py_ssize_t>(raised.text.size()), "replace")
                             : Py_NewRef(Py_None));
    if (text) PyList_Append(list.get(), text.get());
  }
  return Py_NewRef(list.get());
}

// A block of copied elements as a Python object with a buffer.
struct Data {
  PyObject_HEAD
  clew::Block* block;
};

void data_dealloc(PyObject* self) {
  clew::Block* block = reinterpret_cast<Data*>(self)->block;
  clew::give_back(std::move(*block));
  delete block;
  Py_TYPE(self)->tp_free(self);
}

int data_buffer(PyObject* self, Py_buffer* view, int flags) {
  clew::Block* block = reinterpret_cast<Data*>(self)->block;
  return PyBuffer_FillInfo(view, self, block->memory.get(), block->size, 1, flags);
}

PyBufferProcs data_as_buffer = {data_buffer, nullptr};
PyTypeObject data_type{};

PyObject* data_list(std::vector<clew::Block>& blocks) {
  Ref list(PyList_New(0));
  for (clew::Block& block : blocks) {
    Ref object(data_type.tp_alloc(&data_type, 0));
    if (!object) return nullptr;
    reinterpret_cast<Data*>(object.get())->block = new clew::Block(std::move(block));
    PyList_Append(list.get(), object.get());
  }
  return Py_NewRef(list.get());
}

struct Taken {
  std::vector<clew::KeptRow> kept;
  std::vector<clew::Block> blocks;
  std::vector<double> marks;
  uint32_t reached = 0;
  clew::Growing<clew::EventRow> events, open;
  clew::Growing<int64_t> refs;
  std::vector<int64_t> gone;
  clew::Growing<clew::ValueRow> values;
  std::vector<clew::FreedRow> freed;
  std::vector<at::Tensor> unnamed;  // undefined where the tensor is gone
  std::vector<clew::Recording::Raised> errors;
  std::vector<std::string> faults, texts, generators;
  int64_t first_value = 0;
  WordRows metas, arguments;
  int32_t first_arguments = 0, oldest_arguments = 0, first_error = 0;
};

// Take the rows out of a recording, with its lock; after the last ones nothing is known of tensors.
Taken take_rows(clew::Recording& recording, const std::vector<int64_t>& held, bool are_last) {
  Taken taken;
  std::lock_guard<clew::Lock> guard(recording.lock);
  clew::Values& values = recording.values;
  for (size_t i = 0; i < values.unnamed.size(); ++i) {
    auto name = values.first_name + static_cast<int32_t>(i);
    clew::TensorImpl* tensor = values.unnamed[i];
    clew::TensorImpl* alive = values.has_name(tensor, name) ? c10::raw::weak_intrusive_ptr::lock(tensor) : nullptr;
    taken.unnamed.push_back(alive == nullptr ? at::Tensor() : clew::tensor_of(alive));
  }
  values.first_name += static_cast<int32_t>(values.unnamed.size());
  values.unnamed.clear();
  are_last ? values.finish() : values.sweep();
  std::vector<int64_t> open = held;
  for (const auto& thread : recording.threads) {
    open.insert(open.end(), thread->refs.begin(), thread->refs.end());
  }
  std::sort(open.begin(), open.end());
  for (const auto& thread : recording.threads) {
    for (const auto& call : thread->calls) {
      if (call.is_ours) taken.open.push_back(recording.open_row(*thread, call));
    }
    for (const auto& one : thread->composites) {
      if (one.id >= 0) taken.open.push_back(recording.open_row(*thread, one));
    }
  }
  std::vector<int64_t> later;
  for (int64_t number : values.gone) {
    bool is_open = std::binary_search(open.begin(), open.end(), number);
    (is_open ? later : taken.gone).push_back(number);
  }
  values.gone.swap(later);
  taken.first_value = values.first;
  values.first += static_cast<int64_t>(values.rows.size());
  taken.events.swap(recording.events);
  taken.refs.swap(recording.refs);
  taken.values.swap(values.rows);
  taken.freed.swap(values.freed);
  taken.first_error = recording.first_error;
  taken.errors = recording.errors;
  recording.first_error += static_cast<int32_t>(recording.errors.size());
  recording.errors.clear();
  taken.faults.swap(recording.faults);
  taken.kept.swap(values.kept.rows);
  taken.blocks.swap(values.kept.blocks);
  taken.marks.swap(values.kept.marks);
  taken.reached = values.kept.reached;
  values.kept.pending = 0;
  taken.texts = recording.texts.all;
  taken.generators = recording.generators;
  taken.metas = words_since(values.metas, recording.taken_metas);
  recording.taken_metas = values.metas.next();
  taken.first_arguments = recording.taken_arguments;
  taken.oldest_arguments = recording.arguments.oldest();
  taken.arguments = words_since(recording.arguments, recording.taken_arguments);
  recording.taken_arguments = recording.arguments.next();
  recording.arguments.limit(clew::MOST_ARGUMENTS);
  if (are_last) return taken;
  recording.events.reserve(std::min<size_t>(taken.events.size(), recording.most_rows));
  recording.refs.reserve(std::min<size_t>(taken.refs.size(), recording.most_rows * 4));
  values.rows.reserve(std::min<size_t>(taken.values.size(), recording.most_rows * 2));
  return taken;
}

// Notes as `clew.record.attributes` makes them: (number, event, names, values, names and values before).
PyObject* noted_list(std::vector<clew::NotedSettings> noted) {
  Ref list(PyList_New(0)), nothing(PyTuple_New(0));
  for (clew::NotedSettings& one : noted) {
    Ref settings(one.settings), number(PyLong_FromLong(one.number)), event(PyLong_FromLongLong(one.event));
    // One for each module of the model: faster than by a format.
    Ref row(number && event ? PyTuple_Pack(6, number.get(), event.get(), PyTuple_GET_ITEM(one.settings, 0),
                                           PyTuple_GET_ITEM(one.settings, 1), nothing.get(), Py_None)
                            : nullptr);
    if (row) PyList_Append(list.get(), row.get());
  }
  return Py_NewRef(list.get());
}

// take(held, are_last) -> all rows since the last call: what limits left out, faults, tensors that have
// no name yet, generators, then the fields of `clew.stream.records.NativeRows`. `held` are values that
// calls still open have taken. With the last rows, what is known of tensors is dropped.
PyObject* take(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count != 2) throw std::runtime_error("take(held, are_last)");
    PyObject* held = args[0];
    clew::Recording& recording = of(self);
    std::vector<int64_t> numbers;
    Ref items(PySequence_Fast(held, "held must be a sequence of integers"));
    if (!items) return nullptr;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
      numbers.push_back(PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items.get(), i)));
    }
    Taken taken = take_rows(recording, numbers, args[1] == Py_True);
    recording.let_go();
    Ref tensors(PyList_New(0));
    for (const at::Tensor& tensor : taken.unnamed) {
      // Modules know their tensors by their Python objects; the program makes those.
      bool has_object = tensor.defined() && tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr;
      Ref object(has_object ? THPVariable_Wrap(tensor) : Py_NewRef(Py_None));
      if (!object) return nullptr;
      PyList_Append(tensors.get(), object.get());
    }
    return Py_BuildValue(
        "(iNONNNNNNLNNiiNNiNNNNN)", static_cast<int>(taken.reached), text_list(taken.faults), tensors.get(),
        text_list(taken.generators), bytes_of(taken.events), bytes_of(taken.refs), bytes_of(taken.values),
        bytes_of(taken.freed), bytes_of(taken.gone), static_cast<long long>(taken.first_value),
        words_list(taken.metas), words_list(taken.arguments), taken.first_arguments, taken.oldest_arguments,
        text_list(taken.texts), error_list(taken.errors), taken.first_error, bytes_of(taken.open),
        bytes_of(taken.kept), bytes_of(taken.marks), data_list(taken.blocks),
        noted_list(recording.take_noted()));
  });
}

// ops(from) -> [(name, overload, schema)] of all ops met in this process, from a number on.
PyObject* ops(PyObject*, PyObject* from) {
  Ref list(PyList_New(0));
  long first = PyLong_AsLong(from);
  for (int32_t i = static_cast<int32_t>(first); i < clew::op_count(); ++i) {
    const clew::OpFacts& facts = clew::op_at(i);
    Ref row(Py_BuildValue("(sss)", facts.name.c_str(), facts.overload.c_str(), facts.schema.c_str()));
    if (!row) return nullptr;
    PyList_Append(list.get(), row.get());
  }
  return Py_NewRef(list.get());
}

// numbered() -> (dtypes, devices): the objects and names that stand for numbers in rows.
PyObject* numbered(PyObject*, PyObject*) {
  return guarded([&]() -> PyObject* {
    Ref dtypes(PyList_New(0)), devices(PyList_New(0));
    for (int i = 0; i < static_cast<int>(c10::ScalarType::Undefined); ++i) {
      auto* dtype = reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<c10::ScalarType>(i)));
      PyList_Append(dtypes.get(), dtype);
    }
    for (int i = 0; i < static_cast<int>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES); ++i) {
      Ref name(PyUnicode_FromString(
          c10::DeviceTypeName(static_cast<c10::DeviceType>(i), true).c_str()));
      PyList_Append(devices.get(), name.get());
    }
    return Py_BuildValue("(OO)", dtypes.get(), devices.get());
  });
}

// Hidden(): a context in which ops are Clew's own: no recording sees them, and no dispatch mode.
struct Hidden {
  PyObject_HEAD;
  c10::DispatchKeySet added;
};

PyObject* hidden_enter(PyObject* self, PyObject*) {
  const c10::DispatchKeySet modes({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  auto keys = c10::impl::tls_local_dispatch_key_set();
  auto& context = *reinterpret_cast<Hidden*>(self);
  context.added = modes - keys.excluded_;
  keys.excluded_ = keys.excluded_ | modes;
  c10::impl::_force_tls_local_dispatch_key_set(keys);
  ++clew::here().hidden;
  return Py_NewRef(self);
}

PyObject* hidden_exit(PyObject* self, PyObject* const*, Py_ssize_t) {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ - reinterpret_cast<Hidden*>(self)->added;
  c10::impl::_force_tls_local_dispatch_key_set(keys);
  --clew::here().hidden;
  Py_RETURN_NONE;
}

PyMethodDef hidden_methods[] = {
    {"__enter__", hidden_enter, METH_NOARGS, nullptr},
    {"__exit__", clew::fast(hidden_exit), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

// forget_code(): code objects were let go of; lines are looked up anew.
PyObject* forget_code(PyObject*, PyObject*) {
  clew::code_changes.fetch_add(1);
  Py_RETURN_NONE;
}

PyObject* plain_classes(PyObject*, PyObject* args) {
  PyObject *tensor, *parameter;
  if (!PyArg_ParseTuple(args, "OO", &tensor, &parameter)) return nullptr;
  clew::plain_classes[0] = tensor;
  clew::plain_classes[1] = parameter;
  Py_RETURN_NONE;
}

PyMethodDef recording_methods[] = {
    {"activate", activate, METH_O, nullptr},
    {"deactivate", deactivate, METH_NOARGS, nullptr},
    {"is_inside_call", is_inside_call, METH_NOARGS, nullptr},
    {"abandon", abandon, METH_NOARGS, nullptr},
    {"release", release, METH_NOARGS, nullptr},
    {"keep", keep, METH_VARARGS, nullptr},
    {"give_back", give_back, METH_O, nullptr},
    {"pending", pending, METH_NOARGS, nullptr},
    {"ask_ops", ask_ops, METH_VARARGS, nullptr},
    {"peek_id", peek_id, METH_NOARGS, nullptr},
    {"push_call", clew::fast(push_call), METH_FASTCALL, nullptr},
    {"pop_call", pop_call, METH_O, nullptr},
    {"enter", clew::fast(enter), METH_FASTCALL, nullptr},
    {"leave", clew::fast(leave), METH_FASTCALL, nullptr},
    {"follow", clew::fast(follow), METH_FASTCALL, nullptr},
    {"unfollow", unfollow, METH_NOARGS, nullptr},
    {"fail", fail, METH_VARARGS, nullptr},
    {"calls", calls, METH_O, nullptr},
    {"finish", finish, METH_VARARGS, nullptr},
    {"abandon_above", abandon_above, METH_VARARGS, nullptr},
    {"offer_names", offer_names, METH_O, nullptr},
    {"used_names", used_names, METH_NOARGS, nullptr},
    {"named", named, METH_VARARGS, nullptr},
    {"renamed", renamed, METH_O, nullptr},
    {"has_calls", has_calls, METH_NOARGS, nullptr},
    {"value", clew::fast(value), METH_FASTCALL, nullptr},
    {"made", clew::fast(made), METH_FASTCALL, nullptr},
    {"written", clew::fast(written), METH_FASTCALL, nullptr},
    {"nonfinite", nonfinite, METH_NOARGS, nullptr},
    {"skip_digests", skip_digests, METH_NOARGS, nullptr},
    {"near_overflow", near_overflow, METH_NOARGS, nullptr},
    {"nonfinite_in", nonfinite_in, METH_O, nullptr},
    {"forget", forget, METH_O, nullptr},
    {"mute", mute, METH_VARARGS, nullptr},
    {"halt", halt, METH_NOARGS, nullptr},
    {"take", clew::fast(take), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef methods[] = {
    {"ops", ops, METH_O, nullptr},
    {"numbered", numbered, METH_NOARGS, nullptr},
    {"forget_code", forget_code, METH_NOARGS, nullptr},
    {"plain_classes", plain_classes, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject recording_type{}, hidden_type{};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_clew_native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__clew_native() {
  clew::begin_type(recording_type, "_clew_native.Recording", sizeof(Object));
  recording_type.tp_new = PyType_GenericNew;
  recording_type.tp_init = init;
  recording_type.tp_dealloc = dealloc;
  recording_type.tp_iter = PyObject_SelfIter;
  recording_type.tp_iternext = next;
  recording_type.tp_methods = recording_methods;
  clew::begin_type(data_type, "_clew_native.Data", sizeof(Data));
  data_type.tp_dealloc = data_dealloc;
  data_type.tp_as_buffer = &data_as_buffer;
  clew::begin_type(hidden_type, "_clew_native.Hidden", sizeof(Hidden));
  hidden_type.tp_new = PyType_GenericNew;
  hidden_type.tp_methods = hidden_methods;
  for (PyTypeObject* type : {&recording_type, &hidden_type, &data_type}) {
    if (PyType_Ready(type) < 0) return nullptr;
  }
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr || PyModule_AddFunctions(module, clew::statistics_methods) < 0) return nullptr;
  PyTypeObject* names = clew::names_type();
  if (names == nullptr) return nullptr;
  PyModule_AddType(module, &recording_type);
  PyModule_AddType(module, names);
  PyModule_AddType(module, &hidden_type);
  return module;
}
