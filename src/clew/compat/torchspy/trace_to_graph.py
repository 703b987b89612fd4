"""torchspy's graph command: `python -m clew.compat.torchspy.trace_to_graph --trace-file … --out …`.

In comes a trace file, out go a picture and, if asked for, the tree as JSON.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from clew.compat.torchspy.trace_graph import build_tree, parse_trace, render_graph, save_tree_json
from clew.errors import ClewError


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw a trace file; the exit code."""
    parser = argparse.ArgumentParser(prog="trace_to_graph", description=__doc__)
    add = parser.add_argument
    add("--trace-file", required=True, help="a file with one module path per line")
    add("--out", required=True, help="the picture to write; .png is added if it has no ending")
    add("--show-repetition", action=argparse.BooleanOptionalAction, default=True)
    add("--prune-leaves", action=argparse.BooleanOptionalAction, default=True)
    add("--squash-name", action="store_true", help="one box for modules of one name")
    add("--dpi", type=int, default=150)
    add("--figwidth", type=float)
    add("--figheight", type=float)
    add("--save-json", help="write the tree as JSON too")
    add("--verbose", action="store_true")
    args = parser.parse_args(arguments)
    try:
        tree = build_tree(parse_trace(args.trace_file))
        drawing = render_graph(
            tree, args.show_repetition, args.prune_leaves, args.squash_name, args.dpi,
            args.figwidth, args.figheight,
        )  # fmt: skip
        path = drawing.render(args.out)
        if args.save_json:
            save_tree_json(tree, args.save_json)
    except (ClewError, OSError, ValueError) as error:
        sys.stderr.write(f"trace_to_graph: {error}\n")
        return 2
    if args.verbose:
        sys.stdout.write(f"{path}: {drawing.view}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
