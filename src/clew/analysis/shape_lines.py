"""A chain of a dimension as lines of text: what people read when they print it.

Input: a `ShapeChain`. Output: a line for the tensor, one for each link, and the notes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.analysis.shape.call import CARRIED
from clew.events.op_names import bare_op
from clew.plain_text import plain, plain_code

if TYPE_CHECKING:
    from clew.analysis.shape_links import ShapeChain, ShapeLink

# How many links are written unless more are asked for: as many as a screen has lines.
ROWS = 40
_LONGEST_LINE = 60


def chain_lines(chain: ShapeChain, rows: int, more: str) -> list[str]:
    """Write a chain, with at most so many links; `more` says how to see the others."""
    shown = chain.links[:rows]
    cells = _without_repeats([_cells(link) for link in shown])
    columns = [column for column in zip(*cells, strict=True) if any(column)]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    lines = ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]
    left_out = len(chain.links) - len(shown)
    if left_out:
        lines.append(f"  ... {left_out:,} more links left out; {more}")
    return [plain(line) for line in (_head(chain), *lines, *chain.notes)]


def _without_repeats(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Leave out the code of a line that the row above shows already."""
    found: list[tuple[str, ...]] = []
    last: tuple[str, ...] = ()
    for row in rows:
        found.append((*row[:-1], "") if row[-2:] == last else row)
        last = row[-2:]
    return found


def _head(chain: ShapeChain) -> str:
    shape = f"[{','.join(map(str, chain.shape))}]"
    of = f"{chain.address} {shape}" if chain.address else shape
    return f"dim {chain.dim} of {of} is {chain.size}:"


def _cells(link: ShapeLink) -> tuple[str, ...]:
    """Return a link as the cells of its row: dimension, what happened, op, module, line, code.

    Ops that only carry the dimension have no line: they may be anywhere.
    """
    dimension = "  " * (link.depth + 1) + str(link.after)
    event, source = link.event, link.source
    if event is None or link.how == CARRIED:
        return dimension, link.text, "", "", "", ""
    module = "" if event.module is None else event.module or "(root)"
    head = dimension, link.text, bare_op(event.name), module
    if source is None:
        return *head, "", ""
    file = source.file.replace("\\", "/").rpartition("/")[2]
    return *head, f"{file}:{source.line}", _clipped(source.text)


def _clipped(code: str) -> str:
    code = plain_code(code)
    return code if len(code) <= _LONGEST_LINE else code[: _LONGEST_LINE - 1] + "…"
