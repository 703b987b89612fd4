"""What works on a machine without torch.

A fresh interpreter is asked, so that nothing imported by the test run can hide an import. Where
torch is installed, the interpreter is told that it is not.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.no_torch.asking import Interpreter

# A trace made with torch under another Python; `make_trace.py` makes it anew.
RUN = str(Path(__file__).parent / "run.clew")
LOAD = f"import clew; t = clew.load({RUN!r})\n"


@pytest.fixture(scope="module")
def python() -> Iterator[Interpreter]:
    """A Python that has no torch."""
    with Interpreter("import sys; sys.modules['torch'] = None\n") as python:
        yield python


def clew_command(python: Interpreter, *arguments: str) -> tuple[int, str]:
    """Run the command line; its exit code and what it prints."""
    program = "from clew.cli.main import main\n"
    program += f"code = main({list(arguments)!r})\nprint(f'\\nexit {{code}}')\n"
    text, _, code = python.ask(program).rpartition("exit ")
    return int(code), text


def test_nothing_that_is_read_imports_torch() -> None:
    with Interpreter() as python:
        heavy = "sorted({'torch', 'pyarrow'} & set(sys.modules))"
        assert python.value(heavy, "import sys, clew\n") == []
        python.ask(LOAD + "str(t); str(t.code()); str(t.table()); t.coverage; t.to_dict()")
        python.ask(LOAD + "t['0'].values[0].array()")
        assert python.value("'torch' in sys.modules", "import sys\n") is False


def test_trace_without_torch_says_what_to_install(python: Interpreter) -> None:
    assert python.ask("import clew; print(clew.__version__)")
    asked = "try:\n    clew.trace()\nexcept clew.ClewError as error:\n    print(error)\n"
    assert 'pip install "clew[torch]"' in python.ask("import clew\n" + asked)


def test_the_doctor_says_that_torch_is_missing(python: Interpreter) -> None:
    code, text = clew_command(python, "doctor")
    assert code == 0
    assert "engine     none, as nothing can be recorded: torch cannot be imported: " in text
    assert 'to change  pip install "clew[torch]"\n' in text


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="builds what clew.watch uses: see test_passing_over.py"
)
def test_there_is_nothing_to_build_without_torch(python: Interpreter) -> None:
    code, text = clew_command(python, "build")
    assert code == 2
    assert text.startswith("clew: the native engine is built for one torch, which cannot be ")
    assert 'Run: pip install "clew[torch]"' in text


def test_a_saved_trace_opens_and_prints(python: Interpreter) -> None:
    text = python.ask(LOAD + "print(t)")
    assert "Sequential" in text
    assert "Linear" in text
    assert "f32[3,8]" in text
    code = python.ask(LOAD + "print(t.code())")
    assert "loss = model(torch.full((3, 4), float(step))).sum()" in code


def test_its_facts(python: Interpreter) -> None:
    assert python.ask(LOAD + "print(t.ranks, t.steps, t.modes, t.coverage)") == (
        "[0, 1] [0, 1, 2, 3] {0: 'train', 1: 'train', 2: 'eval'} ()"
    )
    assert python.ask(LOAD + "print(t.env['name'], t.crash)") == "made for reading None"
    modules = "{(e.module, e.phase) for e in t.modules}"
    assert python.ask(LOAD + f"print(sorted({modules}))") == (
        "[('', 'forward'), ('0', 'forward'), ('1', 'forward'), ('2', 'forward')]"
    )


def test_values_by_address(python: Interpreter) -> None:
    stacked = "print(t.series('0:in', mode='train').stack()[:, 0, 0])"
    assert python.ask(LOAD + stacked) == "[0. 1. 0. 1.]"
    assert python.value("t.series('', mode='eval').counts", LOAD) == [0, 0]
    assert python.value("[v.stats.max for v in t['0:in'].values][:3]", LOAD) == [0, 1, 2]
    arrays = (
        "a = [e.outputs[''].array() for e in t['op:aten._to_copy.default'] if e.rank == 0]\n"
        "print([x.tolist() for x in a], [str(x.dtype) for x in a])"
    )
    assert python.ask(LOAD + arrays) == (
        "[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [1.5, -0.0, nan]] ['float32', 'float32']"
    )
    large = "print(t['op:aten.add.Tensor#0'].values[0].array()[1, -1])"
    assert python.ask(LOAD + large) == "(1+1j)"
    sparse = "t['op:aten._to_sparse.default'].values[0].array().tolist()"
    assert python.value(sparse, LOAD) == [[1, 1], [1, 1]]


def test_a_tensor_says_what_to_install(python: Interpreter) -> None:
    program = (
        "try:\n    t['0'].values[0].tensor()\nexcept clew.ClewError as error:\n    print(error)\n"
    )
    assert 'pip install "clew[torch]"' in python.ask(LOAD + program)


@pytest.fixture(scope="module")
def events(python: Interpreter) -> list[dict[str, Any]]:
    """What the objects say of every event of the trace."""
    return list(
        python.value(
            "[dict(rank=e.rank, kind=e.kind, address=e.address, name=e.name, module=e.module,"
            " step=e.step, start=e.start, line=e.source.line if e.source else None,"
            " outputs=[v.look for v in e.outputs.values()]) for e in t.events]",
            LOAD,
        )
    )


def facts(events: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(event[name] for name in names) for event in events]


def export(python: Interpreter, fmt: str, folder: Path) -> Path:
    path = folder / f"run.{fmt}"
    python.ask(LOAD + f"t.export({fmt!r}, {str(path)!r})")
    return path


def test_exported_json(python: Interpreter, tmp_path: Path) -> None:
    data = json.loads(export(python, "json", tmp_path).read_text())
    assert data == python.value("t.to_dict()", LOAD)
    assert len(data["events"]) == 181


def test_exported_csv(python: Interpreter, events: list[dict[str, Any]], tmp_path: Path) -> None:
    with export(python, "csv", tmp_path).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for name in ("rank", "kind", "address", "name", "module", "step", "line"):
        said = ["" if event[name] is None else str(event[name]) for event in events]
        assert [row[name] for row in rows] == said, name
    for row, event in zip(rows, events, strict=True):
        assert all(look in row["outputs"] for look in event["outputs"])


def test_exported_parquet(
    python: Interpreter, events: list[dict[str, Any]], tmp_path: Path
) -> None:
    rows = pyarrow.parquet.read_table(export(python, "parquet", tmp_path)).to_pylist()
    names = ("rank", "kind", "address", "name", "module", "step")
    assert facts(rows, *names) == facts(events, *names)
    assert [row["line"] for row in rows] == [event["line"] for event in events]


def test_exported_chrome_trace(
    python: Interpreter, events: list[dict[str, Any]], tmp_path: Path
) -> None:
    shown = json.loads(export(python, "chrome", tmp_path).read_text())["traceEvents"]
    calls = [event for event in events if event["kind"] in ("module", "op")]
    spans = [e for e in shown if e["ph"] == "X" and e["cat"] != "step"]
    assert Counter((e["pid"], e["args"]["module"], e["args"]["step"]) for e in spans) == Counter(
        facts(calls, "rank", "module", "step")
    )
    begins = sorted(e["ts"] for e in spans)
    assert begins == pytest.approx(sorted(e["start"] * 1e6 for e in calls), abs=0.01)


def test_the_page_has_the_viewer_and_the_data(python: Interpreter, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    python.ask(LOAD + f"t.html({str(path)!r})")
    page = path.read_text(encoding="utf-8")
    assert page.count("<script") >= 2
    assert 'id="clew-data">' in page
    assert "made for reading" in page


def test_a_saved_copy_is_the_same(python: Interpreter, tmp_path: Path) -> None:
    saved = str(tmp_path / "again.clew")
    assert python.ask(LOAD + f"print(t.save({saved!r}).name)") == "again.clew"
    again = LOAD + f"u = clew.load({saved!r})\n"
    # As text, in which NaN is the same as NaN.
    assert python.ask(again + "print(str(t.to_dict()) == str(u.to_dict()))") == "True"
    arrays = "(t['0'].values[3].array() == u['0'].values[3].array()).all()"
    assert python.ask(again + f"print({arrays})") == "True"


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"{name} is an extra, not installed here"
    )


@needs("h5py")
def test_exported_hdf5(python: Interpreter, tmp_path: Path) -> None:
    path = export(python, "hdf5", tmp_path)
    read = f"import h5py\nfile = h5py.File({str(path)!r})\n" + LOAD
    read += "kept = t.series('0').stack()\n"
    assert python.ask(read + "print((file['0']['values'][...] == kept).all())") == "True"


@needs("pandas")
def test_a_frame_of_pandas(python: Interpreter, events: list[dict[str, Any]]) -> None:
    frame = python.value("t.to_pandas()[['rank', 'address']].values.tolist()", LOAD)
    assert frame == [[event["rank"], event["address"]] for event in events]


@needs("fsspec")
def test_a_place_of_fsspec(python: Interpreter) -> None:
    copied = LOAD + "t.save('memory://there/run.clew'); u = clew.load('memory://there/run.clew')\n"
    assert python.ask(copied + "print(str(t.to_dict()) == str(u.to_dict()))") == "True"


@needs("zarr")
def test_exported_zarr(python: Interpreter, tmp_path: Path) -> None:
    path = export(python, "zarr", tmp_path)
    read = f"import zarr\nroot = zarr.open({str(path)!r}, mode='r')\n" + LOAD
    read += "kept = t.series('0').stack()\n"
    assert python.ask(read + "print((root['0']['values'][...] == kept).all())") == "True"


@needs("resvg_py")
def test_a_picture(python: Interpreter, tmp_path: Path) -> None:
    path = tmp_path / "graph.png"
    python.ask(LOAD + f"t.graph().png({str(path)!r})")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_the_command_line(python: Interpreter, tmp_path: Path) -> None:
    code, text = clew_command(python, "info", RUN)
    assert code == 0
    assert "made for reading" in text
    assert "(2 train, 1 eval)" in text
    assert json.loads(clew_command(python, "info", RUN, "--json")[1])["ranks"][1]["rank"] == 1
    code, text = clew_command(python, "show", RUN)
    assert code == 0
    assert "Linear" in text
    code, text = clew_command(python, "code", RUN)
    assert code == 0
    assert "model(torch.full" in text
    code, text = clew_command(python, "value", RUN, "0#0")
    assert code == 0
    assert "f32[3,8]" in text
    assert clew_command(python, "recover", RUN)[0] == 0
    table = tmp_path / "run.csv"
    assert clew_command(python, "export", RUN, "csv", str(table))[0] == 0
    assert len(table.read_text(encoding="utf-8").splitlines()) == 182
    code, text = clew_command(python, "show", str(tmp_path))
    assert code == 2
    assert "is not a trace" in text
