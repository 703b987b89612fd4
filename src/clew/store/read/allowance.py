"""How much memory the files of a trace may take to read: a stated multiple of their bytes.

A few bytes of Parquet can stand for gigabytes: runs of one value, packed differences, one text that
a million rows share. So what rows, lists and texts will take is reckoned before they are unfolded.
In come the bytes of the files and what they hold, out comes ValueError once that is more than the
files can honestly stand for.
"""

from __future__ import annotations

# No call that reads a trace takes more memory than this for each byte of its files, beside what it
# takes for the smallest one and 64 MB. Events that a program recorded take 18 bytes each in the
# files and up, and 20 to 50 times their bytes in memory.
MEMORY_PER_BYTE = 128

# What the most expensive of the calls takes, in bytes: for a row of each table, for an item of a
# list in one, and for an element of JSON.
_ROW = {"events": 1400, "values": 700, "tables": 300}
_ITEM = 56
_ELEMENT = 64


class Allowance:
    """What some files may still take."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = MEMORY_PER_BYTE * size

    def spend(self, cost: int, what: str) -> None:
        """Take something from what is left; ValueError if there is not so much."""
        self._left -= cost
        if self._left < 0:
            raise ValueError(
                f"its {self._size} bytes would take more than {MEMORY_PER_BYTE} times as much to "
                f"read, for {what}, which those of a recorded trace never do"
            )

    def rows(self, table: str, count: int, items: int, unfolded: int) -> None:
        """Take what rows of a table need, with the items of their lists, from unpacked bytes."""
        what = f"{count} rows and {items} items of lists in {unfolded} bytes"
        self.spend(count * _ROW[table] + items * _ITEM + unfolded, what)

    def json(self, length: int, elements: int) -> None:
        """Take what JSON text needs as objects."""
        self.spend(length + elements * _ELEMENT, f"{length} characters of JSON")
