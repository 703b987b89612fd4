"""Notebook output: plain text, static HTML that needs no trust, the viewer if it fits.

Input: objects of a trace (views, selections, series, values, a crash). Output: the bundles of
`_repr_mimebundle_`, all text escaped. The static part has no script; the viewer is in a sandboxed
iframe that may only run scripts. To show one more type: add a function here, and a line at the end
of the file.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.analysis.findings import Finding
from clew.analysis.listing import HEAD, ROWS
from clew.analysis.memory.memory_model import Memory
from clew.analysis.selection import Selection
from clew.analysis.series import Series
from clew.analysis.shape_links import ShapeChain
from clew.errors import ClewError
from clew.events.model import Stats
from clew.events.notebook_port import Bundle, shows
from clew.events.number_text import measured
from clew.events.tensor_text import numbers_text
from clew.plain_text import plain_lines
from clew.run.event import Crash
from clew.run.value import Value, numbers_of
from clew.views.html.report import Side, report_page
from clew.views.text.code_view import CodeView
from clew.views.text.style import Style
from clew.views.text.table_view import TableView
from clew.views.text.tree import TreeView

# Notebooks save their output each time it is shown.
_LARGEST = 2_000_000
_EVENTS = 20_000
_BARS = 32

_TABLE = "border-collapse:collapse;font:12px ui-monospace,monospace"
_CELL = "padding:2px 10px 2px 0;text-align:left;border:0"
_DIM = "opacity:.65"
_LIST = "margin:0 0 6px;padding-left:18px;font:13px system-ui,sans-serif"
_COLOURS = {"error": "#d1242f", "warning": "#9a6700"}
_FINDINGS = 8


def trace_bundle(text: str, found: Sequence[Finding], side: Side) -> Bundle:
    """Return the tree as text, and as HTML the findings, the viewer if the trace is small, the
    tree.
    """
    frame = _frame(side)
    is_open = "" if frame else " open"
    tree = f'<details{is_open}><summary style="{_DIM}">calls</summary>{_pre(text)}</details>'
    parts = [_finding_list(found), frame or "", tree]
    return {"text/plain": text, "text/html": "\n".join(filter(None, parts))}


def _finding_list(found: Sequence[Finding]) -> str:
    """Write the first findings as a list, each in the colour of its severity."""
    items = [
        f'<li style="color:{_COLOURS.get(finding.severity, "inherit")}">'
        f"{_escaped(finding.text)}</li>"
        for finding in found[:_FINDINGS]
    ]
    left_out = len(found) - len(items)
    items += [f'<li style="{_DIM}">… {left_out:,} more: t.findings</li>'] if left_out else []
    return f'<ul style="{_LIST}">{"".join(items)}</ul>' if items else ""


def _frame(side: Side) -> str | None:
    """Return the viewer in an iframe, None if the trace is too large for a notebook."""
    if not 0 < len(side.run) <= _EVENTS:
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


def text_bundle(view: TreeView | CodeView) -> Bundle:
    """Show a view as its text, in a box that scrolls."""
    text = view.text(Style())
    return {"text/plain": text, "text/html": _pre(text)}


def answer_bundle(answer: ShapeChain | Memory) -> Bundle:
    """Show an answer as its text, in a box that scrolls."""
    text = str(answer)
    return {"text/plain": text, "text/html": _pre(text)}


def table_bundle(view: TableView) -> Bundle:
    """Show the rows that the text of a table shows."""
    names, rows, left_out = view.cells()
    more = f"{left_out:,} rows in the middle; t.to_pandas() has all" if left_out else ""
    return {"text/plain": view.text(Style()), "text/html": _table(names, rows) + _more(more)}


def selection_bundle(selection: Selection) -> Bundle:
    """Show the events of a selection as a table."""
    left_out = len(selection) - len(selection.cells())
    body = _table(HEAD, selection.cells()) + _more(f"{left_out:,} more" if left_out else "")
    title = f"<p><b>{_escaped(selection.address)}</b></p>"
    return {"text/plain": str(selection), "text/html": title + body}


def series_bundle(series: Series) -> Bundle:
    """Show the values of a series as a table, one row each."""
    head = ("step", "rank", "value", "mean ± std", "NaN", "Inf", "source")
    facts = zip(series.values, series.steps, series.ranks, series.sources, strict=True)
    rows = [
        (str(step), "" if rank is None else str(rank), value.look, *_numbers(value.stats),
         "" if source is None else str(source))
        for value, step, rank, source in islice(facts, ROWS)
    ]  # fmt: skip
    left_out = len(series) - len(rows)
    more = _more(f"{left_out:,} more; series.stack() has the data" if left_out else "")
    title = f"<p><b>{_escaped(series.address)}</b></p>"
    return {"text/plain": repr(series), "text/html": title + _table(head, rows) + more}


def _numbers(stats: Stats | None) -> tuple[str, ...]:
    """Return mean and deviation, and how many elements are NaN and Inf, empty where none are."""
    if stats is None:
        return "", "", ""
    spread = ""
    if stats.mean is not None and stats.std is not None:
        spread = f"{measured(stats.mean)} ± {measured(stats.std)}"
    return spread, *(f"{count:,}" if count else "" for count in (stats.nan, stats.inf))


def crash_bundle(crash: Crash) -> Bundle:
    """Show the exception, the event that raised it, and where."""
    event = "" if crash.event is None else f"<p><code>{_escaped(repr(crash.event))}</code></p>"
    title = f'<p style="color:#d33"><b>{_escaped(crash.exception)}</b></p>'
    text = plain_lines(f"{crash.exception}\n{crash.note}")
    return {"text/plain": text, "text/html": title + event + _pre(crash.note)}


def value_bundle(value: Value) -> Bundle:
    """Show one line; in HTML with a histogram of the data, if it was kept."""
    text = str(value)
    array = numbers_of(value)
    numbers = _escaped(numbers_text(value.stats, None))
    name = f' <span style="{_DIM}">{_escaped(value.name)}</span>' if value.name else ""
    line = f'<code>{_escaped(value.look)}</code>{name} <span style="{_DIM}">{numbers}</span>'
    picture = "" if array is None else _histogram(array)
    return {"text/plain": text, "text/html": f"<div>{line}</div>{picture}"}


def _histogram(array: NDArray[Any]) -> str:
    """Bars as SVG, which every notebook shows without trusting anything."""
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
        f'<text x="0" y="60">{measured(float(finite.min()))}</text>'
        f'<text x="{7 * _BARS}" y="60" text-anchor="end">{measured(float(finite.max()))}</text>'
    )
    return (
        f'<svg width="{7 * _BARS}" height="64" role="img" aria-label="histogram" fill="#4a8af4" '
        f'style="font:10px ui-monospace,monospace">{bars}<g fill="#888">{ends}</g></svg>'
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        made = (f'<{tag} style="{_CELL}">{_escaped(cell)}</{tag}>' for cell in cells)
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<table style="{_TABLE}"><thead>{line("th", head)}</thead><tbody>{body}</tbody></table>'


def _pre(text: str) -> str:
    style = "font:12px/1.4 ui-monospace,monospace;overflow:auto"
    return f'<pre style="{style}">{_escaped(text)}</pre>'


def _escaped(text: str) -> str:
    """Escape text for an element, and characters that cannot be seen."""
    return html.escape(plain_lines(text))


def _more(text: str) -> str:
    """Write what was left out."""
    return f'<p style="{_DIM}">… {_escaped(text)}</p>' if text else ""


shows(CodeView, text_bundle)
shows(Crash, crash_bundle)
shows(Selection, selection_bundle)
shows(ShapeChain, answer_bundle)
shows(Memory, answer_bundle)
shows(Series, series_bundle)
shows(TableView, table_bundle)
shows(TreeView, text_bundle)
shows(Value, value_bundle)
