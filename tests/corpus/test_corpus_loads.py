"""Every trace of the corpus opens without torch and shows what its row in the README says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import clew
from tests.processes import HANG_GUARD

HERE = Path(__file__).parent
TRACES = HERE / "traces"
# Where the programs ran; `make.py` says why.
PLACE = "/tmp/example"

Check = Callable[[clew.Trace], None]
CHECKS: dict[str, Check] = {}


def shows(check: Check) -> Check:
    """Register what the trace of this name must show."""
    CHECKS[check.__name__] = check
    return check


def phases(t: clew.Trace) -> set[str]:
    return {event.phase for event in t.events}


def op_names(t: clew.Trace, rank: int, step: int | None = None) -> Counter[str]:
    return Counter(op.name for op in t.ops if op.rank == rank and step in (None, op.step))


def has_nan(values: Iterable[Any]) -> bool:
    return any(value.stats is not None and value.stats.nan for value in values)


def has_inf(values: Iterable[Any]) -> bool:
    return any(value.stats is not None and value.stats.inf for value in values)


@shows
def steps(t: clew.Trace) -> None:
    assert t.steps == [0, 1, 2, 3, 4]
    assert [t.modes[step] for step in t.steps] == ["train", "train", "eval", "train", "eval"]
    assert phases(t) == {"forward", "backward", "optimizer"}


@shows
def equal_ranks(t: clew.Trace) -> None:
    assert t.ranks == [0, 1]
    assert op_names(t, 0) == op_names(t, 1)
    assert any(name.startswith("c10d.") for name in op_names(t, 0))


@shows
def unequal_ranks(t: clew.Trace) -> None:
    assert t.ranks == [0, 1, 2]
    extra = op_names(t, 1) - op_names(t, 0)
    assert any("norm" in name for name in extra)
    assert op_names(t, 2, step=1) == op_names(t, 0, step=1)
    assert op_names(t, 2, step=2)
    assert not op_names(t, 0, step=2)
    assert {call.inputs["0"].shape for call in t[""]} == {(3, 4), (2, 4)}


@shows
def missing_rank(t: clew.Trace) -> None:
    assert t.ranks == [0, 2]
    manifest = json.loads((TRACES / "missing_rank.clew" / "manifest.json").read_text())
    assert manifest["world_size"] == 3


@shows
def gathered(t: clew.Trace) -> None:
    assert t.ranks == [0, 1]
    # Gathers, ranks, steps of a gather, batch, columns; and each rank's own.
    assert t.series("0:in").stack().shape == (2, 2, 2, 3, 4)
    assert t.series("1").ranks == [0] * 4 + [1] * 4
    assert t.series("2").steps == [1, 3, 1, 3]
    assert any(event.kind == "gathered" for event in t.events)


@shows
def killed(t: clew.Trace) -> None:
    assert list((TRACES / "killed.clew").glob("rank=*/events-*.arrows"))
    assert any(gap.what == "the end of the run" for gap in t.coverage)
    (open_call,) = (call for call in t.modules if call.duration is None)
    assert (open_call.step, open_call.address) == (2, "#2")


@shows
def autograd_function(t: clew.Trace) -> None:
    own = [op for op in t.ops if op.source and op.source.function == "Cube.backward"]
    assert len(own) == 6
    assert {op.phase for op in own} == {"backward"}
    # The penalty's own forward lies between the two backward passes of the second step.
    in_order = [op.phase for op in t.ops if op.step == 1]
    middle = in_order.index("forward", in_order.index("backward"))
    assert "backward" in in_order[middle:]


@shows
def checkpoint(t: clew.Trace) -> None:
    again = [event for event in t.events if event.phase == "recompute"]
    assert {"hooks.outer", "hooks.inner", "reentrant.outer", "reentrant.inner"} <= {
        event.module for event in again
    }
    outside = [event.name for event in again if event.module is None]
    assert outside.count("aten.sin.default") == 2


@shows
def gradients(t: clew.Trace) -> None:
    for address in ("0:grad", "3:grad_in", "3.weight:update", "3.weight:state.exp_avg"):
        assert len(t.series(address).values) == 2, address
    for address in ("0.weight:param", "1.running_mean:buffer"):
        assert len(t.series(address).values) == 3, address
    # As it came, and as it was clipped.
    assert len(t.series("0.weight:grad").values) == 4


@shows
def fused(t: clew.Trace) -> None:
    assert len(t["op:aten._transformer_encoder_layer_fwd.default"]) == 4
    assert any(op.name == "aten._nested_tensor_from_mask.default" for op in t.ops)
    assert {call.name for call in t.modules} == {"TransformerEncoder", "TransformerEncoderLayer"}


@shows
def shared(t: clew.Trace) -> None:
    assert len(t["first"]) == 4
    assert list(t["first"]) == list(t["second"])
    of_head = [v.name for op in t.ops if op.module == "head" for v in op.inputs.values()]
    assert "embed.weight" in of_head
    assert len(t.series("embed.weight:grad").values) == 1


@shows
def threads(t: clew.Trace) -> None:
    left, right = t[""]
    assert (left.thread, right.thread) == ("left", "right")
    assert left.duration is not None
    assert right.duration is not None
    assert left.start < right.start
    assert right.start + right.duration < left.start + left.duration
    assert "backward" in phases(t)


@shows
def deep(t: clew.Trace) -> None:
    assert len(t.modules) == 320
    assert max(len(event.stack) for event in t.events) > 300
    assert t[".".join("m" * 159)][-1].call == 160


@shows
def compiled(t: clew.Trace) -> None:
    assert [op.phase for op in t.ops if op.name == "compiled"] == ["forward", "backward"]
    regions = {gap.where for gap in t.coverage if gap.what == "a compiled region"}
    assert {"code", "graph", "late"} <= regions
    assert any(gap.what == "compilation" for gap in t.coverage)


@shows
def workers(t: clew.Trace) -> None:
    videos = t["programs.py:decode.video"]
    assert {event.thread for event in videos} == {"worker 0", "worker 1"}
    assert {event.prefix.partition(".")[2] for event in videos} == {f"sample{n}" for n in range(4)}
    assert len(t["mean"]) == 4


@shows
def crash(t: clew.Trace) -> None:
    assert t.crash is not None
    assert "mat1 and mat2 shapes cannot be multiplied (2x7 and 6x2)" in t.crash.exception
    assert t.crash.event is not None
    assert (t.crash.event.module, t.crash.event.step) == ("down", 2)


@shows
def nan_op(t: clew.Trace) -> None:
    first = next(op for op in t.ops if has_nan(op.outputs.values()))
    assert (first.name, first.step) == ("aten.log.default", 1)
    assert not has_nan(first.inputs.values())
    weights = [v for op in t.ops if op.step == 2 for v in op.inputs.values() if v.name]
    assert has_nan(weights)


@shows
def nan_batch(t: clew.Trace) -> None:
    assert has_nan(t["#1:in"].values)
    assert has_inf(t["#1:in"].values)
    assert has_nan(t["#1"].values)
    assert not has_nan(t["#0"].values)


@shows
def nan_weight(t: clew.Trace) -> None:
    given = [value for op in t.ops for value in op.inputs.values()]
    assert has_nan(value for value in given if value.name == "fc.weight")
    assert has_inf(value for value in given if value.name == "norm.running_mean")
    assert not has_nan(t[":in"].values)


@shows
def nan_modules(t: clew.Trace) -> None:
    assert not len(t.ops)
    assert {name: has_nan(t[f"{name}:in"].values) for name in ("made", "batch", "weight")} == {
        "made": False, "batch": True, "weight": False,
    }  # fmt: skip
    assert all(has_nan(t[name].values) for name in ("made", "batch", "weight"))


@shows
def masks(t: clew.Trace) -> None:
    infinite = {op.name for op in t.ops if has_inf(op.outputs.values())}
    assert {
        "aten.masked_fill.Scalar", "aten.full.default", "aten.where.self", "aten.log.default",
    } <= infinite  # fmt: skip
    assert "aten._softmax.default" not in infinite
    for call in t.modules:
        assert not has_inf(call.outputs.values())
    assert not any(has_nan(event.outputs.values()) for event in t.events)


@shows
def taps(t: clew.Trace) -> None:
    assert [value.item() for value in t["forward.self.calls"].values] == [0, 1, 1, 2]
    assert [float(value.array()[0, 0]) > 0 for value in t["forward.h"].values] == [
        True, False, True, False,
    ]  # fmt: skip
    assert [event.prefix for event in t["gated"]] == ["step0", "step1"]
    assert len(t["size"]) == len(t["forward.parts.gate"]) == len(t["forward.x"]) == 2
    assert {event.prefix for event in t["programs.py:running_total.total"]} == {
        "step0.sum", "step1.sum",
    }  # fmt: skip


@shows
def full(t: clew.Trace) -> None:
    values = [value for op in t.ops for value in op.outputs.values()]
    assert {"float32", "float64", "bfloat16", "int64", "bool", "complex64"} <= {
        value.dtype for value in values
    }
    assert any(value.layout == "sparse_coo" for value in values)
    assert {(0, 3), (), (1050, 2)} <= {value.shape for value in values}
    assert all(value.array().shape == value.shape for value in values)
    assert t["op:aten.mul_.Tensor"].values[0].array().tolist() == [10, 40]
    assert t["op:aten.t.default"].values[0].array().tolist() == [[0, 3], [10, 40], [2, 5]]
    assert list((TRACES / "full.clew").glob("rank=*/shard-*.safetensors"))


@shows
def unnamed(t: clew.Trace) -> None:
    assert {call.module for call in t.modules} >= {"Linear", "Linear#2", "Sequential"}
    assert any(op.module is None for op in t.ops)
    assert [call.module for call in t.modules if call.reconstructed] == ["Linear#2"]
    failed = [op.name for op in t.ops if op.error]
    assert failed == ["aten.addmm.default", "aten.addmm.default", "aten.add.Tensor"]
    assert t.crash is None


@shows
def two_callers(t: clew.Trace) -> None:
    found = t["programs.py:doubled.twice"]
    assert [(event.step, event.module) for event in found] == [
        (0, "0"),
        (0, "2"),
        (1, "0"),
        (1, "2"),
    ]
    assert [float(value.array()[0, 0]) > 1 for value in found.values] == [True] * 4


@shows
def native(t: clew.Trace) -> None:
    assert t.env["engine"] == "native"
    composites = [event for event in t.events if event.kind == "composite"]
    assert {"aten.linear.default", "aten.einsum.default", "aten.matmul.default"} <= {
        event.name for event in composites
    }
    inside = [event for event in composites if event.parent and event.parent.kind == "composite"]
    assert inside
    assert any(event.error for event in composites)
    assert {op.phase for op in t.ops} == {"forward", "backward", "optimizer"}
    assert {op.thread for op in t.ops} >= {"MainThread", "worker"}
    assert len([value.array() for value in t["op:aten._softmax.default"].values]) == 2
    outputs = [value for op in t.ops if "empty" not in op.name for value in op.outputs.values()]
    assert all(value.stats is not None for value in outputs)


@pytest.fixture(scope="module", params=sorted(CHECKS))
def trace(request: pytest.FixtureRequest) -> tuple[str, clew.Trace]:
    name: str = request.param
    return name, clew.load(TRACES / f"{name}.clew")


def test_it_shows_what_the_readme_says(trace: tuple[str, clew.Trace]) -> None:
    name, t = trace
    assert re.fullmatch(r"<Trace \d.*>", repr(t))
    CHECKS[name](t)


def test_its_lines_are_those_of_the_programs(trace: tuple[str, clew.Trace]) -> None:
    programs = (HERE / "programs.py").read_text(encoding="utf-8").splitlines()
    recorded = {event.source for event in trace[1].events if event.source is not None}
    ours = {s for s in recorded if s.file == f"{PLACE}/tests/corpus/programs.py"}
    assert ours
    for source in ours:
        whole = "\n".join(programs[source.line - 1 : source.end_line])
        assert source.text.strip() in whole, f"{source}: programs.py was changed, run `make corpus`"


def test_it_names_no_machine(trace: tuple[str, clew.Trace]) -> None:
    name, t = trace
    files = {source.file for event in t.events for source in event.stack}
    assert {file for file in files if not file.startswith((f"{PLACE}/", "<"))} == set()
    manifest = json.loads((TRACES / f"{name}.clew" / "manifest.json").read_text())
    # Earlier versions wrote the variables of the launcher as they are, later ones a digest of them.
    said = r"TORCHELASTIC_RUN_ID=corpus MASTER_ADDR=127\.0\.0\.1 MASTER_PORT=\d+"
    assert re.fullmatch(rf"{said}|launched=[0-9a-f]{{16}}", manifest["job"])
    assert t.env["platform"] == "Linux"


def test_calls_are_nested_320_deep() -> None:
    depths: dict[int, int] = {}
    for call in clew.load(TRACES / "deep.clew").modules:
        depths[call.id] = 0 if call.parent is None else depths[call.parent.id] + 1
    assert max(depths.values()) == 319


def test_each_trace_has_a_check_and_a_row_in_the_readme() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (HERE / "README.md").read_text(encoding="utf-8"), re.M)
    assert sorted(rows) == sorted(CHECKS)
    assert sorted(path.stem for path in TRACES.iterdir()) == sorted(CHECKS)


def test_all_open_and_print_without_torch() -> None:
    program = (
        "import sys, pathlib; sys.modules['torch'] = None\nimport clew\n"
        f"for path in sorted(pathlib.Path({str(TRACES)!r}).iterdir()):\n"
        "    print(repr(clew.load(path)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(CHECKS)
