"""The code view: every source line that ran, with the ops it ran and the values it assigned.

Input: a `Run`. Output: a `CodeView`: a tree of lines and events (`code_tree`), as text
(`code_text`) and as plain data (`code_data`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, SupportsIndex

from clew.analysis.folded_ops import folds_ops
from clew.events.notebook_port import Shown
from clew.run.run import Run
from clew.views.text.code_data import code_data
from clew.views.text.code_nodes import Node
from clew.views.text.code_text import CodeText
from clew.views.text.code_tree import code_tree
from clew.views.text.event_texts import EventTexts
from clew.views.text.style import Style, counted, style_for


class CodeView(Shown):
    """The source lines of a trace with what they ran; `str()` is the text."""

    def __init__(
        self, run: Run, rows: list[int] | None, succinct: bool, color: bool | None, folds: bool
    ) -> None:
        self._run = run
        self._rows = rows
        self._succinct = succinct
        self._color = color
        # Whether ops are folded into what people wrote.
        self._folds = folds

    def __str__(self) -> str:
        return self.text(style_for(color=self._color))

    def __repr__(self) -> str:
        what = "all events" if self._rows is None else counted(len(self._rows), "event")
        return f"<CodeView of {what}; print() shows it>"

    def to_dict(self) -> dict[str, Any]:
        """Return the tree of lines and what ran at them as plain data.

        `nodes` are the outermost nodes; a node has a `kind` and, if it can have any, `children`.
        Where they would be nested too deep, `children` is empty, and `deeper` is an index into the
        list `deeper` of the whole result, where the children are.
        """
        return {"succinct": self._succinct, **code_data(self._run, self._texts, self._nodes)}

    def text(self, style: Style) -> str:
        """Return the text in a given style."""
        if not len(self._run):
            return "nothing was recorded, so there is no line to show"
        if not self._nodes:
            return f"no op or named value among {counted(len(self._rows or ()), 'event')} to show"
        writer = CodeText(self._run, self._texts, self._succinct, style)
        return style.finish("\n".join(writer.lines(self._nodes)))

    @cached_property
    def _texts(self) -> EventTexts:
        return EventTexts(self._run)

    @cached_property
    def _nodes(self) -> list[Node]:
        return code_tree(self._run, self._rows, self._succinct, self._texts, self._folds)


def code_view(
    run: Run,
    rows: Sequence[SupportsIndex] | None,
    *,
    succinct: bool = True,
    color: bool | None = None,
    ops: str | None = None,
) -> CodeView:
    """Show the code of a whole run, or of what ran inside some events, given as rows or events.

    The succinct view folds ops into composites and calls of modules of torch.nn, unless `ops` is
    `aten`.
    """
    chosen = None if rows is None else [int(row) for row in rows]
    return CodeView(run, chosen, succinct, color, folds_ops(ops) and succinct)
