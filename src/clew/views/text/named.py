"""Named values as text: `h = f32[2,3]  [-1, 2] μ 0.5 σ 1` for a variable, a tap, a gradient.

In come rows of a `Reader`, out come texts. Data is read only where it is no array: a number or a
string says more than its type.
"""

from __future__ import annotations

from clew.errors import ClewError
from clew.events.columns import OUT
from clew.events.looks import is_python, numbers_text
from clew.events.model import Value
from clew.events.records import GRADIENT, TAP, VARIABLE, Label
from clew.store.reader import Reader
from clew.views.text.calls import CallTexts, constant_text

NAMED = (VARIABLE, TAP, GRADIENT)
_MOST_LOOKS = 3


def label_text(label: Label) -> str:
    """The address of all values of one name."""
    return label.stem if label.role is None else f"{label.stem}:{label.role}"


def looks_text(reader: Reader, rows: list[int]) -> str:
    """What the values of one name look like, from the first look to the last."""
    texts = (", ".join(value.look for value in reader.values_of(row, OUT).values()) for row in rows)
    looks = list(dict.fromkeys(texts))
    if len(looks) > _MOST_LOOKS:
        looks[_MOST_LOOKS - 1 : -1] = ["…"]
    return " → ".join(looks)


def named_text(reader: Reader, texts: CallTexts, row: int) -> str:
    """A named value: what it is called where it stands, and what it looks like."""
    label = reader.columns.labels[int(reader.columns.subject[row])]
    values = reader.values_of(row, OUT)
    shown = _value_text(values[""]) if list(values) == [""] else texts.outputs(row)
    if label.role is not None:
        # No line says whose parameter or result it is.
        return f"{label_text(label)} = {shown}"
    if label.kind == TAP:
        return f"tap {label.name} = {shown}"
    return f"return {shown}" if label.name == "return" else f"{label.name} = {shown}"


def _value_text(value: Value) -> str:
    if is_python(value):
        return _python_text(value)
    numbers = "" if value.stats is None else numbers_text(value.stats, None)
    return f"{value.look}  {numbers}".rstrip()


def _python_text(value: Value) -> str:
    if value.dtype == "object":
        return value.look
    try:
        return constant_text(value.item())
    except ClewError:
        return value.look
