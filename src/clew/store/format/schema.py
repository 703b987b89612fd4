"""Arrow schemas of a trace on disk, and its file names.

The event table has texts (name, module, file, line) beside the raw numbers, and every fact that is
derived from them, so that any SQL engine can query it alone.
"""

from __future__ import annotations

import pyarrow as pa

EVENTS = pa.schema(
    [
        ("id", pa.int64()),
        ("parent", pa.int64()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("address", pa.string()),
        ("module", pa.string()),
        ("call", pa.int64()),
        ("step", pa.int64()),
        ("phase", pa.string()),
        ("rank", pa.int32()),
        ("thread", pa.string()),
        ("file", pa.string()),
        ("line", pa.int32()),
        ("function", pa.string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("error", pa.string()),
        ("inputs", pa.list_(pa.string())),
        ("outputs", pa.list_(pa.string())),
        # over all outputs, null if no statistics were recorded
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("nan", pa.int64()),
        ("inf", pa.int64()),
        # ids of the forward op of a backward op, and of the module call an event belongs to; the
        # name of the `clew.prefix` block, empty for none
        ("forward", pa.int64()),
        ("owner", pa.int64()),
        ("prefix", pa.string()),
        # rows of the tables
        ("source", pa.int64()),
        ("subject", pa.int64()),
        ("place", pa.int64()),
        ("number", pa.int64()),
        ("template", pa.int64()),
        ("values", pa.list_(pa.int64())),
        # for an op that drew random numbers: the generator, and how often it was used before
        ("generator", pa.int64()),
        ("draw", pa.int64()),
    ]
)

VALUES = pa.schema(
    [
        ("value", pa.int64()),
        ("producer", pa.int64()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("device", pa.string()),
        ("name", pa.string()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("mean", pa.float64()),
        ("std", pa.float64()),
        ("norm", pa.float64()),
        ("nan", pa.int64()),
        ("inf", pa.int64()),
        ("zeros", pa.int64()),
        ("count", pa.int64()),
        ("digest", pa.string()),
        # axes, their sizes, sums of x, |x|, x², |x|³, then those along each of the last eight axes
        ("fingerprint", pa.list_(pa.float64())),
        # where the data is: in `data`, in the `data` of another value, or in a shard
        ("data", pa.binary()),
        ("data_of", pa.int64()),
        ("data_dtype", pa.string()),
        ("data_shape", pa.list_(pa.int64())),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("checksum", pa.int64()),
        # rows of the tables
        ("version", pa.int64()),
        ("storage", pa.int64()),
        ("meta", pa.int64()),
        ("grad", pa.int64()),
        ("value_name", pa.int64()),
        # bytes of the memory, and the id of the first op after it was freed
        ("nbytes", pa.int64()),
        ("freed", pa.int64()),
    ]
)

TABLES = pa.schema([("table", pa.string()), ("number", pa.int64()), ("row", pa.string())])

# The column that holds data; its cells are not dictionary-encoded.
UNFOLDED = "data"

SCHEMAS = {"events": EVENTS, "values": VALUES, "tables": TABLES}

# Columns whose negative numbers are written as null.
NULLABLE = frozenset(
    {"parent", "call", "line", "end", "forward", "owner", "source", "nan", "inf", "generator",
     "draw", "nbytes", "freed"}
)  # fmt: skip

STAT_NAMES = ("min", "max", "mean", "std", "norm", "nan", "inf", "zeros", "count", "digest")


def rank_folder(rank: int) -> str:
    """Return the folder of one rank's files."""
    return f"rank={rank:05d}"


def part_name(table: str, index: int, live: bool) -> str:
    """Return the file of one part of a table."""
    return f"{table}-{index:05d}.{'arrows' if live else 'parquet'}"


def footer_name(stem: str) -> str:
    """Return the file with a copy of a sealed part's footer, which is needed to find its rows."""
    return f".{stem}.footer"
