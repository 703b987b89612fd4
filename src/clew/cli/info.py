"""`clew info`: findings of a trace first, then its environment, ranks and counts."""

from __future__ import annotations

import argparse
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import clew
from clew import store, views
from clew.cli.output import emit, within
from clew.cli.reading import Commands, add_command, positive
from clew.plain_text import plain
from clew.store.storage import storage_of

if TYPE_CHECKING:
    from clew.run.event import Event
    from clew.traces import Trace

_ROWS = 40
_MOST_RANKS = 1_000_000
_BRIEF = ("clew", "python", "torch", "platform")


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = "Exits with 0 whatever it finds: a crash, NaN and gaps in the coverage are part of it."
    parser = add_command(commands, "info", run, more)
    parser.add_argument(
        "--rows", type=positive, metavar="N", default=_ROWS, help=f"at most so many lines ({_ROWS})"
    )


def run(args: argparse.Namespace) -> int:
    """Print the facts."""
    facts = _facts(args.trace, clew.load(args.trace))

    def text() -> str:
        lines = list(map(plain, _lines(facts)))
        return views.style_for().finish("\n".join(within(lines, args.rows, f"--rows {len(lines)}")))

    emit(args, lambda: facts, text)
    return 0


def _facts(path: str, trace: Trace) -> dict[str, object]:
    ranks = [_rank_facts(trace.only(rank=rank)) for rank in trace.ranks]
    kinds: Counter[str] = Counter()
    for rank in ranks:
        kinds.update(rank["kinds"])
    manifest, files = _contents(path)
    return {
        "path": path,
        "findings": [finding.to_dict() for finding in trace.findings],
        "environment": trace.env,
        "world_size": manifest.get("world_size"),
        "ranks": ranks,
        "steps": trace.steps,
        "modes": dict(Counter(trace.modes[s] for s in trace.steps if s in trace.modes)),
        "events": len(trace),
        "kinds": dict(kinds),
        "files": len(files),
        "bytes": sum(files.values()),
        "unsealed": sorted(name for name in files if name.endswith((".arrows", ".open"))),
        "crash": _crash(trace),
        "coverage": [gap.to_dict() for gap in trace.coverage],
    }


def _rank_facts(trace: Trace) -> dict[str, Any]:
    """Return what one rank holds."""
    return {
        "rank": trace.ranks[0],
        "events": len(trace),
        "kinds": trace._current_run().kinds,
        "steps": trace.steps,
        "crash": trace.env.get("crash"),
    }


def _contents(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the manifest of a trace, and the sizes of its files."""
    storage = storage_of(path)
    return store.read_manifest(storage), storage.sizes()


def _modes(modes: dict[str, int]) -> str:
    """Write how many steps have each mode, if there are both."""
    return f" ({', '.join(f'{n} {mode}' for mode, n in modes.items())})" if len(modes) > 1 else ""


def _crash(trace: Trace) -> dict[str, Any] | None:
    crash = trace.crash
    if crash is None:
        return None
    event = crash.event
    return {
        "exception": crash.exception,
        "note": crash.note,
        "event": None if event is None else event.address,
        "rank": None if event is None else event.rank,
        "source": None if event is None else _place(event),
    }


def _place(event: Event) -> str | None:
    source = event.source
    return None if source is None else f"{source.file}:{source.line}"


def _lines(facts: dict[str, Any]) -> list[str]:
    counted = views.counted
    env = facts["environment"]
    kinds = ", ".join(counted(n, _NOUNS.get(kind, kind)) for kind, n in facts["kinds"].items())
    lines = [
        str(facts["path"]) + (f"  ({env['name']})" if env.get("name") else ""),
        *_finding_lines(facts["findings"]),
        f"recorded  {_time(env)}, level={env.get('level')!r}, values={env.get('values')!r}",
        "with      " + ", ".join(f"{name} {env[name]}" for name in _BRIEF if env.get(name)),
        f"ranks     {_ranks(facts)}",
        f"steps     {_steps(facts['steps'])}" + _modes(facts["modes"]),
        f"events    {facts['events']:,}" + (f": {kinds}" if kinds else ""),
        f"on disk   {views.bytes_text(facts['bytes'])} in {counted(facts['files'], 'file')}",
    ]
    if facts["unsealed"]:
        open_files = counted(len(facts["unsealed"]), "file")
        lines.append(
            f"unsealed  {open_files}: still being written, or left by a kill; "
            f"`clew recover {facts['path']}` seals them"
        )
    lines += _crash_lines(facts)
    gaps = facts["coverage"]
    lines.append(f"coverage  {counted(len(gaps), 'gap')}" if gaps else "coverage  nothing missed")
    for gap in gaps:
        place = f" at {gap['where']}" if gap["where"] else ""
        lines.append(f"  {gap['what']}{place}: {gap['why']}; {gap['remedy']}")
    if len(facts["ranks"]) > 1:
        lines += ["each rank", *map(_rank_line, facts["ranks"])]
    return lines


def _finding_lines(findings: list[dict[str, Any]]) -> list[str]:
    if not findings:
        return ["findings  none: no crash, no NaN or Inf, nothing missed"]
    lines = [views.signed(found["severity"], found["text"]) for found in findings]
    return [f"findings  {len(lines)}", *(f"  {line}" for line in lines)]


_NOUNS = {"module": "module call", "step": "step mark"}


def _crash_lines(facts: dict[str, Any]) -> list[str]:
    crash = facts["crash"]
    if crash is None:
        return ["crash     none"]
    several = len(facts["ranks"]) > 1 and crash["rank"] is not None
    where = f" (rank {crash['rank']})" if several else ""
    first, *rest = str(crash["exception"]).splitlines() or [""]
    return [f"crash     {first}{where}", *(f"  {line}" for line in [*rest, *_note(crash)])]


def _note(crash: dict[str, Any]) -> list[str]:
    return str(crash["note"]).splitlines()


def _rank_line(rank: dict[str, Any]) -> str:
    crash = f", ended by {str(rank['crash']).splitlines()[0]}" if rank["crash"] else ""
    steps = _steps(rank["steps"])
    return f"  rank {rank['rank']}: {rank['events']:,} events, steps {steps}{crash}"


def _ranks(facts: dict[str, Any]) -> str:
    there = [rank["rank"] for rank in facts["ranks"]]
    world = facts["world_size"]
    # A manifest from an untrusted file may hold anything.
    known = isinstance(world, int) and world <= _MOST_RANKS
    missing = sorted(set(range(world)) - set(there)) if known else []
    absent = f"; {_spans(missing)} of {world} are not here" if missing else ""
    return f"{len(there)} ({_spans(there)}){absent}"


def _steps(steps: list[int]) -> str:
    return f"{len(steps):,} ({_spans(steps)})" if steps else "none"


def _spans(numbers: list[int]) -> str:
    """Write `0-3, 7` for 0, 1, 2, 3, 7."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _time(env: dict[str, Any]) -> str:
    try:
        when = datetime.fromtimestamp(env["time"], tz=timezone.utc)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return "at an unknown time"
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"
