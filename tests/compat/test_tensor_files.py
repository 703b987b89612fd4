"""A folder of `.pt` files: their names, their numbers, and that none is lost."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from clew.compat.engine.tensor_files import TensorFiles, sample_norms

LOG = logging.getLogger("test")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def loaded(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def test_each_time_a_name_comes_is_a_file(tmp_path: Path) -> None:
    files = TensorFiles(LOG)
    for number in range(2):
        files.save(tmp_path, "a.b", {"x": (torch.tensor(number), None)})
    files.save(tmp_path, "c/d", torch.ones(2, requires_grad=True))
    assert names(tmp_path) == ["a.b.call0.pt", "a.b.call1.pt", "c%2Fd.call0.pt"]
    assert loaded(tmp_path / "a.b.call1.pt") == {"x": [torch.tensor(1), None]}
    assert not loaded(tmp_path / "c%2Fd.call0.pt").requires_grad
    assert files.counts == {"a.b": 2, "c/d": 1}


def test_a_number_of_ones_own_is_not_counted(tmp_path: Path) -> None:
    files = TensorFiles(LOG)
    files.save(tmp_path, "t", torch.zeros(3), 7)
    files.save(tmp_path, "t", torch.ones(3), 7, reduce=torch.sum)
    files.save(tmp_path, "t", torch.zeros(3))
    assert names(tmp_path) == ["t.call0.pt", "t.call7.pt"]
    assert loaded(tmp_path / "t.call7.pt").item() == 3


def test_a_name_has_the_newest_and_what_was_there_is_beside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run.1"
    folder.mkdir()
    for run in range(3):
        files = TensorFiles(LOG)
        files.save(folder, f"only{run}", torch.tensor(run))
        for _ in range(2):
            files.save(folder, "t", torch.tensor(run))
        files.counts.clear()
        files.save(folder, "t", torch.tensor(run))
    beside = ["run.1", "run.1-earlier", "run.1-earlier-2"]
    assert names(tmp_path) == beside
    both = ["t.call0.pt", "t.call1.pt"]
    assert names(folder) == ["only0.call0.pt", "only1.call0.pt", "only2.call0.pt", *both]
    assert names(tmp_path / beside[1]) == names(tmp_path / beside[2]) == both
    for name, run in zip(beside, (2, 0, 1), strict=True):
        assert [loaded(tmp_path / name / file).item() for file in both] == [run, run]
    said = [f"moved to {tmp_path / name}" for name in beside[1:]]
    assert [text.partition("again are ")[2] for text in caplog.messages] == said


def test_a_folder_may_be_given_as_it_is_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for value in range(2):
        TensorFiles(LOG).save(Path(), "t", torch.tensor(value))
    assert loaded(tmp_path / "here" / "t.call0.pt").item() == 1
    assert loaded(tmp_path / "here-earlier" / "t.call0.pt").item() == 0


def test_a_folder_that_is_there_is_saved_into(tmp_path: Path) -> None:
    (tmp_path / "t" / "epoch0").mkdir(parents=True)
    for value in range(2):
        files = TensorFiles(LOG)
        for name in ("epoch0/a", "epoch1/a", "../a", "epoch0/../a", "/a"):
            files.save(tmp_path / "t", name, torch.tensor(value))
    assert names(tmp_path) == ["t", "t-earlier"]
    for folder, value in (("t", 1), ("t-earlier", 0)):
        assert loaded(tmp_path / folder / "epoch0" / "a.call0.pt").item() == value
        assert [name for name in names(tmp_path / folder) if name != "epoch0"] == [
            "%2Fa.call0.pt", "..%2Fa.call0.pt", "epoch0%2F..%2Fa.call0.pt", "epoch1%2Fa.call0.pt",
        ]  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="there, fewer names are those of files")
def test_names_stay_as_they_are_where_files_can_have_them(tmp_path: Path) -> None:
    plain = ["10:30", "layer[0]*?", "50%", 'a "b" <c>|', "层", "", "."]
    coded = {"a/b": "a%2Fb", "a%2Fb": "a%252Fb", "\0": "%00", "\ud800": "\\ud800"}
    files = TensorFiles(LOG)
    for name in (*plain, *coded):
        files.save(tmp_path, name, torch.ones(1))
    assert names(tmp_path) == sorted(f"{name}.call0.pt" for name in (*plain, *coded.values()))
    assert list(files.counts) == [*plain, *coded]


def test_long_names_stay_apart(tmp_path: Path) -> None:
    files = TensorFiles(LOG)
    for end in "ab":
        files.save(tmp_path, "层" * 200 + end, torch.ones(1), 10**9)
    assert len(names(tmp_path)) == 2


def test_norms_are_those_of_samples() -> None:
    tensor = torch.rand(3, 4, 5).transpose(0, 1)
    assert torch.allclose(sample_norms(tensor), tensor.flatten(1).norm(dim=1))
    assert sample_norms(torch.tensor(-2.0)).tolist() == [2]


def test_what_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = TensorFiles(LOG)
    files.save(tmp_path, "m", torch.empty(2, device="meta"))
    files.save(tmp_path, "r", torch.ones(2), reduce=lambda tensor: 1 / 0)
    assert "Could not save m.call0.pt: NotImplementedError" in caplog.text
    assert "Could not save r.call0.pt: ZeroDivisionError: division by zero" in caplog.text
    assert names(tmp_path) == []
