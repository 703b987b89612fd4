// The recordings that are active, and the callbacks by which torch tells them of ops.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <memory>

#include "recording.h"

namespace clew {

namespace {

constexpr size_t MOST = 256;
// Changed with the GIL; read by callbacks without.
std::array<std::atomic<Recording*>, MOST> active;
std::atomic<size_t> count{0};
std::mutex handle_lock;
at::CallbackHandle handle = 0;

// How often recordings were activated or taken off.
std::atomic<uint64_t> changes{1};
std::mutex busy_lock;
std::vector<Busy*> all_busy;  // never freed: a thread may end at any time

class Inside {
 public:
  explicit Inside(Running& thread) {
    if (thread.busy == nullptr) {
      thread.busy = new Busy;
      std::lock_guard<std::mutex> guard(busy_lock);
      all_busy.push_back(thread.busy);
    }
    depth_ = &thread.busy->depth;
    // No other thread writes to it.
    depth_->store(depth_->load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  }
  ~Inside() { depth_->store(depth_->load(std::memory_order_relaxed) - 1, std::memory_order_release); }
  Inside(const Inside&) = delete;

 private:
  std::atomic<int>* depth_;
};

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& call) {
  Running& thread = here();
  size_t depth = thread.ops++;
  uint64_t since = changes.load(std::memory_order_relaxed);
  if (depth > thread.covering && thread.covered_since == since && depth < Running::MOST_BEGUN) {
    thread.untold |= uint64_t{1} << depth;
    return nullptr;
  }
  Inside inside(thread);
  const OpFacts* facts = op_of(call);
  if (depth < Running::MOST_BEGUN) thread.begun[depth] = facts;
  if (facts == nullptr) return nullptr;
  bool is_seen = false, covers = true;
  for (size_t i = 0, most = count.load(std::memory_order_acquire); i < most; ++i) {
    Recording* recording = active[i].load(std::memory_order_acquire);
    if (recording == nullptr) continue;
    is_seen = true;
    covers = recording->begin_op(call, *facts) && covers;
  }
  if (is_seen && covers && depth < thread.covering) {
    thread.covering = depth;
    thread.covered_since = since;
  }
  return nullptr;
}

void on_end(const at::RecordFunction& call, at::ObserverContext*) {
  Running& thread = here();
  size_t depth = thread.ops > 0 ? --thread.ops : 0;
  if (depth < Running::MOST_BEGUN && (thread.untold >> depth & 1) != 0) {
    thread.untold &= ~(uint64_t{1} << depth);
    return;
  }
  if (depth <= thread.covering) thread.covering = Running::NOWHERE;
  Inside inside(thread);
  const OpFacts* facts = depth < Running::MOST_BEGUN ? thread.begun[depth] : op_of(call);
  if (facts == nullptr) return;
  for (size_t i = 0, most = count.load(std::memory_order_acquire); i < most; ++i) {
    Recording* recording = active[i].load(std::memory_order_acquire);
    if (recording != nullptr) recording->end_op(call, *facts);
  }
}

void add_callbacks() {
  handle = at::addGlobalCallback(at::RecordFunctionCallback(on_begin, on_end)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
}

// A forked process has none of the other threads: what they were changing must be whole.
template <typename Use>
void each_lock(Use use) {
  use(handle_lock);
  use(busy_lock);
  for (auto& one : active) {
    Recording* recording = one.load();
    if (recording != nullptr) use(recording->lock);
  }
  use(ops_lock);
  use(blocks_lock);
}

// Leave torch without callbacks while the process forks. A thread copies the list of callbacks under
// a lock of torch's: if the list is not empty this allocates memory, which has to wait for the fork,
// and the forked process would find the lock locked for ever. Then have this thread's own copy
// made anew, so that the forked process need not take the lock for its next op.
void before_fork() {
  each_lock([](auto& lock) { lock.lock(); });
  if (handle == 0) return;
  at::removeCallback(handle);
  at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
}

void after_fork() {
  if (handle != 0) add_callbacks();
  each_lock([](auto& lock) { lock.unlock(); });
}

void after_fork_in_child() {
  handle = 0;
  each_lock([](auto& lock) { lock.unlock(); });
}

// Take a recording off the list; return whether torch still tells it of ops, but none is left.
bool take_off(Recording* recording) {
  ++changes;
  for (size_t i = 0; i < count.load(); ++i) {
    if (active[i].load() == recording) active[i].store(nullptr);
  }
  if (std::any_of(active.begin(), active.end(), [](auto& one) { return one.load() != nullptr; })) return false;
  count.store(0);
  return handle != 0;
}

}  // namespace

void activate(Recording* recording) {
  static const int registered = pthread_atfork(before_fork, after_fork, after_fork_in_child);
  if (registered != 0) throw std::runtime_error("no handlers for forks could be registered");
  watch_removals();
  // A fork takes the locks of all that are active, and gives them back.
  std::lock_guard<std::mutex> guard(handle_lock);
  for (size_t i = 0; i < MOST; ++i) {
    if (active[i].load() != nullptr) continue;
    active[i].store(recording);
    ++changes;
    if (count.load() <= i) count.store(i + 1);
    if (handle == 0) add_callbacks();
    return;
  }
  throw std::runtime_error("more than 256 recordings at once");
}

bool is_active(const Recording* recording) {
  return std::any_of(active.begin(), active.end(), [&](auto& one) { return one.load() == recording; });
}

void deactivate(Recording* recording) {
  if (!is_active(recording)) return;
  {
    std::lock_guard<std::mutex> guard(handle_lock);
    if (take_off(recording)) {
      at::removeCallback(handle);
      handle = 0;
    }
  }
  // A callback may be waiting for the GIL.
  Py_BEGIN_ALLOW_THREADS
  std::vector<Busy*> others;
  {
    std::lock_guard<std::mutex> guard(busy_lock);
    others = all_busy;
  }
  for (Busy* busy : others) {
    while (busy != here().busy && busy->depth.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }
  Py_END_ALLOW_THREADS
}

void abandon(Recording* recording) {
  // The one thread that a forked process has runs this.
  all_busy.clear();
  if (here().busy != nullptr) all_busy.push_back(here().busy);
  if (is_active(recording)) take_off(recording);
}

}  // namespace clew
