"""How much memory the files of a trace may take to read: a stated multiple of their bytes.

A few bytes of Parquet can stand for gigabytes: runs of one value, packed differences, one text that
a million rows share. So what rows, lists and texts will take is reckoned before they are unfolded.
In come the bytes of the files and what they hold, out comes ValueError once that is more than the
files can honestly stand for.
"""

from __future__ import annotations

# No call that reads a trace takes more memory than this for each byte of its files, beside what it
# takes for the smallest one and 64 MB; `to_dict`, which makes an object of every fact, takes four
# times as much. A million events that a program recorded take 9 to 25 bytes each in the files, and
# 30 to 120 times as much in memory.
MEMORY_PER_BYTE = 256

# What the most expensive of the calls takes, in bytes: for a row of each table, for an item of a
# list in one, and for an element of JSON.
_ROW = {"events": 1400, "values": 700, "tables": 250}
_ITEM = 56
_ELEMENT = 32


class Allowance:
    """What some files may still take."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.left = MEMORY_PER_BYTE * size

    def spend(self, cost: int, what: str) -> None:
        """Take something from what is left; ValueError if there is not so much."""
        if cost > self.left:
            raise ValueError(
                f"{what} would take {cost} bytes of memory, more than {MEMORY_PER_BYTE} times the "
                f"{self._size} bytes of the files, which those of a recorded trace never do"
            )
        self.left -= cost

    def rows(self, table: str, count: int, items: int, unfolded: int) -> None:
        """Take what rows of a table need, with the items of their lists, from unpacked bytes."""
        what = f"{count} rows and {items} items of lists in {unfolded} bytes"
        self.spend(count * _ROW[table] + items * _ITEM + unfolded, what)

    def json(self, length: int, elements: int) -> None:
        """Take what JSON text needs as objects."""
        self.spend(length + elements * _ELEMENT, f"{length} characters of JSON")
