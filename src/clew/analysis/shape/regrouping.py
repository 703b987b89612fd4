"""Dimensions through `view`, `reshape` and `flatten`: the same elements, grouped in another way.

Elements keep their order, so a dimension is a range of steps through memory laid out in that order:
of shape [8, 64, 7], the 64 makes steps of 7 up to 448. A dimension of the result comes from the
dimensions of the argument whose ranges overlap with its own.
"""

from __future__ import annotations

from clew.analysis.shape.call import (
    CARRIED,
    CREATED,
    MERGED,
    NOT_KNOWN,
    SPLIT,
    OpCall,
    Part,
    Rule,
    Shape,
    Step,
    numel,
    product,
    whole,
)


def regroup(call: OpCall, part: Part) -> Step:
    """Find the dimensions that a part of a dimension was before the tensor was viewed in another
    shape.
    """
    before, after = call.shape(0), call.result
    if before is None or 0 in before or 0 in after:
        return NOT_KNOWN
    if part.size == 1:
        return _one(before, after, part)
    low = _step(after, part.dim) * part.inner
    high = low * part.size
    found = [_overlap(before, dim, low, high) for dim in range(len(before))]
    parts = [source for source in found if source is not None]
    sizes = product([source.size for source in parts])
    dims = [source.dim for source in parts]
    sources = tuple(("0", source) for source in parts)
    if numel([source.size for source in parts]) != part.size:
        text = f"regrouped with other dimensions: {_dims(dims)} held {sizes}"
        return Step(MERGED, text, sources)
    if len(parts) > 1:
        return Step(MERGED, f"merged from {_dims(dims)}: {sizes}", sources)
    if parts[0].is_whole(before) or not part.is_whole(after):
        return Step(CARRIED, "", sources)
    whole_size, inner = before[dims[0]], parts[0].inner
    factors = (whole_size // (part.size * inner), part.size, inner)
    text = f"split: {whole_size} = {product([n for n in factors if n > 1])}"
    return Step(SPLIT, text, sources)


def _overlap(before: Shape, dim: int, low: int, high: int) -> Part | None:
    """Return the part of a dimension that lies in a range of steps, None if there is none.

    All of the dimension stands for a part that is no factor of it.
    """
    step = _step(before, dim)
    end = step * before[dim]
    first, last = max(low, step), min(high, end)
    if first >= last:
        return None
    if first % step or last % first or end % last:
        return whole(before, dim)
    return Part(dim, last // first, first // step)


def _one(before: Shape, after: Shape, part: Part) -> Step:
    """Find a dimension of 1 of the argument that is at the same place; else it begins here.

    A step with a source says where another `view` may have merged it.
    """
    at = _step(after, part.dim) * part.inner
    ones = _ones(before, at)
    if after[part.dim] != 1:
        return Step(CARRIED, "", (("0", Part(ones[0], 1)),)) if ones else _inside(before, at)
    index = _ones(after, at).index(part.dim)
    if index < len(ones):
        return Step(CARRIED, "", (("0", Part(ones[index], 1)),))
    hidden = (("0", Part(ones[-1], 1)),) if ones else _inside(before, at).sources
    return Step(CREATED, "added with size 1", hidden)


def ones_beside(shape: Shape, part: Part) -> list[int]:
    """Return the dimensions of 1 that are at the place of a part, without others between them."""
    return _ones(shape, _step(shape, part.dim) * part.inner)


def _ones(shape: Shape, at: int) -> list[int]:
    return [dim for dim, size in enumerate(shape) if size == 1 and _step(shape, dim) == at]


def _inside(before: Shape, at: int) -> Step:
    """Step to the place of a 1 that merging with a larger dimension has hidden."""
    for dim, size in enumerate(before):
        step = _step(before, dim)
        if size > 1 and step <= at <= step * size and at % step == 0:
            return Step(CARRIED, "", (("0", Part(dim, 1, at // step)),))
    return NOT_KNOWN


def _step(shape: Shape, dim: int) -> int:
    """Return how many elements lie between two indices of a dimension."""
    step = 1
    for size in shape[dim + 1 :]:
        step *= size
    return step


def _dims(dims: list[int]) -> str:
    listed = [str(dim) for dim in dims]
    if len(listed) == 1:
        return f"dim {listed[0]}"
    return f"dims {', '.join(listed[:-1])} and {listed[-1]}"


RULES: dict[str, Rule] = dict.fromkeys(
    ("view", "reshape", "_unsafe_view", "_reshape_alias", "_reshape_copy", "view_copy", "flatten",
     "unflatten", "view_as", "reshape_as", "ravel"),
    regroup,
)  # fmt: skip
