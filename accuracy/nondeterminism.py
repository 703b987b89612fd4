"""Run programs that differ from run to run; count for how many line and cause are named.

Programs of `unsteady` and `steady` run in this process; those below run in processes of their own,
by `clew determinism script.py`, as what they depend on is settled when Python starts.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clew
from accuracy import steady
from accuracy.unsteady import MADE, SOURCES, Source
from clew.cli.main import main

# Memory and threads may do the same by chance.
_RUNS = 4
_SCRIPT_HEAD = "import torch\nfrom torch import nn\n"
SCRIPTS = {
    "no-seed": """
        model = nn.Linear(8, 8)  # differs: no-seed
        print(model(torch.ones(2, 8)).sum().item())
    """,
    "hash-order": """
        torch.manual_seed(0)
        table = nn.Embedding(64, 8)
        words = set("the quick brown fox jumps over a lazy dog and then sleeps".split())
        index = {word: at for at, word in enumerate(words)}
        rows = torch.tensor([index[word] for word in ("quick", "dog")])  # differs: hash-order
        print(table(rows).sum().item())
    """,
    "hash-seed": """
        torch.manual_seed(hash("experiment") % 2**31)
        drawn = torch.randn(8, 8)  # differs: hash-seed
        print(drawn.sum().item())
    """,
}
STEADY_SCRIPTS = {
    "sorted-words": """
        torch.manual_seed(0)
        table = nn.Embedding(64, 8)
        words = sorted(set("the quick brown fox jumps over a lazy dog".split()))
        index = {word: at for at, word in enumerate(words)}
        rows = torch.tensor([index[word] for word in ("quick", "dog", "fox", "lazy", "over", "a")])
        print(table(rows).sum().item())
    """,
}
# What is right for a script: kinds of answers, and a word of the evidence.
_SCRIPT_ANSWERS = {
    "no-seed": (("wrong",), "seed"), "hash-order": (("inputs",), "inputs differ"),
    "hash-seed": (("wrong",), "seed"),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What was answered about one program: the kind and line of the answer, and its evidence."""

    name: str
    kind: str
    line: bool
    cause: bool
    text: str

    @property
    def is_right(self) -> bool:
        """Return whether the answer has the line and the cause."""
        return bool(self.kind) and self.line and self.cause


def outcome(source: Source) -> Outcome:
    """Run one program that differs, and judge the answer."""
    name, program, kinds, word = source
    found = clew.determinism(program() if program in MADE else program, n=_RUNS)
    first = found.first
    if first is None:
        return Outcome(name, "", False, False, "no difference found")
    event = first.b or first.a
    line = "" if event is None or event.source is None else event.source.text
    said = " ".join(first.evidence)
    return Outcome(name, first.kind, _is_marked(line, name), first.kind in kinds and word in said,
                   str(found))  # fmt: skip


def _is_marked(line: str, name: str) -> bool:
    return bool(re.search(rf"# differs: {re.escape(name)}\b", line))


def script_outcome(name: str, script: str) -> Outcome:
    """Run one script by `clew determinism`, and judge the answer; kind is empty for none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program.py")
        path.write_text(_SCRIPT_HEAD + textwrap.dedent(script))
        with (
            contextlib.redirect_stdout(io.StringIO()) as printed,
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stderr(nowhere),
        ):
            main(["determinism", "--json", str(path)])
    answer: dict[str, Any] = json.loads(printed.getvalue())
    first = answer["first"]
    if first is None:
        return Outcome(name, "", False, False, "no difference found")
    kinds, word = _SCRIPT_ANSWERS.get(name, ((), ""))
    said = " ".join(first["evidence"])
    line = ((first["b"] or first["a"])["source"] or {}).get("text", "")
    return Outcome(name, first["kind"], _is_marked(line, name), first["kind"] in kinds
                   and word in said, said)  # fmt: skip


def outcomes(sources: Iterable[Source] = SOURCES) -> Iterator[Outcome]:
    """Run programs that differ."""
    return map(outcome, sources)


def false_alarms(programs: Iterable[Callable[[], Any]] = steady.STEADY) -> list[str]:
    """Return what was said of programs that do the same in each run."""
    found = ((program, clew.determinism(program, n=_RUNS)) for program in programs)
    return [f"{program.__name__}: {answer}" for program, answer in found if not answer.equal]


def report(engine: str, verbose: bool = False) -> str:
    """Write hit rates, and below them each miss and each false alarm."""
    found = [*outcomes(), *(script_outcome(name, script) for name, script in SCRIPTS.items())]
    alarms = false_alarms()
    alarms += [one.text for name, script in STEADY_SCRIPTS.items()
               if (one := script_outcome(name, script)).kind]  # fmt: skip
    count = len(found)
    rates = ", ".join(
        f"{what} {100 * sum(map(is_right, found)) / count:.0f} %"
        for what, is_right in (
            ("noticed", lambda one: bool(one.kind)), ("line", lambda one: one.line),
            ("cause", lambda one: one.cause),
        )
    )  # fmt: skip
    clean = len(steady.STEADY) + len(STEADY_SCRIPTS)
    lines = [f"determinism, {engine} engine: {count} sources: {rates}; "
             f"{len(alarms)} false alarms in {clean} programs"]  # fmt: skip
    for one in found:
        if not one.is_right:
            lines.append(
                f"  {one.name}: {one.kind or 'missed'}, line {one.line}, cause {one.cause}"
            )
            lines += [f"    {line}" for line in one.text.splitlines()] if verbose else []
    return "\n".join([*lines, *(f"  false alarm: {alarm}" for alarm in alarms)])
