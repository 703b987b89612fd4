"""`redact=True`: no text that the program made is in what is written, or shown."""

from __future__ import annotations

import importlib.util
import platform
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import clew

SECRET = "hunter2"
# A module of its own, in a folder whose name is a secret too.
PROGRAM = """
import numpy as np
import torch
from torch import nn

import clew


class Net(nn.Module):
    def forward(self, x, mode="hunter2", *, note="hunter2"):
        words = "hunter2"
        names = np.array(["hunter2", "a"])
        kept = clew.tap("said", "hunter2")
        torch.einsum("ij->ji", x)  # hunter2
        out = torch.nn.functional.interpolate(x[None], scale_factor=2, mode="nearest")
        return {"out": out.sum(), "mode": mode}
"""


def record(folder: Path, out: Path | None, redact: bool = True) -> clew.Trace:
    traces: list[clew.Trace] = []
    with pytest.raises(ValueError, match=SECRET):
        run(folder, out, redact, traces)
    return traces[0]


def run(folder: Path, out: Path | None, redact: bool, traces: list[clew.Trace]) -> None:
    place = folder / SECRET
    place.mkdir(exist_ok=True)
    (place / "net.py").write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("net", place / "net.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    net = module.Net()

    def on_a_thread() -> None:
        net(torch.ones(2, 3), "hunter2", note="hunter2")

    with clew.trace(
        net, values="full", capture=["forward.words", "forward.names"], watch=["kept"],
        out=out, redact=redact,
    ) as t:  # fmt: skip
        traces.append(t)
        net(torch.ones(2, 3), "hunter2", note="hunter2")["out"].sum()
        thread = threading.Thread(target=on_a_thread, name=SECRET)
        thread.start()
        thread.join()
        raise ValueError(f"the password is {SECRET} in {place}/net.py")


def texts_of(folder: Path) -> str:
    """Everything in the files of a trace."""
    found = []
    for path in folder.rglob("*"):
        found.append(path.name)
        if path.suffix == ".parquet":
            found.append(str(pq.read_table(path).to_pylist()))
        elif path.suffix == ".arrows":
            found.append(str(pyarrow.ipc.open_stream(path).read_all().to_pylist()))
        elif path.is_file():
            found.append(path.read_bytes().decode("latin-1"))
    return "\n".join(found)


@pytest.mark.parametrize("where", ["streamed", "saved"])
def test_nothing_of_the_program_s_texts_is_in_the_files(where: str, tmp_path: Path) -> None:
    folder = tmp_path / "run.clew"
    t = record(tmp_path, folder if where == "streamed" else None)
    if where == "saved":
        t.save(folder)
    written = texts_of(folder)
    assert SECRET not in written
    assert str(tmp_path) not in written
    assert platform.node() not in written


def test_without_it_they_are_there(tmp_path: Path) -> None:
    """The test above can fail."""
    assert (
        texts_of(Path(record(tmp_path, None, redact=False).save(tmp_path / "r.clew"))).count(SECRET)
        > 10
    )


def test_nothing_of_them_is_shown(tmp_path: Path) -> None:
    t = record(tmp_path, None)
    shown: list[Any] = [str(t), str(t.code()), str(t.table()), t.coverage, t.env, t.findings]
    shown += [event.to_dict() for event in t.events]
    page = Path(t.html(tmp_path / "page.html")).read_text()
    for format in ("json", "csv", "chrome"):
        t.export(format, tmp_path / f"t.{format}")
        shown.append((tmp_path / f"t.{format}").read_text())
    assert SECRET not in "\n".join(map(str, [*shown, page]))


def test_what_a_trace_is_read_by_stays(tmp_path: Path) -> None:
    t = record(tmp_path, None)
    assert {op.name for op in t.ops} >= {"aten.sum.default", "aten.ones.default"}
    assert t.crash is not None
    assert t.crash.exception == "ValueError"
    source = t["op:aten.ones.default"][0].source
    assert source is None or source.file == "test_redact.py"
    [inner] = {e.source.file for e in t.ops if e.module == "" and e.source is not None}
    assert inner == "net.py"
    assert t["said"][0].address == "said#0"
    assert t[":out.out"].values[0].array() == 12


def test_arrays_of_numbers_stay() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            half = np.ones(2) / 2
            return x * float(half.sum())

    model = Scaled()
    with clew.trace(model, capture=["forward.half"], redact=True) as t:
        model(torch.ones(1))
    assert t["forward.half"].values[0].array().tolist() == [0.5, 0.5]
