"""Find what a statement binds, and which names have a value when it runs.

In: syntax trees of one function. Out: names with the nodes that bind them, and a `Flow` of names
that surely or perhaps have a value. Must not know: what is done with it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

Def: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Binding: TypeAlias = tuple[str, Any]

DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*DEFS, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Flow:
    """The names that have a value at one point: on every path to it, or on some."""

    sure: frozenset[str]
    maybe: frozenset[str]

    def bind(self, names: Collection[str]) -> Flow:
        return Flow(self.sure.union(names), self.maybe.union(names))

    def delete(self, names: Collection[str]) -> Flow:
        return Flow(self.sure.difference(names), self.maybe.difference(names))

    def perhaps(self, nodes: Iterable[ast.AST]) -> Flow:
        """Return the flow after some part of `nodes` ran: what they delete may be gone."""
        bound, deleted = set[str](), set[str]()
        for node in nodes:
            bound |= stored_names(node)
            deleted |= deleted_names(node)
        return Flow(self.sure - deleted, self.maybe | bound)


NOTHING = Flow(frozenset(), frozenset())


def join(*flows: Flow | None) -> Flow | None:
    """Return the flow where several paths meet; None is a path that is never taken."""
    met = [flow for flow in flows if flow is not None]
    if not met:
        return None
    sure = frozenset.intersection(*(flow.sure for flow in met))
    return Flow(sure, frozenset().union(*(flow.maybe for flow in met)))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs in the same scope as `node`; of nested scopes, only what runs outside them."""
    pending: list[ast.AST] = [node]
    while pending:
        current = pending.pop()
        yield current
        if isinstance(current, _SCOPES):
            pending.extend(outside(current))
        elif isinstance(current, ast.comprehension):
            # Its own variable belongs to the comprehension; `:=` inside belongs to the function.
            pending.extend([current.iter, *current.ifs])
        else:
            pending.extend(ast.iter_child_nodes(current))


def outside(node: ast.AST) -> list[ast.expr]:
    """Return the expressions of a def, class or lambda that run in the enclosing scope."""
    found: list[ast.expr | None] = []
    if isinstance(node, (*DEFS, ast.Lambda)):
        found += [*node.args.defaults, *node.args.kw_defaults]
    if isinstance(node, (*DEFS, ast.ClassDef)):
        found += node.decorator_list
    if isinstance(node, ast.ClassDef):
        found += [*node.bases, *(keyword.value for keyword in node.keywords)]
    return [expression for expression in found if expression is not None]


def bindings(node: ast.AST) -> list[Binding]:
    """Return the names one statement, target, handler or pattern binds itself, in order."""
    if isinstance(node, ast.Name):
        return [(node.id, node)] if isinstance(node.ctx, ast.Store) else []
    if isinstance(node, ast.Assign):
        return [found for target in node.targets for found in bindings(target)]
    if isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor):
        return bindings(node.target)
    if isinstance(node, ast.AnnAssign):
        return bindings(node.target) if node.value is not None else []
    if isinstance(node, ast.Tuple | ast.List):
        return [found for item in node.elts for found in bindings(item)]
    if isinstance(node, ast.Starred):
        return bindings(node.value)
    if isinstance(node, ast.withitem):
        return bindings(node.optional_vars) if node.optional_vars is not None else []
    if isinstance(node, (*DEFS, ast.ClassDef)) or (
        isinstance(node, ast.ExceptHandler) and node.name is not None
    ):
        return [(str(node.name), node)]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name.split(".")[0], alias) for alias in node.names]
    if isinstance(node, ast.pattern):
        return [found for part in ast.walk(node) for found in _captured(part)]
    if sys.version_info >= (3, 12) and isinstance(node, ast.TypeAlias):
        return bindings(node.name)
    return []


def _captured(part: ast.AST) -> list[Binding]:
    if isinstance(part, ast.MatchAs | ast.MatchStar) and part.name is not None:
        return [(part.name, part)]
    if isinstance(part, ast.MatchMapping) and part.rest is not None:
        return [(part.rest, part)]
    return []


def roots(node: ast.AST) -> list[Binding]:
    """Return the names below which a node writes or deletes: `x` of `x.a[0] = 1`."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        root: ast.expr = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        return [(root.id, node)] if isinstance(root, ast.Name) else []
    if isinstance(node, ast.Assign | ast.Delete):
        return [found for target in node.targets for found in roots(target)]
    if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor):
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return []
        return roots(node.target)
    if isinstance(node, ast.Tuple | ast.List):
        return [found for item in node.elts for found in roots(item)]
    if isinstance(node, ast.Starred):
        return roots(node.value)
    if isinstance(node, ast.withitem):
        return roots(node.optional_vars) if node.optional_vars is not None else []
    return []


def stored_names(node: ast.AST) -> set[str]:
    """Return every name bound somewhere in the scope of `node`."""
    found: set[str] = set()
    for part in walk(node):
        if isinstance(part, ast.NamedExpr):
            found.add(part.target.id)
        elif isinstance(part, ast.pattern):
            found.update(name for name, _ in _captured(part))
        else:
            found.update(name for name, _ in bindings(part))
    return found


def deleted_names(node: ast.AST) -> set[str]:
    """Return every name deleted in the scope of `node`, also at the end of `except … as`."""
    found: set[str] = set()
    for part in walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Del):
            found.add(part.id)
        elif isinstance(part, ast.ExceptHandler) and part.name:
            found.add(part.name)
    return found


_EFFECTS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.AugAssign, ast.ClassDef)


def has_effect(*nodes: ast.AST | None) -> bool:
    """Return whether running these may change an object: by a call, an await, a write into it."""
    return any(
        isinstance(part, _EFFECTS)
        or (isinstance(part, DEFS) and bool(part.decorator_list))
        or (isinstance(part, ast.Attribute | ast.Subscript) and not isinstance(part.ctx, ast.Load))
        for node in nodes
        if node is not None
        for part in walk(node)
    )


def is_declaration(node: ast.stmt) -> bool:
    """Return whether a statement is only for the compiler, and no line of it runs."""
    if isinstance(node, ast.AnnAssign):
        return node.value is None and isinstance(node.target, ast.Name)
    return isinstance(node, ast.Global | ast.Nonlocal)


def parameters(node: Def) -> list[ast.arg]:
    """Return the parameters in the order of the signature."""
    args = node.args
    found = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return [arg for arg in found if arg is not None]


def owner_name(node: Def) -> str | None:
    """Return the first parameter, unless the function binds its name again or deletes it."""
    first = [*node.args.posonlyargs, *node.args.args][:1]
    if not first:
        return None
    name = first[0].arg
    for statement in node.body:
        if name in stored_names(statement) or name in deleted_names(statement):
            return None
        for part in walk(statement):
            if isinstance(part, ast.comprehension) and name in _names(part.target):
                return None
    return name


def _names(target: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
