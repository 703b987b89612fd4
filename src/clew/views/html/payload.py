"""Bytes inside a report: typed columns and a JSON head, compressed, as base64 text.

Input: arrays and plain data. Output: text for a `<script type="text/plain">`. The bytes are the
length of the head (4 bytes, little-endian), the head, then the columns. Integers take as few bytes
as they need. A column may hold differences instead of values. Its bytes are stored plane by plane,
all first bytes, then all second bytes, which compresses far better. `viewer/src/payload.ts` reads
it.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.views.strict_json import as_json

_WHOLE = ("u1", "i1", "u2", "i2", "u4", "i4")
# A higher level takes twice as long and saves a fiftieth.
_LEVEL = 3


class Packer:
    """Collects columns, then packs them with a head that says where each is."""

    def __init__(self) -> None:
        self._places: dict[str, list[object]] = {}
        self._pieces: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, name: str, column: Any, differences: bool = False) -> None:
        """Add numbers; with `differences`, each but the first as the difference from the one
        before.
        """
        array = np.asarray(column)
        if differences and len(array):
            array = np.concatenate([array[:1], np.diff(array)])
        array = _narrowed(array)
        planes = array.view(np.uint8).reshape(len(array), array.dtype.itemsize).T
        kind = f"{array.dtype.kind}{array.dtype.itemsize}"
        self._put(name, [kind, self._size, len(array), int(differences)], planes.tobytes())

    def add_bytes(self, name: str, data: bytes) -> None:
        """Add bytes unchanged."""
        self._put(name, ["u1", self._size, len(data), 0], data)

    def _put(self, name: str, place: list[object], data: bytes) -> None:
        self._places[name] = place
        self._pieces.append(data)
        self._size += len(data)

    def text(self, head: dict[str, object]) -> str:
        """Return everything as base64."""
        packed = as_json({**head, "columns": self._places}).encode()
        data = b"".join([len(packed).to_bytes(4, "little"), packed, *self._pieces])
        deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        return base64.b64encode(deflate.compress(data) + deflate.flush()).decode("ascii")


def _narrowed(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in the smallest type that holds it; integers over 32 bits become floats."""
    if array.dtype.kind == "f":
        return array.astype(np.dtype(array.dtype).newbyteorder("<"))
    if array.dtype.kind == "b" or not len(array):
        return array.astype("u1")
    low, high = int(array.min()), int(array.max())
    for kind in _WHOLE:
        limits = np.iinfo(kind)
        if limits.min <= low and high <= limits.max:
            return array.astype(f"<{kind}")
    return array.astype("<f8")
