#include "recording.h"

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <time.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <exception>

#include "python.h"
#include "raised.h"

namespace clew {

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

namespace {

// As in `clew.events.vocabulary`.
constexpr int NODE_BITS = 31;
constexpr int64_t NODE_RUN = (int64_t{1} << NODE_BITS) - 1;
constexpr int64_t RECOMPUTED = int64_t{1} << 62;
constexpr int64_t NO_NODE = -1;
// Gradients are accumulated under a node numbered with the largest integer there is.
constexpr uint64_t ACCUMULATION = uint64_t{1} << 62;

std::atomic<uint64_t> serials{1};

bool is_autocast_on() {
  auto keys = c10::impl::tls_local_dispatch_key_set();
  return (keys.included_ - keys.excluded_).has_any(c10::autocast_dispatch_keyset);
}

template <typename Visit>
void each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const auto& item : value.toListRef()) each_tensor(item, visit);
  }
}

int64_t both_numbers(int64_t run, int64_t made) { return run | made << NODE_BITS; }

}  // namespace

PyObject* wrapped(const at::Tensor& tensor) {
  TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->pyobj_slot()->load_pyobj() != nullptr) return THPVariable_Wrap(tensor);
  // Modes of the program would be told of the copy.
  c10::impl::ExcludeDispatchKeyGuard guard(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  try {
    return THPVariable_Wrap(at::Tensor(
        impl->shallow_copy_and_detach(impl->version_counter(), true)));
  } catch (const std::exception&) {
    return THPVariable_Wrap(tensor);  // `vmap` allows no copies
  }
}

Thread* Recording::known_thread() {
  Running::Mine& known = here().mine[serial & 7];
  if (C10_LIKELY(known.serial == serial)) return known.thread;
  // It was not met yet, or another recording has taken its place.
  std::lock_guard<Lock> guard(lock);
  for (const auto& one : threads) {
    if (one->owner != here().number) continue;
    known = {serial, one.get()};
    return known.thread;
  }
  return nullptr;
}

Recording::Recording(PyObject* given, bool reads_versions) : host(given), values(reads_versions) {
  // Room for a forward of a small model, which then need not be moved as it fills.
  events.reserve(512);
  values.rows.reserve(512);
  refs.reserve(2048);
}

Recording::~Recording() {
  for (PyObject* one : {hooks.turn, hooks.waiting, hooks.failed}) Py_XDECREF(one);
  auto drop = [](KnownModule& known) {
    for (PyObject* one : {known.entry, known.name, known.training, known.noted}) Py_XDECREF(one);
  };
  for (auto& [module, known] : modules_) drop(known);
  for (KnownModule& known : named_) drop(known);
  for (NotedSettings& noted : noted_) Py_DECREF(noted.settings);
  Py_XDECREF(names_);
  for (auto& thread : threads) {
    for (auto& call : thread->calls) Py_XDECREF(call.name);
  }
}

void Recording::begin_threads(uint64_t newest) {
  newest_thread = newest;
  serial = serials++;
  main_ = nullptr;
  {
    std::lock_guard<Lock> guard(lock);
    threads.clear();
  }
  if (thread(true) == nullptr) throw std::runtime_error("the state of this thread could not be made");
}

Thread* Recording::thread(bool make) {
  if (Thread* known = known_thread()) return known;
  PyThreadState* state = PyGILState_GetThisThreadState();
  bool has_frames = false;
  if (state != nullptr) {
    walk_frames([&](const Frame&, void*) {
      has_frames = true;
      return false;
    });
  }
  auto made = std::make_unique<Thread>();
  made->recording = this;
  made->owner = here().number;
  if (!has_frames) {
    // A thread of the autograd engine, or one of a library: it has no place in the program.
    if (main_ == nullptr || torch::autograd::get_current_node() == nullptr) return nullptr;
    made->index = main_->index;
    made->is_followed = true;
    made->stack.root = engine_root_;
  } else {
    bool is_followed = main_ == nullptr;
    if (!is_followed && PyThreadState_GetID(state) > newest_thread) {
      if (!make && was_told_unfollowed()) return nullptr;
      is_followed = was_started_inside();
    }
    if (!make && !is_followed) {
      tell_unfollowed();
      return nullptr;
    }
    Gil gil;
    ++here().hidden;
    Ref found(PyObject_CallNoArgs(host.thread));
    --here().hidden;
    int index;
    unsigned long long boundary;
    long long root, engine;
    if (!found ||
        !PyArg_ParseTuple(found.get(), "iLKL", &index, &root, &boundary, &engine)) {
      PythonError fault;
      if (make) throw fault;
      note_fault("a thread", fault);
      return nullptr;
    }
    made->index = index;
    made->is_followed = is_followed;
    made->stack.root = {static_cast<int32_t>(root >> 4), static_cast<uint8_t>(root >> 1 & 7), false};
    made->stack.boundary = reinterpret_cast<void*>(boundary);
    if (main_ == nullptr) {
      main_ = made.get();
      engine_root_ = {static_cast<int32_t>(engine >> 4), static_cast<uint8_t>(engine >> 1 & 7), false};
    }
  }
  made->is_muted = is_halted.load();
  std::lock_guard<Lock> guard(lock);
  threads.push_back(std::move(made));
  here().mine[serial & 7] = {serial, threads.back().get()};
  return threads.back().get();
}

bool Recording::was_started_inside() {
  Gil gil;
  ++here().hidden;
  Ref found(PyObject_CallNoArgs(host.follows));
  --here().hidden;
  if (!found) note_fault("a thread", PythonError());
  return found.get() == Py_True;
}

bool Recording::was_told_unfollowed() { return here().told[serial & 3] == serial; }

void Recording::tell_unfollowed() {
  if (was_told_unfollowed()) return;
  here().told[serial & 3] = serial;
  Gil gil;
  ++here().hidden;
  Ref done(PyObject_CallNoArgs(host.unfollowed));
  --here().hidden;
  if (!done) note_fault("a thread", PythonError());
}

void Recording::note_fault(const char* where, const std::exception& fault) {
  const auto* error = dynamic_cast<const PythonError*>(&fault);
  if (error != nullptr && error->exception() != nullptr) {
    Gil gil;
    Ref raised(PyObject_CallOneArg(host.interrupt, error->exception()));
    if (!raised) PyErr_Clear();
    if (raised && raised.get() != Py_None && raise_soon(raised.get())) return;
  }
  std::lock_guard<Lock> guard(lock);
  if (faults.size() < 16) faults.push_back(std::string(where) + "\n" + fault.what());
}

Node Recording::ask_node(Thread& thread, const Node& parent, const Frame& frame, bool is_own) {
  Gil gil;
  thread.is_asking = true;
  Ref found(PyObject_CallFunction(host.node, "iOii", parent.number, frame.code, frame.instruction,
                                  static_cast<int>(is_own)));
  thread.is_asking = false;
  long long packed = found ? PyLong_AsLongLong(found.get()) : -1;
  if (packed < 0) throw PythonError();
  bool is_direct = !is_own && (parent.is_direct || (packed & 1) != 0);
  return {static_cast<int32_t>(packed >> 4), static_cast<uint8_t>(packed >> 1 & 7), is_direct};
}

int32_t Recording::ask_meta(Thread& thread, const at::Tensor& tensor) {
  Gil gil;
  thread.is_asking = true;
  Ref object(wrapped(tensor));
  Ref found(object ? PyObject_CallOneArg(host.meta, object.get()) : nullptr);
  thread.is_asking = false;
  long number = found ? PyLong_AsLong(found.get()) : -1;
  if (number < 0) throw PythonError();
  return -2 - static_cast<int32_t>(number);
}

void Recording::read_odd(Thread& thread, c10::ArrayRef<const c10::IValue> given) {
  thread.odd.clear();
  for (const auto& value : given) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      TensorImpl* impl = tensor.unsafeGetTensorImpl();
      if (C10_UNLIKELY(is_odd(impl))) thread.odd.emplace_back(impl, ask_meta(thread, tensor));
    });
  }
}

namespace {

int32_t odd_meta(const Thread& thread, TensorImpl* tensor) {
  for (const auto& [odd, meta] : thread.odd) {
    if (odd == tensor) return meta;
  }
  return NOTHING;
}

}  // namespace

Place Recording::find_place(Thread& thread) {
  // While a composite runs, the frame that called it stays where it is.
  if (!thread.composites.empty()) {
    const OpenComposite& around = thread.composites.back();
    Frame frame = innermost_frame();
    if (frame.frame != nullptr && around.frame.frame == frame.frame && around.frame.code == frame.code &&
        around.frame.instruction == frame.instruction) {
      return around.place;
    }
  }
  int call;
  Place place;
  place.node = thread.stack.find(
      torch, thread.calls, call, [&](const Node& parent, const Frame& line, bool is_own) {
        return ask_node(thread, parent, line, is_own);
      });
  place.call = call < 0 ? -1 : thread.calls[call].event;
  if (C10_LIKELY(!place.node.is_direct)) return place;
  Gil gil;
  thread.is_asking = true;
  Ref found(PyObject_CallNoArgs(host.place));
  thread.is_asking = false;
  long long packed, parent;
  if (!found || !PyArg_ParseTuple(found.get(), "LL", &packed, &parent)) {
    throw PythonError();
  }
  place.node.number = static_cast<int32_t>(packed >> 4);
  place.call = parent;
  return place;
}

int64_t Recording::node_number(const Place& place) {
  bool runs_node = place.node.phase == BACKWARD || (place.node.phase == RECOMPUTE && place.call < 0);
  if (C10_LIKELY(!runs_node)) return 0;
  auto node = torch::autograd::get_current_node();
  if (node == nullptr) return NO_NODE;
  if (node->sequence_nr() < ACCUMULATION) return static_cast<int64_t>(node->sequence_nr());
  auto* accumulate = dynamic_cast<torch::autograd::AccumulateGrad*>(node.get());
  if (accumulate == nullptr || !accumulate->variable.defined()) return NO_NODE;
  return -2 - values.used(accumulate->variable.unsafeGetTensorImpl(), -1, NOTHING);
}

void Recording::draw(OpenOp& op, c10::ArrayRef<const c10::IValue> inputs) {
  const OpFacts& facts = *op.facts;
  if (facts.draws_if >= 0 && inputs[facts.draws_if].isBool() && !inputs[facts.draws_if].toBool()) {
    return;
  }
  if (facts.chance >= 0) {
    const auto& chance = inputs[facts.chance];
    if (chance.isDouble() && chance.toDouble() == 0) return;
  }
  std::string name = "cpu", key;
  c10::weak_intrusive_ptr<c10::GeneratorImpl> held{c10::intrusive_ptr<c10::GeneratorImpl>()};
  bool has_own = facts.generator >= 0 && inputs[facts.generator].isGenerator();
  if (has_own) {
    auto generator = inputs[facts.generator].toGenerator();
    name = generator.device().str() + " " + std::to_string(generators.size());
    key = std::to_string(reinterpret_cast<size_t>(generator.unsafeGetGeneratorImpl()));
    held = c10::weak_intrusive_ptr<c10::GeneratorImpl>(generator.getIntrusivePtr());
  } else {
    bool is_found = false;
    for (const auto& value : inputs) {
      each_tensor(value, [&](const at::Tensor& tensor) {
        if (!is_found) name = tensor.device().str();
        is_found = true;
      });
      if (!is_found && value.isDevice()) name = value.toDevice().str();
    }
    key = name;
  }
  auto at = draws_.find(key);
  if (at == draws_.end()) {
    // Generators of the program's own that are gone are met no more.
    if (has_own) {
      std::erase_if(draws_, [](const auto& one) { return one.second.is_own && one.second.generator.expired(); });
    }
    Draws draws{static_cast<int32_t>(generators.size()), 0, has_own, std::move(held)};
    at = draws_.emplace(key, std::move(draws)).first;
    generators.push_back(name);
  }
  op.generator = at->second.number;
  op.draw = at->second.count++;
}

bool Recording::begin_op(const at::RecordFunction& call, const OpFacts& facts) {
  if (here().hidden > 0) return false;
  Thread* found = thread(false);
  if (found == nullptr || found->is_asking) return false;
  Thread& thread = *found;
  thread.open.emplace_back();
  OpenOp& op = thread.open.back();
  op.facts = &facts;
  if (thread.recorded > 0 || facts.is_annotation ||
      thread.is_muted.load(std::memory_order_relaxed) ||
      (!facts.is_composite && facts.has_autocast && is_autocast_on())) {
    return thread.recorded > 0;
  }
  if (!thread.is_followed && thread.calls.empty()) {
    if (!facts.is_composite) tell_unfollowed();
    return false;
  }
  op.first_word = thread.words.size();
  op.first_ref = thread.refs.size();
  op.first_written = thread.written.size();
  op.calls = thread.calls.size();
  try {
    // TorchScript gives its whole stack, of which the arguments are the last.
    auto inputs = call.inputs();
    if (inputs.size() > facts.arguments) inputs = inputs.slice(inputs.size() - facts.arguments);
    if (facts.is_composite) {
      begin_composite(thread, facts, inputs);
      op.is_composite = true;
    } else {
      begin(thread, op, inputs);
      op.is_recorded = true;
      ++thread.recorded;
    }
  } catch (const std::exception& fault) {
    note_fault(facts.name.c_str(), fault);
    std::lock_guard<Lock> guard(lock);
    drop_above(thread, op);
  }
  return op.is_recorded;
}

void Recording::abandon_calls_in(Thread& thread, const OpenOp& op) {
  auto first = thread.calls.begin() + static_cast<ptrdiff_t>(op.calls);
  // Python code ends those that it records.
  if (!std::all_of(first, thread.calls.end(), [](const OpenCall& call) { return call.is_ours; })) return;
  Gil gil;
  abandon_calls(thread, op.calls);
}

void Recording::drop_above(Thread& thread, OpenOp& op) {
  values.writing -= std::exchange(op.is_writing, false);
  thread.words.cut(op.first_word);
  thread.refs.cut(op.first_ref);
  thread.written.resize(op.first_written);
}

void Recording::begin(Thread& thread, OpenOp& op, c10::ArrayRef<const c10::IValue> inputs) {
  const OpFacts& facts = *op.facts;
  op.place = find_place(thread);
  read_odd(thread, inputs);
  if (C10_UNLIKELY(host.ran != nullptr)) {
    op.is_asked = is_asked(thread, facts);
    thread.given.clear();
  }
  op.errors = std::uncaught_exceptions();
  op.made = at::sequence_number::peek();
  std::unique_lock<Lock> guard(lock);
  op.parent = enter_composites(thread, op.place.call);
  op.id = next_id();
  values.poll(op.id, op.place.node.phase);
  op.number = node_number(op.place);
  auto take = [&](const at::Tensor& tensor) {
    TensorImpl* impl = tensor.unsafeGetTensorImpl();
    int32_t meta = odd_meta(thread, impl);
    thread.refs.push_back(facts.brings_data ? values.brought(impl, meta) : values.used(impl, -1, meta));
    if (C10_UNLIKELY(op.is_asked)) thread.given.emplace_back(tensor.getIntrusivePtr());
  };
  for (const auto& value : inputs) append(thread.words, texts, value, take);
  bool writes = facts.training < 0 || (inputs[facts.training].isBool() && inputs[facts.training].toBool());
  if (writes) {
    for (int at : facts.writes) {
      each_tensor(inputs[at], [&](const at::Tensor& tensor) {
        TensorImpl* impl = tensor.unsafeGetTensorImpl();
        thread.written.push_back({impl, at, odd_meta(thread, impl), inputs[at].isList()});
      });
    }
  }
  op.is_writing = thread.written.size() > op.first_written;
  values.writing += op.is_writing;
  if (facts.draws) draw(op, inputs);
  if (C10_UNLIKELY(!values.unread.empty())) {
    auto unread = take_unread();
    guard.unlock();
    keep_unread(&thread, std::move(unread));
  }
  op.start = now();
}

void Recording::begin_composite(Thread& thread, const OpFacts& facts,
                                c10::ArrayRef<const c10::IValue> inputs) {
  OpenComposite made;
  made.facts = &facts;
  made.frame = innermost_frame();
  made.place = find_place(thread);
  made.errors = std::uncaught_exceptions();
  made.start = now();
  read_odd(thread, inputs);
  std::unique_lock<Lock> guard(lock);
  made.number = node_number(made.place);
  if (made.number > 0) {
    // It makes no node itself.
    bool runs = made.place.node.phase == BACKWARD;
    made.number = made.number <= NODE_RUN ? made.number | (runs ? 0 : RECOMPUTED) : NO_NODE;
  }
  made.first_word = thread.words.size();
  made.first_ref = thread.refs.size();
  auto take = [&](const at::Tensor& tensor) {
    TensorImpl* impl = tensor.unsafeGetTensorImpl();
    thread.refs.push_back(values.used(impl, -1, odd_meta(thread, impl)));
  };
  for (const auto& value : inputs) append(thread.words, texts, value, take);
  made.words = thread.words.size() - made.first_word;
  made.refs = thread.refs.size() - made.first_ref;
  thread.composites.push_back(made);
  if (C10_UNLIKELY(!values.unread.empty())) {
    auto unread = take_unread();
    guard.unlock();
    keep_unread(&thread, std::move(unread));
  }
}

int64_t Recording::enter_composites(Thread& thread, int64_t call) {
  auto& open = thread.composites;
  if (open.empty() || open.back().place.call != call) return call;
  size_t at = open.size();
  while (at > 0 && open[at - 1].id < 0) --at;
  for (; at < open.size(); ++at) {
    bool is_inside = at > 0 && open[at - 1].place.call == open[at].place.call;
    open[at].parent = is_inside ? open[at - 1].id : open[at].place.call;
    open[at].id = next_id();
  }
  return open.back().id;
}

void Recording::end_composite(Thread& thread, c10::ArrayRef<const c10::IValue> outputs) {
  OpenComposite one = thread.composites.back();
  bool is_event = one.id >= 0;
  bool has_raised = std::uncaught_exceptions() > one.errors, is_enough = false;
  if (is_event) {
    int64_t end_time = now();
    try {
      is_enough = append_composite(thread, one, outputs, end_time, has_raised);
    } catch (const std::exception& fault) {
      note_fault(one.facts->name.c_str(), fault);
    }
  }
  {
    std::lock_guard<Lock> guard(lock);
    thread.words.cut(one.first_word);
    thread.refs.cut(one.first_ref);
    thread.composites.pop_back();
  }
  if (is_event && has_raised) note_raised(this, one.id, true);
  if (is_enough) take_rows(thread);
}

bool Recording::append_composite(Thread& thread, OpenComposite& one,
                                 c10::ArrayRef<const c10::IValue> outputs, int64_t end_time,
                                 bool has_raised) {
  if (!has_raised) read_odd(thread, outputs);
  std::unique_lock<Lock> guard(lock);
  // The ops in it have made them.
  auto take = [&](const at::Tensor& tensor) {
    TensorImpl* impl = tensor.unsafeGetTensorImpl();
    thread.refs.push_back(values.used(impl, -1, odd_meta(thread, impl)));
  };
  thread.words.push_back(word(Tag::RESULTS, has_raised ? 0 : outputs.size() + 1));
  if (!has_raised) {
    for (const auto& value : outputs) append(thread.words, texts, value, take);
  }
  thread.words.push_back(static_cast<uint64_t>(one.facts->number));
  int32_t shape = arguments.number(thread.words.data() + one.first_word,
                                   thread.words.size() - one.first_word);
  events.push_back({one.id, one.parent, one.start, end_time, one.number,
                    static_cast<int64_t>(refs.size()), COMPOSITE, one.facts->number,
                    one.place.node.number, shape, has_raised ? add_error(one.id) : NOTHING, NOTHING,
                    NOTHING, static_cast<int32_t>(thread.refs.size() - one.first_ref)});
  refs.add(thread.refs.begin() + one.first_ref, thread.refs.end());
  // What raised gets its text once Python has seen it, until when its row stays.
  bool is_enough = is_full() && !has_raised;
  if (C10_UNLIKELY(!values.unread.empty())) {
    auto unread = take_unread();
    guard.unlock();
    keep_unread(&thread, std::move(unread));
  }
  return is_enough;
}

EventRow Recording::open_row(Thread& thread, const OpenComposite& one) {
  auto first = static_cast<int64_t>(refs.size());
  int32_t shape = append_given(thread, one, static_cast<uint64_t>(one.facts->number));
  return {one.id, one.parent, one.start, OPEN, one.number, first, COMPOSITE, one.facts->number,
          one.place.node.number, shape, NOTHING, NOTHING, NOTHING, static_cast<int32_t>(one.refs)};
}

int32_t Recording::add_error(int64_t event) {
  errors.push_back({event, ""});
  return first_error + static_cast<int32_t>(errors.size()) - 1;
}

void Recording::end_op(const at::RecordFunction& call, const OpFacts& facts) {
  if (here().hidden > 0) return;
  Thread* known = known_thread();
  if (known == nullptr) return;
  Thread& thread = *known;
  if (thread.is_asking || thread.open.empty() || thread.open.back().facts != &facts) return;
  OpenOp op = thread.open.back();
  thread.open.pop_back();
  if (!op.is_recorded && !op.is_composite) return;
  if (C10_UNLIKELY(thread.calls.size() > op.calls)) abandon_calls_in(thread, op);
  c10::ArrayRef<const c10::IValue> outputs(call.outputs().data(), call.outputs().size());
  if (outputs.size() > facts.results) outputs = outputs.slice(outputs.size() - facts.results);
  if (op.is_composite) return end_composite(thread, outputs);
  int64_t end_time = now();
  --thread.recorded;
  bool has_raised = std::uncaught_exceptions() > op.errors;
  bool is_full = false;
  try {
    is_full = end(thread, op, outputs, end_time, has_raised);
  } catch (const std::exception& fault) {
    note_fault(facts.name.c_str(), fault);
    std::lock_guard<Lock> guard(lock);
    drop_above(thread, op);
  }
  if (has_raised) note_raised(this, op.id, false);
  if (is_full) take_rows(thread);
}

void Recording::set_error(int64_t event, const char* text) {
  std::lock_guard<Lock> guard(lock);
  for (Raised& raised : errors) {
    if (raised.event != event) continue;
    raised.is_error = text != nullptr;
    if (text != nullptr) raised.text = text;
  }
}

std::vector<std::pair<WeakTensor, int64_t>> Recording::take_unread() {
  std::vector<std::pair<WeakTensor, int64_t>> found;
  for (auto& [tensor, value] : values.unread) {
    c10::raw::weak_intrusive_ptr::incref(tensor);
    found.emplace_back(WeakTensor::reclaim(tensor), value);
  }
  values.unread.clear();
  return found;
}

void Recording::keep_unread(Thread* thread, std::vector<std::pair<WeakTensor, int64_t>> unread) {
  if (unread.empty()) return;
  Gil gil;
  if (thread != nullptr) thread->is_asking = true;
  ++here().hidden;
  for (auto& [weak, value] : unread) {
    at::Tensor tensor(weak.lock());
    if (!tensor.defined()) continue;
    Ref object(wrapped(tensor));
    Ref done(object ? PyObject_CallFunction(host.keep, "OL", object.get(), static_cast<long long>(value)) : nullptr);
    if (!done) note_fault("a value", PythonError());
  }
  unread.clear();
  --here().hidden;
  if (thread != nullptr) thread->is_asking = false;
}

void Recording::take_rows(Thread& thread) {
  Gil gil;
  thread.is_asking = true;
  Ref done(PyObject_CallNoArgs(host.full));
  thread.is_asking = false;
  if (!done) note_fault("the events so far", PythonError());
}

bool Recording::end(Thread& thread, OpenOp& op, c10::ArrayRef<const c10::IValue> outputs,
                    int64_t end_time, bool has_raised) {
  if (!has_raised) read_odd(thread, outputs);
  uint64_t made = at::sequence_number::peek();
  bool has_node = made != op.made && c10::GradMode::is_enabled();
  bool is_told = op.is_asked && !has_raised;
  AskedCall asked;
  if (C10_UNLIKELY(is_told)) hold_given(thread, asked);
  std::unique_lock<Lock> guard(lock);
  // Autograd refuses an op before it writes; torch counts no write of one that raised either.
  if (has_raised) thread.written.resize(op.first_written);
  // A kernel that takes its arguments from a stack may have dropped the last reference to one.
  auto first_written = thread.written.begin() + static_cast<ptrdiff_t>(op.first_written);
  auto is_gone = [&](const Written& one) { return !values.is_alive(one.tensor); };
  thread.written.erase(std::remove_if(first_written, thread.written.end(), is_gone), thread.written.end());
  for (size_t at = op.first_written; at < thread.written.size(); ++at) {
    Written& one = thread.written[at];
    one.value = values.written(one.tensor, op.id, one.odd_meta, op.facts->writes_later);
  }
  size_t first_output = thread.refs.size();
  auto give = [&](const at::Tensor& tensor) {
    TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (C10_UNLIKELY(op.facts->writes_later)) {
      // To ask for its value would read it.
      for (size_t at = op.first_written; at < thread.written.size(); ++at) {
        if (thread.written[at].tensor == impl) return thread.refs.push_back(thread.written[at].value);
      }
    }
    int32_t meta = odd_meta(thread, impl);
    thread.refs.push_back(op.facts->keeps_elements
                              ? values.used(impl, op.id, meta)
                              : values.made(impl, op.id, meta, !op.facts->leaves_unwritten));
    if (C10_UNLIKELY(op.is_asked)) thread.given.emplace_back(tensor.getIntrusivePtr());
  };
  thread.words.push_back(word(Tag::RESULTS, has_raised ? 0 : outputs.size() + 1));
  if (!has_raised) {
    for (const auto& value : outputs) append(thread.words, texts, value, give);
  }
  append_written(thread, op, first_output);
  int64_t number = op.number;
  auto next = static_cast<int64_t>(made);
  if (op.place.node.phase == BACKWARD) {
    int64_t also = has_node ? next : 0;
    if (number >= 0) {
      number = std::max(number, also) <= NODE_RUN ? both_numbers(number, also) : number & NODE_RUN;
    }
  } else if (op.place.node.phase == RECOMPUTE && op.place.call < 0 && number >= 0) {
    bool fits = std::max(number, next) <= NODE_RUN;
    number = fits ? RECOMPUTED | both_numbers(number, next) : next;
  } else {
    number = next;
  }
  size_t count = thread.refs.size() - op.first_ref;
  thread.words.push_back(static_cast<uint64_t>(op.facts->number));
  int32_t shape = arguments.number(
      thread.words.data() + op.first_word, thread.words.size() - op.first_word);
  int32_t error = has_raised ? add_error(op.id) : NOTHING;
  events.push_back({op.id, op.parent, op.start, end_time, number,
                    static_cast<int64_t>(refs.size()), OP, op.facts->number, op.place.node.number, shape,
                    error, op.generator, op.draw, static_cast<int32_t>(count)});
  refs.add(thread.refs.begin() + op.first_ref, thread.refs.end());
  if (C10_UNLIKELY(is_told)) describe_asked(thread, op, asked);
  drop_above(thread, op);
  bool is_enough = is_full();
  if (C10_UNLIKELY(is_told || !values.unread.empty())) {
    auto unread = take_unread();
    guard.unlock();
    keep_unread(&thread, std::move(unread));
    if (is_told) tell_ran(thread, asked);
  }
  return is_enough;
}

void Recording::append_written(Thread& thread, const OpenOp& op, size_t first_output) {
  // Arguments it wrote to that are not all among its results.
  size_t returned = thread.refs.size();
  for (size_t at = op.first_written; at < thread.written.size();) {
    size_t last = at;
    bool are_all = true;
    while (last < thread.written.size() && thread.written[last].argument == thread.written[at].argument) {
      const int64_t* from = thread.refs.begin() + first_output;
      const int64_t* to = thread.refs.begin() + returned;
      are_all = are_all && std::find(from, to, thread.written[last].value) != to;
      ++last;
    }
    if (!are_all) {
      thread.words.push_back(word(Tag::WRITTEN, static_cast<uint64_t>(thread.written[at].argument)));
      if (thread.written[at].is_in_list) thread.words.push_back(word(Tag::LIST, last - at));
      for (size_t i = at; i < last; ++i) {
        thread.words.push_back(word(Tag::TENSOR));
        thread.refs.push_back(thread.written[i].value);
      }
    }
    at = last;
  }
}

int32_t Recording::meta_if_odd(const at::Tensor& tensor) {
  if (!is_odd(tensor.unsafeGetTensorImpl())) return NOTHING;
  ++here().hidden;
  Ref object(wrapped(tensor));
  Ref found(object ? PyObject_CallOneArg(host.meta, object.get()) : nullptr);
  --here().hidden;
  long number = found ? PyLong_AsLong(found.get()) : -1;
  if (number < 0) throw PythonError();
  return -2 - static_cast<int32_t>(number);
}

template <class Number>
int64_t Recording::number_of(const at::Tensor& tensor, Number number) {
  int32_t meta = meta_if_odd(tensor);
  std::vector<std::pair<WeakTensor, int64_t>> unread;
  int64_t found;
  {
    // The thread that writes to disk would wait for the GIL until much is copied.
    bool is_read = values.kept.level != Level::META && meta == NOTHING;
    Unlocked unlocked(is_read ? static_cast<int64_t>(tensor.nbytes()) : 0);
    std::lock_guard<Lock> guard(lock);
    found = number(tensor.unsafeGetTensorImpl(), meta);
    if (!values.unread.empty()) unread = take_unread();
  }
  if (!unread.empty()) keep_unread(nullptr, std::move(unread));
  return found;
}

int64_t Recording::value_of(const at::Tensor& tensor, int64_t producer) {
  return number_of(tensor, [&](TensorImpl* impl, int32_t meta) {
    if (!sees_ops) values.poll(peek_id(), -1);  // else the ops do
    return values.used(impl, producer, meta);
  });
}

int64_t Recording::made_value(const at::Tensor& tensor, int64_t event) {
  return number_of(tensor, [&](TensorImpl* impl, int32_t meta) {
    return values.made(impl, event, meta, true);
  });
}

int64_t Recording::written_value(const at::Tensor& tensor, int64_t event) {
  return number_of(tensor, [&](TensorImpl* impl, int32_t meta) {
    return values.written(impl, event, meta);
  });
}

void Recording::forget(const at::Tensor& tensor) {
  std::lock_guard<Lock> guard(lock);
  values.forget(tensor.unsafeGetTensorImpl());
}

void Recording::let_go() {
  std::vector<TensorImpl*> dropped;
  {
    std::lock_guard<Lock> guard(lock);
    dropped.swap(values.dropped);
  }
  for (TensorImpl* tensor : dropped) c10::raw::weak_intrusive_ptr::decref(tensor);
}

}  // namespace clew
