"""TensorTracer's `Variable`, paths that are traced in the same way, and its results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clew.compat.engine.collecting import Collector, GlobalVariableResult, LocalVariableResult
from clew.errors import ClewError
from clew.session import unrecorded

__all__ = ["GlobalVariableResult", "LocalVariableResult", "ResultEntry", "Variable"]

ResultEntry = GlobalVariableResult


@dataclass(eq=False)
class Variable(Collector):
    """Paths that are traced alike: in every `trace_interval`-th pass of a mode, "train", "eval" or
    None for both; and what came of them, gathered every `gather_interval` passes."""

    paths: Any
    trace_interval: int = 1
    gather_interval: int = 1
    pre_save_callbacks: Any = field(default_factory=list)
    pre_gather_callbacks: Any = field(default_factory=list)
    post_gather_callbacks: Any = field(default_factory=list)
    post_trace_callbacks: Any = field(default_factory=list)
    mode: str | None = "train"
    takes_lists: bool = False  # whether callbacks get the lists of a result, as the README's do

    def __post_init__(self) -> None:
        super().__init__()
        self.paths = [self.paths] if isinstance(self.paths, str) else list(self.paths)
        if not self.paths or not all(isinstance(path, str) for path in self.paths):
            told = "give paths such as 'forward.x' or 'layers.*'"
            raise ClewError(f"Variable({self.paths!r}): {told}")
        self.target_paths = [path.split(".") for path in self.paths]

    def save_variable_result(self, var_name: str, value: Any, current_iteration: int) -> None:
        """Save a value of the program's own, if it has changed or the iteration is another."""
        with unrecorded():
            self.save(var_name, value, current_iteration, if_changed=True)

    def gather_results(self, rank: int, world_size: int) -> None:
        """Send what was saved to callbacks and `results` on rank 0; all ranks have to call this."""
        if world_size == 1:
            self.arrived({rank: self.taken()})
        else:
            self.gather()

    def handed(self, name: str, result: Any) -> tuple[Any, ...]:
        """Return the arguments that a callback gets for a result."""
        *facts, values = vars(result).values()
        return (name, values, *facts) if self.takes_lists else (name, result)
