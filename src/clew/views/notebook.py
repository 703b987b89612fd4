"""What a notebook shows: plain text, static HTML that needs no trust, the viewer where it fits.

In come a `Trace`, a `Selection` or a `Value`, out come the bundles of `_repr_mimebundle_`. The
static part has no script; the viewer lies in an iframe that may run scripts and nothing else.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from clew.analysis.select import Selection
from clew.errors import ClewError
from clew.events.display import Bundle, shows
from clew.events.looks import numbers_text
from clew.events.model import Event, Value
from clew.views.html.report import Side, report_page

# Notebooks keep what they show, each time it is shown.
_LARGEST = 2_000_000
_EVENTS = 20_000
_ROWS = 30
_BARS = 32

_TABLE = "border-collapse:collapse;font:12px ui-monospace,monospace"
_CELL = "padding:2px 10px 2px 0;text-align:left;border:0"
_DIM = "opacity:.65"


def trace_bundle(text: str, side: Side) -> Bundle:
    """The tree as text; above it the viewer, if the trace is small enough."""
    parts = [f'<details open><summary style="{_DIM}">calls</summary>{_pre(text)}</details>']
    frame = _frame(side)
    if isinstance(frame, str):
        parts.insert(0, frame)
        parts[1] = parts[1].replace("<details open>", "<details>")
    return {"text/plain": text, "text/html": "\n".join(parts)}


def _frame(side: Side) -> str | None:
    """The viewer in a frame of its own, None if the trace is too large for a notebook."""
    if not 0 < sum(map(len, side.readers)) <= _EVENTS:
        return None
    try:
        page, _, _ = report_page([side])
    except ClewError:
        return None
    if len(page) > _LARGEST:
        return None
    return (
        '<iframe sandbox="allow-scripts" title="clew" '
        'style="width:100%;height:640px;border:1px solid #8884;border-radius:6px" '
        f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
    )


def selection_bundle(selection: Selection) -> Bundle:
    """The events of a selection as a table."""
    lines = [repr(selection)]
    rows = [
        _event_cells(event, [value for _, value in selection.items_of(event)])
        for event in selection[:_ROWS]
    ]
    lines += ["  " + "  ".join(filter(None, row)) for row in rows]
    left_out = len(selection) - len(rows)
    if left_out:
        lines.append(f"  ... {left_out:,} more; take a part with [{_ROWS}:]")
    head = ("address", "value", "numbers", "step", "source")
    body = _table(head, rows) + (f'<p style="{_DIM}">… {left_out:,} more</p>' if left_out else "")
    title = f"<p><b>{html.escape(selection.address)}</b></p>"
    return {"text/plain": "\n".join(lines), "text/html": title + body}


def _event_cells(event: Event, values: Sequence[Value]) -> tuple[str, ...]:
    shown = values[0] if values else None
    more = f" +{len(values) - 1}" if len(values) > 1 else ""
    return (
        event.address,
        "" if shown is None else shown.look + more,
        "" if shown is None else numbers_text(shown.stats, None),
        str(event.step),
        "" if event.source is None else str(event.source),
    )


def value_bundle(value: Value) -> Bundle:
    """One line; as HTML with a histogram of the data, where that was kept."""
    text = str(value)
    try:
        array = value.array()
    except ClewError:
        array = None
    numbers = html.escape(numbers_text(value.stats, None))
    name = f' <span style="{_DIM}">{html.escape(value.name)}</span>' if value.name else ""
    line = f'<code>{html.escape(value.look)}</code>{name} <span style="{_DIM}">{numbers}</span>'
    picture = "" if array is None else _histogram(array)
    return {"text/plain": text, "text/html": f"<div>{line}</div>{picture}"}


def _histogram(array: Any) -> str:
    """Bars as SVG, which every notebook shows without trusting anything."""
    import numpy as np

    real = np.abs(array) if array.dtype.kind == "c" else array.astype(np.float64)
    finite = real[np.isfinite(real)]
    if finite.size < 2 or not 0 < finite.max() - finite.min() < np.inf:
        return ""
    counts = np.histogram(finite, _BARS)[0]
    tall = counts / counts.max() * 44
    bars = "".join(
        f'<rect x="{7 * i}" y="{46 - height:.1f}" width="6" height="{height + 1:.1f}"/>'
        for i, height in enumerate(tall.tolist())
    )
    ends = (
        f'<text x="0" y="60">{finite.min():.3g}</text>'
        f'<text x="{7 * _BARS}" y="60" text-anchor="end">{finite.max():.3g}</text>'
    )
    return (
        f'<svg width="{7 * _BARS}" height="64" role="img" aria-label="histogram" fill="#4a8af4" '
        f'style="font:10px ui-monospace,monospace">{bars}<g fill="#888">{ends}</g></svg>'
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        made = (f'<{tag} style="{_CELL}">{html.escape(cell)}</{tag}>' for cell in cells)
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<table style="{_TABLE}"><thead>{line("th", head)}</thead><tbody>{body}</tbody></table>'


def _pre(text: str) -> str:
    style = "font:12px/1.4 ui-monospace,monospace;overflow:auto"
    return f'<pre style="{style}">{html.escape(text)}</pre>'


shows(Selection, selection_bundle)
shows(Value, value_bundle)
