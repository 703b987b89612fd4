// Facts that hold for every call of one op, found once for the process.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <mutex>
#include <string>
#include <vector>

namespace clew {

struct OpFacts {
  int32_t number = -1;
  std::string name;      // `aten::add`
  std::string overload;  // `Tensor`, or nothing
  std::string schema;
  size_t arguments = 0, results = 0;
  // Runs other ops and has no kernel of its own.
  bool is_composite = false;
  // Casts its arguments and runs again while autocast is on.
  bool has_autocast = false;
  // Returns memory that nobody has written.
  bool leaves_unwritten = false;
  // Still writes to what it took when it has returned.
  bool writes_later = false;
  // Returns its argument as it is, and makes nothing.
  bool keeps_elements = false;
  // Its argument was filled by no op: `torch.tensor` hands its data over by it.
  bool brings_data = false;
  // A mark for the profiler, not a computation.
  bool is_annotation = false;
  // Arguments it writes to; for a batch norm, those it writes to where the flag at `training` is on.
  std::vector<int> writes;
  int training = -1;
  // Draws random numbers, unless the flag at `draws_if` is off or the number at `chance` is 0.
  bool draws = false;
  int generator = -1, draws_if = -1, chance = -1;
};

// Return the facts of the op that runs; null if it is none of torch's ops.
const OpFacts* op_of(const at::RecordFunction& call);

// Notice from now on when ops are taken out of their libraries.
void watch_removals();

// Return the facts of the op with a number.
const OpFacts& op_at(int32_t number);
int32_t op_count();

// Guards what is known of ops; held while the process forks.
extern std::mutex ops_lock;

}  // namespace clew
