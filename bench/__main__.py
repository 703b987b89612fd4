"""`python -m bench`: measure, then print one table or, with `--json`, one JSON object."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time

import torch

import clew
from bench.rows import FULL, QUICK, Row, all_rows


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    started = time.monotonic()
    rows = []
    for row in all_rows(QUICK if options.quick else FULL):
        rows.append(row)
        if sys.stderr.isatty():
            print(f"\r\x1b[K{row.what.strip()} on {row.on} …", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    environment = {
        "clew": clew.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "quick": options.quick,
        "seconds": round(time.monotonic() - started, 1),
    }
    if options.json:
        print(json.dumps({"environment": environment, "rows": [r.to_dict() for r in rows]}))
        return
    print(table(rows))
    facts = "Python {python}, torch {torch}, Clew {clew}, one thread, {seconds:.0f} s"
    print("\n" + facts.format(**environment))
    print("CPU time, the smallest of several runs, floor and subject in turn;")
    print("where data is stored against write(), wall-clock time.")
    if options.quick:
        print("A quick look: few runs, small models; take figures from a run without --quick.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What Clew costs.")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--quick", action="store_true", help="every row, roughly, in a minute")
    return parser.parse_args()


def table(rows: list[Row]) -> str:
    """The rows with their columns aligned."""
    header = ("what", "on", "against", "floor", "takes", "figure", "goal", "")
    lines = [header, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    rule = tuple("─" * width for width in widths)
    return "\n".join(_aligned(line, widths) for line in (header, rule, *lines[1:]))


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    left = 3  # the first columns are text, the others numbers
    parts = [
        cell.ljust(width) if column < left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(parts).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    number = f"{row.value:.2f}" if row.value < 100 else f"{row.value:.0f}"
    mark = "" if row.ok is None else "ok" if row.ok else "over"
    return (
        row.what,
        row.on,
        row.floor,
        _duration(row.floor_seconds),
        _duration(row.seconds),
        f"{number} {row.unit}",
        "" if row.goal is None else f"≤ {row.goal:g}",
        mark,
    )


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.2f} ms"


if __name__ == "__main__":
    main()
