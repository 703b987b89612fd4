"""Constants and types that observers, stores and readers share: kinds, phases, labels, payloads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from clew.spec import KINDS as KINDS
from clew.spec import PHASES as PHASES

# Numbers of `KINDS`, in its order.
MODULE, OP, NOTE, STEP, VARIABLE, TAP, GRADIENT, PREFIX, GATHERED, COMPOSITE = range(10)
# Kinds whose subject is an op: those that reach a kernel, and those that only run other ops.
OF_OPS = (OP, COMPOSITE)
# Kinds whose subject is a `Label`.
LABELLED = (VARIABLE, TAP, GRADIENT, PREFIX, GATHERED)

# How much is recorded, and what is kept of every value; each word includes those before it.
LEVELS = ("values", "modules", "ops")
VALUES = ("meta", "stats", "fingerprint", "full")

# What may record ops; "auto" is the native engine where it is built.
ENGINES = ("auto", "native", "python")

# Numbers of `PHASES`, in its order.
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, DATA = range(5)

# A backward op has two autograd numbers in one: of the node that runs, and of the one it made.
_NODE_BITS = 31
NODE_RUN = (1 << _NODE_BITS) - 1
# The number of an op that no node runs.
NO_NODE = -1


def backward_number(run: int, made: int) -> int:
    """Return both numbers in one, if there is room; 0 for a node that was not made."""
    return run | made << _NODE_BITS if max(run, made) <= NODE_RUN else run & NODE_RUN


# Set in the number of a recomputed op outside any call, which also holds two.
RECOMPUTED = 1 << 62


def recompute_number(run: int, made: int) -> int:
    """Return `backward_number` for a recomputed op; only the made node if there is no room for
    both.
    """
    return RECOMPUTED | run | made << _NODE_BITS if max(run, made) <= NODE_RUN else made


def node_made(number: Any) -> Any:
    """Return the number the op would have in forward: that of the node it made, plus one."""
    return (number & ~RECOMPUTED) >> _NODE_BITS


# Where a value of a series comes from, if not straight from the program: the result of a callback
# on an input or output of a call, a copy from another rank, the result of callbacks on values of
# several steps or ranks, or on those of the whole run.
STAGES = ("saved", "copied", "gathered", "end")
SAVED, COPIED, REDUCED, ENDED = STAGES

# Modes of a step, by the `training` flag of the model that runs in it.
MODES = ("train", "eval")
TRAIN, EVAL = MODES


class Opaque(str):
    """An object that is neither constant, container nor tensor; the text is its class."""

    __slots__ = ()


class RecordClass(str):
    """The class of a container whose items have names: a dataclass, a namedtuple, a mapping."""

    __slots__ = ()


class Unseen:
    """The result of a `forward` called directly, past the hooks: it has to be inferred."""


@dataclass(frozen=True, slots=True)
class Label:
    """Subject of an event that is one named value: a variable, a tap, a gradient.

    `stem` is its address without call and role. `module` is the path of the module it belongs to,
    None if that is the call in which it happens. `file` and `package` say whose variable it is when
    the stem begins with a file. `stage` is one of STAGES or None, `rank` the rank of a gathered
    value, None if it was made from values of several.
    """

    kind: int
    stem: str
    name: str
    role: str | None = None
    module: str | None = None
    file: str | None = None
    package: str | None = None
    stage: str | None = None
    rank: int | None = None

    def address(self, call: int) -> str:
        """Return the address of the label's n-th event."""
        return f"{self.stem}#{call}" + (f":{self.role}" if self.role else "")


class Payload(NamedTuple):
    """Elements of a tensor in row-major order, as bytes, and their checksum if known."""

    dtype: str
    shape: tuple[int, ...]
    data: Any
    checksum: int | None = None

    @property
    def nbytes(self) -> int:
        """Return how many bytes there are."""
        return memoryview(self.data).nbytes


PARTS = "parts"


def pack(
    form: str, shape: tuple[int, ...], facts: dict[str, object], parts: dict[str, Payload]
) -> Payload:
    """Pack a tensor made of several arrays (sparse, quantised) into one payload.

    The bytes are the length of a JSON head, the head, then the parts in sequence.
    """
    data = {name: bytes(part.data) for name, part in parts.items()}
    listed = [[name, p.dtype, p.shape, len(data[name])] for name, p in parts.items()]
    head = json.dumps({"form": form, "facts": facts, "parts": listed}).encode()
    return Payload(PARTS, shape, b"".join([len(head).to_bytes(8, "little"), head, *data.values()]))


def unpack(payload: Payload) -> tuple[str, dict[str, Any], dict[str, Payload]]:
    """Return the form, facts and parts of a packed payload; raise ValueError if it is not one.

    The parts fill the payload exactly, without overlap; they are views.
    """
    data = memoryview(payload.data).cast("B")
    position = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(bytes(data[8:position]))
    parts = {}
    for name, dtype, shape, length in head["parts"]:
        if type(length) is not int or not 0 <= length <= len(data) - position or dtype == PARTS:
            raise ValueError("its head describes parts that are not there")
        parts[str(name)] = Payload(str(dtype), tuple(shape), data[position : position + length])
        position += length
    if position != len(data):
        raise ValueError(f"a packed value of {len(data)} bytes describes {position}")
    return str(head["form"]), dict(head["facts"]), parts


class KeepLevel(IntEnum):
    """How much is kept of a value; each level includes those below it."""

    META = 0
    STATS = 1
    FINGERPRINT = 2
    FULL = 3


class Kept(NamedTuple):
    """Statistics, data and fingerprint kept of a value.

    The fingerprint is packed (`clew.events.fingerprint`), or a function that reads it from a file.
    """

    stats: dict[str, Any] | None
    payload: Payload | None
    fingerprint: bytes | Callable[[], bytes | None] | None = None
