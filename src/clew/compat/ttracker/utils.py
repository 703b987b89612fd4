"""Tensor Tracker's helpers for many ranks: print every so often, dump tensors, stop after a while.

Works in one process too, which is rank 0, and without torch but for dumps.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from clew import store
from clew.compat.engine.tensor_files import own_parts
from clew.session.environment import rank_and_size
from clew.watch_output import print_lines, safe_name

_said: Counter[tuple[int, str]] = Counter()
_dumped = itertools.count(1)


def inlog(tmpstr: str, tmpt: Any, interval: int = 1, save2file: bool = False) -> None:
    """Print a text and a value, every `interval` times that the text comes by in a thread."""
    key = (threading.get_ident(), tmpstr)
    _said[key] += 1
    if _said[key] % max(interval, 1):
        return
    print_lines([f"{tmpstr} {tmpt}"])
    if save2file:
        path = Path("logs", "ranklogs", f"rank_{rank_and_size()[0]}.log")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{tmpstr} {tmpt} \n")


def safe_mean(tensor: Any) -> Any:
    """Return the mean of a tensor or array of any dtype; of integers and booleans as a float."""
    if isinstance(tensor, np.ndarray):
        return tensor.mean() if tensor.size else np.float64("nan")
    if not tensor.is_complex() and str(tensor.dtype) not in ("torch.float32", "torch.float64"):
        tensor = tensor.float()
    return tensor.mean()


def dlog(tmpstr: str, tmpt: Any, record_all: bool = False, interval: int = 1) -> None:
    """Print shape, sum and mean of a tensor, on rank 0 or on all; anything else as it is."""
    rank, _ = rank_and_size()
    if rank != 0 and not record_all:
        return
    with contextlib.suppress(Exception):  # no tensor, or of a kind that has no sum
        total, mean = tmpt.sum(), safe_mean(tmpt)
        inlog(f"{tmpstr} rank{rank} {tmpt.shape}", total, interval, record_all)
        tmpt = mean
    inlog(f"{tmpstr} rank{rank}", tmpt, interval, record_all)


def dump_data(tmpstr: str, ttensor: Any) -> None:
    """Write a tensor to `dump_data/tensor_{name}_{count}_{rank}.pt`."""
    path = Path("dump_data", f"tensor_{safe_name(tmpstr)}_{next(_dumped)}_{rank_and_size()[0]}.pt")
    path.parent.mkdir(exist_ok=True)
    store.save_tensors(own_parts(ttensor), path)


def check_run_count(unique_id: object, max_allow: int, remove_when_exit: bool = True) -> None:
    """End the program when this is called for the `max_allow`th time."""
    path = Path(safe_name(f"run_count_{os.getpid()}_{threading.get_ident()}_{unique_id}") + ".txt")
    count = int(path.read_text() or 0) + 1 if path.exists() else 1
    path.write_text(str(count))
    if count >= max_allow:
        if remove_when_exit:
            path.unlink()
        print_lines([f"{unique_id} ran {count} times, and {max_allow} are allowed: the end"])
        sys.exit(1)
