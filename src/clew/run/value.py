"""Values of a run: one version of one tensor, with its facts, statistics and data.

Input: a run and a number. Output: facts, read from the run's columns on access.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isnan
from typing import TYPE_CHECKING, Any

from clew.errors import BadTrace, ClewError, NotRecorded
from clew.events.fingerprint import Fingerprint, fingerprint_of, unpacked
from clew.events.model import Stats
from clew.events.notebook_port import Shown
from clew.events.tensor_text import is_python, numbers_text, tensor_text
from clew.plain_text import plain
from clew.run.value_stats import NUMBERS
from clew.store.format.payload_numpy import decode

if TYPE_CHECKING:
    import numpy as np

    from clew.events.columns import Meta
    from clew.events.vocabulary import Kept
    from clew.run.event import Event
    from clew.run.run import Run


class Value(Shown):
    """One tensor at one moment: dtype and shape, producer, statistics and data."""

    __slots__ = ("_kept", "_meta", "_run", "number")

    number: int

    def __init__(self, run: Run, number: int) -> None:
        for name, fact in (
            ("_run", run), ("number", number), ("_meta", run.metas[int(run.columns.meta[number])]),
            ("_kept", run.columns.kept.get(number)),
        ):  # fmt: skip
            object.__setattr__(self, name, fact)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Value is read-only: cannot set {name!r}")

    _run: Run
    _meta: Meta
    _kept: Kept | None

    @property
    def dtype(self) -> str:
        """Return the dtype, as torch writes it without `torch.`."""
        return self._meta.dtype

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Return the sizes, None if the tensor has no plain shape."""
        return self._meta.shape

    @property
    def stride(self) -> tuple[int, ...] | None:
        """Return the strides in elements, None if there are none."""
        return self._meta.stride

    @property
    def device(self) -> str:
        """Return the device of the tensor, empty if it is no tensor."""
        return self._meta.device

    @property
    def layout(self) -> str:
        """Return `strided`, `sparse_coo` and the like."""
        return self._meta.layout

    @property
    def cls(self) -> str:
        """Return the class of the tensor or of the Python object."""
        return self._meta.cls

    @property
    def placements(self) -> str | None:
        """Return how a DTensor was distributed over its mesh."""
        return self._meta.placements

    @property
    def local_shape(self) -> tuple[int, ...] | None:
        """Return the sizes of this rank's part of a DTensor."""
        return self._meta.local_shape

    @property
    def requires_grad(self) -> bool:
        """Return whether the tensor required a gradient."""
        return bool(self._run.columns.grad[self.number])

    @property
    def version(self) -> int:
        """Return how often its memory had been written to."""
        return int(self._run.columns.version[self.number])

    @property
    def storage(self) -> int:
        """Return a number that all values on the same memory share."""
        return int(self._run.columns.storage[self.number])

    @property
    def storage_bytes(self) -> int | None:
        """Return the bytes of its memory, None if not known."""
        size = int(self._run.columns.nbytes[self.number])
        return size if size >= 0 else None

    @property
    def freed(self) -> int | None:
        """Return the id of the first op that ran after its memory was freed, None if none did."""
        event = int(self._run.freed[self.number])
        return event if event >= 0 else None

    @property
    def name(self) -> str | None:
        """Return the path of a parameter or buffer, None for other tensors."""
        name = int(self._run.columns.value_name[self.number])
        return self._run.columns.value_names[name] if name >= 0 else None

    @property
    def stats(self) -> Stats | None:
        """Return statistics of the elements, None if none were recorded."""
        return None if self._kept is None else stats_of(self._kept)

    @property
    def digest(self) -> str | None:
        """Return a digest of the elements, None if none was recorded."""
        kept = self._kept
        return None if kept is None or kept.stats is None else kept.stats.get("digest")

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Return sums that equal tensors share in any layout, None if there are none.

        They are recorded with `values="fingerprint"`, and computed of data that was kept.
        """
        return None if self._kept is None else fingerprint_in(self._kept)

    @property
    def producer(self) -> Event | None:
        """Return the event that made this value, None if it came from outside."""
        row = self._run.producer_row(self.number)
        return self._run.event(row) if row >= 0 else None

    def array(self) -> np.ndarray[Any, Any]:
        """Return the data as NumPy: bf16 and fp8 as exact float32, a sparse tensor as a dense
        array.

        A sparse tensor whose dense array would take more than 1 GiB raises ClewError; `tensor()`
        returns it sparse.
        """
        array: np.ndarray[Any, Any] = self._loaded("array")
        return array

    def tensor(self) -> Any:
        """Return the data as a torch tensor."""
        return self._loaded("tensor")

    def item(self) -> Any:
        """Return the data as a Python object: a number, text, None, or an array."""
        return self._loaded("object")

    def _load(self, form: str) -> Any:
        return decode(None if self._kept is None else self._kept.payload, form)

    def _loaded(self, form: str) -> Any:
        loaded = self._load(form)
        if loaded is None and not (form == "object" and self.dtype == "none"):
            raise NotRecorded(
                f"the data of {self.look} was not kept; record it with clew.trace(values='full'), "
                "or name it in clew.trace(capture=[...])"
            )
        return loaded

    def __str__(self) -> str:
        """Write dtype and shape, and the statistics recorded; a constant as Python writes it."""
        if not is_python(self):
            return f"{self.look} {numbers_text(self.stats, numbers_of(self))}".rstrip()
        try:
            return self.look if self.dtype == "object" else repr(self.item())
        except (ClewError, ValueError):
            # Not kept, damaged, or an integer longer than Python writes.
            return self.look

    @property
    def look(self) -> str:
        """Return `f32[2,3]`, followed by what differs from a plain tensor."""
        return tensor_text(self)

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return plain(f"<Value {self.look}{name}>")

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        producer = self.producer
        return {
            "dtype": self.dtype,
            "shape": None if self.shape is None else list(self.shape),
            "stride": None if self.stride is None else list(self.stride),
            "device": self.device,
            "layout": self.layout,
            "requires_grad": self.requires_grad,
            "placements": self.placements,
            "name": self.name,
            "producer": None if producer is None else producer.id,
            "stats": None if self.stats is None else self.stats.to_dict(),
            "digest": self.digest,
        }


class Values(dict[str, Value]):
    """Values by their path inside arguments or a result.

    A result that is one tensor has the path `""`; `"0"` finds it too. `classes` has the classes of
    objects that were given or returned, by path; the tensors found in them have paths inside.
    """

    def __init__(
        self, pairs: Iterable[tuple[str, Value]] = (), classes: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(pairs)
        self.classes = dict(classes or {})

    def __repr__(self) -> str:
        classes = {path: plain(name) for path, name in self.classes.items()}
        parts: list[str] = []
        for path, value in self.items():
            around = [above for above in classes if not above or path.startswith(f"{above}.")]
            parts += [f"{above!r}: {classes.pop(above)}" for above in around]
            parts.append(f"{path!r}: {value!r}")
        parts += [f"{path!r}: {name}" for path, name in classes.items()]
        return f"{{{', '.join(parts)}}}"

    def __missing__(self, path: str) -> Value:
        if path == "0" and "" in self:
            return self[""]
        if path == "" and len(self) == 1:
            return next(iter(self.values()))
        raise KeyError(f"{path!r}; there are: {', '.join(map(repr, self)) or 'none'}")


def numbers_of(value: Value) -> np.ndarray[Any, Any] | None:
    """Return the numbers that statistics are of: of a sparse tensor those stored; None without
    data.
    """
    return None if value._kept is None else numbers_in(value._kept)


def numbers_in(kept: Kept) -> np.ndarray[Any, Any] | None:
    """Return the numbers that the statistics of what was kept are of, None without data."""
    try:
        data = decode(kept.payload, "numbers")
    except ClewError:
        return None
    return None if data is None or data.dtype.kind not in "biufc" else data


def stats_of(kept: Kept) -> Stats | None:
    """Return the statistics recorded of a value, None if there are none."""
    stats = kept.stats
    if stats is None:
        return None
    return Stats(
        **{name: _number(stats.get(name)) for name in NUMBERS},
        nan=stats.get("nan", 0),
        inf=stats.get("inf", 0),
        zeros=stats.get("zeros", 0),
        count=stats.get("count", 0),
    )


def fingerprint_in(kept: Kept) -> Fingerprint | None:
    """Return the fingerprint of a value: the recorded one, else one of its data, else None."""
    mark = kept.fingerprint
    packed = mark() if callable(mark) else mark
    if packed is None:
        numbers = numbers_in(kept)
        return None if numbers is None else fingerprint_of(numbers)
    try:
        return unpacked(packed, kept.stats or {})
    except ValueError as broken:
        raise BadTrace(f"the fingerprint of a value is damaged: {broken}") from broken


def _number(taken: float | None) -> float | None:
    """Return a statistic of the finite elements, None if there are none."""
    return None if taken is None or isnan(taken) else taken
