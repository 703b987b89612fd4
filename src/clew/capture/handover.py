"""Events on their way from one process to another: files that a worker appends to.

In come batches of raw records, out go the same events in another process's recording. Each record
is a length, a head of JSON and the bytes of its values, so that whatever a kill leaves behind is
whole up to some record. No locks, no pipes, no pickle: nobody waits for anybody.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from types import CodeType
from typing import Any

from clew.capture.recording import Recording
from clew.capture.sources import StackNode, places_of
from clew.capture.taps import current_prefix
from clew.events.records import (
    DEVICE,
    DTYPE,
    END,
    ERROR,
    EVENT_FIELDS,
    EXTRA,
    GRAD,
    LABELLED,
    NODE,
    OUT,
    PREFIX,
    START,
    STRIDE,
    SUBJECT,
    VALUE_FIELDS,
    Batch,
    Extra,
    Kept,
    Label,
    Opaque,
    Payload,
    Shape,
    UnknownShape,
)

SUFFIX = ".part"
_LENGTH = 8
_LONGEST_HEAD = 64 << 20
_KEPT_LINES = 20


class WorkerSink:
    """The sink of a recording in a worker: everything goes to one file, at once.

    `sample` is what the worker is at; it is written with every event. When the folder is gone,
    nobody reads any more, and `closed` says so.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._path = folder / f"{_safe(worker)}-{os.getpid()}{SUFFIX}"
        self.worker = worker
        self._file: int | None = None
        # id of a token -> the token and its facts, for tokens that may be mentioned again
        self._facts: dict[int, tuple[Any, list[Any]]] = {}
        self.sample: str | None = None
        # How many stretches of work are open, one inside the other.
        self.depth = 0
        self.closed = False
        # The last events in words, for the note on an exception.
        self.history: list[str] = []

    def extend(self, batch: Batch) -> None:
        """Write a batch down; it can be read when this returns."""
        for at in range(0, len(batch.values), VALUE_FIELDS):
            record = batch.values[at : at + VALUE_FIELDS]
            self._facts[id(record[0])] = (record[0], _facts(record))
        kept = {id(t): made if isinstance(made, Kept) else made() for t, made in batch.kept}
        written = b"".join(
            self._record(batch.events[at : at + EVENT_FIELDS], kept)
            for at in range(0, len(batch.events), EVENT_FIELDS)
            if isinstance(batch.events[at + SUBJECT], Label)
        )
        alive = {id(token) for token in batch.surviving if isinstance(token, tuple)}
        self._facts = {key: held for key, held in self._facts.items() if key in alive}
        if written and not self.closed:
            self._write(written)

    def _record(self, event: list[Any], kept: dict[int, Kept]) -> bytes:
        tokens: list[Any] = []
        out = _encoded(event[OUT], tokens)
        values: list[Any] = []
        data: list[bytes] = []
        for token in tokens:
            facts = self._facts[id(token)][1]
            found = kept.get(id(token), Kept(None, None))
            stored: list[Any] | None = None
            if found.payload is not None:
                data.append(bytes(found.payload.data))
                stored = [found.payload.dtype, list(found.payload.shape), len(data[-1])]
            values.append([*facts, found.stats, stored])
        stack = _stack(event[NODE])
        head = {
            "worker": self.worker, "sample": self.sample, "label": astuple(event[SUBJECT]),
            "stack": stack, "start": event[START], "end": event[END], "out": out,
            "values": values, "error": event[ERROR],
        }  # fmt: skip
        self._remember(event[SUBJECT], stack, values)
        encoded = json.dumps(head).encode()
        sizes = [len(encoded), sum(map(len, data))]
        return b"".join([*(n.to_bytes(_LENGTH, "little") for n in sizes), encoded, *data])

    def _remember(self, label: Label, stack: list[Any], values: list[Any]) -> None:
        if label.kind == PREFIX:
            return
        shown = ", ".join(f"{dtype}{_sizes(shape)}" for shape, _, dtype, *_ in values[:4])
        place = f"  {os.path.basename(stack[-1][0])}:{stack[-1][2]}" if stack else ""
        self.history = [*self.history[1 - _KEPT_LINES :], f"{label.stem}  {shown}{place}"]

    def _write(self, data: bytes) -> None:
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                self._file = os.open(self._path, flags, 0o600)
            # A reader that has finished removes the folder; files that nobody can see only fill
            # the disk.
            if not os.fstat(self._file).st_nlink:
                raise FileNotFoundError(str(self._path))
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            self.closed = True
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None


def _facts(record: list[Any]) -> list[Any]:
    token, extra = record[0], record[EXTRA]
    return [
        None if isinstance(token, UnknownShape) else list(token),
        None if record[STRIDE] is None else list(record[STRIDE]),
        str(record[DTYPE]).replace("torch.", ""),
        "" if record[DEVICE] is None else str(record[DEVICE]),
        None if extra is None else list(extra),
        bool(record[GRAD]),
    ]


def _sizes(shape: list[int] | None) -> str:
    return "[" + ("?" if shape is None else ",".join(map(str, shape))) + "]"


def _encoded(described: Any, tokens: list[Any]) -> Any:
    if isinstance(described, tuple):
        tokens.append(described)
        return {"$": len(tokens) - 1}
    if isinstance(described, list):
        return [_encoded(item, tokens) for item in described]
    if isinstance(described, dict):
        return {"{}": [[str(k), _encoded(v, tokens)] for k, v in described.items()]}
    return {"=": str(described)}


def _stack(node: StackNode | None) -> list[Any]:
    chain: list[StackNode] = []
    while node is not None:
        chain.append(node)
        node = node.parent
    places = places_of(chain[::-1])
    return [[place.file, place.function, place.line] for place in places if place.file]


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


# The other side


class Inbox:
    """Reads what workers have written into a folder, from where it stopped the last time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}

    def merge(self, recording: Recording) -> int:
        """Append all new events to a recording, with worker and sample; their number."""
        count = 0
        for path in self._files():
            before: str | None = None
            for head, data in self._new(path):
                prefix = _prefix(head)
                if prefix != before:
                    recording.mark(Label(PREFIX, prefix, prefix))
                    before = prefix
                self._append(recording, head, data)
                count += 1
            if before is not None:
                recording.mark(Label(PREFIX, current_prefix(), current_prefix()))
        return count

    def _files(self) -> list[Path]:
        try:
            return sorted(self.folder.glob(f"*{SUFFIX}")) if _is_own(self.folder) else []
        except OSError:
            return []

    def _new(self, path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
        try:
            with open(path, "rb") as file:
                at = self._read.get(path.name, 0)
                while True:
                    file.seek(at)
                    sizes = file.read(2 * _LENGTH)
                    head_size = int.from_bytes(sizes[:_LENGTH], "little")
                    size = int.from_bytes(sizes[_LENGTH:], "little")
                    if len(sizes) < 2 * _LENGTH or head_size > _LONGEST_HEAD:
                        return
                    body = file.read(head_size + size)
                    if len(body) < head_size + size:
                        return  # still being written, or cut off by a kill
                    at += 2 * _LENGTH + len(body)
                    self._read[path.name] = at
                    yield json.loads(body[:head_size]), body[head_size:]
        except (OSError, ValueError):
            return

    def _append(self, recording: Recording, head: dict[str, Any], data: bytes) -> None:
        tokens, at = [], 0
        for shape, stride, dtype, device, extra, grad, stats, stored in head["values"]:
            token: Any = UnknownShape([-1]) if shape is None else Shape(shape)
            known = None if extra is None else _extra(extra)
            recording.tensors.values.extend(
                (token, 0, None, _tuple(stride), dtype, device, known, grad, -1, None)
            )
            payload = None
            if stored is not None:
                kind, sizes, length = stored
                payload = Payload(kind, tuple(sizes), data[at : at + length])
                at += length
            if stats is not None or payload is not None:
                recording.kept.append((token, Kept(stats, payload)))
            tokens.append(token)
        node = self._node(recording, head["worker"], head["stack"])
        label = Label(*head["label"])
        if label.kind in LABELLED and label.kind != PREFIX:
            recording.push(
                (next(recording.ids), label, node, -1, head["start"], head["end"], -1, [], None,
                 _decoded(head["out"], tokens), head["error"])
            )  # fmt: skip

    def _node(self, recording: Recording, worker: str, stack: list[Any]) -> StackNode:
        key = (id(recording), worker)
        if key not in self._threads:
            self._threads[key] = len(recording.thread_names)
            recording.thread_names.append(worker)
        node = recording.stacks.root(self._threads[key])
        for file, function, line in stack:
            node = recording.stacks.child(node, _code(file, function, line), 0)
        return node

    def remove(self) -> None:
        """Take the folder away; workers that still run notice."""
        if _is_own(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)


def _extra(listed: list[Any]) -> Extra:
    layout, cls, placements, local = listed
    return Extra(layout, cls, placements, _tuple(local))


def _tuple(sizes: list[int] | None) -> tuple[int, ...] | None:
    return None if sizes is None else tuple(sizes)


def _is_own(folder: Path) -> bool:
    """Whether a folder is there and was made by this user: its place may be guessed by others."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return not hasattr(os, "getuid") or found.st_uid == os.getuid()


def _prefix(head: dict[str, Any]) -> str:
    worker = str(head["worker"]).replace(" ", "")
    return worker if head["sample"] is None else f"{worker}.sample{head['sample']}"


def _decoded(encoded: Any, tokens: list[Any]) -> Any:
    if isinstance(encoded, list):
        return [_decoded(item, tokens) for item in encoded]
    if "$" in encoded:
        return tokens[encoded["$"]]
    if "{}" in encoded:
        return {key: _decoded(item, tokens) for key, item in encoded["{}"]}
    return Opaque(encoded["="])


_codes: dict[tuple[str, str, int], CodeType] = {}


def _code(file: str, function: str, line: int) -> CodeType:
    """Code that stands for a line of a function that ran in another process."""
    found = _codes.get((file, function, line))
    if found is None:
        changes: dict[str, Any] = {
            "co_filename": file,
            "co_name": function.rpartition(".")[2],
            "co_firstlineno": line,
        }
        if hasattr(_elsewhere.__code__, "co_qualname"):
            changes["co_qualname"] = function
        found = _codes[file, function, line] = _elsewhere.__code__.replace(**changes)
    return found


def _elsewhere() -> None: ...
