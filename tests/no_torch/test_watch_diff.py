"""Watches that record fingerprints, and comparing the traces of two watches, without torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.events.fingerprint import fingerprint_of

NAMES = ("x", "split", "heads", "scale", "parts", "out")


def attend(x: Any, order: tuple[int, ...], scale: float, noise: float) -> Any:
    split = x.reshape(2, 3, 4)
    heads = split.transpose(order).reshape(6, 4)
    out = heads * scale + noise
    parts = {"first": out[0], "sizes": list(order)}
    return parts


def watched(
    values: str, order: tuple[int, ...] = (0, 1, 2), scale: float = 3.0, noise: float = 0.0
) -> clew.Trace:
    x = np.sin(np.arange(24.0)).reshape(6, 4)
    with clew.watch(*NAMES, values=values, out=False) as watch:
        attend(x, order, scale, noise)
    return watch.trace


def test_arrays_have_the_fingerprint_of_their_data() -> None:
    marked, full = watched("fingerprint"), watched("full")
    assert marked.env["values"] == "fingerprint"
    arrays = [e for e in marked.variables if e.name in ("x", "split", "heads", "out")]
    assert len(arrays) == 5  # `x` is one of both functions
    for event in arrays:
        (other,) = full[event.address]
        value = event.outputs[""]
        assert value.fingerprint == fingerprint_of(other.outputs[""].array())
        assert value.fingerprint == other.outputs[""].fingerprint
        assert value.stats == other.outputs[""].stats
        with pytest.raises(clew.ClewError, match="values='full'|capture"):
            value.array()


@pytest.mark.parametrize("dtype", ["?", "i2", "u1", "f2", "f8", "c16", ">f4"])
def test_every_dtype_of_numbers_has_one(dtype: str) -> None:
    with clew.watch("y", values="fingerprint", out=False) as watch:
        y = np.arange(12).reshape(3, 4).astype(dtype)[:, ::2]
    (event,) = watch.trace.variables
    assert event.outputs[""].fingerprint == fingerprint_of(y)


def test_values_that_are_no_numbers_have_none() -> None:
    with clew.watch("y", values="fingerprint", out=False) as watch:
        y = np.array(["a", "b"])
        y = np.array([None, 1], dtype=object)
        y = "text"
    assert [event.outputs[""].fingerprint for event in watch.trace.variables] == [None] * 3
    assert y == "text"


@pytest.mark.parametrize("values", ["stats", "fingerprint", "full"])
def test_equal_watches_have_no_difference(values: str) -> None:
    found = clew.diff(watched(values), watched(values, noise=1e-15))
    assert found.equal, found
    assert (found.matched.a, found.matched.b) == (1.0, 1.0)
    assert "torch" not in sys.modules or "almost nothing" not in str(found)


@pytest.mark.parametrize("values", ["fingerprint", "full"])
def test_another_order_of_elements_is_named_where_it_arises(values: str) -> None:
    found = clew.diff(watched(values), watched(values, order=(0, 2, 1)))
    assert found.first is not None
    assert (found.first.kind, found.first.b and found.first.b.name) == ("wrong", "heads")
    assert found.first.evidence == ("b has its elements in another order",)
    assert "test_watch_diff.py:" in str(found)
    assert 0 < found.matched.a < 1


def test_statistics_forgive_the_order_and_say_so() -> None:
    found = clew.diff(watched("stats"), watched("stats", order=(0, 2, 1)))
    assert found.first is not None
    assert found.first.b is not None
    assert found.first.b.name == "parts"
    assert "statistics, which forgive any order of elements" in str(found)


def test_the_first_value_that_differs_is_named() -> None:
    found = clew.diff(watched("fingerprint"), watched("fingerprint", scale=4.5))
    assert found.first is not None
    assert found.first.b is not None
    assert found.first.b.name == "scale"
    assert found.first.evidence == ("it is 3.0 in a, 4.5 in b",)


def test_an_array_that_differs_is_named_with_how_much() -> None:
    found = clew.diff(watched("fingerprint"), watched("fingerprint", noise=0.25))
    assert found.first is not None
    assert found.first.b is not None
    assert found.first.b.name == "out"
    assert found.first.evidence[0].startswith("b differs by ")


def test_a_value_that_one_run_lacks_is_named() -> None:
    def traced(more: bool) -> clew.Trace:
        with clew.watch("y", "z", out=False) as watch:
            y = np.ones(3)
            if more:
                z = y * 2
                del z
            y = y + 1
        return watch.trace

    found = clew.diff(traced(False), traced(True))
    assert found.first is not None
    assert (found.first.kind, found.first.b and found.first.b.name) == ("extra", "z")
    assert "b has one value more: z" in str(found)
    found = clew.diff(traced(True), traced(False))
    assert found.first is not None
    assert (found.first.kind, found.first.a and found.first.a.name) == ("missing", "z")


def test_a_page_can_be_written_of_runs_without_ops(tmp_path: Path) -> None:
    found = clew.diff(watched("fingerprint"), watched("fingerprint", order=(0, 2, 1)))
    found.html(tmp_path / "diff.html")
    assert (tmp_path / "diff.html").read_text("utf-8").endswith("</html>\n")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(clew.ClewError, match="'meta', 'stats', 'fingerprint', 'full'"):
        clew.watch(values="everything")
