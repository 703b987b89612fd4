"""`make setup` on a machine without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import HANG_GUARD, SRC

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_setup_goes_on_without_a_compiler(tmp_path: Path) -> None:
    ready, native = tmp_path / "ready", tmp_path / "native"
    # As if everything were installed already.
    ready.touch()
    variables = (f"BIN={Path(sys.executable).parent}", f"READY={ready}", f"NATIVE_READY={native}")
    done = subprocess.run(
        ["make", "--no-print-directory", *variables, "setup"],
        cwd=ROOT,
        env={
            **os.environ, "CXX": "no-compiler", "CLEW_NATIVE": str(tmp_path / "engine"),
            "PYTHONPATH": str(SRC),
        },
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("clew: CXX=no-compiler is no command here: install one")
    assert done.stderr.endswith("Clew records without the native engine too, only slower\n")
    assert done.stderr.count("\n") == 1
    assert native.exists()
