// Elements of a strided tensor in row-major order, from wherever they are in memory.
//
// Comes in: sizes and strides. Goes out: stretches of memory, one after the other; elements that do
// not follow each other are gathered into a small buffer, or into the copy that somebody wants.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

namespace clew {

class Layout {
 public:
  // With `any_order`, the elements may come in the order of the memory.
  Layout(int dims, const int64_t* sizes, const int64_t* strides, bool any_order) {
    for (int i = 0; i < dims; ++i) count_ *= sizes[i];
    if (count_ == 0) return;
    Dim found[MOST];
    int used = 0;
    // Fewer than 64 dimensions have more than one index: their product is a 64-bit number.
    for (int i = 0; i < dims && used < MOST; ++i) {
      if (sizes[i] != 1) found[used++] = {sizes[i], strides[i]};
    }
    if (any_order) sort_by_stride(found, used);
    for (int i = 0; i < used; ++i) {
      Dim* outer = dims_ > 0 ? &dim_[dims_ - 1] : nullptr;
      if (outer != nullptr && outer->stride == found[i].size * found[i].stride) {
        *outer = {outer->size * found[i].size, found[i].stride};
      } else {
        dim_[dims_++] = found[i];
      }
    }
  }

  int64_t count() const { return count_; }
  bool is_contiguous() const {
    return count_ == 0 || dims_ == 0 || (dims_ == 1 && dim_[0].stride == 1);
  }

  // Call `visit(memory, bytes)` with the elements, `size` bytes each, in order. With `copy`, put
  // them there; else each stretch is valid only during the call.
  template <class Visit>
  void gather(const unsigned char* from, int64_t size, unsigned char* copy,
              const Visit& visit) const {
    switch (size) {
      case 1: return gather_of<uint8_t>(from, copy, visit);
      case 2: return gather_of<uint16_t>(from, copy, visit);
      case 4: return gather_of<uint32_t>(from, copy, visit);
      case 8: return gather_of<uint64_t>(from, copy, visit);
      default: return gather_of<Sixteen>(from, copy, visit);
    }
  }

 private:
  struct Dim {
    int64_t size, stride;
  };
  struct Sixteen {
    uint64_t parts[2];
  };
  static constexpr int MOST = 64;
  // Bytes of the buffer. Little is gathered on the stack.
  static constexpr int64_t SMALL = 4 << 10, USUAL = 64 << 10, LARGEST = 512 << 10;
  // Bytes of a line of the cache, and the side of the squares in which a matrix is transposed.
  static constexpr int64_t LINE = 64, SQUARE = 8;
  // Bytes in a row that are worth being read where they are.
  static constexpr int64_t LONG = 512;

  // Put the largest stride first and keep the order of equal ones.
  static void sort_by_stride(Dim* dims, int count) {
    for (int i = 1; i < count; ++i) {
      for (int k = i; k > 0 && dims[k - 1].stride < dims[k].stride; --k) {
        std::swap(dims[k - 1], dims[k]);
      }
    }
  }

  template <class T, class Visit>
  void gather_of(const unsigned char* memory, unsigned char* copy, const Visit& visit) const {
    const auto* from = reinterpret_cast<const T*>(memory);
    const Dim row = dim_[dims_ - 1];
    if (copy == nullptr && row.stride == 1 && row.size * int64_t{sizeof(T)} >= LONG) {
      each_place(dims_ - 1, [&](int64_t place) {
        visit(reinterpret_cast<const unsigned char*>(from + place), row.size * int64_t{sizeof(T)});
      });
      return;
    }
    const int64_t total = count_ * int64_t{sizeof(T)};
    alignas(64) unsigned char small[SMALL];
    std::unique_ptr<unsigned char[]> large;
    // As many rows of a transposed matrix as there are elements in a line of the cache.
    const int64_t wanted = total <= SMALL ? SMALL : std::clamp(row.size * LINE, USUAL, LARGEST);
    if (copy == nullptr && wanted > SMALL) large.reset(new unsigned char[wanted]);
    unsigned char* buffer = copy != nullptr ? copy : large != nullptr ? large.get() : small;
    const int64_t room = wanted / int64_t{sizeof(T)};

    int64_t filled = 0;
    auto* to = reinterpret_cast<T*>(buffer);
    const auto flush = [&] {
      visit(reinterpret_cast<const unsigned char*>(to), filled * int64_t{sizeof(T)});
      if (copy != nullptr) to += filled;
      filled = 0;
    };
    const Dim column = dims_ > 1 ? dim_[dims_ - 2] : Dim{1, 0};
    each_place(std::max(dims_ - 2, 0), [&](int64_t place) {
      // Whole rows if one fits into the buffer, as many as fit; else parts of one row.
      const int64_t wide = std::min(row.size, room);
      const int64_t high = std::max<int64_t>(1, room / row.size);
      for (int64_t r = 0; r < column.size; r += high) {
        const int64_t rows = std::min(high, column.size - r);
        for (int64_t c = 0; c < row.size; c += wide) {
          const int64_t columns = std::min(wide, row.size - c);
          if (filled + rows * columns > room) flush();
          const T* corner = from + place + r * column.stride + c * row.stride;
          copy_tile(corner, {rows, column.stride}, {columns, row.stride}, to + filled);
          filled += rows * columns;
        }
      }
    });
    if (filled > 0) flush();
  }

  // Memory of a program need not be aligned.
  template <class T>
  static void copy_one(const T* from, T* to) {
    std::memcpy(static_cast<void*>(to), static_cast<const void*>(from), sizeof(T));
  }

  // Copy rows × columns elements into consecutive memory.
  template <class T>
  static void copy_tile(const T* from, Dim rows, Dim columns, T* to) {
    if (columns.stride == 1) {
      for (int64_t r = 0; r < rows.size; ++r) {
        std::memcpy(static_cast<void*>(to + r * columns.size),
                    static_cast<const void*>(from + r * rows.stride),
                    static_cast<size_t>(columns.size) * sizeof(T));
      }
    } else if (rows.stride < columns.stride) {
      // In squares: few lines of the cache are in use at a time, and all of each.
      for (int64_t c = 0; c < columns.size; c += SQUARE) {
        for (int64_t r = 0; r < rows.size; r += SQUARE) {
          copy_rows(from + r * rows.stride + c * columns.stride,
                    {std::min(SQUARE, rows.size - r), rows.stride},
                    {std::min(SQUARE, columns.size - c), columns.stride},
                    to + r * columns.size + c, columns.size);
        }
      }
    } else {
      copy_rows(from, rows, columns, to, columns.size);
    }
  }

  template <class T>
  static void copy_rows(const T* from, Dim rows, Dim columns, T* to, int64_t to_stride) {
    for (int64_t r = 0; r < rows.size; ++r) {
      for (int64_t c = 0; c < columns.size; ++c) {
        copy_one(from + r * rows.stride + c * columns.stride, to + r * to_stride + c);
      }
    }
  }

  // Call `visit` with the place of every index of the first dimensions.
  template <class Visit>
  void each_place(int dims, const Visit& visit) const {
    int64_t index[MOST] = {};
    int64_t place = 0;
    for (;;) {
      visit(place);
      int i = dims - 1;
      for (; i >= 0; --i) {
        place += dim_[i].stride;
        if (++index[i] < dim_[i].size) break;
        place -= dim_[i].size * dim_[i].stride;
        index[i] = 0;
      }
      if (i < 0) return;
    }
  }

  int64_t count_ = 1;
  int dims_ = 0;
  Dim dim_[MOST];
};

}  // namespace clew
