"""Faults that were raised elsewhere and passed on: in DataLoader workers, by the compiler."""

from __future__ import annotations

import re

from clew.analysis.crashes.cause import Cause
from clew.analysis.crashes.scene import Scene
from clew.analysis.file_names import bare_name

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in ([^\n]+)\n\s*([^\n]*)')
_SAMPLE = re.compile(r"clew: worker \d+, sample (?P<sample>[^\s:]+)(?: of (?P<dataset>[\w.]+))?")
_RAGGED = re.compile(r"^clew: ((?:sample|entry) \d+ [^\n]+)", re.MULTILINE)
# Code that stands between a worker and the dataset, and above what a user wrote.
_MACHINERY = ("/torch/", "\\torch\\", "/clew/observe/", "\\clew\\observe\\")


def worker_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which worker raised, on which sample of which dataset, and at which line."""
    says = [f"{match['cls']} in DataLoader worker {match['worker']}"]
    sample = _SAMPLE.search(scene.text)
    if sample is not None:
        whose = "" if sample["dataset"] is None else f" of {sample['dataset']}"
        says[0] += f", sample {sample['sample']}{whose}"
    says += _RAGGED.findall(scene.text)[:1]
    frames = _FRAME.findall(scene.text)
    own = [frame for frame in frames if not any(part in frame[0] for part in _MACHINERY)]
    says += [_line(frame) for frame in own[-1:]]
    return Cause(tuple(says))


def batch_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which sample of a batch has another shape, where this process made the batch."""
    return Cause((scene.facts.batch,)) if scene.facts.batch else None


def compiler_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which line of the user the compiler could not run."""
    frames = _FRAME.findall(scene.text[match.end() :])
    own = [frame for frame in frames if not any(part in frame[0] for part in _MACHINERY)]
    says = [f"torch.compile was working on {_line(frame)}" for frame in own[-1:]]
    return Cause(tuple(says))


def region_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell how to see inside a compiled region that failed."""
    if scene.event is None or scene.event.name != "compiled":
        return None
    return Cause(("a compiled region: clew.trace(compiled='eager') names the op in it",))


def _line(frame: tuple[str, str, str, str]) -> str:
    file, line, function, text = frame
    shown = f": {text}" if text and not text.startswith("File ") else ""
    return f"{bare_name(file)}:{line} in {function}{shown}"
