"""One name, one thing: no two classes or files of one name, no name that a file of it hides."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import clew

SOURCES = Path(clew.__file__).parent

# Names that stand more than once, and why.
CLASSES = {
    "Trace": "compat has the name of the older tool's class",
    "Tracer": "compat has the name of the older tool's class",
}
FILES = {
    "__init__.py": "a package's own file",
    "tracer.py": "compat has the names of the older tools' modules",
    "utils.py": "compat has the names of the older tools' modules",
}


def test_a_class_has_a_name_of_its_own() -> None:
    classes = (
        (node.name, path)
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert _used_twice(classes, CLASSES) == {}


def test_a_file_has_a_name_of_its_own() -> None:
    # A command's file has the name of the command, which is that of what it shows.
    files = ((path.name, path) for path in SOURCES.rglob("*.py") if path.parent.name != "cli")
    assert _used_twice(files, FILES) == {}


def test_a_name_that_is_loaded_late_is_no_file_of_its_package() -> None:
    """Python puts a file that was imported where the name is looked for first."""
    hidden = [
        f"{package.parent.name}.{name}"
        for package in SOURCES.rglob("__init__.py")
        for name in _listed(ast.parse(package.read_text(encoding="utf-8")))
        if package.with_name(f"{name}.py").exists() or package.with_name(name).is_dir()
    ]
    assert hidden == []


def _listed(tree: ast.Module) -> set[str]:
    """Return the names that a package offers by `lazy_names`: keys of its table, and `__all__`."""
    if not any(isinstance(node, ast.Name) and node.id == "lazy_names" for node in ast.walk(tree)):
        return set()
    listed = [node.keys for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    listed += [node.elts for node in ast.walk(tree) if isinstance(node, ast.List)]
    return {str(key.value) for keys in listed for key in keys if isinstance(key, ast.Constant)}


def _used_twice(named: Iterable[tuple[str, Path]], allowed: Iterable[str]) -> dict[str, list[str]]:
    """Return the places of each name that is used more than once and not allowed to be."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, path in named:
        if name not in allowed:
            places[name].append(path.relative_to(SOURCES).as_posix())
    return {name: found for name, found in places.items() if len(found) > 1}
