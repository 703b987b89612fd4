"""Choose the instructions of a code object that matter to a watch of it.

In: a code object with its map, and the names that are wanted. Out: what to do at which instruction,
and which names to poll. Fixed for as long as the watch lasts; must not know: frames and probes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import CodeType
from typing import Literal, TypeAlias

from clew.observe.variables.frames.bytecode import CodeMap, NameStep

Params: TypeAlias = Literal["wanted", "begin", "followed"]


class WatchedSteps:
    """The instructions and names of one code object that matter; for `params` see `CodeWatch`."""

    __slots__ = (
        "_lines", "_map", "_wanted", "after", "begin_with_value", "offsets", "params", "polled",
        "steps",
    )  # fmt: skip

    def __init__(
        self, code: CodeType, code_map: CodeMap, wanted: Callable[[str], bool], params: Params,
        lines: bool, polls: bool, inside: bool,
    ) -> None:  # fmt: skip
        self._map = code_map
        always = code_map.params if params == "followed" else ()
        self._wanted = {n: n in always or bool(wanted(n)) for n in self._names(code)}
        # The names to poll: all that are wanted, or none.
        named = [name for name, is_wanted in self._wanted.items() if is_wanted]
        self.polled = named if polls else []
        self._lines = lines or bool(self.polled)
        own = set(code.co_varnames).difference(code_map.params, code.co_cellvars)
        # Whether one of the names may have a value as a call begins.
        self.begin_with_value = not own.issuperset(named)
        self.params = [n for n in code_map.params if params != "wanted" or self._wanted.get(n)]
        steps = code_map.steps if inside else {}
        self.steps = {at: step for at, step in steps.items() if self._matters(step)}
        # Bindings are reported at the next instruction, where the name has its value. Where that
        # may be reached by a jump, the binding itself has to be seen first.
        self.after = {after[0]: step for step, after in self._certain()}
        pending = {o for at in self.steps for o in code_map.following.get(at, ())}
        self.offsets = frozenset((*self.steps, *self.after, *pending))

    def bound(self, step: NameStep) -> list[str]:
        """Return the wanted names that an instruction binds."""
        return [name for name in step.bound if self._wanted[name]]

    def deleted(self, step: NameStep) -> list[str]:
        """Return the wanted names that an instruction deletes."""
        return [name for name in step.deleted if self._wanted[name]]

    def line_at(self, offset: int) -> int | None:
        """Return the line of an instruction that matters."""
        step = self.after.get(offset) or self.steps.get(offset)
        return None if step is None else step.at[0]

    def _names(self, code: CodeType) -> Iterable[str]:
        own = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
        for step in self._map.steps.values():
            own |= dict.fromkeys((*step.bound, *step.deleted))
        return [name for name in own if not name.startswith(".") and name != "__class__"]

    def _matters(self, step: NameStep) -> bool:
        is_wanted = any(self._wanted[name] for name in (*step.bound, *step.deleted))
        return is_wanted or bool(step.line and self._lines)

    def _certain(self) -> list[tuple[NameStep, tuple[int, ...]]]:
        """Return the bindings that surely ran when the instruction after them runs."""
        found: list[tuple[NameStep, tuple[int, ...]]] = []
        for at, step in list(self.steps.items()):
            after = self._map.following.get(at, ())
            is_alone = len(after) == 1 and after[0] not in self._map.targets
            if (step.bound or step.deleted) and is_alone:
                found.append((step, after))
                del self.steps[at]
                if step.line and self._lines:
                    self.steps[at] = replace(step, bound=(), deleted=())
        return found


class InstructionBudget:
    """How often each instruction is reported; `spent` are those that ran more often."""

    __slots__ = ("_hits", "_most", "spent")

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._hits: dict[int, int] = {}
        self.spent: set[int] = set()

    def use(self, offset: int) -> bool:
        """Count an instruction that ran; return whether it is still to be reported."""
        if self._most is None:
            return True
        hits = self._hits[offset] = self._hits.get(offset, 0) + 1
        if hits >= self._most:
            self.spent.add(offset)
        return hits < self._most

    def renew(self) -> None:
        """Begin to count anew."""
        self._hits.clear()
        self.spent.clear()
