"""What ops do to agreement between ranks, by their names: collectives, copies, overwriting."""

from __future__ import annotations

import re

_COLLECTIVE = re.compile(r"^(c10d|_c10d_functional|c10d_functional)\.")
# Collectives after which all ranks of a group hold the same.
_SAME_AFTER = re.compile(r"allreduce|all_reduce|allgather|all_gather|broadcast")
_WAITS = ("wait_tensor", "_wrap_tensor_autograd", "barrier", "monitored_barrier")
# Ops that give the numbers they took, perhaps in other shapes or another place.
_COPIES = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "as_strided",
        "slice",
        "split",
        "split_with_sizes",
        "split_with_sizes_copy",
        "chunk",
        "narrow",
        "select",
        "squeeze",
        "unsqueeze",
        "t",
        "transpose",
        "permute",
        "clone",
        "copy_",
        "_foreach_copy_",
        "detach",
        "alias",
        "cat",
        "stack",
        "expand",
        "contiguous",
        "_to_copy",
        "to",
        "wait_tensor",
        "_wrap_tensor_autograd",
        "lift_fresh",
        "unflatten_dense_tensors",
        "flatten_dense_tensors",
        "unbind",
        "flatten",
        "movedim",
        "_reshape_alias",
    ]
)
# Those of them whose result has memory of its own.
_NEW_COPIES = frozenset(
    [
        "clone",
        "copy_",
        "_foreach_copy_",
        "cat",
        "stack",
        "_to_copy",
        "contiguous",
        "split_with_sizes_copy",
    ]
)
_OVERWRITES = frozenset(
    [
        "copy_",
        "_foreach_copy_",
        "fill_",
        "zero_",
        "bernoulli_",
        "normal_",
        "uniform_",
        "random_",
        "exponential_",
        "split_with_sizes_copy",
        "set_",
        "resize_",
    ]
)
_UNWRITTEN = re.compile(r"^aten\.(new_)?empty|^aten\.(resize|set)_")


def bare(name: str) -> str:
    """Return an op's name without namespace and overload.

    >>> bare("aten.add_.Tensor")
    'add_'
    """
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else name


def is_collective(name: str) -> bool:
    """Return whether ranks exchange something in an op."""
    return bool(_COLLECTIVE.match(name)) and bare(name) not in _WAITS


def makes_equal(name: str) -> bool:
    """Return whether all ranks of a group hold the same after a collective."""
    return is_collective(name) and bool(_SAME_AFTER.search(name))


def is_copy(name: str) -> bool:
    """Return whether an op gives the numbers it took."""
    return bare(name) in _COPIES


def is_new_copy(name: str) -> bool:
    """Return whether an op writes the numbers it took to other memory."""
    return bare(name) in _NEW_COPIES


def is_unwritten(name: str) -> bool:
    """Return whether the result of an op is memory that nobody has written."""
    return bool(_UNWRITTEN.match(name))


def sources(name: str, count: int, given: int, at: int) -> list[int]:
    """Return which of an op's tensors its result number `at` is made from.

    Left out are those that it only writes over, and for an op over lists those of other results.
    """
    listed = list(range(count))
    if "_foreach_" in name or bare(name).startswith("_fused_"):
        whole = given * (count // given) if given else 0
        listed = [i for i in listed if i >= whole or i % given == at]
    if bare(name) in _OVERWRITES or name.endswith(".out"):
        written = min(given, count - 1) if not name.endswith(".out") else 0
        kept = listed[:-1] if name.endswith(".out") and len(listed) > 1 else listed
        listed = [i for i in kept if i >= written] or listed
    return listed
