"""Intern call stacks as a tree of nodes.

Input: live frames. Output: a `StackNode`. A node is one instruction in one code object,
reached by one path of calls. A million ops on the same lines share a few nodes, and no frame is
held.
"""

from __future__ import annotations

import dis
import functools
import itertools
import linecache
import os
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeAlias

from clew.events.columns import Place
from clew.events.model import Source
from clew.events.notebook_cells import file_of, shown_file
from clew.events.vocabulary import FORWARD, OPTIMIZER
from clew.frame_locals import some_locals
from clew.machinery import MACHINERY

# File, function, line, last line, column, last column.
Position: TypeAlias = tuple[str, str, int, int, int, int]
_Span: TypeAlias = tuple[int | None, int | None, int | None, int | None]


class StackNode:
    """One call position: instruction `lasti` of `code`, reached through `parent`."""

    __slots__ = (
        "code", "direct", "index", "kids", "lasti", "lines", "parent", "phase", "site", "thread",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        parent: StackNode | None,
        code: CodeType | None,
        lasti: int,
        phase: int,
        thread: int,
    ) -> None:
        self.index = index
        self.parent = parent
        self.code = code
        self.lasti = lasti
        self.phase = phase
        self.thread = thread
        # File, function and position, for a notebook cell or once the code object is dropped.
        self.site: Position | None = None
        # The lines of user code from the outermost down to here, once someone asked for them.
        self.lines: tuple[Source, ...] | None = None
        # Children by (id(code), lasti), and shortcuts to descendants by the flattened chain of
        # those pairs, innermost first. Ids are safe as keys: nodes keep their code alive.
        self.kids: dict[tuple[int, ...], StackNode] = {}
        # Whether a frame named `forward` lies between here and the enclosing module call.
        self.direct = False


class StackTree:
    """All nodes of the process: recordings after the first find their paths already there."""

    def __init__(self) -> None:
        self.nodes: list[StackNode] = []
        # Code objects that a compiler made. This tree may hold the only references to them.
        self._made: list[CodeType] = []
        self._roots: dict[tuple[int, int], StackNode] = {}
        # Called when code objects are dropped: their ids may be those of others from then on.
        self.on_let_go: Callable[[], None] | None = None

    def root(self, thread: int, phase: int = FORWARD) -> StackNode:
        """Return the tree root of a recording's n-th thread."""
        node = self._roots.get((thread, phase))
        if node is None:
            node = self._roots[thread, phase] = self._add(None, None, -1, phase, thread)
        return node

    def child(
        self, parent: StackNode, code: CodeType, lasti: int, phase: int | None = None
    ) -> StackNode:
        """Return the node for `code` at `lasti` called from `parent`, which gives it a phase."""
        key = (id(code), lasti)
        node = parent.kids.get(key)
        if node is None:
            phase = MACHINERY.phases.get(code, parent.phase) if phase is None else phase
            node = self._add(parent, code, lasti, phase, parent.thread)
            parent.kids[key] = node
            file = shown_file(code.co_filename)
            if file != code.co_filename:
                # Read it now: the same cell run again has the same file and another number.
                node.site = (file, *_site_in_file(code, lasti, _positions(code))[1:])
            if MACHINERY.is_compiled(code) or code.co_filename.startswith(MACHINERY.generated):
                self._made.append(code)
        return node

    def below(self, above: StackNode, position: Position) -> StackNode:
        """Return the node for a position without a code object, called from `above`."""
        key = (-1, hash(position))
        found = above.kids.get(key)
        if found is None:
            found = self._add(above, None, -1, above.phase, above.thread)
            found.site = position
            above.kids[key] = found
        return found

    def descend(self, base: StackNode, frames: list[FrameType]) -> StackNode:
        """Return the node reached from `base` through `frames`, given innermost first."""
        node = base
        path: list[int] = []
        closures: list[CodeType] = []
        for frame in reversed(frames):
            code = frame.f_code
            # The outermost frame under a module call is the forward of that module.
            direct = node.direct or (code.co_name == "forward" and node is not base)
            node = self.child(node, code, frame.f_lasti, FORWARD if code in closures else None)
            node.direct = direct
            path[:0] = id(code), frame.f_lasti
            if MACHINERY.phases.get(code) == OPTIMIZER:
                closures = functions_given(frame)
        if path:
            base.kids[tuple(path)] = node
        return node

    def descend_traceback(self, base: StackNode, traceback: TracebackType | None) -> StackNode:
        """Return the node where an exception was raised that left the call of `base`."""
        steps: list[tuple[CodeType, int]] = []
        while traceback is not None:
            code = traceback.tb_frame.f_code
            # Every frame up to that of the call itself is machinery.
            if code is MACHINERY.call_frame:
                steps = []
            elif id(code) not in MACHINERY.hidden:
                steps.append((code, traceback.tb_lasti))
            traceback = traceback.tb_next
        for code, lasti in steps:
            base = self.child(base, code, lasti)
        return base

    def let_go(self, codes: list[CodeType], since: int = 0) -> None:
        """Drop references to some code objects; their nodes keep file, function and line.

        The first of these nodes comes at `since` or later.
        """
        gone = set(map(id, codes))
        if self.on_let_go is not None:
            self.on_let_go()
        above: dict[int, StackNode] = {}
        positions: dict[int, Sequence[_Span]] = {}
        for node in self.nodes[since:]:
            code = node.code
            if code is not None and id(code) in gone:
                if node.site is None:
                    if id(code) not in positions:
                        positions[id(code)] = list(_positions(code))
                    node.site = _site_in_file(code, node.lasti, positions[id(code)])
                node.code = None
                # Only nodes above have ways down to it.
                parent = node.parent
                while parent is not None and parent.index not in above:
                    above[parent.index] = parent
                    parent = parent.parent
        for node in above.values():
            # A list, as other threads may add to the dict.
            kids = list(node.kids.items())
            node.kids = {key: kid for key, kid in kids if gone.isdisjoint(key[::2])}

    def let_go_of_made(self) -> None:
        """Drop code that a compiler made: its graphs live as long as the code does."""
        made, self._made = self._made, []
        if made:
            self.let_go(made)

    def _add(
        self, parent: StackNode | None, code: CodeType | None, lasti: int, phase: int, thread: int
    ) -> StackNode:
        node = StackNode(len(self.nodes), parent, code, lasti, phase, thread)
        self.nodes.append(node)
        return node


# Shared by all recorders of this process.
STACKS = StackTree()


def functions_given(frame: FrameType) -> list[CodeType]:
    """Return the code of functions passed to `optimizer.step`: they run the model again."""
    args, kwargs = some_locals(frame, ("args", "kwargs"))
    found: list[Any] = []
    for given in (*(args or ())[1:], *(kwargs or {}).values()):
        while isinstance(given, functools.partial):
            # A partial that stands for another function, as ours for a closure, has `__wrapped__`.
            given = getattr(given, "__wrapped__", given.func)
        if callable(given):
            function = given if hasattr(given, "__code__") else type(given).__call__
            found.append(getattr(function, "__code__", None))
    return [code for code in found if code is not None]


def boundary_of(frame: FrameType | None) -> int:
    """Return the id of the frame above the `with` statement that `frame` is executing.

    Frames from there up never change while the block runs, so stacks need not be walked further.
    Without such a statement (`start()`, `ExitStack`) it is `id(None)`, the top of every stack.
    """
    if frame is None or frame.f_lasti < 0:
        return id(None)
    opcode = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return id(frame.f_back) if opcode in _WITH_OPCODES else id(None)


_WITH_OPCODES = {"BEFORE_WITH", "SETUP_WITH", "LOAD_SPECIAL"}


def position_of(code: CodeType, line: int) -> Position:
    """Return the position of a line of a function."""
    file = shown_file(code.co_filename)
    return file, getattr(code, "co_qualname", code.co_name), line, line, 0, 0


def lines_of(node: StackNode) -> tuple[Source, ...]:
    """Return the lines of user code at and above a node, outermost first, without libraries."""
    below: list[StackNode] = []
    at: StackNode | None = node
    while at is not None and at.lines is None:
        below.append(at)
        at = at.parent
    lines = () if at is None else at.lines or ()
    for one in reversed(below):
        place = place_of(one, -1)
        if place.line > 0 and not place.library:
            text = linecache.getline(file_of(place.file), place.line).strip()
            columns = place.line, place.end_line, place.col, place.end_col
            lines = (*lines, Source(place.file, *columns, place.function, text))
        one.lines = lines
    return lines


def place_of(node: StackNode, parent: int) -> Place:
    """Return the row of a node; `parent` is the row of the node above it."""
    site = node.site or _site(node)
    if site is None:
        return Place(parent, "", "", 0, 0, 0, 0, True, node.phase, node.thread)
    library = _in_library(site[0])
    return Place(parent, *site, library, node.phase, node.thread)


def _in_library(file: str) -> bool:
    """Return whether a file is torch's, Clew's or Python's; installed packages are user code."""
    if file.startswith(MACHINERY.libraries):
        return True
    return file.startswith(_STANDARD_LIBRARY) and "-packages" + os.sep not in file


_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def _site(node: StackNode) -> Position | None:
    code = node.code
    return None if code is None else _site_in_file(code, node.lasti, _positions(code))


def _site_in_file(code: CodeType, lasti: int, positions: Iterable[_Span]) -> Position:
    name = getattr(code, "co_qualname", code.co_name)
    return code.co_filename, name, *_position(code, lasti, positions)


def _positions(code: CodeType) -> Iterable[_Span]:
    """Return line, last line, column and last column of each instruction, where Python has them."""
    return code.co_positions() if hasattr(code, "co_positions") else ()


def _position(code: CodeType, lasti: int, positions: Iterable[_Span]) -> tuple[int, int, int, int]:
    """Return line, last line, column and last column of an instruction."""
    found = next(itertools.islice(positions, lasti // 2, None), None)
    line, end_line, col, end_col = found or (None, None, None, None)
    if line is not None:
        return line, end_line or line, col or 0, end_col or 0
    for start, end, begun in code.co_lines():
        if start <= lasti < end and begun is not None:
            return begun, begun, 0, 0
    return code.co_firstlineno, code.co_firstlineno, 0, 0
