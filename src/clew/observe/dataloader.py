"""Record in DataLoader workers what is watched, captured or tapped there.

While a recording runs, every DataLoader that starts workers gives them a `WorkerStart` around the
program's `worker_init_fn`, and a `WorkerCollate` around its `collate_fn`. The first begins a
recording in the worker. Its events go to a file, with the worker and the sample they belong to;
those of `collate_fn` with all samples of the batch. The parent adds them to its recording. Works
for fork and spawn.
Must not import torch: it looks up `torch.utils.data` in `sys.modules`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing.util
import numbers
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from clew.events.model import Gap
from clew.events.vocabulary import PREFIX, Label
from clew.observe.ragged_batch import is_about_shapes, ragged_text
from clew.observe.taps import current_prefix
from clew.program_errors import add_note
from clew.record.recorder import Recorder


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What to record in a worker; can be pickled."""

    capture: tuple[str, ...] = ()
    watch: tuple[str, ...] | None = None
    values: str = "stats"
    on_change: bool = True
    scope: tuple[str, ...] = ()

    def joined(self, other: WorkerPlan) -> WorkerPlan:
        """Return a plan that covers both; an empty `watch` means every tensor and array."""
        watched = [plan.watch for plan in (self, other) if plan.watch is not None]
        names = tuple(name for names in watched for name in names)
        return WorkerPlan(
            capture=(*self.capture, *other.capture),
            watch=None if not watched else () if () in watched else names,
            values="full" if "full" in (self.values, other.values) else self.values,
            on_change=self.on_change and other.on_change,
            scope=(*self.scope, *other.scope) if self.scope and other.scope else (),
        )


class Outbox(Protocol):
    """The sink of a worker's batches: `sample` goes with each, `history` has the last events."""

    worker: str
    sample: str | None
    depth: int
    closed: bool
    history: list[str]


class Inbox(Protocol):
    """Reads what workers have written into a folder."""

    folder: Path

    def messages(self) -> Iterator[tuple[str, Any]]:
        """Yield all new messages, each with the name of its sender."""

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield what Clew failed at in workers: who, where, and the text of the exception."""

    def remove(self) -> None:
        """Delete the folder."""


# Begins a recording in this process: by a plan, into a folder, under the name of the worker.
Begin = Callable[[WorkerPlan, Path, str], tuple[Outbox, Recorder]]


def merge(inbox: Inbox, recorder: Recorder) -> None:
    """Add what workers have recorded since the last call, with worker and sample as prefix."""
    before: str | None = None
    for sender, message in inbox.messages():
        worker, sample = message.facts["worker"], message.facts["sample"]
        prefix = worker.replace(" ", "") + ("" if sample is None else f".sample{sample}")
        if prefix != before:
            recorder.mark(Label(PREFIX, prefix, prefix))
            before = prefix
        recorder.adopt(message.batch, sender, worker)
        recorder.met_by_workers.update(message.facts["met"])
    if before is not None:
        recorder.mark(Label(PREFIX, current_prefix(), current_prefix()))


class _Here:
    """The recording of this process, if it is a worker of a process that records."""

    sink: Outbox | None = None
    recorder: Recorder | None = None
    # The samples that were made since the last batch was collated.
    batch: ClassVar[list[str]] = []


def worker_recording() -> Recorder | None:
    """Return the recording of this worker; None in other processes or when nobody reads it."""
    sink = _Here.sink
    return None if sink is None or sink.closed else _Here.recorder


@dataclass(slots=True)
class WorkerStart:
    """Wraps the program's `worker_init_fn` in the workers of one DataLoader."""

    folder: str
    plan: WorkerPlan
    begin: Begin
    own: Callable[[int], Any] | None

    def __call__(self, worker: int) -> Any:
        try:
            self._start(worker)
        except Exception:  # the worker goes on, unrecorded
            _Here.sink = _Here.recorder = None
        if self.own is None:
            return None
        with sample(None):
            return self.own(worker)

    def _start(self, worker: int) -> None:
        _Here.sink, recorder = self.begin(self.plan, Path(self.folder), f"worker {worker}")
        _Here.recorder = recorder
        # Records what runs after the last batch, such as the end of a generator.
        multiprocessing.util.Finalize(None, _drained, (recorder,), exitpriority=0)
        dataset = getattr(_worker_info(), "dataset", None)
        for part in _datasets(dataset):
            _tell_samples(type(part))


@dataclass(slots=True)
class WorkerCollate:
    """Wraps the `collate_fn` in the workers of one DataLoader."""

    own: Callable[[Any], Any]

    def __call__(self, items: Any) -> Any:
        made = list(_Here.batch)
        batch = index_text(made) if made else None
        _Here.batch.clear()
        with sample(batch):
            try:
                return self.own(items)
            except Exception as error:
                _tell_ragged(error, made, items)
                raise


class LoaderSource:
    """Makes DataLoaders record in their workers, for one recording."""

    def __init__(
        self,
        recorder: Recorder,
        plan: WorkerPlan,
        begin: Begin,
        open_inbox: Callable[[Path], Inbox],
        on_gap: Callable[[Gap], Any],
    ) -> None:
        self._recorder = recorder
        self._plan = plan
        self._begin = begin
        self._open_inbox = open_inbox
        self._on_gap = on_gap
        self._inbox: Inbox | None = None
        self._active = False
        # Set while a DataLoader starts its workers.
        self.is_starting = False
        # Whether Clew failed in a worker, which may have run more than what came from it.
        self.has_failed = False

    def start(self) -> None:
        """Make workers record that DataLoaders start from here on."""
        self._active = True
        _install(self)

    def stop(self) -> None:
        """Leave workers alone that are started from here on."""
        self._active = False
        _uninstall(self)

    def close(self) -> None:
        """Add the rest, and end the recording in workers that still run."""
        self.merge()
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.remove()

    def merge(self) -> None:
        """Add what workers have recorded so far."""
        if self._inbox is not None and not self._recorder.halted:
            merge(self._inbox, self._recorder)
            for worker, where, text in self._inbox.faults():
                self.has_failed = True
                self._on_gap(
                    Gap("what a DataLoader worker ran", worker,
                        f"Clew failed while recording it, at {where} ({text})", "please report it")
                )  # fmt: skip

    @contextlib.contextmanager
    def starting(self, loader: Any) -> Iterator[None]:
        """Make the workers record that a DataLoader starts in the block; restore the loader."""
        if not getattr(loader, "num_workers", 0) or self._has_workers(loader):
            yield
            return
        if self._inbox is None:
            self._inbox = self._open_inbox(Path(tempfile.mkdtemp(prefix="clew-workers-")))
        start, collate = loader.worker_init_fn, loader.collate_fn
        folder = str(self._inbox.folder)
        loader.worker_init_fn = WorkerStart(folder, self._whole_plan(), self._begin, start)
        loader.collate_fn = WorkerCollate(collate)
        self.is_starting = True
        self._on_gap(
            Gap("ops in DataLoader workers", "", "in workers only taps, captured and watched "
                "variables are recorded", "use num_workers=0 to see everything")
        )  # fmt: skip
        try:
            yield
        finally:
            self.is_starting = False
            loader.worker_init_fn, loader.collate_fn = start, collate

    def _has_workers(self, loader: Any) -> bool:
        """Return whether a loader has workers already; report a gap if those do not record here."""
        running = getattr(loader, "_iterator", None)
        if not getattr(loader, "persistent_workers", False) or running is None:
            return False
        start = getattr(running, "_worker_init_fn", None)
        folder = None if self._inbox is None else str(self._inbox.folder)
        if not isinstance(start, WorkerStart) or start.folder != folder:
            self._on_gap(
                Gap("workers of a DataLoader", "", "they were started before the recording began",
                    "begin it before the first pass over the loader")
            )  # fmt: skip
        return True

    def _whole_plan(self) -> WorkerPlan:
        """Return the plans of all sources of the same recorder, joined."""
        others = [s._plan for s in _sources if s is not self and s._recorder is self._recorder]
        return functools.reduce(WorkerPlan.joined, others, self._plan)


# `DataLoader.__iter__` is replaced for as long as anybody records.
_lock = threading.Lock()
_sources: list[LoaderSource] = []
_original: list[Any] = []


def _install(source: LoaderSource) -> None:
    data: Any = sys.modules.get("torch.utils.data")
    with _lock:
        _sources.append(source)
        if data is None or _original:
            return
        original = data.DataLoader.__iter__
        _original[:] = [data.DataLoader, original]
        data.DataLoader.__iter__ = _around(original)


@functools.lru_cache(maxsize=1)
def _around(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what begins a pass over a loader, whose workers record while anybody does."""

    @functools.wraps(original)
    def begin(loader: Any) -> Any:
        with _lock:
            current = _sources[-1] if _sources else None
        if current is None:
            return original(loader)
        with current.starting(loader):
            return original(loader)

    return begin


def _uninstall(source: LoaderSource) -> None:
    with _lock:
        if source in _sources:
            _sources.remove(source)
        if not _sources and _original:
            loader, original = _original
            loader.__iter__ = original
            _original.clear()


# In a worker: which sample events belong to


@contextlib.contextmanager
def sample(index: str | None) -> Iterator[None]:
    """Assign the events in the block to a sample; add their history to an exception's notes."""
    sink, recorder = _Here.sink, _Here.recorder
    if sink is None or recorder is None or sink.closed:
        yield
        return
    with stretch(sink, recorder, index):
        yield


def _made(index: str) -> None:
    """Add a sample to those of the next batch, unless another sample is being made from it."""
    if _Here.sink is not None and _Here.sink.depth == 0:
        _Here.batch.append(index)


@contextlib.contextmanager
def stretch(sink: Outbox, recorder: Recorder, index: str | None) -> Iterator[None]:
    """Assign the events in the block to a sample, and hand them over when the block ends."""
    outermost = sink.depth == 0
    if not outermost:
        _drained(recorder)
    around, sink.sample = sink.sample, index or sink.sample
    sink.depth += 1
    if outermost:
        sink.history = []
    try:
        yield
    except Exception as error:
        _Here.batch.clear()
        _drained(recorder)
        _tell_history(error, sink)
        raise
    finally:
        _drained(recorder)
        sink.depth -= 1
        sink.sample = around


def _drained(recorder: Recorder) -> None:
    try:
        recorder.drain()
    except Exception as fault:
        recorder.gaps.fault(fault, "the events of a sample")


def _has_note(error: BaseException) -> bool:
    return any(str(note).startswith(_NOTE) for note in getattr(error, "__notes__", ()))


_NOTE = "clew: worker "


def _tell_history(error: BaseException, sink: Outbox) -> None:
    if _has_note(error):
        return
    lines = "\n".join(f"  {line}" for line in sink.history)
    dataset = getattr(_worker_info(), "dataset", None)
    whose = "" if dataset is None else f" of {type(dataset).__name__}"
    which = "" if sink.sample is None else f", sample {sink.sample}{whose}"
    note = f"clew: {sink.worker}{which}" + (f":\n{lines}" if lines else "")
    with contextlib.suppress(Exception):
        add_note(error, note)


def _tell_ragged(error: BaseException, made: list[str], items: Any) -> None:
    """Add to an exception which sample has another shape, if it is about shapes."""
    # A dataset that makes a whole batch at once has one text for all its samples.
    indices = made[0].split(",") if len(made) == 1 else made
    with contextlib.suppress(Exception):
        said = ragged_text(indices, items) if is_about_shapes(error) else ""
        if said:
            add_note(error, f"clew: {said}")


def _worker_info() -> Any:
    data: Any = sys.modules.get("torch.utils.data")
    return None if data is None else data.get_worker_info()


def worker_name() -> str:
    """Return the name of this process if it is a DataLoader worker, else an empty text."""
    info = _worker_info()
    return "" if info is None else f"worker {info.id}"


def _datasets(dataset: Any) -> list[Any]:
    """Return a dataset and those it is made of, such as the one behind a `Subset`."""
    found: list[Any] = []
    pending = [dataset]
    while pending:
        part = pending.pop()
        if part is None or any(part is known for known in found):
            continue
        found.append(part)
        held = getattr(part, "__dict__", {})
        pending.append(held.get("dataset"))
        several = held.get("datasets")
        pending += several if isinstance(several, list | tuple) else []
    return found


def _tell_samples(cls: type) -> None:
    """Wrap a dataset class so that it says which sample it makes; only in this worker process."""
    data: Any = sys.modules.get("torch.utils.data")
    streams = data is not None and issubclass(cls, data.IterableDataset)
    wraps = {"__iter__": _stream} if streams else {"__getitem__": _item, "__getitems__": _items}
    for name, wrap in wraps.items():
        own = getattr(cls, name, None)
        if callable(own) and not hasattr(own, "_clew_tells"):
            told: Any = functools.wraps(own)(wrap(own))
            told._clew_tells = True
            with contextlib.suppress(TypeError, AttributeError):
                setattr(cls, name, told)


def _item(own: Callable[..., Any]) -> Callable[..., Any]:
    def item(dataset: Any, index: Any) -> Any:
        with sample(index_text(index)):
            made = own(dataset, index)
        _made(index_text(index))
        return made

    return item


def _items(own: Callable[..., Any]) -> Callable[..., Any]:
    def items(dataset: Any, indices: Any) -> Any:
        with sample(index_text(indices)):
            made = own(dataset, indices)
        _made(index_text(indices))
        return made

    return items


_END = object()


def _stream(own: Callable[..., Any]) -> Callable[..., Any]:
    def stream(dataset: Any) -> Iterator[Any]:
        with sample(None):
            items = iter(own(dataset))
        return _numbered(items)

    return stream


def _numbered(items: Iterator[Any]) -> Iterator[Any]:
    for number in itertools.count():
        with sample(str(number)):
            item = next(items, _END)
            if item is _END and _Here.sink is not None:
                _Here.sink.sample = None  # what ran past the last sample belongs to none
        if item is _END:
            return
        _made(str(number))
        yield item


def index_text(index: Any) -> str:
    """Return the index of a sample as text; for a list, up to eight of its numbers."""
    if isinstance(index, list | tuple):
        return ",".join(map(index_text, index[:8])) or "none"
    if isinstance(index, numbers.Integral):
        return str(int(index))
    return index[:40] if type(index) is str else type(index).__name__
