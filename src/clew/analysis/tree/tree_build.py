"""The tree of a run, made level by level: ranks, steps, threads, calls.

Input: a `Run`. Output: a frozen `Tree`. A level with a single member has no heading.
"""

from __future__ import annotations

from bisect import bisect
from itertools import pairwise

from clew.analysis.fold import Folds
from clew.analysis.folded_ops import FoldedOps
from clew.analysis.tree.levels import (
    Alike,
    RankStep,
    alike_ranks,
    alike_steps,
    sections,
    stretches,
    top_rows,
)
from clew.analysis.tree.named_values import named_nodes
from clew.analysis.tree.outline import Draft, Outliner
from clew.analysis.tree.phases import Phases
from clew.analysis.tree.totals import BACKWARD_SECTION, ENTRIES, OPTIMIZER_SECTION, Totals
from clew.analysis.tree.tree_facts import Facts
from clew.analysis.tree.tree_model import RANK, RANK_LEVEL, STEP, STEP_LEVEL, THREAD, Tree
from clew.events.vocabulary import MODULE, OP, RECOMPUTE
from clew.run.run import Run


def tree_of(folds: Folds, folds_ops: bool = True) -> Tree:
    """Return the tree of a run, with repeats, steps and ranks folded as `folds` says.

    With `folds_ops`, ops are named by the composites that ran them, and those of calls of modules
    of torch.nn are not listed; else all are.
    """
    run = folds.structure.run
    top = top_rows(run)
    section = sections(run, top)
    totals = Totals(run, top, section)
    folded = FoldedOps(run, folds_ops)
    outliner = Outliner(folds, totals, folded if folds_ops else None)
    phases = Phases(folds.structure, section, totals, outliner)
    facts = Facts(folds, totals, folded)
    sizeless = folds.sizeless if folds.ignores_sizes else None
    found = stretches(run, folds.structure, sizeless, top)
    section_of: list[int] = section.tolist()

    def entries(stretch: RankStep, times: int) -> list[Draft]:
        """Outline what ran in one step of a rank: forward by thread, backward, optimizer.

        Events after the last op of a section come after the section.
        """
        parts: dict[int, list[int]] = {ENTRIES: [], BACKWARD_SECTION: [], OPTIMIZER_SECTION: []}
        for row in stretch.rows[run.parent_row[stretch.rows] < 0].tolist():
            parts[section_of[row]].append(row)
        outlined = {BACKWARD_SECTION: phases.backward, OPTIMIZER_SECTION: phases.optimizer}
        ends = sorted((parts[part][-1], part) for part in outlined if parts[part])
        drafts: list[Draft] = []
        left = parts[ENTRIES]
        for last, part in ends:
            cut = bisect(left, last)
            drafts += by_thread(stretch.rank, left[:cut], times)
            drafts.append(outlined[part](parts[part], times))
            left = left[cut:]
        return drafts + by_thread(stretch.rank, left, times)

    threads = _threads(run, section_of, found)

    def by_thread(rank: int, rows: list[int], times: int) -> list[Draft]:
        if len(threads[rank]) < 2:
            return outliner.outline(rows, times)
        drafts = []
        by_number: dict[int, list[int]] = {}
        for row, thread in zip(rows, run.thread[rows].tolist(), strict=True):
            by_number.setdefault(thread, []).append(row)
        for thread in threads[rank]:
            mine = by_number.get(thread)
            if mine:
                name = f"thread {run.thread_name(mine[0])}"
                children = outliner.outline(mine, times)
                drafts.append(Draft(THREAD, mine, STEP_LEVEL, times, name=name, children=children))
        return drafts

    def steps(found: list[RankStep], times: int) -> list[Draft]:
        drafts = []
        for alike in alike_steps(found, folds.folding):
            totals.fold(alike.spans)
            count = len(alike.numbers)
            inside = entries(alike.first[0], times * count)
            drafts += _under(alike, STEP, STEP_LEVEL, times * count, inside, len(run.steps) > 1)
        return drafts

    drafts: list[Draft] = []
    for alike in alike_ranks(found, folds.folding):
        totals.fold(alike.spans)
        count = len(alike.numbers)
        inside = steps(alike.first, count)
        drafts += _under(alike, RANK, RANK_LEVEL, count, inside, len(run.ranks) > 1)
    roots = facts.nodes(drafts)
    return Tree(
        name=_title(run),
        level=run.level,
        ranks=tuple(run.ranks),
        steps=tuple(run.steps),
        calls=len(run.rows(MODULE)),
        ops=len(run.rows(OP)),
        parameters=facts.parameters.total,
        seconds=sum(node.seconds or 0.0 for node in roots),
        wall_seconds=wall_seconds(run),
        roots=roots,
        named=named_nodes(run),
    )


def _under(
    alike: Alike, kind: str, level: int, times: int, inside: list[Draft], headed: bool
) -> list[Draft]:
    """Put a heading over what ran on some ranks or in some steps, if there are several."""
    if not headed:
        return inside
    name = numbered(kind, alike.numbers)
    rows = [int(alike.first[0].rows[0])]
    return [
        Draft(
            kind, rows, level, times, len(alike.numbers), name=name, numbers=alike.numbers,
            sizes_vary=not alike.exact, children=inside,
        )
    ]  # fmt: skip


def _threads(run: Run, section: list[int], found: list[RankStep]) -> dict[int, list[int]]:
    """Return for each rank the threads of its forward pass, in the order in which they began."""
    threads: dict[int, dict[int, None]] = {}
    for stretch in found:
        tops = stretch.rows[run.parent_row[stretch.rows] < 0].tolist()
        mine = (int(run.thread[row]) for row in tops if section[row] == ENTRIES)
        threads.setdefault(stretch.rank, {}).update(dict.fromkeys(mine))
    return {rank: list(mine) for rank, mine in threads.items()}


def numbered(noun: str, numbers: tuple[int, ...]) -> str:
    """Return the numbers of ranks or steps as one name.

    >>> numbered("step", (3,)), numbered("rank", (0, 1, 2, 3)), numbered("step", (0, 10, 20, 30))
    ('step 3', 'ranks 0 … 3', 'steps 0, 10 … 30')
    """
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"{noun} {first}"
    if all(after - before == 1 for before, after in pairwise(numbers)):
        return f"{noun}s {first} … {last}"
    if len(numbers) <= 3:
        return f"{noun}s {', '.join(map(str, numbers))}"
    return f"{noun}s {first}, {numbers[1]} … {last}"


def _title(run: Run) -> str:
    """Return the name of the run, else the classes of its outermost modules."""
    c = run.columns
    tops = (c.kind == MODULE) & (run.parent_row < 0) & (run.phase != RECOMPUTE)
    roots = dict.fromkeys(c.modules[subject].cls for subject in c.subject[tops].tolist())
    none = "values alone" if run.level == "values" else "no module called"
    return str(run.environment.get("name") or ", ".join(roots) or none)


def wall_seconds(run: Run) -> float:
    """Return the time from the first event of a run to its end."""
    if not len(run):
        return 0.0
    last = max(int(run.columns.end.max()), int(run.start.max()))
    return (last - int(run.start.min())) / 1e9
