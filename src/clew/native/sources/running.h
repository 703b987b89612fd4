// What the engine knows of the running thread, reached by one pointer.
//
// A variable of a thread in a library that is loaded late costs a call wherever it is read, and an
// op would read a dozen of them. The pointer alone lies in the room that each thread has from its
// start.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "node_table.h"

namespace clew {

struct OpFacts;
struct Thread;

// Whether a thread is in a callback: whoever ends a recording waits for all that are.
struct Busy {
  std::atomic<int> depth{0};
};

struct Running {
  const uint64_t number;  // no other thread of this process ever has it
  int hidden = 0;         // while this is above 0, ops are Clew's own
  Busy* busy = nullptr;   // once an op was seen

  // How many ops have begun and not ended, and by bits which of them nobody had to be told of. What
  // begins inside the op at `covering` is part of that op, as long as the recordings that are active
  // are those of `covered_since`.
  static constexpr size_t NOWHERE = ~size_t{0};
  size_t ops = 0, covering = NOWHERE;
  uint64_t untold = 0, covered_since = 0;
  // The first of those that have begun; null for one that is none of torch's ops.
  static constexpr size_t MOST_BEGUN = 64;  // bits of `untold`
  std::array<const OpFacts*, MOST_BEGUN> begun{};

  // The state that each of some recordings has of this thread.
  struct Mine {
    uint64_t serial = 0;
    Thread* thread = nullptr;
  };
  std::array<Mine, 8> mine;
  // The recordings that were told of ops here that they do not follow.
  std::array<uint64_t, 4> told{};

  // Lines that were met here, in any recording: their nodes are the process's.
  NodeTable nodes;

  // Ops that ran here, by the addresses of their names, as long as none is taken out of its library.
  struct Op {
    const void* key = nullptr;
    const OpFacts* facts = nullptr;
  };
  uint64_t removed = 0;
  std::array<Op, 256> recent{};
};

#if defined(__linux__)
#define CLEW_AT_ONCE __attribute__((tls_model("initial-exec")))
#else
#define CLEW_AT_ONCE
#endif

inline constinit thread_local Running* running CLEW_AT_ONCE = nullptr;

// Make the state of the running thread, which ends with the thread.
Running& begin_running();

inline Running& here() { return running != nullptr ? *running : begin_running(); }

}  // namespace clew
