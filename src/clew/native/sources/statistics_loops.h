// The loops over elements, for vectors of CLEW_WIDTH bytes.
//
// Include it once, at the end of a source file that says what the processor can do: everything here
// is local to that file, so no code for a newer processor is linked where an older one runs it.

#include <cmath>
#include <cstring>
#include <type_traits>

#include "statistics_kernels.h"
#include "statistics_vectors.h"

namespace {

using clew::Element;
using clew::FiniteSums;
using clew::HashState;
using clew::PowerLanes;
using clew::Sums;

// How elements become numbers. Each type has: Stored, how it is in memory; Number, float or double,
// which holds every value as NumPy's float64 would; `one` number; `two` vectors of numbers, in any
// order.

template <class T>
struct AsIs {
  using Stored = T;
  using Number = T;
  static T one(T stored) { return stored; }
  static CLEW_INLINE void two(const T* from, Vector<T>& a, Vector<T>& b) {
    a = load<Vector<T>>(from);
    b = load<Vector<T>>(from + LANES<T>);
  }
};

struct BrainFloat {
  using Stored = uint16_t;
  using Number = float;
  static float one(uint16_t stored) { return same_bits<float>(uint32_t{stored} << 16); }
  static CLEW_INLINE void two(const uint16_t* from, Vector<float>& a, Vector<float>& b) {
    const auto pairs = load<Vector<uint32_t>>(from);
    a = same_bits<Vector<float>>(pairs << 16);
    b = same_bits<Vector<float>>(pairs & 0xffff0000u);
  }
};

struct Half {
  using Stored = uint16_t;
  using Number = float;
  static float one(uint16_t stored) {
    const uint32_t sign = uint32_t{stored} >> 15 << 31, rest = stored & 0x7fffu;
    if (rest >= 0x7c00u) return same_bits<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest < 0x400u) {
      const float tiny = static_cast<float>(rest) * 0x1p-24f;
      return sign ? -tiny : tiny;
    }
    return same_bits<float>(sign | ((rest << 13) + (112u << 23)));
  }
  static CLEW_INLINE void two(const uint16_t* from, Vector<float>& a, Vector<float>& b) {
    a = floats_of_halves(from);
    b = floats_of_halves(from + LANES<float>);
  }
};

// Integers of up to 16 bits: every one is a float.
template <class T>
struct Narrow {
  using Stored = T;
  using Number = float;
  static float one(T stored) { return static_cast<float>(stored); }
  static CLEW_INLINE void two(const T* from, Vector<float>& a, Vector<float>& b) {
    a = __builtin_convertvector(ints(from), Vector<float>);
    b = __builtin_convertvector(ints(from + LANES<float>), Vector<float>);
  }
};

// A byte that is not 0 is True, whichever it is.
struct Truth {
  using Stored = uint8_t;
  using Number = float;
  static float one(uint8_t stored) { return stored ? 1.0f : 0.0f; }
  static CLEW_INLINE void two(const uint8_t* from, Vector<float>& a, Vector<float>& b) {
    Narrow<uint8_t>::two(from, a, b);
    a = a > 0 ? a - a + 1.0f : a;
    b = b > 0 ? b - b + 1.0f : b;
  }
};

// Integers of 32 and 64 bits: rounded to the nearest double, as NumPy does.
template <class T>
struct Wide {
  using Stored = T;
  using Number = double;
  static double one(T stored) { return static_cast<double>(stored); }
  static CLEW_INLINE void two(const T* from, Vector<double>& a, Vector<double>& b) {
    a = several(from);
    b = several(from + LANES<double>);
  }
  static CLEW_INLINE Vector<double> several(const T* from) {
    if constexpr (sizeof(T) == 8) {
      return __builtin_convertvector(load<Vector<T>>(from), Vector<double>);
    } else if constexpr (std::is_signed_v<T>) {
      return doubles(load<Vector<int32_t, CLEW_WIDTH / 2>>(from));
    } else {
      // There are instructions for signed integers only.
      const auto stored = load<Vector<uint32_t, CLEW_WIDTH / 2>>(from) ^ 0x80000000u;
      return doubles(same_bits<Vector<int32_t, CLEW_WIDTH / 2>>(stored)) + 0x1p31;
    }
  }
};

template <Element>
struct Conversion;
template <> struct Conversion<Element::F32> : AsIs<float> {};
template <> struct Conversion<Element::F64> : AsIs<double> {};
template <> struct Conversion<Element::BF16> : BrainFloat {};
template <> struct Conversion<Element::F16> : Half {};
template <> struct Conversion<Element::I8> : Narrow<int8_t> {};
template <> struct Conversion<Element::I16> : Narrow<int16_t> {};
template <> struct Conversion<Element::I32> : Wide<int32_t> {};
template <> struct Conversion<Element::I64> : Wide<int64_t> {};
template <> struct Conversion<Element::U8> : Narrow<uint8_t> {};
template <> struct Conversion<Element::U16> : Narrow<uint16_t> {};
template <> struct Conversion<Element::U32> : Wide<uint32_t> {};
template <> struct Conversion<Element::U64> : Wide<uint64_t> {};
template <> struct Conversion<Element::BOOL> : Truth {};
template <> struct Conversion<Element::C32> : Half {};
template <> struct Conversion<Element::C64> : AsIs<float> {};
template <> struct Conversion<Element::C128> : AsIs<double> {};

// Extremes and zeros in each lane, two vectors at a time.
template <class Number>
struct LaneExtremes {
  Vector<Number> low_a = Vector<Number>{} + static_cast<Number>(INFINITY), low_b = low_a;
  Vector<Number> high_a = -low_a, high_b = high_a;
  Vector<Mask<Number>> zeros{};

  CLEW_INLINE void add(Vector<Number> a, Vector<Number> b) {
    low_a = a < low_a ? a : low_a;
    low_b = b < low_b ? b : low_b;
    high_a = a > high_a ? a : high_a;
    high_b = b > high_b ? b : high_b;
    zeros -= a == Vector<Number>{};
    zeros -= b == Vector<Number>{};
  }

  CLEW_INLINE void add_to(Sums& sums) const {
    const auto low = low_a < low_b ? low_a : low_b;
    const auto high = high_a > high_b ? high_a : high_b;
    for (int i = 0; i < LANES<Number>; ++i) {
      if (low[i] < sums.low) sums.low = low[i];
      if (high[i] > sums.high) sums.high = high[i];
    }
    sums.zeros += static_cast<int64_t>(total(zeros));
  }
};

// Sums and sums of squares in each lane, two vectors at a time. Call `settle` after GROUP of them.
template <class Number>
struct LaneSums;

// Sums of doubles would take twice as long as all the rest: only sums of a few floats are widened.
template <>
struct LaneSums<float> {
  static constexpr int GROUP = 4;
  Vector<float> few_a{}, few_b{}, few_squares_a{}, few_squares_b{};
  Vector<double> sum_a{}, sum_b{}, squares_a{}, squares_b{};

  CLEW_INLINE void add(Vector<float> a, Vector<float> b) {
    few_a += a;
    few_b += b;
    few_squares_a += a * a;
    few_squares_b += b * b;
  }

  CLEW_INLINE void settle() {
    const auto few = halves_of<float>(few_a + few_b);
    const auto few_squares = halves_of<float>(few_squares_a + few_squares_b);
    sum_a += doubles(few.a);
    sum_b += doubles(few.b);
    squares_a += doubles(few_squares.a);
    squares_b += doubles(few_squares.b);
    few_a = few_b = few_squares_a = few_squares_b = Vector<float>{};
  }
};

template <>
struct LaneSums<double> {
  static constexpr int GROUP = 1;
  Vector<double> sum_a{}, sum_b{}, squares_a{}, squares_b{};

  CLEW_INLINE void add(Vector<double> a, Vector<double> b) {
    sum_a += a;
    sum_b += b;
    squares_a += a * a;
    squares_b += b * b;
  }

  CLEW_INLINE void settle() {}
};

// Elements in memory, which need not be aligned.
template <class Stored>
struct Memory {
  const void* start;
  CLEW_INLINE const Stored* at(int64_t place) const {
    return static_cast<const Stored*>(start) + place;
  }
  CLEW_INLINE Stored operator[](int64_t place) const { return load<Stored>(at(place)); }
};

template <Element ELEMENT>
void sums(const void* numbers, int64_t count, Sums& into) {
  using Type = Conversion<ELEMENT>;
  using Number = typename Type::Number;
  const Memory<typename Type::Stored> from{numbers};
  constexpr int64_t STEP = 2 * LANES<Number>, GROUP = LaneSums<Number>::GROUP;
  int64_t at = 0;
  if (count >= STEP) {
    LaneExtremes<Number> extremes;
    LaneSums<Number> lanes;
    const auto step = [&]() __attribute__((always_inline)) {
      // The next block comes from memory while this one is in the cache.
      for (size_t line = 0; line < STEP * sizeof(typename Type::Stored); line += 64) {
        __builtin_prefetch(reinterpret_cast<const char*>(from.at(at)) + clew::BLOCK + line);
      }
      Vector<Number> a, b;
      Type::two(from.at(at), a, b);
      extremes.add(a, b);
      lanes.add(a, b);
      at += STEP;
    };
    while (at + GROUP * STEP <= count) {
#pragma GCC unroll 4
      for (int i = 0; i < GROUP; ++i) step();
      lanes.settle();
    }
    while (at + STEP <= count) step();
    lanes.settle();
    extremes.add_to(into);
    into.sum += total(lanes.sum_a + lanes.sum_b);
    into.squares += total(lanes.squares_a + lanes.squares_b);
  }
  for (; at < count; ++at) {
    const double x = Type::one(from[at]);
    if (x < into.low) into.low = x;
    if (x > into.high) into.high = x;
    into.zeros += x == 0;
    into.sum += x;
    into.squares += x * x;
  }
}

// As `LaneSums`, over the finite numbers.
template <class Number>
struct FiniteLaneSums {
  static constexpr Number LARGEST = std::numeric_limits<Number>::max();
  Vector<double> factor, shift;
  Vector<Number> low = Vector<Number>{} + static_cast<Number>(INFINITY), high = -low;
  Vector<Mask<Number>> finite{}, nan{};
  Vector<double> sum{}, squares{};

  FiniteLaneSums(double factor, double shift)
      : factor(Vector<double>{} + factor), shift(Vector<double>{} + shift) {}

  CLEW_INLINE void add(Vector<Number> x) {
    const Vector<Mask<Number>> is_finite = (x <= LARGEST) & (x >= -LARGEST);
    low = (is_finite & (x < low)) ? x : low;
    high = (is_finite & (x > high)) ? x : high;
    finite -= is_finite;
    nan -= x != x;
    if constexpr (sizeof(Number) == 4) {
      const auto halves = halves_of<float>(x);
      const auto counts = halves_of<int32_t>(is_finite);
      add_some(doubles(halves.a), __builtin_convertvector(counts.a, Vector<int64_t>));
      add_some(doubles(halves.b), __builtin_convertvector(counts.b, Vector<int64_t>));
    } else {
      add_some(x, is_finite);
    }
  }

  CLEW_INLINE void add_some(Vector<double> x, Vector<int64_t> counts) {
    const auto y = counts ? x * factor - shift : Vector<double>{};
    sum += y;
    squares += y * y;
  }
};

template <Element ELEMENT>
void finite_sums(const void* numbers, int64_t count, double factor, double shift,
                 FiniteSums& into) {
  using Type = Conversion<ELEMENT>;
  using Number = typename Type::Number;
  const Memory<typename Type::Stored> from{numbers};
  constexpr int64_t STEP = 2 * LANES<Number>;
  int64_t at = 0;
  if (count >= STEP) {
    FiniteLaneSums<Number> lanes(factor, shift);
    for (; at + STEP <= count; at += STEP) {
      Vector<Number> a, b;
      Type::two(from.at(at), a, b);
      lanes.add(a);
      lanes.add(b);
    }
    for (int i = 0; i < LANES<Number>; ++i) {
      if (lanes.low[i] < into.low) into.low = lanes.low[i];
      if (lanes.high[i] > into.high) into.high = lanes.high[i];
    }
    into.finite += static_cast<int64_t>(total(lanes.finite));
    into.nan += static_cast<int64_t>(total(lanes.nan));
    into.sum += total(lanes.sum);
    into.squares += total(lanes.squares);
  }
  for (; at < count; ++at) {
    const double x = Type::one(from[at]);
    into.nan += __builtin_isnan(x);
    if (!__builtin_isfinite(x)) continue;
    if (x < into.low) into.low = x;
    if (x > into.high) into.high = x;
    const double y = x * factor - shift;
    ++into.finite;
    into.sum += y;
    into.squares += y * y;
  }
}

template <Element ELEMENT>
bool first_zero_is_negative(const void* numbers, int64_t count) {
  using Type = Conversion<ELEMENT>;
  const Memory<typename Type::Stored> from{numbers};
  for (int64_t at = 0; at < count; ++at) {
    const auto x = Type::one(from[at]);
    if (x == 0) return __builtin_signbit(x);
  }
  return false;
}

template <Element ELEMENT>
int64_t zero_pairs(const void* numbers, int64_t count) {
  using Type = Conversion<ELEMENT>;
  const Memory<typename Type::Stored> from{numbers};
  int64_t zeros = 0;
  for (int64_t at = 0; at + 1 < count; at += 2) {
    zeros += Type::one(from[at]) == 0 && Type::one(from[at + 1]) == 0;
  }
  return zeros;
}

// Add up powers in each lane, a vector at a time.
struct LanePowers {
  Vector<double> sum{}, absolute{}, squares{}, cubes{};

  CLEW_INLINE void add(Vector<double> x) {
    constexpr int64_t WITHOUT_SIGN = 0x7fffffffffffffff;
    const auto size = same_bits<Vector<double>>(same_bits<Vector<int64_t>>(x) & WITHOUT_SIGN);
    const auto square = x * x;
    sum += x;
    absolute += size;
    squares += square;
    cubes += square * size;
  }
};

// Return the numbers, 0 for those that are not finite.
template <class Number>
CLEW_INLINE Vector<Number> only_finite(Vector<Number> x) {
  constexpr Number LARGEST = std::numeric_limits<Number>::max();
  const Vector<Mask<Number>> is_finite = (x <= LARGEST) & (x >= -LARGEST);
  return is_finite ? x : Vector<Number>{};
}

// As `Type::two`, in the order that the numbers have in memory.
template <class Type>
CLEW_INLINE void two_in_order(const typename Type::Stored* from, Vector<typename Type::Number>& a,
                              Vector<typename Type::Number>& b) {
  if constexpr (std::is_base_of_v<BrainFloat, Type>) {
    a = same_bits<Vector<float>>(same_bits<Vector<uint32_t>>(ints(from)) << 16);
    b = same_bits<Vector<float>>(same_bits<Vector<uint32_t>>(ints(from + LANES<float>)) << 16);
  } else {
    Type::two(from, a, b);
  }
}

// Add a vector of numbers to the powers and, with COLUMNS, to the numbers at `columns`.
template <bool COLUMNS>
CLEW_INLINE void add_doubles(Vector<double> x, double* columns, LanePowers& into) {
  into.add(x);
  if constexpr (COLUMNS) {
    const auto sum = load<Vector<double>>(columns) + x;
    std::memcpy(columns, &sum, sizeof sum);
  }
}

template <Element ELEMENT, bool COLUMNS>
CLEW_INLINE double powers_of(const void* numbers, int64_t count, double* columns,
                             PowerLanes& into) {
  using Type = Conversion<ELEMENT>;
  using Number = typename Type::Number;
  const Memory<typename Type::Stored> from{numbers};
  constexpr int64_t STEP = 2 * LANES<Number>, WIDE = LANES<double>;
  double sum = 0;
  int64_t at = 0;
  if (count >= STEP) {
    LanePowers even, odd;
    for (; at + STEP <= count; at += STEP) {
      Vector<Number> a, b;
      two_in_order<Type>(from.at(at), a, b);
      a = only_finite<Number>(a);
      b = only_finite<Number>(b);
      double* place = COLUMNS ? columns + at : nullptr;
      if constexpr (sizeof(Number) == 4) {
        const auto first = halves_of<float>(a), second = halves_of<float>(b);
        add_doubles<COLUMNS>(doubles(first.a), place, even);
        add_doubles<COLUMNS>(doubles(first.b), place + WIDE, odd);
        add_doubles<COLUMNS>(doubles(second.a), place + 2 * WIDE, even);
        add_doubles<COLUMNS>(doubles(second.b), place + 3 * WIDE, odd);
      } else {
        add_doubles<COLUMNS>(a, place, even);
        add_doubles<COLUMNS>(b, place + WIDE, odd);
      }
    }
    sum = total(even.sum + odd.sum);
    const auto add_to = [](double* lanes, Vector<double> found) {
      const auto both = load<Vector<double>>(lanes) + found;
      std::memcpy(lanes, &both, sizeof both);
    };
    add_to(into.absolute, even.absolute + odd.absolute);
    add_to(into.squares, even.squares + odd.squares);
    add_to(into.cubes, even.cubes + odd.cubes);
  }
  for (; at < count; ++at) {
    const double x = Type::one(from[at]);
    if (!__builtin_isfinite(x)) continue;
    const double size = __builtin_fabs(x);
    sum += x;
    into.absolute[0] += size;
    into.squares[0] += x * x;
    into.cubes[0] += x * x * size;
    if constexpr (COLUMNS) columns[at] += x;
  }
  return sum;
}

template <Element ELEMENT>
double powers(const void* numbers, int64_t count, PowerLanes& into) {
  return powers_of<ELEMENT, false>(numbers, count, nullptr, into);
}

template <Element ELEMENT>
double column_powers(const void* numbers, int64_t count, double* columns, PowerLanes& into) {
  return powers_of<ELEMENT, true>(numbers, count, columns, into);
}

// Copy a block. The C library may take string instructions for it, which are several times slower
// on some processors.
void copy(const void* from, void* to, size_t bytes) {
  const auto* source = static_cast<const unsigned char*>(from);
  auto* target = static_cast<unsigned char*>(to);
  size_t at = 0;
  for (; at + 2 * CLEW_WIDTH <= bytes; at += 2 * CLEW_WIDTH) {
    const auto a = load<Vector<uint64_t>>(source + at);
    const auto b = load<Vector<uint64_t>>(source + at + CLEW_WIDTH);
    std::memcpy(target + at, &a, CLEW_WIDTH);
    std::memcpy(target + at + CLEW_WIDTH, &b, CLEW_WIDTH);
  }
  for (; at < bytes; ++at) target[at] = source[at];
}

uint64_t hash(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

static_assert(sizeof(XXH3_state_t) <= sizeof(HashState));
static_assert(alignof(XXH3_state_t) <= alignof(HashState));
void hash_start(HashState& state) {
  auto* running = reinterpret_cast<XXH3_state_t*>(state.bytes);
  XXH3_INITSTATE(running);
  XXH3_64bits_reset(running);
}
void hash_add(HashState& state, const void* data, size_t bytes) {
  XXH3_64bits_update(reinterpret_cast<XXH3_state_t*>(state.bytes), data, bytes);
}
uint64_t hash_result(const HashState& state) {
  return XXH3_64bits_digest(reinterpret_cast<const XXH3_state_t*>(state.bytes));
}

#define CLEW_LOOPS(name, text)                                         \
  {sums<Element::name>, finite_sums<Element::name>,                    \
   first_zero_is_negative<Element::name>, zero_pairs<Element::name>,   \
   powers<Element::name>, column_powers<Element::name>,                \
   std::is_same_v<Conversion<Element::name>::Number, float>},
#define CLEW_KERNELS(name) \
  {name, {CLEW_ELEMENTS(CLEW_LOOPS)}, copy, hash, hash_start, hash_add, hash_result}

}  // namespace
