"""The rule about train and eval mode: dropout and batch norm that run in the wrong one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clew.address import written
from clew.analysis.health.thresholds import Thresholds
from clew.analysis.health.training_facts import TrainingFacts, in_steps
from clew.analysis.health.verdicts import HealthFinding, HealthRule, judged, not_checked
from clew.events.columns import Ints
from clew.events.op_names import bare_op
from clew.events.vocabulary import FORWARD, MODULE

MODE = "wrong mode"
_DROPOUTS = frozenset(
    {"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"}
)
_NORMS = frozenset({"BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"})
_DROPPING = {"native_dropout", "bernoulli_"}
# Each costs a search through the run; later ones of a loop are like the first.
_MOST_CALLS = 20


def wrong_mode(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find evaluation in train mode, training in eval mode, and dropout that ignores the mode."""
    if not (facts.training >= 0).any():
        why = "no module calls were recorded; record with level='modules' or 'ops'"
        return not_checked(MODE, why)
    note = "" if facts.has_ops else "dropout as a function is seen with level='ops' only"
    found = [*certain_modes(facts), *_evaluated_in_train(facts), *_norms_in_train(facts)]
    return judged(MODE, found, note=note)


def certain_modes(facts: TrainingFacts) -> list[HealthFinding]:
    """Return what is in the wrong mode for certain."""
    return [*_dropping_in_eval(facts), *_trained_in_eval(facts)]


# Dropout as a function


def _dropping_in_eval(facts: TrainingFacts) -> Iterator[HealthFinding]:
    """Yield modules in eval mode that run dropout, as `F.dropout(x)` does in either mode."""
    run = facts.run
    rows = facts.ops_named(_DROPPING)
    above = run.parent_row[rows]
    rows = rows[(above >= 0) & (run.phase[rows] == FORWARD) & (facts.training[above] == 0)]
    rows = np.array([row for row in rows.tolist() if _is_dropout(facts, row)], dtype=np.int64)
    for group in _by_line(facts, rows):
        row = int(group[0])
        path = run.module_path(row) or "the root module"
        text = f"dropout ran in {path} in eval mode, in {in_steps(run.step[group])}"
        advice = "give F.dropout training=self.training, and attention dropout_p=0 in eval mode"
        address = run.address(row)
        yield facts.finding(MODE, row, address, len(group), 0, text, advice, certain=True)


def _is_dropout(facts: TrainingFacts, row: int) -> bool:
    """Return whether an op is part of dropout: a mask that is scaled by what is kept."""
    run = facts.run
    if bare_op(run.name(row)) == "native_dropout":
        return True
    following = row + 1
    while following < len(run) and run.columns.kind[following] != run.columns.kind[row]:
        following += 1
    if following == len(run) or bare_op(run.name(following)) != "div_":
        return False
    storage = run.columns.storage
    taken, made = int(facts.first_input[following]), int(facts.first_result[row])
    return taken >= 0 and made >= 0 and bool(storage[taken] == storage[made])


def _by_line(facts: TrainingFacts, rows: Ints) -> Iterator[Ints]:
    derived = facts.run.derived
    keys: dict[tuple[int, int], list[int]] = {}
    for row in rows.tolist():
        keys.setdefault((int(derived.module[row]), int(derived.source[row])), []).append(row)
    yield from (np.array(group, dtype=np.int64) for group in keys.values())


# Whole models


def _roots_by_module(facts: TrainingFacts) -> Iterator[Ints]:
    """Yield the outermost calls of each model of each rank."""
    run = facts.run
    numbers = np.array([one.number for one in run.columns.modules] or [0], dtype=np.int64)
    roots = facts.roots[facts.first_result[facts.roots] >= 0]
    keys: dict[tuple[int, int], list[int]] = {}
    for row in roots.tolist():
        key = (int(run.process[row]), int(numbers[run.columns.subject[row]]))
        keys.setdefault(key, []).append(row)
    yield from (np.array(group, dtype=np.int64) for group in keys.values())


def _acting(facts: TrainingFacts, roots: Ints, training: int) -> Ints:
    """Return calls of batch norms, and dropouts that drop, in one mode inside some calls."""
    run = facts.run
    rows = facts.calls_of(_DROPOUTS | _NORMS)
    rows = rows[(facts.training[rows] == training) & np.isin(facts.root_of[rows], roots)]
    settings = {int(subject): True for subject in np.unique(run.columns.subject[rows])}
    for subject in settings:
        row = int(rows[run.columns.subject[rows] == subject][0])
        held = run.attributes(row)
        settings[subject] = bool(held.get("p", 0) or held.get("track_running_stats"))
    keep = [settings[int(subject)] for subject in run.columns.subject[rows]]
    return np.asarray(rows[np.array(keep, dtype=bool)])


def _trained_in_eval(facts: TrainingFacts) -> Iterator[HealthFinding]:
    """Yield models with steps of an optimizer whose passes with gradients were all in eval mode."""
    run = facts.run
    for calls in _roots_by_module(facts):
        calls = calls[facts.has_grad(calls)]
        path = run.module_path(int(calls[0])) if len(calls) else None
        if path is None:
            continue
        steps = run.step[calls]
        in_train = np.unique(steps[facts.training[calls] != 0])
        quiet = calls[np.isin(steps, _steps_of_optimizers(facts, path)) & ~np.isin(steps, in_train)]
        acting = _acting(facts, quiet, 0)
        if len(acting):
            text = (
                f"{path or 'the model'} was trained in eval mode in "
                f"{in_steps(run.step[quiet])}: {_kinds(facts, acting)}"
            )
            after = ", also after an evaluation" if len(in_train) else ""
            advice = f"call model.train() before training{after}"
            yield facts.finding(
                MODE, int(quiet[0]), written(path), len(quiet), 0, text, advice, certain=True
            )


def _steps_of_optimizers(facts: TrainingFacts, path: str) -> Ints:
    """Return the steps in which an optimizer that holds parameters below a path made a step."""
    inside = f"{path}." if path else ""
    held = {name for group in facts.groups for name in group.parameters if name.startswith(inside)}
    if not facts.updated:
        # Without ops nobody knows which of several optimizers made the step.
        return facts.steps if held else np.zeros(0, dtype=np.int64)
    names = {at for at, name in enumerate(facts.names) if name in held}
    return np.array(sorted({s for _, s, name in facts.updated if name in names}), dtype=np.int64)


def _evaluated_in_train(facts: TrainingFacts) -> Iterator[HealthFinding]:
    """Yield models that ran without gradients in train mode, besides being trained."""
    run = facts.run
    for calls in _roots_by_module(facts):
        grad = facts.has_grad(calls)
        quiet = calls[~grad & (facts.training[calls] == 1)]
        if not grad.any() or not len(quiet):
            continue
        quiet = quiet[_is_evaluation(facts, quiet)]
        acting = _acting(facts, quiet, 1)
        if not len(acting):
            continue
        row = int(quiet[0])
        path = run.module_path(row) or ""
        text = (
            f"{path or 'the model'} ran without gradients in train mode in "
            f"{in_steps(run.step[quiet])}: {_kinds(facts, acting)}"
        )
        advice = "call model.eval() before evaluating, and model.train() afterwards"
        yield facts.finding(MODE, row, written(path), len(quiet), 0, text, advice)


def _is_evaluation(facts: TrainingFacts, calls: Ints) -> np.ndarray:
    """Return which calls gave results that the program looks at, and that no other model takes.

    What makes batches for another model, or only updates running statistics, runs in train mode.
    """
    run = facts.run
    tensors, kind = run.tensors, run.columns.kind
    storage = run.columns.storage[tensors.value]
    found = [False] * len(calls)
    for at, row in enumerate(calls[:_MOST_CALLS].tolist()):
        mine = storage[(tensors.event == row) & tensors.is_output]
        later = (tensors.event > row) & ~tensors.is_output & np.isin(storage, mine)
        later &= facts.root_of[tensors.event] != row
        takers = np.unique(tensors.event[later])
        to_model = (kind[takers] == MODULE).any()
        updates = any(source.function == "update_bn" for source in run.stack(row))
        found[at] = not to_model and not updates and (len(takers) > 0 or not facts.has_ops)
    return np.array(found, dtype=bool)


def _norms_in_train(facts: TrainingFacts) -> Iterator[HealthFinding]:
    """Yield batch norms in train mode inside a model that evaluates in eval mode."""
    run = facts.run
    for calls in _roots_by_module(facts):
        quiet = calls[~facts.has_grad(calls) & (facts.training[calls] == 0)]
        acting = _acting(facts, quiet, 1)
        norms = acting[np.isin(acting, facts.calls_of(_NORMS))]
        if len(norms):
            row = int(norms[0])
            path = run.module_path(row) or ""
            text = (
                f"{run.name(row)} {path} used the statistics of the batch while the model "
                f"evaluated in eval mode, in {in_steps(run.step[norms])}"
            )
            advice = "call model.eval() after the last .train() of a part of it"
            yield facts.finding(MODE, row, written(path), len(norms), 0, text, advice)


def _kinds(facts: TrainingFacts, acting: Ints) -> str:
    """Write what acts in this mode, or does not: `Dropout drop (p=0.1), …`."""
    run = facts.run
    modules: dict[str | None, str] = {}
    for row in acting.tolist():
        modules.setdefault(run.module_path(row), run.name(row))
    words = [f"{name} {path}" for path, name in list(modules.items())[:2]]
    left = len(modules) - len(words)
    is_train = facts.training[int(acting[0])] == 1
    does = "acted" if is_train else "did not act as in training"
    return f"{', '.join(words)}{f' and {left:,} more' if left else ''} {does}"
