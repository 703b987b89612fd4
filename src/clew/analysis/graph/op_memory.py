"""What an op does to memory, judged by its name, inputs and outputs."""

from __future__ import annotations

from clew.events.columns import IN, OUT
from clew.events.op_names import bare_op
from clew.run.run import Run

# Ops that only copy what they were given.
_COPIES = frozenset(
    {"clone", "_to_copy", "copy", "lift_fresh", "lift", "contiguous", "_unsafe_view"}
)
_SEED = "ones_like"


def writes(name: str) -> bool:
    """Return whether an op of this name changes one of its arguments.

    >>> writes("aten.relu_.default"), writes("aten.add.out"), writes("aten.__and__.Tensor")
    (True, True, False)
    """
    bare = bare_op(name)
    in_place = bare.endswith("_") and not bare.endswith("__")
    return in_place or name.rpartition(".")[2].endswith("out")


def storages(run: Run, row: int, role: str) -> set[int]:
    """Return the memory of the tensors an event took or returned."""
    storage = run.columns.storage
    return {int(storage[v]) for leaf, v in run.leaf_values(row) if leaf.role == role}


def is_empty(run: Run, value: int) -> bool:
    """Return whether a tensor has no elements, such as a cache before it is filled."""
    return 0 in (run.columns.metas[int(run.columns.meta[value])].shape or ())


def is_minor(run: Run, row: int) -> bool:
    """Return whether an op only makes a view, or copies, or has no element to work on."""
    name = run.name(row)
    if bare_op(name) in _COPIES or _is_idle(run, row):
        return True
    made = storages(run, row, OUT)
    return bool(made) and not writes(name) and made <= storages(run, row, IN)


def _is_idle(run: Run, row: int) -> bool:
    """Return whether all tensors that an op takes and returns are empty."""
    values = run.leaf_values(row)
    return any(leaf.role == OUT for leaf, _ in values) and all(is_empty(run, v) for _, v in values)


def starts_backward(run: Run, row: int) -> bool:
    """Return whether an op may be the one with which `loss.backward()` begins."""
    return bare_op(run.name(row)) == _SEED
