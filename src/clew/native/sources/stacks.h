// Find the place of the running thread in the tree of call stacks (`clew.record.stacks`).
//
// Comes in: the frames of the thread. Goes out: the number of the node that stands for them. The
// frames seen last are remembered, so that an op costs a comparison per frame inside its module call;
// only a line that was never met before needs the GIL, to ask Python for its node.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "frames.h"
#include "node_table.h"
#include "running.h"

namespace clew {

// A module call that runs: its event, and its frame, as the interpreter or, for a call that Python
// code records, as Python knows it. That is the frame of `CallFrames::wrapped` for a call that was
// followed, of `CallFrames::call` for one that a hook told of.
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
  CodeSet hidden;
  const PyCodeObject* call = nullptr;     // the one that runs hooks
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
  static constexpr int64_t NO_CALL = -1, CALL_OF_PYTHON = -2;
  struct Step {
    void* frame;
    const PyCodeObject* code;
    int32_t instruction;
    bool begins_call;  // a frame by which torch calls a module, in a call that is recorded
    Node node;
  };
  std::vector<Frame> frames_;
  std::vector<Step> steps_;  // the frames seen last, outermost first
  int64_t inside_ = NO_CALL;  // the call that they lie in, if it is recorded here
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
    if (call < 0 && (frame.code == torch.call || frame.code == torch.wrapped)) {
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
  int64_t inside = base != nullptr ? base->event : call < 0 ? NO_CALL : CALL_OF_PYTHON;
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
  NodeTable& nodes = here().nodes;
  nodes.forget_before(code_changes.load(std::memory_order_acquire));
  for (; at < count; ++at) {
    const Frame& frame = frames_[count - 1 - at];
    bool is_hidden = torch.hidden.contains(frame.code);
    // The outermost frame under a recorded call is the forward of its module, not a direct call.
    bool is_own = at > 0 ? steps_[at - 1].begins_call : base != nullptr;
    if (!is_hidden) {
      Line line{frame.code, node.number * 2 + is_own, frame.instruction};
      if (const Node* found = nodes.find(line)) {
        node = *found;
      } else {
        node = ask(node, frame, is_own);  // which may find others
        nodes.forget_before(code_changes.load(std::memory_order_acquire));
        if (nodes.find(line) == nullptr) nodes.add(line, node);
      }
    }
    // Of calls that Python code records, the frames of all lie here.
    bool begins_call = is_hidden && (is_own || inside == CALL_OF_PYTHON);
    steps_.push_back({frame.frame, frame.code, frame.instruction, begins_call, node});
  }
  return node;
}

}  // namespace clew
