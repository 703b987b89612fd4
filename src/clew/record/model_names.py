"""Remember the names of models from one recording to the next.

Input: a model. Output: `ModelNames`: a row for each name of each module, and the names of the
tensors they own. Naming a model takes as long as hundreds of ops, so the native engine checks
whether it is still built as it was. Nothing of the program is kept alive: modules are known by weak
references, tensors by their ids.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from torch import nn

# Attributes under which a wrapper holds its module; they add nothing to the module's path.
WRAPPED = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module"}
_WRAPPER_CLASSES = {
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "DeepSpeedEngine",
}

# Returns the number of elements of each tensor, None while it has no shape.
SizesOf: TypeAlias = Callable[[list[Any]], list[int | None]]


class NameRow(NamedTuple):
    """One name of one module; `number` is that of the module, in the order they are met."""

    ref: weakref.ref[nn.Module]
    path: str
    parent: str | None
    cls: str
    number: int
    wrapper: bool


class TensorRow(NamedTuple):
    """One name of a parameter or buffer; `size` is None for a buffer, or if it has no shape yet."""

    key: int
    row: int
    attribute: str
    path: str
    is_parameter: bool
    size: int | None


class ModelNames:
    """The names of a model and of everything inside it, as they were when it was named.

    `checked` is the `Names` of the native engine, None if it cannot tell whether they still hold.
    """

    def __init__(self, model: nn.Module, path: str, sizes_of: SizesOf) -> None:
        self.rows: list[NameRow] = []
        self.tensors: list[TensorRow] = []
        # id of a tensor -> the row of its module, its attribute and its path
        self.by_id: dict[int, tuple[NameRow, str, str]] = {}
        self.wrappers: list[weakref.ref[nn.Module]] = []
        # id of a module -> its first path
        self.paths: dict[int, str] = {}
        self.checked: Any = None
        numbers: dict[int, int] = {}
        found: list[tuple[str, str, bool, Any, int]] = []
        for module, path_of_it, parent, wrapper in walk(model, path):
            number = numbers.setdefault(id(module), len(numbers))
            self.paths.setdefault(id(module), path_of_it)
            cls = type(module).__name__
            row = NameRow(weakref.ref(module), path_of_it, parent, cls, number, wrapper)
            if wrapper:
                self.wrappers.append(row.ref)
            prefix = path_of_it + "." if path_of_it else ""
            for owned in (module._parameters, module._buffers):
                is_parameter = owned is module._parameters
                for attribute, tensor in owned.items():
                    if tensor is not None:
                        name = prefix + attribute
                        found.append((attribute, name, is_parameter, tensor, len(self.rows)))
                        self.by_id.setdefault(id(tensor), (row, attribute, name))
            self.rows.append(row)
        sizes = sizes_of([tensor for _, _, _, tensor, _ in found])
        for (attribute, name, is_parameter, tensor, at), size in zip(found, sizes, strict=True):
            self.tensors.append(TensorRow(id(tensor), at, attribute, name, is_parameter, size))

    def check_by(self, native: Any) -> bool:
        """Have the native engine check these names in later recordings; return whether it can."""
        counts: dict[int, int] = {}
        for row in self.rows:
            counts[row.number] = counts.get(row.number, 0) + 1
        rows = [(r.ref, r.number, counts[r.number] == 1) for r in self.rows]
        try:
            self.checked = native.Names(rows)
        except ValueError:
            return False
        return True


# id of a model and the path it has -> its names
_known: dict[tuple[int, str], ModelNames] = {}
_refs: dict[int, weakref.ref[nn.Module]] = {}


def names_known(model: nn.Module, path: str) -> ModelNames | None:
    """Return the names that a model had when it was last recorded; they may hold no more."""
    ref = _refs.get(id(model))
    return _known.get((id(model), path)) if ref is not None and ref() is model else None


def names_now(model: nn.Module, path: str, sizes_of: SizesOf, native: Any) -> ModelNames:
    """Return the names of a model: those it had, if nothing has changed."""
    names = names_known(model, path)
    if names is None or not names.checked.is_same():
        names = ModelNames(model, path, sizes_of)
        if names.check_by(native):
            _remember(model, path, names)
    return names


def _remember(model: nn.Module, path: str, names: ModelNames) -> None:
    key = id(model)

    def forget(gone: weakref.ref[nn.Module]) -> None:
        if _refs.get(key) is gone:
            del _refs[key]
            for known in [k for k in list(_known) if k[0] == key]:
                _known.pop(known, None)

    ref = _refs.get(key)
    if ref is None or ref() is not model:
        _refs[key] = weakref.ref(model, forget)
    _known[key, path] = names


def walk(model: nn.Module, path: str) -> Iterator[tuple[nn.Module, str, str | None, bool]]:
    """Yield a model and everything inside it, a shared module once for each path.

    With each come its path, that of its parent, and whether it is a wrapper.
    """
    pending: list[tuple[str, str | None, nn.Module, tuple[int, ...]]] = [(path, None, model, ())]
    while pending:
        path, parent, module, above = pending.pop()
        children = module._modules
        wrapper = False
        if children:
            above = (*above, id(module))
            prefix = path + "." if path else ""
            # The dictionaries of a scripted module have little more than `items`.
            for attribute, child in reversed(list(children.items())):
                # A module that contains itself is entered once.
                if child is not None and id(child) not in above:
                    if attribute in WRAPPED and is_wrapped(attribute, module):
                        wrapper = True
                        inside = path
                    else:
                        inside = prefix + attribute
                    pending.append((inside, path, child, above))
        yield module, path, parent, wrapper


def is_wrapped(attribute: str, owner: nn.Module) -> bool:
    """Return whether a wrapper holds its module under an attribute."""
    # A user's module may have an attribute called `module`.
    return attribute in WRAPPED and (
        attribute != "module" or type(owner).__name__ in _WRAPPER_CLASSES
    )
