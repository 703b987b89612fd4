"""The benchmark measures every row. How fast anything is, is not a test's business.

The sections run on a plan far too small for figures, one test each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import pytest
import torch

from bench import rows
from bench.__main__ import table
from bench.rows import Plan, Row
from bench.seeds import MODES, ORIGINALS
from bench.timing import Effort

ONCE = Effort(rounds=1, seconds=0.0)
TINY = dataclasses.replace(
    rows.QUICK, small=ONCE, large=ONCE, import_rounds=1, events=3_000, large_tensors=1,
    small_tensors=20, report_events=300, variables=ONCE, variable_calls=100, layouts=(20, 40),
)  # fmt: skip


@pytest.fixture(autouse=True)
def fast_path() -> Iterator[None]:
    """The workloads switch the fused path of encoders off for their whole process."""
    yield
    torch.backends.mha.set_fastpath_enabled(True)


WORKLOADS = ("encoder", "tiny", "training", "gpt2")
SIZES = ("large", "small")

# The rows of each section that have a goal, and those that only tell.
PROMISED: dict[str, set[str]] = {
    "recording": {f"{on}.{what}" for on in WORKLOADS for what in ("ops", "modules")},
    "values": {"values.modules.stats", "values.ops.stats"},
    "variables": {"variables.local"},
    "storing": {"store.large.clew", "store.stall.modules"},
    "reading": set(),
    "files": {f"files.{what}{end}" for what in ("save", "tree", "html") for end in ("", ".linear")},
    "taps": {"tap.idle"},
    "importing": {"import.import"},
    "drawing": set(),
    "million": {"memory.recorded", "memory.read", "memory.linear", "time.linear"},
    "viewer": {"viewer.ready", "viewer.size", "viewer.scroll"},
    "seeds": {f"seeds.{use}.{mode}" for use in ORIGINALS for mode in MODES}
    - {"seeds.tt_leaves.train"},
}
INFORMATIVE: dict[str, set[str]] = {
    "recording": {
        *(f"{on}.ops_untraced" for on in WORKLOADS),
        *(f"{on}.{peer}" for on in ("encoder", "gpt2") for peer in ("debug_mode", "inspect_stack")),
    },
    "values": {"values.modules.full", "values.ops.full"},
    "variables": {f"variables.{way}" for way in ("watch", "watch_text", "settrace", "pysnooper")},
    "storing": {
        *(f"store.{size}.{way}" for size in SIZES for way in ("torch.save", "h5py")),
        *("store.small.clew", "store.stall.ops"),
    },
    "reading": {
        f"store.read.{size}.{way}" for size in SIZES for way in ("clew", "torch.save", "h5py")
    },
    "files": set(),
    "taps": set(),
    "importing": {"import.use"},
    "drawing": {f"graph.{what}" for what in ("layout_20", "layout_40", "folded", "unfolded")},
    "million": {"memory.columns", "time.first", "time.last", "time.read"},
    "viewer": {"viewer.open", "viewer.write"},
    "seeds": {"seeds.tt_leaves.train"},
}


@pytest.mark.slow
# A subject's folder goes with what it returned, once the clock has been read.
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
@pytest.mark.parametrize("section", PROMISED)
def test_every_row_is_measured(section: str) -> None:
    found: list[Row] = list(getattr(rows, section)(TINY))
    # Other Pythons are measured too, where they are set up.
    found = [row for row in found if not row.key.startswith("variables.3.")]
    promised = PROMISED[section]
    assert sorted(row.key for row in found) == sorted(promised | INFORMATIVE[section])
    assert {row.key for row in found if row.goal is not None} == promised
    assert {row.key for row in found if row.ok is not None} == promised
    assert [row.key for row in found if not (math.isfinite(row.value) and row.value > 0)] == []
    # Each is a line of the table, under two of head.
    assert len(table(found).splitlines()) == len(found) + 2


def test_a_run_has_every_section(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[str] = []
    for section in PROMISED:

        def noted(plan: Plan, section: str = section) -> list[Row]:
            run.append(section)
            return []

        monkeypatch.setattr(rows, section, noted)
    assert list(rows.all_rows(rows.FULL)) == []
    assert run == list(PROMISED)
