"""A dispatch mode that writes down everything about every op and lets no memory go.

In comes a program, out come its ops with their arguments, producers, lines, modules and phases,
found without any of Clew's own code.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.conformance.normalise import Facts, SeenOp, constant_text, flat
from tests.conformance.oracle import prepare
from tests.conformance.programs import Prepared

PROGRAMS = str(Path(__file__).parent / "programs")
_TORCH = str(Path(torch.__file__).parent)

# A frame of torch's that means a phase, by file and function.
_PHASES = {
    ("_tensor.py", "backward"): "backward",
    ("__init__.py", "backward"): "backward",
    ("__init__.py", "grad"): "backward",
    ("graph.py", "_engine_run_backward"): "backward",
    ("checkpoint.py", "recompute_fn"): "recompute",
    ("checkpoint.py", "backward"): "recompute",
    ("optimizer.py", "wrapper"): "optimizer",
    ("dataloader.py", "__next__"): "data",
}
# The gradient of a parameter is accumulated by a node with the largest number there is.
_NO_NUMBER = 1 << 62


class Witness(TorchDispatchMode):
    """Sees every op of a thread, and forgets nothing; threads of the program get it as well."""

    supports_higher_order_operators = True

    def __init__(self, account: Account) -> None:
        super().__init__()
        self.account = account

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", "") == "profiler":
            return func(*args, **kwargs or {})
        if func is torch.ops.aten.detach.default and not _came_by_the_dispatcher():
            return self.account.met_alias(func(*args), args[0])
        return self.account.witnessed(func, args, kwargs or {})


def _came_by_the_dispatcher() -> bool:
    # It switches off what is above a mode while the mode runs.
    return bool(
        torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.PythonTLSSnapshot)
    )


@dataclass
class _Entry:
    """An op as it is told, and what its backward ops have from it."""

    op: dict[str, Any]
    maker: int | None = None
    checkpoint: str | None = None


class Account:
    """What all witnesses of a run have seen, in order."""

    def __init__(self, model: nn.Module | None) -> None:
        self.entries: list[_Entry] = []
        self._model = model
        self._kept: list[Any] = []
        # By the id of a tensor that lives: a reference that tells of its end, the op that made it,
        # and the group of tensors that are written to when it is; the last write to a group.
        self._leaving: dict[int, Any] = {}
        self._made: dict[int, int] = {}
        self._groups: dict[int, object] = {}
        self._written: dict[object, int] = {}
        self._group_of_memory: dict[Any, object] = {}
        # The number of an autograd node -> the op that made it.
        self._makers: dict[int, int] = {}
        # The names of modules, where no model was given.
        self._roots: list[tuple[nn.Module, str]] = []

    @property
    def ops(self) -> list[SeenOp]:
        return [SeenOp(**entry.op) for entry in self.entries]

    def witnessed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an op, and write down everything about it."""
        given = [(path, leaf) for path, leaf in flat([*args]) + flat(kwargs)]
        tensors = [leaf for _, leaf in given if isinstance(leaf, Tensor)]
        number = len(self.entries)
        frames = _frames()
        self._keep(tensors)
        op: dict[str, Any] = {
            "name": str(func),
            "thread": threading.current_thread().name,
            "arguments": tuple((path, _argument(leaf)) for path, leaf in given),
            "inputs": tuple(map(_facts, tensors)),
            "producers": tuple(map(self._producer, tensors)),
            "phase": _phase(frames),
        }
        entry = _Entry(op)
        self.entries.append(entry)
        self._place(entry, frames, tensors)
        before = [_bytes(tensor) for tensor in tensors]
        written = _declared_writes(func, args, kwargs)
        try:
            out = func(*args, **kwargs)
        except BaseException as error:
            op["error"] = f"{type(error).__name__}: {error}"
            self._write(written, number)
            raise
        changed = [t for t, old in zip(tensors, before, strict=True) if _bytes(t) != old]
        if torch.Tag.inplace_view in getattr(func, "tags", ()):
            for tensor in written:
                self._made[id(tensor)] = number  # it looks elsewhere, and writes to no memory
        else:
            self._write([*written, *changed], number)
        results = [leaf for _, leaf in flat(out) if isinstance(leaf, Tensor)]
        for tensor in results:
            # What `torch.tensor` makes comes by `lift_fresh`, which hands it on as it is.
            if op["name"] == "aten.lift_fresh.default" or not any(tensor is t for t in tensors):
                self._made[id(tensor)] = number
                self._share(tensor, tensors, func)
        self._keep(results)
        op["outputs"] = tuple(map(_facts, results))
        return out

    def met_alias(self, alias: Tensor, tensor: Tensor) -> Tensor:
        """Take for the tensor itself what torch makes of one that it saves, and of `.data`."""
        self._keep([tensor, alias])
        producer = self._producer(tensor)
        if producer is not None:
            self._made[id(alias)] = producer
        self._groups[id(alias)] = self._group(tensor)
        return alias

    def _keep(self, tensors: list[Tensor]) -> None:
        """Keep the memory of tensors for good, so that none is ever taken for another.

        Not the tensors: torch counts who holds a result, and copies a gradient, or detaches what a
        factory made, if anybody but itself does. What is known of a tensor goes when it does.
        """
        for tensor in tensors:
            if id(tensor) not in self._leaving:
                self._kept.append(_memory(tensor))
                self._leaving[id(tensor)] = ref(tensor, partial(self._left, id(tensor)))

    def _left(self, key: int, _: Any) -> None:
        self._made.pop(key, None)
        self._groups.pop(key, None)
        self._leaving.pop(key, None)

    def _producer(self, tensor: Tensor) -> int | None:
        found = max(self._made.get(id(tensor), -1), self._written.get(self._group(tensor), -1))
        return None if found < 0 else found

    def _write(self, tensors: list[Tensor], number: int) -> None:
        for tensor in tensors:
            self._written[self._group(tensor)] = number

    def _group(self, tensor: Tensor) -> object:
        """What all tensors have in common of which a write to one is a write to the other."""
        key = id(tensor)
        if key not in self._groups:
            self._groups[key] = self._group_of_memory.setdefault(_storage(tensor), object())
        return self._groups[key]

    def _share(self, result: Tensor, given: list[Tensor], func: Any) -> None:
        """Tell a view from memory that torch hands on as new, as `unsafe_split` does."""
        returns = getattr(getattr(func, "_schema", None), "returns", ())
        same = [t for t in given if _storage(t) == _storage(result)]
        if same and any(value.alias_info is not None for value in returns):
            self._groups[id(result)] = self._group(same[0])
        else:
            self._groups[id(result)] = self._group_of_memory[_storage(result)] = object()

    def _place(self, entry: _Entry, frames: list[Any], tensors: list[Tensor]) -> None:
        """Say where an op ran, and for what."""
        op, number = entry.op, len(self.entries) - 1
        op["line"], op["module"] = _own_line(frames), self._module(frames)
        node = torch._C._current_autograd_node()
        made = torch._C._autograd._get_sequence_nr() - 1
        entry.checkpoint = self._module_of_checkpoint(frames)
        if op["phase"] == "recompute" and op["module"] is None and node is not None:
            maker = self._makers.get(node._sequence_nr())
            op["module"] = None if maker is None else self.entries[maker].checkpoint
        if op["phase"] != "backward":
            self._makers.setdefault(made, number)
            return
        ran_by_program = _own_line(_inside_backward(frames))
        if node is None:
            owner = self._producer(tensors[0]) if tensors else None
            op["module"] = op["module"] if owner is None else self.entries[owner].op["module"]
        elif node._sequence_nr() >= _NO_NUMBER:
            op["module"] = self._owner(getattr(node, "variable", None))
        else:
            entry.maker = self._forward(node._sequence_nr())
            if entry.maker is not None:
                op["module"] = self.entries[entry.maker].op["module"]
            again = entry.maker is not None and self.entries[entry.maker].op["phase"] == "recompute"
            op["line"] = _line_of_node(node, again) or op["line"]
        if ran_by_program is not None:
            op["line"] = ran_by_program
        if torch.is_grad_enabled():
            self._makers.setdefault(made, number)

    def _forward(self, number: int) -> int | None:
        """The forward op behind a node, also of a node that a backward pass made."""
        maker = self._makers.get(number)
        while maker is not None and self.entries[maker].op["phase"] == "backward":
            maker = self.entries[maker].maker
        return maker

    def _owner(self, variable: Tensor | None) -> str | None:
        """The module a gradient is accumulated for."""
        if variable is None:
            return None
        for path, module in self._named():
            if any(variable is p for p in module._parameters.values()):
                return path
        made = self._made.get(id(variable))
        return None if made is None else self.entries[made].op["module"]

    def _named(self) -> list[tuple[str, nn.Module]]:
        if self._model is not None:
            return list(self._model.named_modules())
        return [(name, module) for module, name in self._roots]

    def _module(self, frames: list[Any]) -> str | None:
        """The path of the innermost module that runs."""
        for frame in frames:
            called = frame.f_code.co_name in ("_wrapped_call_impl", "forward")
            module = frame.f_locals.get("self") if called else None
            if isinstance(module, nn.Module):
                return self._path(module)
        return None

    def _module_of_checkpoint(self, frames: list[Any]) -> str | None:
        """The module that made the checkpoint around an op, else the outermost one inside it."""
        marks = [frame.f_code.co_filename.endswith("checkpoint.py") for frame in frames]
        if True not in marks:
            return None
        around = self._module(frames[marks.index(True) :])
        return around if around is not None else self._module(frames[::-1])

    def _path(self, module: nn.Module) -> str:
        for path, known in self._named():
            if known is module:
                return path
        cls = type(module).__name__
        same = sum(name.partition("#")[0] == cls for _, name in self._roots)
        name = f"{cls}#{same + 1}" if same else cls
        self._roots.append((module, name))
        return name


def witnessed(build: Callable[[], Prepared]) -> list[SeenOp]:
    """The ops a program runs while a witness looks, on every thread."""
    prepared = prepare(build)
    account = Account(prepared.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this mode takes time
        anomaly = torch.autograd.set_detect_anomaly(True, check_nan=False)
    with anomaly, _in_every_thread(account), Witness(account):
        prepared.run()
    return account.ops


@contextmanager
def _in_every_thread(account: Account) -> Iterator[None]:
    """Have every thread that starts begin with a witness of its own."""
    run = threading.Thread.run

    def witnessed_run(thread: threading.Thread) -> None:
        with Witness(account):
            run(thread)

    threading.Thread.run = witnessed_run  # type: ignore[method-assign]
    try:
        yield
    finally:
        threading.Thread.run = run  # type: ignore[method-assign]


def _frames() -> list[Any]:
    """The frames of the program and of torch, innermost first."""
    frames, frame = [], sys._getframe(3)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _is_own(frame: Any) -> bool:
    return frame.f_code.co_filename.startswith(PROGRAMS)


def _own_line(frames: list[Any]) -> str | None:
    own = next((frame for frame in frames if _is_own(frame)), None)
    return own and f"{Path(own.f_code.co_filename).name}:{own.f_lineno}"


def _phase_of(frame: Any) -> str | None:
    file = frame.f_code.co_filename
    if not file.startswith(_TORCH):
        return None
    return _PHASES.get((Path(file).name, frame.f_code.co_name))


def _phase(frames: list[Any]) -> str:
    ran_by_program = False
    for frame in frames:
        phase = _phase_of(frame)
        if phase == "optimizer" and ran_by_program:
            return "forward"  # a closure that the program gave to `step`
        if phase is not None:
            return phase
        ran_by_program = ran_by_program or _is_own(frame)
    return "forward"


def _inside_backward(frames: list[Any]) -> list[Any]:
    """The frames that the backward pass called."""
    phases = [_phase_of(frame) for frame in frames]
    return frames[: phases.index("backward")] if "backward" in phases else []


def _line_of_node(node: Any, recomputed: bool) -> str | None:
    """The program's line that made a node; for one made in backward, its forward node's."""
    metadata = node.metadata
    while metadata.get("parent_") is not None and not recomputed:
        metadata = metadata["parent_"].metadata
    for text in reversed(metadata.get("traceback_", [])):
        if PROGRAMS in text:
            file, line = text.split('"')[1], text.split(", line ")[1].split(",")[0]
            return f"{Path(file).name}:{int(line)}"
    return None


def _memory(tensor: Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except Exception:
        return None


def _storage(tensor: Tensor) -> Any:
    memory = _memory(tensor)
    return ("no storage", id(tensor)) if memory is None else memory._cdata


def _bytes(tensor: Tensor) -> Any:
    """The elements of a tensor, where it has any that can be read."""
    try:
        with _disable_current_modes():
            return (
                tensor.detach().clone().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
    except Exception:
        return None


def _facts(tensor: Tensor) -> Facts:
    try:
        shape: tuple[int, ...] | None = tuple(map(_size, tensor.shape))
    except Exception:
        shape = None
    return str(tensor.dtype).removeprefix("torch."), shape


def _size(size: Any) -> int:
    try:
        return int(size)
    except Exception:
        return -1  # of a jagged tensor


def _argument(leaf: Any) -> str:
    return "tensor" if isinstance(leaf, Tensor) else constant_text(leaf)


def _declared_writes(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    written: list[Tensor] = []
    for position, argument in enumerate(getattr(getattr(func, "_schema", None), "arguments", ())):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            written += [leaf for _, leaf in flat(value) if isinstance(leaf, Tensor)]
    return written
