"""Wrap torch's private functions and its differences between versions.

`tests/unit/test_private_torch.py` finds private names elsewhere, and lists the few that stay where
they are for each op, or where torch need not be there. Seen on 2.6 to 2.13.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.modules.module as nn_module
from torch._C import _len_torch_dispatch_stack
from torch._functorch import pyfunctorch
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload
from torch.autograd.graph import _engine_run_backward
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils import checkpoint
from torch.utils._python_dispatch import (
    TorchDispatchMode as TorchDispatchMode,
)
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _pop_mode,
    _push_mode,
)
from torch.utils.data import dataloader
from torch.utils.hooks import RemovableHandle

from clew.events.vocabulary import BACKWARD, DATA, OPTIMIZER, RECOMPUTE
from clew.machinery import MACHINERY
from clew.program_errors import pass_on

# Torch's lines are not user code. The separator matters: a package merely named torch-something
# is user code.
MACHINERY.libraries += (os.path.dirname(torch.__file__) + os.sep,)


def nested_code(code: CodeType, name: str) -> CodeType | None:
    """Return the code of the function called `name` defined inside `code`, at any depth."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_name == name:
                return const
            deeper = nested_code(const, name)
            if deeper is not None:
                return deeper
    return None


def _code(owner: Any, *path: str) -> list[CodeType]:
    """Return the code of `owner.a.b`, following nested functions; empty if this torch lacks it."""
    function = getattr(owner, path[0], None)
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    for name in path[1:]:
        code = code and nested_code(code, name)
    return [code] if code else []


def _module_code(name: str) -> CodeType:
    """Return the code of a method of `nn.Module`, also if a library has put another in its place.

    Such a library still calls torch's own function, which is alive for that.
    """

    def is_own(function: Any) -> bool:
        code = getattr(function, "__code__", None)
        return isinstance(code, CodeType) and code.co_filename == nn_module.__file__

    found: Any = getattr(nn_module.Module, name)
    if not is_own(found):
        place = f"{nn_module.Module.__qualname__}.{name}"
        functions = (one for one in gc.get_objects() if type(one) is FunctionType)
        own = (one for one in functions if one.__qualname__ == place and is_own(one))
        found = next(own, found)
    code: CodeType = found.__code__
    return code


_CALL_IMPL = _module_code("_call_impl")

# The frame that runs global hooks and then forward: `inner` inside `_call_impl`; a torch that
# runs them in `_call_impl` itself gets that.
CALL_FRAME: CodeType = nested_code(_CALL_IMPL, "inner") or _CALL_IMPL

# The outermost frame of a module call, whose locals are `args` and `kwargs` as given.
WRAPPED_CALL: CodeType = _module_code("_wrapped_call_impl")


def call_function() -> FunctionType | None:
    """Return the function that every module call passes; None if it is not torch's own."""
    found: Any = nn_module.Module._call_impl
    return found if type(found) is FunctionType and found.__code__ is _CALL_IMPL else None


# Where a module keeps its parameters, buffers and children. Seen on 2.13.
HELD_TENSORS = ("_parameters", "_buffers")
HELD_MODULES = "_modules"

MACHINERY.call_frame = CALL_FRAME
MACHINERY.wrapped_call = WRAPPED_CALL
MACHINERY.hide(CALL_FRAME, _CALL_IMPL, WRAPPED_CALL)

MACHINERY.phases |= {
    code: phase
    for phase, codes in (
        # From `backward()` on: the first gradient is made before the engine starts.
        (
            BACKWARD,
            [
                *_code(torch.Tensor, "backward"),
                *_code(torch.autograd, "backward"),
                *_code(torch.autograd, "grad"),
                _engine_run_backward.__code__,
            ],
        ),
        (
            RECOMPUTE,
            [
                *_code(checkpoint, "_checkpoint_without_reentrant_generator", "recompute_fn"),
                *_code(checkpoint.CheckpointFunction, "backward"),
            ],
        ),
        (OPTIMIZER, _code(torch.optim.Optimizer, "profile_hook_step", "wrapper")),
        (DATA, _code(dataloader._BaseDataLoaderIter, "__next__")),
    )
    for code in codes
}


def _is_compiled_code(code: CodeType) -> bool:
    """Return whether Dynamo made a code object. Seen on 2.6 to 2.13."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return frames is not None and code in frames.output_codes


MACHINERY.is_compiled = _is_compiled_code

# Raised by a checkpoint to end its recomputation early: nothing is wrong.
StopRecomputation: type[BaseException] = checkpoint._StopRecomputationError

# The number the next autograd node of this thread will get, and the node now running backward.
next_autograd_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
current_autograd_node: Callable[[], Any] = torch._C._current_autograd_node


def autograd_number(node: Any) -> int:
    """Return the number of an autograd node."""
    number: int = node._sequence_nr()
    return number


def is_recomputing() -> bool:
    """Return whether a checkpoint recomputes, in a backward pass, what it has not saved."""
    if current_autograd_node() is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in MACHINERY.phases:
        frame = frame.f_back
    return frame is not None and MACHINERY.phases[frame.f_code] == RECOMPUTE


def hide_from_dynamo(code: CodeType | None) -> None:
    """Keep Dynamo from compiling frames of `code` and what they call.

    torch's way, to wrap the handler in `torch._dynamo.disable`, imports Dynamo (seconds) and costs
    over a microsecond per op; marking the code costs nothing. Before 2.7 the mark is called
    `skip_code` and covers the frame alone.
    """
    eval_frame: Any = torch._C._dynamo.eval_frame
    try:
        skip = eval_frame._FrameAction.SKIP
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(skip, skip))
    except AttributeError:
        eval_frame.skip_code(code)


def register_effect(op: str) -> None:
    """Tell the compiler that an op has an effect: it is neither dropped nor moved past another.

    Seen on 2.6 to 2.13; the name of the enumeration has changed in between.
    """
    effects: Any = importlib.import_module("torch._higher_order_ops.effects")
    kinds = getattr(effects, "_EffectType", None) or effects.EffectType
    namespace, _, name = op.partition("::")
    overload = getattr(getattr(torch.ops, namespace), name).default
    effects._register_effectful_op(overload, kinds.ORDERED)


def without_modes() -> Any:
    """Return a context in which no dispatch mode and no engine, the user's or ours, sees what runs.

    The native engine brings a context of its own, as it sees ops also where modes are off.
    """
    return _hiding_context()


_hiding_context: Callable[[], Any] = torch._C._DisableTorchDispatch


def hide_own_ops_by(context: Callable[[], Any]) -> None:
    """Make `without_modes` return another context."""
    global _hiding_context
    _hiding_context = context


def op_overload(name: str, overload: str, schema: str) -> Any:
    """Return an op by the names that it has in C++: `aten::add`, `Tensor`."""
    namespace, _, base = name.partition("::")
    overload = overload or "default"
    packet = getattr(getattr(torch.ops, namespace), base, None)
    found = getattr(packet, overload, None)
    if found is not None and str(found._schema) == schema:
        return found
    return RemovedOp(f"{namespace}.{base}.{overload}", torch._C.parse_schema(schema))


class RemovedOp:
    """Stands for an op whose library was taken away after it ran."""

    def __init__(self, name: str, schema: Any) -> None:
        self._name = name
        self._schema = schema

    def __str__(self) -> str:
        return self._name


def without_mode_stack() -> Any:
    """Return a context without the modes of the stack; tensor subclasses still dispatch.

    Seen on 2.6 to 2.13.
    """
    return _disable_current_modes()


def counting_writes(op: Callable[..., Any]) -> Callable[..., Any]:
    """Make a `_foreach` op raise the versions of what it writes to, as it does without a mode.

    Its kernel leaves that to the ops it calls for each tensor, which raise no version below a
    dispatch mode: autograd would no longer notice writes to what it has saved. Seen on 2.6 to
    2.13; on CUDA, kernels raise the versions themselves, once.
    """
    counting: Any = torch._C.DispatchKey.ADInplaceOrView
    included: Any = torch._C._dispatch_tls_local_include_set
    excluded: Any = torch._C._dispatch_tls_local_exclude_set

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            return op(*args, **kwargs)
        with torch._C._ForceDispatchKeyGuard(included(), excluded().remove(counting)):
            return op(*args, **kwargs)

    return call


def direct_call(func: Any) -> Callable[..., Any]:
    """Return what runs an op with one Python call less: an overload's only forwards to `_op`."""
    return func._op if type(func) is OpOverload else func


def schema_of(func: Any) -> Any:
    """Return the schema of an op, None for one that has none, as those given functions to run."""
    return getattr(func, "_schema", None)


def can_decompose(func: OpOverload) -> bool:
    """Return whether an op may run as other ops."""
    return bool(func._can_decompose())


def is_composite(func: Any) -> bool:
    """Return whether an op only runs other ops, and has no kernel itself.

    Autograd takes such an op apart before a mode sees it; without autograd, as in inference mode,
    it arrives whole. Seen on 2.6 to 2.13.
    """
    if not isinstance(func, OpOverload):
        return False
    try:
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU")
        return not has_kernel and func._can_decompose()
    except RuntimeError as odd:  # torch knows no kernels of some ops, such as `prim::device`
        pass_on(odd)
        return False


def is_collective(name: str) -> bool:
    """Return whether an op writes to its first argument undeclared, and returns while it runs.

    So do the collectives of `torch.distributed`, for which a program waits. Seen on 2.6 to 2.13.
    """
    is_writing = name.startswith("c10d::") and name.endswith("_")
    return is_writing and name != "c10d::monitored_barrier_"


def tensors_for_numbers(func: Any, args: tuple[Any, ...], error: BaseException) -> Any:
    """Return arguments that an op accepts, if torch gave the mode numbers in place of tensors.

    A tensor that stands for a number of the program, as in graphs of `torch.jit.trace`, arrives as
    that number, which most ops do not accept. Return None if the error is not about that. Seen on
    2.6 to 2.13.
    """
    if type(error) is not RuntimeError or "Expected a value of type 'Tensor'" not in str(error):
        return None
    kinds = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
    wanted = [str(argument.type) == "Tensor" for argument in func._schema.arguments]
    return [
        torch.tensor(value, dtype=kinds[type(value)])
        if is_tensor and type(value) in kinds
        else value
        for value, is_tensor in zip(args, wanted, strict=False)
    ]


def shard_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what a DTensor has in this process, None for any other tensor."""
    return getattr(tensor, "_local_tensor", None)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor in this process: the shard of a DTensor, else the tensor itself.

    Waits for a collective that may still run, but not through its wrapper, which then still
    believes that it has to wait. Seen on 2.6 to 2.13.
    """
    # Not by `shard_of`: this runs for every value that is kept.
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    if type(local).__name__ == "AsyncCollectiveTensor":
        wrapper: Any = local
        local = torch.ops._c10d_functional.wait_tensor(wrapper.elem)
    return local


def own_store(name: str) -> tuple[Any, float]:
    """Return the store of the program's ranks under a prefix of Clew, and its timeout in seconds.

    Seen on 2.6 to 2.13.
    """
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    store = c10d._get_default_store()
    if hasattr(store, "clone"):
        store = store.clone()  # a connection that the program does not share
    try:
        group = c10d._get_default_group()
        backend = group._get_backend(torch.device(group._device_types[0]))
        timeout: timedelta = backend.options._timeout
    except Exception:
        timeout = c10d.default_pg_timeout
    return c10d.PrefixStore(name, store), timeout.total_seconds()


# Whether a tensor is a wrapper that `torch.func` made while transforming a function.
is_transformed: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
# Whether a tensor stands for zeros without memory for them, as autograd makes them.
is_zero_tensor: Callable[[torch.Tensor], bool] = torch.Tensor._is_zerotensor
# Whether autograd knows a tensor as a view.
is_view: Callable[[torch.Tensor], bool] = torch.Tensor._is_view


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices and values of a COO tensor as they are; a place may come twice."""
    return tensor._indices(), tensor._values()


def quantized(integers: torch.Tensor, scale: float, zero_point: int) -> torch.Tensor:
    """Return the quantised tensor that some integers are, with one scale."""
    return torch._make_per_tensor_quantized_tensor(integers, scale, zero_point)


def quantized_by_channel(
    integers: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, axis: int
) -> torch.Tensor:
    """Return the quantised tensor that some integers are, with a scale per channel."""
    return torch._make_per_channel_quantized_tensor(integers, scales, zero_points, axis)


def generator_key(generator: Any) -> int:
    """Return the address of a generator, of which Python has another object each time."""
    return int(generator._cdata)


def cpu_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the CPU, without history.

    For a wrapper that `torch.func` made, copy the tensor inside it, with all dimensions: the
    wrapper is of no use once the transformation is over. Seen on 2.6 to 2.13.
    """
    functorch = torch._C._functorch
    if functorch.peek_interpreter_stack() is None:
        return tensor.detach().to("cpu", copy=True)
    while is_transformed(tensor):
        tensor = functorch.get_unwrapped(tensor)
    with pyfunctorch.temporarily_clear_interpreter_stack():
        return tensor.detach().to("cpu", copy=True)


def has_memory(tensor: torch.Tensor) -> bool:
    """Return whether the elements of a strided tensor are in memory.

    FSDP and others free the memory of tensors that still exist.
    """
    if is_zero_tensor(tensor):
        return False
    if tensor.numel() == 0:
        return True
    if tensor.is_contiguous():
        last = tensor.storage_offset() + tensor.numel() - 1
    else:
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in pairs)
    try:
        there = tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError) as odd:  # a device without storages
        pass_on(odd)
        return tensor.device.type != "cpu"
    return (last + 1) * tensor.element_size() <= there


_forgetters: list[Callable[[torch.Tensor], None]] = []


class _ForgetfulWeakref:
    """Stands for the `weakref` module in `torch.utils` while a recording runs.

    `swap_tensors` refuses tensors that have weak references. Under whichever name it is called, it
    asks `torch.utils.weakref`, and this class drops Clew's references before it answers.
    """

    def getweakrefs(self, tensor: Any) -> list[Any]:
        _forget_all(tensor)
        return weakref.getweakrefs(tensor)

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)


_FORGETFUL = _ForgetfulWeakref()
_swap_impl = torch._C._swap_tensor_impl


def _forgetful_swap(first: Any, second: Any) -> None:
    """Swap tensors; an op that `swap_tensors` runs before may have met them anew."""
    _forget_all(first)
    _forget_all(second)
    _swap_impl(first, second)


def _forget_all(tensor: Any) -> None:
    for forget in _forgetters:
        forget(tensor)


def on_swap(forget: Callable[[torch.Tensor], None]) -> Callable[[], None]:
    """Call `forget` with tensors about to be swapped; return a function that undoes this."""
    utils: Any = torch.utils
    builtin: Any = torch._C
    _forgetters.append(forget)
    utils.weakref = _FORGETFUL
    builtin._swap_tensor_impl = _forgetful_swap

    def undo() -> None:
        if forget in _forgetters:
            _forgetters.remove(forget)
        if not _forgetters:
            utils.weakref = weakref
            builtin._swap_tensor_impl = _swap_impl

    return undo


# Called before `backward` with the tensors it is called on, and after it.
_around_backward: list[tuple[Callable[[Any], None], Callable[[], None]]] = []
_backward = torch.autograd.backward


def _watched_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
    if torch.compiler.is_dynamo_compiling():
        return _backward(tensors, *args, **kwargs)
    around = list(_around_backward)
    for before, _ in around:
        before(tensors)
    _backward(tensors, *args, **kwargs)
    for _, after in around:
        after()
    return None


def on_backward(before: Callable[[Any], None], after: Callable[[], None]) -> Callable[[], None]:
    """Call functions around each `backward`; return a function that undoes this.

    Torch has no hook for it. `Tensor.backward` looks `torch.autograd.backward` up when it is called
    (seen in 2.13); where a version does not, nothing is called.
    """
    autograd: Any = torch.autograd
    pair = before, after
    _around_backward.append(pair)
    autograd.backward = _watched_backward

    def undo() -> None:
        _around_backward.remove(pair)
        if not _around_backward and autograd.backward is _watched_backward:
            autograd.backward = _backward

    return undo


MACHINERY.hide(_watched_backward.__code__)
functools.update_wrapper(_watched_backward, _backward)


def push_mode(mode: TorchDispatchMode) -> None:
    """Push a dispatch mode on this thread.

    Not by `__enter__`, which also sets flags of the whole process and restores them in stack
    order: threads and traces that overlap would leave them wrong.
    """
    _push_mode(mode)


def remove_mode(mode: TorchDispatchMode) -> bool:
    """Remove a dispatch mode from this thread's stack; return whether it was there."""
    above = []
    found = False
    while not found and _len_torch_dispatch_stack() > 0:
        top = _pop_mode()
        found = top is mode
        if not found:
            above.append(top)
    for other in reversed(above):
        _push_mode(other)
    return found


def compiled_graph_class(load: bool) -> Any:
    """Return the class whose calls run Inductor's compiled graphs, None if it was never loaded.

    Seen on 2.6 to 2.13. Loading it takes a second, so pass `load` only if something compiled is
    about to run.
    """
    if load:
        importlib.import_module("torch._inductor.output_code")
    module = sys.modules.get("torch._inductor.output_code")
    return getattr(module, "CompiledFxGraph", None)


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether calls of a module go through `torch.compile`."""
    return "_orig_mod" in module._modules or is_compiled_in_place(module)


def is_compiled_in_place(module: torch.nn.Module) -> bool:
    """Return whether `module.compile()` was called."""
    return module._compiled_call_impl is not None


# The attribute that `module.compile()` sets. Seen on 2.6 to 2.13.
COMPILED_CALL = "_compiled_call_impl"


def compiled_inside(module: torch.nn.Module) -> torch.nn.Module | None:
    """Return the module that `torch.compile` made this one of, None for any other."""
    # A scripted module has dictionaries of its own kind, with little more than `items`.
    return dict(module._modules.items()).get("_orig_mod")


def is_dynamo_loaded() -> bool:
    """Return whether anything may have been compiled in this process."""
    return "torch._dynamo" in sys.modules


def is_dynamo_graph(module: torch.nn.Module) -> bool:
    """Return whether a module is a graph that Dynamo made, as the `eager` backend runs it."""
    # Set by torch 2.13, not by earlier ones. Not by `getattr`, which is slow to fail on a module.
    meta = module.__dict__.get("meta")
    return isinstance(meta, dict) and "dynamo_compile_id" in meta


_SCRIPT_MODULE = torch.jit.ScriptModule


def may_be_scripted(cls: type) -> bool:
    """Return whether TorchScript runs the modules of a class."""
    return _SCRIPT_MODULE in cls.__mro__


def is_scripted(module: torch.nn.Module | None, cls: str) -> bool:
    """Return whether TorchScript runs a module; by the name of its class if the module is gone."""
    if module is None:
        return cls in ("RecursiveScriptModule", "TracedModule", "TopLevelTracedModule")
    return may_be_scripted(type(module))


def compiled_graph_count() -> int:
    """Return how many graphs Dynamo has compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def around_compiling(
    begin: Callable[..., None], end: Callable[..., None]
) -> Callable[[], None] | None:
    """Call `begin` and `end` around each compilation of Dynamo; return a function that undoes this.

    Return None if Dynamo is not loaded or has no such callbacks. Seen on 2.6 to 2.13.
    `torch._dynamo.reset` removes both callbacks.
    """
    handler: Any = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    starts, ends = getattr(handler, "start_callbacks", 0), getattr(handler, "end_callbacks", 0)
    if not isinstance(starts, list) or not isinstance(ends, list):
        return None
    added = (starts, begin), (ends, end)
    for listed, callback in added:
        listed.append(callback)

    def undo() -> None:
        for listed, callback in added:
            if callback in listed:
                listed.remove(callback)

    return undo


def forward_hooks(module: torch.nn.Module) -> dict[int, Any]:
    """Return a module's own forward hooks, by number; replicas of it have the same dictionary."""
    return module._forward_hooks


# Hooks of all modules, by number, and the numbers of those that errors do not keep from running.
GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (
    nn_module._global_forward_pre_hooks,
    nn_module._global_forward_hooks,
    nn_module._global_forward_hooks_always_called,
)

# Hooks of all optimizers, by number: before and after a step. Seen on 2.6 to 2.13.
OPTIMIZER_PRE_HOOKS: dict[int, Any] = _global_optimizer_pre_hooks
OPTIMIZER_POST_HOOKS: dict[int, Any] = _global_optimizer_post_hooks


def add_hook(hooks: dict[int, Any], hook: Callable[..., None]) -> int:
    """Add a hook of all modules or optimizers as torch does; return its number.

    Torch's own functions make an object that can be pickled, which takes some ten times as long.
    """
    number = RemovableHandle.next_id
    RemovableHandle.next_id = number + 1
    hooks[number] = hook
    return number


def add_module_hooks(before: Callable[..., None], after: Callable[..., None]) -> tuple[int, int]:
    """Add hooks before and after the forward of all modules, the latter also after an error."""
    pre_hooks, hooks, always_called = GLOBAL_HOOKS
    begins, ends = add_hook(pre_hooks, before), add_hook(hooks, after)
    always_called[ends] = True
    return begins, ends


def remove_module_hooks(begins: int, ends: int) -> None:
    """Remove the hooks that `add_module_hooks` has added."""
    pre_hooks, hooks, always_called = GLOBAL_HOOKS
    pre_hooks.pop(begins, None)
    hooks.pop(ends, None)
    always_called.pop(ends, None)


# Whether Dynamo, export or Inductor traces the code that calls this.
is_compiling: Callable[[], bool] = torch.compiler.is_compiling

# True while a program is exported, by any of `torch.export`, its drafts, ONNX and
# `torch._dynamo.export`. Seen on 2.7 to 2.13; earlier ones set the other flag for the same time.
_EXPORT_FLAG = (
    "_is_exporting_flag" if hasattr(torch.compiler, "_is_exporting_flag") else "_is_compiling_flag"
)
_export_listeners: list[Callable[[bool], None]] = []


# Whether a program is being exported; Dynamo knows this function. Before 2.7 there is none.
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


class _ToldOfExports(ModuleType):
    """The class of `torch.compiler` while there are listeners for its export flag.

    Replacing the functions that set the flag would not do: they are loaded late, and several
    modules import them by name.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        before = self.__dict__.get(name)
        super().__setattr__(name, value)
        if name == _EXPORT_FLAG and bool(before) != bool(value):
            for listener in tuple(_export_listeners):
                listener(bool(value))


def on_export(listener: Callable[[bool], None]) -> Callable[[], None]:
    """Call `listener` with True when an export begins and False when it ends; return an undo."""
    _export_listeners.append(listener)
    torch.compiler.__class__ = _ToldOfExports

    def end() -> None:
        if listener in _export_listeners:
            _export_listeners.remove(listener)
        if not _export_listeners:
            # Past the slow `__setattr__` of the class it has.
            object.__setattr__(torch.compiler, "__class__", ModuleType)

    return end


# The modules of torch's built-in functions begin so.
BUILTIN_MODULES = "torch._C._"

# Whether `torch.jit.trace` follows the code that asks: sizes are tensors then, and what is done
# with them goes into its graph, unless its state is put aside.
is_jit_tracing: Callable[[], bool] = torch._C._is_tracing
jit_state: Callable[[], Any] = torch._C._get_tracing_state
set_jit_state: Callable[[Any], None] = torch._C._set_tracing_state  # type: ignore[attr-defined]


_SNAPSHOT: Any = torch._C.DispatchKey.PythonTLSSnapshot
_is_excluded: Any = torch._C._dispatch_tls_is_dispatch_key_excluded


def is_bare_alias() -> bool:
    """Return whether the `detach` that a mode is given now is no op of the program.

    Torch shows modes each alias it makes: of tensors saved for backward, of `.data`. These come
    past the dispatcher, which switches the keys above the mode's off.
    """
    return not _is_excluded(_SNAPSHOT)


def _pause_jit() -> Any:
    state = jit_state() if is_jit_tracing() else None
    if state is not None:
        set_jit_state(None)
    return state


MACHINERY.pause_jit, MACHINERY.resume_jit = _pause_jit, set_jit_state

# Sets autograd's grad mode in a single C call, which no signal handler can interrupt.
set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled

# How many `TorchFunctionMode`s are active: they would see reads of a tensor's attributes.
function_mode_count: Callable[[], int] = torch._C._len_torch_function_stack

# A context in which no function mode and no subclass sees reads of tensor attributes.
unobserved: Callable[[], Any] = torch._C.DisableTorchFunction


def asked_as_dynamo_traces(function: Callable[[], bool]) -> Callable[[], bool]:
    """Have Dynamo call a function once, and use its answer as a constant in compiled code."""
    # What `torch.compiler.assume_constant_result` does, which would load Dynamo.
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def keep_from_dynamo(modules: Iterable[ModuleType]) -> None:
    """Have Dynamo run the functions of some modules, and what they call, uncompiled.

    Otherwise it would compile what a trace function, or the engine, calls while compiled code runs.
    """
    for module in modules:
        for found in list(vars(module).values()):
            if getattr(found, "__module__", None) == module.__name__:
                for part in vars(found).values() if isinstance(found, type) else (found,):
                    code = getattr(part, "__code__", None)
                    if isinstance(code, CodeType):
                        hide_from_dynamo(code)
