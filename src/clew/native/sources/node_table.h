// Nodes of the tree of call stacks, found by the line they stand for and the node above.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hash.h"

namespace clew {

// A node of the tree: its number, the phase of the program there, and whether a `forward` that went
// past the hooks lies between it and the module call around it.
struct Node {
  int32_t number = -1;
  uint8_t phase = 0;
  bool is_direct = false;
};

// A line as it is called from a node. `parent` is twice the number of that node, plus 1 for the
// `forward` of a module.
struct Line {
  const PyCodeObject* code = nullptr;
  int32_t parent = 0, instruction = 0;
  bool operator==(const Line&) const = default;
};

class NodeTable {
 public:
  // Return the node of a line, null if it was not met.
  const Node* find(const Line& line) const {
    for (size_t at = slot_of(line), mask = slots_.size() - 1;; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.line.code == nullptr) return nullptr;
      if (slot.line == line) return &slot.node;
    }
  }

  void add(const Line& line, const Node& node) {
    if (2 * ++used_ > slots_.size()) grow();
    put({line, node});
  }

  // Forget everything, if code objects were let go of since: others may have their addresses.
  void forget_before(uint64_t changes) {
    if (since_ == changes) return;
    since_ = changes;
    slots_.assign(SMALLEST, Slot{});
    used_ = 0;
  }

 private:
  static constexpr size_t SMALLEST = 64;
  struct Slot {
    Line line;
    Node node;
  };

  size_t slot_of(const Line& line) const {
    size_t low = static_cast<size_t>(line.parent) << 32 | static_cast<uint32_t>(line.instruction);
    return mixed(reinterpret_cast<void*>(reinterpret_cast<size_t>(line.code) ^ low * 0xBF58476D1CE4E5B9ull)) &
           (slots_.size() - 1);
  }

  void put(const Slot& slot) {
    size_t at = slot_of(slot.line), mask = slots_.size() - 1;
    while (slots_[at].line.code != nullptr) at = (at + 1) & mask;
    slots_[at] = slot;
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.line.code != nullptr) put(slot);
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(SMALLEST);
  size_t used_ = 0;
  uint64_t since_ = 0;
};

// Some code objects, few enough to be looked for with one step.
class CodeSet {
 public:
  void add(const PyCodeObject* code) {
    if (contains(code)) return;
    if (4 * ++used_ > slots_.size()) {
      std::vector<const PyCodeObject*> old(slots_.size() * 2);
      old.swap(slots_);
      for (const PyCodeObject* one : old) {
        if (one != nullptr) put(one);
      }
    }
    put(code);
  }

  bool contains(const PyCodeObject* code) const {
    for (size_t at = mixed(code) & (slots_.size() - 1); slots_[at] != nullptr; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == code) return true;
    }
    return false;
  }

 private:
  void put(const PyCodeObject* code) {
    size_t at = mixed(code) & (slots_.size() - 1);
    while (slots_[at] != nullptr) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = code;
  }

  std::vector<const PyCodeObject*> slots_ = std::vector<const PyCodeObject*>(64);
  size_t used_ = 0;
};

}  // namespace clew
