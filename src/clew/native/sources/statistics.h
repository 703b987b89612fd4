// Statistics of a tensor's elements: extremes, mean, deviation, norm, counts and a digest.
//
// Comes in: memory of the process. Goes out: a `Statistics`, with the numbers that the NumPy way
// (events/statistics.py) gives. Knows neither torch nor Python; any thread may call it.
#pragma once

#include <cstdint>

namespace clew {

class AxisSums;

// The types of elements, with the names that torch has for them.
#define CLEW_ELEMENTS(X)                                                                       \
  X(F32, "float32") X(F64, "float64") X(BF16, "bfloat16") X(F16, "float16")                    \
  X(I8, "int8") X(I16, "int16") X(I32, "int32") X(I64, "int64")                                \
  X(U8, "uint8") X(U16, "uint16") X(U32, "uint32") X(U64, "uint64") X(BOOL, "bool")            \
  X(C32, "complex32") X(C64, "complex64") X(C128, "complex128")

enum class Element : uint8_t {
#define CLEW_ELEMENT(name, text) name,
  CLEW_ELEMENTS(CLEW_ELEMENT)
#undef CLEW_ELEMENT
};
#define CLEW_ELEMENT(name, text) +1
constexpr int ELEMENTS = 0 CLEW_ELEMENTS(CLEW_ELEMENT);
#undef CLEW_ELEMENT

// Return the bytes of one element.
constexpr int64_t size_of(Element element) {
  switch (element) {
    case Element::I8: case Element::U8: case Element::BOOL: return 1;
    case Element::BF16: case Element::F16: case Element::I16: case Element::U16: return 2;
    case Element::F32: case Element::I32: case Element::U32: case Element::C32: return 4;
    case Element::F64: case Element::I64: case Element::U64: case Element::C64: return 8;
    case Element::C128: return 16;
  }
  return 0;
}

// Min, max, mean, std and norm are of the finite numbers, NaN if there are numbers but none is
// finite. `lowest` and `highest` are of all numbers and are there if some are Inf and none is NaN.
// Real and imaginary parts are numbers of their own, but for `count` and `zeros`.
// Without elements only the counts and the digest (0) are there.
struct Statistics {
  double min = 0, max = 0, mean = 0, std = 0, norm = 0;
  double lowest = 0, highest = 0;
  int64_t count = 0, nan = 0, inf = 0, zeros = 0;
  uint64_t digest = 0;
  bool has_moments = false;  // min, max, mean, std, norm
  bool has_ends = false;     // lowest, highest
  bool has_digest = false;
};

// Measure `count` elements that follow each other in memory, reading them once (rarely twice).
// With `copy_to`, also copy the bytes there; the statistics are those of the copy. With `axes`, add
// the elements to these too.
Statistics measure(const void* data, int64_t count, Element element, bool digest,
                   void* copy_to = nullptr, AxisSums* axes = nullptr);

// Measure the elements of a strided tensor, with strides in elements. Digest and copy are in
// row-major order. Nothing but a small buffer is allocated.
Statistics measure_strided(const void* data, Element element, int dims, const int64_t* sizes,
                           const int64_t* strides, bool digest, void* copy_to = nullptr,
                           AxisSums* axes = nullptr);

// Return the digest of bytes: their 64-bit XXH3 without its last bit.
uint64_t digest_of(const void* data, int64_t bytes);

// Return the instructions in use: "avx512", "avx2" or "scalar".
const char* instruction_set();

// Use other instructions from here on, for tests. Return false if this processor has none of the
// name; nullptr chooses the best there are.
bool use_instruction_set(const char* name);

}  // namespace clew
