"""Rules about images on their way into a model: their range, and the order of their dimensions."""

from __future__ import annotations

import numpy as np

from clew.address import written
from clew.analysis.health.thresholds import Thresholds
from clew.analysis.health.training_facts import NO_STATISTICS, RECORD_OPS, TrainingFacts
from clew.analysis.health.verdicts import HealthFinding, HealthRule, judged, not_checked
from clew.analysis.shape.call import Shape
from clew.events.columns import Ints
from clew.events.op_names import bare_op
from clew.events.vocabulary import DATA, FORWARD, MODULE
from clew.spec import RESHAPING_OPS

UNSCALED, RESHAPED, CHANNELS = (
    "unscaled images", "reshaped instead of permuted", "channels in the last dimension",
)  # fmt: skip
_CONVOLUTIONS = frozenset({"Conv1d", "Conv2d", "Conv3d"})
_PRODUCTS = {"convolution", "addmm", "mm"}
# Ops that change neither the numbers of an image nor their scale, but for its size.
_CARRYING = frozenset(
    {*RESHAPING_OPS, "permute", "transpose", "t", "contiguous", "clone", "stack", "cat",
     "unsqueeze", "squeeze", "expand", "slice", "select", "index", "index_select", "detach",
     "alias", "_to_copy", "copy_", "flip", "roll", "constant_pad_nd", "lift_fresh",
     "upsample_bilinear2d", "upsample_nearest2d", "_upsample_bilinear2d_aa", "unbind", "split",
     "narrow", "flatten"}
)  # fmt: skip
_MOST_HOPS = 60
_BYTE = 255.0
_CHANNEL_COUNTS = (1, 3, 4)
# Smaller sizes than this are hardly those of an image.
_SMALLEST_IMAGE = 8


def unscaled_images(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find first layers that take numbers up to 255, such as bytes that were not scaled."""
    if not facts.has_stats:
        return not_checked(UNSCALED, NO_STATISTICS, "image_range")
    rows = _first_layers(facts)
    if not len(rows):
        return not_checked(UNSCALED, "no convolution or linear layer was recorded", "image_range")
    found: dict[int, HealthFinding] = {}
    stats = facts.run.stats
    value = _image_of(facts, rows)
    large = (stats["max"][value] > limits.image_range) & (stats["max"][value] <= _BYTE)
    for row, number in zip(rows[large].tolist(), value[large].tolist(), strict=True):
        key = int(facts.run.derived.module[row])
        if key not in found and stats["min"][number] >= 0:
            one = _unscaled(facts, limits, row, number)
            found |= {} if one is None else {key: one}
    return judged(UNSCALED, list(found.values()), "image_range")


def _first_layers(facts: TrainingFacts) -> Ints:
    """Return the first product of each outermost call, or the first convolution without ops."""
    run = facts.run
    rows = facts.ops_named(_PRODUCTS) if facts.has_ops else facts.calls_of(_CONVOLUTIONS)
    rows = rows[(run.phase[rows] == FORWARD) & (facts.first_input[rows] >= 0)]
    root = facts.root_of[rows]
    inside = run.columns.kind[root] == MODULE
    rows, root = rows[inside], root[inside]
    _, first = np.unique(root, return_index=True)
    return np.asarray(rows[np.sort(first)])


def _image_of(facts: TrainingFacts, rows: Ints) -> Ints:
    """Return what each layer multiplies with its weight: the second tensor of an addmm."""
    tensors = facts.run.tensors
    value: Ints = facts.first_input[rows].copy()
    starts = np.cumsum(tensors.counts) - tensors.counts
    for at, row in enumerate(rows.tolist()):
        if bare_op(facts.run.name(row)) == "addmm" and tensors.counts[row] > 1:
            value[at] = tensors.value[starts[row] + 1]
    return value


def _unscaled(
    facts: TrainingFacts, limits: Thresholds, row: int, number: int
) -> HealthFinding | None:
    run = facts.run
    stats = run.stats
    least, most = float(stats["min"][number]), float(stats["max"][number])
    converted = _from_bytes(facts, number)
    shape: Shape = run.metas[int(run.columns.meta[number])].shape or ()
    looks = len(shape) == 4 and shape[1] in _CHANNEL_COUNTS and min(shape[2:]) >= _SMALLEST_IMAGE
    if converted < 0 and not (looks and least < 5 and most > 240):
        return None
    path = run.module_path(row) or ""
    text = f"{path or 'the first layer'} takes an image with numbers from {least:.0f} to {most:.0f}"
    if converted >= 0:
        text += f": bytes became floats{facts.line(converted)} and were not scaled"
    advice = "divide by 255 and normalise, or convert with ToTensor() or ToDtype(scale=True)"
    return facts.finding(
        UNSCALED, row, f"{written(path)}:in", most, limits.image_range, text, advice,
        certain=converted >= 0,
    )  # fmt: skip


def _from_bytes(facts: TrainingFacts, number: int) -> int:
    """Return the op that turned bytes into what became a value unscaled, -1 if there is none."""
    run = facts.run
    for _ in range(_MOST_HOPS):
        row = run.producer_row(number)
        if row < 0 or bare_op(run.name(row)) not in _CARRYING:
            return -1
        taken = _carried(facts, row)
        if taken < 0:
            return -1
        if run.metas[int(run.columns.meta[taken])].dtype == "uint8":
            return row
        number = taken
    return -1


def _carried(facts: TrainingFacts, row: int) -> int:
    """Return the tensor whose numbers an op carries: of `copy_` the second."""
    if bare_op(facts.run.name(row)) != "copy_":
        return int(facts.first_input[row])
    values = [n for leaf, n in facts.run.leaf_values(row) if leaf.role == "in"]
    return values[1] if len(values) > 1 else -1


def reshaped(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find views whose sizes are those of the input in another order: the numbers are mixed up."""
    if not facts.has_ops:
        return not_checked(RESHAPED, f"no ops were recorded; {RECORD_OPS}")
    run = facts.run
    c = run.columns
    rows = facts.ops_named(RESHAPING_OPS)
    rows = rows[np.isin(run.phase[rows], (FORWARD, DATA))]
    rows = rows[(facts.first_input[rows] >= 0) & (facts.first_result[rows] >= 0)]
    library = np.array([place.library for place in c.places] + [True], dtype=bool)
    rows = rows[~library[c.place[rows]]]
    pairs = np.stack([c.meta[facts.first_input[rows]], c.meta[facts.first_result[rows]]])
    _, first, at = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    moved = [_is_moved(c.metas[a].shape, c.metas[b].shape) for a, b in pairs[:, first].T]
    hits = rows[np.array(moved, dtype=bool)[at.reshape(-1)]] if len(rows) else rows
    found: dict[int, HealthFinding] = {}
    for row in hits.tolist():
        source = int(run.derived.source[row])
        if source not in found:
            found[source] = _mixed_up(facts, row)
    return judged(RESHAPED, list(found.values()))


def _is_moved(before: Shape | None, after: Shape | None) -> bool:
    """Return whether two shapes have the same three or more sizes above 1, in another order."""
    if before is None or after is None or len(before) != len(after):
        return False
    one, two = ([size for size in shape if size != 1] for shape in (before, after))
    return len(one) >= 3 and one != two and sorted(one) == sorted(two)


def _mixed_up(facts: TrainingFacts, row: int) -> HealthFinding:
    run = facts.run
    before, after = (
        run.metas[int(run.columns.meta[int(first[row])])].shape
        for first in (facts.first_input, facts.first_result)
    )
    order = _order(before, after)
    name = bare_op(run.name(row)).strip("_").removeprefix("unsafe_")
    texts = [f"[{','.join(map(str, shape))}]" for shape in (before, after)]
    text = (
        f"{name} made {texts[1]} of {texts[0]}: the sizes trade places, the numbers do not move "
        "along, so rows, columns and channels are mixed up"
    )
    advice = f"use permute({', '.join(map(str, order))}) in its place"
    certain = _is_image(before, after) or _is_image(after, before)
    return facts.finding(RESHAPED, row, run.address(row), 1, 0, text, advice, certain)


def _order(before: Shape, after: Shape) -> list[int]:
    """Return the dimensions of a shape in an order that gives another, of equal sizes the first."""
    left = list(range(len(before)))
    order = []
    for size in after:
        order.append(next(dim for dim in left if before[dim] == size))
        left.remove(order[-1])
    return order


def _is_image(last: Shape, first: Shape) -> bool:
    """Return whether [..., H, W, C] became [..., C, H, W]."""
    height, width, channels = last[-3:]
    is_turned = (*last[:-3], channels, height, width) == first
    return is_turned and 2 <= channels <= 4 and min(height, width) >= _SMALLEST_IMAGE


def channels_last(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find first convolutions whose channels are the rows of images [N, H, W, C]."""
    run = facts.run
    rows = facts.ops_named({"convolution"}) if facts.has_ops else facts.calls_of(_CONVOLUTIONS)
    rows = rows[(run.phase[rows] == FORWARD) & (facts.first_input[rows] >= 0)]
    if not len(rows):
        return not_checked(CHANNELS, "no convolution was recorded")
    found: dict[int, HealthFinding] = {}
    for row in rows[np.isin(rows, _first_layers(facts))].tolist():
        shape: Shape = run.metas[int(run.columns.meta[facts.first_input[row]])].shape or ()
        key = int(run.derived.module[row])
        square = len(shape) == 4 and shape[1] == shape[2] >= 16 and shape[3] in (3, 4)
        if key not in found and square:
            path = run.module_path(row) or ""
            text = (
                f"{path or 'the first convolution'} takes [{','.join(map(str, shape))}] and its "
                f"{shape[1]} channels look like the rows of images with {shape[3]} channels"
            )
            advice = "permute(0, 3, 1, 2) before it, and give it as many input channels"
            found[key] = facts.finding(
                CHANNELS, row, f"{written(path)}:in", shape[3], 4, text, advice
            )
    return judged(CHANNELS, list(found.values()))
