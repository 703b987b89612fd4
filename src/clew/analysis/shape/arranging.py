"""Dimensions through ops that arrange elements: permute, expand, squeeze, slices, indices, cat.

Input: a call of such an op and a part of a dimension of its result. Output: a `Step`.
"""

from __future__ import annotations

from clew.analysis.shape.call import (
    BROADCAST,
    CARRIED,
    CONCATENATED,
    COUNTED,
    CREATED,
    NOT_KNOWN,
    PERMUTED,
    REPEATED,
    RESIZED,
    SLICED,
    TAKEN,
    OpCall,
    Part,
    Rule,
    Step,
    normal,
    passed,
    passed_by_one,
    whole,
)


def _permuted(call: OpCall, part: Part, dim: int) -> Step:
    if dim == part.dim:
        return passed(call, part, "0", dim)
    return passed(call, part, "0", dim, PERMUTED, f"permuted from dim {dim}")


def permute(call: OpCall, part: Part) -> Step:
    order = call.ints(1, "dims")
    if order is None or len(order) != len(call.result):
        return NOT_KNOWN
    return _permuted(call, part, normal(order[part.dim], len(call.result)))


def transpose(call: OpCall, part: Part) -> Step:
    rank = len(call.result)
    pair = [normal(call.get(1, "dim0", 0), rank), normal(call.get(2, "dim1", 1), rank)]
    return _permuted(call, part, pair[1 - pair.index(part.dim)] if part.dim in pair else part.dim)


def t(call: OpCall, part: Part) -> Step:
    return _permuted(call, part, len(call.result) - 1 - part.dim)


def expand(call: OpCall, part: Part) -> Step:
    shape = call.shape(0) or ()
    dim = part.dim - (len(call.result) - len(shape))
    size = call.result[part.dim]
    if dim < 0:
        return Step(BROADCAST, f"broadcast: a new dim of {size}, the size given to {call.name}")
    if shape[dim] == size:
        return passed(call, part, "0", dim)
    return Step(BROADCAST, f"broadcast from {shape[dim]} to {size}, the size given to {call.name}")


def unsqueeze(call: OpCall, part: Part) -> Step:
    added = normal(call.get(1, "dim", 0), len(call.result))
    if part.dim == added:
        return Step(CREATED, "added with size 1")
    return passed(call, part, "0", part.dim - (part.dim > added))


def squeeze(call: OpCall, part: Part) -> Step:
    shape = call.shape(0) or ()
    asked = call.ints(1, "dim")
    dims = range(len(shape)) if asked is None else [normal(dim, len(shape)) for dim in asked]
    left = [dim for dim, size in enumerate(shape) if not (dim in dims and size == 1)]
    return passed(call, part, "0", left[part.dim]) if part.dim < len(left) else NOT_KNOWN


def without(call: OpCall, part: Part) -> Step:
    """Step through ops that take one element of a dimension, which is gone from the result."""
    shape = call.shape(0) or ()
    gone = normal(call.get(1, "dim", 0), len(shape))
    return passed(call, part, "0", part.dim + (part.dim >= gone))


def cut(call: OpCall, part: Part) -> Step:
    """Step through ops that keep a stretch of a dimension: `slice`, `split`, `chunk`."""
    return _cut_along(call, part, call.get(2 if "split" in call.name else 1, "dim", 0))


def _cut_along(call: OpCall, part: Part, dim: int) -> Step:
    shape = call.shape(0) or ()
    if len(shape) != len(call.result):
        return NOT_KNOWN
    size, before = call.result[part.dim], shape[part.dim]
    if part.dim != normal(dim, len(shape)) or size == before:
        return passed(call, part, "0", part.dim)
    return passed(call, part, "0", part.dim, SLICED, f"sliced: {size} of {before}")


def index_select(call: OpCall, part: Part) -> Step:
    dim = normal(call.get(1, "dim", 0), len(call.result))
    if part.dim != dim:
        return passed(call, part, "0", part.dim)
    return passed(call, part, call.path_of(2, "index"), 0, TAKEN, "one for each index")


def like_index(position: int, name: str) -> Rule:
    """Make the rule of ops whose result has the shape of their index: `gather`, `take`."""

    def rule(call: OpCall, part: Part) -> Step:
        path = call.path_of(position, name)
        return passed(call, part, path, part.dim, TAKEN, "the index has it")

    return rule


def index(call: OpCall, part: Part) -> Step:
    """Step through `x[:, indices]`, where the dims of the indices replace those indexed."""
    shape = call.shape(0) or ()
    slots = {int(path[2:]): call.tensors[path] for path in call.listed(1)}
    if not slots or not all(at < len(shape) for at in slots):
        return NOT_KNOWN
    given = _indexed_dims(call, slots)
    if given is None:
        return Step(COUNTED, "as many as the mask selects") if _is_mask(call) else NOT_KNOWN
    rank = max(map(len, slots.values()))
    ats = sorted(slots)
    together = ats == list(range(ats[0], ats[-1] + 1))
    first = ats[0] if together else 0
    rest = [dim for dim in range(len(shape)) if dim not in slots]
    if first <= part.dim < first + rank:
        return _of_index(call, part, slots, part.dim - first - rank)
    at = part.dim - rank if part.dim >= first + rank else part.dim
    return passed(call, part, "0", rest[at])


def _indexed_dims(call: OpCall, slots: dict[int, tuple[int, ...]]) -> int | None:
    """Return how many dims indices add; None if one is a mask, or the sizes do not fit."""
    rank = max(map(len, slots.values()))
    shape = call.shape(0) or ()
    fits = len(shape) - len(slots) + rank == len(call.result)
    return rank if fits and not _is_mask(call) else None


def _is_mask(call: OpCall) -> bool:
    return any(path in call.masks for path in call.listed(1))


def _of_index(call: OpCall, part: Part, slots: dict[int, tuple[int, ...]], at: int) -> Step:
    """Step to the first index that has this dimension, counted from the end, with its full size."""
    for slot, shape in sorted(slots.items()):
        if -at <= len(shape) and shape[at] == call.result[part.dim]:
            return passed(call, part, f"1.{slot}", len(shape) + at, TAKEN, "one for each index")
    return NOT_KNOWN


def counted(call: OpCall, part: Part) -> Step:
    """Step through ops that return as many elements as they find."""
    shape = call.shape(0) or ()
    if call.name in ("nonzero", "argwhere") and part.dim == 1:
        return Step(CREATED, f"one column for each of the {len(shape)} dims")
    return Step(COUNTED, f"as many as {call.name} found in the data")


def embedding(call: OpCall, part: Part) -> Step:
    if part.dim == len(call.result) - 1:
        return passed(call, part, "0", 1, TAKEN, "the width of the table, its dim 1")
    return passed(call, part, call.path_of(1, "indices"), part.dim, CARRIED)


def embedding_bag(call: OpCall, part: Part) -> Step:
    if part.dim == 1:
        return passed(call, part, "0", 1, TAKEN, "the width of the table, its dim 1")
    path = call.path_of(2, "offsets")
    return passed(call, part, path, 0, TAKEN, "one for each offset")


def cat(call: OpCall, part: Part) -> Step:
    dim = normal(call.get(1, "dim", 0), len(call.result))
    # An empty tensor of one dim is passed over, whatever the others are.
    paths = [path for path in call.listed(0) if len(call.tensors[path]) == len(call.result)]
    if not paths:
        return NOT_KNOWN
    if part.dim != dim or len(paths) == 1:
        return passed_by_one(call, part, [(path, part.dim) for path in paths])
    sizes = [call.tensors[path][dim] for path in paths]
    sources = tuple((path, whole(call.tensors[path], dim)) for path in paths)
    return Step(CONCATENATED, f"concatenated: {' + '.join(map(str, sizes))}", sources)


def stack(call: OpCall, part: Part) -> Step:
    dim = normal(call.get(1, "dim", 0), len(call.result))
    paths = call.listed(0)
    if part.dim == dim:
        tensors = "1 tensor" if len(paths) == 1 else f"{len(paths)} tensors"
        return Step(CREATED, f"created by stacking {tensors}")
    return passed_by_one(call, part, [(path, part.dim - (part.dim > dim)) for path in paths])


def repeat(call: OpCall, part: Part) -> Step:
    times = call.ints(1, "repeats")
    shape = call.shape(0) or ()
    dim = part.dim - (len(call.result) - len(shape))
    if times is None or len(times) != len(call.result):
        return NOT_KNOWN
    if dim < 0:
        return Step(CREATED, f"a new dim, repeated {times[part.dim]} times")
    if times[part.dim] == 1:
        return passed(call, part, "0", dim)
    text = f"repeated: {call.result[part.dim]} = {times[part.dim]} × {shape[dim]}"
    return passed(call, part, "0", dim, REPEATED, text)


def repeat_interleave(call: OpCall, part: Part) -> Step:
    return Step(COUNTED, "the sum of the repeats")


def pad(call: OpCall, part: Part) -> Step:
    shape = call.shape(0) or ()
    amounts = call.ints(1, "pad") or call.ints(1, "padding") or []
    at = 2 * (len(call.result) - 1 - part.dim)
    before, after = [*amounts[at : at + 2], 0, 0][:2]
    if len(shape) != len(call.result) or call.result[part.dim] == shape[part.dim]:
        return passed(call, part, "0", part.dim)
    text = f"padded: {before} + {shape[part.dim]} + {after}"
    return passed(call, part, "0", part.dim, RESIZED, text)


def unfold(call: OpCall, part: Part) -> Step:
    """Step through `x.unfold(dim, size, step)`: windows of a dim, their elements in a new last."""
    dim = normal(call.get(1, "dimension", 0), len(call.result) - 1)
    size, step = call.get(2, "size", 0), call.get(3, "step", 0)
    if part.dim == len(call.result) - 1:
        return Step(CREATED, f"created: windows of {size}")
    if part.dim != dim:
        return passed(call, part, "0", part.dim)
    shape = call.shape(0) or ()
    text = f"windows of {size}, every {step}: {shape[dim]} → {call.result[dim]}"
    return passed(call, part, "0", dim, RESIZED, text)


def diagonal(call: OpCall, part: Part) -> Step:
    shape = call.shape(0) or ()
    pair = {normal(call.get(2, "dim1", 0), len(shape)), normal(call.get(3, "dim2", 1), len(shape))}
    rest = [dim for dim in range(len(shape)) if dim not in pair]
    if part.dim < len(rest):
        return passed(call, part, "0", rest[part.dim])
    return passed(call, part, "0", min(pair), SLICED, "the diagonal of two dims")


def view_as_real(call: OpCall, part: Part) -> Step:
    if part.dim == len(call.result) - 1:
        return Step(CREATED, "real and imaginary part")
    return passed(call, part, "0", part.dim)


def of_part(call: OpCall, part: Part) -> Step:
    """Step through the gradient of `select` and `slice`: as large as what was taken from."""
    shape = call.shape(0) or ()
    dim = normal(call.get(2, "dim", 0), len(call.result))
    is_gone = len(shape) < len(call.result)
    if part.dim == dim and (is_gone or shape[dim] != call.result[dim]):
        forward = call.name.removesuffix("_backward")
        return Step(CREATED, f"created: the size of the tensor that {forward} was called on")
    return passed(call, part, "0", part.dim - (is_gone and part.dim > dim))


def embedding_backward(call: OpCall, part: Part) -> Step:
    if part.dim == 0:
        return Step(CREATED, "created: one for each row of the table")
    return passed(call, part, "0", len(call.shape(0) or ()) - 1)


def pixel_shuffle(call: OpCall, part: Part) -> Step:
    shape = call.shape(0) or ()
    if len(shape) != len(call.result) or part.dim < len(shape) - 3:
        return passed(call, part, "0", part.dim)
    text = f"{shape[part.dim]} → {call.result[part.dim]} by {call.name}"
    return passed(call, part, "0", part.dim, RESIZED, text)


RULES: dict[str, Rule] = {
    "permute": permute,
    "transpose": transpose,
    "t": t,
    "expand": expand,
    "broadcast_to": expand,
    "unsqueeze": unsqueeze,
    "squeeze": squeeze,
    "select": without,
    "unbind": without,
    "slice": cut,
    "narrow": cut,
    "split": cut,
    "split_with_sizes": cut,
    "unsafe_split": cut,
    "unsafe_split_with_sizes": cut,
    "index_select": index_select,
    "gather": like_index(2, "index"),
    "take": like_index(1, "index"),
    "searchsorted": like_index(1, "self"),
    "bucketize": like_index(0, "self"),
    "index": index,
    "_unsafe_index": index,
    "nonzero": counted,
    "masked_select": counted,
    "_unique2": counted,
    "unique_consecutive": counted,
    "bincount": counted,
    "embedding": embedding,
    "_embedding_bag": embedding_bag,
    "_embedding_bag_forward_only": embedding_bag,
    "embedding_dense_backward": embedding_backward,
    "select_backward": of_part,
    "slice_backward": of_part,
    "cat": cat,
    "stack": stack,
    "repeat": repeat,
    "repeat_interleave": repeat_interleave,
    "constant_pad_nd": pad,
    "unfold": unfold,
    "diagonal": diagonal,
    "view_as_real": view_as_real,
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_shuffle,
    **{f"{kind}_pad{n}d": pad for kind in ("reflection", "replication") for n in (1, 2, 3)},
}
