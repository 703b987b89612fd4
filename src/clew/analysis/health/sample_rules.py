"""The rule about samples with NaN or Inf: where they come in, from which worker and sample."""

from __future__ import annotations

import re

import numpy as np

from clew.analysis.health.thresholds import Thresholds
from clew.analysis.health.training_facts import TrainingFacts
from clew.analysis.health.verdicts import HealthFinding, HealthRule, judged, not_checked
from clew.analysis.nonfinite import INPUT, NonFiniteOrigin, nonfinite_of
from clew.events.columns import IN, Flags
from clew.events.op_names import bare_op
from clew.events.vocabulary import DATA

BAD_SAMPLES = "NaN in the data"
_WORKER = re.compile(r"worker(\d+)(?:\.sample(.+))?$")
_CAPTURE = "capture=['data.py:MyDataset.__getitem__.x'] in clew.trace names the sample that has it"


def bad_samples(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find NaN and Inf that came with the data; of a DataLoader's worker, in which sample."""
    if not facts.has_stats:
        return not_checked(BAD_SAMPLES, "no statistics were taken; record with values='stats'")
    stats = facts.run.stats
    if not ((stats["nan"] > 0) | (stats["inf"] > 0)).any():
        return judged(BAD_SAMPLES, [])
    alarms = [one for one in nonfinite_of(facts.run) if one.is_alarm]
    if not alarms:
        return judged(BAD_SAMPLES, [], note="what NaN and Inf there are reach no output or loss")
    # What workers recorded says more than what then arrives in the model.
    found = _in_workers(facts) or _in_loading(facts)
    came = [one for one in alarms if one.kind == INPUT and not found]
    return judged(BAD_SAMPLES, [*found, *(_came(facts, one) for one in came)])


def _bad_rows(facts: TrainingFacts, which: Flags) -> list[int]:
    """Return the rows among some whose result holds NaN or Inf."""
    stats, value = facts.run.stats, facts.first_result
    bad = which & (value >= 0) & ((stats["nan"] + stats["inf"])[value] > 0)
    rows: list[int] = np.flatnonzero(bad).tolist()
    return rows


def _in_workers(facts: TrainingFacts) -> list[HealthFinding]:
    """Return the first value with NaN or Inf of each sample that was recorded in a worker."""
    run = facts.run
    of_workers = [_WORKER.match(prefix) is not None for prefix in run.derived.prefixes]
    is_worker = np.array([*of_workers, False], dtype=bool)[run.derived.prefix]
    found: dict[str, HealthFinding] = {}
    for row in _bad_rows(facts, is_worker):
        where = run.prefix(row)
        if where in found:
            continue
        match = _WORKER.match(where)
        worker, sample = (None, None) if match is None else match.groups()
        label = run.label(row)
        name = run.name(row) if label is None else label.name
        of = "" if sample is None else f"sample {sample}, "
        number = int(facts.first_result[row])
        text = f"{name} held {_counted(facts, number)} in {of}made by worker {worker}"
        found[where] = facts.finding(
            BAD_SAMPLES, row, run.address(row), _share(facts, number), 0, text,
            "look at the file of this sample, and at divisions in its transforms",
        )  # fmt: skip
    return list(found.values())


def _in_loading(facts: TrainingFacts) -> list[HealthFinding]:
    """Return the first op with NaN or Inf that ran while a DataLoader made a batch."""
    for row in _bad_rows(facts, facts.run.phase == DATA)[:1]:
        number = int(facts.first_result[row])
        which = _which_sample(facts, row)
        text = f"{_counted(facts, number)}{which} while a batch was loaded{facts.line(row)}"
        is_handed_over = bare_op(facts.run.name(row)) == "set_"
        advice = _CAPTURE if is_handed_over else "look at this line, and at the sample it took"
        address = facts.run.address(row)
        share = _share(facts, number)
        return [facts.finding(BAD_SAMPLES, row, address, share, 0, text, advice)]
    return []


def _which_sample(facts: TrainingFacts, row: int) -> str:
    """Write which sample a row of loading is about, as far as ops show it.

    A sample may be a row of a tensor; and `collate_fn` stacks samples in their order.
    """
    run = facts.run
    said = ""
    taken = int(facts.first_input[row])
    if bare_op(run.name(row)) == "select" and taken >= 0:
        template = run.columns.templates[int(run.columns.template[row])]
        given = [leaf.constant for leaf in template.leaves if leaf.role == IN][1:3]
        shape = run.metas[int(run.columns.meta[taken])].shape or ()
        if given[:1] == [0] and len(given) == 2:
            said = f" in row {given[1]} of [{','.join(map(str, shape))}]"
    at, count = _place_in_batch(facts, row)
    return said if at < 0 else f"{said}, entry {at} of its batch of {count:,},"


def _place_in_batch(facts: TrainingFacts, row: int) -> tuple[int, int]:
    """Return which sample of its batch has NaN or Inf, and how many there are; -1 if unknown."""
    run = facts.run
    bad = (run.stats["nan"] + run.stats["inf"]) > 0
    stacks = facts.ops_named({"stack"})
    for later in stacks[stacks >= row].tolist():
        if (run.phase[row : later + 1] != DATA).any():
            break  # another batch
        samples = [number for leaf, number in run.leaf_values(later) if leaf.role == IN]
        found = np.flatnonzero(bad[samples])
        if len(found) and any("collate" in source.function for source in run.stack(later)):
            return int(found[0]), len(samples)
    return -1, 0


def _came(facts: TrainingFacts, one: NonFiniteOrigin) -> HealthFinding:
    row, number = one.event.row, one.value.number
    text = f"{_counted(facts, number)} came with the data to {one.event.address}"
    address, share = one.event.address, _share(facts, number)
    return facts.finding(BAD_SAMPLES, row, address, share, 0, text, _CAPTURE)


def _counted(facts: TrainingFacts, number: int) -> str:
    stats = facts.run.stats
    counts = [(int(stats[name][number]), word) for name, word in (("nan", "NaN"), ("inf", "Inf"))]
    said = " and ".join(f"{count:,} {word}" for count, word in counts if count)
    return f"{said} in {int(stats['count'][number]):,} numbers" if said else "NaN or Inf"


def _share(facts: TrainingFacts, number: int) -> float:
    stats = facts.run.stats
    count = int(stats["count"][number])
    return float(stats["nan"][number] + stats["inf"][number]) / count if count > 0 else 1.0
