// Number sequences of words that repeat: the same words have the same number.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

namespace clew {

class Interned {
 public:
  // Return the number of some words, a new one if they were not met before.
  int32_t number(const uint64_t* words, size_t count) {
    uint64_t hash = hash_of(words, count);
    size_t mask = slots_.size() - 1, at = hash & mask;
    for (; slots_[at].number >= 0; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.hash == hash && slot.count == count &&
          std::memcmp(words_.data() + slot.first, words, count * sizeof(uint64_t)) == 0) {
        return slot.number;
      }
    }
    slots_[at] = {hash, words_.size(), static_cast<uint32_t>(count), next_};
    words_.insert(words_.end(), words, words + count);
    if (++used_ * 2 > slots_.size()) grow();
    return next_++;
  }

  int32_t next() const { return next_; }

  // Call `visit(words, count)` with each entry whose number is at least `from`, in order.
  template <typename Visit>
  void since(int32_t from, Visit visit) const {
    std::vector<const Slot*> found(static_cast<size_t>(next_ - from));
    for (const Slot& slot : slots_) {
      if (slot.number >= from) found[slot.number - from] = &slot;
    }
    for (const Slot* slot : found) visit(words_.data() + slot->first, slot->count);
  }

  // Forget everything if there is more than `most`; what comes again gets a new number.
  void limit(size_t most) {
    if (used_ > most) {
      slots_.assign(64, Slot{});
      words_.clear();
      used_ = 0;
      oldest_ = next_;
    }
  }

  // Return the first number that may be given again.
  int32_t oldest() const { return oldest_; }

 private:
  struct Slot {
    uint64_t hash = 0;
    size_t first = 0;
    uint32_t count = 0;
    int32_t number = -1;
  };

  static uint64_t hash_of(const uint64_t* words, size_t count) {
    uint64_t hash = count * 0x9E3779B97F4A7C15ull;
    for (size_t i = 0; i < count; ++i) {
      hash = (hash ^ words[i]) * 0xBF58476D1CE4E5B9ull;
      hash ^= hash >> 29;
    }
    return hash;
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    size_t mask = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.number < 0) continue;
      size_t at = slot.hash & mask;
      while (slots_[at].number >= 0) at = (at + 1) & mask;
      slots_[at] = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);
  std::vector<uint64_t> words_;
  size_t used_ = 0;
  int32_t next_ = 0, oldest_ = 0;
};

}  // namespace clew
