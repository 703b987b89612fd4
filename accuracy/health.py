"""Count which planted faults `Trace.health` finds, and what it says of clean programs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

import clew
from accuracy.clean import DTYPES, MODES, CleanProgram, clean_programs
from accuracy.health_faults import FAULTS, Fault

_STEPS = 6


@dataclass(frozen=True)
class Found:
    """What was said of a planted fault: whether its rule found it, and at the right address."""

    fault: Fault
    is_found: bool
    is_there: bool
    said: str


def found(engine: str, faults: Iterable[Fault] = FAULTS) -> Iterator[Found]:
    """Run planted faults and ask about the health of each."""
    for fault in faults:
        yield found_in(fault, recorded(fault, engine))


def found_in(fault: Fault, trace: clew.Trace) -> Found:
    """Ask about the health of a recorded fault."""
    rule = trace.health()[fault.rule]
    addresses = [one.address for one in rule.findings]
    is_there = not fault.address or fault.address in addresses
    said = "\n".join([f"{one.address}: {one}" for one in rule.findings] or [rule.note])
    return Found(fault, bool(rule.findings), is_there, said)


def recorded(fault: Fault, engine: str) -> clew.Trace:
    """Record a planted fault."""
    torch.manual_seed(0)
    model, run = fault.build()
    capture = ["**.*:grad", "**.*:param"] if fault.level == "modules" else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with clew.trace(
            model, engine=engine, level=fault.level, values=fault.values, capture=capture
        ) as t:
            run()
    return t


def alarms(
    engine: str, programs: Iterable[tuple[str, CleanProgram]], steps: int = _STEPS
) -> Iterator[tuple[str, list[str]]]:
    """Run clean programs in each mode and dtype; yield a name and what was wrongly found."""
    for name, program in programs:
        for mode in MODES:
            for dtype in DTYPES:
                model, step = program.prepare(mode, dtype)
                with clew.trace(model, engine=engine, values="stats") as t:
                    for _ in range(steps):
                        step()
                said = [f"{one.rule}: {one}" for one in t.health().found]
                said += [str(one) for one in t.findings if one.kind == "health"]
                yield f"{name}, {mode}, {dtype}", said


def report(engine: str, verbose: bool) -> str:
    """Write how many faults were found, rule by rule, and how many alarms were false."""
    results = list(found(engine))
    lines = []
    for rule in dict.fromkeys(one.fault.rule for one in results):
        mine = [one for one in results if one.fault.rule == rule]
        hits = sum(one.is_found and one.is_there for one in mine)
        lines.append(f"  {rule}: {hits} of {len(mine)}")
    for one in results:
        if not (one.is_found and one.is_there):
            lines.append(f"  missed {one.fault.name}" + (f": {one.said}" if verbose else ""))
    hits = sum(one.is_found and one.is_there for one in results)
    clean = list(alarms(engine, clean_programs()))
    false = [(name, said) for name, said in clean if said]
    lines.append(f"  false alarms: {len(false)} of {len(clean)} clean runs")
    lines += [f"    {name}: {said[0]}" for name, said in false]
    head = f"health, {engine} engine: {hits} of {len(results)} planted faults found"
    return "\n".join([head, *lines])
