"""Write calls of hooks as syntax trees.

In: a use of a function by a probe, a site, expressions. Out: statements and expressions, placed at
a node of the source, that call the probe. Must not know: when to call it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from typing import Any

from clew.observe.variables.frames.linetable import NOWHERE
from clew.observe.variables.frames.sites import Kind, Site, Target


class SiteTable:
    """The sites that the code made for one use calls, by the numbers it has for them."""

    __slots__ = ("_indices", "groups", "sites")

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.groups: list[tuple[Site, ...]] = []
        self._indices: dict[object, int] = {}

    def index(self, site: Site) -> int:
        """Return the number of a site."""
        key = (
            id(site.code), site.kind, site.name, site.line, site.col, site.end_line, site.end_col,
        )  # fmt: skip
        found = self._indices.get(key)
        if found is None:
            found = self._indices[key] = len(self.sites)
            self.sites.append(site)
        return found

    def group(self, sites: list[Site]) -> int:
        """Return the number of a group of sites."""
        self.groups.append(tuple(sites))
        return len(self.groups) - 1


class Use:
    """One probe's interest in one function, or in a function defined inside it.

    `name` stands for the hooks in the new code, until that code is put in place.
    """

    __slots__ = (
        "inner", "lines", "may_compile", "name", "polls", "returns", "table", "wanted",
        "wants_by_name",
    )  # fmt: skip

    def __init__(self, target: Target, name: str, may_compile: bool) -> None:
        self.name = name
        self.may_compile = may_compile
        self.returns = target.returns
        self.lines = target.lines
        self.polls = target.polls
        self.inner = tuple(target.inner.split(".")) if target.inner else ()
        self.wanted = target.wanted
        self.wants_by_name: dict[str, bool] = {}
        self.table = SiteTable()

    def wants(self, name: str) -> bool:
        """Return whether the probe follows this name; asked once per name."""
        answer = self.wants_by_name.get(name)
        if answer is None:
            answer = self.wants_by_name[name] = bool(self.wanted(name))
        return answer

    def inside(self) -> Use:
        """Return the same interest, seen from the function or class named first in `inner`."""
        found = copy.copy(self)
        found.inner = self.inner[1:]
        return found


def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def value(name: str | None) -> ast.expr:
    return ast.Constant(None) if name is None else load(name)


def of_hooks(use: Use, attribute: str) -> ast.expr:
    return ast.Attribute(load(use.name), attribute, ast.Load())


def site(use: Use, at: Site) -> ast.expr:
    """Write the lookup of a site by its number, as a site cannot be written as a constant."""
    index = ast.Constant(use.table.index(at))
    return ast.Subscript(of_hooks(use, "sites"), index, ast.Load())


def sites(use: Use, of: list[Site]) -> ast.expr:
    """Write the lookup of a group of sites."""
    index = ast.Constant(use.table.group(of))
    return ast.Subscript(of_hooks(use, "groups"), index, ast.Load())


def call(use: Use, method: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(of_hooks(use, method), list(arguments), [])


def place(node: Any, at: Any) -> Any:
    """Set the position of a new node, and new ones below, to where `at` begins; None: nowhere."""
    line, col = (NOWHERE, 0) if at is None else (at.lineno, at.col_offset)
    pending = [node]
    while pending:
        part = pending.pop()
        if getattr(part, "lineno", None) is None:
            if "lineno" in part._attributes:
                part.lineno = part.end_lineno = line
                part.col_offset = part.end_col_offset = col
            pending.extend(ast.iter_child_nodes(part))
    return node


def statement(expression: ast.expr, at: Any) -> ast.stmt:
    found: ast.stmt = place(ast.Expr(expression), at)
    return found


def guarded(use: Use, expression: ast.expr, at: Any) -> ast.stmt:
    """Write a call that does nothing where the name it reads has no value."""
    unbound = ast.ExceptHandler(of_hooks(use, "unbound"), None, [ast.Pass()])
    found: ast.stmt = place(ast.Try([ast.Expr(expression)], [unbound], [], []), at)
    return found


class Places:
    """Makes the sites of one function."""

    def __init__(self, code: Any, qualname: str) -> None:
        self.code = code
        self.qualname = qualname

    def site(self, kind: Kind, name: str, at: Any) -> Site:
        line, col, end_line, end_col = span(at)
        return Site(
            kind,
            name,
            self.code,
            self.code.co_filename,
            self.qualname,
            line,
            end_line,
            col,
            end_col,
        )


def span(node: Any) -> tuple[int, int, int, int]:
    """Return a node's line, column, end line and end column; of a block, only those of its head."""
    last = node
    if isinstance(node, ast.If | ast.While):
        last = node.test
    elif isinstance(node, ast.For | ast.AsyncFor):
        last = node.iter
    elif isinstance(node, ast.With | ast.AsyncWith):
        last = node.items[-1].optional_vars or node.items[-1].context_expr
    elif isinstance(node, ast.Match):
        last = node.subject
    elif isinstance(node, ast.ExceptHandler) and node.type is not None:
        last = node.type
    elif "body" in node._fields and not isinstance(node, ast.expr):
        return node.lineno, node.col_offset, node.lineno, node.col_offset
    return node.lineno, node.col_offset, last.end_lineno, last.end_col_offset


def interested(uses: Iterable[Use], name: str) -> Iterator[Use]:
    return (use for use in uses if use.wants(name))
