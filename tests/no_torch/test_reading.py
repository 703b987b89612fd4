"""What works on a machine without torch.

Each test asks a fresh interpreter, so that nothing imported by the test run can hide an import.
Where torch is installed, the interpreter is told that it is not.
"""

from __future__ import annotations

import subprocess
import sys

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
