// Keep more of a value than its facts: statistics, or its data as it is at this moment.
//
// Comes in: a tensor in memory of the CPU whose value is new. Goes out: rows of statistics, blocks
// of memory with copies. Elements that were measured are not measured again for another view of
// them. The caller holds the recording's lock.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "fingerprint.h"
#include "statistics.h"

namespace clew {

enum class Level : int { META, STATS, FINGERPRINT, FULL };

// As in `clew.request.limits`; -1 for no limit.
struct KeepLimits {
  int64_t bytes = -1, elements = -1, sample = 1, until = -1;
};

// The statistics of a value, in the layout that `clew.record.native_rows` reads. `data` is the
// number of its block, -1 without one.
struct KeptRow {
  int64_t value, data;
  double min, max, mean, std, norm, lowest, highest;
  int64_t count, nan, inf, zeros;
  uint64_t digest;
  uint64_t has;  // 1: moments, 2: lowest and highest, 4: digest
  int64_t mark = 0, marks = 0;  // where its fingerprint begins in `Kept::marks`, and its length
};
static_assert(sizeof(KeptRow) == 136);

// Memory with a copy of a tensor's elements; it is used again once nobody needs it any more.
struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
struct Block {
  std::unique_ptr<char, Free> memory;
  int64_t room = 0, size = 0;
};
Block take_block(int64_t size);
void give_back(Block block);

// Guards the blocks that are not in use; held while the process forks.
extern std::mutex blocks_lock;

// What was measured of some memory last, and of which of its elements.
struct Measured {
  int64_t begin = -1, count = 0;
  uint32_t writes = 0, version = 0;
  int32_t dtype = -1;
  bool is_contiguous = false;
  Statistics found;
  std::shared_ptr<MarkedView> marked;  // nullptr if no fingerprint was computed
};

class Kept {
 public:
  Level level = Level::META;
  KeepLimits limits;
  bool digests = true;

  // Keep what the level says of a new value. Return false if only Python code can read the tensor.
  // `writes` are those that events told of, `version` torch's count: either tells of a change.
  bool keep(c10::TensorImpl* tensor, int64_t value, uint32_t writes, uint32_t version,
            Measured& measured);

  std::vector<KeptRow> rows;
  std::vector<Block> blocks;
  std::vector<double> marks;  // fingerprints, one after the other
  int64_t pending = 0;  // bytes of blocks that nobody has taken
  uint32_t reached = 0;  // limits that left something out: 1 bytes, 2 elements, 4 sample, 8 time
  int64_t given_back = 0;
  // How many values had NaN or Inf, and how many of float16 were near its largest number; read
  // without the lock.
  std::atomic<int64_t> nonfinite{0}, near_overflow{0};

 private:
  bool has_room(int64_t count, int64_t size);
  void mark_view(const c10::TensorImpl* tensor, Element element, const void* data, Measured& measured,
                 KeptRow& row);
  int64_t bytes_ = 0, values_ = 0;
};

// Return the type of a tensor's elements; false if statistics know none like it.
bool element_of(c10::ScalarType dtype, Element& element);

}  // namespace clew
