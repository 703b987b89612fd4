"""Snapshots as text: what is written is read back, within what noise leaves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clew.errors import ClewError
from clew.testing.snapshot_compare import compare, differs, error_between
from clew.testing.snapshot_text import (
    Section,
    SnapshotFile,
    SnapshotLine,
    read_file,
    usual_tolerance,
    write_file,
    write_line,
)

NUMBERS = st.floats(min_value=-1e30, max_value=1e30, allow_nan=False)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)


def line(name: str = "fc", tolerance: float = 1e-5, **numbers: float) -> SnapshotLine:
    kept = {"mean": 0.5, "std": 1.0, "min": -2.0, "max": 3.0, **numbers}
    return SnapshotLine(name, "Linear", "f32[2,3]", {k: (v,) for k, v in kept.items()}, tolerance)


def read_back(*lines: SnapshotLine) -> SnapshotFile:
    section = Section("check 1", ("torch 2", "python 3.11"), lines)
    return read_file(write_file(SnapshotFile("test_it", {"check 1": section})), "it.txt")


@settings(deadline=None)  # the first example loads much
@given(names=st.lists(NAMES, unique=True, max_size=4), cls=NAMES, mean=NUMBERS,
       std=st.floats(0, 1e30), tolerance=st.sampled_from([1e-10, 1e-5, 2e-3, 0.3]))  # fmt: skip
def test_what_is_written_is_read_back(
    names: list[str], cls: str, mean: float, std: float, tolerance: float
) -> None:
    numbers = {"mean": (mean,), "std": (std,), "axes": (mean / 2, -mean)}
    lines = [SnapshotLine(name, cls, "f32[2,3]", numbers, tolerance) for name in names]
    file = read_back(*lines)
    assert file.test == "test_it"
    found = file.sections["check 1"]
    assert found.made_with == ("torch 2", "python 3.11")
    for wanted, got in zip(lines, found.lines, strict=True):
        assert (got.name, got.cls, got.look) == (wanted.name, wanted.cls, wanted.look)
        assert got.tolerance == pytest.approx(tolerance)
        assert error_between(wanted, got) <= tolerance / 3


def test_a_line_has_no_more_digits_than_noise_leaves() -> None:
    assert (
        write_line(line())
        == "fc Linear f32[2,3] mean 0.500000 std 1.000000 min -2.00000 max 3.00000"
    )
    coarse = write_line(line(tolerance=1e-2, nan=2))
    assert coarse == "fc Linear f32[2,3] mean 0.500 std 1.000 min -2.00 max 3.00 nan 2 tol 1e-02"
    assert " mean 0 " in write_line(line(mean=-1e-9))


def test_the_usual_tolerance_goes_by_the_dtype() -> None:
    found = {dtype: usual_tolerance(f"{dtype}[2]") for dtype in ("f64", "f32", "bf16", "i64")}
    assert found == {"f64": 1e-10, "f32": 1e-5, "bf16": 1e-2, "i64": 1e-9}
    assert usual_tolerance("f8e5m2[2]") == 5e-2


def test_differences_of_numbers_counts_and_weights() -> None:
    assert not differs(line(), line(mean=0.5 + 1e-6))
    assert differs(line(), line(mean=0.5 + 1e-4))
    assert not differs(line(), line(max=3.0 + 5e-5))
    assert differs(line(), line(max=3.0 + 5e-4))
    assert differs(line(nan=1), line(nan=2))
    assert differs(line(), line(inf=1))
    assert differs(line(weights=2.0), line(weights=2.001))
    assert differs(line(mean=0, std=0, min=0, max=0), line(mean=1e-9, std=0, min=0, max=1e-9))
    found = compare([line("a"), line("b")], [line("a"), line("b", mean=3)])
    assert found is not None
    assert found.first is not None
    assert found.first.name == "b"
    assert compare([line("a")], [line("a", mean=0.5 + 1e-7)]) is None


@pytest.mark.parametrize("text", ["", "something else\n", "clew snapshot 2 of test_it\n"])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(ClewError, match="it.txt is no snapshot of this version of Clew"):
        read_file(text, "it.txt")


@pytest.mark.parametrize("row", ["<<<<<<< HEAD", "a b c mean", "a b c mean x", "a b c size 3", "a"])
def test_a_line_that_is_none_is_named(row: str) -> None:
    with pytest.raises(ClewError, match="it.txt:4 is no line of a snapshot") as raised:
        read_file(f"clew snapshot 1 of test_it\n\n[check 1]\n{row}\n", "it.txt")
    assert "--clew-update" in str(raised.value)
