"""Name parameters and buffers: their paths, and how many elements they have.

Input: named modules. Output: paths, sizes. No tensor is held but those that are to be counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from clew.record.model_names import ModelNames, NameRow, SizesOf

if TYPE_CHECKING:
    from torch import nn

    from clew.record.module_registry import ModuleEntry, ModuleName

# A module, the attribute that holds a parameter or buffer, and the path of that tensor.
_TensorName: TypeAlias = tuple["ModuleEntry | NameRow", str, str]
# The parameters or buffers of a module, by attribute.
_Owned: TypeAlias = dict[str, Any]


class TensorNames:
    """Parameters and buffers of named modules: their paths, and how many elements they have."""

    def __init__(self) -> None:
        # id of a tensor -> its name, which holds while the module has the tensor
        self.by_id: dict[int, _TensorName] = {}
        # Further names of tensors that have several.
        self._others: list[_TensorName] = []
        # Called with tensors that got a name after they may have been recorded.
        self.on_late: Callable[[Any], None] = lambda tensor: None
        # Called with each tensor that gets a name.
        self.on_name: Callable[[str, Any], None] | None = None
        # Returns the number of elements of each parameter, None while it has no shape.
        self.sizes_of: SizesOf = _sizes
        self._parameters: list[tuple[str, int, int]] = []
        # Path, owner, attribute and tensor of parameters that are to be counted.
        self._unmeasured: list[tuple[str, ModuleName, str, Any]] = []
        # Path, owner and attribute of parameters of lazy modules, which get a size at a call.
        self._sizeless: list[tuple[str, ModuleName, str]] = []

    def tensors(self) -> list[tuple[str, Any]]:
        """Return every tensor that is still there, with each of its paths."""
        found = []
        for entry, attribute, path in [*self.by_id.values(), *self._others]:
            module = entry.ref()
            if module is not None:
                owned = _owned(module, attribute)
                found += [] if owned is None else [(path, owned)]
        return found

    def parameters(self) -> list[tuple[str, int, int]]:
        """Return path, owner's name index and number of elements of each; shared ones once."""
        pending, self._sizeless = self._sizeless, []
        for path, name, attribute in pending:
            module = name.entry.ref()
            parameter = None if module is None else _owned(module, attribute)
            if parameter is not None:
                self._unmeasured.append((path, name, attribute, parameter))
        self.measure()
        return self._parameters

    def add(
        self, parameters: _Owned, buffers: _Owned, owner: ModuleName, is_new: bool, is_late: bool
    ) -> None:
        """Name the tensors that a module owns; count parameters only if the module `is_new`.

        `is_late` says that they may have been recorded before.
        """
        # Flat: runs for every parameter of the model in every trace.
        prefix = owner.path + "." if owner.path else ""
        entry, by_id, on_name = owner.entry, self.by_id, self.on_name
        if is_late:
            for tensor in (*parameters.values(), *buffers.values()):
                if tensor is not None:
                    self.on_late(tensor)
        for owned in (parameters, buffers) if buffers else (parameters,):
            for attribute, tensor in owned.items():
                if tensor is None:
                    continue
                path = prefix + attribute
                known = by_id.get(id(tensor))
                if known is not None and path_of(known, tensor) is not None:
                    self._others.append((entry, attribute, path))
                else:  # or a tensor with the same id that is gone
                    by_id[id(tensor)] = (entry, attribute, path)
                    if is_new and owned is parameters:
                        self._unmeasured.append((path, owner, attribute, tensor))
                if on_name is not None:
                    on_name(path, tensor)

    def adopt(self, model: ModelNames, names: list[ModuleName]) -> None:
        """Name the tensors of a model whose modules have these names."""
        for key, row, attribute, path, is_parameter, size in model.tensors:
            name = names[row]
            if key in self.by_id:
                self._others.append((name.entry, attribute, path))
            else:
                self.by_id[key] = (name.entry, attribute, path)
                if is_parameter and size is None:
                    self._sizeless.append((path, name, attribute))
                elif is_parameter and size is not None:
                    self._parameters.append((path, name.index, size))
            module = name.entry.ref() if self.on_name is not None else None
            if module is not None and self.on_name is not None:
                self.on_name(path, _owned(module, attribute))

    def measure(self) -> None:
        """Count the parameters that were named since the last call; until then they are held."""
        found, self._unmeasured = self._unmeasured, []
        sizes = self.sizes_of([parameter for _, _, _, parameter in found])
        for (path, owner, attribute, _), size in zip(found, sizes, strict=True):
            if size is None:
                self._sizeless.append((path, owner, attribute))
            else:
                self._parameters.append((path, owner.index, size))


def path_of(name: _TensorName, tensor: Any) -> str | None:
    """Return the path of a tensor that had this name, None if its module has another by now."""
    entry, attribute, path = name
    module = entry.ref()
    return path if module is not None and _owned(module, attribute) is tensor else None


def _sizes(parameters: list[Any]) -> list[int | None]:
    return [int(parameter.numel()) for parameter in parameters]


def _owned(module: nn.Module, attribute: str) -> Any:
    """Return the parameter or buffer of a module, None if it has none of this name."""
    # The dictionaries of a scripted module have no `get`.
    parameters = module._parameters
    if attribute in parameters:
        return parameters[attribute]
    buffers = module._buffers
    return buffers[attribute] if attribute in buffers else None  # noqa: SIM401
