"""The source expression of an op: its text, its operands, the name its result is assigned to.

Input: ops of a live trace, or positions in the source. Output: texts from the source. An expression
on several lines is read too, if its statement begins and ends with it.
"""

from __future__ import annotations

import ast
import linecache
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from clew.events.live_events import Happening, LiveValue, values_in
from clew.events.model import Source
from clew.events.notebook_cells import file_of

_PRODUCTS = ("mm", "bmm", "mv", "dot")
_VIEWS = ("view", "unsafe_view")
# The ops that an operator stands for; other ops that it runs prepare the operands.
_OPERATORS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.MatMult: _PRODUCTS, ast.Add: ("add",), ast.Sub: ("sub", "rsub"), ast.Mult: ("mul",),
    ast.Div: ("div",), ast.FloorDiv: ("floor_divide",), ast.Mod: ("remainder",),
    ast.Pow: ("pow",), ast.USub: ("neg",), ast.Invert: ("bitwise_not",),
}  # fmt: skip
# The same for functions and attributes whose ops have a different name.
_NAMED = {
    "matmul": _PRODUCTS, "reshape": _VIEWS, "flatten": _VIEWS, "chunk": ("split",),
    "contiguous": ("clone",), "T": ("permute",), "mT": ("transpose",),
    **dict.fromkeys(("to", "float", "double", "half", "bfloat16", "long"), ("to_copy",)),
}  # fmt: skip
# An index that is no tuple runs one op, by the kind of the index.
_INDEXING = ("select", "slice", "index", "unsqueeze", "alias")
# An expression has few ops before its main op; one that runs in a loop may never reach it.
_MOST_ORIGINS = 64


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression as written in the source.

    `ops` are the bare names of the ops that it stands for. `operands` are those of an operator,
    `variables` those of them that are no numbers. `target` is what the result is assigned to, None
    if it is not assigned, or together with other results.
    """

    text: str
    ops: tuple[str, ...]
    operands: tuple[str, ...]
    variables: tuple[str, ...]
    target: str | None

    def stands_for(self, op: str) -> bool:
        """Return whether an op is the one written here, and not one that runs in preparation."""
        return op.strip("_") in self.ops

    def names(self, op: str, tensors: Sequence[int]) -> dict[int, str]:
        """Return the source names of an op's tensor arguments, by their positions.

        Arguments that are no operands here, or could be either operand, are left out.
        """
        operands = self.operands[::-1] if op == "rsub" else self.operands
        if len(tensors) == 1 and op.strip("_") in ("add", "mul"):
            # The tensor is the first argument, on whichever side of the operator it is written.
            operands = self.variables if len(self.variables) == 1 else ()
        return {at: operands[at] for at in tensors if at < len(operands)}


class Operand(NamedTuple):
    """A tensor that the source names."""

    name: str
    value: LiveValue


class Words(NamedTuple):
    """Text of an operator, its operands by the op's arguments, and the name of the op's result.

    An operand is the tensor that the source names, whose shape may differ from the argument's.
    """

    text: str | None = None
    inputs: Mapping[int, Operand] = MappingProxyType({})
    output: str | None = None


class Wording(threading.local):
    """Finds the source texts of ops as they run, thread by thread.

    An operator may run ops before and after its main op: `@` reshapes four dimensions to three. So
    the operands are the tensors that the arguments of the main op were made from, and the result is
    that of the op after it.
    """

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, source: Source | None) -> None:
        self._source = source
        # By the id of the prepared tensor; None if it is of no use for names.
        self._origins: dict[int, tuple[LiveValue, LiveValue | None]] = {}
        self._unfinished: Any = None

    def of(self, event: Happening, op: str) -> Words:
        """Return the texts for an op with a bare name; None for what the source does not show."""
        source = event.source
        if source != self._source:
            self._begin(source)
        found = None if source is None else expression_at(source)
        # Ops that a library call ran are not written there; those of an operator may be: `1 - x`.
        if found is None or not (event.is_direct or found.operands):
            return Words()
        if not found.stands_for(op):
            return Words(output=found.target) if self._is_last(event, op) else Words()
        text = found.text if found.operands else None
        taken = {at: v for at, v in enumerate(event.inputs) if isinstance(v, LiveValue)}
        origins = {at: self._origin(value) for at, value in taken.items()}
        self._begin(source)
        known = {at: value for at, value in origins.items() if value is not None}
        if len(known) < len(taken):
            return Words(text)
        names = found.names(op, list(taken))
        operands = {at: Operand(name, known[at]) for at, name in names.items()}
        if any(known[at].shape != value.shape for at, value in taken.items()):
            self._unfinished = event.outputs
            return Words(text, operands)
        return Words(text, operands, found.target)

    def _origin(self, value: LiveValue) -> LiveValue | None:
        return self._origins.get(id(value), (value, value))[1]

    def _is_last(self, event: Happening, op: str) -> bool:
        """Note a preparing op; return whether it is the one after the expression's main op."""
        taken, given = list(values_in(event.inputs)), list(values_in(event.outputs))
        if len(self._origins) > _MOST_ORIGINS:
            self._origins.clear()
        # In a transposed tensor operands may have changed sides.
        is_plain = len(taken) == 1 and op not in ("transpose", "t")
        for value in given:
            self._origins[id(value)] = value, self._origin(taken[0]) if is_plain else None
        return is_plain and taken[0] is self._unfinished


@lru_cache(maxsize=4096)
def expression_at(source: Source) -> Expression | None:
    """Return the expression at a position; None if there is no source or no column numbers."""
    found = linecache.getlines(file_of(source.file))[source.line - 1 : source.end_line]
    if not found or source.end_col == 0:
        return None
    statement, lines = "".join(found).strip(), [line.encode() for line in found]
    # Cut the end first: columns count from the beginning of a line.
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
