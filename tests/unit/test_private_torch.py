"""Private torch API is in `torch_compat.py` alone, but for what is listed here with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, dataloader

import clew

SOURCES = Path(clew.__file__).parent

# Files that may use a private name: how it is written -> why it is not in `torch_compat.py`.
ALLOWED = {
    "analysis/shape/weighted_ops.py": {"_addmm_activation": "the name of an op in a trace"},
    "keep/identity.py": {
        "_cdata": "read for each tensor of each op: a call more would be felt",
        "_version": "the same",
    },
    "observe/dispatch.py": {"_sequence_nr": "asked for each op of a backward pass"},
    "observe/gradients.py": {"_buffers": "asked for each call of a module"},
    "observe/modules.py": {"_forward_hooks": "asked for each call of a module"},
    # These are to load without torch, and `torch_compat` loads it.
    "observe/dataloader.py": {
        "_iterator": "workers that a loader has kept",
        "_worker_init_fn": "what they were started with",
    },
    "observe/variables/frames/paths.py": {
        "_parameters": "an attribute of a module, if it is one",
        "_buffers": "an attribute of a module, if it is one",
        "_modules": "an attribute of a module, if it is one",
    },
    "record/live_feed.py": {"torch._": "the beginning of a class's module name"},
    "record/model_names.py": {
        "_parameters": "names of parameters in a watch without torch",
        "_buffers": "names of buffers in a watch without torch",
        "_modules": "names of modules in a watch without torch",
        "_orig_mod": "the name under which `torch.compile` wraps a module",
        "_fsdp_wrapped_module": "the name under which FSDP does",
    },
    "record/module_registry.py": {
        "_parameters": "names of parameters in a watch without torch",
        "_buffers": "names of buffers in a watch without torch",
        "_modules": "names of modules in a watch without torch",
    },
    "record/tensor_names.py": {
        "_parameters": "names of parameters in a watch without torch",
        "_buffers": "names of buffers in a watch without torch",
    },
    "record/thread_state.py": {"_call_impl": "tells a module where torch may not be there"},
    "session/late_model.py": {"_modules": "a part of a module, found without running a property"},
    "watching.py": {"torch._dynamo": "asked whether it is loaded, before torch is"},
}


def test_private_torch_api_is_in_one_file() -> None:
    uses = [use for path in sorted(SOURCES.rglob("*.py")) for use in _uses(path)]
    stray = [f"{file}:{line} {name}" for file, line, name in uses if not _is_allowed(file, name)]
    assert not stray, "move to torch_compat.py:\n" + "\n".join(stray)


def test_every_exception_is_used() -> None:
    used = {(file, name) for path in SOURCES.rglob("*.py") for file, _, name in _uses(path)}
    listed = {(file, name) for file, names in ALLOWED.items() for name in names}
    assert listed <= used


def _is_allowed(file: str, name: str) -> bool:
    return file == "torch_compat.py" or name in ALLOWED.get(file, {})


def _uses(path: Path) -> Iterator[tuple[str, int, str]]:
    file = path.relative_to(SOURCES).as_posix()
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    own = {id(part) for node in nodes if _is_slots(node) for part in ast.walk(node)}
    for node in nodes:
        for name in _private_names(node) if id(node) not in own else ():
            yield file, node.lineno, name  # type: ignore[attr-defined]


def _is_slots(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__"


def _private_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        above = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in (".".join([*above, alias.name]) for alias in node.names):
            if name.startswith("torch.") and "._" in name:
                yield name
    elif isinstance(node, ast.Attribute) and _is_private(node.attr):
        text = ast.unparse(node)
        if text.startswith("torch."):
            yield text
        elif node.attr in PRIVATE and text not in (f"self.{node.attr}", f"cls.{node.attr}"):
            yield node.attr
    elif isinstance(node, ast.Constant) and _is_private_text(node.value):
        yield str(node.value)


def _is_private_text(value: object) -> bool:
    return isinstance(value, str) and (value in PRIVATE or value.startswith("torch._"))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _names_of_torch_objects() -> set[str]:
    """The private attributes of what Clew gets to see of torch."""
    leaf = torch.ones(2, requires_grad=True)
    op = torch.ops.aten.add.Tensor
    found: list[object] = [
        leaf, leaf.untyped_storage(), (leaf @ leaf).grad_fn, torch.default_generator,
        nn.Linear(1, 1), torch.compile(nn.Linear(1, 1)), torch.jit.ScriptModule, op, op._schema,
        torch.ops.aten.add, torch.ops.higher_order.cond, torch.optim.SGD([leaf]), DataLoader([1]),
        dataloader._SingleProcessDataLoaderIter(DataLoader([1])),
    ]  # fmt: skip
    names = {name for each in found for name in dir(each) if _is_private(name)}
    # Of a DTensor, of the iterator of a loader with workers, of FSDP.
    return names | {"_local_tensor", "_worker_init_fn", "_fsdp_wrapped_module"}


PRIVATE = _names_of_torch_objects()
