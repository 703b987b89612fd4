// The rules of floating-point arithmetic while statistics are computed.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace clew {

// Use the usual rules until the end of the scope. A program that flushes the smallest numbers to
// zero (torch.set_flush_denormal) would have them counted as zeros.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;
#if defined(__x86_64__)
  DefaultFloatingPoint() : before_(_mm_getcsr()) {
    if (is_changed()) _mm_setcsr(USUAL);
  }
  ~DefaultFloatingPoint() {
    if (is_changed()) _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned USUAL = 0x1f80, FLAGS = 0x3f;
  bool is_changed() const { return (before_ & ~FLAGS) != USUAL; }
  const unsigned before_;
#else
  DefaultFloatingPoint() {}
  ~DefaultFloatingPoint() {}
#endif
};

}  // namespace clew
