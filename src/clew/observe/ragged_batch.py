"""Say which sample of a batch has another shape than the others.

Input: the samples that `collate_fn` was given, and their indices in the dataset. Output: a
sentence, empty if all shapes agree. Must not import torch; reads shapes only, and keeps nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

from clew.events.tensor_text import short_dtype
from clew.frame_locals import some_locals

# What `stack` of tensors and arrays says, and `default_collate` of lists.
_OF_SHAPES = re.compile(
    "stack expects each tensor to be equal size|must have the same shape|Sizes of tensors must "
    "match|should be of equal size|not resizable"
)
_FETCH = re.compile(r"[/\\]torch[/\\]utils[/\\]data[/\\]_utils[/\\]fetch\.py$")
_MOST_SAMPLES = 100_000
_MOST_NAMED = 3
_DEEPEST = 6


def is_about_shapes(error: BaseException) -> bool:
    """Return whether an exception may be due to samples of different shapes."""
    try:
        return _OF_SHAPES.search(str(error)) is not None
    except Exception:  # a class of the program whose text fails
        return False


def batch_of_frames(frames: Sequence[FrameType]) -> str:
    """Say which sample differs, from the frame of the DataLoader that fetched the batch."""
    for frame in frames:
        code = frame.f_code
        if code.co_name == "fetch" and _FETCH.search(code.co_filename):
            indices, items = some_locals(frame, ("possibly_batched_index", "data"))
            return ragged_text(indices, items)
    return ""


def ragged_text(indices: Any, items: Any) -> str:
    """Say which samples differ from the others, by their indices where these are numbers."""
    if type(items) is not list or not 2 <= len(items) <= _MOST_SAMPLES:
        return ""
    known = isinstance(indices, list | tuple) and len(indices) == len(items)
    names = [_name(indices[at] if known else None, at) for at in range(len(items))]
    looks = [_looks(item) for item in items]
    for path in looks[0]:
        of_samples = [found.get(path) for found in looks]
        if None not in of_samples and len(set(of_samples)) > 1:
            return _said(names, path, [str(look) for look in of_samples])
    return ""


def _name(index: Any, at: int) -> str:
    """Return `sample 17`, or `entry 2 of the batch` if the index is no number."""
    is_number = type(index) is int or (type(index) is str and index.isdecimal())
    return f"sample {index}" if is_number else f"entry {at} of the batch"


def _said(names: list[str], path: str, looks: list[str]) -> str:
    where = f" at {path}" if path else ""
    (usual, count), *_ = Counter(looks).most_common()
    if count * 2 <= len(looks):
        other = next(at for at, look in enumerate(looks) if look != looks[0])
        return f"{names[0]} is {looks[0]}{where}, {names[other]} is {looks[other]}"
    odd = [at for at, look in enumerate(looks) if look != usual]
    listed = ", ".join(f"{names[at]} is {looks[at]}" for at in odd[:_MOST_NAMED])
    more = f" and {len(odd) - _MOST_NAMED:,} more differ" if len(odd) > _MOST_NAMED else ""
    others = "the other is" if count == 1 else f"the other {count:,} are"
    return f"{listed}{more}{where}; {others} {usual}"


def _looks(item: Any, path: str = "", depth: int = 0) -> dict[str, str]:
    """Return dtype and shape of each tensor and array of a sample, by its path in it."""
    if depth > _DEEPEST:
        return {}
    if type(item) in (list, tuple):
        parts = [(str(at), one) for at, one in enumerate(item)]
    elif type(item) is dict:
        parts = [(str(key), one) for key, one in item.items() if type(key) in (str, int)]
    else:
        look = _look(item)
        return {path: look} if look else {}
    found: dict[str, str] = {}
    for name, one in parts:
        found |= _looks(one, f"{path}.{name}" if path else name, depth + 1)
    return found


def _look(item: Any) -> str:
    """Return `f32[3,4]` of a plain tensor or array, empty for anything else."""
    cls = type(item)
    if (cls.__module__, cls.__name__) not in (("torch", "Tensor"), ("numpy", "ndarray")):
        return ""
    sizes = ",".join(str(int(size)) for size in item.shape)
    return f"{short_dtype(str(item.dtype).removeprefix('torch.'))}[{sizes}]"
