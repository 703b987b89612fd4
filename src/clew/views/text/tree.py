"""The tree: what flows through a model, one line per module call, repeats folded.

In comes a `Reader`, out comes a `TreeView` whose `str()` is the text: forward pass, backward,
optimizer, what was not seen. It fits a screen unless asked for more, and says what it left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from clew.analysis.fold import Folds
from clew.events.records import BACKWARD, MODULE, OP, OPTIMIZER, PHASES, RECOMPUTE, STEP
from clew.store.reader import Reader
from clew.views.text.cells import Cells, CellWriter
from clew.views.text.columns import Line, laid_out
from clew.views.text.outline import CALL, FAILURE, OPS, Entry, Outliner, deepest, shown, walk
from clew.views.text.sections import Section, named_section, sections
from clew.views.text.style import Style, clipped, counted, short_number, style_for, time_text

SCREEN = 60
_MOST_GAPS = 3
_LONGEST_GAP = 110
_EMPTY = "nothing was recorded: run the model inside `with clew.trace(model) as t:`"
_EMPTY_WATCH = "nothing was recorded: no variable that is watched was met"


@dataclass(frozen=True, slots=True)
class Part:
    """What ran on one thread; the heading is empty if there is only one."""

    heading: str
    entries: list[Entry]


class TreeView:
    """The modules of a trace and what ran in them; `str()` is the text."""

    def __init__(self, reader: Reader, depth: int | None, fold: bool, rows: int | None) -> None:
        self._reader = reader
        self._depth = depth
        self._fold = fold
        self._rows = rows

    def __str__(self) -> str:
        return self.text(style_for())

    def __repr__(self) -> str:
        calls = len(self._reader.rows(MODULE))
        return f"<TreeView of {counted(calls, 'module call')}; print() shows it>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": self.text(Style())}

    def to_dict(self) -> dict[str, Any]:
        """The tree as plain data, repeats folded, nothing left out."""
        return self._tree.to_dict()

    def text(self, style: Style) -> str:
        """The text in a given style."""
        if not len(self._reader):
            watched = self._reader.columns.environment.get("level") == "variables"
            return _EMPTY_WATCH if watched else _EMPTY
        tree = self._tree
        depth = tree.depth_within(self._room(tree)) if self._depth is None else self._depth
        body = laid_out(tree.lines(depth), style)
        left_out = tree.left_out(depth)
        room = self._room(tree)
        if room is not None and len(body) > room + 1:
            hidden = tree.height(tree.deepest) - room
            body = body[: room + 1]
            left_out = f"… {counted(hidden, 'more line')} left out; {tree.all_shown}"
        notes = [left_out, *tree.gaps()] if left_out else tree.gaps()
        lines = [tree.header(style), *body, *(_clipped(n, style) for n in notes)]
        return style.finish("\n".join([*lines, *tree.crash(style)]))

    @cached_property
    def _tree(self) -> Tree:
        tree = Tree(Folds(self._reader, self._fold))
        if self._depth is not None or not self._fold:
            return tree
        room = self._room(tree)
        if room is None or tree.height(tree.deepest) <= room:
            return tree
        # A loop whose tensors grow is folded only where there is no room to show each turn.
        shorter = Tree(Folds(self._reader, sizes=False))
        saves = shorter.height(shorter.deepest) < tree.height(tree.deepest)
        return shorter if saves else tree

    def _room(self, tree: Tree) -> int | None:
        """How many lines there are for the tree itself, None for as many as it takes."""
        if self._rows is None and (self._depth is not None or not self._fold):
            return None
        # The header, the titles and the line that says what was left out.
        taken = 3 + len(tree.gaps()) + len(tree.crash(Style()))
        return max((SCREEN if self._rows is None else self._rows) - taken, 1)


def tree_view(
    reader: Reader, *, depth: int | None = None, fold: bool = True, rows: int | None = None
) -> TreeView:
    """The tree of a trace: modules down to a depth, in at most so many rows."""
    return TreeView(reader, depth, fold, rows)


class Tree:
    """A trace outlined: what to show at which depth."""

    def __init__(self, folds: Folds) -> None:
        self._reader = folds.structure.reader
        self._structure = folds.structure
        self._writer = CellWriter(folds)
        self._phases = sections(folds.structure, self._writer.op_names)
        self._named = named_section(self._reader)
        self._sections = self._phases + ([] if self._named is None else [self._named])
        self._parts = self._outlined(Outliner(folds))
        self._entries = [entry for part in self._parts for entry in part.entries]
        self.deepest = deepest(self._entries)
        self.all_shown = f"t.tree(depth={self.deepest}) shows all"

    def _outlined(self, outliner: Outliner) -> list[Part]:
        """The top of the forward pass, and failures of any phase, by thread."""
        threads: dict[int, list[int]] = {}
        kind, error = self._structure.kind, self._reader.columns.error.tolist()
        phase, thread = self._reader.phase.tolist(), self._reader.thread.tolist()
        for row in self._structure.kids.get(-1, []):
            elsewhere = (RECOMPUTE,) if kind[row] == MODULE else (BACKWARD, RECOMPUTE, OPTIMIZER)
            if kind[row] != STEP and (phase[row] not in elsewhere or error[row] >= 0):
                threads.setdefault(thread[row], []).append(row)
        names = self._reader.columns.threads
        return [
            Part(f"thread {names[number]}" if len(threads) > 1 else "", outliner.entries(rows))
            for number, rows in threads.items()
        ]

    def height(self, depth: int) -> int:
        """How many lines the tree takes down to a depth."""
        lines = sum(1 + (entry.kind == FAILURE) for entry in walk(self._entries, depth))
        headings = sum(bool(part.heading) for part in self._parts)
        return lines + headings + sum(1 + len(section.groups) for section in self._sections)

    def depth_within(self, room: int | None) -> int:
        """The greatest depth at which the tree takes no more than some lines, 1 at the least."""
        depth = self.deepest
        while room is not None and depth > 1 and self.height(depth) > room:
            depth -= 1
        return depth

    def lines(self, depth: int) -> list[Line]:
        """The lines down to a depth."""
        lines: list[Line] = []
        for part in self._parts:
            if part.heading:
                lines.append(Line("", Cells(name=part.heading)))
            for entry in part.entries:
                lines += self._below(entry, depth, "", "")
        for section in self._sections:
            lines.append(Line("", section.head))
            leads = ["├─ "] * (len(section.groups) - 1) + ["└─ "]
            lines += [Line(lead, c) for lead, c in zip(leads, section.groups, strict=False)]
        return lines

    def _below(self, entry: Entry, depth: int, lead: str, below: str) -> list[Line]:
        lines = [Line(lead, self._writer.cells(entry), below)]
        children = shown(entry.children, depth)
        for child in children:
            mark, rest = ("└─ ", "   ") if child is children[-1] else ("├─ ", "│  ")
            lines += self._below(child, depth, below + mark, below + rest)
        return lines

    def left_out(self, depth: int) -> str:
        """What is deeper than a depth, in words; empty if nothing is."""
        hidden = self.height(self.deepest) - self.height(depth)
        if not hidden:
            return ""
        return f"… {counted(hidden, 'line')} below depth {depth} left out; {self.all_shown}"

    def header(self, style: Style) -> str:
        """Whose trace this is, and how much there is of it."""
        c = self._reader.columns
        structure = self._structure
        roots = dict.fromkeys(
            c.modules[structure.subject[row]].cls
            for row in structure.kids.get(-1, [])
            if structure.kind[row] == MODULE and self._reader.phase[row] != RECOMPUTE
        )
        calls = len(self._reader.rows(MODULE))
        facts = [counted(calls, "module call")] if calls else []
        if c.environment.get("level") == "ops":
            facts.append(counted(len(self._reader.rows(OP)), "op"))
        if self._writer.parameters.total:
            facts.append(f"{short_number(self._writer.parameters.total)} parameters")
        last = max(int(c.end.max()), int(c.start.max()))
        facts.append(time_text((last - int(c.start.min())) / 1e9))
        steps = len(self._reader.steps)
        facts += [counted(steps, "step")] * (steps > 1) + [f"rank {c.rank}"] * (c.rank > 0)
        none = "values alone" if c.environment.get("level") == "values" else "no module called"
        title = c.environment.get("name") or ", ".join(roots) or none
        text = _clipped(f"{title}: {', '.join(facts)}", style)
        return style.paint(text[: len(title)], "bold") + text[len(title) :]

    def gaps(self) -> list[str]:
        """What was not seen: how much, and the first few."""
        gaps = self._reader.columns.gaps
        if not gaps:
            return []
        first = [f"  {clipped(str(gap), _LONGEST_GAP)}" for gap in gaps[:_MOST_GAPS]]
        return [f"not seen: {counted(len(gaps), 'thing')}, t.coverage lists them", *first]

    def crash(self, style: Style) -> list[str]:
        """The exception that ended the block, if one did."""
        crash = self._reader.columns.environment.get("crash")
        if not crash:
            return []
        text = _clipped(f"✗ ended by {crash.splitlines()[0]}; see t.crash", style)
        return [style.paint(text, "red", "bold")]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        c = self._reader.columns
        return {
            "module_calls": len(self._reader.rows(MODULE)),
            "ops": len(self._reader.rows(OP)),
            "parameters": self._writer.parameters.total,
            "forward": [self._as_dict(entry) for entry in self._entries],
            "sections": [_section_dict(section) for section in self._phases],
            "named": [] if self._named is None else [_name_dict(c) for c in self._named.groups],
            "coverage": [str(gap) for gap in c.gaps],
            "crash": c.environment.get("crash"),
        }

    def _as_dict(self, entry: Entry) -> dict[str, Any]:
        cells = self._writer.cells(entry)
        row = entry.rows[0]
        return {
            "kind": entry.kind,
            "name": self._writer.names(entry) if entry.kind == OPS else cells.name,
            "class": self._reader.name(row) if entry.kind == CALL else None,
            "event": int(self._reader.columns.id[row]),
            "phase": PHASES[int(self._reader.phase[row])],
            "count": entry.count,
            "same_as": None if entry.same_as is None else self._structure.name(entry.same_as),
            "shapes": cells.flow[0],
            "ops": self._writer.ops_inside(entry),
            "parameters": cells.params or None,
            "seconds": self._writer.seconds(entry),
            "source": cells.source or None,
            "error": cells.error or None,
            "children": [self._as_dict(child) for child in entry.children],
        }


def _section_dict(section: Section) -> dict[str, Any]:
    def plain(cells: Cells) -> dict[str, Any]:
        return {
            "name": cells.name or cells.cls,
            "mark": cells.mark or None,
            "op_names": cells.flow[0] or None,
            "ops": cells.ops,
            "time": cells.time,
            "source": cells.source or None,
        }

    return {**plain(section.head), "groups": [plain(group) for group in section.groups]}


def _name_dict(cells: Cells) -> dict[str, Any]:
    return {
        "name": cells.name or cells.cls,
        "mark": cells.mark or None,
        "looks": cells.flow[0] or None,
        "source": cells.source or None,
    }


def _clipped(text: str, style: Style) -> str:
    return clipped(text, style.width) if style.bounded else text
