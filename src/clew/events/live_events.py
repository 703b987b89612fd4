"""Live events: what a running trace passes to a listener as events begin and end.

`clew.trace(live=listener)` calls the listener on the program's thread, so it should be quick. A
`Happening` holds no tensor; its values have facts, not data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from clew.events.model import Source
from clew.events.tensor_text import short_dtype, tensor_text
from clew.events.vocabulary import Opaque, RecordClass
from clew.plain_text import plain

_LONGEST = 40


@dataclass(frozen=True, slots=True)
class LiveValue:
    """Dtype, shape and other facts of a tensor or array; its `str` is `f32[2,3]`."""

    dtype: str
    shape: tuple[int, ...] | None
    device: str
    layout: str
    cls: str
    placements: str | None
    local_shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return tensor_text(self)

    @property
    def sizes(self) -> str:
        """Return the shape without brackets, `2, 3`."""
        return "?" if self.shape is None else ", ".join(map(str, self.shape))


@dataclass(frozen=True, slots=True)
class Happening:
    """A module call, op, note or named value, at its beginning or its end.

    `path` is that of the module that is called, or in which it ran; None outside any. `depth` is
    the number of module calls that contain it. `inputs` and `outputs` are nested lists and dicts of
    `LiveValue`s and constants, as in the call; `keywords` are the arguments by name. If an op
    writes to arguments it does not return, `outputs` is a dict: results by their number, a single
    one under `""`, and the arguments by name. `seconds` is None at the beginning. `is_direct` says
    whether a line of the program itself ran it, not a library that such a line called. `stack`
    returns the program's lines that led here, outermost first, without those of torch; `module` the
    module that is called, None for other events. `caller` is the function that ran an op: the
    program's, or the forward of a module of torch.
    """

    kind: str
    name: str
    path: str | None
    depth: int
    inputs: list[Any]
    keywords: dict[str, Any]
    outputs: Any
    seconds: float | None
    error: str | None
    is_direct: bool
    stack: Callable[[], tuple[Source, ...]]
    module: Callable[[], Any]
    caller: str | None = None

    @property
    def source(self) -> Source | None:
        """Return the innermost line of the program's code."""
        stack = self.stack()
        return stack[-1] if stack else None


class Listener(Protocol):
    """Object that gets live events; an exception it raises ends its calls, not the program."""

    def begins(self, event: Happening) -> None:
        """Handle the beginning of a module call."""

    def ends(self, event: Happening) -> None:
        """Handle the end of a module call or op, or a note or named value."""


def in_words(
    described: Any,
    tensor: Callable[[Any], str] = str,
    brackets: str = "[]",
    tensors: type | tuple[type, ...] = LiveValue,
) -> str:
    """Write arguments or a result, tensors with a given function: `[f32[2,3], {mask: None}]`."""
    if isinstance(described, tensors):
        return tensor(described)
    if isinstance(described, (list, tuple)):
        items = ", ".join(in_words(item, tensor, brackets, tensors) for item in described)
        ends = "()" if isinstance(described, tuple) else brackets
        return ends[0] + items + ends[1]
    if isinstance(described, dict):
        named = {key: in_words(item, tensor, brackets, tensors) for key, item in described.items()}
        return _named_words(described, named)
    return str(described)


def values_in(described: Any) -> Iterator[LiveValue]:
    """Yield the tensors in arguments or a result, at any depth."""
    if isinstance(described, LiveValue):
        yield described
    elif isinstance(described, (list, dict)):
        for item in described.values() if isinstance(described, dict) else described:
            yield from values_in(item)


def text_of(result: Any) -> str:
    """Write a result, `f32[2,3]` or `[f32[2,3], None]`; empty if there is none."""
    return "" if result is None else plain(_words(result))


def _words(described: Any) -> str:
    if isinstance(described, list):
        return f"[{', '.join(map(_words, described))}]"
    if isinstance(described, dict):
        return _named_words(described, {key: _words(item) for key, item in described.items()})
    if isinstance(described, str) and not isinstance(described, Opaque | RecordClass):
        return repr(described if len(described) <= _LONGEST else described[:_LONGEST] + "…")
    text = str(described)
    name = text.removeprefix("torch.")
    return text if name == text else short_dtype(name)


def _named_words(described: dict[str, Any], words: dict[str, str]) -> str:
    """Write the content of a dict, or of an object, whose class is under the empty name."""
    if not isinstance(described.get(""), Opaque | RecordClass):
        return f"{{{', '.join(f'{key}: {text}' for key, text in words.items())}}}"
    held = ", ".join(f"{key}={text}" for key, text in words.items() if key)
    return f"{words['']}({held})"


def arguments_text(event: Happening) -> str:
    """Write all arguments of a call."""
    named = [f"{name}={_words(value)}" for name, value in event.keywords.items()]
    return plain(", ".join([*map(_words, event.inputs), *named]))
