"""Code objects that have a meaning on a call stack: torch's, a compiler's, the libraries'."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

# The folder of this package.
OURS = os.path.dirname(__file__) + os.sep


@dataclass(slots=True)
class Machinery:
    """Code that has a meaning on a call stack; `torch_compat` fills in torch's."""

    # The frame that runs a module's hooks and then its forward.
    call_frame: CodeType | None = None
    # The outermost frame of a module call, which is that of a call that the native engine follows.
    wrapped_call: CodeType | None = None
    # Code objects that are never shown, and their ids. See `hide`.
    hidden_codes: list[CodeType] = field(default_factory=list)
    hidden: set[int] = field(default_factory=set)
    # A frame of this code on the stack means this phase.
    phases: dict[CodeType, int] = field(default_factory=dict)
    # File names of code that a compiler made and that is in no file.
    generated: tuple[str, ...] = ("<eval_with_key>",)
    # Returns whether a compiler made code, although the code names a file.
    is_compiled: Callable[[CodeType], bool] = lambda code: False
    # Pause and resume `torch.jit.trace` on this thread, if it runs: whatever is done with its
    # tensors goes into its graph, and their sizes are tensors.
    pause_jit: Callable[[], Any] = lambda: None
    resume_jit: Callable[[Any], None] = lambda state: None
    # Folders of code that is not user code.
    libraries: tuple[str, ...] = (
        OURS,
        "<frozen ",
        "<eval_with_key>",
    )

    def hide(self, *codes: CodeType) -> None:
        """Never show frames of some code."""
        self.hidden_codes += codes
        self.hidden |= set(map(id, codes))


MACHINERY = Machinery()
