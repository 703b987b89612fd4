// Number tensor versions: who is who, on which memory, made by which event.
//
// Comes in: tensors as ops and modules take and return them. Goes out: numbers of values, rows of
// their facts. Only weak references are held: they keep an address from being used again while the
// data of the tensor is freed as ever. The caller holds the recording's lock, under which no strong
// reference is made or dropped (`Recording::lock` says why).
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/PyObjectSlot.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "growing.h"
#include "intern.h"
#include "kept.h"
#include "rows.h"

namespace clew {

using c10::StorageImpl;
using c10::TensorImpl;

// A value on some memory: other tensors may show the same elements, as those saved for backward do.
struct View {
  int64_t value = -1, producer = -1, offset = 0;
  int32_t meta = -1;
  uint32_t writes = 0;
  bool grad = false;
};

// The bytes of some memory that a tensor lies on: from the first to behind the last, and of every
// `pitch` bytes only those from `first` to `last`, if there is a pitch.
struct Span {
  int64_t begin = 0, end = 0, pitch = 0, first = 0, last = 0;
  bool overlaps(const Span& other) const {
    if (begin >= other.end || other.begin >= end) return false;
    // Columns of one matrix, as `chunk` makes them, have no element in common.
    return pitch == 0 || pitch != other.pitch || (first < other.last && other.first < last);
  }
};

// A write to some memory: to which elements, by which event.
struct Write {
  Span span;
  int64_t event = -1;
};

// So many writes to some memory are remembered.
constexpr uint32_t RECENT = 8;

// The memory of one or more tensors.
struct Memory {
  StorageImpl* storage = nullptr;  // weakly held; null for a tensor without storage
  int64_t number = 0;              // as in `ValueRow`
  int64_t first_value = -1;        // the first value on it
  class Watched* list = nullptr;   // null once it is known to be freed
  size_t place = 0;                // on that list
  int64_t writer = -1;             // the event that wrote to it last
  int64_t bytes = -1;
  uint32_t writes = 0;             // that events told of
  // The last of them, by their number; most memory is never written to again.
  std::unique_ptr<std::array<Write, RECENT>> recent;
  std::array<View, 4> views;       // the newest values on it
  uint8_t next_view = 0;
  std::unique_ptr<Measured> measured;  // null before anything was
  TensorImpl* tensors = nullptr;   // the last that came to lie on it; the others follow by `Known::next`
};

// Memory with the storage that tells whether it was freed, so that one need not look at the memory
// itself; nothing in both where there was one.
struct Watch {
  StorageImpl* storage = nullptr;
  Memory* memory = nullptr;
};

// Memory that is not known to be freed, in the order in which it was met. What is removed leaves a
// gap, so that places hold until the next is added.
class Watched {
 public:
  void add(Memory* memory);
  void remove(Memory* memory);
  size_t count() const { return count_; }

  std::vector<Watch> all;
  size_t turn = 0;  // the places from here on were looked at in this round

 private:
  size_t count_ = 0;
};

// Makes memory some at a time, as much of it is met, and most of that soon gone.
class MemoryRoom {
 public:
  Memory* make();
  void give_back(Memory* memory);
  void clear();

 private:
  std::vector<std::unique_ptr<Memory[]>> blocks_;
  std::vector<Memory*> free_;
};

// A tensor, and the value it had when it was met last. Tables are made of zeros, and `meet` fills it in.
struct Known {
  TensorImpl* tensor;  // weakly held
  Memory* memory;
  TensorImpl* next;  // another on its memory, unless one of them has moved to other memory since
  int64_t value;
  int64_t producer;
  uint32_t writes;   // those to its memory when the value was made
  uint32_t version;  // torch's count, where it is read
  int32_t meta;
  int32_t name;
  bool grad;
  bool is_unwritten;
  bool is_pending;  // and the event that wrote to it still did when it had ended
};

// Return a tensor that owns the reference it is given.
inline at::Tensor tensor_of(TensorImpl* owned) {
  return at::Tensor(c10::intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>::reclaim(owned));
}

class Values {
 public:
  // `reads_versions`: notice writes by torch's count, where no op tells of them.
  explicit Values(bool reads_versions) : reads_versions_(reads_versions) {}
  ~Values() {
    release();
    for (TensorImpl* tensor : dropped) c10::raw::weak_intrusive_ptr::decref(tensor);
  }

  // Return the value of a tensor that is used; `producer` made it, if it is new. `odd_meta` is its
  // meta if it is not plain (`is_odd`), else -1.
  int64_t used(TensorImpl* tensor, int64_t producer, int32_t odd_meta);

  // Return the value of a tensor that has been filled by no event, on memory that an event made.
  int64_t brought(TensorImpl* tensor, int32_t odd_meta);

  // Return the value of a tensor that an event returns. Without `is_written`, its elements are
  // arbitrary until somebody writes them, perhaps without an event.
  int64_t made(TensorImpl* tensor, int64_t event, int32_t odd_meta, bool is_written);

  // Return the new value of a tensor that an event wrote to.
  int64_t written(TensorImpl* tensor, int64_t event, int32_t odd_meta, bool is_later = false);

  // Drop the reference to a tensor, as if it had never been met.
  void forget(TensorImpl* tensor);

  // Look for memory that has been freed before an event begins, in a phase of the program, -1 for the same.
  void poll(int64_t event, int phase);

  // Drop what is known of tensors that are gone; add to `gone` the values nobody can mention again.
  // Memory that is gone with them was freed before `event`, -1 for the next one.
  void sweep(int64_t event = -1);

  // Return whether a tensor that was `unnamed` is still there, under that name.
  bool has_name(TensorImpl* tensor, int32_t name);

  // Return whether a tensor that was met is still there.
  bool is_alive(TensorImpl* tensor);

  // Return whether a tensor was seen to hold NaN (1), Inf (2) or both (3); -1 if nobody knows.
  int nonfinite(TensorImpl* tensor);

  void release();

  // The same, with what `sweep` adds to `gone` and `freed`: no rows are written from here on.
  void finish();

  Kept kept;
  // Tensors with values to keep that only Python code can read; the caller takes them.
  std::vector<std::pair<TensorImpl*, int64_t>> unread;
  // Dead tensors that hold others, whose end may run Python code: `weak::decref` them without the lock.
  std::vector<TensorImpl*> dropped;
  Growing<ValueRow> rows;
  std::vector<FreedRow> freed;
  std::vector<int64_t> gone;
  int64_t first = 0;  // the number of the first of `rows`
  Interned metas;
  // How many ops run that write to tensors, which are looked up by their addresses when the ops end.
  int writing = 0;
  // Tensors that no recorded event made, and parameters, in the order of their `name`; each may be gone.
  std::vector<TensorImpl*> unnamed;
  int32_t first_name = 0;  // the number of the first of `unnamed`

 private:
  Known& slot(TensorImpl* tensor);
  Known& meet(Known& known, TensorImpl* tensor);
  Memory* memory_of(TensorImpl* tensor, bool is_own);
  // Find the memory that a tensor lies on.
  void place(Known& known, TensorImpl* tensor, bool is_own);
  // Drop what is known of the tensors that lay on freed memory: their room is used for the next ones.
  void drop_tensors(Memory* memory);
  void erase(Known& known);
  // List a tensor as `unnamed` if it is a parameter that the program has made while it was recorded.
  void ask_name(Known& known, TensorImpl* tensor);
  // Give a tensor that was not met before a value that shows the same elements, if there is one.
  bool take_same(Known& known, TensorImpl* tensor);
  // The number of memory that the next value is the first on.
  int64_t own_number() const { return 2 * (first + static_cast<int64_t>(rows.size())) + 1; }
  bool is_current(const Known& known, TensorImpl* tensor) const;
  bool is_changed(const Known& known, TensorImpl* tensor) const;
  // Return whether an element of a tensor was written to since its value was made, and by whom.
  bool is_written(const Known& known, TensorImpl* tensor, int64_t& writer) const;
  int64_t add(Known& known, TensorImpl* tensor, int64_t producer, int32_t odd_meta);
  void note_use(Memory* memory) { recent_[recent_turn_++ % recent_.size()] = {memory->storage, memory}; }
  int32_t meta_of(TensorImpl* tensor);
  // Report memory if it has been freed; return whether it was.
  bool look_at(Watch watch, int64_t event);
  // Report memory that has been freed, and its neighbours that have been too.
  void look_around(Watch watch, int64_t event);
  void look_at_all(Watched& watched, int64_t event);
  // Look at the next few, in turn.
  void look_at_some(Watched& watched, int64_t event);
  void report(Memory* memory, int64_t event);
  void rebuild();
  void drop(TensorImpl* tensor);

  bool reads_versions_;
  // Room for a forward of a small model.
  static constexpr size_t FEWEST = 512;
  std::vector<Known> slots_ = std::vector<Known>(FEWEST);
  size_t used_ = 0;
  // By the address of the storage.
  struct Place {
    StorageImpl* storage = nullptr;
    Memory* memory = nullptr;
  };
  std::vector<Place> places_ = std::vector<Place>(256);
  size_t places_used_ = 0;
  MemoryRoom room_;
  std::vector<Memory*> memories_;
  // Memory that ops made, and the other: parameters, which stay, and data.
  Watched watched_;
  Watched strangers_;
  // Memory that the last ops used: what backward lets go of is among it.
  std::array<Watch, 16> recent_{};
  size_t recent_turn_ = 0;
  int last_phase_ = -1;
  size_t polls_ = 0;  // since all memory was looked at
  int64_t freed_bytes_ = 0;  // since the last sweep
  int64_t outside_ = 0;
};

// The classes of Python whose tensors are plain: `Tensor` and `Parameter`.
inline void* plain_classes[2] = {nullptr, nullptr};

// Tensors with one of these keys only Python can read.
inline constexpr c10::DispatchKeySet ODD({
    c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::Functionalize, c10::DispatchKey::NestedTensor,
    c10::DispatchKey::Batched,
});

// Null for a tensor without storage.
inline StorageImpl* storage_of(TensorImpl* tensor) { return tensor->unsafe_storage().unsafeGetStorageImpl(); }

// Whether only Python can tell what a tensor looks like: subclasses, sparse, nested, transformed.
inline bool is_odd(TensorImpl* tensor) {
  if (tensor->key_set().has_any(ODD) || tensor->has_symbolic_sizes_strides() ||
      storage_of(tensor) == nullptr || tensor->layout() != at::kStrided) {
    return true;
  }
  PyObject* object = tensor->pyobj_slot()->load_pyobj();
  if (object == nullptr) return false;
  void* cls = Py_TYPE(object);
  return cls != plain_classes[0] && cls != plain_classes[1];
}

}  // namespace clew
