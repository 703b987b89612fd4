// Record module calls while nobody asks for more than the calls: those that `calls.cpp` follows, and
// those that torch's global hooks tell of.
//
// Everything here runs with the GIL. A call that a hook tells of and that needs more than this file
// knows (hooks of the module's own, an exception) is left to the hooks in Python: the functions
// return false.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>

#include "python.h"
#include "recording.h"

namespace clew {

namespace {

// Larger and deeper values are described by `clew.keep.nesting`, which has limits of its own.
constexpr Py_ssize_t MOST_ITEMS = 32;
constexpr Py_ssize_t LONGEST_TEXT = 1000;
constexpr int DEEPEST = 8;
// Stands for the op in the words of a module call.
constexpr uint64_t NO_OP = 0xFFFFFFFFull;

PyObject* text(const char* name) { return PyUnicode_InternFromString(name); }

// Return an attribute from the dict of a module, borrowed; null if it has none.
PyObject* own_attribute(PyObject* module, PyObject* name) {
  PyObject** held = _PyObject_GetDictPtr(module);
  return held == nullptr || *held == nullptr ? nullptr : PyDict_GetItemWithError(*held, name);
}

// Of objects that are no plain tensors torch asks Python code whether they are tensors, which takes
// as long as to record the rest of a call; the commonest ones need not be asked about.
bool is_tensor(PyObject* value) {
  if (THPVariable_CheckExact(value)) return true;
  bool is_builtin = value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
                    PyUnicode_CheckExact(value) || PyTuple_CheckExact(value) || PyList_CheckExact(value) ||
                    PyDict_CheckExact(value);
  return !is_builtin && THPVariable_Check(value);
}

bool is_token(PyObject* value) { return PyTuple_Check(value) && !PyTuple_CheckExact(value); }

}  // namespace

void Recording::append_object(Thread& thread, Words& words, Growing<int64_t>& found,
                              PyObject* value, int64_t producer,
                              int depth, bool is_described) {
  if (is_tensor(value)) {
    words.push_back(word(Tag::TENSOR));
    found.push_back(value_of(THPVariable_Unpack(value), producer));
  } else if (value == Py_None) {
    words.push_back(word(Tag::NONE));
  } else if (PyBool_Check(value)) {
    words.push_back(word(Tag::BOOL, value == Py_True ? 1 : 0));
  } else if (PyLong_CheckExact(value)) {
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow == 0) return append_int(words, number);
    goto object;
  } else if (PyFloat_CheckExact(value)) {
    append_double(words, PyFloat_AS_DOUBLE(value));
  } else if (PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) <= LONGEST_TEXT) {
    const char* said = PyUnicode_AsUTF8(value);
    if (said == nullptr) {
      PyErr_Clear();
      goto object;
    }
    std::lock_guard<Lock> guard(lock);
    words.push_back(word(Tag::TEXT, texts.number(said)));
  } else if ((PyTuple_CheckExact(value) || PyList_CheckExact(value)) &&
             (is_described ||
              (depth < DEEPEST && PySequence_Fast_GET_SIZE(value) <= MOST_ITEMS))) {
    size_t begin = words.size();
    words.push_back(0);
    // To describe an item runs Python code, which may change the list.
    Py_ssize_t count = 0;
    for (; count < PySequence_Fast_GET_SIZE(value); ++count) {
      Ref item(Py_NewRef(PySequence_Fast_GET_ITEM(value, count)));
      append_object(thread, words, found, item.get(), producer, depth + 1, is_described);
    }
    words[begin] = word(Tag::LIST, static_cast<uint64_t>(count));
  } else if (PyDict_CheckExact(value) &&
             (is_described || (depth < DEEPEST && PyDict_GET_SIZE(value) <= MOST_ITEMS))) {
    PyObject *key, *item;
    Py_ssize_t at = 0;
    size_t begin = words.size(), first = found.size();
    uint64_t count = 0;
    words.push_back(0);
    for (; PyDict_Next(value, &at, &key, &item); ++count) {
      const char* said = PyUnicode_CheckExact(key) ? PyUnicode_AsUTF8(key) : nullptr;
      if (said == nullptr) {
        PyErr_Clear();
        words.cut(begin);
        found.cut(first);
        goto object;
      }
      {
        std::lock_guard<Lock> guard(lock);
        words.push_back(word(Tag::TEXT, texts.number(said)));
      }
      Ref held(Py_NewRef(item));
      append_object(thread, words, found, held.get(), producer, depth + 1, is_described);
    }
    words[begin] = word(Tag::DICT, count);
  } else if (is_described && is_token(value)) {
    Ref number(PyObject_GetAttrString(value, "number"));
    if (!number) throw PythonError();
    words.push_back(word(Tag::TENSOR));
    found.push_back(PyLong_AsLongLong(number.get()));
  } else {
  object:
    if (is_described) {
      Ref number(PyObject_CallOneArg(host.constant, value));
      if (!number) throw PythonError();
      words.push_back(word(Tag::OBJECT, PyLong_AsUnsignedLongLong(number.get())));
      return;
    }
    thread.is_asking = true;
    Ref described(PyObject_CallFunction(host.describe, "OL", value, static_cast<long long>(producer)));
    thread.is_asking = false;
    if (!described) throw PythonError();
    append_object(thread, words, found, described.get(), producer, 0, true);
  }
}

void Recording::offer_names(PyObject* names) {
  names_ = Py_NewRef(names);
}

void Recording::set_named(PyObject* names, PyObject* objects) {
  static PyObject* attributes[] = {text("entry"),     text("calls"), text("recomputed"), text("names_set"),
                                   text("settings"), text("turn"),  text("training")};
  auto& [entry_name, calls, recomputed, names_set, settings, turn, training] = attributes;
  if (names_ != names) Py_XSETREF(names_, Py_NewRef(names));
  auto count = static_cast<size_t>(PyList_GET_SIZE(objects));
  if (count != names_in(names).rows.size()) throw std::runtime_error("not one name for each row");
  are_names_used_ = true;
  named_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    KnownModule& known = named_[i];
    PyObject* name = PyList_GET_ITEM(objects, static_cast<Py_ssize_t>(i));
    Ref entry(PyObject_GetAttr(name, entry_name));
    if (!entry) throw PythonError();
    known.subject = static_cast<int32_t>(i);
    known.is_only_name = names_in(names).rows[i].is_only_name;
    if (known.is_only_name) {
      Ref calls_now(PyLong_FromLongLong(known.calls)), recomputed_now(PyLong_FromLongLong(known.recomputed));
      PyObject_SetAttr(entry.get(), calls, calls_now.get());
      PyObject_SetAttr(entry.get(), recomputed, recomputed_now.get());
      if (known.noted != nullptr) {
        Ref turn_seen(PyLong_FromLong(known.turn));
        PyObject_SetAttr(entry.get(), names_set, PyTuple_GET_ITEM(known.noted, 0));
        PyObject_SetAttr(entry.get(), settings, PyTuple_GET_ITEM(known.noted, 1));
        PyObject_SetAttr(entry.get(), turn, turn_seen.get());
        PyObject_SetAttr(entry.get(), training, known.training == nullptr ? Py_None : known.training);
      }
      if (PyErr_Occurred() != nullptr) throw PythonError();
    }
    Py_XSETREF(known.entry, Py_NewRef(entry.get()));
    Py_XSETREF(known.name, Py_NewRef(name));
  }
  has_objects_ = true;
  std::lock_guard<Lock> guard(lock);
  for (auto& thread : threads) {
    for (OpenCall& call : thread->calls) {
      if (call.is_ours && call.name == nullptr) call.name = Py_NewRef(named_[call.subject].name);
    }
  }
}

void Recording::set_renamed(size_t row) {
  if (row < named_.size()) named_[row].is_only_name = false;
}

void Recording::need_names() {
  if (!are_names_used_ || has_objects_) return;
  Ref done(PyObject_CallNoArgs(host.names));
  if (!done) throw PythonError();
}

KnownModule* Recording::named_module(PyObject* module) {
  if (names_ == nullptr) return nullptr;
  if (!are_names_used_) {
    if (!names_in(names_).is_same()) {
      Py_CLEAR(names_);
      return nullptr;
    }
    are_names_used_ = true;
    named_.resize(names_in(names_).rows.size());
    for (size_t i = 0; i < named_.size(); ++i) {
      named_[i].subject = static_cast<int32_t>(i);
      named_[i].is_only_name = names_in(names_).rows[i].is_only_name;
    }
  }
  int32_t row = names_in(names_).find(module);
  return row < 0 || !named_[row].is_only_name ? nullptr : &named_[row];
}

KnownModule* Recording::known_module(Thread& thread, PyObject* module, const Node& node) {
  static PyObject* ref_name = text("ref");
  if (KnownModule* named = named_module(module)) return named;
  auto at = modules_.find(module);
  if (at != modules_.end() && at->second.is_only_name) {
    // The same address may be another module's by now.
    Ref ref(PyObject_GetAttr(at->second.entry, ref_name));
    if (ref && PyWeakref_GET_OBJECT(ref.get()) == module) return &at->second;
    PyErr_Clear();
  }
  need_names();
  PyObject* caller = thread.calls.empty() ? Py_None : thread.calls.back().name;
  Ref found(PyObject_CallFunction(host.module, "OOi", module, caller, node.number));
  PyObject *name, *entry;
  int index, is_only;
  if (!found || !PyArg_ParseTuple(found.get(), "OOip", &name, &entry, &index, &is_only)) {
    throw PythonError();
  }
  if (KnownModule* named = named_module(module)) return named;
  KnownModule& known = modules_[module];
  if (known.entry != entry) {
    Py_CLEAR(known.training);
    known.turn = -1;
  }
  Py_XSETREF(known.entry, Py_NewRef(entry));
  Py_XSETREF(known.name, Py_NewRef(name));
  known.subject = index;
  known.is_only_name = is_only != 0;
  return &known;
}

void Recording::count_call(KnownModule& known, OpenCall& call) {
  static PyObject* calls_name = text("calls");
  static PyObject* recomputed_name = text("recomputed");
  has_calls_ = true;
  bool is_recomputed = call.node.phase == RECOMPUTE;
  if (known.entry == nullptr) {
    call.number = is_recomputed ? known.recomputed++ : known.calls++;
    return;
  }
  PyObject* counter = is_recomputed ? recomputed_name : calls_name;
  Ref calls_before(PyObject_GetAttr(known.entry, counter));
  if (!calls_before) throw PythonError();
  call.number = PyLong_AsLongLong(calls_before.get());
  Ref calls_now(PyLong_FromLongLong(call.number + 1));
  PyObject_SetAttr(known.entry, counter, calls_now.get());
}

bool Recording::note_known_settings(KnownModule& known, PyObject* module, int64_t event) {
  if (known.entry != nullptr) return false;
  NamedModule& row = names_in(names_).rows[known.subject];
  if (known.noted != nullptr && known.noted != row.settings) return false;
  PyObject* attributes = attributes_of(module);
  if (attributes == nullptr || !names_in(names_).has_settings(row, attributes)) return false;
  if (known.noted == nullptr) {
    known.noted = Py_NewRef(row.settings);
    noted_.push_back({row.number, event, Py_NewRef(row.settings)});
  }
  return true;
}

void Recording::note_settings(KnownModule& known, PyObject* module, int64_t event) {
  if (note_known_settings(known, module, event)) return;
  need_names();
  Ref found(PyObject_CallFunction(host.attributes, "OOL", known.entry, module, static_cast<long long>(event)));
  if (!found) throw PythonError();
  PyObject* attributes = attributes_of(module);
  bool is_named = !named_.empty() && &known >= named_.data() && &known < named_.data() + named_.size();
  if (!is_named || attributes == nullptr || !PyTuple_Check(found.get())) return;
  NamedModule& row = names_in(names_).rows[known.subject];
  row.attributes = PyDict_GET_SIZE(attributes);
  row.settings_state = 0;
  Py_XSETREF(row.settings, Py_NewRef(found.get()));
}

bool Recording::enter_module(PyObject* module, PyObject* args) {
  static PyObject* forward_hooks = text("_forward_hooks");
  // What is read of a module would be part of the traced program.
  if (torch::jit::tracer::isTracing()) return false;
  Thread* found = thread(true);
  if (found == nullptr || found->is_muted.load(std::memory_order_relaxed)) return true;
  Thread& thread = *found;
  PyObject* own = own_attribute(module, forward_hooks);
  if (own == nullptr || PyDict_GET_SIZE(own) > 0 || PyDict_GET_SIZE(hooks.waiting) > 0 ||
      PyList_GET_SIZE(hooks.failed) > 0) {
    return false;
  }
  void* own_frame = nullptr;
  int seen = 0;
  walk_frames([&](const Frame& frame, void*) {
    own_frame = frame.frame;
    return ++seen < 2;
  });
  Node node;
  if (!find_call(thread, own_frame, node)) return false;
  const auto& frames = thread.stack.frames();
  if (frames.size() < 4 || frames[1].code != torch.call) return false;
  size_t outer = frames[3].code == torch.wrapped ? 3 : 2;
  if (frames[outer].code != torch.wrapped) return false;
  PyObject* kwargs = local_of(frames[outer].frame, 2);
  if (kwargs == nullptr || !PyDict_CheckExact(kwargs)) return false;
  open_call(thread, module, node, own_frame, PySequence_Fast_ITEMS(args), PyTuple_GET_SIZE(args),
            [&](auto visit) {
              PyObject *key, *value;
              Py_ssize_t at = 0;
              while (PyDict_Next(kwargs, &at, &key, &value)) visit(key, value);
            });
  return true;
}

namespace {

// Dynamo runs functions with code of its own, which keeps their names and places.
bool is_same_function(const PyCodeObject* code, const PyCodeObject* original) {
  return code == original ||
         (code != nullptr && code->co_firstlineno == original->co_firstlineno &&
          code->co_name == original->co_name && code->co_filename == original->co_filename);
}

}  // namespace

int64_t Recording::begin_call(PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (torch::jit::tracer::isTracing()) return NEEDS_HOOKS;
  Thread* found = thread(true);
  if (found == nullptr || found->is_muted.load(std::memory_order_relaxed)) return UNRECORDED;
  Frame frame = innermost_frame();
  Node node;
  if (!is_same_function(frame.code, torch.wrapped) || !find_call(*found, frame.frame, node)) return NEEDS_HOOKS;
  return open_call(*found, args[0], node, frame.frame, args + 1, count - 1, [&](auto visit) {
    Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < named; ++i) visit(PyTuple_GET_ITEM(names, i), args[count + i]);
  });
}

bool Recording::find_call(Thread& thread, void* frame, Node& node) {
  // A call that is open in the frame of this one is over: an interrupt has ended it.
  for (size_t at = 0; at < thread.calls.size(); ++at) {
    if (thread.calls[at].is_ours && thread.calls[at].frame == frame) {
      abandon_all_calls(thread, at);
      break;
    }
  }
  int around;
  node = thread.stack.find(
      torch, thread.calls, around, [&](const Node& parent, const Frame& line, bool is_own) {
        return ask_node(thread, parent, line, is_own);
      });
  if (node.is_direct) return false;
  auto count = static_cast<size_t>(around + 1);
  for (size_t at = count; at < thread.calls.size(); ++at) {
    if (!thread.calls[at].is_ours) return false;
  }
  if (count < thread.calls.size()) abandon_calls(thread, count);
  return thread.calls.empty() || thread.calls.back().is_ours;
}

template <class EachNamed>
int64_t Recording::open_call(Thread& thread, PyObject* module, const Node& node, void* frame,
                             PyObject* const* args, Py_ssize_t count, EachNamed each_named) {
  static PyObject* training_name = text("training");
  if (thread.calls.empty()) {
    Ref is_wanted(PyObject_CallOneArg(host.outermost, module));
    if (!is_wanted) throw PythonError();
    if (is_wanted.get() != Py_True) return UNRECORDED;
  }
  KnownModule& known = *known_module(thread, module, node);
  OpenCall call;
  call.frame = frame;
  call.is_ours = true;
  call.node = node;
  call.parent = thread.calls.empty() ? -1 : thread.calls.back().event;
  call.subject = known.subject;
  count_call(known, call);
  call.event = next_id();
  long turn = PyLong_AsLong(PyList_GET_ITEM(hooks.turn, 0));
  PyObject* training = own_attribute(module, training_name);
  if (known.turn != turn || known.training != training) {
    known.turn = turn;
    Py_XSETREF(known.training, Py_XNewRef(training));
    note_settings(known, module, call.event);
  }
  Words words = std::move(thread.call_words);
  Growing<int64_t> values = std::move(thread.call_refs);
  words.clear();
  values.clear();
  for (Py_ssize_t i = 0; i < count; ++i) append_object(thread, words, values, args[i], -1, 0, false);
  each_named([&](PyObject* key, PyObject* value) {
    const char* said = PyUnicode_AsUTF8(key);
    if (said == nullptr) throw PythonError();
    {
      std::lock_guard<Lock> guard(lock);
      words.push_back(word(Tag::KEYWORD, texts.number(said)));
    }
    append_object(thread, words, values, value, -1, 0, false);
  });
  call.name = Py_XNewRef(known.name);
  {
    std::lock_guard<Lock> guard(lock);
    call.first_word = thread.words.size();
    call.first_ref = thread.refs.size();
    thread.words.add(words.begin(), words.end());
    thread.refs.add(values.begin(), values.end());
    call.words = words.size();
    call.refs = values.size();
  }
  thread.call_words = std::move(words);
  thread.call_refs = std::move(values);
  call.start = now();
  thread.calls.push_back(call);
  return call.event;
}

bool Recording::leave_module(PyObject* module, PyObject* result) {
  int64_t end_time = now();
  Thread* known = known_thread();
  if (known == nullptr) return false;
  Thread& thread = *known;
  if (thread.is_muted.load(std::memory_order_relaxed)) return true;
  if (thread.calls.empty() || !thread.calls.back().is_ours ||
      PyDict_GET_SIZE(hooks.waiting) > 0) {
    return false;
  }
  // The frame that runs this hook, behind the hook's own.
  Frame caller{};
  int seen = 0;
  walk_frames([&](const Frame& frame, void*) {
    caller = frame;
    return ++seen < 2;
  });
  if (caller.code != torch.call || caller.frame != thread.calls.back().frame) return false;
  append_result(thread, result);
  end_call(thread, end_time, NOTHING, true);
  after_call(thread, module);
  return true;
}

void Recording::after_call(Thread& thread, PyObject* module) {
  if (thread.calls.empty()) {
    Ref done(PyObject_CallOneArg(host.idle, module));
    if (!done) throw PythonError();
  }
  bool is_enough;
  {
    std::lock_guard<Lock> guard(lock);
    is_enough = is_full();
  }
  if (is_enough) take_rows(thread);
}

Thread* Recording::reopen_call(int64_t event) {
  Thread* thread = known_thread();
  if (thread == nullptr || thread->is_muted.load(std::memory_order_relaxed)) return nullptr;
  for (size_t at = thread->calls.size(); at-- > 0;) {
    if (thread->calls[at].event != event || !thread->calls[at].is_ours) continue;
    abandon_all_calls(*thread, at + 1);
    return thread;
  }
  return nullptr;
}

void Recording::return_from(int64_t event, PyObject* module, PyObject* result) {
  int64_t end_time = now();
  Thread* thread = reopen_call(event);
  if (thread == nullptr) return;
  append_result(*thread, result);
  end_call(*thread, end_time, NOTHING, true);
  after_call(*thread, module);
}

void Recording::raise_from(int64_t event, PyObject* module, PyObject* exception) {
  Thread* thread = reopen_call(event);
  if (thread == nullptr) return;
  Ref error(PyObject_CallFunction(host.failed_call, "LO", static_cast<long long>(event), exception));
  if (!error) throw PythonError();
  fail_call(event, error.get() == Py_None ? nullptr : PyUnicode_AsUTF8(error.get()));
  after_call(*thread, module);
}

void Recording::break_off(int64_t event) {
  if (Thread* thread = reopen_call(event)) abandon_calls(*thread, thread->calls.size() - 1);
}

void Recording::append_result(Thread& thread, PyObject* result) {
  Words words = std::move(thread.call_words);
  Growing<int64_t> values = std::move(thread.call_refs);
  words.clear();
  words.push_back(word(Tag::RESULTS, 2));
  values.clear();
  append_object(thread, words, values, result, thread.calls.back().event, 0, false);
  {
    std::lock_guard<Lock> guard(lock);
    thread.words.add(words.begin(), words.end());
    thread.refs.add(values.begin(), values.end());
  }
  thread.call_words = std::move(words);
  thread.call_refs = std::move(values);
}

bool Recording::finish_call(int64_t event, PyObject* result) {
  int64_t end_time = now();
  Thread* known = known_thread();
  if (known == nullptr) return false;
  Thread& thread = *known;
  for (size_t at = thread.calls.size(); at-- > 0;) {
    if (thread.calls[at].event != event || !thread.calls[at].is_ours) continue;
    abandon_calls(thread, at + 1);
    append_result(thread, result);
    end_call(thread, end_time, NOTHING, true);
    return true;
  }
  return false;
}

void Recording::end_call(Thread& thread, int64_t end_time, int32_t error, bool has_result) {
  OpenCall call = thread.calls.back();
  thread.calls.pop_back();
  {
    std::lock_guard<Lock> guard(lock);
    if (!has_result) {
      // An op that runs in it on another thread may lie above it.
      thread.words.cut(call.first_word + call.words);
      thread.refs.cut(call.first_ref + call.refs);
      thread.words.push_back(word(Tag::RESULTS, 0));
    }
    events.push_back(call_row(thread, call, end_time, error));
    thread.words.cut(call.first_word);
    thread.refs.cut(call.first_ref);
  }
  Py_XDECREF(call.name);
}

EventRow Recording::call_row(Thread& thread, const OpenCall& call, int64_t end_time, int32_t error) {
  auto first = static_cast<int64_t>(refs.size());
  size_t count = thread.refs.size() - call.first_ref;
  refs.add(thread.refs.begin() + call.first_ref, thread.refs.end());
  thread.words.push_back(NO_OP);
  int32_t shape = arguments.number(thread.words.data() + call.first_word,
                                   thread.words.size() - call.first_word);
  thread.words.cut(thread.words.size() - 1);
  return {call.event, call.parent, call.start, end_time, call.number, first, MODULE, call.subject,
          call.node.number, shape, error, NOTHING, NOTHING, static_cast<int32_t>(count)};
}

EventRow Recording::open_row(Thread& thread, const OpenCall& call) {
  auto first = static_cast<int64_t>(refs.size());
  int32_t shape = append_given(thread, call, NO_OP);
  return {call.event, call.parent, call.start, OPEN, call.number, first, MODULE, call.subject,
          call.node.number, shape, NOTHING, NOTHING, NOTHING, static_cast<int32_t>(call.refs)};
}

bool Recording::fail_call(int64_t event, const char* said) {
  int64_t end_time = now();
  Thread* known = known_thread();
  if (known == nullptr) return false;
  Thread& thread = *known;
  for (size_t at = thread.calls.size(); at-- > 0;) {
    if (thread.calls[at].event != event) continue;
    if (!thread.calls[at].is_ours) return false;
    abandon_calls(thread, at + 1);
    int32_t error = NOTHING;
    if (said != nullptr) {
      std::lock_guard<Lock> guard(lock);
      error = first_error + static_cast<int32_t>(errors.size());
      errors.push_back({event, said});
    }
    end_call(thread, end_time, error, false);
    return true;
  }
  return false;
}

void Recording::abandon_all_calls(Thread& thread, size_t count) {
  for (size_t at = count; at < thread.calls.size(); ++at) {
    if (thread.calls[at].is_ours) continue;
    Ref done(PyObject_CallFunction(host.abandon, "n", static_cast<Py_ssize_t>(count)));
    if (!done) throw PythonError();
    break;
  }
  abandon_calls(thread, count);
}

void Recording::abandon_calls(Thread& thread, size_t count) {
  while (thread.calls.size() > count) {
    if (thread.calls.back().is_ours) {
      end_call(thread, OPEN, NOTHING, false);
    } else {
      thread.calls.pop_back();
    }
  }
}

}  // namespace clew
