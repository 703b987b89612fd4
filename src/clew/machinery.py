"""Code that has a meaning on a call stack: torch's, a compiler's, the libraries'."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

# Clew's own folder.
OURS = os.path.dirname(__file__) + os.sep


@dataclass(slots=True)
class Machinery:
    """Code that has a meaning on a call stack; `torch_compat` fills in torch's."""

    # The frame that runs a module's hooks and then its forward.
    call_frame: CodeType | None = None
    # Ids of code never shown.
    hidden: set[int] = field(default_factory=set)
    # A frame of this code on the stack means this phase.
    phases: dict[CodeType, int] = field(default_factory=dict)
    # Where code comes from that is not in any file, but was made by a compiler.
    generated: tuple[str, ...] = ("<eval_with_key>",)
    # Whether code, though it names a file, was made by a compiler.
    is_compiled: Callable[[CodeType], bool] = lambda code: False
    # Put aside what `torch.jit.trace` follows on this thread, if it does, and have it go on: what
    # is done with its tensors goes into its graph, and their sizes are tensors.
    pause_jit: Callable[[], Any] = lambda: None
    resume_jit: Callable[[Any], None] = lambda state: None
    # Folders of code that is not the user's.
    libraries: tuple[str, ...] = (
        OURS,
        "<frozen ",
        "<eval_with_key>",
    )


MACHINERY = Machinery()
