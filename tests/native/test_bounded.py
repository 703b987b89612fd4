"""Memory stays within a bound, however many ops run: CLEW_SOAK=1 runs ten million of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.engine import needs_engine
from tests.native.many_ops import ROUND

pytestmark = [needs_engine, pytest.mark.slow]

OPS = 10_000_000 if os.environ.get("CLEW_SOAK") else 300_000
# How much memory may come on top after the first rounds.
MOST_BYTES = 48 << 20


@pytest.mark.parametrize("values", ["meta", "stats"])
@pytest.mark.parametrize("place", ["streamed", "ring"])
def test_memory_is_bounded(place: str, values: str, tmp_path: Path) -> None:
    wanted = OPS // (2 if values == "stats" else 1)
    words = [sys.executable, "-m", "tests.native.many_ops", place, values, str(wanted)]
    done = subprocess.run([*words, str(tmp_path / "run.clew")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    used = found["used"]
    warm = used[min(3, len(used) // 3)]
    # The least of the second half: what waits for the writer comes and goes.
    assert min(used[len(used) // 2 :]) - warm < MOST_BYTES, used
    assert not found["faults"]
    if place == "ring":
        assert found["events"] < 5 * ROUND
    else:
        assert found["ops"] > found["ran"] * 0.9
