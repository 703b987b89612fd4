"""How parameters and buffers lie on the ranks: replicated, sharded, or each rank its own.

Input: the facts of all ranks. Output: a `Placement` for each name. DTensor says it itself; of plain
tensors it is inferred from which ranks hold the same when they first use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clew.analysis.ranks.rank_facts import NamedTensor, RankFacts
from clew.events.model import Data

REPLICATED, SHARDED, PARTIAL, GROUPS, PER_RANK = (
    "replicated", "sharded", "partial", "replicated in groups", "per rank"
)  # fmt: skip
_SHORT = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16",
          "int64": "i64", "int32": "i32", "bool": "bool"}  # fmt: skip
# Buffers that a batch norm without synchronisation keeps for each rank's own batches.
_RUNNING = ("running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class Placement(Data):
    """How one parameter or buffer lies on the ranks that hold it.

    `placement` is "replicated", "sharded", "partial", "replicated in groups" or "per rank"; `dim`
    is the dimension of a shard. `stated` are DTensor's own words, if it is one. `groups` are the
    ranks that hold the same. `source` says whether a DTensor said so or it was inferred. `shape` is
    that of the whole, `norm` its norm, where the fingerprints of all shards could be merged.
    """

    name: str
    placement: str
    dim: int | None
    dtype: str
    shape: tuple[int, ...]
    local: tuple[int, ...] | None
    stated: str | None
    groups: tuple[tuple[int, ...], ...]
    source: str
    norm: float | None = None

    @property
    def look(self) -> str:
        """Return dtype and shape as short text."""
        return f"{_SHORT.get(self.dtype, self.dtype)}[{','.join(map(str, self.shape))}]"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {
            "name": self.name, "placement": self.placement, "dim": self.dim, "dtype": self.dtype,
            "shape": list(self.shape), "local": None if self.local is None else list(self.local),
            "stated": self.stated, "groups": [list(group) for group in self.groups],
            "source": self.source,
            "norm": self.norm,
        }  # fmt: skip


def placements_of(ranks: Sequence[RankFacts]) -> list[Placement]:
    """Infer the placement of every named tensor, in order of first use."""
    names = dict.fromkeys(name for one in ranks for name in one.named)
    wrapped = any("DistributedDataParallel" in one.wrappers for one in ranks)
    found = []
    for name in names:
        held = {one.rank: one.named[name] for one in ranks if name in one.named}
        found.append(_placement(name, held, wrapped))
    return found


def _placement(name: str, held: Mapping[int, NamedTensor], wrapped: bool) -> Placement:
    groups = partition({rank: one.digest for rank, one in held.items()})
    one = next(iter(held.values()))
    dtensor, dim = stated(one.placement)
    placement = dtensor or _inferred(groups, held, wrapped)
    if is_running_statistic(name) and len(partition({r: t.last for r, t in held.items()})) > 1:
        placement = PER_RANK
    return Placement(
        name, placement, dim, one.dtype, one.shape, one.local, one.placement, groups,
        "DTensor" if dtensor else "inferred",
    )  # fmt: skip


def is_running_statistic(name: str) -> bool:
    """Return whether a buffer is one that batch norm keeps of each rank's own batches."""
    return name.rpartition(".")[2] in _RUNNING


def partition(contents: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks that hold the same, largest group first."""
    groups: dict[int, list[int]] = {}
    for rank, content in sorted(contents.items()):
        groups.setdefault(content, []).append(rank)
    return tuple(sorted(map(tuple, groups.values()), key=lambda group: (-len(group), group[0])))


def is_regular(groups: Sequence[Sequence[int]]) -> bool:
    """Return whether ranks fall into several groups of one size, as those of a mesh do."""
    return len(groups) > 1 and len(groups[0]) > 1 and len({len(group) for group in groups}) == 1


def stated(text: str | None) -> tuple[str | None, int | None]:
    """Return what a DTensor says: the placement and the dimension of a shard."""
    if not text:
        return None, None
    parts = [part.strip() for part in text.replace("(", " ").replace(")", " ").split(",")]
    kinds = [part.split()[:2] for part in parts if part]
    shards = [kind for kind in kinds if kind[0].lstrip("_").startswith("S")]
    if shards:
        number = shards[0][1] if len(shards[0]) > 1 else ""
        return SHARDED, int(number) if number.isdecimal() else None
    if any("P" in kind[0] for kind in kinds):
        return PARTIAL, None
    return REPLICATED, None


def _inferred(
    groups: Sequence[Sequence[int]], held: Mapping[int, NamedTensor], wrapped: bool
) -> str:
    """Infer the placement of a plain tensor from who holds the same."""
    if 2 * len(groups[0]) > len(held) or wrapped:
        return REPLICATED
    if is_regular(groups):
        return GROUPS
    updates = {one.update for one in held.values()}
    # Ranks that change it by the same must mean the same tensor.
    return REPLICATED if len(updates) == 1 and 0 not in updates else PER_RANK


def mesh_groups(placements: Sequence[Placement]) -> list[tuple[tuple[int, ...], ...]]:
    """Return partitions into groups of equal size that several tensors share, most common first."""
    seen = Counter(one.groups for one in placements if is_regular(one.groups))
    return [groups for groups, count in seen.most_common() if count > 1 or len(placements) == 1]
