"""Callbacks: what is made of the values of an address, by the user's functions or by ready ones.

>>> import numpy as np
>>> from clew import callbacks
>>> callbacks.mean(0)(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
[2.0, 3.0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

__all__ = [
    "Callbacks",
    "absmax",
    "as_array",
    "deterministic",
    "histogram",
    "mean",
    "norm",
    "reducer",
    "stack",
    "stack_padded",
    "std",
    "topk",
]

if TYPE_CHECKING:
    from clew.request.callbacks import (
        Callbacks,
        absmax,
        as_array,
        deterministic,
        histogram,
        mean,
        norm,
        reducer,
        stack,
        stack_padded,
        std,
        topk,
    )

__getattr__ = lazy_names(globals(), dict.fromkeys(__all__, "clew.request.callbacks"))
