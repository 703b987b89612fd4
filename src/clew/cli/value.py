"""`clew value`: the values of an address: facts, statistics, and a small print of the data."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clew import analysis
from clew.address import with_rank
from clew.cli.output import emit
from clew.cli.reading import Commands, add_command, add_rank, open_trace, positive
from clew.errors import ClewError
from clew.events.number_text import measured
from clew.plain_text import plain

if TYPE_CHECKING:
    from clew.analysis.selection import Selection
    from clew.run.event import Event
    from clew.run.value import Value

_ROWS = 20
_ELEMENTS = 60
_STATS = ("min", "max", "mean", "std", "norm", "nan", "inf", "zeros", "count")
_LISTED_STATS = ("min", "max", "mean", "std", "nan", "inf")


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = "Several values are listed one per line; ADDRESS#2 is the third call alone."
    parser = add_command(commands, "value", run, more)
    parser.add_argument("address", metavar="ADDRESS", help="such as encoder.layers.0:in")
    parser.add_argument(
        "--rows",
        type=positive,
        metavar="N",
        default=_ROWS,
        help=f"at most so many values ({_ROWS})",
    )
    parser.add_argument(
        "--elements", type=positive, metavar="N", default=_ELEMENTS,
        help=f"print data of up to so many elements in full, the edges of more ({_ELEMENTS})",
    )  # fmt: skip
    add_rank(parser)


def run(args: argparse.Namespace) -> int:
    """Print the values."""
    trace = open_trace(args)
    found = _values(trace[args.address])
    if not found:
        raise ClewError(f"{args.address!r} names events without tensors: there is no value")

    def data() -> dict[str, Any]:
        shown = [_as_dict(*item, args.elements) for item in found[: args.rows]]
        return {"address": args.address, "count": len(found), "values": shown}

    emit(args, data, lambda: "\n".join(map(plain, _text(found, args, len(trace.ranks) > 1))))
    return 0


def _values(selection: Selection) -> list[tuple[Event, str, Value]]:
    """Return the values an address names, each with its event and its own address."""
    return [
        (event, analysis.address_of(event, selection.role, path, with_call=True), value)
        for event in selection
        for path, value in selection.items_of(event)
    ]


def _text(
    found: list[tuple[Event, str, Value]], args: argparse.Namespace, several_ranks: bool
) -> list[str]:
    if len(found) == 1:
        return _one(*found[0], args.elements)
    rows = [_listed(*item) for item in found[: args.rows]]
    head = ("address", "value", "step", "rank", *_LISTED_STATS, "source")
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    left_out = len(found) - len(rows)
    if left_out:
        lines.append(f"... {left_out:,} more values left out; --rows {len(found)} shows all")
    first = with_rank(found[0][1], found[0][0].rank) if several_ranks else found[0][1]
    example = shlex.join(["clew", "value", args.trace, first])
    return [*lines, f"{len(found):,} values; take one for its data: {example}"]


def _listed(event: Event, address: str, value: Value) -> tuple[str, ...]:
    stats = [
        "-" if value.stats is None else _number(getattr(value.stats, s)) for s in _LISTED_STATS
    ]
    source = "" if event.source is None else str(event.source)
    return (plain(address), value.look, str(event.step), str(event.rank), *stats, source)


def _one(event: Event, address: str, value: Value, elements: int) -> list[str]:
    when = f"step {event.step}, rank {event.rank}, {event.phase}"
    facts = [f"{address}  {value.look}  on {value.device}, {when}"]
    if value.name:
        facts.append(f"  name    {value.name}")
    if event.source is not None:
        facts.append(f"  source  {event.source}: {event.source.text}")
    producer = value.producer
    if producer is not None and producer != event:
        facts.append(f"  made by {producer.address} in {producer.module or 'the root module'}")
    if value.stats is None:
        facts.append("  stats   not taken; record them with clew.trace(values='stats')")
    else:
        stats = (f"{name} {_number(getattr(value.stats, name))}" for name in _STATS)
        facts.append("  stats   " + ", ".join(stats))
    return [*facts, *_data_lines(value, elements)]


def _data_lines(value: Value, elements: int) -> list[str]:
    try:
        array = value.array()
    except ClewError as why:
        return [f"  data    {why}"]
    return np.array2string(array, threshold=elements, edgeitems=3, precision=5).splitlines()


def _as_dict(event: Event, address: str, value: Value, elements: int) -> dict[str, object]:
    source = event.source
    facts = {
        "address": address,
        "event": event.id,
        "step": event.step,
        "rank": event.rank,
        "phase": event.phase,
        "module": event.module,
        "source": None if source is None else f"{source.file}:{source.line}",
        **value.to_dict(),
    }
    try:
        array = value.array()
    except ClewError as why:
        return {**facts, "data": None, "data_left_out": str(why)}
    if array.size > elements:
        return {**facts, "data": None, "data_left_out": f"{array.size} elements; use --elements"}
    return {**facts, "data": _plain(array)}


def _plain(array: NDArray[Any]) -> Any:
    """Return an array as nested lists; complex numbers, which JSON lacks, as pairs."""
    if not array.size:
        # Without the nesting: an array without elements can have a shape of any size.
        return []
    if array.dtype.kind == "c":
        return [_plain(array.real), _plain(array.imag)] if array.ndim == 0 else [
            _plain(item) for item in array
        ]  # fmt: skip
    return array.tolist()


def _number(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,}" if isinstance(number, int) else measured(number, 4)
