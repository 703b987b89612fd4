"""A folder of `.pt` files: their names, their numbers, and that none is lost."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from clew.views.export.tensor_files import TensorFiles

LOG = logging.getLogger("test")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def loaded(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def test_each_time_a_name_comes_is_a_file(tmp_path: Path) -> None:
    files = TensorFiles(tmp_path / "new" / "folder", LOG)
    for number in range(2):
        files.save("a.b", {"x": (torch.tensor(number), None)})
    files.save("c/d", torch.ones(2, requires_grad=True))
    assert files.folder == tmp_path / "new" / "folder"
    assert names(files.folder) == ["a.b.call0.pt", "a.b.call1.pt", "c%2Fd.call0.pt"]
    assert loaded(files.folder / "a.b.call1.pt") == {"x": [torch.tensor(1), None]}
    assert not loaded(files.folder / "c%2Fd.call0.pt").requires_grad
    assert files.counts == {"a.b": 2, "c%2Fd": 1}


def test_a_number_of_ones_own_is_not_counted(tmp_path: Path) -> None:
    files = TensorFiles(tmp_path, LOG)
    files.save("t", torch.zeros(3), 7)
    files.save("t", torch.ones(3), 7, reduce=torch.sum)
    files.save("t", torch.zeros(3))
    assert names(tmp_path) == ["t.call0.pt", "t.call7.pt"]
    assert loaded(tmp_path / "t.call7.pt").item() == 3


def test_files_from_before_stay_and_the_folder_beside_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        files = TensorFiles(tmp_path / "run", LOG)
        files.save("t", torch.ones(1))
    assert names(tmp_path) == ["run", "run-2", "run-3"]
    assert f"{tmp_path / 'run'} has saved tensors already; saving to {files.folder}" in caplog.text


def test_those_who_write_into_one_folder_count_together(tmp_path: Path) -> None:
    one = TensorFiles(tmp_path / "x", LOG)
    other = TensorFiles(tmp_path / "y" / ".." / "x", LOG)
    one.save("t", torch.tensor(1))
    del one
    gc.collect()
    other.save("t", torch.tensor(2))
    assert [loaded(path).item() for path in sorted((tmp_path / "x").iterdir())] == [1, 2]
    # Once nobody writes there and nothing is left, counting begins anew.
    del other
    gc.collect()
    for path in (tmp_path / "x").iterdir():
        path.unlink()
    TensorFiles(tmp_path / "x", LOG).save("t", torch.tensor(3))
    assert names(tmp_path / "x") == ["t.call0.pt"]


def test_what_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = TensorFiles(tmp_path, LOG)
    files.save("m", torch.empty(2, device="meta"))
    files.save("r", torch.ones(2), reduce=lambda tensor: 1 / 0)
    assert "Could not save m.call0.pt: NotImplementedError" in caplog.text
    assert "Could not save r.call0.pt: ZeroDivisionError: division by zero" in caplog.text
    assert names(tmp_path) == []
