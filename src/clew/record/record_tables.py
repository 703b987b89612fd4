"""Number what repeats in a recording: ops, places, templates, labels and the like."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from clew.events.columns import (
    IN,
    OUT,
    Leaf,
    Meta,
    ObjectClass,
    Place,
    Symbol,
    Template,
    Tensor,
)
from clew.events.vocabulary import MODULE, NOTE, OP, STEP, Label, Opaque, Unseen
from clew.record.numbering import Numbering, RecentNumbering
from clew.record.stacks import StackNode, place_of
from clew.stream.batch import TABLES
from clew.stream.records import Extra, Note, StepMark, UnknownShape

# Constants that are stored as they are; of anything else its text is stored.
PLAIN_TYPES = (type(None), bool, int, float, complex, str)


class RecordTables:
    """The tables of one recording, and how many rows of each earlier batches have.

    It keeps at most about `templates` templates, and drops those not used for longest: some have a
    constant that differs at each step.
    """

    def __init__(self, templates: float) -> None:
        self.ops = Numbering()
        self.notes = Numbering()
        self.labels = Numbering()
        self.errors = Numbering()
        self.metas = Numbering()
        self.templates = RecentNumbering(templates)
        self.value_names = Numbering()
        # Stack nodes, and places of other processes, each after its parent.
        self.places = Numbering()
        # Bytes of memory that a tensor of each meta needs, as far as someone asked.
        self._meta_bytes: list[int] = []
        self._batched = dict.fromkeys(TABLES, 0)
        self._sources: set[str] = set()
        # id of an op or of a module's name -> (the object, its kind, its number)
        self._subjects: dict[int, tuple[Any, int, int]] = {}

    def subject(self, subject: Any) -> tuple[Any, int, int]:
        """Return the subject of an event, its kind, and its number in the table of that kind."""
        known = self._subjects.get(id(subject))
        if known is not None and known[0] is subject:
            return known
        if type(subject) is Label:
            return subject, subject.kind, self.labels.number(subject, lambda: subject)
        if type(subject) is StepMark:
            return subject, STEP, int(subject)
        if type(subject) is Note:
            return subject, NOTE, self.notes.number(subject, lambda: str(subject))
        index = getattr(subject, "index", None)
        if isinstance(index, int):
            known = (subject, MODULE, index)
        else:
            known = (subject, OP, self.ops.number(id(subject), lambda: str(subject)))
        self._subjects[id(subject)] = known
        return known

    def place(self, node: StackNode) -> int:
        """Return the number of a stack node; its parents get theirs first."""
        number = self.places.get(node.index)
        if number is not None:
            return number
        # No recursion: a stack that ended in a RecursionError is as deep as Python allows.
        missing = [node]
        while (above := missing[-1].parent) is not None and self.places.get(above.index) is None:
            missing.append(above)
        return [self._number_place(one) for one in reversed(missing)][-1]

    def _number_place(self, node: StackNode) -> int:
        return self.places.number(node.index, lambda: node)

    def meta(self, key: tuple[Any, ...]) -> int:
        """Return the number of a tensor's shape, stride, dtype, device and extra."""
        return self.metas.number(key, lambda: _meta(*key))

    def plain_meta(self, meta: Meta) -> int:
        """Return the number of a meta that was not made from a tensor of this process's Python."""
        return self.metas.number(meta, lambda: meta)

    def many_metas(self, keys: list[tuple[Any, ...]]) -> list[int]:
        """Return the numbers of the metas of several tensors."""
        return self.metas.many(keys, self.meta)

    def meta_bytes(self) -> list[int]:
        """Return the bytes of memory that a tensor of each meta needs."""
        known = self._meta_bytes
        known += [meta.nbytes for meta in self.metas.rows[len(known) :]]
        return known

    def many_value_names(self, names: list[str | None]) -> list[int]:
        """Return the numbers of the names of values, -1 for None."""
        return [-1 if name is None else self.value_name(name) for name in names]

    def value_name(self, name: str) -> int:
        """Return the number of the name of a value."""
        return self.value_names.number(name, lambda: name)

    def error(self, text: str) -> int:
        """Return the number of the text of an exception."""
        return self.errors.number(text, lambda: text)

    def template(self, key: tuple[Any, ...], args: Any, kwargs: Any, out: Any) -> int:
        """Return the number of the nesting and constants of a call; `key` identifies them."""
        return self.templates.number(key, lambda: _template(args, kwargs, out))

    def template_of(
        self, key: bytes, call: Callable[[], tuple[list[Any], dict[str, Any], Any]]
    ) -> int:
        """Return the number of the nesting of a call, which `call` returns if it is new."""
        return self.templates.number(key, lambda: _template(*call()))

    def foreign_template(self, template: Template) -> int:
        """Return the number of another process's template, by its text: lists have no hash."""
        return self.templates.number(repr(template), lambda: template)

    def foreign_place(self, place: Place) -> int:
        """Return the number of a place in another process."""
        return self.places.number(place, lambda: place)

    def gained(self, others: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return the rows that each table, `others` too, has gained since the last batch."""
        held: dict[str, list[Any]] = {
            "ops": self.ops.rows,
            "notes": self.notes.rows,
            "labels": self.labels.rows,
            "metas": self.metas.rows,
            "errors": self.errors.rows,
            "value_names": self.value_names.rows,
            **others,
        }
        batched = self._batched
        gained = {name: rows[batched[name] :] for name, rows in held.items()}
        gained["templates"] = self.templates.gained()
        gained["places"] = [
            row if isinstance(row, Place) else self._place_row(row)
            for row in self.places.rows[batched["places"] :]
        ]
        for name, rows in gained.items():
            batched[name] += len(rows)
        return gained

    def new_sources(
        self, places: list[Place], source: Callable[[str], str | None]
    ) -> dict[str, str]:
        """Return the texts of the program's files that no earlier batch has."""
        files = {p.file for p in places if not p.library and p.line > 0} - self._sources
        self._sources |= files
        texts = {file: source(file) for file in sorted(files)}
        return {file: text for file, text in texts.items() if text is not None}

    def _place_row(self, node: StackNode) -> Place:
        return place_of(node, -1 if node.parent is None else self.places[node.parent.index])


def _meta(shape: Any, stride: Any, dtype: Any, device: Any, extra: Extra | None) -> Meta:
    return Meta(
        dtype=str(dtype).replace("torch.", ""),
        shape=None if isinstance(shape, UnknownShape) else tuple(shape),
        stride=None if stride is None else tuple(stride),
        device="" if device is None else str(device),
        layout="strided" if extra is None else extra.layout,
        cls="Tensor" if extra is None else extra.cls,
        placements=None if extra is None else extra.placements,
        local_shape=None if extra is None else extra.local_shape,
    )


def _template(args: Any, kwargs: Any, out: Any) -> Template:
    leaves = [leaf for i, arg in enumerate(args) for leaf in _leaves(IN, str(i), arg)]
    return Template((*leaves, *_leaves(IN, "", kwargs or {}), *_leaves(OUT, "", out)))


def _leaves(role: str, path: str, described: Any) -> Iterator[Leaf]:
    if isinstance(described, tuple):
        yield Leaf(role, path, Tensor)
    elif type(described) is list:
        if all(type(item) is int for item in described):
            yield Leaf(role, path, described)
            return
        for index, item in enumerate(described):
            yield from _leaves(role, _joined(path, str(index)), item)
    elif type(described) is dict:
        for name, item in described.items():
            yield from _leaves(role, _joined(path, name), item)
    elif described is Unseen:
        yield Leaf(role, path, Unseen)
    elif not (role == OUT and described is None):
        yield Leaf(role, path, _constant(described))


def _constant(described: Any) -> Any:
    if type(described) in PLAIN_TYPES:
        return described
    return ObjectClass(described) if type(described) is Opaque else Symbol(described)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
