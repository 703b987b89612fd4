"""Every exit says the same of every event of the corpus, as far as `facts.md` promises it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clew.address import written
from clew.store.format.manifest import Format
from clew.store.read.open_trace import rank_folders, read_files
from clew.store.write.recovery import recover
from clew.views.export.formats import FORMATS
from tests.corpus.exits import EXITS, HAS_FINDINGS, Case, objects_with_numbers, pages
from tests.processes import HANG_GUARD

HERE = Path(__file__).parent
OF_EVENTS = (
    "module", "line", "address", "step", "call", "phase", "rank", "looks", "results", "values",
)  # fmt: skip
OF_TRACES = ("counts", "coverage", *(["findings"] if HAS_FINDINGS else []))
# Exits that must carry every fact that a run has.
WHOLE = ("objects", "to_dict", "json")
YES = "yes"


def promised() -> dict[str, dict[str, str]]:
    """Read the table: exit -> fact -> cell."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (HERE / "facts.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    titles, _, *body = rows
    return {row[0]: dict(zip(titles[1:], row[1:], strict=True)) for row in body}


PROMISED = promised()
TRACES = sorted(path.stem for path in (HERE / "traces").iterdir())
# A copy of `killed` as `clew recover` leaves it: DuckDB reads no parts that are still open.
SEALED = "killed_sealed"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("exits")
    paths = {name: HERE / "traces" / f"{name}.clew" for name in TRACES}
    paths[SEALED] = folder / f"{SEALED}.clew"
    shutil.copytree(paths["killed"], paths[SEALED])
    # Files of another machine are sealed when nobody has written to them for a while.
    for file in paths[SEALED].rglob("*"):
        os.utime(file, (0, 0))
    recover(paths[SEALED])
    found = {name: Case(path, folder) for name, path in paths.items()}
    for case, seen in zip(found.values(), pages(list(found.values())), strict=True):
        case.keep("page", seen)
    return found


@pytest.fixture(params=[*TRACES, SEALED])
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]


def rounded(fact: Any) -> Any:
    """Give a fact with its floats as 32 bits hold them."""
    if isinstance(fact, float):
        return float(np.float32(fact))
    if isinstance(fact, (list, tuple)):
        return type(fact)(map(rounded, fact))
    return fact


def differences(case: Case, exit: str) -> list[str]:
    """Say where an exit says something else than objects do, or less than it should."""
    seen, cells = case.seen(exit), PROMISED[exit]
    with_numbers = "some: number" in cells.values()
    reference = objects_with_numbers(case) if with_numbers else case.objects
    found = []
    rows = set(reference.events)
    strange = set(seen.events) - rows
    found += [f"no event, but {seen.events[row]}" for row in sorted(strange)]
    if cells["events"] == YES:
        found += [f"row {row} is missing" for row in sorted(rows - set(seen.events))]
    for row, facts in sorted(seen.events.items()):
        for name, fact in facts.items() if row in rows else ():
            wanted = reference.events[row][name]
            wanted = rounded(wanted) if seen.single else wanted
            if (rounded(fact) if seen.single else fact) != wanted and not (
                cells[name] == "some: inferred" and is_inferred(case, row)
            ):
                found.append(f"row {row}, {name}: {fact!r}, not {wanted!r}")
        found += [
            f"row {row}: no {name}"
            for name in OF_EVENTS
            if cells[name] == YES and name not in facts and row in rows
        ]
    for name in OF_TRACES:
        if cells[name] == YES and seen.whole.get(name) != reference.whole[name]:
            found.append(f"{name}: {seen.whole.get(name)}, not {reference.whole[name]}")
        elif cells[name] != YES:
            found += [
                f"{name}: {one} is not among {reference.whole[name]}"
                for one in seen.whole.get(name, ())
                if one not in reference.whole[name]
            ]
    return found


def is_inferred(case: Case, row: int) -> bool:
    return case.trace.events[row].reconstructed


def is_read(case: Case, exit: str) -> bool:
    return not (exit == "duckdb" and case.name == "killed")


@pytest.mark.parametrize("exit", [name for name in EXITS if name != "objects"])
def test_it_says_what_objects_say(case: Case, exit: str) -> None:
    if is_read(case, exit):
        assert differences(case, exit) == []


def test_each_promise_is_kept_by_some_trace(cases: dict[str, Case]) -> None:
    for exit in EXITS:
        filled: set[str] = set()
        for case in cases.values():
            if is_read(case, exit):
                seen = case.seen(exit)
                filled |= {name for facts in seen.events.values() for name in facts}
                filled |= set(seen.whole) | ({"events"} if seen.events else set())
        cells = {name for name, cell in PROMISED[exit].items() if not cell.startswith("no: ")}
        assert filled == cells & {"events", *OF_EVENTS, *OF_TRACES}, exit


def test_the_table_lists_every_exit_and_every_export() -> None:
    assert set(EXITS) <= set(PROMISED)
    assert set(FORMATS) <= set(PROMISED)
    unread = set(PROMISED) - set(EXITS)
    for exit in unread:
        assert {cell.partition(":")[0] for cell in PROMISED[exit].values()} == {"no"}


def test_each_cell_is_yes_or_has_a_reason() -> None:
    text = (HERE / "facts.md").read_text(encoding="utf-8")
    reasons = set(re.findall(r"^- \*\*(.+?)\*\*: \S", text, re.M))
    used = set()
    for exit, cells in PROMISED.items():
        for name, cell in cells.items():
            if cell != YES:
                assert re.fullmatch(r"(no|some): \w.*", cell), f"{exit}, {name}: {cell!r}"
                used.add(cell.partition(": ")[2])
    assert used == reasons


def test_some_exits_carry_everything() -> None:
    for exit in WHOLE:
        assert set(PROMISED[exit].values()) == {YES}, exit
    assert {name: cell for name, cell in PROMISED["page"].items() if cell != YES} == {
        "events": "some: composites", "results": "some: number", "values": "some: number",
    }  # fmt: skip
    # What a file that grows cannot have: the future, and what is noticed on opening it.
    assert {name: cell for name, cell in PROMISED["duckdb"].items() if cell != YES} == {
        "looks": "some: inferred", "results": "some: inferred", "values": "some: inferred",
        "coverage": "some: opening", "findings": "no: future",
    }  # fmt: skip


def test_an_address_finds_its_event_or_it_is_known_why_not(case: Case) -> None:
    for event in case.trace.events:
        found = case.found_by(event)
        if found == [event.row] or event.kind in ("step", "note", "prefix"):
            continue
        computed_again = event.kind == "module" and event.phase == "recompute"
        # A wrapper around a call, what was gathered, what a callback kept of a call's input.
        taken = {case.trace.events[row].address for row in found if row != event.row}
        shares = taken & {event.address, event.address.removesuffix(":in")}
        assert computed_again or shares, f"{event!r}: {event.address} finds {found}"


def test_no_exit_needs_torch(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; sys.modules['torch'] = None\n"
        "from tests.corpus.exits import EXITS, Case\n"
        f"case = Case(pathlib.Path({str(HERE / 'traces' / 'gathered.clew')!r}), "
        f"pathlib.Path({str(tmp_path)!r}))\n"
        "print(sum(len(case.seen(exit).events) > 0 for exit in EXITS))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=HERE.parents[1], capture_output=True, text=True,
        timeout=HANG_GUARD,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # All but the tree, which has facts of the whole trace alone.
    assert int(done.stdout) == len(EXITS) - 1


# What objects say, checked by other means


def by_process(case: Case) -> list[list[Any]]:
    """Give the events that each rank recorded, in order."""
    found: dict[int, list[Any]] = {}
    for (process, _), row in case.processes.items():
        found.setdefault(process, []).append(case.trace.events[row])
    return list(found.values())


def test_steps_are_those_of_the_marks(case: Case) -> None:
    folders = rank_folders(case.path).values()
    for events, folder in zip(by_process(case), folders, strict=True):
        numbers = read_files(folder)[0].subject.tolist()
        step = 0
        for event, number in zip(events, numbers, strict=True):
            step = number if event.kind == "step" else step
            if event.kind != "gathered":
                assert event.step == step, event


def test_calls_count_the_events_of_an_address(case: Case) -> None:
    for events in by_process(case):
        seen: Counter[str] = Counter()
        for event in events:
            before, is_counted, after = event.address.rpartition("#")
            # A checkpoint gives the calls that it computes again the numbers they had.
            if not is_counted or (event.phase == "recompute" and event.kind != "op"):
                continue
            stem = f"{event.name if event.kind == 'module' else event.kind} {before}"
            assert after.partition(":")[0] == str(event.call), event
            stem += after.removeprefix(str(event.call))
            assert event.call == seen[stem], event
            seen[stem] += 1


def test_what_ran_forward_is_of_the_module_it_ran_in(case: Case) -> None:
    for event in case.trace.events:
        if event.kind == "op" and event.phase == "forward":
            assert event.module == (None if event.parent is None else event.parent.module), event
        if event.kind == "module":
            assert event.address.rpartition("#")[0] == written(event.module), event


def test_ranks_are_those_of_the_folders(case: Case) -> None:
    for (process, _), row in case.processes.items():
        event = case.trace.events[row]
        assert event.rank == process or event.kind == "gathered", event


def test_lines_are_the_innermost_of_the_users_on_the_stack(case: Case) -> None:
    for event in case.trace.events:
        if event.phase == "forward" and event.source is not None:
            own = [s for s in event.stack if s.file.endswith("/tests/corpus/programs.py")]
            assert not own or event.source == own[-1], event


OLD = Path(__file__).parents[1] / "formats" / "v3" / "run.clew"


def test_a_trace_of_version_3_has_the_same_facts(tmp_path: Path) -> None:
    """Its event table has most of them in words, as the Clew that wrote it knew them."""
    case = Case(OLD, tmp_path)
    assert json.loads((OLD / "manifest.json").read_text())["version"] == 3
    assert all(
        read_files(folder, Format(3))[0].derived is None for folder in rank_folders(OLD).values()
    )
    assert differences(case, "duckdb") == []
    assert differences(case, "json") == []
