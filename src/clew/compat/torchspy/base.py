"""What torchspy's saver and tracer share: a folder, a switch, and the modules they look at."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from torch import nn

from clew.capture.calls import CalledNames

logger = logging.getLogger("torchspy.saver")

UNKNOWN = "unknown"


class BaseDebugger:
    """A folder for output, a switch, and the paths of the modules that were registered."""

    def __init__(self, output_dir: str | Path, enabled: bool = True) -> None:
        self.output_dir = Path(output_dir)
        self.output_dir.mkdir(parents=True, exist_ok=True)
        self.enabled = enabled
        self.module_paths: dict[int, str] = {}
        self._names = CalledNames()

    def get_module_path(self, module: nn.Module) -> str:
        """The path a module was registered under, `"unknown"` for any other.

        A module that is in several places has the path that it is being called by.
        """
        known = self._names.original(module)
        if known is None or id(known) not in self.module_paths:
            return UNKNOWN
        return self._names.of(known) or "root"

    def _register(
        self,
        model: nn.Module,
        target_classes: tuple[type[nn.Module], ...] = (nn.Module,),
        target_names: Iterable[str] | None = None,
        exclude_names: Iterable[str] | None = None,
    ) -> None:
        """Look at modules of some classes with a name in their path, and none that is excluded."""
        wanted = [""] if target_names is None else list(target_names)
        unwanted = list(exclude_names or ())
        for name, module in self._names.add(model):
            path = name or "root"
            is_wanted = any(part in path for part in wanted)
            is_wanted = is_wanted and not any(part in path for part in unwanted)
            if is_wanted and isinstance(module, tuple(target_classes)):
                self.module_paths.setdefault(id(module), path)
                logger.info("Registered %s (%s)", path, type(module).__name__)
