"""An import inside a function says why it is there, or is of something that may be missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import clew

SOURCES = Path(clew.__file__).parent


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
    for line in sorted({node.lineno for node in _inside(tree) if id(node) not in optional}):
        above = line - 2
        while above > 0 and lines[above].strip().startswith(("import ", "from ")):
            above -= 1
        if "#" not in lines[line - 1] and not lines[above].strip().startswith("#"):
            yield line


def _inside(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    yield node
