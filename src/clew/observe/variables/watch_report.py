"""Report what a watch did not see: names that nothing had, functions that other code replaced.

Input: the names that were asked for and the code that ran. Output: gaps, and a note of each among
the events of the watch. Must not know: how variables are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from clew.address import nearest
from clew.events.model import Gap
from clew.events.watch_events import WatchedCall, WatchEvent
from clew.observe.variables.frames.bytecode import bound_names
from clew.observe.variables.selector import VariableSelector
from clew.observe.variables.watched_calls import WatchedCalls
from clew.record.recorder import Recorder


class WatchReport:
    """The gaps of a watch; those that were reported are not reported again."""

    def __init__(
        self,
        recorder: Recorder,
        names: VariableSelector,
        calls: WatchedCalls,
        show: Callable[[WatchEvent], None] | None,
        on_gap: Callable[[Gap], Any],
    ) -> None:
        self._recorder = recorder
        self._names = names
        self._calls = calls
        self._said: set[str] = set()
        self.show = show
        self.on_gap = on_gap

    def say_compiled(self) -> None:
        """Report that other code ran in place of the function's own, as with torch.compile."""
        name = ", ".join(sorted(code.co_name for code in self._calls.roots))
        if name not in self._said:
            self.say(
                Gap("a watched function", name, "it was called but its own code did not run, as "
                    "when torch.compile runs other code in its place",
                    "run it under torch.compiler.set_stance('force_eager') to see inside")
            )  # fmt: skip
        self._said |= {name, *(address.text for address in self._names.addresses)}

    def unmatched(self) -> Iterator[Gap]:
        """Yield a gap for each name that no function had, with the nearest names that ran."""
        ledger = self._names.ledger
        ledger.came.update(self._recorder.met_by_workers)
        for address in ledger.unmatched():
            if address.text not in self._said:
                met = {name for code in self._calls.ran for name in bound_names(code)}
                last = str(address.segments[-1]) if address.segments else address.text
                close = ", ".join(nearest(last, sorted(met))) or "none"
                yield Gap("a variable to watch", address.text, "nothing that ran has it",
                          f"the nearest that ran: {close}")  # fmt: skip

    def say_missed(self) -> None:
        """Report the names that no function had."""
        for gap in self.unmatched():
            self._said.add(gap.where)
            self.say(gap)

    def say(self, gap: Gap) -> None:
        """Report a gap, with a note among the other events if it is new."""
        if self.on_gap(gap) is not False:
            self.note(gap)

    def note(self, gap: Gap) -> None:
        """Send a gap to the output, as a note among the other events."""
        if self.show is not None:
            call = WatchedCall(next(self._calls.numbers), None, 0, "", "", 0)
            self.show(WatchEvent("note", call, 0, text=str(gap)))
