"""What most ranks hold, how tensors are placed, and how ranks are listed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.analysis.ranks.agreement_lines import listed
from clew.analysis.ranks.keys import mixed, occurrences, parsed_digests
from clew.analysis.ranks.op_roles import is_collective, makes_equal, sources
from clew.analysis.ranks.placements import (
    GROUPS,
    PARTIAL,
    PER_RANK,
    REPLICATED,
    SHARDED,
    is_regular,
    partition,
    placements_of,
    stated,
)
from clew.analysis.ranks.rank_facts import NamedTensor, RankFacts
from clew.analysis.ranks.votes import Votes

RANK = st.dictionaries(st.integers(1, 6), st.integers(0, 3), max_size=6)


@settings(deadline=None)
@given(st.lists(RANK, min_size=3, max_size=7))
def test_votes_count_as_a_table_of_all_ranks_would(ranks: list[dict[int, int]]) -> None:
    votes = Votes(len(ranks))
    for one in ranks:
        votes.add(np.array([*one], np.uint64), np.array([*one.values()], np.uint64))
    for one in ranks:
        keys = np.array([*one], np.uint64)
        agree, differ = votes.compare(keys, np.array([*one.values()], np.uint64))
        for at, (key, content) in enumerate(one.items()):
            held = Counter(other[key] for other in ranks if other.get(key))
            best, count = held.most_common(1)[0] if held else (0, 0)
            settled = content != 0 and 2 * count > sum(held.values())
            assert agree[at] == (settled and content == best)
            assert differ[at] == (settled and content != best)


def test_of_two_ranks_what_the_first_has_counts() -> None:
    votes, keys = Votes(2), np.array([1, 2, 3], np.uint64)
    first, second = np.array([5, 6, 7], np.uint64), np.array([5, 9, 0], np.uint64)
    votes.add(keys, first)
    votes.add(keys, second)
    assert [found.tolist() for found in votes.compare(keys, first)] == [
        [True, True, False], [False, False, False],
    ]  # fmt: skip
    assert votes.compare(keys, second)[1].tolist() == [False, True, False]
    assert votes.has_majority(keys).tolist() == [True, False, True]


def test_keys_depend_on_order_and_occurrences_are_counted() -> None:
    one, other = np.array([1], np.uint64), np.array([2], np.uint64)
    assert mixed(one, other) != mixed(other, one)
    assert occurrences(np.array([7, 8, 7, 7, 8], np.uint64)).tolist() == [0, 0, 1, 2, 1]
    assert parsed_digests(["00000000000000ff", "0000000000000000"]).tolist() == [255, 1]
    assert len(set(parsed_digests(["a", "b", "a"]).tolist())) == 2


@pytest.mark.parametrize(
    ("text", "placement"),
    [("S(0)", (SHARDED, 0)), ("R,S(1)", (SHARDED, 1)), ("R", (REPLICATED, None)),
     ("P(sum)", (PARTIAL, None)), ("_NormP(2.0)", (PARTIAL, None)), (None, (None, None))],
)  # fmt: skip
def test_what_a_dtensor_says(text: str | None, placement: tuple[str | None, int | None]) -> None:
    assert stated(text) == placement


def _rank(rank: int, digest: int, update: int = 0, wrapper: str = "") -> RankFacts:
    tensor = NamedTensor(digest, digest, update, None, (4,), None, "float32", 0)
    return RankFacts(
        rank=rank, events=1, tensors=1, steps=1, last=(0, "", "", -1), ended=True, structure=0,
        batch=0, modes={}, named={"w": tensor}, parameters={"w"},
        wrappers=frozenset({wrapper} - {""}), nan=None, spread_nan=False, has_digests=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("digests", "placement"),
    [([1, 1, 1, 1], REPLICATED), ([1, 1, 2, 1], REPLICATED), ([1, 2, 1, 2], GROUPS),
     ([1, 2, 3, 4], PER_RANK), ([1, 1, 2, 3], PER_RANK)],
)  # fmt: skip
def test_placements_are_inferred_from_who_holds_the_same(
    digests: list[int], placement: str
) -> None:
    ranks = [_rank(rank, digest) for rank, digest in enumerate(digests)]
    assert [one.placement for one in placements_of(ranks)] == [placement]


def test_tensors_that_ddp_holds_or_all_update_alike_are_replicated() -> None:
    wrapped = [_rank(rank, rank + 1, wrapper="DistributedDataParallel") for rank in range(2)]
    assert placements_of(wrapped)[0].placement == REPLICATED
    assert placements_of([_rank(0, 1, 8), _rank(1, 2, 8)])[0].placement == REPLICATED
    assert placements_of([_rank(0, 1, 8), _rank(1, 2, 9)])[0].placement == PER_RANK


def test_ranks_are_grouped_and_listed() -> None:
    assert partition({0: 5, 1: 6, 2: 5}) == ((0, 2), (1,))
    assert is_regular([(0, 2), (1, 3)])
    assert not is_regular([(0, 2), (1,)])
    assert not is_regular([(0, 1)])
    assert listed([3]) == "rank 3"
    assert listed([0, 1]) == "ranks 0, 1"
    assert listed([*range(1000)]) == "ranks 0–999"


def test_what_a_result_is_made_from() -> None:
    assert sources("aten.add.Tensor", 2, 1, 0) == [0, 1]
    assert sources("aten.copy_.default", 2, 1, 0) == [1]
    assert sources("aten.mul.out", 3, 1, 0) == [0, 1]
    assert sources("aten._foreach_mul_.Tensor", 4, 3, 1) == [1, 3]
    assert sources("aten._foreach_add_.List", 6, 3, 2) == [2, 5]
    assert is_collective("c10d.allreduce_.default")
    assert makes_equal("c10d.allreduce_.default")
    assert not makes_equal("c10d._reduce_scatter_base_.default")
    assert not is_collective("_c10d_functional.wait_tensor.default")
