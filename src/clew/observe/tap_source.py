"""Record the taps and prefixes of a running program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import nn

from clew.callbacks.apply import Named, stem_of
from clew.callbacks.isolation import IsolatedCall
from clew.events.model import Gap
from clew.events.vocabulary import PREFIX, TAP, Label
from clew.machinery import MACHINERY
from clew.observe.taps import COMPILED_OPS, current_prefix, listen, unlisten
from clew.record.recorder import Recorder
from clew.record.thread_state import NAME, NODE
from clew.request.callbacks import reducer
from clew.torch_compat import is_compiling


class TapSource:
    """Records the taps and prefixes of the program."""

    def __init__(
        self,
        recorder: Recorder,
        named: Named,
        on_gap: Callable[[Gap], Any],
    ) -> None:
        self._recorder = recorder
        self._named = named
        self._on_gap = on_gap
        self._isolated = IsolatedCall(recorder, on_gap)

    def start(self) -> None:
        """Record taps and prefixes from here on."""
        prefix = current_prefix()
        if prefix:
            self.prefixed(prefix)
        # Where no tap was compiled yet, they are learned when the first one is.
        paths = self.paths() if COMPILED_OPS in sys.modules else {}
        listen(self, is_compiling, paths)

    def stop(self) -> None:
        """Stop recording taps and prefixes."""
        unlisten(self)

    def tapped(
        self, name: str, value: Any, module: Any, reduce: Any, frame: FrameType | None
    ) -> None:
        """Record a value that the program tapped."""
        jit = MACHINERY.pause_jit()
        try:
            stem, path = self._stem(name, module)
            if reduce is not None:
                function = reducer(reduce) if isinstance(reduce, str) else reduce
                value = self._isolated.call(function, value, stem, value)
            label = Label(TAP, stem, str(name), module=path)
            self._named.record(label, value, frame)
        except Exception as fault:
            self._recorder.gaps.fault(fault, f"the tap {name!r}")
        finally:
            if jit is not None:
                MACHINERY.resume_jit(jit)

    def missed(self, name: str) -> None:
        """Report a tap in compiled code that was given something that is no tensor."""
        self._on_gap(
            Gap("a tap", name, "inside compiled code only tensors can be tapped",
                "tap a tensor, or use clew.trace(compiled='eager')")
        )  # fmt: skip

    def prefixed(self, prefix: str) -> None:
        """Mark the prefix from here on: a stretch of the run begins or ends."""
        self._recorder.mark(Label(PREFIX, prefix, prefix))

    def paths(self) -> dict[int, str]:
        """Return the path of every module, by its id."""
        return self._recorder.modules.paths()

    def _stem(self, name: str, module: Any) -> tuple[str, str | None]:
        """Return the address of a tap, and the path of the module it belongs to."""
        thread = self._recorder.thread()
        caller = thread.stack[-1][NAME]
        if isinstance(module, nn.Module):
            place = thread.stack[-1][NODE].index
            path: str | None = self._recorder.modules.name_of(module, caller, place).path
        elif isinstance(module, str):  # of a module inside compiled code
            path = module
        else:
            path = None if caller is None else caller.path
        return stem_of(path, name), path
