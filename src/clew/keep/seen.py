"""Live values as a watch tells them: facts, statistics, and the value itself where it is short.

In come values and the statistics that were kept of them, out go `Seen`s. Objects are never asked
for their text, length or equality: only what Python itself stores is read. Must not import torch:
`keep.keeper` says how to read a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from clew.events.statistics import array_statistics
from clew.events.watched import ARRAY, OTHER, TENSOR, Seen
from clew.keep import nesting
from clew.keep.changes import Look, look

# Elements of an array that is shown by its values.
FEW = 12
_LONGEST = 60
_MOST_ITEMS = 64
# A layout, or a class, that goes without saying.
_USUAL = (None, "strided", "Tensor", "Parameter")

_small_tensor: list[Callable[[Any, int], Any]] = []
_tensor_numbers: list[Callable[[Any, bool], Any]] = []
# Takes all statistics of a value.
Whole: TypeAlias = Callable[[], dict[str, Any] | None]
# Is given a tensor, what takes all of its statistics if they are wanted, and whether a digest is.
Glance: TypeAlias = Callable[[Any, Whole | None, bool], Seen | None]
_glance: list[Glance] = [lambda tensor, whole, digest: None]


def learn(small_tensor: Callable[[Any, int], Any], numbers: Callable[[Any, bool], Any]) -> None:
    """Know how to read the elements of a small tensor, and the statistics of any."""
    _small_tensor[:] = [small_tensor]
    _tensor_numbers[:] = [numbers]


def learn_glance(glance: Glance) -> None:
    """Know a quicker way to the numbers of ordinary tensors."""
    _glance[:] = [glance]


def is_array(value: Any) -> bool:
    """Whether a value is a tensor or an array."""
    return isinstance(value, np.ndarray) or nesting.is_tensor(value)


def holds_arrays(value: Any, depth: int = 3) -> bool:
    """Whether a value is a tensor or array, or a container with one in it, not too deep."""
    if is_array(value):
        return True
    if depth and isinstance(value, dict):
        items: Any = list(dict.values(value))[:_MOST_ITEMS]
    elif depth and isinstance(value, list | tuple):
        base: Any = list if isinstance(value, list) else tuple
        items = base.__getitem__(value, slice(_MOST_ITEMS))
    else:
        return False
    return any(holds_arrays(item, depth - 1) for item in items)


def glance(value: Any, numbers: bool, digest: bool = False) -> Seen:
    """A tensor or array as it is now, its numbers only if asked: those a line of text shows."""
    found = _glance[0](value, None, digest) if numbers else None
    if found is not None:
        return found
    if not nesting.is_tensor(value):
        return see(value, look(value), array_statistics(value) if numbers else None)
    return _tensor(value, look(value), _tensor_numbers[0](value, digest) if numbers else None)


def tensor_numbers(tensor: Any) -> dict[str, Any] | None:
    """All statistics of a tensor as it is now, None if it has no elements to look at."""
    found: dict[str, Any] | None = _tensor_numbers[0](tensor, True)
    return found


def examine(tensor: Any, whole: Whole, now: Look) -> Seen:
    """A tensor with all of its statistics, those remembered of it if it is as it was."""
    return _glance[0](tensor, whole, True) or _tensor(tensor, now, whole())


def see(value: Any, now: Look, stats: dict[str, Any] | None = None) -> Seen:
    """A value that is no container as it is now; `now` is a fresh look at it."""
    if nesting.is_tensor(value):
        return _tensor(value, now, stats)
    if isinstance(value, np.ndarray):
        return _array(value, now, stats)
    text = _text(value)
    return Seen(OTHER, type(value).__name__, "", None, "", "", False, False, None, text, (), None,
                now.memory)  # fmt: skip


def see_items(value: Any, described: Any, now: Look) -> Seen:
    """A container as it is now; `described` is its nesting with a `Seen` for each leaf."""
    items = tuple(_flat(described, ""))
    # As Python's own types count, which a class of the user's may do otherwise.
    own: Any = next((cls for cls in (dict, list, tuple) if isinstance(value, cls)), None)
    length = len(described) if own is None else own.__len__(value)
    return Seen(OTHER, type(value).__name__, items=items, length=length, memory=now.memory)


def _flat(described: Any, path: str) -> Iterator[tuple[str, Seen]]:
    if isinstance(described, Seen):
        yield path, described
        return
    pairs = described.items() if isinstance(described, dict) else enumerate(described)
    for key, item in pairs:
        inside = f"{path}.{key}" if path else str(key)
        if isinstance(item, Seen | dict | list):
            yield from _flat(item, inside)
        else:  # nested too deep to be opened
            yield inside, Seen(OTHER, str(item))


def _tensor(value: Any, now: Look, stats: dict[str, Any] | None) -> Seen:
    shape, dtype, device, layout, *rest = now.facts
    # A plain tensor has its strides here, any other also what sets it apart.
    plain = all(isinstance(part, int) for part in layout)
    stride = layout if plain else layout[0]
    if not plain and str(layout[1]).startswith("sparse"):
        stride = None  # torch gives zeros
    return Seen(
        TENSOR,
        type(value).__name__,
        dtype=str(dtype).replace("torch.", ""),
        shape=tuple(shape),
        device=device,
        layout="" if plain else " ".join(str(p) for p in layout[1:3] if p not in _USUAL),
        strided=stride is not None and not _is_contiguous(shape, stride),
        grad=bool(rest and rest[0]),
        stats=stats,
        text=_small(lambda: _small_tensor[0](value, FEW), shape),
        memory=now.memory,
    )


def _array(value: Any, now: Look, stats: dict[str, Any] | None) -> Seen:
    shape = value.shape
    strides = tuple(s // value.itemsize for s in value.strides) if value.itemsize else ()
    return Seen(
        ARRAY,
        type(value).__name__,
        dtype=str(value.dtype),
        shape=shape,
        device="cpu",
        strided=bool(strides) and not _is_contiguous(shape, strides),
        stats=stats,
        text=None if value.dtype.hasobject else _small(np.ndarray.tolist, shape, value),
        memory=now.memory,
    )


def _is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in reversed(list(zip(shape, stride, strict=False))):
        if size > 1:
            if step != expected:
                return False
            expected *= size
    return True


def _small(read: Callable[..., Any], shape: tuple[int, ...], *args: Any) -> str | None:
    """The elements of an array that has few of them."""
    count = 1
    for size in shape:
        count *= size
    if not 0 < count <= FEW:
        return None
    try:
        elements = read(*args)
        return None if elements is None else _elements(elements)
    except Exception:  # a tensor without elements, a dtype Python has no numbers for
        return None


def _elements(elements: Any) -> str:
    if isinstance(elements, list):
        return "[" + " ".join(map(_elements, elements)) + "]"
    if isinstance(elements, float):
        return f"{elements:.4g}"
    return _clipped(repr(elements)) if type(elements) in nesting.CONSTANTS else str(elements)


def _text(value: Any) -> str | None:
    """A constant as Python writes it, a set by its constants; None for any other object."""
    cls = type(value)
    if isinstance(value, np.generic) and not isinstance(value, np.object_ | np.void):
        return _clipped(str(value.item()))
    if cls is int and value.bit_length() > 200:  # Python writes out only so many digits
        return f"an int of {value.bit_length()} bits"
    if cls in nesting.CONSTANTS:
        return _clipped(repr(value[:_LONGEST] if cls in (str, bytes) else value))
    if cls in (set, frozenset):
        items = [_text(item) for item in list(value)[:_MOST_ITEMS]]
        if len(value) <= _MOST_ITEMS and all(item is not None for item in items):
            return _clipped("{" + ", ".join(sorted(map(str, items))) + "}")
        return f"{cls.__name__} of {len(value)}"
    return None


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


# What differs

# In the order in which they are told.
MARKS = (
    "new", "type", "shape", "dtype", "device", "layout", "requires_grad", "NaN", "Inf", "range",
    "values", "items", "in place",
)  # fmt: skip


def differences(before: Seen | None, after: Seen) -> tuple[str, ...]:
    """What has changed between two looks at a variable, the most telling first."""
    if before is None:
        return ("new",)
    found: set[str] = set()
    if (before.kind, before.cls) != (after.kind, after.cls):
        found.add("type")
    for name in ("shape", "dtype", "device"):
        if getattr(before, name) != getattr(after, name):
            found.add(name)
    if (before.strided, before.layout) != (after.strided, after.layout):
        found.add("layout")
    if before.grad != after.grad:
        found.add("requires_grad")
    found |= _in_numbers(before, after)
    if before.items != after.items and not found - {"type"}:
        found.add("items")
    elif before.text != after.text and not found:
        found.add("values")
    if _is_written(before, after) and found - {"requires_grad"}:
        found.add("in place")
    return tuple(mark for mark in MARKS if mark in found)


def _in_numbers(before: Seen, after: Seen) -> set[str]:
    old, new = before.stats or {}, after.stats or {}
    found = set()
    if new.get("nan", 0) and not old.get("nan", 0):
        found.add("NaN")
    if new.get("inf", 0) and not old.get("inf", 0):
        found.add("Inf")
    if old and new:
        if not all(_equal(old.get(name), new.get(name)) for name in ("min", "max")):
            found.add("range")
        elif old.get("digest") != new.get("digest") or old.get("nan") != new.get("nan"):
            found.add("values")
    return found


def _equal(one: Any, other: Any) -> bool:
    """Equality in which NaN is itself."""
    return bool(one == other or (one != one and other != other))


def _is_written(before: Seen, after: Seen) -> bool:
    """Whether it is the same object, written to."""
    if before.kind == OTHER or before.kind != after.kind:
        return bool(before.items) and before.memory == after.memory
    if before.kind == TENSOR:
        return bool(before.memory and after.memory and before.memory[0] == after.memory[0])
    return bool(before.memory == after.memory)
