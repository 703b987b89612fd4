#include "values.h"

#include <algorithm>
#include <utility>

#include "hash.h"

namespace clew {

namespace {

using c10::DispatchKey;
namespace weak = c10::raw::weak_intrusive_ptr;

// Memory made or used last is looked at before every op, and of the rest a little each time: all of
// it when another phase of the program begins. Much is freed together, so around what is found to be
// freed the rest is looked at too, until so many neighbours are there.
constexpr size_t YOUNG = 16;
constexpr size_t OLD = 4;
constexpr int NEIGHBOURS = 4;
// In threads that take turns phases may change with every op: then all is looked at less often.
constexpr size_t PER_POLL = 16;
// Once so many bytes were freed, what is known of their tensors is dropped. What torch keeps for weak
// references lies between large blocks, which the allocator could not give to new tensors.
constexpr int64_t SWEPT_BYTES = 64 << 20;
// So many gaps may a list have besides an eighth as many as it has memory: each poll steps over some.
constexpr size_t GAPS = 8;
// So many tensors on some memory are dropped as it is freed; there are rarely more.
constexpr int MOST_DROPPED = 8;
constexpr uint32_t UNCOUNTED = 0xFFFFFFFFu;

uint32_t version_of(TensorImpl* tensor) {
  const auto& counter = tensor->version_counter();
  return counter.enabled() ? counter.current_version() : UNCOUNTED;
}

int64_t bytes_of(StorageImpl* storage) {
  auto bytes = storage->sym_nbytes().maybe_as_int();
  return bytes ? *bytes : -1;
}

// Bytes, as tensors on the same memory may have other dtypes.
Span span_of(TensorImpl* tensor) {
  constexpr int64_t all = int64_t{1} << 62;
  if (is_odd(tensor)) return {0, all, 0, 0, 0};
  int64_t last = 0, pitch = 0, inner = 0;
  auto sizes = tensor->sizes(), strides = tensor->strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return {};
    last += (sizes[i] - 1) * strides[i];
    if (sizes[i] > 1) pitch = std::max(pitch, strides[i]);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] != pitch) inner += (sizes[i] - 1) * strides[i];
  }
  auto size = static_cast<int64_t>(tensor->itemsize());
  int64_t offset = tensor->storage_offset();
  Span span{offset * size, (offset + last + 1) * size};
  if (pitch > 0 && offset % pitch + inner < pitch) {
    span.pitch = pitch * size;
    span.first = offset % pitch * size;
    span.last = span.first + (inner + 1) * size;
  }
  return span;
}

bool is_dead(c10::intrusive_ptr_target* target) { return weak::use_count(target) == 0; }

bool is_freed(const Watch& watch) { return watch.storage != nullptr && is_dead(watch.storage); }

}  // namespace

Memory* MemoryRoom::make() {
  constexpr size_t block = 32;
  if (free_.empty()) {
    blocks_.push_back(std::make_unique<Memory[]>(block));
    for (size_t at = block; at-- > 0;) free_.push_back(&blocks_.back()[at]);
  }
  Memory* made = free_.back();
  free_.pop_back();
  return made;
}

void MemoryRoom::give_back(Memory* memory) {
  *memory = Memory{};
  free_.push_back(memory);
}

void MemoryRoom::clear() {
  free_.clear();
  blocks_.clear();
}

void Watched::add(Memory* memory) {
  if (all.size() > count_ + count_ / 8 + GAPS) {
    size_t at = 0, from_turn = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i == turn) from_turn = at;
      if (all[i].memory == nullptr) continue;
      all[at] = all[i];
      all[at].memory->place = at;
      ++at;
    }
    turn = turn < all.size() ? from_turn : at;
    all.resize(at);
  }
  memory->list = this;
  memory->place = all.size();
  all.push_back({memory->storage, memory});
  ++count_;
}

void Watched::remove(Memory* memory) {
  all[memory->place] = {};
  memory->list = nullptr;
  --count_;
  // The youngest are freed first, mostly.
  while (!all.empty() && all.back().storage == nullptr) all.pop_back();
  turn = std::min(turn, all.size());
}

Known& Values::slot(TensorImpl* tensor) {
  size_t mask = slots_.size() - 1, at = mixed(tensor) & mask;
  while (slots_[at].tensor != nullptr && slots_[at].tensor != tensor) at = (at + 1) & mask;
  return slots_[at];
}

Known& Values::meet(Known& known, TensorImpl* tensor) {
  weak::incref(tensor);
  known = Known{};
  known.tensor = tensor;
  known.value = known.producer = known.meta = known.name = -1;
  if (++used_ * 2 <= slots_.size()) return known;
  rebuild();
  return slot(tensor);
}

Memory* Values::memory_of(TensorImpl* tensor, bool is_own) {
  StorageImpl* storage = storage_of(tensor);
  size_t mask = places_.size() - 1, at = mixed(storage) & mask;
  if (storage != nullptr) {
    while (places_[at].storage != nullptr && places_[at].storage != storage) at = (at + 1) & mask;
    if (places_[at].storage == storage) return places_[at].memory;
  }
  Memory* memory = room_.make();
  memories_.push_back(memory);
  memory->number = is_own ? own_number() : 2 * outside_++;
  if (storage == nullptr) return memory;
  weak::incref(storage);
  memory->storage = storage;
  memory->bytes = bytes_of(storage);
  places_[at] = {storage, memory};
  (is_own ? watched_ : strangers_).add(memory);
  if (++places_used_ * 2 > places_.size()) {
    std::vector<Place> old(places_.size() * 2);
    old.swap(places_);
    mask = places_.size() - 1;
    for (const Place& place : old) {
      if (place.storage == nullptr) continue;
      at = mixed(place.storage) & mask;
      while (places_[at].storage != nullptr) at = (at + 1) & mask;
      places_[at] = place;
    }
  }
  return memory;
}

void Values::place(Known& known, TensorImpl* tensor, bool is_own) {
  known.memory = memory_of(tensor, is_own);
  known.next = std::exchange(known.memory->tensors, tensor);
}

bool Values::is_current(const Known& known, TensorImpl* tensor) const {
  return known.memory->storage == storage_of(tensor) && known.writes == known.memory->writes &&
         known.grad == tensor->requires_grad() &&
         (!reads_versions_ || known.version == version_of(tensor));
}

bool Values::is_changed(const Known& known, TensorImpl* tensor) const {
  // A new version without a write that an event told of.
  return reads_versions_ && known.writes == known.memory->writes &&
         known.version != version_of(tensor);
}

bool Values::is_written(const Known& known, TensorImpl* tensor, int64_t& writer) const {
  const Memory& memory = *known.memory;
  if (known.writes == memory.writes) return false;
  Span span = span_of(tensor);
  for (uint32_t number = memory.writes; number > known.writes; --number) {
    if (memory.writes - number >= RECENT) {
      writer = memory.writer;
      return true;
    }
    const Write& write = (*memory.recent)[number % RECENT];
    if (write.span.overlaps(span)) {
      writer = write.event;
      return true;
    }
  }
  return false;
}

int64_t Values::used(TensorImpl* tensor, int64_t producer, int32_t odd_meta) {
  Known* known = &slot(tensor);
  if (known->tensor != nullptr) {
    note_use(known->memory);
    // Libraries of collectives count versions, or not, on threads of their own.
    bool is_done = known->is_pending && known->memory->storage == storage_of(tensor) &&
                   known->writes == known->memory->writes;
    known->is_pending = false;
    if (is_done || is_current(*known, tensor)) {
      if (!known->is_unwritten) return known->value;
      known->is_unwritten = false;
      gone.push_back(known->value);
      return add(*known, tensor, known->producer, odd_meta);
    }
    known->is_unwritten = false;
    bool is_moved = known->memory->storage != storage_of(tensor);
    if (is_moved) {
      place(*known, tensor, false);
      producer = known->memory->writer;
    } else if (!is_written(*known, tensor, producer) && !is_changed(*known, tensor)) {
      known->writes = known->memory->writes;  // to other elements
      known->version = version_of(tensor);
      if (known->grad == tensor->requires_grad()) return known->value;
      // Only `requires_grad` was set: the same elements, by the same producer.
      producer = known->producer;
    }
    gone.push_back(known->value);
    ask_name(*known, tensor);
    return add(*known, tensor, producer, odd_meta);
  }
  known = &meet(*known, tensor);
  place(*known, tensor, producer >= 0);
  note_use(known->memory);
  if (producer < 0) {
    // What autograd has saved comes back as another tensor, which Python has never seen.
    bool is_seen = tensor->pyobj_slot()->load_pyobj() != nullptr;
    if (!is_seen && take_same(*known, tensor)) return known->value;
    producer = known->memory->writer;
    if (is_seen) {
      known->name = first_name + static_cast<int32_t>(unnamed.size());
      unnamed.push_back(tensor);
    }
  }
  return add(*known, tensor, producer, odd_meta);
}

void Values::ask_name(Known& known, TensorImpl* tensor) {
  if (known.name >= 0 || !tensor->requires_grad()) return;
  if (tensor->pyobj_slot()->load_pyobj() == nullptr) return;
  at::Tensor borrowed = tensor_of(tensor);
  bool is_leaf = borrowed.is_leaf();
  borrowed.unsafeReleaseTensorImpl();
  if (!is_leaf) return;
  known.name = first_name + static_cast<int32_t>(unnamed.size());
  unnamed.push_back(tensor);
}

bool Values::take_same(Known& known, TensorImpl* tensor) {
  const Memory& memory = *known.memory;
  if (memory.storage == nullptr || memory.views[0].value < 0) return false;
  if (is_odd(tensor)) return false;
  int32_t meta = meta_of(tensor);
  const View* found = nullptr;
  for (const View& view : memory.views) {
    if (view.meta == meta && view.writes == memory.writes && view.grad == tensor->requires_grad() &&
        view.offset == tensor->storage_offset() && view.producer >= 0 &&
        (found == nullptr || view.value > found->value)) {
      found = &view;
    }
  }
  if (found == nullptr) return false;
  known.value = found->value;
  known.producer = found->producer;
  known.writes = memory.writes;
  known.version = version_of(tensor);
  known.grad = found->grad;
  known.meta = meta;
  return true;
}

int64_t Values::brought(TensorImpl* tensor, int32_t odd_meta) {
  Known* known = &slot(tensor);
  if (known->tensor == nullptr) return used(tensor, -1, odd_meta);
  known->is_unwritten = false;
  known->memory->writer = -1;
  gone.push_back(known->value);
  return add(*known, tensor, -1, odd_meta);
}

int64_t Values::made(TensorImpl* tensor, int64_t event, int32_t odd_meta, bool is_written) {
  Known* known = &slot(tensor);
  if (known->tensor != nullptr) {
    if (known->memory->storage == storage_of(tensor)) {
      // An argument that it returns; one that nobody is known to have made, it has made.
      if (known->producer >= 0 || !is_current(*known, tensor)) return used(tensor, event, odd_meta);
      return add(*known, tensor, event, odd_meta);
    }
    place(*known, tensor, true);  // the event has given it other memory
    gone.push_back(known->value);
  } else {
    known = &meet(*known, tensor);
    place(*known, tensor, true);
  }
  if (known->memory->writer < 0 && known->memory->number == own_number()) {
    known->memory->writer = event;
  }
  known->is_unwritten = !is_written && kept.level != Level::META;
  return add(*known, tensor, event, odd_meta);
}

int64_t Values::written(TensorImpl* tensor, int64_t event, int32_t odd_meta, bool is_later) {
  Known* known = &slot(tensor);
  if (known->tensor == nullptr) {
    known = &meet(*known, tensor);
    place(*known, tensor, false);
  } else {
    if (known->memory->storage != storage_of(tensor)) place(*known, tensor, true);
    gone.push_back(known->value);
  }
  ask_name(*known, tensor);
  known->is_unwritten = known->is_pending = is_later && kept.level != Level::META;
  Memory& memory = *known->memory;
  memory.writes += 1;
  memory.writer = event;
  if (memory.recent == nullptr) memory.recent = std::make_unique<std::array<Write, RECENT>>();
  (*memory.recent)[memory.writes % RECENT] = {span_of(tensor), event};
  return add(*known, tensor, event, odd_meta);
}

int64_t Values::add(Known& known, TensorImpl* tensor, int64_t producer, int32_t odd_meta) {
  uint32_t version = version_of(tensor);
  known.value = first + static_cast<int64_t>(rows.size());
  if (known.memory->first_value < 0) known.memory->first_value = known.value;
  known.producer = producer;
  known.writes = known.memory->writes;
  known.version = version;
  known.grad = tensor->requires_grad();
  known.meta = odd_meta != NOTHING ? odd_meta : meta_of(tensor);
  if (odd_meta == NOTHING) {
    Memory& memory = *known.memory;
    memory.views[memory.next_view++ & 3] = {known.value, producer, tensor->storage_offset(),
                                            known.meta, known.writes, known.grad};
  }
  rows.push_back({known.memory->number, producer, known.memory->bytes,
                  static_cast<int32_t>(version == UNCOUNTED ? known.writes : version), known.meta,
                  known.name, known.grad});
  if (kept.level != Level::META && !known.is_unwritten) {
    if (known.memory->measured == nullptr) known.memory->measured = std::make_unique<Measured>();
    bool is_read = odd_meta == NOTHING && kept.keep(tensor, known.value, known.writes, version,
                                                    *known.memory->measured);
    if (!is_read) unread.emplace_back(tensor, known.value);
  }
  return known.value;
}

int32_t Values::meta_of(TensorImpl* tensor) {
  uint64_t words[2 + 2 * 16];
  auto sizes = tensor->sizes(), strides = tensor->strides();
  size_t dims = sizes.size();
  std::vector<uint64_t> many;
  uint64_t* to = words;
  if (dims > 16) {
    many.resize(1 + 2 * dims);
    to = many.data();
  }
  auto device = tensor->device();
  to[0] = static_cast<uint64_t>(static_cast<uint8_t>(c10::typeMetaToScalarType(tensor->dtype()))) |
          static_cast<uint64_t>(static_cast<uint8_t>(device.type())) << 8 |
          static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 16 |
          static_cast<uint64_t>(dims) << 32;
  for (size_t i = 0; i < dims; ++i) {
    to[1 + i] = static_cast<uint64_t>(sizes[i]);
    to[1 + dims + i] = static_cast<uint64_t>(strides[i]);
  }
  return metas.number(to, 1 + 2 * dims);
}

void Values::forget(TensorImpl* tensor) {
  Known& known = slot(tensor);
  if (known.tensor == nullptr) return;
  gone.push_back(known.value);
  erase(known);
  drop(tensor);
}

void Values::erase(Known& known) {
  size_t mask = slots_.size() - 1, hole = static_cast<size_t>(&known - slots_.data());
  // An entry behind it that was moved on by it moves back.
  for (size_t at = (hole + 1) & mask; slots_[at].tensor != nullptr; at = (at + 1) & mask) {
    size_t own = mixed(slots_[at].tensor) & mask;
    if (((at - own) & mask) < ((at - hole) & mask)) continue;
    slots_[hole] = slots_[at];
    hole = at;
  }
  slots_[hole].tensor = nullptr;
  --used_;
}

void Values::drop_tensors(Memory* memory) {
  TensorImpl* tensor = std::exchange(memory->tensors, nullptr);
  if (writing > 0) return;
  for (int left = MOST_DROPPED; tensor != nullptr && left > 0; --left) {
    Known& known = slot(tensor);
    if (known.tensor == nullptr || known.memory != memory) return;
    TensorImpl* next = known.next;
    if (is_dead(tensor)) {
      gone.push_back(known.value);
      erase(known);
      drop(tensor);
    }
    tensor = next;
  }
}

void Values::drop(TensorImpl* tensor) {
  // Only wrappers still hold something once they are dead.
  if (C10_UNLIKELY(tensor->key_set().has_any(ODD))) {
    dropped.push_back(tensor);
  } else {
    weak::decref(tensor);
  }
}

bool Values::has_name(TensorImpl* tensor, int32_t name) {
  const Known& known = slot(tensor);
  return known.tensor == tensor && known.name == name && !is_dead(tensor);
}

bool Values::is_alive(TensorImpl* tensor) {
  return slot(tensor).tensor == tensor && !is_dead(tensor);
}

int Values::nonfinite(TensorImpl* tensor) {
  const Known& known = slot(tensor);
  if (known.tensor != tensor || !is_current(known, tensor) || known.memory->measured == nullptr) return -1;
  const Measured& last = *known.memory->measured;
  bool is_measured = last.begin == tensor->storage_offset() && last.count == tensor->numel() &&
                     last.writes == known.memory->writes &&
                     last.dtype == static_cast<int32_t>(c10::typeMetaToScalarType(tensor->dtype())) &&
                     tensor->is_non_overlapping_and_dense();
  return is_measured ? (last.found.nan > 0 ? 1 : 0) | (last.found.inf > 0 ? 2 : 0) : -1;
}

void Values::report(Memory* memory, int64_t event) {
  if (memory->first_value >= 0) freed.push_back({memory->first_value, event});
  freed_bytes_ += std::max<int64_t>(memory->bytes, 0);
  memory->list->remove(memory);
  drop_tensors(memory);
}

bool Values::look_at(Watch watch, int64_t event) {
  if (!is_freed(watch) || watch.memory->list == nullptr) return false;
  report(watch.memory, event);
  return true;
}

void Values::look_around(Watch watch, int64_t event) {
  Watched* watched = watch.memory->list;
  if (watched == nullptr) return;
  size_t place = watch.memory->place;
  report(watch.memory, event);
  int alive = 0;
  // What is freed at the end of the list is taken off it.
  for (size_t at = place; (at = std::min(at, watched->all.size())) > 0 && alive < NEIGHBOURS;) {
    Watch before = watched->all[--at];
    if (before.storage != nullptr) alive = look_at(before, event) ? 0 : alive + 1;
  }
  alive = 0;
  for (size_t at = place + 1; at < watched->all.size() && alive < NEIGHBOURS; ++at) {
    Watch after = watched->all[at];
    if (after.storage != nullptr) alive = look_at(after, event) ? 0 : alive + 1;
  }
}

void Values::look_at_all(Watched& watched, int64_t event) {
  for (size_t at = watched.all.size(); (at = std::min(at, watched.all.size())) > 0;) {
    look_at(watched.all[--at], event);
  }
}

void Values::look_at_some(Watched& watched, int64_t event) {
  for (size_t left = std::min(OLD, watched.count()); left > 0 && watched.count() > 0;) {
    if (watched.turn == 0) watched.turn = watched.all.size();
    Watch watch = watched.all[--watched.turn];
    if (watch.storage == nullptr) continue;
    if (C10_UNLIKELY(is_dead(watch.storage))) look_around(watch, event);
    --left;
  }
}

void Values::poll(int64_t event, int phase) {
  ++polls_;
  if (phase >= 0 && phase != last_phase_ && polls_ * PER_POLL >= watched_.count()) {
    last_phase_ = phase;
    polls_ = 0;
    look_at_all(watched_, event);
    look_at_all(strangers_, event);
  } else {
    for (Watch& watch : recent_) {
      if (C10_LIKELY(!is_freed(watch))) continue;
      look_around(watch, event);
      watch = {};
    }
    size_t alive = 0;
    for (size_t at = watched_.all.size(); at > 0 && alive < YOUNG;) {
      Watch watch = watched_.all[--at];
      if (watch.storage == nullptr) continue;
      if (C10_LIKELY(!is_dead(watch.storage))) {
        ++alive;
        continue;
      }
      look_around(watch, event);
      at = std::min(at, watched_.all.size());  // what is freed at the end is taken off
    }
    look_at_some(watched_, event);
    look_at_some(strangers_, event);
  }
  if (C10_UNLIKELY(freed_bytes_ > SWEPT_BYTES)) sweep(event);
}

void Values::rebuild() {
  size_t live = 0;
  for (const Known& known : slots_) live += known.tensor != nullptr && !is_dead(known.tensor);
  size_t size = FEWEST;
  while (size < live * 4) size *= 2;
  std::vector<Known> old(size);
  old.swap(slots_);
  used_ = 0;
  for (const Known& known : old) {
    if (known.tensor == nullptr) continue;
    if (is_dead(known.tensor)) {
      gone.push_back(known.value);
      drop(known.tensor);
    } else {
      slot(known.tensor) = known;
      ++used_;
    }
  }
}

void Values::sweep(int64_t event) {
  freed_bytes_ = 0;
  rebuild();
  // Memory without storage belongs to one tensor; the rest is dropped once it is freed.
  std::vector<Memory*> used;
  for (const Known& known : slots_) {
    if (known.tensor != nullptr && known.memory->storage == nullptr) used.push_back(known.memory);
  }
  std::sort(used.begin(), used.end());
  std::vector<Memory*> kept;
  std::vector<Memory*> dropped;
  for (Memory* memory : memories_) {
    bool stays = memory->storage != nullptr
                     ? !is_dead(memory->storage)
                     : std::binary_search(used.begin(), used.end(), memory);
    if (stays) {
      kept.push_back(memory);
    } else {
      dropped.push_back(memory);
      if (memory->storage != nullptr) weak::decref(memory->storage);
      memory->storage = nullptr;
    }
  }
  memories_.swap(kept);
  // By what was dropped, not by what is freed: other threads free memory meanwhile.
  std::vector<Place> old(places_.size());
  old.swap(places_);
  places_used_ = 0;
  size_t mask = places_.size() - 1;
  for (const Place& place : old) {
    if (place.storage == nullptr || place.memory->storage == nullptr) continue;
    size_t at = mixed(place.storage) & mask;
    while (places_[at].storage != nullptr) at = (at + 1) & mask;
    places_[at] = place;
    ++places_used_;
  }
  std::sort(dropped.begin(), dropped.end());
  auto is_dropped = [&](Memory* one) {
    return std::binary_search(dropped.begin(), dropped.end(), one);
  };
  // Freed memory that no poll has met yet.
  for (Memory* memory : dropped) {
    if (memory->list != nullptr) report(memory, event);
  }
  freed_bytes_ = 0;
  recent_.fill({});
  // A tensor whose old memory is gone has other memory by now, and is met anew. It may be freed at
  // any time by another thread, so it is not looked at here.
  std::vector<TensorImpl*> moved;
  for (const Known& known : slots_) {
    if (known.tensor != nullptr && is_dropped(known.memory)) moved.push_back(known.tensor);
  }
  for (TensorImpl* tensor : moved) forget(tensor);
  for (Memory* memory : dropped) room_.give_back(memory);
}

void Values::finish() {
  ++writing;  // all of them are dropped at once
  look_at_all(watched_, -1);
  look_at_all(strangers_, -1);
  for (const Known& known : slots_) {
    if (known.tensor != nullptr && is_dead(known.tensor)) gone.push_back(known.value);
  }
  freed_bytes_ = 0;
  --writing;
  release();
}

void Values::release() {
  if (used_ == 0 && memories_.empty()) return;
  for (Known& known : slots_) {
    if (known.tensor != nullptr) drop(known.tensor);
    known.tensor = nullptr;
  }
  if (slots_.size() > FEWEST) slots_ = std::vector<Known>(FEWEST);
  for (const Memory* memory : memories_) {
    if (memory->storage != nullptr) weak::decref(memory->storage);
  }
  places_.assign(256, Place{});
  memories_.clear();
  room_.clear();
  watched_ = Watched{};
  strangers_ = Watched{};
  recent_.fill({});
  unnamed.clear();
  used_ = places_used_ = 0;
}

}  // namespace clew
