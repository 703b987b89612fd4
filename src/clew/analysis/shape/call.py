"""What the rules work on: one call of an op, a part of a dimension, and the step a rule gives.

Input: shapes and constants of a call. Output: plain data; no rule lives here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

Shape: TypeAlias = tuple[int, ...]

# What can happen to a dimension on its way through an op.
CARRIED = "carried"  # it goes through as it is
PERMUTED = "permuted"  # it had another place
SPLIT = "split"  # it was a part of a larger dimension
MERGED = "merged"  # several dimensions became it
BROADCAST = "broadcast"  # it was 1, or not there
CONCATENATED = "concatenated"  # dimensions of several tensors were put together
SLICED = "sliced"  # it was longer
RESIZED = "resized"  # a kernel, a stride or padding changed its size
REPEATED = "repeated"  # it is several copies of a dimension
TAKEN = "taken"  # a weight, a table or an index has it, not the tensor that flows
REDUCED = "reduced"  # all its elements became one
CREATED = "created"  # its size was given to the op
COUNTED = "counted"  # its size depends on the data
ASSUMED = "assumed"  # the op has no rule; one input has the same size at the same place
UNKNOWN = "unknown"  # it cannot be told


@dataclass(frozen=True, slots=True)
class Part:
    """A dimension, or what a `view` could make one of: every `inner`-th index, `size` times.

    The part of a whole dimension has its size and an `inner` of 1. In a dimension of 64 that was
    merged from 4 × 16, the 4 is `Part(dim, 4, 16)` and the 16 `Part(dim, 16, 1)`.
    """

    dim: int
    size: int
    inner: int = 1

    def is_whole(self, shape: Shape) -> bool:
        """Return whether this is all of the dimension."""
        return self.size == shape[self.dim]


@dataclass(frozen=True, slots=True)
class Step:
    """How a dimension came through one op: a word, the same in words, and where it was before.

    `sources` are paths of tensors among the arguments, each with a part of a dimension; none if the
    dimension begins at this op, or if it cannot be told. `others` are tensors that have the same
    dimension, any of which could be the source.
    """

    how: str
    text: str = ""
    sources: tuple[tuple[str, Part], ...] = ()
    others: tuple[tuple[str, Part], ...] = ()


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call of an op: shapes of its tensors, other arguments, the shape of one result.

    `name` has no namespace, overload or trailing underscore. Paths are those of an event's
    arguments: `"0"`, `"1.2"`, `"dim"`. `path` is that of the result, `masks` those of boolean
    tensors.
    """

    name: str
    tensors: Mapping[str, Shape]
    constants: Mapping[str, Any]
    result: Shape
    path: str = ""
    overload: str = "default"
    masks: frozenset[str] = frozenset()

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return a constant by its position or its name; a list that holds tensors has none."""
        found = self.constants.get(str(position), self.constants.get(name, default))
        return default if found is None else found

    def ints(self, position: int, name: str) -> list[int] | None:
        """Return a list of integers, also if one integer stands for it; None if there is none."""
        found = self.get(position, name)
        if isinstance(found, int) and not isinstance(found, bool):
            return [found]
        if not isinstance(found, (list, tuple)):
            return None
        return [n for n in found if isinstance(n, int)]

    def shape(self, position: int, name: str = "") -> Shape | None:
        """Return the shape of a tensor by its position or its name, None if it is no tensor."""
        return self.tensors.get(str(position), self.tensors.get(name))

    def path_of(self, position: int, name: str = "") -> str:
        """Return the path under which a tensor was given."""
        return str(position) if str(position) in self.tensors else name

    def listed(self, position: int) -> list[str]:
        """Return the paths of the tensors in a list, in order."""
        return [path for path in self.tensors if path.startswith(f"{position}.")]


Rule: TypeAlias = Callable[[OpCall, Part], Step]

NOT_KNOWN = Step(UNKNOWN, "not known how")


def passed(
    call: OpCall, part: Part, path: str, dim: int, how: str = CARRIED, text: str = ""
) -> Step:
    """Step to a dimension of an argument; a part stays one while the size of its dimension does."""
    shape = call.tensors.get(path)
    if shape is None or not 0 <= dim < len(shape):
        return NOT_KNOWN
    if shape[dim] == call.result[part.dim]:
        return Step(how, text, ((path, Part(dim, part.size, part.inner)),))
    return Step(how, text, ((path, whole(shape, dim)),))


def passed_by_one(
    call: OpCall,
    part: Part,
    candidates: Sequence[tuple[str, int]],
    how: str = CARRIED,
    text: str = "",
) -> Step:
    """Step to the first of several arguments that share a dimension; the rest are `others`."""
    steps = [passed(call, part, path, dim, how, text) for path, dim in candidates]
    if not steps:
        return NOT_KNOWN
    others = tuple(source for step in steps[1:] for source in step.sources)
    return replace(steps[0], others=others)


def whole(shape: Shape, dim: int) -> Part:
    """Return all of a dimension as a part."""
    return Part(dim, shape[dim])


def normal(dim: int, rank: int) -> int:
    """Return a dimension counted from the beginning."""
    return dim + rank if dim < 0 else dim


def product(numbers: Sequence[int]) -> str:
    """Write a product: `4 × 16`."""
    return " × ".join(map(str, numbers))


def numel(shape: Sequence[int]) -> int:
    """Return how many elements a shape has."""
    return prod(shape)
