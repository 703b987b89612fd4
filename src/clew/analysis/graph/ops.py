"""What an op does to memory, from its name and the tensors it took and gave."""

from __future__ import annotations

from clew.events.columns import IN, OUT
from clew.store.reader import Reader

# Ops that only hand on what they were given, in memory of its own.
_COPIES = frozenset(
    {"clone", "_to_copy", "copy", "lift_fresh", "lift", "contiguous", "_unsafe_view"}
)
_SEED = "ones_like"


def bare_name(name: str) -> str:
    """An op without namespace and overload.

    >>> bare_name("aten.add_.Tensor"), bare_name("compiled")
    ('add_', 'compiled')
    """
    parts = name.split(".")
    return parts[1] if len(parts) > 2 else name


def writes(name: str) -> bool:
    """Whether an op of this name changes one of its arguments.

    >>> writes("aten.relu_.default"), writes("aten.add.out"), writes("aten.__and__.Tensor")
    (True, True, False)
    """
    bare = bare_name(name)
    in_place = bare.endswith("_") and not bare.endswith("__")
    return in_place or name.rpartition(".")[2].endswith("out")


def storages(reader: Reader, row: int, role: str) -> set[int]:
    """The memory of the tensors an event took or gave."""
    storage = reader.columns.storage
    return {int(storage[v]) for leaf, v in reader.leaf_values(row) if leaf.role == role}


def is_minor(reader: Reader, row: int) -> bool:
    """Whether an op only looks at memory in another way, or copies it."""
    name = reader.name(row)
    if bare_name(name) in _COPIES:
        return True
    made = storages(reader, row, OUT)
    return bool(made) and not writes(name) and made <= storages(reader, row, IN)


def starts_backward(reader: Reader, row: int) -> bool:
    """Whether an op may be the one with which `loss.backward()` begins."""
    return bare_name(reader.name(row)) == _SEED
