"""Count which faults planted on one rank `clew.ranks` finds, and what it says of clean runs."""

from __future__ import annotations

import inspect
import multiprocessing
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import clew
from accuracy import rank_programs as programs
from accuracy.rank_programs import Setting, run_rank

Program = Callable[[Setting], None]


@dataclass(frozen=True)
class RankFault:
    """A fault on the rank `bad` of several (-1: on all), and what must be said of it.

    `kind` may be one of several words, `step` is the first that is wrong, `about` the parameter,
    module or op, `line` the mark of the line, `says` a text that must be there.
    """

    name: str
    program: Program
    size: int
    fault: str
    bad: int
    kind: str
    step: int
    about: str = ""
    line: str = ""
    says: str = ""


@dataclass(frozen=True)
class Told:
    """What was said of a run."""

    name: str
    is_right: bool
    said: str


FAULTS = [
    RankFault("a weight changed after the start", programs.data_parallel, 4, "weight", 3, "input",
              0, "0.fc1.weight"),
    RankFault("the same on 8 ranks", programs.data_parallel, 8, "weight", 5, "input", 0,
              "0.fc1.weight"),
    RankFault("the same on 2 ranks", programs.data_parallel, 2, "weight", 1, "input", 0,
              "0.fc1.weight"),
    RankFault("the same on rank 0", programs.data_parallel, 4, "weight", 0, "input", 0,
              "0.fc1.weight"),
    RankFault("the same without DDP", programs.by_hand, 2, "weight", 1, "input", 0,
              "0.fc1.weight"),
    RankFault("a buffer that was not broadcast", programs.data_parallel, 4, "buffer", 2, "input", 0,
              "0.scale"),
    RankFault("no_sync on one rank", programs.data_parallel, 2, "no-sync", 1, "collective", 1,
              "allreduce", "no-sync"),
    RankFault("another learning rate", programs.data_parallel, 4, "lr", 1, "arguments", 0,
              line="lr", says="lr is 0.02 instead of 0.01"),
    RankFault("another weight decay", programs.data_parallel, 4, "decay", 3, "arguments", 0,
              line="decay", says="weight_decay is 0.1 instead of 0.01"),
    RankFault("autocast on one rank", programs.data_parallel, 4, "autocast", 2, "dtype", 0,
              says="bfloat16 instead of float32"),
    RankFault("a skipped step", programs.data_parallel, 4, "skip", 3, "missing", 1, line="skip"),
    RankFault("a skipped step on 8 ranks", programs.data_parallel, 8, "skip", 6, "missing", 1,
              line="skip"),
    RankFault("a hook that scales gradients", programs.data_parallel, 4, "hook", 3, "extra", 0,
              line="hook"),
    RankFault("a stale parameter", programs.data_parallel, 4, "stale", 1, "extra", 2,
              "0.fc2.weight", "stale"),
    RankFault("one rank in eval mode", programs.data_parallel, 4, "eval", 3, "mode", 0),
    RankFault("NaN in the data of one rank", programs.data_parallel, 4, "nan", 2, "nonfinite", 1,
              "0.fc1"),
    RankFault("gradients divided twice", programs.by_hand, 4, "twice", 2, "extra", 0,
              line="twice"),
    RankFault("a gradient that nobody reduces", programs.by_hand, 4, "forgotten", -1, "gradient", 0,
              "1.fc2.bias"),
    RankFault("another momentum", programs.by_hand, 4, "momentum", 3, "input", 0, "0.fc1.weight",
              "momentum"),
    RankFault("another learning rate of a shard", programs.fully_sharded, 4, "lr", 2, "arguments",
              0, line="sharded-lr", says="lr is 0.02 instead of 0.01"),
    RankFault("dropout with other seeds", programs.tensor_parallel, 4, "seed", 1, "random", 0,
              "0.drop"),
    RankFault("the same on 2 ranks", programs.tensor_parallel, 2, "seed", 1, "random", 0,
              "0.drop"),
    RankFault("another norm", programs.tensor_parallel, 4, "norm", 3, "input", 0, "1.norm.weight"),
    RankFault("a processor that computes wrongly", programs.tensor_parallel, 4, "corrupt", 2, "op",
              0, "0.norm", "corrupt"),
    RankFault("a shard of one pair of ranks", programs.mesh_parallel, 4, "shard", 2, "input", 0,
              "0.fc1.weight"),
    RankFault("parts in another order", programs.gathered, 4, "order", 3, "order collective", 0,
              line="order"),
]  # fmt: skip

CLEAN: list[tuple[str, Program, int]] = [
    ("DDP with batch norm", programs.data_parallel, 2),
    ("DDP with batch norm", programs.data_parallel, 4),
    ("DDP with batch norm", programs.data_parallel, 8),
    ("DDP that accumulates, last batch smaller", programs.accumulating, 4),
    ("DDP in bfloat16 with branches", programs.branching, 4),
    ("averaged by hand", programs.by_hand, 2),
    ("averaged by hand", programs.by_hand, 4),
    ("ZeroRedundancyOptimizer", programs.zero_redundancy, 4),
    ("FSDP2", programs.fully_sharded, 2),
    ("FSDP2", programs.fully_sharded, 4),
    ("FSDP2", programs.fully_sharded, 8),
    ("tensor parallel", programs.tensor_parallel, 2),
    ("tensor parallel", programs.tensor_parallel, 4),
    ("data and tensor parallel", programs.mesh_parallel, 4),
    ("gathered by hand", programs.gathered, 4),
    ("pipeline", programs.pipeline, 2),
]


def record(
    program: Program, size: int, fault: str, bad: int, folder: Path, engine: str = "python"
) -> Path:
    """Run a program on several processes; return the trace that they wrote."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["accuracy.rank_programs"])
    out = folder / "run.clew"
    meeting = str(folder / "meeting")
    ranks = [
        context.Process(target=run_rank,
                        args=(program, rank, size, fault, bad, str(out), meeting, engine))
        for rank in range(size)
    ]  # fmt: skip
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    failed = [at for at, rank in enumerate(ranks) if rank.exitcode]
    if failed:
        raise RuntimeError(f"ranks {failed} of {program.__name__} ({fault}) failed")
    return out


def told(engine: str, faults: Iterable[RankFault] = FAULTS) -> Iterator[Told]:
    """Run planted faults, and ask where the ranks disagree."""
    for one in faults:
        with tempfile.TemporaryDirectory() as folder:
            out = record(one.program, one.size, one.fault, one.bad, Path(folder), engine)
            found = clew.ranks(out)
        name = f"{one.name} ({one.program.__name__}, {one.size} ranks)"
        wrong = missed(one, found)
        yield Told(name, not wrong, f"{wrong or 'right'}: {found.text(3)}")


def missed(fault: RankFault, found: clew.RankAgreement) -> str:
    """Return what was not said of a fault, empty if all was."""
    first = found.first
    if first is None:
        return "found nothing"
    ranks = tuple(range(fault.size)) if fault.bad < 0 else (fault.bad,)
    # Of two ranks none is known to be right.
    if fault.size > 2 and first.ranks != ranks:
        return f"ranks {first.ranks}, not {ranks}"
    if first.kind not in fault.kind.split() or first.step != fault.step:
        return f"{first.kind} in step {first.step}, not {fault.kind} in step {fault.step}"
    about = f"{first.name} {first.module} {first.op}"
    if fault.about not in about:
        return f"about {about}, not {fault.about}"
    if fault.line and first.line not in marked(fault.line):
        return f"at line {first.line}, not {marked(fault.line)}"
    if not any(fault.says in text for text in (first.text, *first.facts)):
        return f"did not say {fault.says!r}"
    return ""


def marked(name: str) -> list[int]:
    """Return the numbers of the lines that carry a mark."""
    found = [
        number
        for number, text in enumerate(inspect.getsource(programs).splitlines(), 1)
        if re.search(rf"# fault:(.*,)? {re.escape(name)}(,|$)", text)
    ]
    assert found, f"no line is marked with {name}"
    return found


def alarms(engine: str) -> Iterator[Told]:
    """Run clean programs; what is said of them is wrong."""
    for name, program, size in CLEAN:
        with tempfile.TemporaryDirectory() as folder:
            found = clew.ranks(record(program, size, "", -1, Path(folder), engine))
        yield Told(f"{name} ({size} ranks)", found.equal, found.text(3))


def report(engine: str, verbose: bool) -> str:
    """Write how many faults were found with rank, step, cause and place, and false alarms."""
    results, clean = list(told(engine)), list(alarms(engine))
    hits, false = sum(one.is_right for one in results), [one for one in clean if not one.is_right]
    lines = [f"ranks, {engine} engine: {hits} of {len(results)} planted faults found"]
    for one in results:
        if verbose or not one.is_right:
            lines.append(f"  {'' if one.is_right else 'missed '}{one.name}: {one.said}")
    lines.append(f"  false alarms: {len(false)} of {len(clean)} clean runs")
    lines += [f"    {one.name}: {one.said}" for one in (clean if verbose else false)]
    return "\n".join(lines)
