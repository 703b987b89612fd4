"""The benchmark measures every row. How fast anything is, is not a test's business.

The sections run on a plan far too small for figures, one test each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import pytest
import torch

from bench import peers, rows
from bench.__main__ import table
from bench.rows import Plan, Row
from bench.seeds import MODES, ORIGINALS
from bench.timing import Effort
from clew.native.loading import load

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
NATIVE_ON = ("encoder", "tiny", "training", "step")
NATIVE_ROWS = ("ops", "ops_mode", "stats", "modules", "profiler")
# Nothing is measured where it is not built.
BUILT = load() is not None
NATIVE = {f"native.{on}.{what}" for on in NATIVE_ON for what in NATIVE_ROWS if BUILT}
ENTERING = {"native.entering"} if BUILT else set()
ENGINES = ("python", "native") if BUILT else ("python",)
PROMISED: dict[str, set[str]] = {
    "recording": {"encoder.ops", "tiny.ops"},
    "native": (NATIVE | ENTERING)
    - {f"native.tiny.{what}" for what in NATIVE_ROWS if what != "ops_mode"}
    - {f"native.{on}.{what}" for on, what in (("training", "modules"), ("step", "modules"))}
    - {f"native.{on}.profiler" for on in NATIVE_ON},
    "values": {
        *(f"values.native.{level}.stats" for level in ("modules", "ops") if BUILT),
        *(("values.guard",) if BUILT else ()),
    },
    "flight": {"flight.native"} if BUILT else set(),
    "variables": {"variables.local", "variables.watch"},
    "storing": {"store.large.clew", "store.small.clew", "store.stall.modules"},
    "reading": set(),
    "files": {f"files.{what}{end}" for what in ("save", "tree", "html") for end in ("", ".linear")},
    "taps": {"tap.idle"},
    "importing": {"import.import", "import.first"},
    "drawing": set(),
    "million": {"memory.recorded", "memory.read", "memory.linear", "time.linear"},
    "viewer": {"viewer.ready", "viewer.size", "viewer.scroll"},
    "seeds": {f"seeds.{use}.{mode}" for use in ORIGINALS for mode in MODES}
    - {"seeds.tt_leaves.train"},
}
INFORMATIVE: dict[str, set[str]] = {
    "recording": {
        *(f"{on}.{what}" for on in WORKLOADS for what in ("ops_untraced", "modules")),
        *("training.ops", "gpt2.ops"),
        *(f"{on}.{peer}" for on in ("encoder", "gpt2") for peer in ("debug_mode", "inspect_stack")),
    },
    "native": NATIVE,
    "values": {
        f"values.{engine}.{level}.{kept}"
        for engine in ENGINES
        for level in ("modules", "ops")
        for kept in ("stats", "full")
    }
    | {"values.guard"},
    "flight": {"flight.python"},
    "variables": {f"variables.{way}" for way in ("watch", "watch_text", "settrace", "pysnooper")},
    "storing": {
        *(f"store.{size}.{way}" for size in SIZES for way in ("torch.save", "h5py")),
        "store.stall.ops",
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


def test_other_tools_are_asked_the_same_questions() -> None:
    expected = {"same": True, "line": True, "layer": True, "sizes": True, "change": True}
    clew_tool = peers.TOOLS["clew, python"]
    found = {**peers.same_program(clew_tool), **peers.crash_words(clew_tool)}
    assert found == expected
    assert peers.keeps_fused_path(clew_tool)
    other = peers.TOOLS["DebugMode"]
    assert peers.same_program(other) == {"same": True, "line": True}
    assert peers.crash_words(other) == {"layer": False, "sizes": True, "change": False}
