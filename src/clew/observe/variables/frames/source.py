"""A function's definition as a syntax tree, and a changed definition as a code object.

In: a function's code. Out: its `def` node with the positions of the file, but only if compiling
that node gives exactly the code that runs; and the code of an edited node, fit to replace it.
Must not know: what is edited.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import inspect
import linecache
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

from clew.observe.variables.frames.hooks import code_tree
from clew.observe.variables.frames.linetable import settle

Def: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

# Both end in two underscores, so that a class does not mangle them.
_FACTORY = "__clew_factory__"
_DEF = "__clew_def__"
_FUTURE = reduce(
    or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
# Flags that depend on where the function is defined and on its decorators, not on what it does.
_OF_PLACE = inspect.CO_NESTED | inspect.CO_ITERABLE_COROUTINE
_QUALNAME_IN_CODE = sys.version_info >= (3, 11)


class NoSource(Exception):
    """The function cannot be rewritten; the text says why."""


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a function was defined: its code, and the text of its `def` at its position."""

    code: CodeType
    qualname: str
    text: str
    imports: tuple[str, ...] = ()

    def parse(self) -> Def:
        """Return a new tree of the definition, without what ran when the function was created."""
        with _silence():
            return _strip(_find(_parsed(self.text), self.code))

    def compile(self, node: Def) -> CodeType:
        """Compile an edited tree into code that can take the place of `code`."""
        return settle(_compile(node, self))


def definition(function: FunctionType) -> Definition:
    """Read a function's definition, or raise NoSource."""
    code = function.__code__
    if code.co_name == "<lambda>":
        raise NoSource("a lambda has no statements to put anything between")
    qualname = getattr(code, "co_qualname", None) or function.__qualname__
    key = (code, code.co_filename, qualname)
    found = _known.get(key)
    if found is None:
        found = _read(code, qualname, function.__globals__)
        if len(_known) > 256:
            _known.clear()
        _known[key] = found
    return found


_known: dict[tuple[CodeType, str, str], Definition] = {}


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppress warnings about the source: Python gave them when it was first compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _read(code: CodeType, qualname: str, namespace: dict[str, Any]) -> Definition:
    for fresh in (False, True):
        if fresh:
            # The file may have been rewritten since it was read.
            linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename, namespace)
        if code.co_firstlineno > len(lines):
            continue
        text = _block(lines, code.co_firstlineno)
        for imports in (_likely_imports(code, namespace), None):
            try:
                known = _imports("".join(lines)) if imports is None else imports
                found = Definition(code, qualname, text, known)
                compiled = found.compile(found.parse())
            except (SyntaxError, ValueError, NoSource):
                break
            if _same(code, compiled):
                return found
    if not lines:
        raise NoSource(f"there is no source for {code.co_filename}")
    raise NoSource(f"the source in {code.co_filename} is not what was compiled")


# Python compiles `np.array(x)` differently where the module's own text imports `np`. That text
# is long; so the imported names are first guessed from the values of the names.


def _likely_imports(code: CodeType, namespace: dict[str, Any]) -> tuple[str, ...]:
    names = dict.fromkeys(name for part in code_tree(code) for name in part.co_names)
    own = namespace.get("__name__")
    return tuple(name for name in names if _is_foreign(namespace.get(name), own))


def _is_foreign(value: object, own: object) -> bool:
    if isinstance(value, ModuleType):
        return True
    defined = isinstance(value, type | FunctionType | BuiltinFunctionType)
    return defined and getattr(value, "__module__", own) != own


def _imports(text: str) -> tuple[str, ...]:
    """Return the names a module's text imports outside its functions and classes."""
    found: dict[str, None] = {}
    with _silence():
        pending: list[ast.AST] = [_parsed(text)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= dict.fromkeys(n.asname or n.name.split(".")[0] for n in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            pending.extend(ast.iter_child_nodes(node))
    return tuple(name for name in found if name != "*")


def _parsed(text: str) -> ast.Module:
    """Parse source text, once more where Python 3.11 fails.

    It says "AST constructor recursion depth mismatch" if a garbage collection comes while it makes
    the tree, and what that ends has Python parse something else.
    """
    try:
        return ast.parse(text)
    except SystemError:
        return ast.parse(text)


def _block(lines: list[str], first: int) -> str:
    """Return the text of one definition, at its original lines and columns."""
    block = "".join(inspect.getblock(lines[first - 1 :]))
    if not block[:1].isspace():
        return "\n" * (first - 1) + block
    # Removing the indentation would move columns and change strings that span lines.
    return "\n" * (first - 2) + "if 1:\n" + block


def _find(tree: ast.Module, code: CodeType) -> Def:
    node = tree.body[0] if tree.body else None
    if isinstance(node, ast.If):
        node = node.body[0]
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != code.co_name:
        raise NoSource(f"there is no def {code.co_name} in line {code.co_firstlineno}")
    return node


def _strip(node: Def) -> Def:
    """Remove decorators, defaults and annotations: they have run, and are not part of the code.

    A placeholder for each decorator stays at its line, where the code object begins.
    """
    node.decorator_list = [ast.copy_location(ast.Constant(None), d) for d in node.decorator_list]
    node.returns = None
    args = node.args
    args.defaults = []
    args.kw_defaults = [None] * len(args.kwonlyargs)
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    for arg in every:
        if arg is not None:
            arg.annotation = None
    if sys.version_info >= (3, 12):
        node.type_params = []
    return node


def _compile(node: Def, of: Definition) -> CodeType:
    """Compile `node` inside scopes like those it was written in, and extract its code."""
    code, cls = of.code, _enclosing_class(of.qualname)
    node.name = _DEF
    body: list[ast.stmt] = [node]
    prefix = f"{_FACTORY}.<locals>."
    if cls is not None:
        # A class mangles private names, and gives `super()` its cell.
        body = [ast.ClassDef(name=cls, bases=[], keywords=[], body=[node], decorator_list=[])]
        prefix = f"{cls}."
        if cls in code.co_freevars:
            prefix = f"{_FACTORY}.<locals>.{cls}."
        else:
            body.insert(0, ast.Global([cls]))
    free = [ast.arg(name) for name in code.co_freevars if name != "__class__"]
    arguments = ast.arguments(posonlyargs=[], args=free, kwonlyargs=[], kw_defaults=[], defaults=[])
    factory = ast.FunctionDef(name=_FACTORY, args=arguments, body=body, decorator_list=[])
    outer: list[ast.stmt] = [factory]
    if of.imports:
        outer.append(ast.Import([ast.alias(name) for name in of.imports]))
    _complete(outer, node)
    with _silence():
        whole = compile(
            ast.Module(outer, type_ignores=[]),
            code.co_filename,
            "exec",
            flags=code.co_flags & _FUTURE,
            dont_inherit=True,
        )
    found = _dig(whole)
    return _renamed(found, prefix + _DEF, of.qualname).replace(
        co_name=code.co_name,
        co_flags=found.co_flags & ~_OF_PLACE | code.co_flags & _OF_PLACE,
    )


def _complete(statements: list[ast.stmt], node: Def) -> None:
    """Give positions and empty fields to the nodes that enclose a complete definition."""
    pending: list[ast.AST] = list(statements)
    while pending:
        added = pending.pop()
        if added is node:
            continue
        ast.copy_location(added, node)
        if sys.version_info >= (3, 12) and isinstance(added, ast.ClassDef | ast.FunctionDef):
            added.type_params = []
        pending.extend(ast.iter_child_nodes(added))


def _enclosing_class(qualname: str) -> str | None:
    """Return the innermost class that encloses a function, whose private names it mangles."""
    parts = qualname.split(".")[:-1]
    while parts:
        last = parts.pop()
        if last != "<locals>":
            return last
        if parts:
            parts.pop()  # the function whose locals these are
    return None


def _dig(code: CodeType) -> CodeType:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_name == _DEF:
                return const
            if const.co_name not in ("<lambda>", "<listcomp>"):
                return _dig(const)
    raise NoSource("the compiled definition was not found")


def _renamed(code: CodeType, old: str, new: str) -> CodeType:
    """Correct the qualified name, here, in nested code and in constants of classes."""
    consts = []
    for const in code.co_consts:
        if isinstance(const, CodeType):
            const = _renamed(const, old, new)
        elif isinstance(const, str) and const.startswith(old):
            const = new + const[len(old) :]
        consts.append(const)
    changes: dict[str, Any] = {"co_consts": tuple(consts)}
    if _QUALNAME_IN_CODE:
        qualname: str = getattr(code, "co_qualname")  # noqa: B009 - 3.10 has none
        changes["co_qualname"] = new + qualname[len(old) :]
    return code.replace(**changes)


_COMPARED = (
    "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_name",
    "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_firstlineno", "co_linetable",
)  # fmt: skip


def _same(a: CodeType, b: CodeType) -> bool:
    """Return whether two code objects do the same, at the same lines and columns."""
    if any(getattr(a, name) != getattr(b, name) for name in _COMPARED):
        return False
    if len(a.co_consts) != len(b.co_consts):
        return False
    return all(map(_same_const, a.co_consts, b.co_consts))


def _same_const(a: object, b: object) -> bool:
    if isinstance(a, CodeType) and isinstance(b, CodeType):
        return _same(a, b)
    # repr distinguishes 1 from 1.0, True and -0.0, also in tuples; frozensets have no order.
    return (
        type(a) is type(b)
        and (a == b or a != a)
        and (isinstance(a, frozenset) or repr(a) == repr(b))
    )
