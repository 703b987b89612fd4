"""A comparison of ranks as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from clew.plain_text import plain

if TYPE_CHECKING:
    from clew.analysis.ranks.agreement import RankAgreement, RankDifference
    from clew.analysis.ranks.placements import Placement

ROWS = 12


def listed(ranks: Sequence[int]) -> str:
    """Return ranks as text.

    >>> listed([0, 1, 2, 5, 7, 8])
    'ranks 0–2, 5, 7, 8'
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    shown = ", ".join([*parts[:12], "…"] if len(parts) > 12 else parts)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}"


def agreement_lines(found: RankAgreement, rows: int | None, more: str) -> Iterator[str]:
    """Write the verdict, each difference, how tensors are placed, and notes."""
    yield plain(_verdict(found))
    differences = found.differences[: rows or None]
    for one in differences:
        yield plain(f"  {listed(one.ranks)}: {one.text}")
        for fact in one.facts:
            yield plain(f"    {fact}")
    yield from _left(len(found.differences) - len(differences), "differences", more)
    for end in found.ended:
        place = f" at {end.file}:{end.line}" if end.file else ""
        yield plain(
            f"rank {end.rank} was killed or still runs: its {end.events:,} events end in step "
            f"{end.step} with {end.op or 'nothing'}{place}; compared as far as that"
        )
    yield from _placements(found.placements, rows, more)
    for note in found.notes:
        yield plain(f"note: {note}")


def _verdict(found: RankAgreement) -> str:
    first = found.first
    if first is None:
        return f"{listed(found.ranks)} agree in all they should ({found.compared:,} tensors each)"
    where = _where(first)
    if not first.others:
        return f"{listed(first.ranks)} all differ{where}"
    if len(first.others) == len(first.ranks) == 1:
        return f"ranks {first.others[0]} and {first.ranks[0]} differ{where}"
    equal = "equal" if len(first.others) > 1 else "alone"
    wrong = listed(first.ranks).partition(" ")[2]
    differ = "differs" if len(first.ranks) == 1 else "differ"
    return f"{listed(first.others)} {equal}; {wrong} {differ}{where}"


def _where(one: RankDifference) -> str:
    """Return module or tensor, line and step where ranks differ first."""
    inside = one.module or one.name or one.op
    within = f" in {inside}" if inside else ""
    place = f" at {one.place}" if one.place else ""
    return f"{within}{place}, step {one.step}"


def _placements(placements: Sequence[Placement], rows: int | None, more: str) -> Iterator[str]:
    if not placements:
        return
    yield "placements:"
    shown = placements[: rows or None]
    width = max(len(one.name) for one in shown)
    looks = max(len(one.look) for one in shown)
    for one in shown:
        yield plain(f"  {one.name:<{width}}  {one.look:<{looks}}  {placed(one)}").rstrip()
    yield from _left(len(placements) - len(shown), "parameters and buffers", more)


def placed(one: Placement) -> str:
    """Return a placement as text."""
    text = one.placement
    if one.dim is not None:
        text += f" over dim {one.dim}, {_local(one)} each"
    if one.source == "inferred":
        text += " (inferred)"
    if one.norm is not None:
        text += f", norm of all shards {one.norm:.6g}"
    return text


def _local(one: Placement) -> str:
    return f"[{','.join(map(str, one.local or ()))}]"


def _left(count: int, what: str, more: str) -> Iterator[str]:
    if count > 0:
        yield f"  … {count:,} more {what}; {more}"
