"""What torchspy's saver and tracer share: a folder, a switch, and the modules they look at."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from torch import nn

from clew.capture.calls import caller_of

logger = logging.getLogger("torchspy")

UNKNOWN = "unknown"


class BaseDebugger:
    """A folder for output, a switch, and the paths of the modules that were registered."""

    def __init__(self, output_dir: str | Path, enabled: bool = True) -> None:
        self.output_dir = Path(output_dir)
        self.output_dir.mkdir(parents=True, exist_ok=True)
        self.enabled = enabled
        self.module_paths: dict[int, str] = {}
        self._names: WeakKeyDictionary[nn.Module, list[str]] = WeakKeyDictionary()
        # By the ids of their hooks, which the replicas of nn.DataParallel share.
        self._originals: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()

    def get_module_path(self, module: nn.Module) -> str:
        """The path a module was registered under, `"unknown"` for any other.

        A module that is in several places has the path it is being called by.
        """
        names = self._names.get(module)
        if names is None:
            module = self._originals.get(id(module._forward_hooks), module)
            names = self._names.get(module)
        if names is None or id(module) not in self.module_paths:
            return UNKNOWN
        return (names[0] if len(names) == 1 else self._called_name(module)) or "root"

    def _called_name(self, module: Any) -> str:
        """The name of a module that lies within the module calling it, the nearest if several."""
        names = self._names.get(module) or [""]
        if len(names) == 1:
            return names[0]
        caller = caller_of(module)
        above = "" if caller is None else self._called_name(caller)
        inside = [name for name in names if name.startswith(above and above + ".")]
        return min(inside or names[:1], key=len)

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
        modules: Iterable[tuple[str, nn.Module]] = model.named_modules(remove_duplicate=False)
        for name, module in modules:
            path = name or "root"
            known = self._names.setdefault(module, [])
            if name not in known:
                known.append(name)
            self._originals[id(module._forward_hooks)] = module
            is_wanted = any(part in path for part in wanted)
            is_wanted = is_wanted and not any(part in path for part in unwanted)
            if is_wanted and isinstance(module, tuple(target_classes)):
                self.module_paths.setdefault(id(module), path)
                logger.info("Registered %s (%s)", path, type(module).__name__)
