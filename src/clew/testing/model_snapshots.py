"""`clew_snapshot`: keep a model's numbers as text next to the test, and compare with them.

Input: a model and its inputs. Output: what the model returned, or an AssertionError that names the
first call that differs. Nothing is written unless pytest was started with `--clew-update`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.analysis.file_names import short_names
from clew.errors import ClewError
from clew.events.model import Source
from clew.testing.snapshot_compare import Change, Mismatch, compare, with_noise
from clew.testing.snapshot_files import path_of, read_snapshots, write_snapshots
from clew.testing.snapshot_record import ROOT, Checked, SnapshotRun, checked, is_library, made_with
from clew.testing.snapshot_text import Section, SnapshotLine
from clew.traces import Trace

if TYPE_CHECKING:
    from torch import Tensor

# Runs with perturbed weights that the noise of a snapshot is measured with.
_PERTURBED = 2
_MOST_LINES = 4


class Snapshots:
    """The snapshots of one test; what the fixture `clew_snapshot` is.

    `notes` are lines for the end of pytest's report.
    """

    def __init__(
        self, test_file: Path, test: str, *, here: Path, update: bool,
        failed: Callable[[Trace], None],
    ) -> None:  # fmt: skip
        self.path = path_of(test_file, test)
        self.notes: list[str] = []
        self._test = test
        self._here = here
        file = _shortest(test_file, here)
        self._command = f"pytest --clew-update {file}::{test.partition('[')[0]}"
        self._update = update
        self._failed = failed
        self._checked: set[str] = set()

    def __repr__(self) -> str:
        return f"<Snapshots of {self._test}>"

    def check(
        self,
        model: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        gradients: bool | Callable[[Any], Tensor] = False,
        tol: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run `model(*args, **kwargs)` and compare each module call with the snapshot.

        Return what the model returned. `name` names this check among those of the test; else they
        are counted. `gradients=True` also keeps the gradient of each parameter, of a fixed weighted
        sum of the result, or of the result if it is one number; a function from the result to a
        number stands for another loss. `tol` is the relative error that counts as noise, in place
        of what was measured.
        """
        __tracebackhide__ = True
        section = self._section_name(name)
        run = checked(model, args, kwargs, gradients)
        recording = run.record(self._failed)
        file = read_snapshots(self.path, self._test)
        known = file.sections.get(section)
        mismatch = None if known is None else compare(_tolerant(known.lines, tol), recording.lines)
        if known is not None and mismatch is None:
            self._note_environment(known, recording)
            return recording.result
        if self._update:
            file.sections[section] = self._new_section(section, run, recording)
            write_snapshots(self.path, file)
            self.notes.append(f"{'wrote' if known is None else 'rewrote'} {self._place(section)}")
            return recording.result
        if known is None or mismatch is None:
            raise AssertionError(self._missing(section, list(file.sections)))
        raise AssertionError(self._difference(known, mismatch, run, recording))

    def finish(self, passed: bool) -> None:
        """Note, or with `--clew-update` remove, sections that a whole run of the test did not ask
        for.
        """
        if not passed or not self._checked:
            return
        file = read_snapshots(self.path, self._test)
        unused = [name for name in file.sections if name not in self._checked]
        if unused and self._update:
            for name in unused:
                del file.sections[name]
            write_snapshots(self.path, file)
        what = "removed" if self._update else "not checked by any test any more:"
        self.notes += [f"{what} {self._place(name)}" for name in unused]

    def _section_name(self, name: str | None) -> str:
        found = f"check {len(self._checked) + 1}" if name is None else name
        if not found or not found.isprintable() or found in self._checked:
            raise ClewError(f"check(name={name!r}): a name of one line, once in each test")
        self._checked.add(found)
        return found

    def _new_section(self, name: str, run: Checked, recording: SnapshotRun) -> Section:
        """Return the section to write, with noise measured; a model must repeat its numbers."""
        __tracebackhide__ = True
        moved = [run.perturbed(seed) for seed in range(_PERTURBED)]
        lines = with_noise(recording.lines, [one.lines for one in moved if one is not None])
        lines = tuple(replace(one, tolerance=_one_digit(one.tolerance)) for one in lines)
        unstable = compare(lines, run.record().lines)
        if unstable is not None:
            said = ["no snapshot was written: a second run from the same random state differs"]
            said += [*unstable.text(), "ask clew.determinism(...) what makes it differ"]
            raise AssertionError("\n  ".join(said))
        return Section(name, made_with(recording), lines)

    def _place(self, section: str) -> str:
        return f"{_shortest(self.path, self._here)} [{section}]"

    def _missing(self, section: str, others: list[str]) -> str:
        lines = [f"there is no snapshot [{section}] in {_shortest(self.path, self._here)}"]
        if others:
            lines.append(f"it has {', '.join(f'[{name}]' for name in others)}")
        lines.append(f"write it with: {self._command}")
        return "\n  ".join([*lines, "then read it, and commit it with the test"])

    def _difference(
        self, known: Section, mismatch: Mismatch, run: Checked, recording: SnapshotRun
    ) -> str:
        first = mismatch.first
        more = [] if first is None else _places(first, run, recording)
        here = _changed(known.made_with, made_with(recording))
        return "\n  ".join([
            "the model's numbers differ from the snapshot",
            *mismatch.text(more),
            *([f"the snapshot was {here}"] if here else []),
            f"snapshot: {self._place(known.name)}",
            f"if this is meant: {self._command}",
        ])  # fmt: skip

    def _note_environment(self, known: Section, recording: SnapshotRun) -> None:
        here = _changed(known.made_with, made_with(recording))
        if here:
            self.notes.append(f"snapshots agree that were {here}")


def _shortest(path: Path, here: Path) -> str:
    """Write a path from here if it lies below, else in full."""
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _tolerant(lines: tuple[SnapshotLine, ...], tol: float | None) -> tuple[SnapshotLine, ...]:
    return lines if tol is None else tuple(replace(line, tolerance=tol) for line in lines)


def _one_digit(tolerance: float) -> float:
    """Round up to one digit, which is how it is written."""
    unit = 10.0 ** floor(log10(tolerance))
    digit = tolerance / unit
    return (
        float(f"{tolerance:.0e}") if abs(digit - round(digit)) < 1e-9 else (int(digit) + 1) * unit
    )


def _changed(then: tuple[str, ...], here: tuple[str, ...]) -> str:
    """Write what the numbers were made with that is otherwise here; empty if nothing is."""
    old, new = (
        [word for word in one if word not in other] for one, other in ((then, here), (here, then))
    )
    if not old and not new:
        return ""
    return f"made with {', '.join(old) or 'less'}; here is {', '.join(new) or 'less'}"


def _places(first: Change, run: Checked, recording: SnapshotRun) -> list[str]:
    """Return where the first call that differs was made, and the lines that it runs itself."""
    name, _, role = first.name.partition(":")
    if role == "grad":
        name = name.rpartition(".")[0] or ROOT
    source = recording.sources.get(name)
    outer = [] if source is None else [source]
    inner = [] if name in ("input", "result") else _own_lines(run.with_ops(), name)
    inner = [one for one in inner if source is None or _line_of(one) != _line_of(source)]
    files = short_names({one.file for one in (*outer, *inner)})
    lines = [f"called at {_written(one, files)}" for one in outer]
    return lines + [f"computes at {_written(one, files)}" for one in inner[-_MOST_LINES:]]


def _own_lines(trace: Trace, name: str) -> list[Source]:
    """Return the lines of the ops that run in a call and in no call inside it, in order."""
    path, _, number = name.partition("#")
    found: dict[tuple[str, int], Source] = {}
    for op in trace.ops:
        call, source = op.parent, op.source
        while call is not None and call.kind != "module":
            call = call.parent
        if call is None or source is None:
            continue
        if (call.module or ROOT) == path and call.call == int(number or 0):
            found[_line_of(source)] = source
    return [one for one in found.values() if not is_library(one)]


def _line_of(source: Source) -> tuple[str, int]:
    return source.file, source.line


def _written(source: Source, files: dict[str, str]) -> str:
    return f"{files[source.file]}:{source.line}: {source.text}"
