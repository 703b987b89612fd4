"""What collectives of `torch.distributed` write has versions of its own, with true statistics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import answers

pytestmark = pytest.mark.slow

# What was taken and what was used afterwards: who made it, and its mean; and faults.
COMMON = """
warnings.simplefilter("ignore")

def mean(value):
    return None if value.stats is None else float(value.stats.mean)

def found(t, collective, argument="0.0"):
    written = next(op for op in t.ops if op.name.startswith(f"c10d.{collective}"))
    used = next(op for op in t.ops if op.name == "aten.neg.default")
    value = used.inputs["0"]
    faults = [gap.why for gap in t.coverage if "Clew failed" in gap.why]
    return [mean(written.inputs[argument]), value.producer.name, mean(value), faults]

x = torch.full((4,), 1.0 + rank)
"""

PROGRAMS = {
    "all_reduce": (
        """
with clew.trace(values="stats") as t:
    dist.all_reduce(x)
    x.neg()
answer = found(t, "allreduce_")
""",
        [[1.0, "c10d.allreduce_.default", 3.0, []], [2.0, "c10d.allreduce_.default", 3.0, []]],
    ),
    "not_waited_for": (
        """
with clew.trace(values="stats") as t:
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    x.neg()
answer = found(t, "allreduce_")
""",
        [[1.0, "c10d.allreduce_.default", 3.0, []], [2.0, "c10d.allreduce_.default", 3.0, []]],
    ),
    "a_view": (
        """
whole = torch.zeros(2, 4)
with clew.trace(values="stats") as t:
    whole[1].fill_(1.0 + rank)
    row = whole[1]
    dist.all_reduce(row)
    row.neg()
answer = found(t, "allreduce_")
""",
        [[1.0, "c10d.allreduce_.default", 3.0, []], [2.0, "c10d.allreduce_.default", 3.0, []]],
    ),
    "broadcast": (
        """
with clew.trace(values="stats") as t:
    dist.broadcast(x, 1)
    x.neg()
answer = found(t, "broadcast_")
""",
        [[1.0, "c10d.broadcast_.default", 2.0, []], [2.0, "c10d.broadcast_.default", 2.0, []]],
    ),
    "all_gather": (
        """
parts = [torch.zeros(4) for _ in range(size)]
with clew.trace(values="stats") as t:
    dist.all_gather(parts, x)
    parts[1].neg()
answer = found(t, "allgather_", "1.0")
""",
        [[1.0, "c10d.allgather_.default", 2.0, []], [2.0, "c10d.allgather_.default", 2.0, []]],
    ),
    "without_values": (
        """
with clew.trace() as t:
    dist.all_reduce(x)
    x.neg()
answer = found(t, "allreduce_")
""",
        [[None, "c10d.allreduce_.default", None, []]] * 2,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_collective_wrote_is_a_new_value(name: str, tmp_path: Path) -> None:
    program, expected = PROGRAMS[name]
    assert answers(COMMON + program, 2, tmp_path) == expected
