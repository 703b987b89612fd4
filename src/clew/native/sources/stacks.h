// Find the place of the running thread in the tree of call stacks (`clew.record.stacks`).
//
// Comes in: the frames of the thread. Goes out: the number of the node that stands for them. The
// frames seen last are remembered, so that an op costs a comparison per frame inside its module call;
// only a line that was never met before needs the GIL, to ask Python for its node.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "frames.h"

namespace clew {

// A node of the tree: its number, the phase of the program there, and whether a `forward` that went
// past the hooks lies between it and the module call around it.
struct Node {
  int32_t number = -1;
  uint8_t phase = 0;
  bool is_direct = false;
};

// A module call that runs: its event, and the frame it runs in, as the interpreter or, for a call
// that Python code records, as Python knows it.
struct OpenCall {
  int64_t event = -1;
  void* frame = nullptr;
  // The rest is for calls that are recorded here.
  bool is_ours = false;
  PyObject* name = nullptr;  // a `ModuleName`, owned
  Node node;
  int64_t parent = -1, start = 0, number = 0;
  int32_t subject = -1;
  size_t first_word = 0, first_ref = 0, words = 0, refs = 0;
};

// The frames that are never shown: those by which torch calls a module and its hooks.
struct CallFrames {
  std::unordered_set<const PyCodeObject*> hidden;
  const PyCodeObject* call = nullptr;     // the one whose frame an `OpenCall` has
  const PyCodeObject* wrapped = nullptr;  // the outermost one, with the arguments as given
};

// How often code objects were let go of, whose addresses others may have got since.
inline std::atomic<uint64_t> code_changes{1};

class Stack {
 public:
  // Return the node of the running frames, and set `call` to the index of the innermost open call
  // whose frame is among them, -1 if there is none. Frames around a call that is recorded here are
  // not walked. `ask(parent, code, instruction, is_forward)`
  // returns the node below `parent`.
  template <typename Ask>
  Node find(const CallFrames& torch, const std::vector<OpenCall>& calls, int& call, Ask ask);

  // The frames that were found last, innermost first.
  const std::vector<Frame>& frames() const { return frames_; }

  Node root;
  void* boundary = nullptr;  // the frame that encloses the recorded block, or null

 private:
  struct Step {
    void* frame;
    const PyCodeObject* code;
    int32_t instruction;
    bool is_hidden;
    Node node;
  };
  struct Key {
    const PyCodeObject* code;
    int32_t parent, instruction;
    bool operator==(const Key& other) const {
      return code == other.code && parent == other.parent && instruction == other.instruction;
    }
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      size_t mixed = reinterpret_cast<size_t>(key.code) ^
                     (static_cast<size_t>(key.parent) << 32 | static_cast<uint32_t>(key.instruction)) *
                         0x9E3779B97F4A7C15ull;
      return (mixed * 0xBF58476D1CE4E5B9ull) >> 7;
    }
  };
  using Known = std::unordered_map<Key, Node, Hash>;

  // Return the nodes that this thread has found, in any recording: they are the process's. The
  // tree keeps their code objects alive, or says that it lets some go.
  static Known& known() {
    thread_local Known found;
    thread_local uint64_t since = 0;
    uint64_t changes = code_changes.load(std::memory_order_acquire);
    if (since != changes) {
      since = changes;
      found.clear();
    }
    return found;
  }

  std::vector<Frame> frames_;
  std::vector<Step> steps_;  // the frames seen last, outermost first
  int64_t inside_ = -1;      // the call that they lie in, if it is recorded here
};

template <typename Ask>
Node Stack::find(const CallFrames& torch, const std::vector<OpenCall>& calls, int& call, Ask ask) {
  frames_.clear();
  call = -1;
  // Nothing about the frames around an open call changes while it runs, so the node it has is enough.
  const OpenCall* base = nullptr;
  int deepest = static_cast<int>(calls.size()) - 1;
  walk_frames([&](const Frame& frame, void* object) {
    if (object != nullptr && object == boundary) return false;
    if (call < 0 && frame.code == torch.call) {
      for (int at = deepest; at >= 0; --at) {
        if (calls[at].frame == frame.frame || (object != nullptr && calls[at].frame == object)) {
          call = at;
          break;
        }
      }
      if (call >= 0 && calls[call].is_ours) {
        base = &calls[call];
        return false;
      }
    }
    frames_.push_back(frame);
    return true;
  });
  size_t count = frames_.size(), at = 0;
  Node node = base == nullptr ? root : base->node;
  int64_t inside = base == nullptr ? -1 : base->event;
  if (inside != inside_) {
    inside_ = inside;
    steps_.clear();
  }
  for (size_t most = std::min(count, steps_.size()); at < most; ++at) {
    const Frame& frame = frames_[count - 1 - at];
    const Step& step = steps_[at];
    if (step.frame != frame.frame || step.code != frame.code ||
        step.instruction != frame.instruction) {
      break;
    }
    node = step.node;
  }
  // Behind these nothing is known of the new frames, also if `ask` throws.
  steps_.resize(at);
  Known& nodes = known();
  for (; at < count; ++at) {
    const Frame& frame = frames_[count - 1 - at];
    bool is_hidden = torch.hidden.count(frame.code) > 0;
    if (!is_hidden) {
      // The outermost frame under a module call is the forward of that module, not a direct call.
      bool is_own = at > 0 ? steps_[at - 1].is_hidden : base != nullptr;
      Key key{frame.code, node.number * 2 + is_own, frame.instruction};
      auto found = nodes.find(key);
      if (found != nodes.end()) {
        node = found->second;
      } else {
        node = ask(node, frame, is_own);  // which may find others
        known().emplace(key, node);
      }
    }
    steps_.push_back({frame.frame, frame.code, frame.instruction, is_hidden, node});
  }
  return node;
}

}  // namespace clew
