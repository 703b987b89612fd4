"""HDF5 files that values of any kind are appended to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from clew.compat.engine.growing_hdf5 import GrowingHdf5
from clew.errors import ClewError


def contents(path: Path) -> dict[str, Any]:
    with h5py.File(path) as file:
        return {name: dataset[()].tolist() for name, dataset in file.items()}


def test_rows_of_any_shape_with_facts_beside_them(tmp_path: Path) -> None:
    file = GrowingHdf5(tmp_path / "new" / "run.h5", {})
    assert not file.path.parent.exists()
    found = file.append("x", [torch.ones(2)], steps=([1], 0), ranks=([np.array([0, 1])], -1))
    values, steps, ranks = found["x"]
    assert (values.shape, steps.shape, ranks.shape) == ((1, 2), (1,), (1, 2))
    file.append("x", [torch.ones(1, 3), np.ones(())], steps=([2, 3], 0), ranks=([0, 1], -1))
    file.close()
    assert contents(file.path) == {
        "x": [[[1, 1, 0]], [[1, 1, 1]], [[1, 0, 0]]],
        "x_steps": [1, 2, 3],
        "x_ranks": [[0, 1], [0, -1], [1, -1]],
    }


def test_parts_text_and_empty_values(tmp_path: Path) -> None:
    file = GrowingHdf5(tmp_path / "run.h5", {}, compression="gzip")
    file.append("x", [{"a": [1, "one"]}, "text", 2.5, None, torch.empty(0, 2)])
    file.close()
    assert contents(file.path) == {
        "x": [[[2.5, 0]], [[0, 0]]], "x.a.0": [1], "x.a.1": [b"one"],
        "x.text": [b"text", b"None"],
    }  # fmt: skip


def test_numbers_have_the_plain_name_whatever_came_first(tmp_path: Path) -> None:
    file = GrowingHdf5(tmp_path / "run.h5", {})
    file.append("x", [None], steps=([1], 0))
    found = file.append("x", [torch.ones(2), None], steps=([1, 2], 0))
    assert {name: values[:].tolist() for name, (values, _) in found.items()} == {
        "x": [[1, 1]], "x.text": [b"None"] * 2,
    }  # fmt: skip
    file.append("y", ["one", {"text": 5}, "two", 3, "four"], steps=(range(5), 0))
    file.close()
    assert contents(file.path) == {
        "x": [[1, 1]], "x_steps": [1], "x.text": [b"None"] * 2, "x.text_steps": [1, 2],
        "y": [3], "y_steps": [3], "y.text": [5], "y.text_steps": [1],
        "y.text.text": [b"one", b"two", b"four"], "y.text.text_steps": [0, 2, 4],
    }  # fmt: skip


def test_rows_go_to_the_same_file_after_it_was_closed(tmp_path: Path) -> None:
    file = GrowingHdf5(tmp_path / "run.h5", {})
    file.append("x", [1.0, "text"], steps=([1, 2], 0))
    file.append("y", [torch.ones(2)])
    file.close()
    file.append("x", [])
    assert contents(file.path)["x"] == [1]  # closed as it was
    found = file.append("x", [2.0], steps=([3], 0))
    assert {name: [part[:].tolist() for part in parts] for name, parts in found.items()} == {
        "x": [[1, 2], [1, 3]], "x.text": [[b"text"], [2]], "y": [[[1, 1]]],
    }  # fmt: skip
    file.close()
    file.path.rename(tmp_path / "away.h5")
    assert list(file.append("x", [4.0], steps=([4], 0))) == ["x"]
    file.close()
    assert contents(file.path) == {"x": [4], "x_steps": [4]}


def test_a_dataset_takes_on_the_dtype_that_holds_all_of_it(tmp_path: Path) -> None:
    file = GrowingHdf5(tmp_path / "run.h5", {})
    [[values]] = file.append("x", [torch.tensor(1, dtype=torch.int8)]).values()
    assert values.dtype == np.int8
    [[values]] = file.append("x", [2**40, 0.5]).values()
    assert (values.dtype, values[:].tolist()) == (np.float64, [1, 2**40, 0.5])
    with pytest.raises(ClewError, match=r"x holds .*9007199254740993.* which float64 cannot hold"):
        file.append("x", [2**53 + 1])
    file.close()
    assert contents(file.path) == {"x": [1, 2**40, 0.5]}


def test_a_value_that_an_asked_dtype_cannot_hold_leaves_all_out(tmp_path: Path) -> None:
    file = GrowingHdf5(tmp_path / "run.h5", {"i": np.int8, "f": None})
    file.append("x", [1])
    with pytest.raises(ClewError, match="'x' has values that int8 cannot hold"):
        file.append("x", [2, 300])
    file.close()
    with h5py.File(file.path) as written:
        assert (written["x"].dtype, written["x"][:].tolist()) == (np.int8, [1])
