#include "fingerprint.h"

#include <algorithm>
#include <numeric>

#include "floating_point.h"
#include "strided.h"

namespace clew {
namespace {

using Bytes = const unsigned char*;

bool is_complex(Element element) {
  return element == Element::C32 || element == Element::C64 || element == Element::C128;
}

// Return by how many bits an index is shifted to get its bin: the fewest that give at most 32 bins.
int shift_of(int64_t size) {
  int shift = 0;
  while ((size + (int64_t{1} << shift) - 1) >> shift > MOST_BINS) ++shift;
  return shift;
}

int64_t bins_of(int64_t size) {
  const int shift = shift_of(size);
  return (size + (int64_t{1} << shift) - 1) >> shift;
}

}  // namespace

AxisSums::AxisSums(Element element, int dims, const int64_t* sizes, const int* order)
    : kernels_(kernels()),
      loops_(kernels_.loops[static_cast<int>(element)]),
      number_(size_of(element) / (is_complex(element) ? 2 : 1)) {
  const int all = dims + (is_complex(element) ? 1 : 0);
  axes_.resize(static_cast<size_t>(all));
  for (int i = 0; i < all; ++i) {
    Axis& axis = axes_[static_cast<size_t>(i)];
    axis.size = i < dims ? sizes[i] : 2;
    axis.shift = shift_of(axis.size);
    axis.place = i < dims && order != nullptr ? order[i] : i;
    const int slot = axis.place - std::max(all - MOST_AXES, 0);
    if (slot >= 0) axis.bins = bins_ + slot * MOST_BINS;
  }
  inner_ = axes_.size();
  while (inner_ > 0 && inside_ * axes_[inner_ - 1].size <= ROW) inside_ *= axes_[--inner_].size;
  if (inner_ > 0) {
    const int64_t block = int64_t{1} << axes_[inner_ - 1].shift;
    while (step_ * 2 <= block && step_ * 2 * inside_ <= ROW) step_ *= 2;
  }
  if (inside_ > 1) columns_.reset(new double[static_cast<size_t>(step_ * inside_)]());
  begin_row();
}

void AxisSums::begin_row() {
  int64_t indices = 1;
  if (inner_ > 0) indices = std::min(step_, axes_[inner_ - 1].size - axes_[inner_ - 1].index);
  length_ = indices * inside_;
  filled_ = 0;
  row_ = 0;
}

void AxisSums::add(Bytes block, int64_t bytes) {
  int64_t left = bytes / number_;
  while (left > 0) {
    const int64_t taken = std::min(length_ - filled_, left);
    row_ += columns_ == nullptr ? loops_.powers(block, taken, powers_)
                                : loops_.column_powers(block, taken, columns_.get() + filled_, powers_);
    block += taken * number_;
    left -= taken;
    filled_ += taken;
    if (filled_ == length_) end_row();
  }
}

void AxisSums::end_row() {
  total_ += row_;
  int64_t step = step_;
  for (size_t i = 0; i < inner_; ++i) {
    Axis& axis = axes_[i];
    if (axis.bins != nullptr) axis.bins[axis.index >> axis.shift] += row_;
  }
  for (size_t i = inner_; i-- > 0;) {
    Axis& axis = axes_[i];
    axis.index += step;
    if (axis.index < axis.size) break;
    axis.index = 0;
    step = 1;
  }
  begin_row();
}

// Make the sums along the inner axes of what was added up for each place in a row.
void AxisSums::fold() {
  if (columns_ == nullptr) {
    for (size_t i = inner_; i < axes_.size(); ++i) {  // of size 1, each
      if (axes_[i].bins != nullptr) axes_[i].bins[0] = total_;
    }
    return;
  }
  double* line = columns_.get();
  int64_t count = step_ * inside_;
  for (size_t i = axes_.size(); i-- > inner_;) {
    const Axis& axis = axes_[i];
    for (int64_t row = 0; row * axis.size < count; ++row) {
      double sum = 0;
      for (int64_t at = 0; at < axis.size; ++at) {
        const double x = line[row * axis.size + at];
        if (axis.bins != nullptr) axis.bins[at >> axis.shift] += x;
        sum += x;
      }
      line[row] = sum;
    }
    count /= axis.size;
  }
}

int64_t AxisSums::pack(std::vector<double>& into) {
  const size_t before = into.size(), dims = axes_.size();
  if (std::all_of(axes_.begin(), axes_.end(), [](const Axis& axis) { return axis.size > 0; })) fold();
  into.resize(before + 1 + dims);
  into[before] = static_cast<double>(dims);
  for (const Axis& axis : axes_) {
    into[before + 1 + static_cast<size_t>(axis.place)] = static_cast<double>(axis.size);
  }
  double absolute = 0, squares = 0, cubes = 0;
  for (int i = 0; i < PowerLanes::MOST; ++i) {
    absolute += powers_.absolute[i];
    squares += powers_.squares[i];
    cubes += powers_.cubes[i];
  }
  into.insert(into.end(), {total_, absolute, squares, cubes});
  const size_t first = dims > MOST_AXES ? dims - MOST_AXES : 0;
  for (size_t place = first; place < dims; ++place) {
    const double* bins = bins_ + (place - first) * MOST_BINS;
    into.insert(into.end(), bins, bins + bins_of(static_cast<int64_t>(into[before + 1 + place])));
  }
  return static_cast<int64_t>(into.size() - before);
}

int64_t fingerprint_strided(const void* data, Element element, int dims, const int64_t* sizes,
                            const int64_t* strides, std::vector<double>& into) {
  const auto* from = static_cast<Bytes>(data);
  const int64_t size = size_of(element);
  const DefaultFloatingPoint as_usual;
  // If the elements fill a stretch of memory, its order is read fastest.
  std::vector<int> order(static_cast<size_t>(dims));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return strides[a] > strides[b]; });
  std::vector<int64_t> sorted(order.size()), steps(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    sorted[i] = sizes[order[i]];
    steps[i] = strides[order[i]];
  }
  const auto in_blocks = [](AxisSums& sums) {
    return [&sums](Bytes stretch, int64_t bytes) {
      for (int64_t at = 0; at < bytes; at += BLOCK) sums.add(stretch + at, std::min(BLOCK, bytes - at));
    };
  };
  const Layout in_memory(dims, sorted.data(), steps.data(), false);
  if (in_memory.is_contiguous()) {
    AxisSums sums(element, dims, sorted.data(), order.data());
    in_blocks(sums)(from, in_memory.count() * size);
    return sums.pack(into);
  }
  AxisSums sums(element, dims, sizes);
  Layout(dims, sizes, strides, false).gather(from, size, nullptr, in_blocks(sums));
  return sums.pack(into);
}

int64_t reordered(const MarkedView& known, int dims, const int64_t* sizes, const int64_t* strides,
                  std::vector<double>& into) {
  // A complex tensor has an axis more, for the parts of its numbers, which stays the last.
  const auto all = static_cast<size_t>(known.packed[0]), old = known.sizes.size();
  const size_t extra = all - old, count = static_cast<size_t>(dims) + extra;
  if (all > MOST_AXES || count > MOST_AXES) return 0;
  int from[MOST_AXES];
  bool used[MOST_AXES] = {};
  for (int i = 0; i < dims; ++i) {
    from[i] = -1;
    if (sizes[i] == 1) continue;
    for (size_t k = 0; k < old && from[i] < 0; ++k) {
      if (used[k] || known.sizes[k] != sizes[i] || known.strides[k] != strides[i]) continue;
      used[k] = true;
      from[i] = static_cast<int>(k);
    }
    if (from[i] < 0) return 0;
  }
  for (size_t k = 0; k < old; ++k) {
    if (!used[k] && known.sizes[k] != 1) return 0;
  }
  const double *packed = known.packed.data(), *sums = packed + 1 + all;
  const double* starts[MOST_AXES];
  const double* bins = sums + 4;
  for (size_t k = 0; k < all; ++k) {
    starts[k] = bins;
    bins += bins_of(static_cast<int64_t>(packed[1 + k]));
  }
  if (extra != 0) from[dims] = static_cast<int>(all) - 1;
  const size_t before = into.size();
  into.push_back(static_cast<double>(count));
  into.insert(into.end(), sizes, sizes + dims);
  if (extra != 0) into.push_back(2);
  into.insert(into.end(), sums, sums + 4);
  for (size_t i = 0; i < count; ++i) {
    if (from[i] < 0) {
      into.push_back(sums[0]);
    } else {
      const int64_t size = static_cast<int64_t>(packed[1 + from[i]]);
      into.insert(into.end(), starts[from[i]], starts[from[i]] + bins_of(size));
    }
  }
  return static_cast<int64_t>(into.size() - before);
}

}  // namespace clew
