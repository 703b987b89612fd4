"""TensorTracer's helpers for paths into values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clew.observe.variables.frames.paths import child_named, children, follow

get_object_items = children


def get_object_value(obj: Any, key: Any) -> Any:
    """Return what an object has under a key, an index (also as text) or a name, or None."""
    return next((value for _, value in child_named(obj, key)), None)


def extract_nested_values(data: Any, paths: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return all values that paths lead to, by path; `*` is any key, one path may begin another."""
    return {name: value for path in paths for name, value in follow(data, path).places}


def partial_path_matching(target_path: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether a path leads towards a target, in which `*` is any name."""
    pairs = zip(target_path, path, strict=False)
    return len(target_path) >= len(path) and all(a == "*" or b in ("", a) for a, b in pairs)


def exact_path_matching(target_path: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether a path is a target, in which `*` is any name."""
    return len(target_path) == len(path) and partial_path_matching(target_path, path)
