"""Columns of texts of Arrow as NumPy, by the numbers of the texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clew.analysis.ranks.keys import Ints
from clew.store.read.rank_columns import ints


@dataclass(frozen=True)
class Coded:
    """A column of texts: a number per row into the texts, -1 for none."""

    codes: Ints
    texts: list[str]

    def __getitem__(self, row: int) -> str | None:
        code = int(self.codes[row])
        return None if code < 0 else self.texts[code]

    def where(self, test: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Return the rows whose text passes a test, which is made once per text."""
        passed = np.array([*(bool(test(text)) for text in self.texts), False])
        return np.asarray(passed[self.codes])


def coded(column: pa.ChunkedArray) -> Coded:
    """Return a column of dictionary-encoded texts."""
    whole = column.combine_chunks()
    return Coded(ints(whole.indices), [text or "" for text in whole.dictionary.to_pylist()])
