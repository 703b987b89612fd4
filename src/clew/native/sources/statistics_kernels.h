// What is compiled once for each set of instructions: loops over one block of elements.
//
// statistics.cpp cuts memory into blocks and knows nothing of vectors; statistics_loops.h has the
// loops; statistics_{scalar,avx2,avx512}.cpp compile them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "statistics.h"

namespace clew {

// Bytes of a block: it stays in the nearest cache from the copy to the digest to the sums. It holds
// whole elements of every type.
constexpr int64_t BLOCK = 16 << 10;

constexpr double INFINITE = std::numeric_limits<double>::infinity();

// What a first pass adds up. If there is a NaN or an Inf, `sum` is not finite.
struct Sums {
  double low = INFINITE, high = -INFINITE;  // of all but NaN
  double sum = 0, squares = 0;
  int64_t zeros = 0;
};

// What a second pass adds up, over the finite numbers: those of x * factor - shift.
struct FiniteSums {
  double low = INFINITE, high = -INFINITE;
  double sum = 0, squares = 0;
  int64_t finite = 0, nan = 0;
};

// Room for the state of a running XXH3.
struct alignas(64) HashState {
  unsigned char bytes[640];
};

// Sums of |x|, x² and |x|³ over the finite numbers, in each lane of a vector.
struct alignas(64) PowerLanes {
  static constexpr int MOST = 8;
  double absolute[MOST] = {}, squares[MOST] = {}, cubes[MOST] = {};
};

// The loops for one type of numbers. A count is of numbers: a complex element has two.
struct Loops {
  void (*sums)(const void* numbers, int64_t count, Sums& into);
  void (*finite_sums)(const void* numbers, int64_t count, double factor, double shift,
                      FiniteSums& into);
  // Whether the first zero of a block has a sign; ask only if there is a zero.
  bool (*first_zero_is_negative)(const void* numbers, int64_t count);
  int64_t (*zero_pairs)(const void* numbers, int64_t count);
  // Add up powers of the finite numbers; return the sum of the numbers. Always in doubles.
  double (*powers)(const void* numbers, int64_t count, PowerLanes& into);
  // The same, and add each number to its place in `columns`.
  double (*column_powers)(const void* numbers, int64_t count, double* columns, PowerLanes& into);
  // Whether `sums` adds floats, a few at a time; else doubles. `finite_sums` always adds doubles.
  bool adds_floats;
};

struct Kernels {
  const char* name;
  Loops loops[ELEMENTS];
  void (*copy)(const void* from, void* to, size_t bytes);
  uint64_t (*hash)(const void* data, size_t bytes);
  void (*hash_start)(HashState& state);
  void (*hash_add)(HashState& state, const void* data, size_t bytes);
  uint64_t (*hash_result)(const HashState& state);
};

// Return the loops for the instructions in use.
const Kernels& kernels();

extern const Kernels scalar_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

}  // namespace clew
