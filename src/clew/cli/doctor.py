"""`clew doctor`: versions, the engine that would record, why, and how to change it.

With a trace also what was not seen in it, why, and how to see it.
"""

from __future__ import annotations

import argparse
import platform
from importlib import metadata
from types import ModuleType
from typing import Any

import clew
from clew.cli.output import emit, within
from clew.cli.reading import Commands, add_plain_command, positive
from clew.native.loading import Loaded, loaded_tracing, wanted
from clew.plain_text import plain

_PACKAGES = ("torch", "numpy", "pyarrow")
_ROWS = 40


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = (
        "Exits with 1 if the native engine could be in use and is not; with a trace, if something "
        "was not seen in that; else with 0."
    )
    parser = add_plain_command(commands, "doctor", run, more)
    parser.add_argument("trace", metavar="TRACE", nargs="?", help="what was not seen in this one")
    rows = f"at most so many lines ({_ROWS})"
    parser.add_argument("--rows", type=positive, metavar="N", default=_ROWS, help=rows)


def run(args: argparse.Namespace) -> int:
    """Print the facts."""
    trace = None if args.trace is None else _of_trace(args.trace)
    facts = _facts()
    lines = _lines(facts)
    if trace is not None:
        facts["trace"] = trace
        lines += ["", *_trace_lines(trace)]
    shown = within(list(map(plain, lines)), args.rows, f"--rows {len(lines)}")
    emit(args, lambda: facts, lambda: "\n".join(shown))
    if trace is not None:
        return 1 if trace["coverage"] else 0
    return 0 if facts["state"] in _AS_WANTED else 1


def _of_trace(path: str) -> dict[str, Any]:
    """Return what recorded a trace, how much, and what it has not seen."""
    trace = clew.load(path)
    env = trace.env
    return {
        "path": path,
        **{name: env.get(name) for name in ("engine", "level", "values")},
        "events": len(trace),
        "coverage": [gap.to_dict() for gap in trace.coverage],
    }


def _trace_lines(trace: dict[str, Any]) -> list[str]:
    how = ", ".join(str(trace[name]) for name in ("engine", "level", "values") if trace[name])
    lines = [f"trace      {trace['path']}: {trace['events']:,} events ({how})"]
    if not trace["coverage"]:
        return [*lines, "not seen   nothing that Clew knows of"]
    for gap in trace["coverage"]:
        where = f" ({gap['where']})" if gap["where"] else ""
        lines += [f"not seen   {gap['what']}{where}: {gap['why']}"]
        lines += [f"  to see   {gap['remedy']}"] if gap["remedy"] else []
    return lines


# Native; or python because that was chosen, or because there is nothing else here.
_AS_WANTED = ("loaded", "disabled", "unsupported", "no torch")


def _facts() -> dict[str, Any]:
    found, tracing = wanted(), loaded_tracing()
    engine = "python" if found.module is None else "native"
    return {
        "clew": clew.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "engine": None if found.state == "no torch" else engine,
        "state": found.state,
        "reason": found.reason or None,
        "change": found.remedy or ("CLEW_ENGINE=python" if engine == "native" else None),
        "library": None if found.path is None else str(found.path),
        "processor": _instructions(found.module),
        "watch": _watch_facts(tracing),
    }


def _watch_facts(tracing: Loaded) -> dict[str, str] | None:
    """Return what `clew.watch` uses; None where Python has `sys.monitoring` for it, or if off."""
    if tracing.state in ("unsupported", "disabled"):
        return None
    if tracing.module is None:
        return {"engine": "python", "reason": tracing.reason}
    return {"engine": "native", "library": str(tracing.path)}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _instructions(module: ModuleType | None) -> list[str] | None:
    """Return which of the processor's vector instructions the engine uses, if it says so."""
    asked = getattr(module, "features", None) or getattr(module, "instruction_set", None)
    if asked is None:
        return None
    found = asked()
    if isinstance(found, dict):
        return [str(name) for name, there in found.items() if there]
    return [found] if isinstance(found, str) else [str(name) for name in found]


def _lines(facts: dict[str, Any]) -> list[str]:
    versions = [f"{name} {facts[name] or 'not installed'}" for name in ("python", *_PACKAGES)]
    engines = {
        "native": f"native, from {facts['library']}",
        "python": f"python; the native engine is not in use: {facts['reason']}",
        None: f"none, as nothing can be recorded: {facts['reason']}",
    }
    lines = [
        f"clew       {facts['clew']}",
        f"with       {', '.join(versions)}",
        f"engine     {engines[facts['engine']]}",
    ]
    if facts["change"]:
        lines.append(f"to change  {facts['change']}")
    if facts["processor"] is not None:
        lines.append(f"processor  {', '.join(facts['processor']) or 'no vector instructions'}")
    watch = facts["watch"]
    if watch is not None:
        how = f"from {watch['library']}" if "library" in watch else watch["reason"]
        lines.append(f"watch      {watch['engine']}, {how}")
    return lines
