"""The benchmark runs and measures every row. How fast anything is, is not a test's business."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench.seeds import MODES, ORIGINALS

ROOT = Path(__file__).parents[2]

SEEDS = {f"seeds.{use}.{mode}" for use in ORIGINALS for mode in MODES}
WORKLOADS = ("encoder", "tiny", "training", "gpt2")
PROMISED = {
    *(f"{on}.{what}" for on in WORKLOADS for what in ("ops", "modules")),
    *("store.large.clew", "store.stall.modules"),
    *("values.modules.stats", "values.ops.stats"),
    *("variables.local", "tap.idle"),
    *("import.import", "memory.recorded", "memory.read", "memory.linear", "time.linear"),
    *("viewer.ready", "viewer.size", "viewer.scroll"),
    *(SEEDS - {"seeds.tt_leaves.train"}),
}
INFORMATIVE = {
    *(f"{on}.ops_untraced" for on in WORKLOADS),
    *(f"{on}.{peer}" for on in ("encoder", "gpt2") for peer in ("debug_mode", "inspect_stack")),
    *("values.modules.full", "values.ops.full"),
    *(f"graph.{what}" for what in ("layout_1000", "layout_10000", "folded", "unfolded")),
    *(f"store.{size}.{way}" for size in ("large", "small") for way in ("torch.save", "h5py")),
    *(
        f"store.read.{size}.{way}"
        for size in ("large", "small")
        for way in ("clew", "torch.save", "h5py")
    ),
    *("store.small.clew", "store.stall.ops"),
    *(f"variables.{way}" for way in ("watch", "watch_text", "settrace", "pysnooper")),
    *("import.use", "memory.columns", "time.first", "time.last", "time.read"),
    *("viewer.open", "viewer.write"),
    "seeds.tt_leaves.train",
}


@pytest.mark.slow
def test_quick_run_measures_every_row() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    # Other Pythons are measured too, where they are set up.
    rows = [row for row in rows if not row["key"].startswith("variables.3.")]
    assert sorted(row["key"] for row in rows) == sorted(PROMISED | INFORMATIVE)
    assert {row["key"] for row in rows if row["goal"] is not None} == PROMISED
    assert [r["key"] for r in rows if not (math.isfinite(r["value"]) and r["value"] > 0)] == []
    assert {row["key"] for row in rows if row["ok"] is not None} == PROMISED
