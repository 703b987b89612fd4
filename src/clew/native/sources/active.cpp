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

// Whether a thread is in a callback: whoever ends a recording waits for all that are.
struct Busy {
  std::atomic<int> depth{0};
};
std::mutex busy_lock;
std::vector<Busy*> all_busy;  // never freed: a thread may end at any time
thread_local Busy* own_busy = nullptr;

class Inside {
 public:
  Inside() {
    if (own_busy == nullptr) {
      own_busy = new Busy;
      std::lock_guard<std::mutex> guard(busy_lock);
      all_busy.push_back(own_busy);
    }
    own_busy->depth.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Inside() { own_busy->depth.fetch_sub(1, std::memory_order_release); }
};

std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& call) {
  Inside inside;
  const OpFacts* facts = op_of(call);
  if (facts == nullptr) return nullptr;
  for (size_t i = 0, most = count.load(std::memory_order_acquire); i < most; ++i) {
    Recording* recording = active[i].load(std::memory_order_acquire);
    if (recording != nullptr) recording->begin_op(call, *facts);
  }
  return nullptr;
}

void on_end(const at::RecordFunction& call, at::ObserverContext*) {
  Inside inside;
  const OpFacts* facts = op_of(call);
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
void each_lock(void (*use)(std::mutex&)) {
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
  each_lock([](std::mutex& lock) { lock.lock(); });
  if (handle == 0) return;
  at::removeCallback(handle);
  at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
}

void after_fork() {
  if (handle != 0) add_callbacks();
  each_lock([](std::mutex& lock) { lock.unlock(); });
}

void after_fork_in_child() {
  handle = 0;
  each_lock([](std::mutex& lock) { lock.unlock(); });
}

// Take a recording off the list; return whether torch still tells it of ops, but none is left.
bool take_off(Recording* recording) {
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
  for (size_t i = 0; i < MOST; ++i) {
    if (active[i].load() != nullptr) continue;
    active[i].store(recording);
    if (count.load() <= i) count.store(i + 1);
    std::lock_guard<std::mutex> guard(handle_lock);
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
    while (busy != own_busy && busy->depth.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }
  Py_END_ALLOW_THREADS
}

void abandon(Recording* recording) {
  // The one thread that a forked process has runs this.
  all_busy.clear();
  if (own_busy != nullptr) all_busy.push_back(own_busy);
  if (is_active(recording)) take_off(recording);
}

}  // namespace clew
