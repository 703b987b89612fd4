"""Columns of texts of Arrow as NumPy, by the numbers of the texts."""

from __future__ import annotations

import pyarrow as pa

from clew.events.columns import Coded
from clew.store.read.rank_columns import ints


def coded(column: pa.ChunkedArray) -> Coded:
    """Return a column of dictionary-encoded texts."""
    whole = column.combine_chunks()
    return Coded(ints(whole.indices), [text or "" for text in whole.dictionary.to_pylist()])
