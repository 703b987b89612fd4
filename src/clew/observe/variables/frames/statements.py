"""Put calls of probes between the statements of one function.

In: the body of a function. Out: a body that does the same and calls the probes, given for each
statement the names it binds and the names that surely have a value by then.
Must not know: what the probes are called with, or how.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from types import CodeType
from typing import Any

from clew.observe.variables.frames import emit
from clew.observe.variables.frames.emit import Use
from clew.observe.variables.frames.expression_probes import Expressions
from clew.observe.variables.frames.probe_calls import Block, ProbeCalls
from clew.observe.variables.frames.scope import (
    NOTHING,
    Def,
    Flow,
    bindings,
    has_effect,
    join,
    parameters,
)


class Statements(ProbeCalls):
    """Rewrites one body."""

    def __init__(
        self, node: Def, code: CodeType, qualname: str, uses: Sequence[Use], *, guards: bool
    ) -> None:
        super().__init__(node, code, qualname, uses, guards=guards)
        self.expressions = Expressions(uses, self.places, self.owner)
        # Names not surely bound at a `return` that may change their objects -> that `return`.
        self.late: dict[str, Any] = {}
        # The ids of statements that are not a line of their own.
        self.split: set[int] = set()

    # The call as a whole

    def call(self, body: Block, at: Any) -> Block:
        entered = self.calls_of_all("entered", "enter", self.node, at)
        inside = self.block(body, at)
        failed: Block = []
        for use in self.uses:
            failed += self.salvage(use, self.perhaps(self.start, body), at)
        failed += self.calls_of_all("failing", "raise", self.node, at)
        failed.append(emit.place(ast.Raise(), at))
        any_error = emit.of_hooks(self.uses[0], "any_error")
        handler = ast.ExceptHandler(any_error, None, failed)
        # The code that runs on the way out must not show as a line.
        left = [*self._late_polls(), *self.calls_of_all("left", "leave", self.node, None)[::-1]]
        attempt = ast.Try(inside or [ast.Pass()], [handler], [], left)
        return [*entered, emit.place(attempt, at)]

    def _late_polls(self) -> Block:
        found: Block = []
        for name, at in self.late.items():
            for use in self.uses:
                if use.polls and use.wants(name):
                    site = self.places.site("poll", name, at)
                    found.append(
                        emit.guarded(use, self.value_call(use, "polled", site, name), None)
                    )
        return found

    def block(self, body: Block, at: Any) -> Block:
        """Rewrite the function's own block: parameters first, the implicit return at its end."""
        calls: Block = []
        for arg in parameters(self.node):
            for use in emit.interested(self.uses, arg.arg):
                site = self.places.site("param", arg.arg, arg)
                calls.append(emit.statement(self.value_call(use, "bound", site, arg.arg), at))
        inside, flow = self._block(body, self.start)
        if flow is not None and body:
            inside += self.return_calls(body[-1])
        return calls + inside

    # Statements

    def _block(self, body: Block, flow: Flow | None) -> tuple[Block, Flow | None]:
        found: Block = []
        for statement in body:
            rewritten, flow = self._statement(statement, flow or NOTHING)
            found += [] if id(statement) in self.split else self.lines(statement)
            found += rewritten
        return found, flow

    def _statement(self, node: Any, flow: Flow) -> tuple[Block, Flow | None]:
        handler = getattr(self, f"_{type(node).__name__}", None)
        if handler is not None:
            found: tuple[Block, Flow | None] = handler(node, flow)
            return found
        self.expressions.visit_parts(node)
        bound = [name for name, _ in bindings(node)]
        after = self.perhaps(flow, [node]).bind(bound)
        calls = self.binding_calls(bindings(node), node)
        calls += self.polls(node, after, skip=bound) if has_effect(node) else []
        return [node, *calls], after

    def _Return(self, node: ast.Return, flow: Flow) -> tuple[Block, None]:
        self.expressions.visit_parts(node)
        if node.value is None:
            return [*self.return_calls(node), node], None
        polled = has_effect(node.value)
        site = self.places.site("return", "", node)
        for use in self.uses:
            polls = self._poll_pairs(use, self.perhaps(flow, [node]), node) if polled else []
            owner = emit.value(self.owner)
            if use.returns:
                call = emit.call(use, "returning", emit.site(use, site), node.value, owner, *polls)
            elif polls:
                call = emit.call(use, "passing", node.value, owner, *polls)
            else:
                continue
            node.value = emit.place(call, node.value)
        return [node], None

    def _poll_pairs(self, use: Use, flow: Flow, node: ast.Return) -> list[ast.expr]:
        found: list[ast.expr] = []
        for name in self.polled(use, flow):
            site = self.places.site("poll", name, node)
            if name in flow.sure:
                pair: list[ast.expr] = [emit.site(use, site), emit.load(name)]
                found.append(ast.Tuple(pair, ast.Load()))
            else:
                self.late.setdefault(name, node)
        return found

    def _Raise(self, node: ast.Raise, flow: Flow) -> tuple[Block, None]:
        self.expressions.visit_parts(node)
        return [node], None

    def _Break(self, node: ast.stmt, flow: Flow) -> tuple[Block, None]:
        return [node], None

    _Continue = _Break

    def _Delete(self, node: ast.Delete, flow: Flow) -> tuple[Block, Flow]:
        self.expressions.visit_parts(node)
        names = [name for target in node.targets for name in _deleted(target)]
        calls: Block = []
        for name in names:
            for use in emit.interested(self.uses, name):
                site = emit.site(use, self.places.site("delete", name, node))
                calls.append(
                    emit.statement(emit.call(use, "deleted", site, emit.value(self.owner)), node)
                )
        after = self.perhaps(flow, [node]).delete(names)
        calls += self.binding_calls([], node)
        calls += self.polls(node, after) if has_effect(node) else []
        return [node, *calls], after

    def _If(self, node: ast.If, flow: Flow) -> tuple[Block, Flow | None]:
        self.expressions.visit_parts(node)
        flow = self.perhaps(flow, [node.test])
        polls = has_effect(node.test)
        body, then = self._block(node.body, flow)
        orelse, otherwise = self._block(node.orelse, flow)
        node.body = (self.polls(node, flow) if polls else []) + body
        node.orelse = (self.polls(node, flow) if polls else []) + orelse
        return [node], join(then, otherwise)

    def _While(self, node: ast.While, flow: Flow) -> tuple[Block, Flow]:
        self.expressions.visit_parts(node)
        flow = self.perhaps(flow, [node])
        polls = has_effect(node.test)
        body, _ = self._block(node.body, flow)
        orelse, _ = self._block(node.orelse, flow)
        node.body = (self.polls(node, flow) if polls else []) + body
        node.orelse = (self.polls(node, flow) if polls else []) + orelse
        return [node], flow

    def _For(self, node: Any, flow: Flow) -> tuple[Block, Flow]:
        self.expressions.visit_parts(node)
        bound = [name for name, _ in bindings(node)]
        flow = self.perhaps(flow, [node])
        inside = flow.bind(bound)
        body, _ = self._block(node.body, inside)
        orelse, _ = self._block(node.orelse, flow)
        calls = self.binding_calls(bindings(node), node)
        node.body = calls + self.polls(node, inside, skip=bound) + body
        node.orelse = self.polls(node, flow) + orelse
        return [node], flow

    _AsyncFor = _For

    def _With(self, node: Any, flow: Flow) -> tuple[Block, Flow | None]:
        self._split_with(node)
        self.expressions.visit_parts(node)
        found = [pair for item in node.items for pair in bindings(item)]
        bound = [name for name, _ in found]
        flow = self.perhaps(flow, node.items)
        inside = flow.bind(bound)
        # The context may swallow an exception anywhere inside.
        swallowed = self.perhaps(inside, node.body)
        body, end = self._block(node.body, inside)
        after = join(end, swallowed) or NOTHING
        calls = self.binding_calls(found, node)
        for item in node.items:
            calls += self.write_calls(item, node)
        node.body = calls + self.polls(node, inside, skip=bound) + body
        polls = [] if id(node) in self.split else self.polls(node, after)
        return [node, *polls], after

    _AsyncWith = _With

    def _split_with(self, node: Any) -> None:
        """Split `with a() as x, b() as y` in two, so that `x` is reported before `b()` may fail."""
        for index, item in enumerate(node.items[:-1], 1):
            if any(use.wants(name) for name, _ in bindings(item) for use in self.uses):
                rest = ast.copy_location(type(node)(node.items[index:], node.body), node)
                self.split.add(id(rest))
                node.items, node.body = node.items[:index], [rest]
                return

    def _Try(self, node: Any, flow: Flow) -> tuple[Block, Flow | None]:
        before = flow
        effect = has_effect(*node.body)
        caught = self.perhaps(before, node.body)
        final = self.perhaps(before, [*node.body, *node.handlers, *node.orelse])
        node.body, end = self._block(node.body, before)
        if node.orelse:
            node.orelse, end = self._block(node.orelse, end)
        ends = [end]
        for handler in node.handlers:
            ends.append(self._handler(handler, caught, effect))
        after = join(*ends)
        if node.finalbody:
            statements = node.finalbody
            node.finalbody, last = self._block(statements, final)
            if last is None or after is None:
                return [node], None
            kept = self.perhaps(after, statements).sure
            after = Flow(kept | (last.sure - final.sure), after.maybe | last.maybe)
        return [node], after

    _TryStar = _Try

    def _handler(self, node: ast.ExceptHandler, flow: Flow, effect: bool) -> Flow | None:
        if node.type is not None:
            node.type = self.expressions.visit(node.type)
        bound = [name for name, _ in bindings(node)]
        calls = self.binding_calls(bindings(node), node)
        if effect:
            for use in self.uses:
                calls += self.salvage(use, flow, node, skip=bound)
        body, end = self._block(node.body, flow.bind(bound))
        node.body = calls + body
        return None if end is None else end.delete(bound)

    def _Match(self, node: ast.Match, flow: Flow) -> tuple[Block, Flow | None]:
        self.expressions.visit_parts(node)
        entry = self.perhaps(flow, [node.subject])
        ends: list[Flow | None] = []
        for case in node.cases:
            found = bindings(case.pattern)
            names = [name for name, _ in found]
            inside = entry.bind(names)
            calls = self.binding_calls(found, case.pattern)
            polls = has_effect(node.subject, case.guard)
            if case.guard is not None:
                case.guard = self._guard(self.expressions.visit(case.guard), calls)
                inside = self.perhaps(inside, [case.guard])
                calls = []
            if polls:
                calls += self.polls(case.pattern, inside, skip=names)
            body, end = self._block(case.body, inside)
            case.body = calls + body
            ends.append(end)
            entry = Flow(entry.sure, entry.maybe | inside.maybe)
        after = join(entry, *ends)
        return [
            node,
            *(self.polls(node, after) if after and has_effect(node.subject) else []),
        ], after

    def _guard(self, guard: ast.expr, block: Block) -> ast.expr:
        """Report captured names before the guard runs: they stay bound if the guard is false."""
        calls = [statement.value for statement in block if isinstance(statement, ast.Expr)]
        if not calls:
            return guard
        last = ast.Subscript(ast.Tuple([*calls, guard], ast.Load()), ast.Constant(-1), ast.Load())
        found: ast.expr = emit.place(last, guard)
        return found


def _deleted(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Tuple | ast.List):
        return [name for item in target.elts for name in _deleted(item)]
    return [target.id] if isinstance(target, ast.Name) else []
