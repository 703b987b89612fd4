"""Write docs/api.txt: every name that users of Clew can write, one per line, with its signature.

In comes the installed package, out goes a sorted text that `tests/docs/test_api.py` compares.
Run `make api` after a change of the public interface, and read the difference.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import clew

TARGET = Path(__file__).parents[1] / "docs" / "api.txt"
HEADER = "# Every name users can write. Written by `make api`; read the difference.\n"

# What users call the objects they are given, and where each class is now. A class that moves or
# gets another name changes on the right; the left is what stays.
HELD = {
    "Callbacks": "clew.request.callbacks.Callbacks",
    "CodeView": "clew.views.text.code_view.CodeView",
    "Contents": "clew.views.export.formats.Contents",
    "Crash": "clew.run.event.Crash",
    "Diff": "clew.analysis.diff.divergence.Diff",
    "Dimension": "clew.analysis.shape_links.Dimension",
    "Divergence": "clew.analysis.diff.divergence.Divergence",
    "Dump": "clew.session.flight_dumps.Dump",
    "Edge": "clew.analysis.graph.graph_model.Edge",
    "Event": "clew.run.event.Event",
    "Events": "clew.run.event.Events",
    "Exported": "clew.views.export.formats.Exported",
    "Finding": "clew.analysis.findings.Finding",
    "Firing": "clew.session.flight_rules.Firing",
    "FlightRecorder": "clew.session.flight_recorder.FlightRecorder",
    "Gap": "clew.events.model.Gap",
    "Gathered": "clew.events.gathered.Gathered",
    "Graph": "clew.analysis.graph.graph_model.Graph",
    "GraphView": "clew.views.graph.view.GraphView",
    "Happening": "clew.events.live_events.Happening",
    "Hdf5": "clew.events.outputs.Hdf5",
    "Limits": "clew.request.limits.Limits",
    "Listener": "clew.events.live_events.Listener",
    "LiveValue": "clew.events.live_events.LiveValue",
    "Matched": "clew.analysis.diff.divergence.Matched",
    "ModuleError": "clew.analysis.diff.divergence.ModuleError",
    "Node": "clew.analysis.graph.graph_model.Node",
    "NonFiniteOrigin": "clew.analysis.nonfinite.NonFiniteOrigin",
    "Placement": "clew.analysis.ranks.placements.Placement",
    "RankAgreement": "clew.analysis.ranks.agreement.RankAgreement",
    "RankDifference": "clew.analysis.ranks.agreement.RankDifference",
    "RankEnd": "clew.analysis.ranks.agreement.RankEnd",
    "Report": "clew.views.html.report.Report",
    "Schedule": "clew.request.limits.Schedule",
    "Selection": "clew.analysis.selection.Selection",
    "Series": "clew.analysis.series.Series",
    "ShapeChain": "clew.analysis.shape_links.ShapeChain",
    "ShapeLink": "clew.analysis.shape_links.ShapeLink",
    "Snapshots": "clew.testing.model_snapshots.Snapshots",
    "Source": "clew.events.model.Source",
    "Stats": "clew.events.model.Stats",
    "TableView": "clew.views.text.table_view.TableView",
    "Trace": "clew.traces.Trace",
    "Tracer": "clew.session.tracer.Tracer",
    "TreeView": "clew.views.text.tree.TreeView",
    "Value": "clew.run.value.Value",
    "Values": "clew.run.value.Values",
    "Watch": "clew.watching.Watch",
}

# A name, and what follows it on its line: a signature, the value an option takes.
Entry = tuple[str, str]


def api() -> dict[str, str]:
    """Return every public name with what follows it on its line."""
    commands = options("clew", importlib.import_module("clew.cli.main").parser())
    groups = (
        exported(), held(), callbacks(), triggers(), errors(), adapters(), export_formats(),
        commands,
    )  # fmt: skip
    return dict(sorted(entry for group in groups for entry in group))


def text(names: dict[str, str]) -> str:
    """Return the whole file."""
    return HEADER + "".join(f"{name}{rest}\n" for name, rest in names.items())


def exported() -> Iterator[Entry]:
    """List the names of `clew` itself."""
    for name in clew.__all__:
        thing = getattr(clew, name)
        yield f"clew.{name}", constructor(thing) if inspect.isclass(thing) else function(thing)


def held() -> Iterator[Entry]:
    """List the objects users are given, and what each of them has."""
    for name, home in HELD.items():
        module, _, class_name = home.rpartition(".")
        cls = getattr(importlib.import_module(module), class_name)
        # What Python's containers have is not listed, only that it is one.
        container = next((c.__name__ for c in (dict, list, Sequence) if issubclass(cls, c)), None)
        yield name, f" (a {container})" if container else ""
        yield from members(name, cls)


def callbacks() -> Iterator[Entry]:
    """List the functions of `clew.callbacks`."""
    module = importlib.import_module("clew.callbacks")
    for name in module.__all__:
        if inspect.isfunction(found := getattr(module, name)):
            yield f"clew.callbacks.{name}", function(found)


def triggers() -> Iterator[Entry]:
    """List what `clew.triggers` offers."""
    module = importlib.import_module("clew.triggers")
    for name in module.__all__:
        found = getattr(module, name)
        yield f"clew.triggers.{name}", constructor(found) if inspect.isclass(found) else ""


def errors() -> Iterator[Entry]:
    """List the exceptions and what each of them has."""
    module = importlib.import_module("clew.errors")
    for name in defined(module):
        if inspect.isclass(error := getattr(module, name)):
            yield f"clew.errors.{name}", constructor(error)
            yield from members(name, error)


def adapters() -> Iterator[Entry]:
    """List the names of the modules of `clew.compat`, without signatures."""
    package = importlib.import_module("clew.compat")
    for found in pkgutil.walk_packages(package.__path__, "clew.compat."):
        if found.name.startswith("clew.compat.engine"):
            continue
        module = importlib.import_module(found.name)
        names = getattr(module, "__all__", None) or defined(module)
        yield from ((f"{found.name}.{name}", "") for name in names if hasattr(module, name))


def export_formats() -> Iterator[Entry]:
    """List the formats of `Trace.export` and the options of each."""
    formats = importlib.import_module("clew.views.export.formats").FORMATS
    for name, home in formats.items():
        yield f"export {name}", ""
        write = importlib.import_module(home).write
        for option in [*inspect.signature(write).parameters.values()][2:]:
            yield f"export {name} {option.name}", f"={option.default!r}"


def options(command: str, parser: argparse.ArgumentParser) -> Iterator[Entry]:
    """List a command, its options and its subcommands."""
    given = ""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from options(f"{command} {name}", below)
        elif "--help" not in action.option_strings:
            choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else None
            value = f" {action.metavar or choices or action.dest.upper()}"
            if not action.option_strings:
                given += f" [{value[1:]}]" if action.nargs == "?" else value
            for option in action.option_strings:
                yield f"{command} {option}", "" if action.nargs == 0 else value
    yield command, given


def defined(module: ModuleType) -> list[str]:
    """Return the public names that a module's own statements bind, imports left out."""
    found: list[str] = []
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            names = (n for n in ast.walk(statement) if isinstance(n, ast.Name))
            found += [n.id for n in names if isinstance(n.ctx, ast.Store)]
    return [name for name in found if not name.startswith("_")]


def members(name: str, cls: type) -> Iterator[Entry]:
    """List the public attributes and methods of a class, also those of its bases in Clew."""
    found: dict[str, str] = {}
    for base in reversed(ours(cls)):
        inside = vars(base)
        attributes = [*inside, *inside.get("__annotations__", ()), *set_on_self(base)]
        found.update((a, method(inside.get(a))) for a in attributes if not a.startswith("_"))
    return ((f"{name}.{attribute}", call) for attribute, call in found.items())


def set_on_self(cls: type) -> list[str]:
    """Return the attributes that the methods of a class assign, which the class does not list."""
    nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls))))
    stored = [n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    return [n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id == "self"]


def constructor(cls: type) -> str:
    """Return the arguments of a class that has a constructor of Clew's, else nothing."""
    inits = [vars(base)["__init__"] for base in ours(cls) if "__init__" in vars(base)]
    return method(inits[0]) if inits else ""


def method(member: object) -> str:
    """Return the arguments of a method, without the object; nothing for any other attribute."""
    if isinstance(member, staticmethod):
        return function(member.__func__)
    return function(getattr(member, "__func__", member), skip=1)


def function(found: object, skip: int = 0) -> str:
    """Return the arguments of a function with their defaults; nothing for anything else."""
    if not inspect.isfunction(found):
        return ""
    parameters = [*inspect.signature(found).parameters.values()][skip:]
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))


def ours(cls: type) -> list[type]:
    """Return a class and its bases, those outside Clew left out."""
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] == "clew"]


if __name__ == "__main__":
    names = api()
    TARGET.write_text(text(names), encoding="utf-8")
    print(f"{TARGET}: {len(names)} names")
