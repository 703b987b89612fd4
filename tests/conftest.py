"""What all tests share: the engine, golden files, and an end for forked children that hang.

Golden files are what a view prints, kept beside the tests and compared with what it prints now.
`pytest --update-golden` writes them anew; read the difference before you accept it.
"""

from __future__ import annotations

import difflib
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Golden files and documents show the python engine; `make test` runs tests/integration with the
# native one as well.
os.environ.setdefault("CLEW_ENGINE", "python")

GOLDEN = Path(__file__).parent / "golden"

# A forked child that hangs shows where after this many seconds, and dies. It holds the pipe
# between pytest-xdist and its worker, so the whole run would wait for it, also after the worker
# has died (`faulthandler_timeout` in pyproject.toml).
FORKED_SECONDS = 240


def pytest_configure() -> None:
    # A shell starts what runs in the background with interrupts ignored, and so would be all that
    # the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert sys.__stderr__ is not None
    faulthandler.register(signal.SIGALRM, file=os.dup(sys.__stderr__.fileno()), chain=True)
    os.register_at_fork(after_in_child=lambda: signal.alarm(FORKED_SECONDS))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*.txt anew")


@pytest.fixture(autouse=True)
def any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run in parallel are told how wide the terminal is, which text would keep to."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def python_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what the python engine alone does."""
    monkeypatch.setenv("CLEW_ENGINE", "python")


@pytest.fixture
def native_engine() -> None:
    """For tests of what the native engine alone does, when the tests run with it."""
    if os.environ["CLEW_ENGINE"] != "native":
        pytest.skip("the native engine does it: CLEW_ENGINE=native")


@pytest.fixture
def engine() -> str:
    """The engine that the tests run with."""
    return os.environ["CLEW_ENGINE"]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the golden file of a name."""
    update = bool(request.config.getoption("--update-golden"))

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if update:
            path.write_text(text, encoding="utf-8")
            return
        kept = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != kept:
            lines = kept.splitlines(), text.splitlines()
            difference = "\n".join(difflib.unified_diff(*lines, "kept", "printed", lineterm=""))
            pytest.fail(f"{path.name} differs; --update-golden accepts it\n{difference}")

    return check
