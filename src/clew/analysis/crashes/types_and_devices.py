"""Tensors of the wrong dtype, or on the wrong device."""

from __future__ import annotations

import re

from clew.analysis.crashes.cause import Cause
from clew.analysis.crashes.facts import most_common
from clew.analysis.crashes.scene import GivenTensor, Scene

_CASTS = {
    "float32": ".float()",
    "float64": ".double()",
    "float16": ".half()",
    "bfloat16": ".bfloat16()",
    "int64": ".long()",
}
# The device of tensors that are shapes alone.
_WITHOUT_DATA = "meta"
# Parts of the names of functions and ops that take an index or a class.
_INDEXED = (
    "embedding", "gather", "index", "scatter", "nll_loss", "cross_entropy", "one_hot", "take",
)  # fmt: skip


def mixed_dtypes_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which of several tensors has another dtype than the layer, or than the others."""
    layer = scene.layer
    if layer is not None and layer.given is not None:
        weights = {one.dtype for one in layer.parameters if one.is_float}
        given = layer.given
        if len(weights) == 1 and given.dtype not in weights:
            wanted = weights.pop()
            says = f"{given.name} is {given.dtype}, the parameters of {layer.name} are {wanted}"
            if most_common(scene.facts.dtypes) == given.dtype:
                cast = _CASTS.get(given.dtype)  # the rest of the model is as what was given
                return Cause((says,), None if cast is None else f"{layer.name}{cast}")
            return Cause((says,), _cast(given, wanted))
    floats = [one for one in scene.arguments if one.is_float]
    dtypes = {one.dtype for one in floats}
    if len(dtypes) != 2 or len(floats) < 2:
        return _one_kind(scene)
    says = ", ".join(f"{one.name} is {one.dtype}" for one in floats)
    return Cause((says,), _cast_of_one(scene, floats, dtypes))


def _one_kind(scene: Scene) -> Cause | None:
    """Tell that integers were given where floating point numbers go."""
    floats = [one for one in scene.arguments if one.is_float]
    others = [one for one in scene.arguments if one.is_integer or one.dtype == "bool"]
    if len({one.dtype for one in floats}) != 1 or len(others) != 1:
        return None
    says = f"{others[0].name} is {others[0].dtype}, {floats[0].name} is {floats[0].dtype}"
    return Cause((says,), _cast(others[0], floats[0].dtype))


def _cast_of_one(scene: Scene, floats: list[GivenTensor], dtypes: set[str]) -> str | None:
    """Return the cast of the one tensor that has another dtype than the model's parameters.

    Without a model it is float32 that is meant: nobody asks for float64, and a cast from 16 bits,
    as autocast leaves them behind, loses nothing.
    """
    usual = most_common(scene.facts.dtypes)
    wanted = usual if usual in dtypes else "float32"
    others = [one for one in floats if one.dtype != wanted]
    return _cast(others[0], wanted) if wanted in dtypes and len(others) == 1 else None


def _cast(argument: GivenTensor, dtype: str) -> str | None:
    cast = _CASTS.get(dtype)
    return None if cast is None else argument.changed(cast)


def index_dtype_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell that an index or target is not of integers."""
    if not _takes_an_index(scene):
        return None
    if scene.layer is not None and "num_embeddings" in scene.layer.settings:
        given = scene.layer.given
        if given is None or given.is_integer:
            return None
        says = f"{given.name} is {given.dtype}; an index must be int64 or int32"
        return Cause((says,), given.changed(".long()"))
    swapped = _swapped(scene)
    if swapped is not None:
        return swapped
    floats = [one for one in scene.arguments if one.is_float]
    if not floats or len(scene.arguments) != len(floats):
        return None
    # The last one is the index or the target: `embedding` alone has it first.
    index = floats[0] if scene.failed and "embedding" in scene.failed.function else floats[-1]
    says = f"{index.name} is {index.dtype}; an index or a class must be int64"
    return Cause((says,), index.changed(".long()"))


def _takes_an_index(scene: Scene) -> bool:
    names = "" if scene.failed is None else scene.failed.function
    names += "" if scene.event is None else f" {scene.event.name}"
    return any(part in names for part in _INDEXED) or "ndices" in scene.text


def _swapped(scene: Scene) -> Cause | None:
    """Tell that tensor and index, or logits and target, come in the wrong order."""
    if scene.failed is None or len(scene.arguments) != 2:
        return None
    first, second = scene.arguments
    function = scene.failed.function.rpartition(".")[2]
    is_loss = function in ("cross_entropy", "nll_loss") and first.is_integer and second.is_float
    is_table = function == "embedding" and first.is_float and second.is_integer
    if not (is_loss or is_table):
        return None
    says = f"{first.name} is {first.dtype}, {second.name} is {second.dtype}"
    return Cause((says,), f"{function}({second.name}, {first.name}): the arguments are swapped")


def probabilities_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell that a target with a number for each class must be of floating point numbers."""
    floats = [one for one in scene.arguments if one.is_float]
    targets = [one for one in scene.arguments if one.is_integer or one.dtype == "bool"]
    if len(targets) != 1 or not any(one.shape == targets[0].shape for one in floats):
        return None
    target = targets[0]
    says = f"{target.name} has a number for each class, as the logits do, and is {target.dtype}"
    return Cause((says,), target.changed(".float()"))


def mask_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell that a mask is not of booleans."""
    function = "" if scene.failed is None else scene.failed.function.rpartition(".")[2]
    at = {"where": 0, "masked_fill": 1, "masked_fill_": 1, "masked_select": 1}.get(function)
    if at is None or len(scene.arguments) <= at or scene.arguments[at].dtype == "bool":
        return None
    mask = scene.arguments[at]
    return Cause((f"{mask.name} is {mask.dtype}; a mask must be bool",), mask.changed(".bool()"))


def device_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which tensor is on another device than the parameters of the model."""
    devices = {one.device for one in scene.arguments}
    if len(devices) != 2:
        return None
    empty = [one.name for one in scene.arguments if one.device == _WITHOUT_DATA]
    if empty:
        return Cause(tuple(f"{name} has no data: it is on {_WITHOUT_DATA}" for name in empty))
    home = most_common(scene.facts.devices)
    if home not in devices:
        return Cause()
    away = [one for one in scene.arguments if one.device != home]
    names = {one.name for one in away}
    written = [one for one in away if one.is_written]
    # What a layer inside a container was given comes from what is written.
    if len(written) == 1 and not names & _parameter_names(scene):
        return Cause(guess=written[0].changed(f".to({home!r})"))
    if scene.layer is not None and names == _parameter_names(scene):
        return Cause(guess=f"{scene.layer.name}.to({home!r})")
    return Cause()


def _parameter_names(scene: Scene) -> set[str]:
    return set() if scene.layer is None else {one.name for one in scene.layer.parameters}
