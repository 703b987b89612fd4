"""The tree: what flows through a model, one line per module call, repeats folded.

In comes a `Reader`, out comes a `TreeView` whose `str()` is the text: forward pass, backward,
optimizer, what was not seen. It fits a screen unless asked for more, and says what it left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from clew.analysis.fold import Folds
from clew.events.records import BACKWARD, FORWARD, MODULE, OPTIMIZER, PHASES, RECOMPUTE, STEP
from clew.store.reader import Reader
from clew.views.text.cells import Cells, CellWriter
from clew.views.text.columns import Line, laid_out
from clew.views.text.outline import CALL, Entry, Outliner, deepest, shown_children, walk
from clew.views.text.sections import Section, sections
from clew.views.text.style import (
    Style,
    clipped,
    counted,
    number_text,
    short_number,
    style_for,
    time_text,
)

SCREEN = 60
_MOST_GAPS = 3
_LONGEST_GAP = 110


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines of the tree that have a heading of their own: a thread."""

    heading: str
    entries: list[Entry]


class TreeView:
    """The modules of a trace and what ran in them; `str()` is the text."""

    def __init__(
        self, reader: Reader, depth: int | None = None, fold: bool = True, rows: int | None = None
    ) -> None:
        self._reader = reader
        self._depth = depth
        self._rows = rows
        self._fold = fold

    def __str__(self) -> str:
        return self.text(style_for())

    def __repr__(self) -> str:
        calls = len(self._reader.rows(MODULE))
        return f"<TreeView of {counted(calls, 'module call')}; print() shows it>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": self.text(Style())}

    def to_dict(self) -> dict[str, Any]:
        """The tree as plain data, repeats folded, nothing left out."""
        return {
            "calls": len(self._reader.rows(MODULE)),
            "parameters": self._writer.parameters.total,
            "forward": [self._as_dict(e) for part in self._parts for e in part.entries],
            "other": [_section_dict(section) for section in self._sections],
            "coverage": [str(gap) for gap in self._reader.columns.gaps],
        }

    def text(self, style: Style) -> str:
        """The text for a given style."""
        if not len(self._reader):
            return _EMPTY
        depth = self._shown_depth()
        lines = self._body(depth)
        body = laid_out(lines, style)
        notes = [self._left_out(depth)]
        if self._rows is not None and len(body) > self._rows:
            notes = [_cut(len(body) - self._rows, self._rows, len(body))]
            body = body[: self._rows]
        elif self._rows is None and self._depth is None and self._fold and len(body) > SCREEN:
            keep = SCREEN - 5
            notes.append(_cut(len(body) - keep, keep, len(body)))
            body = body[:keep]
        ends = [*(n for n in notes if n), *self._gaps(), *self._crash(style)]
        texts = [self._header(style), *body, *(clip_for(style, end) for end in ends)]
        return style.finish("\n".join(texts))

    @cached_property
    def _folds(self) -> Folds:
        return Folds(self._reader, self._fold)

    @cached_property
    def _writer(self) -> CellWriter:
        return CellWriter(self._folds)

    @cached_property
    def _sections(self) -> list[Section]:
        return sections(self._folds.structure, self._writer.op_names)

    @cached_property
    def _parts(self) -> list[_Part]:
        """The top of the forward pass, a part for each thread."""
        outliner = Outliner(self._folds)
        threads: dict[int, list[int]] = {}
        kind = self._folds.structure.kind
        phase, thread = self._reader.phase.tolist(), self._reader.thread.tolist()
        for row in self._folds.structure.kids.get(-1, []):
            hidden = (RECOMPUTE,) if kind[row] == MODULE else (BACKWARD, RECOMPUTE, OPTIMIZER)
            if kind[row] != STEP and (phase[row] not in hidden or self._failed(row)):
                threads.setdefault(thread[row], []).append(row)
        names = self._reader.columns.threads
        several = len(threads) > 1
        return [
            _Part(f"thread {names[number]}" if several else "", outliner.entries(rows))
            for number, rows in threads.items()
        ]

    def _failed(self, row: int) -> bool:
        return bool(self._reader.columns.error[row] >= 0)

    def _shown_depth(self) -> int:
        """The depth asked for, or the greatest with which everything fits a screen."""
        entries = [entry for part in self._parts for entry in part.entries]
        full = deepest(entries)
        if self._depth is not None:
            return self._depth
        if self._rows is not None or not self._fold:
            return full
        room = SCREEN - 2 - sum(1 + len(s.groups) for s in self._sections) - len(self._gaps())
        depth = full
        while depth > 1 and sum(1 for _ in walk(entries, depth)) > room:
            depth -= 1
        return depth

    def _body(self, depth: int) -> list[Line]:
        lines = []
        for part in self._parts:
            if part.heading:
                lines.append(Line("", Cells(name=part.heading), 0))
            for entry in part.entries:
                lines += self._lines(entry, depth, "", "")
        for section in self._sections:
            lines.append(Line("", section.head, 0))
            for position, group in enumerate(section.groups):
                last = position == len(section.groups) - 1
                lines.append(Line("└─ " if last else "├─ ", group, 1))
        return lines

    def _lines(self, entry: Entry, depth: int, lead: str, below: str) -> list[Line]:
        lines = [Line(lead, self._writer.cells(entry), entry.level, below)]
        children = shown_children(entry, depth)
        for child in children:
            last = child is children[-1]
            lines += self._lines(
                child,
                depth,
                below + ("└─ " if last else "├─ "),
                below + ("   " if last else "│  "),
            )
        return lines

    def _header(self, style: Style) -> str:
        c = self._reader.columns
        roots = dict.fromkeys(
            c.modules[self._folds.structure.subject[e.rows[0]]].cls
            for part in self._parts
            for e in part.entries
            if e.kind == CALL
        )
        starts, ends = c.start, c.end
        facts = [counted(len(self._reader.rows(MODULE)), "module call")]
        if c.environment.get("level") != "modules":
            facts.append(counted(int((c.kind == 1).sum()), "op"))
        if self._writer.parameters.total:
            facts.append(f"{short_number(self._writer.parameters.total)} parameters")
        facts.append(time_text((max(int(ends.max()), int(starts.max())) - int(starts.min())) / 1e9))
        steps = len(set(c.step.tolist()))
        facts += [counted(steps, "step")] * (steps > 1) + [f"rank {c.rank}"] * (c.rank > 0)
        title = c.environment.get("name") or ", ".join(roots) or "no module"
        return f"{style.paint(title, 'bold')}: {', '.join(facts)}"

    def _left_out(self, depth: int) -> str:
        entries = [entry for part in self._parts for entry in part.entries]
        full = deepest(entries)
        if depth >= full:
            return ""
        shown = sum(1 for _ in walk(entries, depth))
        hidden = sum(1 for _ in walk(entries, full)) - shown
        return (
            f"… {counted(hidden, 'line')} below depth {depth} left out; "
            f"t.tree(depth={full}) shows all"
        )

    def _gaps(self) -> list[str]:
        gaps = self._reader.columns.gaps
        if not gaps:
            return []
        shown = [f"  {clipped(str(gap), _LONGEST_GAP)}" for gap in gaps[:_MOST_GAPS]]
        return [f"not seen: {counted(len(gaps), 'thing')}, t.coverage lists them", *shown]

    def _crash(self, style: Style) -> list[str]:
        crash = self._reader.columns.environment.get("crash")
        if not crash:
            return []
        return [style.paint(f"✗ ended by {crash.splitlines()[0]}", "red") + "; see t.crash"]

    def _as_dict(self, entry: Entry) -> dict[str, Any]:
        cells = self._writer.cells(entry)
        row = entry.rows[0]
        facts: dict[str, Any] = {
            "kind": entry.kind,
            "name": cells.name,
            "class": cells.cls if entry.kind == CALL else None,
            "event": int(self._reader.columns.id[row]),
            "phase": PHASES[int(self._reader.phase[row])],
            "count": entry.count,
            "shapes": cells.flow[0],
            "ops": self._writer.ops_inside(entry),
            "seconds": self._writer.seconds(entry),
            "source": cells.source or None,
            "error": cells.error or None,
            "children": [self._as_dict(child) for child in entry.children],
        }
        if entry.kind == "ops":
            facts["names"] = cells.cls
        return facts


def tree_view(
    reader: Reader, *, depth: int | None = None, fold: bool = True, rows: int | None = None
) -> TreeView:
    """The tree of a trace, down to a depth, in at most so many rows."""
    return TreeView(reader, depth, fold, rows)


def clip_for(style: Style, text: str) -> str:
    """A line of prose, cut where a terminal would wrap it."""
    return clipped(text, style.width) if style.terminal and not style.color else text


def _cut(hidden: int, shown: int, total: int) -> str:
    return (
        f"… {counted(hidden, 'more row')} left out; t.tree(rows={number_text(total)}) shows all, "
        f"t.tree(depth=1) the outermost modules"
    )


def _section_dict(section: Section) -> dict[str, Any]:
    def plain(cells: Cells) -> dict[str, Any]:
        return {
            "name": cells.name or cells.cls,
            "line": cells.cls or None,
            "what": cells.flow[0],
            "ops": cells.ops,
            "time": cells.time,
            "source": cells.source or None,
        }

    return {**plain(section.head), "groups": [plain(group) for group in section.groups]}


_EMPTY = (
    "nothing was recorded: run the model inside `with clew.trace(model) as t:`, "
    "and read t after it ran"
)

__all__ = ["FORWARD", "TreeView", "tree_view"]
