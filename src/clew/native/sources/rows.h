// What a recording writes: rows of plain numbers, in the layout that `clew.record.native_rows` reads.
#pragma once
#include <cstdint>

namespace clew {

// One event. `subject` is the number of its op, composite or not, or of its module's name; `refs` values of the list
// of references from `first_ref` on are its arguments, then its results.
struct EventRow {
  int64_t id, parent, start, end, number, first_ref;
  int32_t kind, subject, node, arguments, error, generator, draw, refs;
};
static_assert(sizeof(EventRow) == 80);

// One version of one tensor. `memory` is 2 × the number of the first value on it, plus 1, for
// memory that a recorded op made, else 2 × a number of its own.
struct ValueRow {
  int64_t memory, producer, bytes;
  int32_t version, meta, name, grad;
};
static_assert(sizeof(ValueRow) == 40);

// Memory that was found to be freed: the first value on it, and the op before which.
struct FreedRow {
  int64_t value, event;
};

// As in `clew.events.vocabulary`.
constexpr int32_t MODULE = 0, OP = 1, COMPOSITE = 9;
constexpr uint8_t BACKWARD = 1, RECOMPUTE = 2;

constexpr int32_t NOTHING = -1;
constexpr int64_t OPEN = -1;  // the end of a call that has not returned

}  // namespace clew
