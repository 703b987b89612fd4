"""Differences between what an engine tells and what is true, fact by fact."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.conformance.normalise import SeenOp
from tests.conformance.oracle import Outcome

# What is compared op by op, and the field it is in.
FIELDS = {
    "arguments": "arguments",
    "shapes": "inputs",
    "results of ops": "outputs",
    "producers": "producers",
    "lines": "line",
    "modules": "module",
    "phases": "phase",
    "raised": "error",
    "threads": "thread",
}


@dataclass(frozen=True)
class Difference:
    """One difference: `what` names it in the words of rules, `detail` shows both sides."""

    fact: str
    what: str
    detail: str


Key = tuple[Any, ...]
Pairs = list[tuple[int, int]]


def paired(true: list[Key], told: list[Key], fact: str) -> tuple[Pairs, list[Difference]]:
    """Which ops are the same in two lists; the ones that are missing (`-`) and extra (`+`).

    A key is the name of an op and what else it must have to be the same one.
    """
    pairs: Pairs = []
    found: list[Difference] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, true, told, autojunk=False).get_opcodes():
        if tag == "equal":
            pairs += zip(range(a, b), range(c, d), strict=True)
            continue
        detail = f"at op {a}: {true[a:b]} became {told[c:d]}"
        missing, extra = ([key[0] for key in keys] for keys in (true[a:b], told[c:d]))
        if missing == extra:
            found += [Difference(fact, f"shapes of {name}", detail) for name in missing]
            continue
        found += [Difference(fact, f"-{name}", detail) for name in missing]
        found += [Difference(fact, f"+{name}", detail) for name in extra]
    return pairs, found


def by_thread(ops: list[SeenOp]) -> list[SeenOp]:
    """The ops of each thread together, in the order in which the threads began."""
    threads = list(dict.fromkeys(op.thread for op in ops))
    return sorted(ops, key=lambda op: threads.index(op.thread))


def kernels(profiled: list[SeenOp], told: list[SeenOp]) -> list[Difference]:
    """Ops, and the shapes they ran on, that are not those of a run without any mode."""
    true, said = ([(op.name, _shaped(op)) for op in by_thread(ops)] for ops in (profiled, told))
    return paired(true, said, "kernels")[1]


# Of a list of tensors some of which may be None, the profiler tells nothing.
_UNTOLD = ("aten.index.Tensor", "aten.index_put_.default", "aten._index_put_impl_.default")


def _shaped(op: SeenOp) -> tuple[Any, ...]:
    """The tensors with dimensions: numbers come to some as tensors without."""
    return () if op.name in _UNTOLD else tuple(facts for facts in op.inputs if facts[1])


# The producer of a tensor, where the other list has no such op.
_ANOTHER = "another op"


def ops(witnessed: list[SeenOp], told: list[SeenOp]) -> Iterator[Difference]:
    """Everything about ops that is not as the witness saw it."""
    keys = ([(op.name, op.thread) for op in ops] for ops in (witnessed, told))
    pairs, found = paired(*keys, "ops")
    yield from found
    number = {b: a for a, b in pairs}
    true_ops, said_ops = {a for a, _ in pairs}, set(number)
    for a, b in pairs:
        for fact, field in FIELDS.items():
            true, said = getattr(witnessed[a], field), getattr(told[b], field)
            if fact == "producers":
                true = tuple(_ANOTHER if _is_missing(p, true_ops) else p for p in true)
                said = tuple(
                    _ANOTHER if _is_missing(p, said_ops) else number.get(p, p) for p in said
                )
            if true != said:
                yield Difference(fact, witnessed[a].name, f"op {a}: {true}, told {said}")


def _is_missing(producer: int | str | None, there: set[int]) -> bool:
    return isinstance(producer, int) and producer not in there


def outcomes(true: Outcome, left: Outcome) -> Iterator[Difference]:
    """Results and random states that are not those of the program alone."""
    if true.results != left.results:
        yield Difference("results", "bits", "")
    for name in true.rng:
        if true.rng[name] != left.rng[name]:
            yield Difference("rng", name, "")
