"""Put calls of probes into expressions: around `:=` and `yield`.

In: expressions of one function and what each probe follows in it. Out: the same expressions, which
give the same values. Must not know: statements.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from clew.observe.variables.frames import emit
from clew.observe.variables.frames.emit import Places, Use
from clew.observe.variables.frames.scope import DEFS

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases", "type_params", "returns")


class Expressions(ast.NodeTransformer):
    """Rewrites the expressions that run in the function's own scope."""

    def __init__(self, uses: Sequence[Use], places: Places, owner: str | None) -> None:
        self.uses = uses
        self.places = places
        self.owner = owner

    def visit_parts(self, node: Any) -> None:
        """Rewrite the expressions of one statement, but not those of the blocks inside it."""
        if isinstance(node, DEFS):
            self._visit_list(node.decorator_list)
            self._visit_defaults(node.args)
            return
        for field, part in ast.iter_fields(node):
            if field in _BLOCKS and isinstance(part, list):
                continue
            if isinstance(part, list):
                self._visit_list(part)
            elif isinstance(part, ast.AST):
                setattr(node, field, self.visit(part))

    def _visit_list(self, parts: list[Any]) -> None:
        parts[:] = [self.visit(part) if isinstance(part, ast.AST) else part for part in parts]

    def _visit_defaults(self, arguments: ast.arguments) -> None:
        self._visit_list(arguments.defaults)
        self._visit_list(arguments.kw_defaults)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        self._visit_defaults(node.args)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        self.generic_visit(node)
        found: ast.expr = node
        for use in emit.interested(self.uses, node.target.id):
            site = emit.site(use, self.places.site("bind", node.target.id, node))
            call = emit.call(use, "binding", site, found, emit.value(self.owner))
            found = emit.place(call, node)
        return found

    def visit_Yield(self, node: ast.Yield) -> ast.expr:
        self.generic_visit(node)
        at = self.places.site("yield", "", node)
        owner = self.owner
        handed: ast.expr = node.value or ast.copy_location(ast.Constant(None), node)
        found: ast.expr = node
        for use in self.uses:
            site = emit.site(use, at)
            handed = emit.call(use, "yielding", site, handed, emit.value(owner))
            found = emit.call(use, "resuming", emit.site(use, at), found, emit.value(owner))
        node.value = emit.place(handed, node)
        placed: ast.expr = emit.place(found, node)
        return placed
