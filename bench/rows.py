"""The rows of the table: what is measured against what, and what it should come to.

Each function takes a plan and yields `Row`s. Those with a goal are promises, the others tell what
a user may want to know.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import clew
from bench import pictures, subjects, workloads
from bench import storing as store
from bench.seeds import MODES, ORIGINALS
from bench.timing import Effort, best_times
from bench.workloads import Workload
from clew.native.loading import load


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure. `goal` is the most it should be, None where there is none."""

    key: str
    what: str
    on: str
    floor: str
    value: float
    unit: str
    goal: float | None = None
    floor_seconds: float | None = None
    seconds: float | None = None

    @property
    def ok(self) -> bool | None:
        """Whether the goal is met, None without one."""
        return None if self.goal is None else self.value <= self.goal

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything: the whole table, or a quick look at each row."""

    small: Effort
    large: Effort
    import_rounds: int
    layers: int
    events: int
    large_tensors: int
    small_tensors: int
    report_events: int
    variables: Effort
    variable_calls: int
    layouts: tuple[int, ...]
    seed_rounds: int
    seed_layers: int


FULL = Plan(
    small=Effort(rounds=150, seconds=1.5),
    large=Effort(rounds=20, seconds=6.0),
    import_rounds=12,
    layers=12,
    events=1_000_000,
    large_tensors=64,
    small_tensors=20_000,
    report_events=100_000,
    variables=Effort(rounds=10, seconds=4.0),
    variable_calls=100_000,
    layouts=(1_000, 10_000),
    seed_rounds=12,
    seed_layers=6,
)
QUICK = Plan(
    small=Effort(rounds=2, seconds=0.2),
    large=Effort(rounds=2, seconds=0.5),
    import_rounds=2,
    layers=1,
    events=60_000,
    large_tensors=8,
    small_tensors=500,
    report_events=5_000,
    variables=Effort(rounds=1, seconds=0.2),
    variable_calls=100_000,
    layouts=(1_000, 10_000),
    seed_rounds=1,
    seed_layers=1,
)

ROOT = Path(__file__).parents[1]

EMPTY_MODE = "empty dispatch mode"
EMPTY_HOOKS = "empty hooks"
UNTRACED = "untraced"

# Of ops recorded by the python engine, against an empty mode.
PYTHON_GOALS = {"encoder": 2.4, "tiny": 3.5}


def all_rows(plan: Plan) -> Iterator[Row]:
    """Every row, in the order of the table."""
    yield from recording(plan)
    yield from native(plan)
    yield from values(plan)
    yield from flight(plan)
    yield from variables(plan)
    yield from storing(plan)
    yield from reading(plan)
    yield from files(plan)
    yield from taps(plan)
    yield from importing(plan)
    yield from drawing(plan)
    yield from million(plan)
    yield from viewer(plan)
    yield from seeds(plan)


def recording(plan: Plan) -> Iterator[Row]:
    """Ops and module calls against their floors, and the peers beside them."""
    cases: list[tuple[str, Callable[[], Workload], Effort, bool]] = [
        ("encoder", workloads.encoder, plan.small, True),
        ("tiny", workloads.tiny_layers, plan.small, False),
        ("training", workloads.encoder_training, plan.small, False),
        ("gpt2", lambda: workloads.gpt2(plan.layers), plan.large, True),
    ]
    for key, build, effort, peers in cases:
        work = build()
        yield from _ops(key, work, effort, peers)
        yield from _modules(key, work, effort)


def _ops(key: str, work: Workload, effort: Effort, peers: bool) -> Iterator[Row]:
    with clew.trace(work.model, engine="python") as trace:
        work.run()
    on = f"{work.name}, {len(trace.ops)} ops"
    measured = {
        EMPTY_MODE: subjects.empty_mode(work),
        "clew": subjects.traced(work, engine="python"),
        UNTRACED: subjects.untraced(work),
    }
    if peers:
        measured["DebugMode"] = subjects.debug_mode(work)
        measured["inspect"] = subjects.stack_per_op(work)
    times = best_times(measured, effort)

    def row(name: str, what: str, subject: str, floor: str, goal: float | None = None) -> Row:
        return _ratio(f"{key}.{name}", what, on, floor, times[floor], times[subject], goal)

    yield row("ops", "python: ops, lines, metadata", "clew", EMPTY_MODE, PYTHON_GOALS.get(key))
    yield row("ops_untraced", "  the same", "clew", UNTRACED)
    if peers:
        yield row("debug_mode", "  DebugMode, modules + stacks", "DebugMode", EMPTY_MODE)
        yield row("inspect_stack", "  inspect.stack() per op", "inspect", EMPTY_MODE)


def native(plan: Plan) -> Iterator[Row]:
    """The native engine, where it is built, against the program by itself and an empty mode."""
    if load() is None:
        return
    cases: list[tuple[str, Callable[[], Workload], dict[str, float]]] = [
        ("encoder", workloads.encoder, {"ops": 2.0, "stats": 3.0, "modules": 1.3}),
        ("tiny", workloads.tiny_layers, {}),
        ("training", workloads.encoder_training, {"ops": 1.8, "stats": 3.0}),
        ("step", workloads.encoder_step, {"ops": 2.0, "stats": 3.0}),
    ]
    for key, build, goals in cases:
        work = build()
        measured = {
            UNTRACED: subjects.untraced(work),
            EMPTY_MODE: subjects.empty_mode(work),
            "ops": subjects.traced(work, engine="native"),
            "stats": subjects.traced(work, engine="native", values="stats"),
            "modules": subjects.traced(work, engine="native", level="modules"),
            "profiler": subjects.profiler(work),
        }
        times = best_times(measured, plan.small)
        rows = [
            ("ops", "native: ops, lines, metadata", UNTRACED, goals.get("ops")),
            ("ops", "  the same", EMPTY_MODE, 0.75),
            ("stats", "  with statistics", UNTRACED, goals.get("stats")),
            ("modules", "  module calls only", UNTRACED, goals.get("modules")),
            ("profiler", "  torch.profiler, shapes + stacks", UNTRACED, None),
        ]
        for name, what, floor, goal in rows:
            suffix = "_mode" if floor == EMPTY_MODE else ""
            yield _ratio(
                f"native.{key}.{name}{suffix}", what, work.name, floor, times[floor], times[name],
                goal,
            )  # fmt: skip
    yield _entering(plan)


def _entering(plan: Plan) -> Row:
    work = workloads.encoder()
    nothing = Workload(work.name, work.model, lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", clew.ClewWarning)  # that the model never ran
        best = best_times({"clew": subjects.traced(nothing, engine="native")}, plan.small)["clew"]
    on = "encoder, 55 modules"
    return Row("native.entering", "native: entering and leaving", on, "", best * 1e3, "ms", 0.08)


def _modules(key: str, work: Workload, effort: Effort) -> Iterator[Row]:
    with clew.trace(work.model, level="modules", engine="python") as trace:
        work.run()
    measured = {
        EMPTY_HOOKS: subjects.empty_hooks(work),
        "clew": subjects.traced(work, level="modules", engine="python"),
    }
    times = best_times(measured, effort)
    on = f"{work.name}, {len(trace.modules)} calls"
    yield _ratio(
        f"{key}.modules", "python: module calls only", on, EMPTY_HOOKS,
        times[EMPTY_HOOKS], times["clew"], None,
    )  # fmt: skip


def values(plan: Plan) -> Iterator[Row]:
    """What keeping statistics or data costs where the kernels take the time."""
    work = workloads.wide_encoder(plan.layers)
    engines = ("python", "native") if load() is not None else ("python",)
    options = [
        (engine, level, kept)
        for engine in engines
        for kept in ("stats", "full")
        for level in ("modules", "ops")
    ]
    measured = {UNTRACED: subjects.untraced(work)}
    for engine, level, kept in options:
        name = f"{engine}.{level}.{kept}"
        measured[name] = subjects.traced(work, level=level, values=kept, engine=engine)
    measured["guard"] = subjects.guarded(work)
    times = best_times(measured, plan.large)
    goals = {("native", "modules", "stats"): 1.05, ("native", "ops", "stats"): 1.1}
    for engine, level, kept in options:
        name = f"{engine}.{level}.{kept}"
        yield _ratio(
            f"values.{name}", f'{engine}: level="{level}", values="{kept}"', work.name, UNTRACED,
            times[UNTRACED], times[name], goals.get((engine, level, kept)),
        )  # fmt: skip
    # It takes the native engine where that is built.
    yield _ratio(
        "values.guard", f"{engines[-1]}: clew.guard()", work.name, UNTRACED, times[UNTRACED],
        times["guard"], 1.1 if engines[-1] == "native" else None,
    )  # fmt: skip


def flight(plan: Plan) -> Iterator[Row]:
    """What the flight recorder costs, with the statistics of every step."""
    work = workloads.wide_step(plan.layers)
    engines = ("python", "native") if load() is not None else ("python",)
    measured = {UNTRACED: subjects.untraced(work)}
    measured |= {engine: subjects.recorded(work, engine=engine) for engine in engines}
    times = best_times(measured, plan.large)
    for engine in engines:
        yield _ratio(
            f"flight.{engine}", f"{engine}: clew.recorder, every step", work.name, UNTRACED,
            times[UNTRACED], times[engine], 1.05 if engine == "native" else None,
        )  # fmt: skip


def storing(plan: Plan) -> Iterator[Row]:
    """Streaming data to disk against writing the same bytes, and the forward meanwhile."""
    kinds = {
        "large": (f"{plan.large_tensors} × 4 MB", store.large_tensors(plan.large_tensors)),
        "small": (f"{plan.small_tensors:,} × 1–4 KB", store.small_tensors(plan.small_tensors)),
    }
    for kind, (on, tensors) in kinds.items():
        times = best_times(store.writers(tensors), plan.large, time.perf_counter_ns)
        rows = [
            # At least 0.6 of the throughput.
            ("clew", 'values="full", out=', 1 / 0.6 if kind == "large" else 15),
            ("torch.save", "  torch.save, a file a tensor", None),
            ("h5py", "  h5py, a dataset a tensor", None),
        ]
        for name, what, goal in rows:
            yield _ratio(
                f"store.{kind}.{name}", what, on, "write()", times["write()"], times[name], goal
            )
    work = workloads.wide_encoder(plan.layers)
    for level, goal in (("modules", 1.3), ("ops", None)):
        untraced, traced = store.stall(work, level, plan.large)
        yield _ratio(
            f"store.stall.{level}", f'forward, level="{level}", values="full", out=', work.name,
            UNTRACED, untraced, traced, goal,
        )  # fmt: skip


def reading(plan: Plan) -> Iterator[Row]:
    """How long it takes to read one value of a trace on disk."""
    kinds = {"4 MB": store.large_tensors(16), "1–4 KB": store.small_tensors(plan.small_tensors)}
    for size, tensors in kinds.items():
        for name, seconds in store.reading(tensors, plan.small):
            what = "one value read" if name == "clew" else f"  {name}"
            key = f"store.read.{'large' if size == '4 MB' else 'small'}.{name}"
            yield Row(key, what, size, "", seconds * 1e6, "µs")


WAYS = (
    ("local", "one local variable, in full", 1.1),
    ("watch", 'clew.watch("y")', 2.0),
    ("watch_text", "  with its text", None),
    ("settrace", "  sys.settrace on everything", None),
    ("pysnooper", "  PySnooper on that function alone", None),
)


def files(plan: Plan) -> Iterator[Row]:
    """A whole trace saved, opened and written as a report, and all with ten times as much."""
    found = json.loads(_output("-m", "bench.files", str(plan.events // 10), "10", "5"))
    on, many = (f"{found[count]:,} events" for count in ("events", "many"))
    cases: list[tuple[str, str, str, str, float]] = [
        ("save", "a trace saved", "pyarrow writing", "write", 4),
        ("tree", "  loaded, and its tree", "pyarrow reading", "read", 3),
        ("html", "  loaded, and its HTML report", "pyarrow reading", "read", 6),
    ]
    for name, what, floor, base, goal in cases:
        yield _ratio(f"files.{name}", what, on, floor, found[base], found[name], goal)
    for name, what, _, _, _ in cases:
        growth = found["growth"][name]
        yield Row(f"files.{name}.linear", f"{what}, per event", many, on, growth, "×", 1.3)


def variables(plan: Plan) -> Iterator[Row]:
    """What it costs to follow a variable, on this Python and on others that are set up here."""
    yield from _variables(plan, sys.executable, "variables")
    for version in ("3.12", "3.13"):
        python = ROOT / f".venv-{version}" / "bin" / "python"
        if python.exists():
            yield from _variables(plan, str(python), f"variables.{version}")


def _variables(plan: Plan, python: str, key: str) -> Iterator[Row]:
    """The ways to follow a variable of a NumPy program, each in the same process."""
    effort = plan.variables
    found = json.loads(_output("-m", "bench.variables", str(effort.rounds), str(effort.seconds),
                               str(plan.variable_calls), python=python))  # fmt: skip
    times, on = found["times"], f"NumPy program, Python {found['python']}"
    for name, what, goal in WAYS:
        if name in times:
            yield _ratio(f"{key}.{name}", what, on, UNTRACED, times["untraced"], times[name],
                         goal if key == "variables" else None)  # fmt: skip


_CALLS = 100_000


def taps(plan: Plan) -> Iterator[Row]:
    """A tap when nothing records, against a function that only returns its argument."""

    def empty(name: str, value: Any, module: Any = None) -> Any:
        return value

    def calls_of(function: Callable[..., Any]) -> Callable[[], None]:
        def calls() -> None:
            for _ in range(_CALLS):
                function("name", 1, None)

        return calls

    measured = {"empty function": calls_of(empty), "clew.tap": calls_of(clew.tap)}
    times = best_times(measured, plan.small)
    yield _ratio(
        "tap.idle", "clew.tap, nothing recording", f"{_CALLS:,} calls", "empty function",
        times["empty function"], times["clew.tap"], 2.0,
    )  # fmt: skip


def importing(plan: Plan) -> Iterator[Row]:
    """Import times, each in fresh interpreters."""
    statements = {
        "numpy": "import numpy",
        "import": "import clew",
        "use": "from clew import trace",
    }
    best = dict.fromkeys(statements, float("inf"))
    for _ in range(plan.import_rounds):
        for name, statement in statements.items():
            best[name] = min(best[name], _import_seconds(statement))
    for name, goal in (("import", 1.5), ("use", None)):
        yield _ratio(
            f"import.{name}", statements[name], "fresh interpreter", "import numpy",
            best["numpy"], best[name], goal,
        )  # fmt: skip
    first = min(_first_trace_seconds() for _ in range(plan.import_rounds))
    on = "after importing torch"
    yield Row("import.first", "the first trace of a process", on, "", first * 1e3, "ms", 150)


def _import_seconds(statement: str) -> float:
    return _seconds_of("", statement)


def _first_trace_seconds() -> float:
    """Measure importing Clew, and a trace around a forward that has run before."""
    before = "import torch; model, x = torch.nn.Linear(4, 4), torch.ones(1, 4); model(x)"
    return _seconds_of(before, "import clew\nwith clew.trace(model): model(x)")


def _seconds_of(before: str, statement: str) -> float:
    program = (
        f"{before}\nimport time; start = time.process_time_ns()\n"
        f"{statement}\n"
        "print(time.process_time_ns() - start)"
    )
    return int(_output("-c", program)) / 1e9


def drawing(plan: Plan) -> Iterator[Row]:
    """Graphs: large layouts by themselves, and a model from its trace to the picture."""
    for count in plan.layouts:
        seconds = pictures.layout_seconds(count)
        yield Row(
            f"graph.layout_{count}", "layout of a graph", f"{count:,} nodes", "", seconds, "s"
        )
    work = workloads.gpt2(plan.layers)
    for how, seconds in pictures.drawing_seconds(work).items():
        what = f"graph to SVG, {how}" if how == "folded" else f"  {how}, every op"
        yield Row(f"graph.{how}", what, work.name, "", seconds, "s")


def million(plan: Plan) -> Iterator[Row]:
    """Memory and time per event of a long recording, in a process of its own."""
    found = json.loads(_output("-m", "bench.million", str(plan.events)))
    on = f"{found['events']:,} events"
    per_event = [
        ("memory.recorded", "memory while recording", found["recorded"], "bytes per event", 300),
        ("memory.read", "  once it is read", found["read"], "bytes per event", 300),
        ("memory.columns", "  of that, columns", found["columns"], "bytes per event", None),
        ("time.first", "time per event, first tenth", found["first"], "µs", None),
        ("time.last", "  last tenth", found["last"], "µs", None),
    ]
    growth = [
        ("memory.linear", "memory, second half", "first half", "second_half", "first_half"),
        ("time.linear", "time, last tenth", "first tenth", "last", "first"),
    ]
    for key, what, value, unit, goal in per_event:
        yield Row(key, what, on, "", value, unit, goal)
    for key, what, floor, end, beginning in growth:
        yield Row(key, what, on, floor, found[end] / found[beginning], "×", 1.2)
    yield Row("time.read", "made ready to read, once", on, "", found["reading"], "µs per event")


def viewer(plan: Plan) -> Iterator[Row]:
    """A report in a real browser: how soon it can be used, how large it is, how it scrolls."""
    found = json.loads(_output("-m", "bench.viewer", str(plan.report_events)))
    on = f"{found['events']:,} events with statistics"
    yield Row("viewer.ready", "HTML report usable after", on, "", found["ready"], "ms", 2000)
    yield Row("viewer.size", "  its file", on, "", found["megabytes"], "MB", 10)
    yield Row("viewer.scroll", "  slowest step of scrolling", on, "", found["scroll"], "ms", 50)
    yield Row("viewer.open", "  every node opened in", on, "", found["opened"], "ms")
    yield Row("viewer.write", "  written in", on, "", found["written"] * 1e3, "ms")


def seeds(plan: Plan) -> Iterator[Row]:
    """The older tools by their own names, to cost less than the tools themselves did."""
    measured = _output("-m", "bench.seeds", str(plan.seed_rounds), str(plan.seed_layers))
    times = json.loads(measured)
    for mode, on in MODES.items():
        floor = times[mode]["untraced"]
        for use, (what, goals) in ORIGINALS.items():
            key = f"seeds.{use}.{mode}"
            yield _ratio(key, what, on, UNTRACED, floor, times[mode][use], goals.get(mode))


def _output(*arguments: str, python: str = sys.executable) -> str:
    # Other Pythons find the sources by their place, as nothing is installed there.
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    # An import reads what an earlier one has compiled, unless Python was told to write nothing.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [python, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    if done.returncode:
        raise RuntimeError(f"python {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def _ratio(
    key: str, what: str, on: str, floor: str, base: float, seconds: float, goal: float | None
) -> Row:
    return Row(key, what, on, floor, seconds / base, "×", goal, base, seconds)
