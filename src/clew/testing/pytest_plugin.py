"""The plugin of pytest: fixtures `clew_trace` and `clew_snapshot`, `--clew-update`, `--clew-trace`.

pytest loads it by its entry point in every project of an environment that has Clew, so it loads
neither torch nor pyarrow nor NumPy until a fixture is used, and does nothing before that: names of
`clew` and `clew.testing` are imported when they are first asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import clew
from clew import testing
from clew.request.switches import is_disabled

if TYPE_CHECKING:
    from clew.session.tracer import Tracer
    from clew.testing.model_snapshots import Snapshots

_TRACES = pytest.StashKey[list[Any]]()
_SNAPSHOTS = pytest.StashKey[Any]()
_FAILED = pytest.StashKey[bool]()
_JUDGED = pytest.StashKey[set[Any]]()
_SECTION = "clew"
_ROWS = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("clew", "Clew: traces and snapshots of models")
    group.addoption(
        "--clew-update", action="store_true",
        help="write the snapshots of clew_snapshot that are missing or differ",
    )  # fmt: skip
    group.addoption(
        "--clew-trace", action="store_true",
        help="record each test that runs while torch is loaded, and show of those that fail "
        "which op failed, with what, and what led to it",
    )  # fmt: skip


@pytest.fixture
def clew_trace(request: pytest.FixtureRequest) -> Callable[..., Tracer]:
    """Record a part of the test; if the test fails, the report shows what was recorded.

    It is called as `clew.trace` is: `with clew_trace(model) as t: model(x)`.
    """
    seen = request.node.stash.setdefault(_TRACES, [])

    def record(model: Any = None, **options: Any) -> Tracer:
        tracer = clew.trace(model, **options)
        seen.append(tracer)
        return tracer

    return record


@pytest.fixture
def clew_snapshot(request: pytest.FixtureRequest) -> Iterator[Snapshots]:
    """Keep a model's numbers as text next to the test: `clew_snapshot.check(model, x)`."""
    pytest.importorskip("torch", reason="clew_snapshot runs models, and torch is not installed")
    if is_disabled():
        pytest.skip("clew_snapshot records models, and CLEW_DISABLE switches that off")
    node = request.node
    test = node.nodeid.partition("::")[2]
    seen = node.stash.setdefault(_TRACES, [])
    update = bool(request.config.getoption("--clew-update"))
    here = request.config.invocation_params.dir
    found = testing.Snapshots(request.path, test, here=here, update=update, failed=seen.append)
    node.stash[_SNAPSHOTS] = found
    yield found
    found.finish(passed=not node.stash.get(_FAILED, True))
    found.notes += _unused_files(request)


def _unused_files(request: pytest.FixtureRequest) -> list[str]:
    """Return notes on snapshots of tests that a file no longer has, once for each file."""
    judged = request.config.stash.setdefault(_JUDGED, set())
    if request.path in judged:
        return []
    judged.add(request.path)
    return [
        f"no such test any more: {path}"  # in full, to be removed by hand
        for test, path in testing.tests_with_files(request.path).items()
        if not _exists(request.module, test)
    ]


def _exists(module: Any, test: str) -> bool:
    """Return whether a file has the function or method of a test, whatever its parameters."""
    found = module
    for part in test.partition("[")[0].split("::"):
        found = getattr(found, part, None)
    return found is not None


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Record the test, if that was asked for, torch is there, and it records nothing itself."""
    records = item.config.getoption("--clew-trace") and "torch" in sys.modules
    if not records or {"clew_trace", "clew_snapshot"} & {*getattr(item, "fixturenames", ())}:
        yield
        return
    tracer = clew.trace()
    item.stash.setdefault(_TRACES, []).append(tracer)
    tracer.__enter__()
    outcome = yield
    tracer.__exit__(*(outcome.excinfo or (None, None, None)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Add what was recorded to the report of a test that failed, and notes to any."""
    outcome = yield
    report = outcome.get_result()
    traces = item.stash.get(_TRACES, None)
    if call.when == "call":
        item.stash[_FAILED] = not report.passed
        if traces and report.failed:
            report.sections += [(_SECTION, text) for text in _answers(traces, str(report.longrepr))]
    if call.when == "teardown":
        if traces is not None:
            del item.stash[_TRACES]
        snapshots = item.stash.get(_SNAPSHOTS, None)
        if snapshots is not None:
            # Reports travel from the workers of pytest-xdist with all of their attributes.
            report.clew_notes = list(snapshots.notes)
            del item.stash[_SNAPSHOTS]


def _answers(traces: list[Any], shown: str) -> list[str]:
    """Return what the traces of a failed test say, the first recorded first."""
    found = []
    for trace in traces:
        try:
            crash = trace.crash
            # Python 3.11 and later show the note with the exception.
            note = "" if crash is None or crash.note.partition("\n")[0] in shown else crash.note
            found.append(f"{note}\n\n{trace.tree(rows=_ROWS)}".strip())
        except Exception as error:  # a trace that never began; the test's own failure comes first
            found.append(f"the trace cannot be shown: {error}")
    return found


class SnapshotNotes:
    """Notes on snapshots, from this process or from workers of pytest-xdist, for the summary."""

    def __init__(self) -> None:
        self._notes: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the notes of a test."""
        self._notes.update(dict.fromkeys(getattr(report, "clew_notes", ())))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the notes: written, not used, made elsewhere."""
        if self._notes:
            terminalreporter.section("clew snapshots")
        for note in self._notes:
            terminalreporter.line(note)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the notes of this session."""
    config.pluginmanager.register(SnapshotNotes(), "clew_snapshot_notes")
