"""`clew graph`: the data flow of a trace, or the calls that a text file lists, as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew import analysis, views
from clew.cli.exist_option import add_exist
from clew.cli.output import emit, within
from clew.cli.reading import Commands, add_command, add_rank, open_trace, positive
from clew.errors import ClewError
from clew.views.graph.graph_options import COLORS, DIRECTIONS, SUFFIXES, THEMES

if TYPE_CHECKING:
    from clew.views.graph.view import GraphView

_SHAPE = (
    "depth",
    "ops",
    "squash",
    "edges",
    "backward",
    "step",
    "direction",
    "color",
    "theme",
)


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = (
        "TRACE may also be a text file with the path of a called module per line. Without -o the "
        "boxes are listed, each with what it takes."
    )
    parser = add_command(commands, "graph", run, more)
    parser.add_argument("address", metavar="ADDRESS", nargs="?", help="only these calls")
    add = parser.add_argument
    endings = ", ".join(SUFFIXES)
    add("-o", "--out", metavar="FILE", help=f"write a file; its ending says what: {endings}")
    add("--depth", type=positive, metavar="N", help="modules down to this depth")
    add("--rows", type=positive, metavar="N", help="list at most so many lines")
    add("--no-fold", action="store_true", help="show every repeat of a layer")
    add("--ops", choices=("between", "major", "all", "none"), help="which ops are boxes")
    add("--prune", action="append", nargs="?", const=True, metavar="NAME",
        help="leave out calls without calls inside, or modules of this class or path")  # fmt: skip
    add("--squash", choices=("class", "name"), help="one box for calls alike in this")
    add("--edges", choices=("data", "calls", "tree"), help="what flowed, ran next, or contains")
    add("--backward", action="store_true", default=None, help="edges of gradients as well")
    add("--step", type=int, metavar="N", help="only what ran in this step")
    add("--direction", choices=DIRECTIONS, help="which way the data goes (down)")
    add("--color", choices=COLORS, metavar="BY", help=f"one of {', '.join(COLORS)}")
    add("--theme", choices=THEMES, help="colours for light or dark surroundings (auto)")
    picture = parser.add_argument_group("png")
    picture.add_argument("--dpi", type=positive, metavar="N", help="dots per inch (192)")
    picture.add_argument("--width", type=float, metavar="INCHES", help="at most so wide")
    picture.add_argument("--height", type=float, metavar="INCHES", help="at most so high")
    add_exist(parser)
    add_rank(parser)


def run(args: argparse.Namespace) -> int:
    """Draw the graph, or list it."""
    options = {name: getattr(args, name) for name in _SHAPE if getattr(args, name) is not None}
    options["fold"] = not args.no_fold
    if args.prune:
        options["prune"] = True if True in args.prune else args.prune
    view = _calls_view(args, options) if Path(args.trace).is_file() else _view(args, options)
    if args.out is None:
        emit(args, view.to_dict, lambda: _listed(view, args.rows))
        return 0
    size = {name: getattr(args, name) for name in ("dpi", "width", "height")}
    size = {name: number for name, number in size.items() if number is not None}
    if size and not args.out.lower().endswith(".png"):
        raise ClewError(f"--{next(iter(size))} is for a PNG, and {args.out} does not end in .png")
    path = view.save(args.out, exist=args.exist, **size)
    counts = {"nodes": len(view.model.nodes), "edges": len(view.model.edges)}
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    emit(args, lambda: {"path": str(path), **counts}, lambda: f"{path}: {said}")
    return 0


def _listed(view: GraphView, rows: int | None) -> str:
    lines = str(view).splitlines()
    return "\n".join(within(lines, rows, f"--rows {len(lines)}"))


def _view(args: argparse.Namespace, options: dict[str, Any]) -> GraphView:
    return open_trace(args).graph(args.address, **options)


def _calls_view(args: argparse.Namespace, options: dict[str, Any]) -> GraphView:
    """Return the graph of a list of calls, which has no data: they are linked by order."""
    if args.address is not None:
        raise ClewError(f"{args.trace} is a list of calls, in which no address can be looked up")
    try:
        lines = Path(args.trace).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as broken:
        raise ClewError(f"{args.trace} is neither a trace nor a list of calls: {broken}") from None
    options.setdefault("edges", "calls")
    return views.graph_view(analysis.read_calls(lines, Path(args.trace).name), **options)
