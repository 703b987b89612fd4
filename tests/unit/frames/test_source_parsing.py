"""Source text is parsed once more where Python fails to make the tree."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from clew.observe.variables.frames.source import definition


def followed() -> int:
    first = 1
    return first


def test_a_definition_is_parsed_again_where_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = ast.parse
    tries: list[str] = []

    def failing(text: str, *args: Any, **options: Any) -> ast.AST:
        tries.append(text)
        if len(tries) == 1:
            raise SystemError("AST constructor recursion depth mismatch (before=36, after=38)")
        return parse(text, *args, **options)

    found = definition(followed)
    monkeypatch.setattr(ast, "parse", failing)
    assert found.parse().name == "followed"
    assert len(tries) == 2
