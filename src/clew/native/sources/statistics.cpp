// Cut memory into blocks, run the loops over each while it is in the cache, and make statistics of
// the sums.
#include "statistics.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "fingerprint.h"
#include "floating_point.h"
#include "statistics_kernels.h"
#include "strided.h"

namespace clew {
namespace {

using Bytes = const unsigned char*;

const Kernels* best_kernels() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return &avx512_kernels;
  }
  if (avx2) return &avx2_kernels;
#endif
  return &scalar_kernels;
}

std::atomic<const Kernels*> chosen{nullptr};

bool is_complex(Element element) {
  return element == Element::C32 || element == Element::C64 || element == Element::C128;
}

// Adds up sums and digest, block by block.
class FirstPass {
 public:
  FirstPass(const Kernels& kernels, Element element, bool digest, int64_t bytes, AxisSums* axes)
      : kernels_(kernels),
        loops_(kernels.loops[static_cast<int>(element)]),
        number_(size_of(element) / (is_complex(element) ? 2 : 1)),
        in_pairs_(is_complex(element)),
        digest_(digest),
        bytes_(bytes),
        axes_(axes) {}

  void add(Bytes block, int64_t bytes) {
    if (digest_) add_to_digest(block, bytes);
    const int64_t zeros = sums.zeros, count = bytes / number_;
    loops_.sums(block, count, sums);
    if (axes_ != nullptr) axes_->add(block, bytes);
    if (sums.zeros == zeros) return;
    if (in_pairs_) pairs_ += loops_.zero_pairs(block, count);
    if (zeros == 0) negative_ = loops_.first_zero_is_negative(block, count);
  }

  // Return an extreme with the sign of the first zero, if it is zero, as NumPy does.
  double signed_zero(double extreme) const {
    return extreme != 0 ? extreme : negative_ ? -0.0 : 0.0;
  }
  int64_t zeros() const { return in_pairs_ ? pairs_ : sums.zeros; }
  uint64_t digest() const { return (running_ ? kernels_.hash_result(state_) : whole_) >> 1; }

  Sums sums;

 private:
  void add_to_digest(Bytes block, int64_t bytes) {
    if (bytes == bytes_) {
      whole_ = kernels_.hash(block, static_cast<size_t>(bytes));
      return;
    }
    if (!running_) kernels_.hash_start(state_);
    running_ = true;
    kernels_.hash_add(state_, block, static_cast<size_t>(bytes));
  }

  const Kernels& kernels_;
  const Loops& loops_;
  const int64_t number_;
  const bool in_pairs_, digest_;
  const int64_t bytes_;  // of all blocks
  AxisSums* const axes_;
  int64_t pairs_ = 0;
  bool negative_ = false, running_ = false;
  uint64_t whole_ = 0;
  HashState state_;
};

// What sums can be trusted with: the size of numbers, and how small a variance may be, as part of
// the squared mean, until the difference that it is has too few digits.
struct Trust {
  double smallest, largest, variance;
};
constexpr Trust TRUST_IN_FLOATS = {0x1p-40, 0x1p60, 0.05};
constexpr Trust TRUST_IN_DOUBLES = {0x1p-480, 0x1p480, 1e-6};

// Fill in min, max, mean, std and norm of `count` finite numbers. `again(factor, shift)` reads
// them once more.
template <class Again>
void fill_moments(Statistics& found, double low, double high, double sum, double squares,
                  int64_t count, const Trust& trust, const Again& again) {
  const auto n = static_cast<double>(count);
  found.min = low;
  found.max = high;
  if (low == high) {
    found.mean = low + 0.0;  // not -0.0
    found.std = 0;
    found.norm = std::fabs(low) * std::sqrt(n);
    return;
  }
  const double largest = std::max(std::fabs(low), std::fabs(high));
  int exponent = 0;
  if (largest < trust.smallest || largest > trust.largest) {
    std::frexp(largest, &exponent);
    exponent = std::max(exponent, -1000);  // 2**1000 is a double, 2**1074 is none
    const FiniteSums scaled = again(std::ldexp(1.0, -exponent), 0.0);
    sum = scaled.sum;
    squares = scaled.squares;
  }
  double mean = sum / n, variance = squares / n - mean * mean;
  if (variance < trust.variance * mean * mean) {
    const FiniteSums apart = again(std::ldexp(1.0, -exponent), mean);
    const double correction = apart.sum / n;
    mean += correction;
    variance = apart.squares / n - correction * correction;
  }
  found.mean = std::clamp(std::ldexp(mean, exponent), low, high);
  found.std = std::ldexp(std::sqrt(std::max(variance, 0.0)), exponent);
  found.norm = std::ldexp(std::sqrt(squares), exponent);
}

// Measure what `first_walk` and `walk` go through: both call their argument with each block and
// its bytes, in order.
template <class FirstWalk, class Walk>
Statistics measured(Element element, int64_t count, bool digest, const FirstWalk& first_walk,
                    const Walk& walk, AxisSums* axes) {
  Statistics found;
  found.count = count;
  if (count == 0) {
    found.has_digest = true;
    return found;
  }
  const DefaultFloatingPoint as_usual;
  const Kernels& in_use = kernels();
  FirstPass first(in_use, element, digest, count * size_of(element), axes);
  first_walk([&](Bytes block, int64_t bytes) { first.add(block, bytes); });

  found.zeros = first.zeros();
  found.has_digest = digest;
  if (digest) found.digest = first.digest();

  const bool in_pairs = is_complex(element);
  const int64_t number = size_of(element) / (in_pairs ? 2 : 1);
  const Loops& loops = in_use.loops[static_cast<int>(element)];
  const auto again = [&](double factor, double shift) {
    FiniteSums sums;
    walk([&](Bytes block, int64_t bytes) {
      loops.finite_sums(block, bytes / number, factor, shift, sums);
    });
    return sums;
  };
  const Sums& sums = first.sums;
  const int64_t numbers = in_pairs ? 2 * count : count;
  found.has_moments = true;
  const double low = first.signed_zero(sums.low), high = first.signed_zero(sums.high);
  if (std::isfinite(sums.sum)) {
    const Trust& trust = loops.adds_floats ? TRUST_IN_FLOATS : TRUST_IN_DOUBLES;
    fill_moments(found, low, high, sums.sum, sums.squares, numbers, trust, again);
    return found;
  }
  // There is a NaN or an Inf, or the numbers are too large to be added.
  const FiniteSums finite = again(1.0, 0.0);
  found.nan = finite.nan;
  found.inf = numbers - finite.finite - finite.nan;
  found.has_ends = found.inf > 0 && found.nan == 0;
  if (found.has_ends) {
    found.lowest = low;
    found.highest = high;
  }
  if (finite.finite == 0) {
    found.min = found.max = found.mean = found.std = found.norm = std::nan("");
    return found;
  }
  fill_moments(found, first.signed_zero(finite.low), first.signed_zero(finite.high), finite.sum,
               finite.squares, finite.finite, TRUST_IN_DOUBLES, again);
  return found;
}

// Give `visit` a stretch of memory in blocks.
template <class Visit>
void visit_blocks(Bytes from, int64_t bytes, const Visit& visit) {
  for (int64_t at = 0; at < bytes; at += BLOCK) visit(from + at, std::min(BLOCK, bytes - at));
}

}  // namespace

const Kernels& kernels() {
  const Kernels* found = chosen.load(std::memory_order_relaxed);
  if (found == nullptr) {
    found = best_kernels();
    chosen.store(found, std::memory_order_relaxed);
  }
  return *found;
}

Statistics measure(const void* data, int64_t count, Element element, bool digest, void* copy_to,
                   AxisSums* axes) {
  const int64_t bytes = count * size_of(element);
  const auto* from = static_cast<Bytes>(data);
  if (copy_to == nullptr) {
    const auto walk = [&](const auto& visit) { visit_blocks(from, bytes, visit); };
    return measured(element, count, digest, walk, walk, axes);
  }
  // The copy is what is read, as another thread may write to the original meanwhile.
  const Kernels& in_use = kernels();
  auto* copy = static_cast<unsigned char*>(copy_to);
  const auto copying = [&](const auto& visit) {
    visit_blocks(copy, bytes, [&](Bytes block, int64_t size) {
      const int64_t at = block - copy;
      in_use.copy(from + at, copy + at, static_cast<size_t>(size));
      visit(block, size);
    });
  };
  const auto walk = [&](const auto& visit) { visit_blocks(copy, bytes, visit); };
  return measured(element, count, digest, copying, walk, axes);
}

Statistics measure_strided(const void* data, Element element, int dims, const int64_t* sizes,
                           const int64_t* strides, bool digest, void* copy_to, AxisSums* axes) {
  // Sums are the same in every order, and the order of the memory is read fastest.
  const bool any_order = !digest && copy_to == nullptr && axes == nullptr;
  const Layout layout(dims, sizes, strides, any_order);
  const int64_t count = layout.count();
  if (layout.is_contiguous()) return measure(data, count, element, digest, copy_to, axes);
  const auto* from = static_cast<Bytes>(data);
  const int64_t size = size_of(element);
  auto* copy = static_cast<unsigned char*>(copy_to);
  const auto in_blocks = [](const auto& visit) {
    return [&visit](Bytes stretch, int64_t bytes) { visit_blocks(stretch, bytes, visit); };
  };
  const auto gathering = [&](const auto& visit) {
    layout.gather(from, size, copy, in_blocks(visit));
  };
  if (copy == nullptr) return measured(element, count, digest, gathering, gathering, axes);
  const auto walk = [&](const auto& visit) { visit_blocks(copy, count * size, visit); };
  return measured(element, count, digest, gathering, walk, axes);
}

uint64_t digest_of(const void* data, int64_t bytes) {
  return kernels().hash(data, static_cast<size_t>(bytes)) >> 1;
}

const char* instruction_set() { return kernels().name; }

bool use_instruction_set(const char* name) {
  const Kernels* best = best_kernels();
  if (name == nullptr) {
    chosen = best;
    return true;
  }
  // Whoever has one set has those before it.
  const Kernels* const known[] = {
      &scalar_kernels,
#if defined(__x86_64__)
      &avx2_kernels, &avx512_kernels,
#endif
  };
  for (const Kernels* kernels : known) {
    if (std::strcmp(kernels->name, name) == 0) {
      chosen = kernels;
      return true;
    }
    if (kernels == best) return false;
  }
  return false;
}

}  // namespace clew
