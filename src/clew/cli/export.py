"""`clew export`: the trace, or the values it kept, in the files of other tools."""

from __future__ import annotations

import argparse

from clew.cli.exist_option import add_exist
from clew.cli.output import complain, emit, within
from clew.cli.reading import Commands, add_command, add_rank, open_trace, positive
from clew.errors import ClewError
from clew.views.export.formats import FORMATS

# Passed on when given; a format refuses options that it does not have.
_OPTIONS = ("addresses", "compression", "depth", "dtype", "labels", "ragged", "shuffle")
_PROBLEMS = 10


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = (
        "hdf5, zarr and pt hold the data that was kept; parquet, json, csv and chrome the events; "
        "dot (for Netron, Graphviz), mermaid and model_explorer the graph. "
        "Exits with 1 if something had to be left out."
    )
    parser = add_command(commands, "export", run, more)
    parser.add_argument("format", metavar="FORMAT", choices=FORMATS, help=", ".join(FORMATS))
    parser.add_argument("out", metavar="OUT", help="the file (for zarr the folder) to write")
    add_exist(parser)
    # The earlier name of --exist=replace.
    parser.add_argument("--replace", action="store_const", const="replace", dest="exist",
                        help=argparse.SUPPRESS)  # fmt: skip
    add = parser.add_argument_group("hdf5, zarr and pt").add_argument
    several = "may be repeated"
    only = f"only these values; {several}"
    add("--address", action="append", dest="addresses", metavar="ADDRESS", help=only)
    dtype = f"float32 for all floating-point data, or int64=int32 for one dtype; {several}"
    add("--dtype", action="append", metavar="DTYPE", help=dtype)
    ragged = "values of several shapes: pad with zeros (lengths beside), an array each, or as fits"
    add("--ragged", choices=("auto", "pad", "apart"), help=ragged)
    add("--compression", metavar="NAME", help="gzip or lzf (hdf5), zstd or gzip (zarr), or none")
    add("--shuffle", action="store_true", default=None, help="shuffle bytes before compressing")
    add("--labels", action="store_true", default=None, help="pt: steps, ranks and calls as well")
    depth = "modules down to this depth"
    parser.add_argument_group("dot, mermaid and model_explorer").add_argument(
        "--depth", type=positive, metavar="N", help=depth
    )
    add_rank(parser)


def run(args: argparse.Namespace) -> int:
    """Write the file, and print what is in it."""
    options = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    if "dtype" in options:
        options["dtype"] = _dtypes(options["dtype"])
    if options.get("compression") == "none":
        options["compression"] = None
    done = open_trace(args).export(args.format, args.out, exist=args.exist, **options)
    emit(args, done.to_dict, lambda: str(done))
    for problem in within(list(done.left_out), _PROBLEMS, "--json"):
        complain(f"left out {problem}")
    return 1 if done.left_out else 0


def _dtypes(given: list[str]) -> str | dict[str, str]:
    """Return `--dtype float32` as a text, `--dtype int64=int32 --dtype bool=uint8` as a dict."""
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    pairs = [text.partition("=") for text in given]
    if not all(sign for _, sign, _ in pairs):
        raise ClewError("several --dtype are written RECORDED=STORED, such as int64=int32")
    return {recorded: stored for recorded, _, stored in pairs}
