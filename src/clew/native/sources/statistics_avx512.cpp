// The loops for x86 processors with AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__)
#include <cmath>
#include <cstring>
#include <type_traits>
#include <immintrin.h>

#include "statistics_kernels.h"

// GCC warns of the lanes that its own AVX-512 intrinsics leave undefined on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

// Up to the end of the file, as templates are made there.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2")
#endif
#define XXH_VECTOR 3
#define XXH_INLINE_ALL
#include <arrow/vendored/xxhash/xxhash.h>

#define CLEW_WIDTH 64
#define CLEW_INTRINSICS 1
#include "statistics_loops.h"

namespace clew {
extern const Kernels avx512_kernels = CLEW_KERNELS("avx512");
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
