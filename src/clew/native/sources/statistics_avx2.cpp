// The loops for x86 processors with AVX2, FMA and F16C.
#if defined(__x86_64__)
#include <cmath>
#include <cstring>
#include <type_traits>
#include <immintrin.h>

#include "statistics_kernels.h"

// Up to the end of the file, as templates are made there.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#endif
#define XXH_VECTOR 2
#define XXH_INLINE_ALL
#include <arrow/vendored/xxhash/xxhash.h>

#define CLEW_WIDTH 32
#define CLEW_INTRINSICS 1
#include "statistics_loops.h"

namespace clew {
extern const Kernels avx2_kernels = CLEW_KERNELS("avx2");
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
