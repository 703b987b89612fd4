"""Share the names of a model with the native engine, which refers to them by their rows.

Input: the models given. Output: the names that an earlier recording has found, while they hold; no
objects are made of them until somebody asks for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from clew.record.model_names import ModelNames, names_known

if TYPE_CHECKING:
    from clew.record.module_registry import GivenModel, ModuleName


class NamingRecording(Protocol):
    """The recording of the native engine, which refers to the names of a model by their rows."""

    def offer_names(self, names: Any) -> None:
        """Use the names that an earlier recording has found, if the model is as it was."""

    def used_names(self) -> Any:
        """Return the names that are used and were not made objects yet, or None."""

    def named(self, names: Any, objects: list[ModuleName]) -> None:
        """Take the objects that were made of names."""

    def renamed(self, row: int) -> None:
        """Ask which name is meant at each call of a module: it has got another one."""

    def has_calls(self) -> bool:
        """Return whether any module was called."""


class NativeNames:
    """The native engine, its recording, and the names of the one model given that it may use."""

    __slots__ = ("_offered", "engine", "recording")

    def __init__(self, engine: Any, recording: NamingRecording, models: list[GivenModel]) -> None:
        self.engine = engine
        self.recording = recording
        self._offered: ModelNames | None = None
        if len(models) == 1:
            model = models[0].ref()
            self._offered = None if model is None else names_known(model, models[0].path)
            if self._offered is not None:
                recording.offer_names(self._offered.checked)

    def unchanged(self) -> ModelNames | None:
        """Return the names offered, None if the model is no longer as it was."""
        offered = self._offered
        return offered if offered is not None and offered.checked.is_same() else None

    def used(self) -> ModelNames | None:
        """Return the names offered if the recording uses them, else None."""
        offered = self._offered
        return None if offered is None or self.recording.used_names() is None else offered
