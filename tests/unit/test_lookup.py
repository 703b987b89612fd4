"""Rows and lists numbered by what they hold, and rows nested in one another."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clew.analysis.nested_rows import Nesting
from clew.run.lookup import number_lists, numbered, used_rows

SMALL = st.integers(-2, 3)
LARGE = st.sampled_from([-(1 << 60), -1, 0, 5, 1 << 61])


def same(numbers: list[int], things: list[object]) -> bool:
    """Whether things have the same number just where they are the same."""
    pairs = set(zip(numbers, things, strict=True))
    return len(pairs) == len(set(numbers)) == len(set(things))


@given(st.lists(st.tuples(SMALL | LARGE, SMALL, LARGE)))
def test_rows_alike_have_the_same_number(rows: list[tuple[int, ...]]) -> None:
    columns = [np.array([row[at] for row in rows], dtype=np.int64) for at in range(3)]
    found = numbered(*columns).tolist()
    assert same(found, rows)  # type: ignore[arg-type]
    assert sorted(set(found)) == list(range(len(set(rows))))


@given(st.lists(st.lists(SMALL | LARGE, max_size=9)))
def test_lists_alike_have_the_same_number(lists: list[list[int]]) -> None:
    counts = np.array([len(one) for one in lists], dtype=np.int64)
    items = np.array([item for one in lists for item in one], dtype=np.int64)
    assert same(number_lists(counts, items).tolist(), [tuple(one) for one in lists])


@given(st.lists(st.integers(-1, 9)), st.lists(st.integers(-1, 9)))
def test_rows_that_are_used_are_found_in_order(one: list[int], other: list[int]) -> None:
    used, at = used_rows(10, np.array(one, dtype=np.int64), np.array(other, dtype=np.int64))
    assert used == sorted({*one, *other} - {-1})
    assert [used[n] for n in at[used].tolist()] == used
    assert at[-1] == -1


@st.composite
def forests(draw: st.DrawFn) -> list[int]:
    size = draw(st.integers(0, 30))
    return [draw(st.integers(-1, row - 1)) for row in range(size)]


@given(forests())
def test_nesting_is_as_a_walk_finds_it(parents: list[int]) -> None:
    nesting = Nesting(np.array(parents, dtype=np.int64))
    kids = {row: [k for k, p in enumerate(parents) if p == row] for row in range(-1, len(parents))}
    assert {row: nesting[row] for row in kids} == kids

    def walk(row: int) -> list[int]:
        return [row, *(inner for kid in kids[row] for inner in walk(kid))]

    walks = [walk(row) for row in range(len(parents))]
    assert nesting.sizes.tolist() == [len(found) for found in walks]
    assert nesting.is_whole.tolist() == [
        found == list(range(row, row + len(found))) for row, found in enumerate(walks)
    ]
    odd = np.arange(len(parents)) % 2
    assert nesting.sums(odd).tolist() == [sum(row % 2 for row in found) for found in walks]
