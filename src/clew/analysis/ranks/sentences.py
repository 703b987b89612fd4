"""What went wrong on some ranks, in words."""

from __future__ import annotations

from dataclasses import replace

from clew.analysis.ranks.agreement import RankDifference
from clew.analysis.ranks.rank_causes import RankCause
from clew.analysis.ranks.rank_facts import OPTIMIZER
from clew.analysis.ranks.rank_table import RankTable

_ADVICE = {
    "random": "give these ranks one seed, and let them draw equally often before",
    "gradient": "let every rank reduce its gradients before the optimizer uses them",
}


def difference_of(
    cause: RankCause, table: RankTable, ranks: tuple[int, ...], others: tuple[int, ...]
) -> RankDifference:
    """Describe a cause; `table` is that of the rank which has its row."""
    row = cause.row
    file, line = table.place(row)
    op = table.names[row] or ""
    found = RankDifference(
        kind=cause.kind, ranks=ranks, others=others, step=int(table.step[row]),
        phase=table.phases[row] or "", op=op, module=table.modules[row],
        name=cause.name, file=file.replace("\\", "/").rpartition("/")[2], line=line,
        event=int(table.id[row]), text="", facts=cause.facts,
    )  # fmt: skip
    return replace(found, text=_sentence(found, cause))


def _sentence(one: RankDifference, cause: RankCause) -> str:
    where = _where(one)
    what = one.name or "a tensor"
    if one.kind == "op":
        return f"{where}: took the same as on the other ranks and gave another {_result(one)}"
    if one.kind == "arguments":
        return f"{where}: took other arguments than on the other ranks"
    if one.kind == "random":
        return f"{where}: drew other random numbers; {_ADVICE['random']}"
    if one.kind == "input" and not cause.is_named:
        changed = f"; {one.name} differs since" if one.name else ""
        return f"a tensor that {where} took came in differing{changed}"
    if one.kind == "input":
        return (f"{what} came in differing, first used by {where}; "
                "nothing that was recorded wrote it")  # fmt: skip
    if one.kind == "gradient":
        return (
            f"the gradient of {what} was not reduced: it is that of {where}; {_ADVICE['gradient']}"
        )
    if one.kind == "collective":
        if cause.usual:
            return f"did not join {where}; {what} differs since"
        return f"{where}: what it gave differs between ranks that should have the same"
    if one.kind == "order":
        return f"{where}: took the tensors of the other ranks in another order"
    if one.kind == "missing":
        skipped = f", so the update of {what} was skipped" if one.phase == OPTIMIZER else ""
        return f"did not run {where}, as the other ranks did{skipped}"
    if one.kind == "extra":
        changed = f", which changed {what}" if one.name else ""
        return f"ran {where} besides, as no other rank did{changed}"
    return f"{where}: gave another dtype than on the other ranks"


def _result(one: RankDifference) -> str:
    return one.name or "result"


def _where(one: RankDifference) -> str:
    """Return op, module, line, step and phase of a difference."""
    parts = [one.op]
    if one.module:
        parts.append(f"in {one.module}")
    if one.file:
        parts.append(f"at {one.file}:{one.line}")
    phase = f" ({one.phase})" if one.phase and one.phase != "forward" else ""
    return f"{' '.join(parts)}, step {one.step}{phase}"
