"""torchspy's graph command: `python -m clew.compat.torchspy.trace_to_graph --trace-file … --out …`.

In comes a trace file, out go a picture and, if asked for, the tree as JSON.
"""

import argparse
import sys
from collections.abc import Sequence

from clew.compat.torchspy.trace_graph import build_tree, parse_trace, render_graph, save_tree_json
from clew.errors import ClewError
from clew.views.text.style import suited


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw a trace file; the exit code."""
    parser = argparse.ArgumentParser(prog="trace_to_graph", description=__doc__)
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    add("--trace-file", required=True, help="a file with one module path per line")
    add("--out", required=True, help="the picture to write; .png is added if it has no ending")
    add("--show-repetition", action=switch, default=True)
    add("--prune-leaves", action=switch, default=True, dest="prune_leaves_flag")
    add("--squash-name", action="store_true", help="one box for modules of one name")
    add("--dpi", type=int, default=150)
    add("--figwidth", type=float)
    add("--figheight", type=float)
    add("--save-json", help="write the tree as JSON too")
    add("--verbose", action="store_true")
    options = vars(parser.parse_args(arguments))
    file, out, json, verbose = map(options.pop, ("trace_file", "out", "save_json", "verbose"))
    try:
        tree = build_tree(parse_trace(file))
        drawing = render_graph(tree, **options)
        path = drawing.render(out)
        if json:
            save_tree_json(tree, json)
    except (ClewError, OSError, ValueError) as error:
        sys.stderr.write(f"trace_to_graph: {error}\n")
        return 2
    if verbose:
        sys.stdout.write(suited(f"{path}: {drawing}\n", sys.stdout))
    return 0


if __name__ == "__main__":
    sys.exit(main())
