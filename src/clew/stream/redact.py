"""Remove from a batch every text that the program made: `redact=True`.

What one needs to read the trace stays: names of modules, parameters, variables, taps and functions,
the last part of each file's path, classes of exceptions, shapes and numbers.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from clew.events.columns import Attributes, Leaf, Place, Symbol, Template
from clew.events.model import Gap
from clew.events.vocabulary import Kept, Label
from clew.stream.batch import Batch

REDACTED = "(redacted)"
# Anything that looks like a path of several parts, in a sentence.
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[\\/][^\s\\/:'\"]+)+[\\/]?")
_TEXT_DTYPES = ("str", "bytes", "numpy:<U", "numpy:|S", "numpy:>U")


def redacted(batch: Batch) -> Batch:
    """Return a batch without the program's texts."""
    tables = dict(batch.tables)
    tables["places"] = [_place(place) for place in tables["places"]]
    tables["labels"] = [_label(label) for label in tables["labels"]]
    tables["templates"] = [_template(template) for template in tables["templates"]]
    tables["errors"] = [error_class(text) for text in tables["errors"]]
    tables["threads"] = [REDACTED for _ in tables["threads"]]
    tables["gaps"] = [redacted_gap(gap) for gap in tables["gaps"]]
    crash = batch.environment.get("crash")
    return replace(
        batch,
        tables=tables,
        kept={number: _kept(kept) for number, kept in batch.kept.items()},
        attributes=[_attributes(one) for one in batch.attributes],
        sources={},
        environment={**batch.environment, "crash": None if crash is None else error_class(crash)},
    )


def error_class(text: str) -> str:
    """Return the class of an exception from its text, which begins with it."""
    return re.match(r"[\w.]*", text)[0] or REDACTED  # type: ignore[index]


def last_part(path: str) -> str:
    """Return the last part of a path."""
    return re.split(r"[\\/]", path)[-1]


def _place(place: Place) -> Place:
    return replace(place, file=last_part(place.file))


def _label(label: Label) -> Label:
    return label if label.file is None else replace(label, file=last_part(label.file))


def _template(template: Template) -> Template:
    return Template(tuple(map(_leaf, template.leaves)))


def _leaf(leaf: Leaf) -> Leaf:
    is_text = isinstance(leaf.constant, str) and not isinstance(leaf.constant, Symbol)
    return replace(leaf, constant=REDACTED) if is_text else leaf


def _attributes(one: Attributes) -> Attributes:
    values = {n: REDACTED if isinstance(v, str) else v for n, v in one.values.items()}
    return replace(one, values=values)


def _kept(kept: Kept) -> Kept:
    payload = kept.payload
    is_text = payload is not None and payload.dtype.startswith(_TEXT_DTYPES)
    return Kept(None, None) if is_text else kept


def redacted_gap(gap: Gap) -> Gap:
    """Return a gap without paths, names of threads and texts of exceptions."""
    texts: list[Any] = [gap.what, gap.where, gap.why, gap.remedy]
    what, where, why, remedy = (_PATH.sub(lambda m: last_part(m[0]), text) for text in texts)
    where = f"thread {REDACTED}" if where.startswith("thread ") else where
    return Gap(what, where, re.sub(r"\((\w+): .*\)", r"(\1)", why), remedy)
