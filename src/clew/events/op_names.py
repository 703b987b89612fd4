"""Facts from an op's name: its bare form, and whether its result is uninitialised memory."""

from __future__ import annotations

from clew.spec import UNINITIALISED_OPS

# Ops whose result is uninitialised memory: its numbers mean nothing.
UNINITIALISED = UNINITIALISED_OPS


def bare_op(name: str) -> str:
    """Return an op without namespace and overload.

    >>> bare_op("aten.add_.Tensor"), bare_op("compiled")
    ('add_', 'compiled')
    """
    parts = name.split(".")
    return parts[1] if len(parts) > 2 else name
