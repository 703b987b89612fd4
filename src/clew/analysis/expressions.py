"""What the source calls an op: the expression, its operands, the name its result is given.

In come ops as a live trace tells of them, or places in the source; out come the source's words. An
expression on several lines is read, too, as long as its statement begins and ends with it.
"""

from __future__ import annotations

import ast
import linecache
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from clew.events.live import Happening, values_in
from clew.events.model import Source

_PRODUCTS = ("mm", "bmm", "mv", "dot")
_VIEWS = ("view", "unsafe_view")
# The ops that an operator stands for; others that it runs make ready for them.
_OPERATORS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.MatMult: _PRODUCTS, ast.Add: ("add",), ast.Sub: ("sub", "rsub"), ast.Mult: ("mul",),
    ast.Div: ("div",), ast.FloorDiv: ("floor_divide",), ast.Mod: ("remainder",),
    ast.Pow: ("pow",), ast.USub: ("neg",), ast.Invert: ("bitwise_not",),
}  # fmt: skip
# The same for functions and attributes whose ops have other names than they have themselves.
_NAMED = {
    "matmul": _PRODUCTS, "reshape": _VIEWS, "flatten": _VIEWS, "chunk": ("split",),
    "contiguous": ("clone",), "T": ("permute",), "mT": ("transpose",),
    **dict.fromkeys(("to", "float", "double", "half", "bfloat16", "long"), ("to_copy",)),
}  # fmt: skip
# Of an index that is no tuple: one op, by the kind of the index.
_INDEXING = ("select", "slice", "index", "unsqueeze", "alias")


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression as the source has it.

    `ops` are the bare names of the ops that it stands for. `operands` are those of an operator,
    `variables` those of them that are no numbers. `target` is what the result is assigned to, None
    if that is nothing or more than this result.
    """

    text: str
    ops: tuple[str, ...]
    operands: tuple[str, ...]
    variables: tuple[str, ...]
    target: str | None

    def stands_for(self, op: str) -> bool:
        """Whether an op is what is written here, and not one that is needed on the way."""
        return op.strip("_") in self.ops

    def names(self, op: str, tensors: Sequence[int]) -> dict[int, str]:
        """What those arguments of an op are called that are tensors, by their positions.

        Those that are no operands here, or may be either, are left out.
        """
        operands = self.operands[::-1] if op == "rsub" else self.operands
        if len(tensors) == 1 and op.strip("_") in ("add", "mul"):
            # The tensor comes first, on whichever side of the operator it stands.
            operands = self.variables if len(self.variables) == 1 else ()
        return {at: operands[at] for at in tensors if at < len(operands)}


class Words(NamedTuple):
    """An operator's text, what the tensors that an op takes are called, and what its result is."""

    text: str | None
    inputs: dict[int, str]
    output: str | None


class Wording(threading.local):
    """The source's words for ops as they run, thread by thread.

    An operator may run ops that make ready for its own, as `@` does to have three dimensions
    where there are four. What its own op takes and gives then is not what the source names.
    """

    _source: Source | None = None
    _is_resized = False

    def of(self, event: Happening, op: str) -> Words:
        """The words for an op with a bare name; none for all that the source does not say."""
        source = event.source
        if source != self._source:
            self._source, self._is_resized = source, False
        found = None if source is None else expression_at(source)
        # What a call of a library ran is not written there; of an operator it may be: `1 - x`.
        if found is None or not (event.is_direct or found.operands):
            return Words(None, {}, None)
        if not found.stands_for(op):
            taken, given = values_in(event.inputs), values_in(event.outputs)
            self._is_resized |= [v.shape for v in taken] != [v.shape for v in given]
            return Words(None, {}, None)
        text = found.text if found.operands else None
        if self._is_resized:
            return Words(text, {}, None)
        tensors = [at for at, value in enumerate(event.inputs) if any(values_in(value))]
        return Words(text, found.names(op, tensors), found.target)


@lru_cache(maxsize=4096)
def expression_at(source: Source) -> Expression | None:
    """The expression at a place; None where Python does not tell columns, or there is no source."""
    found = linecache.getlines(source.file)[source.line - 1 : source.end_line]
    if not found or source.end_col == 0:
        return None
    statement, lines = "".join(found).strip(), [line.encode() for line in found]
    # The end first: columns count from the beginning of a line.
    lines[-1] = lines[-1][: source.end_col]
    lines[0] = lines[0][source.col :]
    text = b"".join(lines).decode(errors="replace")
    node = _parsed(f"({text}\n)") or _parsed(text)
    if isinstance(node, ast.Expr):
        return _expression(node.value, _target(node.value, _parsed(statement)))
    if isinstance(node, ast.AugAssign):
        return _operator(node, node.op, (node.target, node.value), ast.unparse(node.target))
    return None


def _parsed(text: str) -> ast.stmt | None:
    try:
        [statement] = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    return statement


def _target(value: ast.expr, statement: ast.stmt | None) -> str | None:
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return None
    if ast.dump(statement.value) != ast.dump(value):
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return ", ".join(map(ast.unparse, targets))


def _expression(node: ast.expr, target: str | None) -> Expression:
    if isinstance(node, ast.BinOp):
        return _operator(node, node.op, (node.left, node.right), target)
    if isinstance(node, ast.UnaryOp):
        return _operator(node, node.op, (node.operand,), target)
    ops: tuple[str, ...] = ()
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Tuple):
        ops = _INDEXING
    elif isinstance(node, ast.Call | ast.Attribute):
        name = ast.unparse(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]
        ops = _NAMED.get(name, (name,))
    return Expression(ast.unparse(node), ops, (), (), target)


def _operator(
    node: ast.AST, operator: ast.AST, operands: tuple[ast.expr, ...], target: str | None
) -> Expression:
    texts = tuple(map(ast.unparse, operands))
    variables = tuple(
        text for text, operand in zip(texts, operands, strict=True) if not _is_number(operand)
    )
    return Expression(
        ast.unparse(node), _OPERATORS.get(type(operator), ()), texts, variables, target
    )


def _is_number(node: ast.expr) -> bool:
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)
