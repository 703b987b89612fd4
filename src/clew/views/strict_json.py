"""JSON that every parser accepts: NaN and infinities are strings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def as_json(data: object, indent: int | None = None) -> str:
    """Write strict JSON: `nan` and infinities, which it lacks, as strings; other objects as text.

    >>> as_json({"max": float("inf"), "shape": (2, 3)})
    '{"max": "inf", "shape": [2, 3]}'
    """
    try:
        return json.dumps(data, indent=indent, default=str, allow_nan=False)
    except (ValueError, TypeError):
        # Rare, so the whole is searched only then: a float JSON lacks, or a key that is no string.
        return json.dumps(_strict(data), indent=indent, default=str, allow_nan=False)


def _strict(data: object) -> object:
    if isinstance(data, float):
        return data if math.isfinite(data) else str(data)
    if isinstance(data, Mapping):
        return {str(key): _strict(item) for key, item in data.items()}
    if isinstance(data, (list, tuple)):
        return [_strict(item) for item in data]
    return data
