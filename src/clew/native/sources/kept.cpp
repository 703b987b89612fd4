#include "kept.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <new>

#include "rows.h"

namespace clew {

int64_t now();

std::mutex blocks_lock;

namespace {

constexpr int64_t STEP = 64 << 10;
constexpr int64_t MOST_IDLE = 64 << 20;
// The system gives memory by pages of 4 KB and clears each, which takes longer than the copy; of
// large pages, where it has them, one for each so many bytes.
constexpr size_t LARGE_PAGE = 2 << 20;
// As in `clew.analysis.half_range`.
constexpr double NEAR_OVERFLOW = 65504.0 / 2;

std::multimap<int64_t, Block> idle;
int64_t idle_bytes = 0;

const c10::DispatchKeySet TRANSFORMED({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                       c10::DispatchKey::ZeroTensor});

bool has_memory(c10::TensorImpl* tensor) {
  const auto& storage = tensor->unsafe_storage();
  int64_t last = tensor->storage_offset();
  for (int64_t i = 0; i < tensor->dim(); ++i) {
    last += (tensor->sizes()[i] - 1) * tensor->strides()[i];
  }
  auto needed = static_cast<size_t>(last + 1) * tensor->itemsize();
  return storage.data() != nullptr && storage.nbytes() >= needed;
}

std::unique_ptr<char, Free> allocated(size_t size) {
  void* memory = nullptr;
  if (size < 2 * LARGE_PAGE) {
    memory = std::malloc(size);
  } else if (posix_memalign(&memory, LARGE_PAGE, size) == 0) {
    madvise(memory, size, MADV_HUGEPAGE);  // a wish: it may be refused
  }
  if (memory == nullptr) throw std::bad_alloc();
  return std::unique_ptr<char, Free>(static_cast<char*>(memory));
}

KeptRow row_of(int64_t value, const Statistics& found) {
  uint64_t has = (found.has_moments ? 1u : 0u) | (found.has_ends ? 2u : 0u) | (found.has_digest ? 4u : 0u);
  return {value, -1, found.min, found.max, found.mean, found.std, found.norm, found.lowest,
          found.highest, found.count, found.nan, found.inf, found.zeros, found.digest, has, 0, 0};
}

void remember_mark(const c10::TensorImpl* tensor, const KeptRow& row, const std::vector<double>& marks,
                   Measured& measured) {
  auto first = marks.begin() + row.mark;
  measured.marked = std::make_shared<MarkedView>(MarkedView{
      tensor->sizes().vec(), tensor->strides().vec(), {first, first + row.marks}});
}

}  // namespace

Block take_block(int64_t size) {
  int64_t room = size <= STEP ? size : (size + STEP - 1) / STEP * STEP;
  if (room > STEP) {
    std::lock_guard<std::mutex> guard(blocks_lock);
    auto found = idle.find(room);
    if (found != idle.end()) {
      Block block = std::move(found->second);
      idle.erase(found);
      idle_bytes -= room;
      block.size = size;
      return block;
    }
  }
  return {allocated(static_cast<size_t>(std::max<int64_t>(room, 1))), room, size};
}

void give_back(Block block) {
  if (block.room <= STEP) return;
  std::lock_guard<std::mutex> guard(blocks_lock);
  if (idle_bytes + block.room > MOST_IDLE) return;
  idle_bytes += block.room;
  idle.emplace(block.room, std::move(block));
}

bool element_of(c10::ScalarType dtype, Element& element) {
  switch (dtype) {
    case at::kFloat: element = Element::F32; return true;
    case at::kDouble: element = Element::F64; return true;
    case at::kBFloat16: element = Element::BF16; return true;
    case at::kHalf: element = Element::F16; return true;
    case at::kChar: element = Element::I8; return true;
    case at::kShort: element = Element::I16; return true;
    case at::kInt: element = Element::I32; return true;
    case at::kLong: element = Element::I64; return true;
    case at::kByte: element = Element::U8; return true;
    case at::kUInt16: element = Element::U16; return true;
    case at::kUInt32: element = Element::U32; return true;
    case at::kUInt64: element = Element::U64; return true;
    case at::kBool: element = Element::BOOL; return true;
    case at::kComplexHalf: element = Element::C32; return true;
    case at::kComplexFloat: element = Element::C64; return true;
    case at::kComplexDouble: element = Element::C128; return true;
    default: return false;
  }
}

bool Kept::has_room(int64_t count, int64_t size) {
  ++values_;
  if (limits.elements >= 0 && count > limits.elements) {
    reached |= 2;
    return false;
  }
  if (limits.sample > 1 && values_ % limits.sample != 1) {
    reached |= 4;
    return false;
  }
  if (limits.bytes >= 0 && bytes_ - given_back + size > limits.bytes) {
    reached |= 1;
    return false;
  }
  bytes_ += size;
  pending += size;
  return true;
}

// Append the fingerprint of another view of elements that were measured.
void Kept::mark_view(const c10::TensorImpl* tensor, Element element, const void* data,
                     Measured& measured, KeptRow& row) {
  auto dims = static_cast<int>(tensor->dim());
  const int64_t *sizes = tensor->sizes().data(), *strides = tensor->strides().data();
  row.mark = static_cast<int64_t>(marks.size());
  if (measured.marked != nullptr) row.marks = reordered(*measured.marked, dims, sizes, strides, marks);
  if (row.marks > 0) return;
  row.marks = fingerprint_strided(data, element, dims, sizes, strides, marks);
  remember_mark(tensor, row, marks, measured);
}

bool Kept::keep(c10::TensorImpl* tensor, int64_t value, uint32_t writes, uint32_t version,
                Measured& measured) {
  if (limits.until >= 0 && now() > limits.until) {
    reached |= 8;
    return true;
  }
  Element element;
  auto dtype = c10::typeMetaToScalarType(tensor->dtype());
  if (!tensor->device().is_cpu() || tensor->key_set().has_any(TRANSFORMED) ||
      !element_of(dtype, element)) {
    return false;
  }
  int64_t count = tensor->numel();
  // FSDP and others give back the memory of tensors that still exist.
  if (count > 0 && !has_memory(tensor)) return false;
  const void* data = count == 0 ? nullptr : tensor->data();
  bool is_contiguous = tensor->is_contiguous();
  int64_t size = count * size_of(element);
  bool copies = level == Level::FULL && has_room(count, size);
  // Views of the same elements have the same statistics; in another order, no digest.
  bool is_known = measured.begin == tensor->storage_offset() && measured.count == count &&
                  measured.writes == writes && measured.version == version &&
                  measured.dtype == static_cast<int32_t>(dtype) &&
                  (is_contiguous || tensor->is_non_overlapping_and_dense());
  if (is_known && !copies && (measured.is_contiguous || !is_contiguous)) {
    KeptRow row = row_of(value, measured.found);
    if (row.nan + row.inf > 0) ++nonfinite;
    if (!is_contiguous) row.has &= ~uint64_t{4};
    if (level >= Level::FINGERPRINT) mark_view(tensor, element, data, measured, row);
    rows.push_back(row);
    return true;
  }
  Block block;
  if (copies) block = take_block(size);
  char* to = copies ? block.memory.get() : nullptr;
  auto dims = static_cast<int>(tensor->dim());
  std::unique_ptr<AxisSums> axes;
  // Of data that is kept the fingerprint can be computed later.
  if (level >= Level::FINGERPRINT && !copies) {
    axes = std::make_unique<AxisSums>(element, dims, tensor->sizes().data());
  }
  Statistics found = is_contiguous
                         ? measure(data, count, element, digests, to, axes.get())
                         : measure_strided(data, element, dims, tensor->sizes().data(),
                                           tensor->strides().data(), digests, to, axes.get());
  measured = {tensor->storage_offset(), count, writes, version, static_cast<int32_t>(dtype),
              is_contiguous, found, nullptr};
  KeptRow row = row_of(value, found);
  if (axes != nullptr) {
    row.mark = static_cast<int64_t>(marks.size());
    row.marks = axes->pack(marks);
    remember_mark(tensor, row, marks, measured);
  }
  if (row.nan + row.inf > 0) ++nonfinite;
  if (element == Element::F16 && std::max(-found.min, found.max) >= NEAR_OVERFLOW) ++near_overflow;
  if (copies) {
    row.data = static_cast<int64_t>(blocks.size());
    blocks.push_back(std::move(block));
  }
  rows.push_back(row);
  return true;
}

}  // namespace clew
