"""Every call that reads a trace, listed once: what a stranger's files must neither break nor bloat.

Each takes a trace that was just loaded and a folder to write into. They need no torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clew
from clew.views.export.formats import FORMATS

# Stacks asked for: one is as deep as the program was, so that all of them may be any number.
_STACKS = 100
# Tensors whose shapes are asked about: a chain may go through all of the run.
_CHAINS = 4


def walk(t: clew.Trace, folder: Path) -> None:
    """Every fact of every event and value, but for data."""
    for number, event in enumerate(t.events):
        _ = event.source, event.arguments, event.forward, event.parent, event.module
        _ = repr(event), event.address, event.duration, event.error, event.thread, event.prefix
        if number < _STACKS:
            _ = event.stack
        for value in (*event.inputs.values(), *event.outputs.values()):
            _ = value.stats, value.producer, repr(value)


def data(t: clew.Trace, folder: Path) -> None:
    """The data of every value that has some, as text and as an array."""
    for event in t.events:
        for value in event.outputs.values():
            str(value)
            with contextlib.suppress(clew.ClewError):
                value.array()
            with contextlib.suppress(clew.ClewError):
                _ = value.fingerprint


def facts(t: clew.Trace, folder: Path) -> None:
    """Everything that is about the whole run."""
    _ = t.coverage, t.crash, t.steps, t.modes, t.ranks, t.env, repr(t), len(t)
    _ = len(t.modules), len(t.ops), len(t.variables)


def findings(t: clew.Trace, folder: Path) -> None:
    """What to read first."""
    _ = [finding.to_dict() for finding in t.findings], t.nonfinite()


def ranks(t: clew.Trace, folder: Path) -> None:
    """Which ranks disagree."""
    found = clew.ranks(t)
    _ = str(found), repr(found), found.to_dict()


def health(t: clew.Trace, folder: Path) -> None:
    """Every rule about training and data."""
    found = t.health()
    _ = str(found), repr(found), found.to_dict()


def shapes(t: clew.Trace, folder: Path) -> None:
    """Where the dimensions of some tensors come from."""
    for event in (*t.modules[-_CHAINS:], *t.ops[-_CHAINS:]):
        for dim in range(3):
            with contextlib.suppress(clew.ClewError):
                chain = t.why_shape(event.address, dim)
                _ = str(chain), chain.to_dict()


def compared(t: clew.Trace, folder: Path) -> None:
    """The run with itself."""
    with contextlib.suppress(clew.ClewError):
        found = clew.diff(t, t)
        _ = str(found), found.to_dict()
        found.html(folder / "difference.html")


def memory(t: clew.Trace, folder: Path) -> None:
    """Where the memory went."""
    found = t.memory()
    _ = str(found), found.to_dict(), repr(found)
    for step in t.steps[:2] if found.devices else ():
        with contextlib.suppress(clew.ClewError):
            _ = str(found.at(step))


def addresses(t: clew.Trace, folder: Path) -> None:
    """Selections, searches and series."""
    for address in ("", "op:*", "**", "fc:grad", "line:a.py:3"):
        with contextlib.suppress(clew.ClewError):
            _ = len(t[address])
        with contextlib.suppress(clew.ClewError):
            _ = t.series(address).steps
    with contextlib.suppress(clew.ClewError):
        t.find("linear")


def only(t: clew.Trace, folder: Path) -> None:
    """A part of the run."""
    for wish in ({"rank": t.ranks[:1]}, {"step": t.steps[:1]}, {"phase": "forward"}):
        with contextlib.suppress(clew.ClewError):
            str(t.only(**wish))  # type: ignore[arg-type]


def recover(t: clew.Trace, folder: Path) -> None:
    """Save, tear the end off, seal what is left."""
    from clew.store.write.recovery import recover as seal

    path = Path(t.save(folder / "torn.clew"))
    seal(path)
    str(clew.load(path))


def _export(fmt: str) -> Callable[[clew.Trace, Path], Any]:
    return lambda t, folder: t.export(fmt, folder / f"exported.{fmt}", exist="replace")


CALLS: dict[str, Callable[[clew.Trace, Path], Any]] = {
    "len": lambda t, folder: len(t.events),
    "walk": walk,
    "data": data,
    "facts": facts,
    "findings": findings,
    "health": health,
    "ranks": ranks,
    "shapes": shapes,
    "compared": compared,
    "memory": memory,
    "addresses": addresses,
    "only": only,
    "tree": lambda t, folder: str(t),
    "code": lambda t, folder: str(t.code()),
    "table": lambda t, folder: str(t.table()),
    "graph": lambda t, folder: t.graph().svg(folder / "graph.svg"),
    "dict": lambda t, folder: t.to_dict(),
    "pandas": lambda t, folder: t.to_pandas(),
    "html": lambda t, folder: t.html(folder / "page.html"),
    "save": lambda t, folder: t.save(folder / "saved.clew"),
    "recover": recover,
    # The format of torch's own needs torch.
    **{f"export {fmt}": _export(fmt) for fmt in FORMATS if fmt != "pt"},
}
