"""Find the expression that failed in the source, and its arguments as they are written there.

Input: the text of a file and a `Source` with line and columns. Output: a `FailedExpression`, or
None where it cannot be told. Nothing is evaluated here.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from clew.events.model import Source

# Line, last line, column, last column, as in a `Source`.
Span: TypeAlias = tuple[int, int, int, int]
# The name of a variable, then attributes (`.weight`) and constant keys (`[0]`).
Step: TypeAlias = tuple[str, str | int]

# Longer files are generated, or made to cost time.
_LONGEST = 2_000_000
_MOST_NAMES = 32


@dataclass(frozen=True, slots=True)
class WrittenExpression:
    """One expression: `text` as it is written, `keyword` if it was given by name.

    `elements` are those of a list or tuple that is written out.
    """

    text: str
    span: Span
    keyword: str | None = None
    elements: tuple[WrittenExpression, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedExpression:
    """The expression that failed.

    `function` is what was called (`self.fc`, `x.view`), the sign of an operator (`@`), or empty.
    `receiver` is what stands before a method. `positional` ends where a `*` makes positions
    unknown. `operands` are all tensors that may be meant, with elements of lists one by one.
    `names` are the variables, attributes and items in it, each with the way to look it up.
    `targets` are the names that a value was to be unpacked into, which then is the operand.
    """

    function: str
    receiver: WrittenExpression | None
    positional: tuple[WrittenExpression, ...]
    keywords: tuple[WrittenExpression, ...]
    operands: tuple[WrittenExpression, ...]
    names: dict[str, tuple[Step, ...]]
    targets: tuple[str, ...] = ()

    @property
    def is_operator(self) -> bool:
        """Return whether the expression is two operands with a sign between them."""
        return self.function in _SIGNS.values()


def failed_expression(text: str, source: Source) -> FailedExpression | None:
    """Return the expression at a position of a source text, None if it cannot be told."""
    tree = _parsed(text)
    node = None if tree is None else _node_at(tree, source)
    return None if node is None else _described(_header(node))


@lru_cache(maxsize=4)
def _parsed(text: str) -> ast.Module | None:
    if not text or len(text) > _LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the program's own code
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _node_at(tree: ast.Module, source: Source) -> ast.AST | None:
    span = (source.line, source.end_line, source.col, source.end_col)
    if source.end_col == 0 and source.col == 0:
        return _only_node_on(tree, source.line)
    exact: ast.AST | None = None
    for node in ast.walk(tree):
        if span in (_span(node), _running_span(node)):
            exact = node  # a statement comes before the expression that fills it
    if isinstance(exact, ast.Subscript | ast.Tuple | ast.List):
        return _assignment(tree, exact)
    return exact


def _header(node: ast.AST) -> ast.AST:
    """Return what a loop or a condition looks at; Python gives it the position of the whole."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        return node.iter
    if isinstance(node, ast.While | ast.If):
        return node.test
    return node


def _assignment(tree: ast.Module, target: ast.Subscript | ast.Tuple | ast.List) -> ast.AST:
    """Return the assignment to an item or to several names: it has the position of these alone."""
    if isinstance(target.ctx, ast.Store):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and target in node.targets:
                return node
    return target


def _only_node_on(tree: ast.Module, line: int) -> ast.AST | None:
    """Return the call or operation of a line if it has a single one: there are no columns."""
    there = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call | ast.BinOp | ast.Subscript) and _span(node)[0] == line
    ]
    return there[0] if len(there) == 1 else None


def _span(node: ast.AST) -> Span:
    places = (getattr(node, name, None) for name in _PLACES)
    line, end_line, col, end_col = (-1 if place is None else int(place) for place in places)
    return line, end_line, col, end_col


_PLACES = ("lineno", "end_lineno", "col_offset", "end_col_offset")
_SIGNS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**",
    ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip


def _described(node: ast.AST) -> FailedExpression:
    receiver: WrittenExpression | None = None
    positional: tuple[WrittenExpression, ...] = ()
    keywords: tuple[WrittenExpression, ...] = ()
    function = ""
    targets: tuple[str, ...] = ()
    operands: list[ast.expr] = []
    if isinstance(node, ast.Call):
        function = ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute):
            receiver = _expression(node.func.value)
            operands.append(node.func.value)
        positional = tuple(map(_expression, _before_star(node.args)))
        keywords = tuple(_expression(k.value, k.arg) for k in node.keywords if k.arg is not None)
        operands += [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        function = _SIGNS.get(type(node.op), "")
        operands = list(_sides(node))
    elif isinstance(node, ast.Assign):
        items = [target for target in node.targets if isinstance(target, ast.Subscript)]
        operands = [part for item in items for part in (item.value, item.slice)]
        operands.append(node.value)
        targets = _unpacked(node)
    else:
        operands = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    several = tuple(_expression(one) for operand in operands for one in _elements(operand))
    names = _names(node)
    return FailedExpression(function, receiver, positional, keywords, several, names, targets)


def _unpacked(node: ast.Assign) -> tuple[str, ...]:
    """Return the names that an assignment unpacks its value into."""
    several = [one for one in node.targets if isinstance(one, ast.Tuple | ast.List)]
    return tuple(ast.unparse(one) for target in several[:1] for one in target.elts)


def _sides(node: ast.BinOp | ast.AugAssign) -> tuple[ast.expr, ast.expr]:
    if isinstance(node, ast.BinOp):
        return node.left, node.right
    return node.target, node.value


def _before_star(arguments: list[ast.expr]) -> Iterator[ast.expr]:
    for argument in arguments:
        if isinstance(argument, ast.Starred):
            return
        yield argument


def _elements(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the elements of a list or tuple that is written out, and anything else itself."""
    if isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from _elements(element)
    elif not isinstance(node, ast.Starred):
        yield node


def _expression(node: ast.expr, keyword: str | None = None) -> WrittenExpression:
    listed = node.elts if isinstance(node, ast.List | ast.Tuple) else []
    elements = tuple(map(_expression, _before_star(listed)))
    return WrittenExpression(ast.unparse(node), _running_span(node), keyword, elements)


def _running_span(node: ast.AST) -> Span:
    """Return the span that Python gives to an expression as it runs.

    The call of a method that is on another line than what it belongs to begins with its name.
    """
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and func.lineno != func.end_lineno:
        _, end_line, _, end_col = _span(func)
        begin = end_col - len(func.attr.encode())
        return end_line, _span(node)[1], begin, _span(node)[3]
    return _span(node)


def is_primary(text: str) -> bool:
    """Return whether a method can be called on an expression without brackets around it."""
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)


def _names(node: ast.AST) -> dict[str, tuple[Step, ...]]:
    found: dict[str, tuple[Step, ...]] = {}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name | ast.Attribute | ast.Subscript):
            is_read = isinstance(inner.ctx, ast.Load) or isinstance(node, ast.AugAssign)
            steps = _steps(inner) if is_read else None
            if steps is not None and len(found) < _MOST_NAMES:
                found[ast.unparse(inner)] = steps
    return found


def _steps(node: ast.expr) -> tuple[Step, ...] | None:
    """Return how to look up a variable, an attribute or an item; None for what must be computed."""
    if isinstance(node, ast.Name):
        return (("name", node.id),)
    if isinstance(node, ast.Attribute):
        above = _steps(node.value)
        return None if above is None else (*above, ("attribute", node.attr))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key, above = node.slice.value, _steps(node.value)
        if above is not None and isinstance(key, int | str):
            return (*above, ("item", key))
    return None
