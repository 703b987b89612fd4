"""Differences that need no tensor: ranks in another mode, and NaN that began on one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from clew.analysis.ranks.agreement import RankDifference
from clew.analysis.ranks.agreement_lines import listed
from clew.analysis.ranks.rank_facts import RankFacts
from clew.analysis.ranks.rank_reader import RankReader


def mode_difference(facts: Sequence[RankFacts]) -> Iterator[RankDifference]:
    """Find the first step that some ranks ran in another mode, train or eval, than most."""
    steps = sorted({step for one in facts for step in one.modes})
    for step in steps:
        modes = {one.rank: one.modes[step] for one in facts if step in one.modes}
        usual, _count = Counter(modes.values()).most_common(1)[0]
        wrong = tuple(rank for rank, mode in modes.items() if mode != usual)
        if wrong:
            mode = modes[wrong[0]]
            others = tuple(rank for rank, one in modes.items() if one == usual)
            text = f"ran step {step} in {mode} mode, and {listed(others)} in {usual} mode"
            yield RankDifference("mode", wrong, others, step, "", "", None, None, "", -1, -1, text,
                                 ())  # fmt: skip
            return


def nan_difference(reader: RankReader, facts: Sequence[RankFacts]) -> Iterator[RankDifference]:
    """Find the ranks that had NaN before any other rank, if it reached an optimizer."""
    having = [one for one in facts if one.nan is not None]
    if not having or not any(one.spread_nan for one in facts):
        return
    first = min(having, key=lambda one: (one.nan or (0, 0, 0))[2:0:-1])
    key = (first.nan or (0, 0, 0))[0]
    wrong = tuple(one.rank for one in having if one.nan is not None and one.nan[0] == key)
    others = tuple(one.rank for one in facts if one.rank not in wrong)
    if not others:
        return
    table = reader.read(first.rank)
    row = (first.nan or (0, 0, 0))[1]
    file, line = table.place(row)
    short = file.replace("\\", "/").rpartition("/")[2]
    op, step = table.names[row] or "", int(table.step[row])
    place = f" at {short}:{line}" if short else ""
    inside = f" in {table.modules[row]}" if table.modules[row] else ""
    text = (
        f"{op}{inside}{place}, step {step}: the first NaN of all ranks, which reached an optimizer"
    )
    yield RankDifference(
        "nonfinite", wrong, others, step, table.phases[row] or "", op, table.modules[row], None,
        short, line, int(table.id[row]), text, (),
    )  # fmt: skip
