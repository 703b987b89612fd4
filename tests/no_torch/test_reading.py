"""What works on a machine without torch.

Each test asks a fresh interpreter, so that nothing imported by the test run can hide an import.
Where torch is installed, the interpreter is told that it is not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HIDE_TORCH = "import sys; sys.modules['torch'] = None\n"


def run(program: str) -> str:
    """Run a program in a fresh interpreter and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_neither_torch_nor_pyarrow() -> None:
    heavy = "{'torch', 'pyarrow'}"
    assert run(f"import sys, clew; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_import_works_without_torch() -> None:
    assert run(HIDE_TORCH + "import clew; print(clew.__version__)")


def test_trace_without_torch_says_what_to_install() -> None:
    message = run(
        HIDE_TORCH
        + "import clew\n"
        + "try:\n    clew.trace()\n"
        + "except clew.ClewError as error:\n    print(error)\n"
    )
    assert 'pip install "clew[torch]"' in message


# A trace made with torch under another Python; `make_trace.py` makes it anew.
RUN = str(Path(__file__).parent / "run.clew")
LOAD = HIDE_TORCH + f"import clew; t = clew.load({RUN!r})\n"


def clew_command(*arguments: str) -> tuple[int, str]:
    """Run the command line without torch; its exit code and what it prints."""
    program = HIDE_TORCH + "import sys; from clew.cli.main import main\n"
    program += f"sys.exit(main({list(arguments)!r}))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_saved_trace_opens_and_prints() -> None:
    text = run(LOAD + "print(t)")
    assert "Sequential" in text
    assert "Linear" in text
    assert "f32[3,8]" in text
    code = run(LOAD + "print(t.code())")
    assert "loss = model(torch.full((3, 4), float(step))).sum()" in code


def test_its_facts() -> None:
    assert run(LOAD + "print(t.ranks, t.steps, t.modes, t.coverage)") == (
        "[0, 1] [0, 1, 2, 3] {0: 'train', 1: 'train', 2: 'eval'} ()"
    )
    assert run(LOAD + "print(t.env['name'], t.crash)") == "made for reading None"
    modules = "{(e.module, e.phase) for e in t.modules}"
    assert run(LOAD + f"print(sorted({modules}))") == (
        "[('', 'forward'), ('0', 'forward'), ('1', 'forward'), ('2', 'forward')]"
    )


def test_values_by_address() -> None:
    assert run(LOAD + "print(t.series('0:in', mode='train').stack()[:, 0, 0])") == "[0. 1. 0. 1.]"
    assert run(LOAD + "print(t.series('', mode='eval').counts)") == "[0, 0]"
    stats = "print([v.stats.max for v in t['0:in'].values][:3])"
    assert run(LOAD + stats) == "[0.0, 1.0, 2.0]"
    arrays = (
        "a = [e.outputs[''].array() for e in t['op:aten._to_copy.default'] if e.rank == 0]\n"
        "print([x.tolist() for x in a], [str(x.dtype) for x in a])"
    )
    assert run(LOAD + arrays) == (
        "[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [1.5, -0.0, nan]] ['float32', 'float32']"
    )
    large = "print(t['op:aten.add.Tensor#0'].values[0].array()[1, -1])"
    assert run(LOAD + large) == "(1+1j)"
    sparse = "print(t['op:aten._to_sparse.default'].values[0].array().tolist())"
    assert run(LOAD + sparse) == "[[1.0, 1.0], [1.0, 1.0]]"


def test_a_tensor_says_what_to_install() -> None:
    program = (
        "try:\n    t['0'].values[0].tensor()\nexcept clew.ClewError as error:\n    print(error)\n"
    )
    assert 'pip install "clew[torch]"' in run(LOAD + program)


def test_nothing_that_is_read_imports_torch() -> None:
    program = (
        f"import sys, clew; t = clew.load({RUN!r}); str(t); str(t.code()); str(t.table())\n"
        "t['0'].values[0].array(); t.coverage; t.to_dict(); print('torch' in sys.modules)"
    )
    assert run(program) == "False"


def test_exports(tmp_path: Path) -> None:
    for fmt in ("json", "csv", "parquet", "chrome"):
        path = tmp_path / f"run.{fmt}"
        run(LOAD + f"t.export({fmt!r}, {str(path)!r})")
        assert path.stat().st_size > 1000
    saved = tmp_path / "again.clew"
    assert run(LOAD + f"print(t.save({str(saved)!r}).name)") == "again.clew"
    again = LOAD + f"u = clew.load({str(saved)!r})\n"
    # As text, in which NaN is the same as NaN.
    assert run(again + "print(str(t.to_dict()) == str(u.to_dict()))") == "True"
    arrays = "print((t['0'].values[3].array() == u['0'].values[3].array()).all())"
    assert run(again + arrays) == "True"


def test_the_command_line(tmp_path: Path) -> None:
    code, text = clew_command("info", RUN)
    assert code == 0
    assert "made for reading" in text
    assert "(2 train, 1 eval)" in text
    assert json.loads(clew_command("info", RUN, "--json")[1])["ranks"][1]["rank"] == 1
    code, text = clew_command("show", RUN)
    assert code == 0
    assert "Linear" in text
    code, text = clew_command("code", RUN)
    assert code == 0
    assert "model(torch.full" in text
    code, text = clew_command("value", RUN, "0#0")
    assert code == 0
    assert "f32[3,8]" in text
    assert clew_command("recover", RUN)[0] == 0
    code, text = clew_command("export", RUN, "csv", str(tmp_path / "run.csv"))
    assert code == 0
    assert (tmp_path / "run.csv").exists()
    code, text = clew_command("show", str(tmp_path))
    assert code == 2
    assert "is not a trace" in text
