"""What torchspy's saver and tracer share: a folder, a switch, and the modules they look at."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import nn

logger = logging.getLogger("torchspy")

Classes = tuple[type[nn.Module], ...]


class BaseDebugger:
    """A folder for output, a switch, and the paths of the modules that were registered."""

    def __init__(self, output_dir: str | Path, enabled: bool = True) -> None:
        self.output_dir = Path(output_dir)
        self.output_dir.mkdir(parents=True, exist_ok=True)
        self.enabled = enabled
        self.module_paths: dict[int, str] = {}
        # An id is a module's only while the module lives.
        self._modules: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()

    def get_module_path(self, module: nn.Module) -> str:
        """The path a module was registered under, `"unknown"` for any other."""
        known = self._modules.get(id(module)) is module
        return self.module_paths[id(module)] if known else "unknown"

    def _register(
        self,
        model: nn.Module,
        target_classes: Classes,
        target_names: Iterable[str] | None,
        exclude_names: Iterable[str] | None,
    ) -> None:
        for path, module in matching(model, target_classes, target_names, exclude_names):
            self.module_paths[id(module)] = path
            self._modules[id(module)] = module
            logger.info("Registered %s (%s)", path, type(module).__name__)


def matching(
    model: nn.Module,
    target_classes: Classes = (nn.Module,),
    target_names: Iterable[str] | None = None,
    exclude_names: Iterable[str] | None = None,
) -> Iterator[tuple[str, nn.Module]]:
    """Modules of some classes whose path has one of the names in it, and none of the excluded."""
    wanted = None if target_names is None else list(target_names)
    modules: list[tuple[str, nn.Module]] = list(model.named_modules())
    for name, module in modules:
        path = name or "root"
        if not isinstance(module, tuple(target_classes)):
            continue
        if wanted is not None and not any(part in path for part in wanted):
            continue
        if not any(part in path for part in exclude_names or ()):
            yield path, module
