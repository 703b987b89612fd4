"""Imports stand at the top of a file; the few inside functions are listed here, with the reason.

What a room loads late is named in its `__init__`, by `lazy_names`; a package that may be missing is
imported by `optional_package`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import clew

SOURCES = Path(clew.__file__).parent

# By file, what is imported inside functions and why.
ALLOWED = {
    "compat/engine/calls.py": {
        "from clew.compat.engine import compiled_calls": "Dynamo runs it while it traces; it "
        "registers an operator, which programs that compile nothing do without",
    },
    "launch/recording.py": {
        "from clew.session.late_model import LateModel": "needs all of torch, and a module of that "
        "name may be another",
    },
    "launch/startup/sitecustomize.py": {
        "from clew.launch.recording import begin": "every Python process of the program runs this "
        "file, and most never import torch",
    },
    "native/target.py": {
        "import torch": "the folder of libraries is asked for without torch too; the error of the "
        "import, which says why torch cannot be loaded, is part of a message",
    },
    "observe/taps.py": {
        "from clew.observe import compiled_ops": "Dynamo runs it while it traces; it registers "
        "operators, which programs that compile nothing do without",
    },
    "observe/variables/captured.py": {
        "from clew.observe import compiled_ops": "as in taps.py",
    },
    "session/worker_start.py": {
        "from clew.session import workers": "a DataLoader pickles the function that has it, and "
        "only a worker uses what it loads",
    },
    "watch_trace.py": {
        "from clew.watch_tensors import record_tensors": "imports torch, which the program may "
        "never do",
    },
}


def test_imports_inside_functions_are_those_listed() -> None:
    found = {file: set(map(ast.unparse, nodes)) for file, nodes in _all_hidden().items()}
    listed = {file: set(reasons) for file, reasons in ALLOWED.items()}
    assert found == listed


def test_an_import_inside_a_function_has_a_reason() -> None:
    unexplained = [
        f"{path.relative_to(SOURCES).as_posix()}:{line}"
        for path in sorted(SOURCES.rglob("*.py"))
        for line in _unexplained(path.read_text(encoding="utf-8"))
    ]
    assert unexplained == []


def test_a_reason_is_a_comment_or_a_dependency_that_may_be_missing() -> None:
    assert list(_unexplained("def f():\n    import a\n")) == [2]
    assert list(_unexplained("def f():\n    # Slow.\n    import a\n    import b\n")) == []
    assert list(_unexplained("def f():\n    import a  # slow\n")) == []
    attempt = "def f():\n    try:\n        import a\n    except {}:\n        pass\n"
    assert list(_unexplained(attempt.format("OSError"))) == [3]
    assert list(_unexplained(attempt.format("ImportError"))) == []


def _all_hidden() -> dict[str, list[ast.Import | ast.ImportFrom]]:
    """Return the imports inside functions, by file."""
    found = {
        path.relative_to(SOURCES).as_posix(): _inside(ast.parse(path.read_text(encoding="utf-8")))
        for path in SOURCES.rglob("*.py")
    }
    return {file: nodes for file, nodes in found.items() if nodes}


def _unexplained(text: str) -> Iterator[int]:
    """Give the lines of imports in functions that have no comment on or above them."""
    tree, lines = ast.parse(text), text.splitlines()
    optional = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        and any("ImportError" in ast.unparse(handler) for handler in node.handlers)
        for each in node.body
    }
    for line in sorted(node.lineno for node in _inside(tree) if id(node) not in optional):
        above = line - 2
        while above > 0 and lines[above].strip().startswith(("import ", "from ")):
            above -= 1
        if "#" not in lines[line - 1] and not lines[above].strip().startswith("#"):
            yield line


def _inside(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports inside functions, each once."""
    found = {
        id(node): node
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    return list(found.values())
