"""What to read first about a run, the worst first.

Input: a `Run`. Output: `Finding`s: crashes, why a flight recorder wrote the trace, origins of NaN
and Inf, ranks that ran different ops, silent broadcasting, float16 near the end of its range,
memory that grows, certain faults of training and data, gaps in the coverage, and where NaN and Inf
were not checked. Text, page and JSON all show this list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clew import analysis
from clew.analysis.broadcasts import silent_broadcasts
from clew.analysis.failures import failing_event
from clew.analysis.file_names import file_names
from clew.analysis.half_range import range_warnings
from clew.analysis.health.certain_faults import certain_faults
from clew.analysis.health.verdicts import HealthFinding
from clew.analysis.nonfinite import (
    ABSORBED,
    CONSTANT,
    INPUT,
    PARAMETER,
    PRODUCED,
    NonFiniteOrigin,
    NonFiniteSearch,
)
from clew.analysis.rank_order import Parting, partings
from clew.events.columns import Ints
from clew.events.model import Data
from clew.events.vocabulary import GATHERED, MODULE, NOTE, OP, PREFIX, STEP
from clew.plain_text import first_line, plain
from clew.run.event import Event
from clew.run.run import Run
from clew.spec import SEVERITIES
from clew.stream.ring import is_fallen_out

ERROR, WARNING, INFO = SEVERITIES
_MOST_PARTINGS = 4
_MOST_BROADCASTS = 4
_MOST_GROWING = 2
# Memory that grows is looked for in runs of so many steps: all but the first and the last count.
FEWEST_STEPS = 5
_MOST_RANGES = 4


@dataclass(frozen=True, slots=True, repr=False)
class Finding(Data):
    """One thing to know about a run.

    `severity` is `"error"`, `"warning"` or `"info"`. `kind` is `"crash"`, `"recorder"`, a kind of
    `NonFiniteOrigin`, `"ranks"`, `"broadcast"`, `"range"`, `"memory"`, `"health"`, `"coverage"` or
    `"not checked"`. `text` is a sentence, `event` the event to look at or None, `count` how many
    such things there are.
    """

    severity: str
    kind: str
    text: str
    event: Event | None
    count: int

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Finding {self.severity} {self.kind}: {self.text}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data; of the event only what is needed to find it."""
        event = self.event
        return {
            "severity": self.severity,
            "kind": self.kind,
            "text": self.text,
            "count": self.count,
            "event": None if event is None else _place_dict(event),
        }


def findings_of(run: Run) -> list[Finding]:
    """List what to know first about a run, errors before warnings before the rest."""
    return list_findings(NonFiniteSearch(run))


def list_findings(search: NonFiniteSearch) -> list[Finding]:
    """List the findings of a run, given the result of the search for NaN and Inf."""
    run = search.run
    names = file_names(run)
    found = [
        *_crashes(run, names),
        *_recorder(run),
        *_nonfinite(search, names),
        *_ranks(run, names),
        *_broadcasts(run, names),
        *_growth(run),
        *_health(run, names),
        *_ranges(run, names),
        *_coverage(run),
        *_not_checked(search),
    ]
    said = [replace(finding, text=plain(finding.text)) for finding in found]
    return sorted(said, key=lambda finding: SEVERITIES.index(finding.severity))


def all_clear(run: Run, found: Sequence[Finding]) -> list[str]:
    """List what was checked and not found, in a few words each; empty if there is an error."""
    kinds = {finding.kind for finding in found}
    if not len(run) or any(finding.severity == ERROR for finding in found):
        return []
    said = ["no crash"]
    if "not checked" not in kinds:
        harmless = {CONSTANT, ABSORBED, PRODUCED} & kinds
        said.append("no NaN or Inf" + (" where it matters" if harmless else ""))
    return said if run.coverage else [*said, "no coverage gaps"]


def _crashes(run: Run, names: dict[str, str]) -> Iterator[Finding]:
    for rank, text in run.crashes.items():
        event = failing_event(run, rank)
        who = f"rank {rank} ended" if len(run.ranks) > 1 else "ended"
        first = first_line(text) or "an exception"
        where = "" if event is None else f", raised at {_where(event, names)}"
        yield Finding(ERROR, "crash", f"{who} by {first}{where}", event, 1)


# Triggers that say nothing bad of a run: somebody asked for the trace.
_ASKED_FOR = ("dump", "file", "signal", "sigterm")


def _recorder(run: Run) -> Iterator[Finding]:
    """Yield why a flight recorder wrote the trace; the file may say anything there."""
    for env in run.environments.values():
        written = env.get("recorder")
        fired = written.get("fired") if isinstance(written, dict) else None
        for one in fired if isinstance(fired, list) else ():
            if isinstance(one, dict) and one.get("trigger") != "exception":  # that is the crash
                severity = INFO if one.get("trigger") in _ASKED_FOR else WARNING
                text = f"the recorder wrote this in step {one.get('step')}: {one.get('text')}"
                yield Finding(severity, "recorder", first_line(text), None, 1)


# Texts for the origins of each kind: for one, for several.
_SAYS = {
    PRODUCED: ("{what} appeared", "{what} appeared at {n} places"),
    INPUT: ("{what} came with the data", "{what} came with the data {n} times"),
    PARAMETER: ("a parameter or buffer held {what}", "{n} parameters or buffers held {what}"),
    CONSTANT: ("{what} given as a constant", "{what} given as a constant {n} times"),
    ABSORBED: (
        "{what} that reaches no module's output, loss or gradient",
        "{what} that reaches no module's output, loss or gradient, from {n} places",
    ),
}  # fmt: skip


def _nonfinite(search: NonFiniteSearch, names: dict[str, str]) -> Iterator[Finding]:
    """Yield one finding per kind; a constant that becomes NaN is separate from a harmless one."""
    groups: dict[tuple[str, str], list[NonFiniteOrigin]] = {}
    for one in search.found:
        groups.setdefault((one.severity, one.kind), []).append(one)
    for (severity, kind), origins in groups.items():
        first = origins[0]
        whats = {part for origin in origins for part in origin.what.split(" and ")}
        what = " and ".join(part for part in ("NaN", "Inf") if part in whats)
        run = search.run
        where = _where(first.event, names, len(run.ranks) > 1, len(run.steps) > 1)
        text = _SAYS[kind][len(origins) > 1].format(what=what, n=f"{len(origins):,}")
        text += f"{', first' if len(origins) > 1 else ''} at {where}"
        text += f": {first.hint}" if first.hint else ""
        if severity == ERROR and kind == PRODUCED:
            text += _spread(search)
        yield Finding(severity, kind, text, first.event, len(origins))


def _spread(search: NonFiniteSearch) -> str:
    """Write how many ops, or calls, returned NaN or Inf."""
    run = search.run
    kind, noun = (OP, "ops") if search.flow.has_ops else (MODULE, "module calls")
    rows = run.rows(kind)
    if not len(rows):
        return ""
    return f"; {int((search.marks()[rows] > 0).sum()):,} of {len(rows):,} {noun} gave NaN or Inf"


def _ranks(run: Run, names: dict[str, str]) -> Iterator[Finding]:
    found = partings(run)
    for parting in found[:_MOST_PARTINGS]:
        row = parting.row if parting.row >= 0 else parting.other_row
        event = run.event(row) if row >= 0 else None
        text = _parting_text(run, parting, names)
        yield Finding(WARNING, "ranks", text, event, len(parting.ranks))
    left = sum(len(parting.ranks) for parting in found[_MOST_PARTINGS:])
    if left:
        text = f"{left:,} more ranks did not run what rank {found[0].other} ran"
        yield Finding(WARNING, "ranks", text, None, left)


def _parting_text(run: Run, parting: Parting, names: dict[str, str]) -> str:
    rank, other = parting.ranks[0], parting.other
    listed = ", ".join(map(str, parting.ranks[:8])) + (", …" if len(parting.ranks) > 8 else "")
    who = f"rank {rank}" if len(parting.ranks) == 1 else f"ranks {listed}"
    sides = [
        _where(run.event(row), names) if row >= 0 else ""
        for row in (parting.row, parting.other_row)
    ]
    step = int(run.step[max(parting.row, parting.other_row)])
    differs = f"{who} did not run what rank {other} ran: in step {step}"
    if not sides[0]:
        return f"{differs} rank {rank} had ended where rank {other} ran {sides[1]}"
    if not sides[1]:
        return f"{differs} rank {rank} went on with {sides[0]} where rank {other} had ended"
    return f"{differs} rank {rank} ran {sides[0]} where rank {other} ran {sides[1]}"


def _broadcasts(run: Run, names: dict[str, str]) -> Iterator[Finding]:
    found = silent_broadcasts(run)
    for one in found[:_MOST_BROADCASTS]:
        event = run.event(one.row)
        shapes = [f"[{','.join(map(str, shape))}]" for shape in (*one.shapes, one.result)]
        text = (
            f"{one.name} broadcast both {shapes[0]} and {shapes[1]} to {shapes[2]} at "
            f"{_where(event, names)}; give them the same shape if they belong together "
            "element by element"
        )
        yield Finding(WARNING, "broadcast", text, event, one.count)
    left = len(found) - _MOST_BROADCASTS
    if left > 0:
        yield Finding(
            WARNING, "broadcast", f"{left:,} more lines broadcast both operands", None, left
        )


def _growth(run: Run) -> Iterator[Finding]:
    """Yield a finding for each rank and device whose memory grows from step to step."""
    if len(run.steps) < FEWEST_STEPS:
        return
    for device in analysis.memory_of(run).devices[:_MOST_GROWING]:
        if device.growth is not None:
            text = analysis.growth_text(device.growth)
            yield Finding(WARNING, "memory", text, device.growth.event, 1)


def _health(run: Run, names: dict[str, str]) -> Iterator[Finding]:
    """Yield what rules about training and data are certain of; `Trace.health` has the rest."""
    rules: dict[str, list[HealthFinding]] = {}
    for one in certain_faults(run):
        rules.setdefault(one.rule, []).append(one)
    for found in rules.values():
        first = found[0]
        more = "" if len(found) == 1 else f", and {len(found) - 1:,} more"
        text = f"{first.text}, at {_where(first.event, names)}{more}; {first.advice}"
        yield Finding(WARNING, "health", text, first.event, len(found))


def _ranges(run: Run, names: dict[str, str]) -> Iterator[Finding]:
    found = range_warnings(run)
    for one in found[:_MOST_RANGES]:
        event = run.event(one.row)
        yield Finding(WARNING, "range", f"{_where(event, names)}: {one.text}", event, one.count)
    left = len(found) - _MOST_RANGES
    if left > 0:
        yield Finding(WARNING, "range", f"{left:,} more lines near the end of float16", None, left)


def _coverage(run: Run) -> Iterator[Finding]:
    gaps = run.coverage
    if "recorder" in run.environment:
        gaps = tuple(gap for gap in gaps if not is_fallen_out(gap))  # that is what was asked for
    if gaps:
        things = "1 thing was" if len(gaps) == 1 else f"{len(gaps):,} things were"
        first = "" if len(gaps) == 1 else "first "
        text = f"{things} not seen: {first}{gaps[0]}"
        yield Finding(WARNING, "coverage", text, None, len(gaps))


def _not_checked(search: NonFiniteSearch) -> Iterator[Finding]:
    """Yield a finding if results without statistics could not be checked for NaN and Inf."""
    flow, run = search.flow, search.run
    quiet = np.isin(run.columns.kind, (NOTE, STEP, PREFIX, GATHERED))
    # Memory that an op returns before anybody has written to it holds nothing to check.
    quiet |= flow.is_uninitialised
    results = flow.is_result & flow.is_float[flow.values] & ~quiet[flow.event]
    total = _distinct(flow.event[results])
    unseen = _distinct(flow.event[results & ~flow.known[flow.values]])
    if not unseen:
        return
    looked = total - unseen
    if looked:
        text = (
            "NaN and Inf not checked everywhere: values were taken of "
            f"{looked:,} of {total:,} events"
        )
    else:
        text = "NaN and Inf not checked: no values were taken"
    if run.environment.get("values") not in ("stats", "fingerprint", "full"):
        text += "; values='stats' takes them"
    yield Finding(INFO, "not checked", text, None, unseen)


def _distinct(rows: Ints) -> int:
    """Count the different rows among some, which are in order."""
    return int(np.count_nonzero(np.diff(rows))) + bool(len(rows))


def _where(event: Event, names: dict[str, str], rank: bool = False, step: bool = False) -> str:
    """Write where an event is: address, module, line; of a note, which has no address, the line.

    `rank` and `step` say whether to include those.
    """
    source = event.source
    line = "" if source is None else f"{names[source.file]}:{source.line}"
    if event.kind == "note":
        return line or "an unknown line"
    text = event.address + (f"@{event.rank}" if rank else "")
    if event.module is not None and event.kind != "module":
        text += f" in {event.module or 'the root module'}"
    if step:
        text += f", step {event.step}"
    return f"{text}, {line}" if line else text


def _place_dict(event: Event) -> dict[str, object]:
    source = event.source
    return {
        "row": event.row,
        "id": event.id,
        "rank": event.rank,
        "step": event.step,
        "address": event.address,
        "module": event.module,
        "file": None if source is None else source.file,
        "line": None if source is None else source.line,
    }
