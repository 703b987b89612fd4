// Vectors of CLEW_WIDTH bytes, and how narrower numbers widen to fill one.
//
// Vectors are those of GCC and Clang, which lower them to whatever instructions there are. GCC
// widens numbers in many small steps, so with CLEW_INTRINSICS the instruction is named.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace {

#define CLEW_INLINE __attribute__((always_inline)) inline

template <class T, int BYTES>
struct VectorOf {
  typedef T type __attribute__((vector_size(BYTES)));
};
template <class T, int BYTES = CLEW_WIDTH>
using Vector = typename VectorOf<T, BYTES>::type;

template <class Number>
constexpr int LANES = CLEW_WIDTH / sizeof(Number);
// The integers that a comparison of such numbers gives.
template <class Number>
using Mask = std::conditional_t<sizeof(Number) == 4, int32_t, int64_t>;

template <class V>
CLEW_INLINE V load(const void* from) {
  V loaded;
  std::memcpy(&loaded, from, sizeof(V));
  return loaded;
}

template <class To, class From>
CLEW_INLINE To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return load<To>(&from);
}

// Load as many integers as there are floats in a vector, and convert them.
template <class T>
CLEW_INLINE Vector<int32_t> ints(const T* from) {
#if CLEW_INTRINSICS && CLEW_WIDTH == 32
  __m256i wide;
  const auto* at = reinterpret_cast<const __m128i*>(from);
  if constexpr (std::is_same_v<T, int8_t>) wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at));
  if constexpr (std::is_same_v<T, uint8_t>) wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(at));
  if constexpr (std::is_same_v<T, int16_t>) wide = _mm256_cvtepi16_epi32(_mm_loadu_si128(at));
  if constexpr (std::is_same_v<T, uint16_t>) wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at));
  return same_bits<Vector<int32_t>>(wide);
#elif CLEW_INTRINSICS && CLEW_WIDTH == 64
  __m512i wide;
  if constexpr (std::is_same_v<T, int8_t>) wide = _mm512_cvtepi8_epi32(load<__m128i>(from));
  if constexpr (std::is_same_v<T, uint8_t>) wide = _mm512_cvtepu8_epi32(load<__m128i>(from));
  if constexpr (std::is_same_v<T, int16_t>) wide = _mm512_cvtepi16_epi32(load<__m256i>(from));
  if constexpr (std::is_same_v<T, uint16_t>) wide = _mm512_cvtepu16_epi32(load<__m256i>(from));
  return same_bits<Vector<int32_t>>(wide);
#else
  return __builtin_convertvector(load<Vector<T, LANES<float> * sizeof(T)>>(from), Vector<int32_t>);
#endif
}

CLEW_INLINE Vector<double> doubles(Vector<float, CLEW_WIDTH / 2> half) {
#if CLEW_INTRINSICS && CLEW_WIDTH == 32
  return _mm256_cvtps_pd(half);
#elif CLEW_INTRINSICS && CLEW_WIDTH == 64
  return _mm512_cvtps_pd(half);
#else
  return __builtin_convertvector(half, Vector<double>);
#endif
}

CLEW_INLINE Vector<double> doubles(Vector<int32_t, CLEW_WIDTH / 2> half) {
#if CLEW_INTRINSICS && CLEW_WIDTH == 32
  return _mm256_cvtepi32_pd(same_bits<__m128i>(half));
#elif CLEW_INTRINSICS && CLEW_WIDTH == 64
  return _mm512_cvtepi32_pd(same_bits<__m256i>(half));
#else
  return __builtin_convertvector(half, Vector<double>);
#endif
}

// Load as many half-precision numbers as there are floats in a vector, and convert them.
CLEW_INLINE Vector<float> floats_of_halves(const uint16_t* from) {
#if CLEW_INTRINSICS && CLEW_WIDTH == 32
  return _mm256_cvtph_ps(load<__m128i>(from));
#elif CLEW_INTRINSICS && CLEW_WIDTH == 64
  return _mm512_cvtph_ps(load<__m256i>(from));
#else
  const auto stored = same_bits<Vector<uint32_t>>(ints(from));
  const auto sign = stored >> 15 << 31, rest = stored & 0x7fffu;
  const auto normal = (rest << 13) + (112u << 23);
  const auto special = 0x7f800000u | (rest & 0x3ffu) << 13;
  const auto tiny = same_bits<Vector<uint32_t>>(
      __builtin_convertvector(same_bits<Vector<int32_t>>(rest), Vector<float>) * 0x1p-24f);
  return same_bits<Vector<float>>(
      sign | (rest < 0x400u ? tiny : rest >= 0x7c00u ? special : normal));
#endif
}

template <class V>
struct Halves {
  V a, b;
};
template <class T>
CLEW_INLINE Halves<Vector<T, CLEW_WIDTH / 2>> halves_of(Vector<T> whole) {
  return same_bits<Halves<Vector<T, CLEW_WIDTH / 2>>>(whole);
}

template <class V>
CLEW_INLINE double total(V lanes) {
  double sum = 0;
  for (size_t i = 0; i < sizeof(V) / sizeof(lanes[0]); ++i) sum += static_cast<double>(lanes[i]);
  return sum;
}

}  // namespace
