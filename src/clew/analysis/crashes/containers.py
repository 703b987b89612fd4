"""Tuples, lists and dicts where a tensor goes, and values unpacked into too many or few names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clew.analysis.crashes.cause import Cause
from clew.analysis.crashes.layer_sizes import last_size
from clew.analysis.crashes.scene import GivenTensor, Scene
from clew.events.vocabulary import MODULE

# Modules that return what is computed first, and states or weights after it.
_FIRST_IS_RESULT = ("LSTM", "GRU", "RNN", "MultiheadAttention")
_MOST_CALLS = 200


def container_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which argument is a tuple, and which of its tensors is likely meant."""
    kind = match["kind"]
    for name in _written(scene):
        noted = scene.facts.containers.get(name)
        inside = [one for one in scene.arguments if one.name.startswith(f"{name}[")]
        if noted is None and not inside:
            continue
        if noted is not None and noted.kind != kind:
            continue
        count = noted.count if noted is not None else len({_key(name, one) for one in inside})
        says = f"{name} is a {kind} of {count}, not a tensor"
        return Cause((says,), _meant(scene, name, kind, inside))
    given = None if scene.layer is None else scene.layer.given
    if scene.layer is not None and given is not None and not given.is_written:
        return Cause((f"{scene.layer.name} was given a {kind}, not a tensor",))
    return None


def _written(scene: Scene) -> Iterator[str]:
    if scene.failed is None:
        return
    yield from (one.text for one in scene.failed.positional)
    yield from (one.text for one in scene.failed.operands)


def _key(name: str, item: GivenTensor) -> str:
    """Return the key of an item, or of the container in which it is, with its brackets."""
    return item.name[len(name) :].partition("]")[0] + "]"


def _meant(scene: Scene, name: str, kind: str, inside: list[GivenTensor]) -> str | None:
    """Return the item that is meant, if one alone can be, or if it is known what comes first."""
    direct = [one for one in inside if one.name == name + _key(name, one)]
    wanted = last_size(scene.layer) if scene.layer is not None else None
    sized = [one for one in direct if one.shape and wanted in (None, one.shape[-1])]
    if len(sized) == 1:
        return sized[0].name
    if kind != "tuple" or not sized or sized[0].name != f"{name}[0]":
        return None
    is_pair = len({one.shape for one in direct}) == 1  # the states of an LSTM
    return sized[0].name if is_pair or _is_first_result(scene, sized[0]) else None


def _is_first_result(scene: Scene, first: GivenTensor) -> bool:
    """Return whether a layer that returns its result first has returned a tensor like this."""
    run = scene.run
    for row in reversed(run.rows(MODULE).tolist()[-_MOST_CALLS:]):
        if run.name(row) in _FIRST_IS_RESULT:
            result = run.event(row).outputs.get("0")
            if result is not None and (result.dtype, result.shape) == (first.dtype, first.shape):
                return True
    return False


def unpacking_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell how many values there were, and how many names."""
    failed = scene.failed
    if failed is None or not failed.targets:
        return None
    value, names = failed.operands[-1].text, ", ".join(failed.targets)
    into = f"{len(failed.targets)} names ({names})"
    tensor = scene.facts.tensors.get(value.removesuffix(".shape").removesuffix(".size()"))
    if tensor is not None and value.endswith((".shape", ".size()")):
        return Cause((f"{value} has {len(tensor.shape)} sizes, unpacked into {into}",))
    inside = [one for one in scene.arguments if one.name.startswith(f"{value}[")]
    noted = scene.facts.containers.get(value)
    keys = list(dict.fromkeys(_key(value, one) for one in inside))
    count = noted.count if noted is not None else len(keys)
    if tensor is not None and tensor.shape:
        count = tensor.shape[0]
    got = re.search(r"got (\d+)\)", scene.text)
    count = int(got[1]) if got else count
    if not count:
        return Cause((f"{value} was unpacked into {into}",))
    return Cause((f"{value} gives {count}, unpacked into {into}",), _nested(scene, value, inside))


def _nested(scene: Scene, value: str, inside: list[GivenTensor]) -> str | None:
    """Return the names with those of an inner tuple in brackets, if that is how the value is."""
    assert scene.failed is not None
    names = list(scene.failed.targets)
    keys = [_key(value, one) for one in inside]
    if len(inside) != len(names) or len(set(keys)) == len(keys):
        return None
    groups = [
        [name for name, key in zip(names, keys, strict=True) if key == one]
        for one in dict.fromkeys(keys)
    ]
    written = [f"({', '.join(group)})" if len(group) > 1 else group[0] for group in groups]
    return f"{', '.join(written)} = {value}"
