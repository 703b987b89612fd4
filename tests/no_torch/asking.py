"""One Python that answers many questions: to start one for each takes longer than the answers."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any

from tests.processes import HANG_GUARD

# Each line of JSON that comes in is a program; what it prints, and how it failed, goes out.
_LOOP = """
import contextlib, io, json, sys, traceback
for line in sys.stdin:
    printed, failure = io.StringIO(), ""
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            exec(json.loads(line), {"__name__": "__main__"})
        except BaseException:
            failure = traceback.format_exc()
    print(json.dumps([printed.getvalue(), failure]), flush=True)
"""


class Interpreter:
    """A fresh Python in which warnings are errors; `before` runs first, and must not fail."""

    def __init__(self, before: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", before + _LOOP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=HANG_GUARD)

    def ask(self, program: str) -> str:
        """Run a program that must not fail; what it prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(program) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the interpreter ended while it ran {program}"
        printed, failure = json.loads(answer)
        assert not failure, failure
        return str(printed).strip()

    def value(self, expression: str, before: str = "") -> Any:
        """Give what an expression comes to, by way of JSON."""
        return json.loads(self.ask(f"import json\n{before}print(json.dumps({expression}))"))
