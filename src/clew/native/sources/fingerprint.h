// Fingerprints: sums that equal tensors share in any layout, in the packed form that
// `clew.events.fingerprint` reads: the number of axes, their sizes, the sums of x, |x|, x² and |x|³,
// then the sums along each of the last eight axes. Numbers that are not finite add nothing.
//
// Comes in: elements in row-major order, block by block. Goes out: doubles. Knows neither torch nor
// Python.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "statistics_kernels.h"

namespace clew {

constexpr int MOST_AXES = 8, MOST_BINS = 32;

// Adds up the elements of one tensor.
class AxisSums {
 public:
  // `order` says which axis of the tensor each axis of the elements as they come is.
  AxisSums(Element element, int dims, const int64_t* sizes, const int* order = nullptr);

  // Add the elements that come next.
  void add(const unsigned char* block, int64_t bytes);

  // Append the packed fingerprint; return how many numbers that is.
  int64_t pack(std::vector<double>& into);

 private:
  // One axis: its size, how its indices become bins, where its sums are (nullptr for nowhere), and
  // the index that is read.
  struct Axis {
    int64_t size = 1, index = 0;
    int shift = 0, place = 0;
    double* bins = nullptr;
  };
  // The most numbers of a row.
  static constexpr int64_t ROW = 1024;

  void end_row();
  void fold();
  void begin_row();

  const Kernels& kernels_;
  const Loops& loops_;
  const int64_t number_;  // bytes of a number
  std::vector<Axis> axes_;
  // Rows are of the axes from `inner_` on, and of `step_` indices of the axis before these, which
  // all have one bin. What is added up for each place in a row makes the sums of the inner axes.
  size_t inner_ = 0;
  int64_t inside_ = 1, step_ = 1, length_ = 0, filled_ = 0;
  double row_ = 0, total_ = 0;
  PowerLanes powers_;
  std::unique_ptr<double[]> columns_;
  double bins_[MOST_AXES * MOST_BINS] = {};
};

// Append the fingerprint of a strided tensor, with strides in elements; return its length.
int64_t fingerprint_strided(const void* data, Element element, int dims, const int64_t* sizes,
                            const int64_t* strides, std::vector<double>& into);

// The fingerprint of a view, which those with the same axes in another order share.
struct MarkedView {
  std::vector<int64_t> sizes, strides;
  std::vector<double> packed;
};

// Append the fingerprint of a tensor that has the axes of another view of the same elements, in any
// order; return its length, 0 if it has other axes.
int64_t reordered(const MarkedView& known, int dims, const int64_t* sizes, const int64_t* strides,
                  std::vector<double>& into);

}  // namespace clew
