"""Recording loads nothing that only reads: the first trace of a process waits for every module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

_PROGRAM = """
import json, sys
import torch, clew
model = torch.nn.Linear(2, 2)
with clew.trace(model) as t:
    model(torch.ones(1, 2))
recorded = [name for name in sys.modules if name.startswith("clew.")]
assert len(t.ops) > 0
print(json.dumps([recorded, [name for name in sys.modules if name.startswith("clew.")]]))
"""

_READERS = ("clew.analysis.", "clew.run.", "clew.store.", "clew.views.text", "clew.record.encoder")


# What only the native engine needs.
_NATIVE = ("clew.native", "clew.keep.native_values", "clew.observe.native_ops")


def test_a_trace_that_nobody_reads_loads_no_reader() -> None:
    recorded, read = _loaded(os.environ)
    assert [name for name in recorded if name.startswith(_READERS)] == []
    assert [name for name in read if name.startswith("clew.run.")] != []


def test_the_python_engine_loads_nothing_of_the_native_one() -> None:
    recorded, read = _loaded({**os.environ, "CLEW_ENGINE": "python"})
    assert [name for name in recorded if name.startswith(_NATIVE)] == []
    assert [name for name in read if name.startswith((*_NATIVE, "clew.record.native"))] == []


def _loaded(environment: Mapping[str, str]) -> list[list[str]]:
    """Return the modules that a trace has loaded, before and after it is read."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    loaded: list[list[str]] = json.loads(done.stdout)
    return loaded
