// The loops for any processor: nothing beyond what the compiler may use by itself, which is vectors of
// 16 bytes where every processor of the kind has them.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "statistics_kernels.h"

#define XXH_INLINE_ALL
#include <arrow/vendored/xxhash/xxhash.h>

#define CLEW_WIDTH 16
#define CLEW_INTRINSICS 0
#include "statistics_loops.h"

namespace clew {
extern const Kernels scalar_kernels = CLEW_KERNELS("scalar");
}
