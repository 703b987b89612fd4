// A lock for a few instructions at a time: taken and given back without a call while nobody waits.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace clew {

class Lock {
 public:
  Lock() = default;
  Lock(const Lock&) = delete;

  void lock() {
    uint32_t expected = FREE;
    if (!state_.compare_exchange_strong(expected, TAKEN, std::memory_order_acquire)) wait();
  }
  void unlock() {
    if (state_.exchange(FREE, std::memory_order_release) == WAITED_FOR) wake();
  }

 private:
  static constexpr uint32_t FREE = 0, TAKEN = 1, WAITED_FOR = 2;

  __attribute__((noinline)) void wait() {
    while (state_.exchange(WAITED_FOR, std::memory_order_acquire) != FREE) {
      syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, WAITED_FOR, nullptr, nullptr, 0);
    }
  }
  __attribute__((noinline)) void wake() {
    syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

  std::atomic<uint32_t> state_{FREE};
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
};

}  // namespace clew
