// Rows of plain numbers that grow at their end, as `std::vector` does: but to add one row is a few
// instructions at the place that adds it, and only to make room is a call.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace clew {

template <typename Row>
class Growing {
  static_assert(std::is_trivially_copyable_v<Row>);

 public:
  Growing() = default;
  Growing(Growing&& other) noexcept { swap(other); }
  Growing& operator=(Growing&& other) noexcept {
    swap(other);
    return *this;
  }
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;
  ~Growing() { std::free(rows_); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Row* data() { return rows_; }
  const Row* data() const { return rows_; }
  Row* begin() { return rows_; }
  Row* end() { return rows_ + size_; }
  const Row* begin() const { return rows_; }
  const Row* end() const { return rows_ + size_; }
  Row& operator[](size_t at) { return rows_[at]; }
  const Row& operator[](size_t at) const { return rows_[at]; }

  void push_back(const Row& row) {
    if (__builtin_expect(size_ == room_, 0)) return push_back_slowly(row);
    rows_[size_++] = row;
  }

  // Add the rows from one place to another, which are not of this object.
  void add(const Row* from, const Row* to) {
    auto count = static_cast<size_t>(to - from);
    if (count == 0) return;
    if (__builtin_expect(count > room_ - size_, 0)) make_room(size_ + count);
    std::memcpy(static_cast<void*>(rows_ + size_), from, count * sizeof(Row));
    size_ += count;
  }

  void reserve(size_t count) {
    if (count > room_) resize_room(count);
  }
  // Leave the first rows only.
  void cut(size_t count) { size_ = count; }
  void clear() { size_ = 0; }
  void swap(Growing& other) noexcept {
    std::swap(rows_, other.rows_);
    std::swap(size_, other.size_);
    std::swap(room_, other.room_);
  }

 private:
  __attribute__((noinline)) void push_back_slowly(Row row) {
    make_room(size_ + 1);
    rows_[size_++] = row;
  }
  __attribute__((noinline)) void make_room(size_t count) {
    resize_room(count < 2 * room_ ? 2 * room_ : count < 16 ? 16 : count);
  }
  void resize_room(size_t room) {
    void* moved = std::realloc(static_cast<void*>(rows_), room * sizeof(Row));
    if (moved == nullptr) throw std::bad_alloc();
    rows_ = static_cast<Row*>(moved);
    room_ = room;
  }

  Row* rows_ = nullptr;
  size_t size_ = 0, room_ = 0;
};

}  // namespace clew
