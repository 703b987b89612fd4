"""The code view: every source line that ran, with the ops it ran and the values it bound.

In comes a `Reader`, out comes a `CodeView` whose `str()` is the text: source lines nested as they
call each other, ops and named values beneath, what the backward pass did beneath the forward op it
belongs to. Torch's own lines are left out; its modules stand in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from clew.analysis.fold import Folds, Item, Repeat, name_range
from clew.events.columns import Place
from clew.events.model import Event
from clew.events.records import (
    BACKWARD,
    MODULE,
    OP,
    OPTIMIZER,
    RECOMPUTE,
    STEP,
    TAP,
    VARIABLE,
)
from clew.store.reader import Reader
from clew.views.text.calls import CallTexts
from clew.views.text.code_lines import BAR, Frame, LineWriter, source_line
from clew.views.text.named import NAMED, named_text
from clew.views.text.places import Places
from clew.views.text.style import Style, counted, merged, number_text, short_op, style_for

# Functions that only pass a call on; their lines are left out of the succinct view.
_PASSING_ON = {"wrapper", "wrapped", "inner", "decorate_context", "__call__"}
_MOST_OPS = 40
_SHOWN_OPS = 30
_MOST_OPTIMIZER_OPS = 12
_MOST_NAMES = 8

# Events of one phase that ran in one go, by the first of them.
Stretches = dict[int, list[int]]


class CodeView:
    """The source lines of a trace with what they ran; `str()` is the text."""

    def __init__(
        self, reader: Reader, rows: list[int] | None, succinct: bool, color: bool | None
    ) -> None:
        self._reader = reader
        self._rows = rows
        self._succinct = succinct
        self._color = color

    def __str__(self) -> str:
        return self.text(style_for(color=self._color))

    def __repr__(self) -> str:
        what = "all events" if self._rows is None else counted(len(self._rows), "event")
        return f"<CodeView of {what}; print() shows it>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": self.text(Style())}

    def to_dict(self) -> dict[str, Any]:
        """The lines as plain data: how deep they lie, and their text."""
        lines = self.text(Style()).splitlines()
        depths = [(len(line) - len(line.lstrip("│ "))) // 2 for line in lines]
        return {
            "lines": [
                {"depth": depth, "text": line[2 * depth :]}
                for depth, line in zip(depths, lines, strict=True)
            ]
        }

    def text(self, style: Style) -> str:
        """The text in a given style."""
        if not len(self._reader):
            return "nothing was recorded, so there is no line to show"
        return style.finish("\n".join(_Code(self._reader, style, self._succinct).of(self._rows)))


def code_view(
    reader: Reader,
    events: list[Event] | None,
    *,
    succinct: bool = True,
    color: bool | None = None,
) -> CodeView:
    """The code of a whole trace, or of what ran inside some events."""
    rows = None if events is None else [int(event.row) for event in events]
    return CodeView(reader, rows, succinct, color)


class _Code:
    """Goes through the events of a trace and writes their lines."""

    def __init__(self, reader: Reader, style: Style, succinct: bool) -> None:
        self._reader = reader
        self._style = style
        self._succinct = succinct
        self._folds = Folds(reader, fold=succinct)
        self._structure = self._folds.structure
        self._places = Places(reader)
        self._texts = CallTexts(reader)
        self._out = LineWriter(style)
        self._phase: list[int] = reader.phase.tolist()
        self._error: list[int] = reader.columns.error.tolist()
        self._block: list[int] = []
        self._line_texts: dict[tuple[int, str], str] = {}
        self._backward_of: dict[int, list[int]] = {}
        for row, forward in enumerate(reader.forward_row.tolist()):
            if forward >= 0:
                self._backward_of.setdefault(forward, []).append(row)

    def of(self, rows: list[int] | None) -> list[str]:
        """The lines of everything, or of some events."""
        if rows is None:
            self._siblings(self._structure.kids.get(-1, []), [])
        else:
            self._items(self._folds.fold(rows), [], {})
        self._flush()
        return self._out.lines

    def _siblings(self, rows: list[int], base: list[Frame]) -> None:
        """Events under a chain of lines, the backward pass and the optimizer each as one."""
        stretches: dict[int, list[int]] = {}
        kept: list[int] = []
        open_phase = -1
        for row in rows:
            phase = self._phase[row] if self._structure.kind[row] != STEP else open_phase
            phase = BACKWARD if phase == RECOMPUTE else phase
            if phase != open_phase or phase not in (BACKWARD, OPTIMIZER):
                kept.append(row)
            if phase in (BACKWARD, OPTIMIZER):
                stretches.setdefault(kept[-1], []).append(row)
            open_phase = phase
        kept = [row for row in kept if self._structure.kind[row] != STEP]
        given = {row: (self._phase[row], *self._places.frames(row)) for row in stretches}
        self._items(self._folds.fold(kept, given), base, stretches)

    def _items(self, items: list[Item], base: list[Frame], stretches: Stretches) -> None:
        for item in items:
            if isinstance(item, Repeat):
                self._repeat(item, base, stretches)
            elif item in stretches:
                self._stretch(stretches[item], base)
            elif self._structure.kind[item] == MODULE:
                self._call(item, base)
            else:
                self._op(item, base)

    def _stretch(self, rows: list[int], base: list[Frame]) -> None:
        """What one phase other than the forward pass did in one go."""
        if self._phase[rows[0]] == OPTIMIZER:
            self._items(list(rows), base, {})
        else:
            self._backward(rows, base)

    def _repeat(self, repeat: Repeat, base: list[Frame], stretches: Stretches) -> None:
        self._items(list(repeat.items), base, stretches)
        self._flush()
        more = repeat.count - 1
        text = f"… ×{more} more like this: {self._others(repeat)}"
        self._out.put_at(len(base), self._style.paint(text, "cyan"))
        lines = {frame.key for row in repeat.runs[0] for frame in self._frames(row)[:1]}
        self._out.ran_more(lines, len(base), more)

    def _others(self, repeat: Repeat) -> str:
        """What the runs of a repeat but the first are called."""
        pairs = list(zip(repeat.runs[1], repeat.runs[-1], strict=False))
        steps = self._reader.columns.step
        first, last = (int(steps[row]) for row in pairs[0])
        if first != int(steps[repeat.runs[0][0]]):
            return f"step {first}" if first == last else f"steps {first} … {last}"
        name = self._structure.name
        names = [
            name_range(name(a), name(b), above=1) or self._reader.name(a)
            for a, b in pairs
            if self._structure.kind[a] == MODULE
        ]
        return ", ".join(names[:3]) + (f", +{len(names) - 3}" if len(names) > 3 else "")

    def _call(self, row: int, base: list[Frame]) -> None:
        chain = [*base, *self._frames(row)]
        kids = self._structure.kids.get(row, [])
        if not any(self._places.frames(kid) for kid in kids):
            chain.append(self._module_line(row, bool(kids)))
        if not kids:
            self._go(chain)
        elif self._phase[row] == RECOMPUTE:
            self._items(self._folds.inside(row), chain, {})
        else:
            self._siblings(kids, chain)

    def _module_line(self, row: int, has_inside: bool) -> Frame:
        """The line of a module whose own code is torch's, or that ran nothing."""
        cls = self._reader.name(row)
        path = self._path(row)
        text = self._style.paint(f"[{path}]", "magenta") + ("" if path == cls else f" {cls}")
        if not has_inside:
            outputs = self._texts.outputs(row)
            text += f"({self._texts.inputs(row)})" + (f" -> {outputs}" if outputs else "")
        return Frame(("module", row), None, row, text)

    def _op(self, row: int, base: list[Frame]) -> None:
        if self._structure.kind[row] in (OP, *NAMED) or self._error[row] >= 0:
            self._go([*base, *self._frames(row)])
            self._block.append(row)

    def _go(self, chain: list[Frame]) -> None:
        """Move to a line, writing first what is still to be said of the one before."""
        block, self._block = self._block, []
        mark = len(self._out.lines)
        depth = self._out.depth
        if not self._out.go(chain):
            self._block = block
            return
        printed = self._out.lines[mark:]
        del self._out.lines[mark:]
        self._write(block, depth)
        self._out.lines += printed

    def _flush(self) -> None:
        block, self._block = self._block, []
        self._write(block, self._out.depth)

    def _write(self, block: list[int], depth: int) -> None:
        """The ops and named values of one line, then what the backward pass did for them."""
        self._put(depth, self._op_texts(block))
        backward = [row for op in block for row in self._backward_of.get(op, ())]
        if not backward:
            return
        if self._succinct:
            texts = [f"# ↩ backward: {self._names(backward)}"]
        else:
            texts = [f"# ↩ {self._texts.op(row)}" for row in backward]
        self._put(depth, [self._style.paint(text, "dim") for text in texts])

    def _put(self, depth: int, texts: Iterable[str]) -> None:
        self._out.lines += [t for text in texts for t in self._style.wrapped(BAR * depth, text)]

    def _op_texts(self, block: list[int]) -> Iterator[str]:
        failed = [row for row in block if self._error[row] >= 0]
        ops = [row for row in block if self._structure.kind[row] == OP]
        many = self._succinct and len(ops) > _MOST_OPTIMIZER_OPS
        if many and self._phase[block[0]] == OPTIMIZER:
            yield f"# {counted(len(ops), 'op')}: {self._names(ops)}"
            block = [r for r in block if self._error[r] >= 0 or self._structure.kind[r] != OP]
        texts = [self._op_text(row) for row in block]
        texts = merged(texts, gap="  ") if self._succinct else texts
        if self._succinct and len(texts) > _MOST_OPS:
            rest = len(texts) - _SHOWN_OPS
            texts[_SHOWN_OPS:] = [f"# … {number_text(rest)} more; succinct=False shows them"]
            texts += [self._op_text(row) for row in failed]
        yield from texts

    def _op_text(self, row: int) -> str:
        error = self._error[row]
        if self._structure.kind[row] in NAMED:
            return self._style.paint(f"# {named_text(self._reader, self._texts, row)}", "green")
        if error < 0:
            return f"# {self._texts.op(row)}"
        message = self._reader.columns.errors[error].splitlines()[0]
        what = f"{self._texts.op(row)}  " if self._structure.kind[row] == OP else ""
        return self._style.paint(f"# ✗ {what}{message}", "red", "bold")

    def _names(self, rows: list[int]) -> str:
        names = Counter(short_op(self._reader.name(row)) for row in rows)
        shown = [n + (f" ×{names[n]}" if names[n] > 1 else "") for n in names]
        rest = f", +{len(shown) - _MOST_NAMES}" if len(shown) > _MOST_NAMES else ""
        return ", ".join(shown[:_MOST_NAMES]) + rest

    def _backward(self, rows: list[int], base: list[Frame]) -> None:
        """A stretch of the backward pass: in short, or all that is not told elsewhere."""
        ops = [row for top in rows for row in self._structure.subtree(top)]
        ops = [row for row in ops if self._structure.kind[row] == OP]
        linked = [row for row in ops if self._reader.forward_row[row] >= 0]
        own = [r for r in ops if self._reader.forward_row[r] < 0 and self._phase[r] == BACKWARD]
        again = [row for row in ops if self._phase[row] == RECOMPUTE]
        first = next((row for row in rows if self._places.frames(row)), rows[0])
        self._go([*base, *self._frames(first)])
        self._flush()
        text = f"# ↩ {counted(len(linked) + len(own), 'op')}"
        text += ", each under the line of its forward op" if linked else ""
        if own and self._succinct:
            text += f"{'; without one' if linked else ''}: {self._names(own)}"
        self._out.put([self._style.paint(text, "dim")])
        if again and self._succinct:
            text = f"# recompute: {counted(len(again), 'op')}: {self._names(again)}"
            self._out.put([self._style.paint(text, "dim")])
        for row in rows:
            if self._structure.kind[row] in NAMED:
                self._op(row, base)
            elif self._succinct:
                continue
            elif self._structure.kind[row] == MODULE:
                self._call(row, base)
            elif self._reader.forward_row[row] < 0:
                self._op(row, base)

    def _frames(self, row: int) -> list[Frame]:
        """The user's lines between an event and the module call it ran in."""
        places = self._places.frames(row)
        if self._succinct and len(places) > 1:
            is_call = self._structure.kind[row] == MODULE
            kept = [p for p in places if self._function(p) not in _PASSING_ON]
            places = kept if kept and (is_call or kept[-1] == places[-1]) else places
        above = self._structure.parent[row]
        # The backward pass runs calls again, all from one line that itself runs once.
        again = self._phase[row] == RECOMPUTE and (above < 0 or self._phase[above] != RECOMPUTE)
        name = self._bound(row)
        call = row if (name or self._structure.kind[row] == MODULE) and not again else -1
        module = self._path(above) if above >= 0 else ""
        return [
            Frame(
                self._key(place, above),
                (self._position(place), name if position == len(places) - 1 else ""),
                call if position == len(places) - 1 else -1,
                self._line(place, module if position == 0 else ""),
            )
            for position, place in enumerate(places)
        ]

    def _bound(self, row: int) -> str:
        """The name that an event's line binds each time it runs, empty for any other event."""
        if self._structure.kind[row] not in (VARIABLE, TAP):
            return ""
        label = self._reader.columns.labels[self._structure.subject[row]]
        return label.stem if label.role is None else ""

    def _key(self, place: int, above: int) -> object:
        frame = self._place(place)
        if self._succinct:
            return above, frame.file, frame.function, frame.line
        return above, frame.file, frame.function, frame.line, frame.col, frame.end_col

    def _position(self, place: int) -> object:
        """What tells positions in one line apart."""
        frame = self._place(place)
        return (frame.col, frame.end_line, frame.end_col) if frame.end_col else place

    def _line(self, place: int, module: str) -> str:
        text = self._line_texts.get((place, module))
        if text is None:
            frame = self._place(place)
            text = source_line(
                frame,
                self._places.raw_line(frame),
                self._places.file(frame.file),
                module,
                self._succinct,
                self._style,
            )
            self._line_texts[place, module] = text
        return text

    def _place(self, place: int) -> Place:
        return self._reader.columns.places[place]

    def _function(self, place: int) -> str:
        return self._place(place).function.rpartition(".")[2]

    def _path(self, row: int) -> str:
        module = self._reader.columns.modules[self._structure.subject[row]]
        name = module.path or module.cls
        return f"{name}, recompute" if self._phase[row] == RECOMPUTE else name
