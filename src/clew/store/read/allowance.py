"""How much memory the files of a trace may take to read: a stated multiple of their bytes.

A few bytes of Parquet can stand for gigabytes: runs of one value, packed differences, one text that
a million rows share. So the memory for rows, lists and texts is estimated before they are decoded.
Input: the bytes of the files and what they declare. Output: ValueError once that is more than
recorded files of that size would take.
"""

from __future__ import annotations

# No call that reads a trace takes more memory than this for each byte of its files, besides what it
# takes for the smallest trace and 64 MB; `to_dict`, which makes an object of every fact, takes four
# times as much. A million recorded events take 9 to 25 bytes each in the files, and 30 to 120 times
# as much in memory.
MEMORY_PER_BYTE = 256

# Bytes that the most expensive call takes: for a row of each table, for an item of a list in one,
# and for an element of JSON.
_ROW = {"events": 1400, "values": 700, "tables": 250}
_ITEM = 56
_ELEMENT = 32


class Allowance:
    """Memory that some files may still take."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.left = MEMORY_PER_BYTE * size

    def spend(self, cost: int, what: str) -> None:
        """Subtract a cost from what is left; raise ValueError if it is more."""
        if cost > self.left:
            raise ValueError(
                f"{what} would take {cost} bytes of memory, more than {MEMORY_PER_BYTE} times the "
                f"{self._size} bytes of the files, which those of a recorded trace never do"
            )
        self.left -= cost

    def rows(self, table: str, count: int, items: int, unfolded: int) -> None:
        """Subtract the cost of rows, of items of their lists, and of unpacked bytes."""
        what = f"{count} rows and {items} items of lists in {unfolded} bytes"
        self.spend(count * _ROW[table] + items * _ITEM + unfolded, what)

    def json(self, length: int, elements: int) -> None:
        """Subtract the cost of JSON text as objects."""
        self.spend(length + elements * _ELEMENT, f"{length} characters of JSON")
