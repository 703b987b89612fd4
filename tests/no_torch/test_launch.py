"""`clew run` without torch, on every Python: the program runs as it would, and Clew says why
nothing was recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_NOTHING = "clew: nothing was recorded: the program did not import torch"
_WATCH = "; to follow NumPy arrays, put @clew.watch('name') on a function of it"


def run(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program under `clew run`."""
    (folder / "program.py").write_text(text)
    command = [sys.executable, "-m", "clew", "run", *(words or ("program.py", "--lr", "3"))]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CLEW")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_program_of_numpy_is_told_what_to_do(tmp_path: Path) -> None:
    text = "import sys, numpy as np\nprint(__name__, sys.argv, np.ones(3).sum())\nsys.exit(7)\n"
    done = run(tmp_path, text)
    assert done.stdout == "__main__ ['program.py', '--lr', '3'] 3.0\n"
    assert done.stderr == f"{_NOTHING}{_WATCH}\n"
    assert done.returncode == 7


def test_a_program_without_numpy_finds_nothing_of_the_launch(tmp_path: Path) -> None:
    text = (
        "import os, sys\nprint('CLEW_RUN' in os.environ, 'sitecustomize' in sys.modules)\n"
        "print([p for p in sys.path if 'startup' in p], os.environ.get('PYTHONPATH'))\n"
    )
    done = run(tmp_path, text, "program.py")
    assert done.stdout.splitlines()[0].startswith("False ")
    assert done.stdout.splitlines()[1] == f"[] {os.environ.get('PYTHONPATH')}"
    assert (done.stderr, done.returncode) == (f"{_NOTHING}\n", 0)


@pytest.mark.parametrize("words", [("program.py",), ("-m", "program")])
def test_an_exception_ends_the_program_as_it_would(tmp_path: Path, words: tuple[str, ...]) -> None:
    text = "def f(x):\n    return x['missing']\nf({})\n"
    done = run(tmp_path, text, *words)
    assert "KeyError: 'missing'" in done.stderr
    assert "clew/launch" not in done.stderr
    assert done.stderr.endswith(f"{_NOTHING}\n")
    assert done.returncode == 1


def test_a_torch_that_is_none_does_not_end_the_program(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("value = 3\n")
    done = run(tmp_path, "import torch\nprint(torch.value)\n", "program.py")
    assert (done.stdout, done.returncode) == ("3\n", 0)
    assert done.stderr.startswith("clew: nothing is recorded: ")
    assert "Traceback" not in done.stderr


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, "", "progam.py")
    assert done.returncode == 2
    assert "there is no such file; did you mean program.py?" in done.stderr
