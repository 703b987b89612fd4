"""The step that runs: its number, and whether it is a train or an eval step."""

from __future__ import annotations

from torch import nn

from clew.record.recorder import Recorder
from clew.record.steps import Steps
from clew.record.thread_state import START, ThreadState


class CurrentStep:
    """Begins steps, and says of each what kind it is: by the models given, or by what runs."""

    def __init__(self, recorder: Recorder) -> None:
        self.steps = Steps()
        self._recorder = recorder
        self._began = 0
        # Threads with a call open that began before the step.
        self._straddling: set[int] = set()

    @property
    def number(self) -> int:
        """Return the number of the step."""
        return self.steps.number

    def begin(self) -> int:
        """Begin the next step; return its number."""
        number = self.steps.begin()
        self._began = self._recorder.clock()
        self._recorder.buffer.turn[0] += 1
        thread = self._recorder.thread()
        if thread.outermost is not None:  # a wrapper, say, whose model has ended the step
            self._straddling.add(thread.ident)
        return number

    def root(self) -> nn.Module | None:
        """Return the model whose names are used, which says what kind of step one is."""
        models = self._recorder.modules.models
        return models[0].module() if models else None

    def training(self) -> bool | None:
        """Return whether this is a train step, as far as it is known while a model runs."""
        if self.steps.is_settled:
            return None
        thread = self._recorder.thread()
        running = thread.outermost
        root = self.root()
        root = running if root is None else root
        began_here = thread.stack[-1][START] >= self._began
        if root is not None and running is not None and began_here:
            self.steps.settle(root.training)
        return None if root is None else root.training

    def on_idle(self, thread: ThreadState, module: nn.Module) -> None:
        """Set the kind of the step when the outermost module call of a thread is over."""
        if thread.ident in self._straddling:
            self._straddling.discard(thread.ident)
        elif not self.steps.is_settled:
            root = self.root()
            self.steps.settle((module if root is None else root).training)
