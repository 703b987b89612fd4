"""Sizes that a layer does not take: its settings, what it was given, and the change that fits.

A change is guessed only where something in the trace speaks for it: a product of sizes that is the
expected one, an order of dimensions that no layer has decided, or a size made by the model itself.
"""

from __future__ import annotations

import re
from math import prod

from clew.analysis.crashes.cause import Cause
from clew.analysis.crashes.fitting import channels_first, flattening, to_last
from clew.analysis.crashes.origins import Origin, origin_of
from clew.analysis.crashes.scene import GivenTensor, Layer, Scene
from clew.analysis.file_names import bare_name
from clew.events.op_names import bare_op
from clew.run.event import Event
from clew.spec import RESHAPING_OPS

# For layers whose last dimension must have a size: the setting that has it.
_LAST = ("in_features", "input_size", "embed_dim", "normalized_shape")
# For layers with the channels in dimension 1.
_CHANNELS = ("in_channels", "num_features", "num_channels")


def layer_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which size a layer expects and which it was given; None if its sizes are not it."""
    layer = scene.layer
    if layer is None or layer.given is None:
        return None
    if "embed_dim" in layer.settings:
        # Queries, keys and values all have the same width, unless the layer says otherwise.
        rank = len(layer.given.shape)  # masks have fewer dimensions
        given = [one for one in scene.arguments if one.is_written and len(one.shape) == rank]
        causes = (_last_size(scene, layer, one) for one in given or [layer.given])
        return next(filter(None, causes), None)
    return _last_size(scene, layer, layer.given) or _channels(scene, layer, layer.given)


def resized(layer: Layer, setting: str, got: int, origin: Origin | None) -> str | None:
    """Return the setting that fits, where the model itself made what it was given.

    Data from outside may be as wrong as the layer, so nothing is said of it.
    """
    here = f"{setting}={got} in {layer.name}"
    if origin is None or not (origin.is_computed or origin.is_layer):
        return None
    if origin.is_computed:
        return here
    return f"{here}, or {origin.setting}={_single(layer, setting)} in {origin.layer}"


def last_size(layer: Layer) -> int | None:
    """Return the size that the last dimension of a layer's input must have, None if any may be."""
    setting = _last_setting(layer)
    return None if setting is None else _single(layer, setting)


def _last_setting(layer: Layer) -> str | None:
    return next((name for name in _LAST if _single(layer, name) is not None), None)


def _last_size(scene: Scene, layer: Layer, given: GivenTensor) -> Cause | None:
    setting, expected = _last_setting(layer), last_size(layer)
    if setting is None or expected is None or not given.shape or given.shape[-1] == expected:
        return None
    last = len(given.shape) - 1
    got = given.shape[last]
    says = f"{layer.name} takes [..., {expected}] and was given [..., {got}]"
    origin = origin_of(scene.run, given.number, last)
    guess = _last_change(scene, layer, given, expected, origin)
    if guess is None:
        guess = _made_anew(scene, given, expected)
    is_part = origin is not None and origin.is_layer and _is_joined(scene, given)
    if guess is None and not is_part:
        guess = resized(layer, setting, got, origin)
    return Cause((says,), guess, ((given, last),))


def _made_anew(scene: Scene, given: GivenTensor, expected: int) -> str | None:
    """Return how the op that made the input could have made one that fits."""
    made = _maker(scene, given)
    if made is None:
        return None
    shapes = [value.shape or () for value in made.inputs.values()]
    name, where = bare_op(made.name), _at(made)
    if name == "cat" and len(given.shape) == 2:
        rows = {shape[:1] for shape in shapes}
        fits = len(rows) == 1 and sum(shape[-1] for shape in shapes if shape) == expected
        return f"dim=-1 in cat{where}" if fits else None
    if name in RESHAPING_OPS and len(given.shape) < 3 and len(shapes[0]) > 2:
        return f".flatten(1) in place of view{where}" if prod(shapes[0][1:]) == expected else None
    return None


def _is_joined(scene: Scene, given: GivenTensor) -> bool:
    """Return whether the input is made of several tensors."""
    made = _maker(scene, given)
    return made is not None and bare_op(made.name) == "cat"


def _maker(scene: Scene, given: GivenTensor) -> Event | None:
    row = -1 if given.number is None else scene.run.producer_row(given.number)
    event = None if row < 0 else scene.run.event(row)
    return event if event is not None and event.inputs else None


def _at(event: Event) -> str:
    source = event.source
    return "" if source is None else f" at {bare_name(source.file)}:{source.line}"


def _single(layer: Layer, name: str) -> int | None:
    value = layer.settings.get(name)
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    return value if type(value) is int else None


def _last_change(
    scene: Scene, layer: Layer, given: GivenTensor, expected: int, origin: Origin | None
) -> str | None:
    """Return the change of the input after which its last dimension is the expected one."""
    shape = given.shape
    if len(shape) > 2 and shape[-1] == 1 and shape[-2] == expected:
        return given.changed(".squeeze(-1)")
    flat, turned = flattening(shape, expected), to_last(shape, expected)
    if flat is not None and (turned is None or set(shape[2:]) == {1}):
        return given.changed(flat) if given.is_written else f"nn.Flatten() before {layer.name}"
    if _lost_batch(given, expected, origin):
        return "the batch dimension is missing: .unsqueeze(0) on the input of the model"
    if turned is None or flat is not None:
        return None
    # A last dimension that the model has made is one of features: the order is right.
    is_open = origin is None or not (origin.is_computed or origin.is_layer)
    at = shape.index(expected)
    moved = origin_of(scene.run, given.number, at)
    is_made = moved is not None and moved.is_layer
    # A norm comes after other layers: without one, data of that size is a coincidence.
    is_likely = "normalized_shape" not in layer.settings
    if len(shape) == 2:
        # A batch may have any size: only what was transposed before is taken to be so wrongly.
        is_likely = origin is not None and origin.is_turned
    return given.changed(turned) if is_made or (is_open and is_likely) else None


def _lost_batch(given: GivenTensor, expected: int, origin: Origin | None) -> bool:
    """Return whether a sample without a batch was flattened from its second dimension on."""
    if origin is None or origin.how != "merged" or origin.event is None:
        return False
    before = next(iter(origin.event.inputs.values())).shape
    is_sample = before is not None and len(before) == 3 and len(given.shape) == 2
    return is_sample and given.size == expected


def _channels(scene: Scene, layer: Layer, given: GivenTensor) -> Cause | None:
    setting = next((name for name in _CHANNELS if layer.size(name) is not None), None)
    expected = None if setting is None else layer.size(setting)
    if setting is None or expected is None:
        return None
    shape, dims = given.shape, _dims(layer)
    is_flat = dims == 1 and setting == "num_features" and len(shape) == 2
    if dims is not None and len(shape) != dims + 2 and not is_flat:
        return _wrong_count(layer, given, dims, expected, setting)
    if len(shape) < 2 or shape[1] == expected:
        return None
    says = f"{layer.name} takes {_channels_text(expected)} in dimension 1 and was given {shape[1]}"
    origin = origin_of(scene.run, given.number, 1)
    turned = channels_first(shape, expected)
    if turned is not None and (origin is None or not origin.is_layer):
        return Cause((says,), given.changed(turned), ((given, 1),))
    return Cause((says,), resized(layer, setting, shape[1], origin), ((given, 1),))


def _channels_text(count: int) -> str:
    return "1 channel" if count == 1 else f"{count} channels"


def _dims(layer: Layer) -> int | None:
    """Return how many dimensions of space a layer takes, from its class: 2 of `Conv2d`."""
    digits = re.search(r"([123])d$", layer.cls)
    return int(digits[1]) if digits else None


def _wrong_count(
    layer: Layer, given: GivenTensor, dims: int, expected: int, setting: str
) -> Cause | None:
    """Tell that a tensor has too many or too few dimensions for a layer of images or series."""
    says = (
        f"{layer.name} takes {dims + 2} dimensions (batch, {_channels_text(expected)}, ...) "
        f"and was given {len(given.shape)}"
    )
    return Cause((says,), _recounted(layer, given, dims, expected, setting == "num_features"))


def kernel_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell that too little is left of an image or a series for a kernel, and what made it small."""
    layer = scene.layer
    given = layer.given if layer is not None else next(iter(scene.arguments), None)
    if given is None or len(given.shape) < 3:
        return None
    last = len(given.shape) - 1
    name = "the kernel" if layer is None else f"the kernel of {layer.name}"
    says = f"{given.name} is {given.look}: too small for {name}"
    return Cause((says,), None, ((given, last),))


def _recounted(
    layer: Layer, given: GivenTensor, dims: int, expected: int, is_norm: bool
) -> str | None:
    shape = given.shape
    if len(shape) == dims + 1:
        if shape[0] == expected and is_norm:
            return given.changed(".unsqueeze(0)")
        if shape[-1] == expected and expected not in shape[:-1] and not is_norm and dims == 2:
            return given.changed(".permute(2, 0, 1)")
        if expected == 1 and shape[0] != 1:
            return given.changed(".unsqueeze(1)")
    if "Transpose" in layer.cls and len(shape) == 2 and shape[1] == expected:
        return given.changed(f"[:, :{', None' * dims}]")  # noise that images are made from
    if is_norm and 3 <= len(shape) <= 5 and shape[1] == expected:
        right = layer.cls.replace(f"{dims}d", f"{len(shape) - 2}d")
        return f"{right} for {layer.name}"
    return None
