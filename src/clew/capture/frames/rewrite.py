"""Put calls of probes into a function: after each binding, around the call, before each line.

In: a function's syntax tree and who follows what in it. Out: the same tree, changed in place, that
does what it did and tells the probes. No name is added to the function's locals.
Must not know: where the tree comes from, or what becomes of it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

from clew.capture.frames import emit
from clew.capture.frames.emit import Use
from clew.capture.frames.expressions import Expressions
from clew.capture.frames.scope import (
    DEFS,
    NOTHING,
    Def,
    Flow,
    bindings,
    has_effect,
    join,
    owner_name,
    parameters,
    roots,
    stored_names,
)

Block = list[ast.stmt]


def rewrite(node: Def, code: CodeType, qualname: str, uses: Sequence[Use]) -> None:
    """Instrument a definition, and the definitions inside it that somebody follows."""
    _rewrite_inner(node.body, code, qualname, [use for use in uses if use.inner])
    own = [use for use in uses if not use.inner]
    if not own:
        return
    first = 1 if ast.get_docstring(node, clean=False) is not None else 0
    head, body = node.body[:first], node.body[first:]
    at = next((part for part in body if not _is_declaration(part)), node.body[0])
    listened = [use for use in own if use.hooks.may_compile]
    if listened:
        # torch.compile gives a function up when its graph breaks inside a `try`.
        compiled = _Function(node, code, qualname, own, whole=False).block(copy.deepcopy(body), at)
        followed = _Function(node, code, qualname, own, whole=True).call(_undeclared(body), at)
        test = emit.call(listened[0], "compiling")
        branch = ast.If(test, compiled or [ast.Pass()], followed)
        body = [emit.place(branch, at)]
    else:
        body = _Function(node, code, qualname, own, whole=True).call(body, at)
    node.body = head + body


def _is_declaration(node: ast.stmt) -> bool:
    """Tell whether a statement only speaks to the compiler, and no line of it runs."""
    if isinstance(node, ast.AnnAssign):
        return node.value is None and isinstance(node.target, ast.Name)
    return isinstance(node, ast.Global | ast.Nonlocal)


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


def _rewrite_inner(body: Block, code: CodeType, qualname: str, uses: Sequence[Use]) -> None:
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
            _rewrite_inner(node.body, nested, name, [use for use in inside if use.inner])
        else:
            rewrite(node, nested, name, inside)


def _is_class(code: CodeType) -> bool:
    return "__module__" in code.co_names and "__qualname__" in code.co_names


def _is_expression(node: ast.AST) -> bool:
    return isinstance(node, ast.expr | ast.expr_context | ast.pattern)


def nested_code(code: CodeType, node: Any) -> CodeType | None:
    """The code, among the constants of `code`, that was compiled from a nested definition."""
    line = node.decorator_list[0].lineno if node.decorator_list else node.lineno
    for const in code.co_consts:
        if not isinstance(const, CodeType):
            continue
        if const.co_name == node.name and const.co_firstlineno == line:
            return const
        if const.co_name.startswith("<generic parameters") and (found := nested_code(const, node)):
            return found
    return None


class _Function:
    """Rewrites one body. `whole`: also told are the call, its end, and names not surely bound."""

    def __init__(
        self, node: Def, code: CodeType, qualname: str, uses: Sequence[Use], *, whole: bool
    ) -> None:
        self.node = node
        self.uses = uses
        self.whole = whole
        self.owner = owner_name(node)
        self.places = emit.Places(code, qualname)
        self.expressions = Expressions(uses, self.places, self.owner)
        self.free = [name for name in code.co_freevars if name != "__class__"]
        self.names = self._names(node)
        self.start = NOTHING.bind([arg.arg for arg in parameters(node)])
        # Names of other scopes may have a value already.
        self.start = Flow(self.start.sure, self.start.maybe.union(self.free, self._declared(node)))
        # Where a value is returned that may be computed from a name not surely bound.
        self.late: dict[str, Any] = {}
        # Statements that are no line of their own.
        self.split: set[int] = set()

    def _declared(self, node: Def) -> set[str]:
        found: set[str] = set()
        for statement in node.body:
            for part in ast.walk(statement):
                if isinstance(part, ast.Global):
                    found.update(part.names)
        return found

    def _names(self, node: Def) -> list[str]:
        """All names of the function that may be polled, in a steady order."""
        found = dict.fromkeys(arg.arg for arg in parameters(node))
        for statement in node.body:
            found |= dict.fromkeys(sorted(stored_names(statement)))
        return list(found | dict.fromkeys(self.free))

    # The call as a whole

    def call(self, body: Block, at: Any) -> Block:
        entered = self._tell_all("entered", "enter", self.node, at)
        inside = self.block(body, at)
        failed: Block = []
        for use in self.uses:
            failed += self._salvage(use, self.start.perhaps(body), at)
        failed += self._tell_all("failing", "raise", self.node, at)
        failed.append(emit.place(ast.Raise(), at))
        any_error = emit.of_hooks(self.uses[0], "any_error")
        handler = ast.ExceptHandler(any_error, None, failed)
        # On the way out no line of its own must show.
        left = [*self._late_polls(), *self._tell_all("left", "leave", self.node, None)[::-1]]
        attempt = ast.Try(inside or [ast.Pass()], [handler], [], left)
        return [*entered, emit.place(attempt, at)]

    def _tell_all(self, method: str, kind: Any, node: Any, at: Any) -> Block:
        site = self.places.site(kind, "", node)
        owner = emit.value
        return [
            emit.statement(emit.call(use, method, emit.site(use, site), owner(self.owner)), at)
            for use in self.uses
        ]

    def _late_polls(self) -> Block:
        found: Block = []
        for name, at in self.late.items():
            for use in self.uses:
                if use.polls and use.wants(name):
                    site = self.places.site("poll", name, at)
                    found.append(emit.guarded(use, self._told(use, "polled", site, name), None))
        return found

    def block(self, body: Block, at: Any) -> Block:
        """Rewrite the function's own block: parameters first, and what it returns at its end."""
        told: Block = []
        for arg in parameters(self.node):
            for use in emit.interested(self.uses, arg.arg):
                site = self.places.site("param", arg.arg, arg)
                told.append(emit.statement(self._told(use, "bound", site, arg.arg), at))
        inside, flow = self._block(body, self.start)
        if flow is not None and body:
            inside += self._return_none(body[-1])
        return told + inside

    def _return_none(self, at: Any) -> Block:
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

    # Statements

    def _block(self, body: Block, flow: Flow | None) -> tuple[Block, Flow | None]:
        found: Block = []
        for statement in body:
            rewritten, flow = self._statement(statement, flow or NOTHING)
            found += self._lines(statement)
            found += rewritten
        return found, flow

    def _lines(self, statement: ast.stmt) -> Block:
        if _is_declaration(statement) or id(statement) in self.split:
            return []
        site = self.places.site("line", "", statement)
        return [
            emit.statement(
                emit.call(use, "line", emit.site(use, site), emit.value(self.owner)), statement
            )
            for use in self.uses
            if use.lines
        ]

    def _statement(self, node: Any, flow: Flow) -> tuple[Block, Flow | None]:
        handler = getattr(self, f"_{type(node).__name__}", None)
        if handler is not None:
            found: tuple[Block, Flow | None] = handler(node, flow)
            return found
        self.expressions.visit_parts(node)
        bound = [name for name, _ in bindings(node)]
        after = flow.perhaps([node]).bind(bound)
        told = self._tell_bound(bindings(node), node)
        told += self._polls(node, after, skip=bound) if has_effect(node) else []
        return [node, *told], after

    def _Return(self, node: ast.Return, flow: Flow) -> tuple[Block, None]:
        self.expressions.visit_parts(node)
        if node.value is None:
            return [*self._return_none(node), node], None
        polled = has_effect(node.value)
        site = self.places.site("return", "", node)
        for use in self.uses:
            polls = self._poll_pairs(use, flow.perhaps([node]), node) if polled else []
            owner = emit.value(self.owner)
            if use.returns:
                told = emit.call(use, "returning", emit.site(use, site), node.value, owner, *polls)
            elif polls:
                told = emit.call(use, "passing", node.value, owner, *polls)
            else:
                continue
            node.value = emit.place(told, node.value)
        return [node], None

    def _poll_pairs(self, use: Use, flow: Flow, node: ast.Return) -> list[ast.expr]:
        found: list[ast.expr] = []
        for name in self._polled(use, flow):
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
        told: Block = []
        for name in names:
            for use in emit.interested(self.uses, name):
                site = emit.site(use, self.places.site("delete", name, node))
                told.append(
                    emit.statement(emit.call(use, "deleted", site, emit.value(self.owner)), node)
                )
        after = flow.perhaps([node]).delete(names)
        told += self._tell_bound([], node)
        told += self._polls(node, after) if has_effect(node) else []
        return [node, *told], after

    def _If(self, node: ast.If, flow: Flow) -> tuple[Block, Flow | None]:
        self.expressions.visit_parts(node)
        flow = flow.perhaps([node.test])
        polls = has_effect(node.test)
        body, then = self._block(node.body, flow)
        orelse, otherwise = self._block(node.orelse, flow)
        node.body = (self._polls(node, flow) if polls else []) + body
        node.orelse = (self._polls(node, flow) if polls else []) + orelse
        return [node], join(then, otherwise)

    def _While(self, node: ast.While, flow: Flow) -> tuple[Block, Flow]:
        self.expressions.visit_parts(node)
        flow = flow.perhaps([node])
        polls = has_effect(node.test)
        body, _ = self._block(node.body, flow)
        orelse, _ = self._block(node.orelse, flow)
        node.body = (self._polls(node, flow) if polls else []) + body
        node.orelse = (self._polls(node, flow) if polls else []) + orelse
        return [node], flow

    def _For(self, node: Any, flow: Flow) -> tuple[Block, Flow]:
        self.expressions.visit_parts(node)
        bound = [name for name, _ in bindings(node)]
        flow = flow.perhaps([node])
        inside = flow.bind(bound)
        body, _ = self._block(node.body, inside)
        orelse, _ = self._block(node.orelse, flow)
        told = self._tell_bound(bindings(node), node)
        node.body = told + self._polls(node, inside, skip=bound) + body
        node.orelse = self._polls(node, flow) + orelse
        return [node], flow

    _AsyncFor = _For

    def _With(self, node: Any, flow: Flow) -> tuple[Block, Flow | None]:
        self._split_with(node)
        self.expressions.visit_parts(node)
        found = [pair for item in node.items for pair in bindings(item)]
        bound = [name for name, _ in found]
        flow = flow.perhaps(node.items)
        inside = flow.bind(bound)
        # The context may swallow an exception anywhere inside.
        swallowed = inside.perhaps(node.body)
        body, end = self._block(node.body, inside)
        after = join(end, swallowed) or NOTHING
        told = self._tell_bound(found, node)
        for item in node.items:
            told += self._tell_roots(item, node)
        node.body = told + self._polls(node, inside, skip=bound) + body
        polls = [] if id(node) in self.split else self._polls(node, after)
        return [node, *polls], after

    _AsyncWith = _With

    def _split_with(self, node: Any) -> None:
        """Write `with a() as x, b() as y` as two, where `x` is told before `b()` may fail."""
        for index, item in enumerate(node.items[:-1], 1):
            if any(use.wants(name) for name, _ in bindings(item) for use in self.uses):
                rest = ast.copy_location(type(node)(node.items[index:], node.body), node)
                self.split.add(id(rest))
                node.items, node.body = node.items[:index], [rest]
                return

    def _Try(self, node: Any, flow: Flow) -> tuple[Block, Flow | None]:
        before = flow
        effect = has_effect(*node.body)
        caught = before.perhaps(node.body)
        final = before.perhaps([*node.body, *node.handlers, *node.orelse])
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
            kept = after.perhaps(statements).sure
            after = Flow(kept | (last.sure - final.sure), after.maybe | last.maybe)
        return [node], after

    _TryStar = _Try

    def _handler(self, node: ast.ExceptHandler, flow: Flow, effect: bool) -> Flow | None:
        if node.type is not None:
            node.type = self.expressions.visit(node.type)
        bound = [name for name, _ in bindings(node)]
        told = self._tell_bound(bindings(node), node)
        if effect:
            for use in self.uses:
                told += self._salvage(use, flow, node, skip=bound)
        body, end = self._block(node.body, flow.bind(bound))
        node.body = told + body
        return None if end is None else end.delete(bound)

    def _Match(self, node: ast.Match, flow: Flow) -> tuple[Block, Flow | None]:
        self.expressions.visit_parts(node)
        entry = flow.perhaps([node.subject])
        ends: list[Flow | None] = []
        for case in node.cases:
            found = bindings(case.pattern)
            names = [name for name, _ in found]
            inside = entry.bind(names)
            told = self._tell_bound(found, case.pattern)
            polls = has_effect(node.subject, case.guard)
            if case.guard is not None:
                case.guard = self._guard(self.expressions.visit(case.guard), told)
                inside = inside.perhaps([case.guard])
                told = []
            if polls:
                told += self._polls(case.pattern, inside, skip=names)
            body, end = self._block(case.body, inside)
            case.body = told + body
            ends.append(end)
            entry = Flow(entry.sure, entry.maybe | inside.maybe)
        after = join(entry, *ends)
        return [
            node,
            *(self._polls(node, after) if after and has_effect(node.subject) else []),
        ], after

    def _guard(self, guard: ast.expr, told: Block) -> ast.expr:
        """Tell what was captured before the guard is asked: it stays bound if that says no."""
        calls = [statement.value for statement in told if isinstance(statement, ast.Expr)]
        if not calls:
            return guard
        last = ast.Subscript(ast.Tuple([*calls, guard], ast.Load()), ast.Constant(-1), ast.Load())
        found: ast.expr = emit.place(last, guard)
        return found

    # What is told

    def _told(self, use: Use, method: str, site: Any, name: str) -> ast.expr:
        return emit.call(use, method, emit.site(use, site), emit.load(name), emit.value(self.owner))

    def _tell_bound(self, found: Iterable[tuple[str, Any]], node: Any) -> Block:
        told: Block = []
        simple = isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for name, target in found:
            for use in emit.interested(self.uses, name):
                site = self.places.site("bind", name, node if simple else target)
                told.append(emit.statement(self._told(use, "bound", site, name), target))
        return told + self._tell_roots(node, node)

    def _tell_roots(self, target: Any, node: Any) -> Block:
        told: Block = []
        for name, written in roots(target):
            for use in emit.interested(self.uses, name):
                simple = isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete)
                site = self.places.site("poll", name, node if simple else written)
                told.append(emit.statement(self._told(use, "polled", site, name), written))
        return told

    def _polled(self, use: Use, flow: Flow, skip: Sequence[str] = ()) -> list[str]:
        if not use.polls:
            return []
        return [n for n in self.names if n in flow.maybe and n not in skip and use.wants(n)]

    def _polls(self, node: Any, flow: Flow, skip: Sequence[str] = ()) -> Block:
        skip = [*skip, *(name for name, _ in roots(node))]
        told: Block = []
        for use in self.uses:
            for name in self._polled(use, flow, skip):
                expression = self._told(use, "polled", self.places.site("poll", name, node), name)
                if name in flow.sure:
                    told.append(emit.statement(expression, node))
                elif self.whole:
                    told.append(emit.guarded(use, expression, node))
        return told

    def _salvage(self, use: Use, flow: Flow, node: Any, skip: Sequence[str] = ()) -> Block:
        """Poll after an exception, whose line is known only then."""
        if not self.whole:
            return []
        return [
            emit.guarded(
                use, self._told(use, "salvaged", self.places.site("poll", name, node), name), node
            )
            for name in self._polled(use, flow, skip)
        ]


def _deleted(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Tuple | ast.List):
        return [name for item in target.elts for name in _deleted(item)]
    return [target.id] if isinstance(target, ast.Name) else []
