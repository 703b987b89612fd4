"""Named values as text: `h = f32[2,3]  [-1, 2] μ 0.5 σ 1` for a variable, a tap, a gradient.

Input: rows of a `Run`. Output: texts. Data is read only if it is no array, to print a number or a
string itself.
"""

from __future__ import annotations

from clew.errors import ClewError
from clew.events.columns import OUT
from clew.events.tensor_text import is_python, numbers_text
from clew.events.vocabulary import GRADIENT, TAP, VARIABLE, Label
from clew.plain_text import plain
from clew.run.run import Run
from clew.run.value import Value, Values
from clew.views.text.call_texts import CallTexts, constant_text
from clew.views.text.style import not_finite_text

NAMED = (VARIABLE, TAP, GRADIENT)


def label_text(label: Label) -> str:
    """Return the address of all values of one name."""
    return label.stem if label.role is None else f"{label.stem}:{label.role}"


def named_text(run: Run, texts: CallTexts, row: int) -> str:
    """Write a named value: its name at that place, and dtype and shape."""
    return plain(_text(run, texts, row))


def _text(run: Run, texts: CallTexts, row: int) -> str:
    label = run.columns.labels[int(run.columns.subject[row])]
    values = run.values_of(row, OUT)
    shown = _value_text(values[""]) if list(values) == [""] else _values_text(values, texts, row)
    if label.role is not None:
        # For these no source line says whose parameter or result it is.
        return f"{label_text(label)} = {shown}"
    if label.kind == TAP:
        return f"tap {label.name} = {shown}"
    return f"return {shown}" if label.name == "return" else f"{label.name} = {shown}"


def _values_text(values: Values, texts: CallTexts, row: int) -> str:
    """Write a container by dtypes and shapes, and how many elements are not finite."""
    stats = [value.stats for value in values.values() if value.stats is not None]
    counts = sum(s.nan for s in stats), sum(s.inf for s in stats)
    return f"{texts.outputs(row)}  {not_finite_text(*counts)}".rstrip()


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
