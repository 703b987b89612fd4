"""Facts derived in one go, in batches as a writer has them, while a trace grows, and as stored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clew
from clew.events.columns import EVENT_COLUMNS, VALUE_COLUMNS, Columns, Derived
from clew.events.vocabulary import COMPOSITE, MODULE, OF_OPS, OP
from clew.run.derive import derive, derive_all
from clew.run.derive_state import State
from clew.run.live_derived import LiveDerived
from clew.store.read.open_trace import rank_folders, read_files
from tests.native.engine import needs_engine

TRACES = Path(__file__).parents[1] / "corpus" / "traces"
RANKS = [rank for trace in sorted(TRACES.iterdir()) for rank in rank_folders(trace).values()]
# What may be open: events lie in it.
CALLS = (MODULE, COMPOSITE)
# Event id -> its facts, with texts for what is a row of a table.
Facts = dict[int, dict[str, Any]]


@lru_cache
def read(folder: Path) -> Columns:
    return read_files(folder)[0]


@pytest.fixture(params=RANKS, ids=[f"{rank.parent.stem}-{rank.name[-1]}" for rank in RANKS])
def columns(request: pytest.FixtureRequest) -> Columns:
    return replace(read(request.param), derived=None)


@lru_cache
def with_composites() -> Columns:
    """Two steps as the native engine records them, some in nested composites of both passes."""
    model = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    with clew.trace(model, engine="native") as t:
        for _ in range(2):
            model(torch.ones(1, 3, 8)).sum().backward()
            t.step()
    (columns,) = t._current_run().recorded()
    return replace(columns, derived=None)


def facts_of(columns: Columns, derived: Derived) -> Facts:
    found: Facts = {}
    for row, event in enumerate(columns.id.tolist()):
        facts = {
            name: int(getattr(derived, name)[row])
            for name in ("step", "call", "owner", "forward", "source")
        }
        module, prefix = int(derived.module[row]), int(derived.prefix[row])
        texts = {
            "module": None if module < 0 else derived.paths[module],
            "prefix": None if prefix < 0 else derived.prefixes[prefix],
        }
        found[event] = facts | texts
    return found


def differing(columns: Columns, found: Facts, wanted: Facts) -> list[str]:
    """Say which facts of which events differ."""
    assert found.keys() == wanted.keys()
    return [
        f"event {event} ({columns.ops[columns.subject[row]] if columns.kind[row] == OP else ''}): "
        f"{name} is {found[event][name]!r}, not {wanted[event][name]!r}"
        for row, event in enumerate(columns.id.tolist())
        for name in wanted[event]
        if found[event][name] != wanted[event][name]
    ]


class Replay:
    """What a writer has seen of a rank when its first so many events have ended."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        # Events of a worker come when it hands them over, after all that began before in the file.
        come = np.maximum(columns.end, np.maximum.accumulate(columns.start))
        is_open = (columns.end < 0) & np.isin(columns.kind, CALLS)
        ends = np.where(is_open, np.iinfo(np.int64).max, come)
        self.ended = np.lexsort((columns.id, ends))
        tensors = np.array([len(t.tensors) for t in columns.templates], dtype=np.int64)
        counts = tensors[columns.template]
        self._mentioned = [
            {*columns.refs[first : first + count].tolist(), *self._of_gradient(row)}
            for row, (first, count) in enumerate(
                zip(columns.first_ref.tolist(), counts.tolist(), strict=True)
            )
        ]

    def _of_gradient(self, row: int) -> list[int]:
        number = int(self.columns.number[row])
        is_op = self.columns.kind[row] in OF_OPS
        return [-2 - number] if is_op and number <= -2 else []

    def open_calls(self, count: int) -> Any:
        """Give the rows of calls in which events are under way after the first `count` ended."""
        if count == len(self.ended):
            return self.ended[:0]
        c = self.columns
        rest = self.ended[count:]
        now = c.start[self.ended[:count]].max()
        return rest[np.isin(c.kind[rest], CALLS) & (c.start[rest] <= now)]

    def seen(self, count: int) -> Any:
        """Give the rows of what has ended by then, and of open calls."""
        return np.concatenate([self.ended[:count], self.open_calls(count)])

    def values(self, count: int) -> int:
        """Give how many values are known by then; they are numbered as events mention them."""
        if count == len(self.ended):
            return len(self.columns.meta)
        return max((n + 1 for row in self.seen(count) for n in self._mentioned[row]), default=0)

    def alive(self, count: int) -> set[int]:
        """Give the known values that events still to come mention."""
        later = {n for row in self.ended[count:] for n in self._mentioned[row]}
        return {n for n in later if n < self.values(count)}

    def part(self, rows: Any, first_value: int, count: int) -> Columns:
        """Give some events as a batch, in order of their ids, and the values that are new."""
        c = self.columns
        rows = np.sort(rows)
        arrays = {name: getattr(c, name)[rows] for name in EVENT_COLUMNS}
        is_open = np.isin(rows, self.open_calls(count))
        arrays["end"] = np.where(is_open, -1, arrays["end"])
        arrays |= {
            name: getattr(c, name)[first_value : self.values(count)] for name in VALUE_COLUMNS
        }
        known = int(c.place[self.seen(count)].max()) + 1
        return replace(c, **arrays, places=c.places[:known])

    def batches(self, cuts: list[int]) -> Iterator[tuple[Columns, int]]:
        """Give the batches between some counts of ended events, with the count after each."""
        before = values = 0
        for count in cuts:
            rows = np.concatenate([self.ended[before:count], self.open_calls(count)])
            yield self.part(rows, values, count), count
            before, values = count, self.values(count)


def in_batches(columns: Columns, cuts: list[int], forget: bool) -> Facts:
    """Derive batch by batch; of an event that comes again the facts must stay the same."""
    state = State()
    replay = Replay(columns)
    found: Facts = {}
    for batch, count in replay.batches(cuts):
        new = facts_of(batch, derive(batch, state))
        for event, facts in new.items():
            assert found.setdefault(event, facts) == facts, f"event {event} changed"
        if forget:
            state.forget(replay.alive(count), batch.id[batch.end < 0])
    return found


def growing(columns: Columns, cuts: list[int]) -> Facts:
    """Derive as a trace in memory does: everything so far is read again and again."""
    live = LiveDerived()
    replay = Replay(columns)
    found: Facts = {}
    for count in cuts:
        so_far = replay.part(replay.seen(count), 0, count)
        new = facts_of(so_far, live.of(so_far))
        assert {event: new[event] for event in found} == found
        found = new
    return found


def random_cuts(columns: Columns, seed: int) -> list[int]:
    draw = random.Random(seed)
    total = len(columns.id)
    cuts = draw.sample(range(1, total), min(total - 1, draw.randint(1, 12)))
    return [*sorted(cuts), total]


def test_stored_facts_are_those_that_one_batch_gives(columns: Columns, request: Any) -> None:
    stored = read(request.node.callspec.params["columns"]).derived
    assert stored is not None
    wanted = facts_of(columns, derive_all(columns))
    assert differing(columns, facts_of(columns, stored), wanted) == []


@pytest.mark.parametrize("seed", range(4))
def test_batches_give_the_same_facts(columns: Columns, seed: int) -> None:
    found = in_batches(columns, random_cuts(columns, seed), forget=seed % 2 == 0)
    assert differing(columns, found, facts_of(columns, derive_all(columns))) == []


@pytest.mark.parametrize("seed", range(2))
def test_a_growing_trace_has_the_same_facts(columns: Columns, seed: int) -> None:
    found = growing(columns, random_cuts(columns, seed))
    assert differing(columns, found, facts_of(columns, derive_all(columns))) == []


def test_events_one_by_one_give_the_same_facts(columns: Columns) -> None:
    wanted = facts_of(columns, derive_all(columns))
    total = len(columns.id)
    cuts = [*range(1, min(total, 100)), total]
    assert differing(columns, in_batches(columns, cuts, forget=True), wanted) == []
    assert differing(columns, growing(columns, cuts), wanted) == []


@needs_engine
def test_composites_do_not_change_the_facts_of_other_events() -> None:
    columns = with_composites()
    assert (columns.kind == COMPOSITE).sum() > 20
    rows = np.flatnonzero(columns.kind != COMPOSITE)
    arrays = {name: getattr(columns, name)[rows] for name in EVENT_COLUMNS}
    # Without composites, what ran in one has its module call for a parent.
    around = dict(zip(columns.id.tolist(), columns.parent.tolist(), strict=True))
    composites = set(columns.id[columns.kind == COMPOSITE].tolist())
    for at, parent in enumerate(arrays["parent"].tolist()):
        while parent in composites:
            parent = around[parent]
        arrays["parent"][at] = parent
    plain = replace(columns, **arrays)
    found, wanted = (facts_of(c, derive_all(c)) for c in (columns, plain))
    kept = {event: found[event] for event in wanted}
    assert differing(plain, kept, wanted) == []


@needs_engine
@pytest.mark.parametrize("seed", range(6))
def test_batches_of_composites_give_the_same_facts(seed: int) -> None:
    columns = with_composites()
    cuts = random_cuts(columns, seed)
    wanted = facts_of(columns, derive_all(columns))
    assert differing(columns, in_batches(columns, cuts, forget=seed % 2 == 0), wanted) == []
    assert differing(columns, growing(columns, cuts), wanted) == []
