"""Indices out of range: which index, where in the tensor, and the size of the table."""

from __future__ import annotations

import re

from clew.analysis.crashes.cause import Cause
from clew.analysis.crashes.facts import GIVEN
from clew.analysis.crashes.scene import GivenTensor, Scene
from clew.events.op_names import bare_op


def embedding_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which row of an embedding was asked for that it does not have."""
    layer = scene.layer
    rows = None if layer is None else layer.size("num_embeddings")
    if layer is not None and rows is not None and layer.given is not None:
        return _outside(scene, layer.given, rows, f"{layer.name} has {rows} rows")
    index = [one for one in scene.arguments if one.is_integer]
    table = [one for one in scene.arguments if one.is_float and len(one.shape) == 2]
    if len(index) == 1 and len(table) == 1:
        count = table[0].shape[0]
        return _outside(scene, index[0], count, f"{table[0].name} has {count} rows")
    return None


def bounds_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which tensor holds an index that is out of bounds for a dimension."""
    bad, dim, size = int(match["index"]), int(match["dim"]), int(match["size"])
    table = next(
        (one for one in scene.arguments if len(one.shape) > dim and one.shape[dim] == size), None
    )
    whose = "the tensor" if table is None else table.name
    says = f"{whose} has {size} in dimension {dim} (0 to {size - 1}); the index is {bad}"
    held = _holders(scene, bad)
    return Cause((says if held else says + _inside(scene, table), *held))


def index_count_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell that an index lacks the dimension that it is gathered along."""
    tensor = next((one for one in scene.arguments if one.is_float), None)
    index = [one for one in scene.arguments if one.is_integer]
    if tensor is None or len(index) != 1:
        return None
    says = (
        f"{index[0].name} has {len(index[0].shape)} dimensions, {tensor.name} {len(tensor.shape)}"
    )
    fits = index[0].shape == tensor.shape[:-1]
    return Cause((says,), index[0].changed(".unsqueeze(-1)") if fits else None)


def target_range_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which class a target has that the logits do not."""
    bad = int(match["index"])
    logits = next((one for one in scene.arguments if one.is_float and len(one.shape) > 1), None)
    says = f"the class {bad} is asked for"
    if logits is not None:
        count = logits.shape[1]
        says = f"{logits.name} has {count} classes (0 to {count - 1}); a target is {bad}"
    held = _holders(scene, bad)
    return Cause((says if held else says + _inside(scene, logits), *held))


def topk_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell how many elements `topk` was asked for, and how many there are."""
    if scene.event is None or bare_op(scene.event.name) not in ("topk", "kthvalue"):
        return None
    given = scene.run.arguments(scene.event.row)
    tensor = next(iter(scene.arguments), None)
    k, dim = given.get("1", given.get("k")), given.get("2", given.get("dim", -1))
    if tensor is None or type(k) is not int or type(dim) is not int or not tensor.shape:
        return None
    size = tensor.shape[dim]
    if k <= size:
        return None
    at = dim % len(tensor.shape)
    says = f"k is {k}, dimension {at} of {tensor.name} has {size}"
    if not tensor.is_written:
        return Cause((says,), None, ((tensor, at),))
    return Cause((says,), f"k=min({k}, {tensor.changed(f'.size({dim})')})", ((tensor, at),))


def _outside(scene: Scene, index: GivenTensor, rows: int, table: str) -> Cause:
    facts = scene.index_facts(index)
    says = [f"{table} (0 to {rows - 1})"]
    if facts is not None and facts.most >= rows:
        says[0] += f"; {index.name} holds {facts.most}{_at(facts.most_at)}"
    elif facts is not None and facts.least < 0:
        says[0] += f"; {index.name} holds {facts.least}{_at(facts.least_at)}"
    else:
        says[0] += f"; {index.name} has an index that is none of them"
    return Cause(tuple(says))


def _holders(scene: Scene, bad: int) -> list[str]:
    """Write which tensors of the failing line hold an index, and where."""
    held = []
    given = {one.name for one in scene.arguments}
    holding = {n: f for n, f in scene.facts.indices.items() if bad in (f.least, f.most)}
    # What an argument was computed from may hold the same number, and says less.
    for name, facts in holding.items():
        if name in given or (not given & set(holding) and name != GIVEN):
            where = facts.most_at if facts.most == bad else facts.least_at
            held.append(f"{name} holds {bad}{_at(where)}")
    return held


def _inside(scene: Scene, table: GivenTensor | None) -> str:
    """Write which argument must hold an index, if there is only one that can."""
    indices = [one for one in scene.arguments if one.is_integer and one.is_written]
    is_only = len(indices) == 1 and indices[0] is not table
    return f", in {indices[0].name}" if is_only else ""


def _at(where: tuple[int, ...]) -> str:
    return f" at [{', '.join(map(str, where))}]" if where else ""
