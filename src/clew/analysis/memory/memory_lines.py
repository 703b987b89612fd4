"""Where the memory went, as lines of text that fit a screen.

Input: a `Memory`. Output: the peak and its moment, the way there, tables by kind, line and module,
what grows, what would lower the peak, and what was not counted.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from clew.events.number_text import bytes_text
from clew.events.tensor_text import bar_line
from clew.plain_text import plain, plain_code
from clew.run.event import Event

if TYPE_CHECKING:
    from clew.analysis.memory.memory_model import (
        DeviceMemory,
        Memory,
        MemoryGroup,
        MemoryGrowth,
        MemoryMoment,
    )

# How many rows a table has unless more are asked for.
ROWS = 6
_LONGEST_CODE = 40
_MOST_DEVICES = 8
_MOST_KINDS = 2
_WIDTH = 100


def memory_lines(memory: Memory, rows: int, by: str | None, more: str) -> list[str]:
    """Write where the memory went; `more` says how to see rows that were left out."""
    if not memory.devices:
        return [plain(line) for line in ("no memory of tensors was seen", *memory.notes)]
    first = memory.devices[0]
    lines = [*_head(first, len(memory.devices) > 1), *_others(memory)]
    for name in ("kind", "line", "module") if by is None else (by,):
        groups = first.peak.by(name)
        lines += ["", *_table(name, groups, first.peak.bytes, rows if name != "kind" else 99)]
        left = len(groups) - rows
        if left > 0 and name != "kind":
            lines.append(f"  ... {left:,} more left out" + (f"; {more}" if more else ""))
    if first.peak.unproven:
        size = bytes_text(first.peak.unproven)
        lines += _wrapped(
            f"of what is saved for backward, {size} met no backward pass in this trace: held by "
            "the graph, or by the program",
            "  ",
        )
    for one in memory.devices:
        if one.growth is not None:
            lines += ["", *_wrapped(growth_text(one.growth))]
    if first.advice:
        lines += ["", "to lower the peak:"]
    for text in first.advice:
        lines += _wrapped(text, "  ")
    lines.append("")
    for note in memory.notes:
        lines += _wrapped(note)
    return [plain(line) for line in lines]


def growth_text(growth: MemoryGrowth) -> str:
    """Write what stays from step to step in a sentence."""
    made = ", ".join(f"{group.name} ({bytes_text(group.bytes)})" for group in growth.lines[:3])
    others = len(growth.lines) - 3
    if others > 0:
        made += f" and {others:,} more"
    text = (
        f"memory grows: {bytes_text(growth.per_step)} more stay after each step, "
        f"{bytes_text(growth.bytes)} from step {growth.first} to {growth.last}, made at {made}"
    )
    if not growth.has_graph:
        return text
    return (
        f"{text}; autograd follows it, so the program stores a result with its graph: store "
        f".detach() or .item() of it (the last op of what stays is {event_place(growth.event)})"
    )


def _head(device: DeviceMemory, is_one_of_many: bool) -> list[str]:
    peak = device.peak
    where = f" on {device.device}" + (f" of rank {device.rank}" if is_one_of_many else "")
    event = peak.event
    when = f"{event.phase}, step {event.step}"
    lines = [
        f"peak {bytes_text(peak.bytes)}{where}: after {event_place(event)} ({when})",
        f"  {bar_line(device.timeline, peak.bytes)}  from 0 to {bytes_text(peak.bytes)}",
    ]
    return lines


def event_place(event: Event) -> str:
    """Write an event, its module and its line."""
    source = event.source
    text = event.address
    if event.module is not None and event.kind != "module":
        text += f" in {event.module or 'the root module'}"
    return text if source is None else f"{text}, {_file(source.file)}:{source.line}"


def _file(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def _others(memory: Memory) -> list[str]:
    lines = [
        f"  rank {one.rank} {one.device}: peak {bytes_text(one.peak.bytes)}, step "
        f"{one.peak.event.step}"
        for one in memory.devices[1:_MOST_DEVICES]
    ]
    left = len(memory.devices) - _MOST_DEVICES
    return [*lines, f"  ... {left:,} more with lower peaks"] if left > 0 else lines


def _table(name: str, groups: tuple[MemoryGroup, ...], whole: int, rows: int) -> list[str]:
    """Write groups as a table: name, bytes, share, number of storages, and what they are."""
    cells = [(f"at the peak, by {name}", "bytes", "share", "storages", "")]
    for group in groups[:rows]:
        share = f"{100 * group.bytes / max(whole, 1):.0f} %"
        about = "" if name == "kind" else _listed(list(group.kinds))
        if group.source is not None and group.source.text:
            about = f"{plain_code(group.source.text)[:_LONGEST_CODE]}  # {about}"
        cells.append((f"  {group.name}", bytes_text(group.bytes), share, f"{group.count:,}", about))
    widths = [max(len(row[at]) for row in cells) for at in range(4)]
    return [
        "  ".join(
            (
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:4], widths[1:], strict=True)),
                row[4],
            )
        ).rstrip()
        for row in cells
    ]


def _listed(kinds: list[str]) -> str:
    more = f" and {len(kinds) - _MOST_KINDS} more" if len(kinds) > _MOST_KINDS else ""
    return ", ".join(kinds[:_MOST_KINDS]) + more


def _wrapped(text: str, lead: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=lead, subsequent_indent=lead + "  ")


def moment_lines(moment: MemoryMoment, rows: int) -> list[str]:
    """Write what was alive at one moment."""
    event = moment.event
    lines = [f"{bytes_text(moment.bytes)} alive after {event_place(event)} (step {event.step})"]
    for name in ("kind", "line", "module"):
        lines += ["", *_table(name, moment.by(name), moment.bytes, rows)]
    return [plain(line) for line in lines]
