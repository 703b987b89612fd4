"""A tensor in one line: `f32[2,3]`, with its statistics if they are known.

Input: facts, statistics and data. Output: text. Every view writes tensors this way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np

from clew.events.model import Stats
from clew.events.number_text import measured
from clew.plain_text import plain
from clew.spec import DTYPE_PREFIXES, SHORT_DTYPES

_PYTHON = frozenset({"bool", "int", "float", "complex", "str", "bytes", "NoneType"})
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = ".:-=+*#@"
_BINS = 10
# Enough elements for a histogram; more would be slow to print.
_SAMPLE = 1 << 17


def short_dtype(dtype: str) -> str:
    """Write `float32` as `f32`, `float8_e4m3fn` as `f8e4m3fn`; a dtype without a short form in
    full.

    >>> short_dtype("bfloat16"), short_dtype("float8_e5m2"), short_dtype("quint8")
    ('bf16', 'f8e5m2', 'quint8')
    """
    for start, short in DTYPE_PREFIXES.items():
        if dtype.startswith(start):
            return short + dtype.removeprefix(start)
    return SHORT_DTYPES.get(dtype, dtype)


def tensor_text(meta: Any) -> str:
    """Write a tensor as `f32[2,3]`, an array as `np.f32[2,3]`, and what differs from a plain one.

    Anything else is written as its type. `meta` has the facts of a tensor as its attributes: a
    `Meta` of the columns, or a `Value`.
    """
    if meta.shape is None:
        shape = "?"
    else:
        shape = ",".join("?" if size < 0 else str(size) for size in meta.shape)
    parts = [f"{short_dtype(meta.dtype)}[{shape}]"]
    if meta.cls == "ndarray":
        return plain(f"np.{parts[0]}")
    if is_python(meta):
        return "None" if meta.cls == "NoneType" else plain(str(meta.cls))
    if meta.layout not in ("strided", ""):
        parts.append(meta.layout)
    if meta.local_shape is not None:
        local = ",".join(map(str, meta.local_shape))
        parts.append(f"local [{local}] {meta.placements}")
    elif meta.cls not in ("Tensor", "Parameter") and meta.layout != "jagged":
        parts.append(meta.cls)
    return plain(" ".join(parts))


def is_python(meta: Any) -> bool:
    """Return whether a value is neither tensor nor array: a number, text, any object."""
    return meta.cls in _PYTHON or meta.dtype == "object"


def numbers_text(stats: Stats | None, array: Any) -> str:
    """Write a tensor's numbers: a small histogram, range, mean, and counts of NaN and Inf.

    >>> from clew.events.model import Stats
    >>> numbers_text(Stats(-1.0, 2.0, 0.5, 1.0, 3.0, nan=2, inf=0, zeros=0, count=9), None)
    '[-1, 2] μ 0.5 σ 1 NaN ×2'
    """
    if stats is None:
        if array is None:
            return ""
        stats = stats_of(array)
    parts = []
    if array is not None and array.size > 1:
        parts.append(_bars(array))
    if stats.min is not None and stats.max is not None:
        same = stats.min == stats.max
        parts.append(
            measured(stats.min) if same else f"[{measured(stats.min)}, {measured(stats.max)}]"
        )
        if not same and stats.mean is not None and stats.std is not None:
            mu, sigma = ("μ", "σ") if takes("μσ") else ("mean", "std")
            parts.append(f"{mu} {measured(stats.mean)} {sigma} {measured(stats.std)}")
    times = "×" if takes("×") else "x"
    parts += [f"{name} {times}{n:,}" for name, n in (("NaN", stats.nan), ("Inf", stats.inf)) if n]
    return " ".join(filter(None, parts))


def stats_of(array: Any) -> Stats:
    """Statistics of data that was kept without any."""
    real = np.abs(array) if array.dtype.kind == "c" else array.astype(np.float64)
    finite = real[np.isfinite(real)]
    known = finite.size > 0
    return Stats(
        min=float(finite.min()) if known else None,
        max=float(finite.max()) if known else None,
        mean=float(finite.mean()) if known else None,
        std=float(finite.std()) if known else None,
        norm=float(np.sqrt((finite**2).sum())) if known else None,
        nan=int(np.isnan(real).sum()),
        inf=int(np.isinf(real).sum()),
        zeros=int((real == 0).sum()),
        count=int(real.size),
    )


def _bars(array: Any) -> str:
    """Return a histogram of ten bars."""
    flat = array.reshape(-1)[:: max(1, array.size // _SAMPLE)]
    flat = np.abs(flat) if flat.dtype.kind == "c" else flat.astype(np.float64)
    flat = flat[np.isfinite(flat)]
    if not flat.size or flat.min() == flat.max() or not np.isfinite(flat.max() - flat.min()):
        return ""
    bins = np.histogram(flat, _BINS)[0]
    return bar_line(bins.tolist(), int(bins.max()))


def bar_line(numbers: Sequence[int], most: int) -> str:
    """Draw numbers from 0 to `most` as a line of bars."""
    bars = _BARS if takes(_BARS) else _ASCII_BARS
    return "".join(bars[round(n / max(most, 1) * (len(bars) - 1))] for n in numbers)


def takes(symbols: str, stream: TextIO | None = None) -> bool:
    """Return whether a stream, by default standard output, can show symbols."""
    stream = sys.stdout if stream is None else stream
    try:
        symbols.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeError, LookupError):
        return False
    return True
