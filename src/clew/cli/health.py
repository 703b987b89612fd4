"""`clew health`: whether training and data look healthy, rule by rule."""

from __future__ import annotations

import argparse
import contextlib

from clew.cli.output import emit
from clew.cli.reading import Commands, add_command, add_rank, open_trace, positive

_ROWS = 5


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = (
        "Rules are about gradients, activations, parameters, updates, the loss, train and eval "
        "mode, batches and images. Exits with 1 if a rule found something."
    )
    parser = add_command(commands, "health", run, more)
    parser.add_argument(
        "--set", type=_threshold, metavar="NAME=VALUE", action="append", default=[],
        help="another threshold, such as vanishing=1e-6; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--rows", type=positive, metavar="N", default=_ROWS,
        help=f"at most so many findings of each rule ({_ROWS})",
    )  # fmt: skip
    add_rank(parser)


def run(args: argparse.Namespace) -> int:
    """Print the verdict of each rule."""
    health = open_trace(args).health(**dict(args.set))
    most = max((len(rule.findings) for rule in health.rules), default=0)
    emit(args, health.to_dict, lambda: health.text(args.rows, f"--rows {most} shows all"))
    return 0 if health.is_fine else 1


def _threshold(text: str) -> tuple[str, float]:
    """Parse `vanishing=1e-6`."""
    name, equals, value = text.partition("=")
    with contextlib.suppress(ValueError):
        if equals:
            return name.strip(), float(value)
    raise argparse.ArgumentTypeError(f"{text!r} is not a name, =, and a number")
