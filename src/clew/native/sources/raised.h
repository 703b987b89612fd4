// Learn what an op has raised: its callback ends while the C++ exception is still in flight.
#pragma once
#include <cstdint>

namespace clew {

class Recording;

// Give the recording the text of the exception when that reaches the Python frame that runs. A
// composite `is_around` the op that raised before it: both get the text.
void note_raised(Recording* recording, int64_t event, bool is_around);

}  // namespace clew
