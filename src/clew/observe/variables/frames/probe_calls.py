"""Write the statements that call the probes at each place of a function.

In: one function, what each probe follows in it, and names with their flow. Out: statements.
Must not know: the kinds of statements a function is made of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any, TypeAlias

from clew.observe.variables.frames import emit
from clew.observe.variables.frames.emit import Use
from clew.observe.variables.frames.scope import (
    NOTHING,
    Def,
    Flow,
    is_declaration,
    owner_name,
    parameters,
    roots,
    stored_names,
)

Block: TypeAlias = list[ast.stmt]

_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)


class ProbeCalls:
    """Writes the calls of probes in one function; `guards`: also for names not surely bound."""

    def __init__(
        self, node: Def, code: CodeType, qualname: str, uses: Sequence[Use], *, guards: bool
    ) -> None:
        self.node = node
        self.uses = uses
        self.guards = guards
        self.owner = owner_name(node)
        self.places = emit.Places(code, qualname)
        self.free = [name for name in code.co_freevars if name != "__class__"]
        # Where no probe polls, it does not matter which names have a value.
        self.polled_at_all = any(use.polls for use in uses)
        self.names = self._all_names(node) if self.polled_at_all else []
        self.start = NOTHING.bind([arg.arg for arg in parameters(node)])
        # Names of other scopes may have a value already.
        self.start = Flow(self.start.sure, self.start.maybe.union(self.free, self._declared(node)))

    def _declared(self, node: Def) -> set[str]:
        found: set[str] = set()
        for statement in node.body:
            for part in ast.walk(statement):
                if isinstance(part, ast.Global):
                    found.update(part.names)
        return found

    def _all_names(self, node: Def) -> list[str]:
        """Return all names of the function that may be polled, in a stable order."""
        found = dict.fromkeys(arg.arg for arg in parameters(node))
        for statement in node.body:
            found |= dict.fromkeys(sorted(stored_names(statement)))
        return list(found | dict.fromkeys(self.free))

    def calls_of_all(self, method: str, kind: Any, node: Any, at: Any) -> Block:
        site = self.places.site(kind, "", node)
        owner = emit.value
        return [
            emit.statement(emit.call(use, method, emit.site(use, site), owner(self.owner)), at)
            for use in self.uses
        ]

    def return_calls(self, at: Any) -> Block:
        site = self.places.site("return", "", at)
        return [
            emit.statement(
                emit.call(
                    use,
                    "returned",
                    emit.site(use, site),
                    ast.Constant(None),
                    emit.value(self.owner),
                ),
                at,
            )
            for use in self.uses
            if use.returns
        ]

    def lines(self, statement: ast.stmt) -> Block:
        if is_declaration(statement):
            return []
        site = self.places.site("line", "", statement)
        return [
            emit.statement(
                emit.call(use, "line", emit.site(use, site), emit.value(self.owner)), statement
            )
            for use in self.uses
            if use.lines
        ]

    def value_call(self, use: Use, method: str, site: Any, name: str) -> ast.expr:
        return emit.call(use, method, emit.site(use, site), emit.load(name), emit.value(self.owner))

    def binding_calls(self, found: Iterable[tuple[str, Any]], node: Any) -> Block:
        calls: Block = []
        for name, target in found:
            for use in emit.interested(self.uses, name):
                site = self.places.site("bind", name, node if isinstance(node, _SIMPLE) else target)
                calls.append(emit.statement(self.value_call(use, "bound", site, name), target))
        return calls + self.write_calls(node, node)

    def write_calls(self, target: Any, node: Any) -> Block:
        calls: Block = []
        for name, written in roots(target):
            for use in emit.interested(self.uses, name):
                site = self.places.site(
                    "poll", name, node if isinstance(node, _SIMPLE) else written
                )
                calls.append(emit.statement(self.value_call(use, "polled", site, name), written))
        return calls

    def polled(self, use: Use, flow: Flow, skip: Sequence[str] = ()) -> list[str]:
        if not use.polls:
            return []
        return [n for n in self.names if n in flow.maybe and n not in skip and use.wants(n)]

    def perhaps(self, flow: Flow, nodes: Iterable[ast.AST]) -> Flow:
        return flow.perhaps(nodes) if self.polled_at_all else flow

    def polls(self, node: Any, flow: Flow, skip: Sequence[str] = ()) -> Block:
        skip = [*skip, *(name for name, _ in roots(node))]
        calls: Block = []
        for use in self.uses:
            names = self.polled(use, flow, skip)
            sure = [name for name in names if name in flow.sure]
            if sure:
                calls.append(emit.statement(self._poll_all(use, sure, node), node))
            for name in names if self.guards else ():
                if name not in flow.sure:
                    site = self.places.site("poll", name, node)
                    calls.append(
                        emit.guarded(use, self.value_call(use, "polled", site, name), node)
                    )
        return calls

    def _poll_all(self, use: Use, names: list[str], node: Any) -> ast.expr:
        """Write one call for all names, as there may be many of them after many statements."""
        sites = [self.places.site("poll", name, node) for name in names]
        if len(names) == 1:
            return self.value_call(use, "polled", sites[0], names[0])
        values = [emit.load(name) for name in names]
        return emit.call(use, "polling", emit.sites(use, sites), emit.value(self.owner), *values)

    def salvage(self, use: Use, flow: Flow, node: Any, skip: Sequence[str] = ()) -> Block:
        """Poll after an exception, whose line is known only then."""
        if not self.guards:
            return []
        return [
            emit.guarded(
                use,
                self.value_call(use, "salvaged", self.places.site("poll", name, node), name),
                node,
            )
            for name in self.polled(use, flow, skip)
        ]
