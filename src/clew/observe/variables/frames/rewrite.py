"""Put calls of probes into a function: after each binding, at its start and end, before each line.

In: a function's syntax tree and what each probe follows in it. Out: the same tree, changed in
place, that does what it did and calls the probes. No name is added to the function's locals.
Must not know: where the tree comes from, or what is done with it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from types import CodeType
from typing import Any

from clew.observe.variables.frames import emit
from clew.observe.variables.frames.emit import Use
from clew.observe.variables.frames.probe_calls import Block
from clew.observe.variables.frames.scope import (
    DEFS,
    Def,
    deleted_names,
    is_declaration,
    stored_names,
)
from clew.observe.variables.frames.statements import Statements

# How much a function's code is changed for the probes. torch.compile gives up on a function if its
# graph breaks inside a `try`, and fails on some large ones that hold a `try` at all.
GUARDED, UNGUARDED, BARE = range(3)


def rewrite(
    node: Def, code: CodeType, qualname: str, uses: Sequence[Use], care: int = GUARDED
) -> None:
    """Instrument a definition, and the definitions inside it that a probe follows.

    UNGUARDED leaves out polls of names that may have no value, BARE also the call's start and end.
    """
    _rewrite_inner(node.body, code, qualname, [use for use in uses if use.inner], care)
    own = [use for use in uses if not use.inner]
    if not own:
        return
    first = 1 if ast.get_docstring(node, clean=False) is not None else 0
    head, body = node.body[:first], node.body[first:]
    at = next((part for part in body if not is_declaration(part)), node.body[0])
    names = {name for part in body for name in stored_names(part) | deleted_names(part)}
    bare = Statements(node, code, qualname, own, guards=False)
    followed = Statements(node, code, qualname, own, guards=care == GUARDED)
    compiled = [use for use in own if use.may_compile]
    if care == BARE:
        body = bare.block(body, at)
    elif compiled:
        first_body = bare.block(copy.deepcopy(body), at) or [ast.Pass()]
        second_body = followed.call(_undeclared(body), at)
        branch = ast.If(emit.call(compiled[0], "compiling"), first_body, second_body)
        body = [emit.place(branch, at)]
    else:
        body = followed.call(body, at)
    node.body = [*head, _in_order(names, code, at), *body]


def _in_order(names: set[str], code: CodeType, at: ast.stmt) -> ast.stmt:
    """Write the variables in their old order, that of `locals()`, in a branch never compiled."""
    loads: Block = [ast.Expr(emit.load(name)) for name in code.co_varnames if name in names]
    found: ast.stmt = emit.place(ast.If(ast.Constant(0), loads or [ast.Pass()], []), at)
    return found


def _undeclared(body: Block) -> Block:
    """Leave `global` and `nonlocal` out of a second copy: they hold for the whole function."""

    class Undeclare(ast.NodeTransformer):
        def visit_Global(self, node: ast.Global) -> ast.stmt:
            return ast.copy_location(ast.Pass(), node)

        def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.stmt:
            return ast.copy_location(ast.Pass(), node)

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
            return node

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt:
            return node

        def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
            return node

    return [Undeclare().visit(statement) for statement in body]


def _rewrite_inner(
    body: Block, code: CodeType, qualname: str, uses: Sequence[Use], care: int
) -> None:
    if not uses:
        return
    pending: list[Any] = list(body)
    while pending:
        node = pending.pop()
        if not isinstance(node, (*DEFS, ast.ClassDef)):
            pending.extend(part for part in ast.iter_child_nodes(node) if not _is_expression(part))
            continue
        inside = [use.inside() for use in uses if use.inner[0] in (node.name, "*")]
        nested = nested_code(code, node)
        if not inside or nested is None:
            continue
        name = f"{qualname}.{'' if _is_class(code) else '<locals>.'}{node.name}"
        if isinstance(node, ast.ClassDef):
            _rewrite_inner(node.body, nested, name, [use for use in inside if use.inner], care)
        else:
            rewrite(node, nested, name, inside, care)


def _is_class(code: CodeType) -> bool:
    return "__module__" in code.co_names and "__qualname__" in code.co_names


def _is_expression(node: ast.AST) -> bool:
    return isinstance(node, ast.expr | ast.expr_context | ast.pattern)


def nested_code(code: CodeType, node: Any) -> CodeType | None:
    """Find the code, among the constants of `code`, that a nested definition was compiled to."""
    line = node.decorator_list[0].lineno if node.decorator_list else node.lineno
    for const in code.co_consts:
        if not isinstance(const, CodeType):
            continue
        if const.co_name == node.name and const.co_firstlineno == line:
            return const
        if const.co_name.startswith("<generic parameters") and (found := nested_code(const, node)):
            return found
    return None
