"""Named values on their way into a recording: taps, gradients, parameters.

In come values and the names the program or an address gives them, out go events whose subject is
a `Label`. A function that is to reduce a value runs unseen, and its failure costs nothing but a
gap: the value itself is kept then.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import nn, no_grad

from clew.address import Address, Key, join
from clew.capture.recording import NAME, NODE, Recording, Where
from clew.capture.taps import current_prefix, listen
from clew.capture.torch_compat import is_compiling, unobserved, without_modes
from clew.events.model import Gap
from clew.events.records import PREFIX, TAP, Label


class Named:
    """Records values by name, as the options of their addresses say."""

    def __init__(self, recording: Recording, on_gap: Callable[[Gap], Any]) -> None:
        self._recording = recording
        self._on_gap = on_gap

    def record(
        self, label: Label, value: Any, where: Where, address: Address | None = None
    ) -> None:
        """Record a value that has a name; `address` is what asked for it."""
        self._recording.named(label, value, where)


class TapSource:
    """Records the taps and prefixes of the program."""

    def __init__(
        self,
        recording: Recording,
        reducer: Callable[[str], Callable[[Any], Any]],
        on_gap: Callable[[Gap], Any],
    ) -> None:
        self._recording = recording
        self._reducer = reducer
        self._on_gap = on_gap
        self._end: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Listen from here on."""
        prefix = current_prefix()
        if prefix:
            self.prefixed(prefix)
        self._end = listen(self, is_compiling, self._recording.modules.paths())

    def stop(self) -> None:
        """Listen no more."""
        self._end()

    def tapped(
        self, name: str, value: Any, module: Any, reduce: Any, frame: FrameType | None
    ) -> None:
        """A value was marked."""
        try:
            stem, path = self._stem(name, module)
            if reduce is not None:
                value = reduced(value, self._function(reduce), stem, self._on_gap)
            self._recording.named(Label(TAP, stem, str(name), module=path), value, frame)
        except Exception as fault:
            self._recording.on_fault(fault, f"the tap {name!r}")

    def missed(self, name: str) -> None:
        """A tap in compiled code was given something that is no tensor."""
        self._on_gap(
            Gap("a tap", name, "inside compiled code only tensors can be tapped",
                "tap a tensor, or use clew.trace(compiled='eager')")
        )  # fmt: skip

    def prefixed(self, prefix: str) -> None:
        """A stretch of the run begins or ends."""
        self._recording.mark(Label(PREFIX, prefix, prefix))

    def _function(self, reduce: Any) -> Callable[[Any], Any]:
        return self._reducer(reduce) if isinstance(reduce, str) else reduce

    def _stem(self, name: str, module: Any) -> tuple[str, str | None]:
        """The address of a tap, and the path of the module it belongs to."""
        lane = self._recording.lane()
        caller = lane.stack[-1][NAME]
        if isinstance(module, nn.Module):
            place = lane.stack[-1][NODE].index
            path: str | None = self._recording.modules.name_of(module, caller, place).path
        elif isinstance(module, str):  # of a module inside compiled code
            path = module
        else:
            path = None if caller is None else caller.path
        return stem_of(path, name), path


def stem_of(path: str | None, name: str) -> str:
    """The address of a named value of a module; a name that needs quotes gets them."""
    own = join([Key(name)])
    return own if not path else path + own if own.startswith("[") else f"{path}.{own}"


def reduced(
    value: Any, function: Callable[[Any], Any], where: str, on_gap: Callable[[Gap], Any]
) -> Any:
    """What a function makes of a value, the value itself if it fails."""
    try:
        with unobserved(), no_grad(), without_modes():
            return function(value)
    except Exception as error:
        called = getattr(function, "__name__", type(function).__name__)
        on_gap(
            Gap("a reduced value", where, f"{called} raised {type(error).__name__}: {error}",
                "the value itself was kept")
        )  # fmt: skip
        return value
