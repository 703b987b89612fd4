"""A program cannot tell whether it is traced: same bits, same errors, nothing left behind."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import inspect
import io
import os
import pdb
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import swap_tensors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import clew
from tests.models import Residual, leaves
from tests.outcomes import (
    HAS_PROC,
    MEGABYTE,
    PassingMode,
    differing,
    facts,
    faults,
    gradients,
    installed,
    random_states,
    resident,
    seed_everything,
)

RECORDINGS = [
    {},
    {"values": "stats"},
    {"values": "full"},
    {"capture": ["**"]},
    {"level": "modules"},
    {"level": "modules", "values": "full"},
]


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 3))


def under_autocast(model: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
        loss = F.mse_loss(y.float(), torch.ones(5, 3))
    loss.backward()
    return y, loss


def without_gradients(model: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        return model(x)


def inferring(model: nn.Module, x: Tensor) -> Any:
    with torch.inference_mode():
        y = model(x)
        y.add_(1)
        return y, y[0], y.is_inference()


def in_place_on_views(model: nn.Module, x: Tensor) -> Any:
    y = model(x)
    y[:, 0] = 0
    y.t()[1].mul_(3)
    y.unsqueeze(0).squeeze_(0).relu_()
    y.sum().backward()
    return y


def checkpointed(model: nn.Module, x: Tensor) -> Any:
    y = checkpoint(model, x.requires_grad_(), use_reentrant=False)
    y.sum().backward()
    return y, x.grad


def checkpointed_reentrant(model: nn.Module, x: Tensor) -> Any:
    y = checkpoint(model, x.requires_grad_(), use_reentrant=True)
    y.sum().backward()
    return y, x.grad


class Scaled(torch.autograd.Function):
    """Doubles, saves in forward, and halves what comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.sign() / 2


def custom_function(model: nn.Module, x: Tensor) -> Any:
    y = Scaled.apply(model(x))
    y.sum().backward()
    return y


def transformed(model: nn.Module, x: Tensor) -> Any:
    model.eval()
    parameters = dict(model.named_parameters())

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        h = F.linear(row, parameters["0.weight"], parameters["0.bias"]).tanh()
        return F.linear(h, parameters["3.weight"], parameters["3.bias"]).pow(2).sum()

    per_row = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    value, tangent = torch.func.jvp(lambda x: loss(parameters, x), (x,), (torch.ones_like(x),))
    hessian = torch.func.hessian(lambda row: loss(parameters, row))(x[0])
    return per_row, value, tangent, hessian


def random_vmap(model: nn.Module, x: Tensor) -> Any:
    noisy = torch.func.vmap(lambda row: row + torch.rand_like(row), randomness="different")
    return noisy(x), torch.randperm(7), torch.empty(3).normal_(), torch.multinomial(x.abs(), 2)


def second_order(model: nn.Module, x: Tensor) -> Any:
    y = model(x.requires_grad_()).tanh().sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    first.pow(2).sum().backward()
    return first, x.grad


def through_hooks(model: nn.Module, x: Tensor) -> Any:
    seen = []
    handles = [
        model[0].register_forward_hook(lambda m, args, out: out * 2),
        model[3].register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
        model[3].register_full_backward_hook(lambda m, gi, go: seen.extend(gi)),
    ]
    y = model(x)
    y.register_hook(lambda gradient: gradient * 3)
    y.sum().backward()
    for handle in handles:
        handle.remove()
    return y, seen


def swapped(model: nn.Module, x: Tensor) -> Any:
    y, z = model(x).detach(), torch.zeros(5, 3)
    torch.utils.swap_tensors(y, z)
    return y, z, y + z


def swapped_by_a_name_of_its_own(model: nn.Module, x: Tensor) -> Any:
    y, z = model(x).detach(), torch.zeros(5, 3)
    swap_tensors(y, z)
    return y, z, y + z


def converted(model: nn.Module, x: Tensor) -> Any:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model(x)
        model.to(torch.float64)
        y = model(x.double())
        y.sum().backward()
        return y
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def with_storage_taken_away(model: nn.Module, x: Tensor) -> Any:
    """As sharded training does with parameters it does not need for the moment."""
    y = model(x).detach()
    y.untyped_storage().resize_(0)
    z = x * 2
    z.untyped_storage().resize_(4 * 4 * 5)
    return z[:2]


def copied(model: nn.Module, x: Tensor) -> Any:
    model(x)
    twin = copy.deepcopy(model)
    buffer = io.BytesIO()
    torch.save(twin.state_dict(), buffer)
    buffer.seek(0)
    model.load_state_dict(torch.load(buffer))
    return model(x), twin(x)


def with_own_modes(model: nn.Module, x: Tensor) -> Any:
    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            out = func(*args, **kwargs or {})
            return out * 2 if func is torch.ops.aten.addmm.default else out

    class Counting(TorchFunctionMode):
        count = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            Counting.count += 1
            return func(*args, **kwargs or {})

    with Doubling(), Counting():
        y = model(x)
    return y, torch.tensor(Counting.count)


class Logging(Tensor):
    """A subclass that counts the functions it is used in."""

    count = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Logging.count += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def with_own_tensors(model: nn.Module, x: Tensor) -> Any:
    Logging.count = 0
    y = model(x.as_subclass(Logging))
    (y * 2).sum().backward()
    return y.as_subclass(Tensor), torch.tensor(Logging.count)


def threads_of_the_program(model: nn.Module, x: Tensor) -> Any:
    import threading

    found: dict[int, Tensor] = {}
    model.eval()

    def run(number: int) -> None:
        found[number] = model(x * number)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {str(n): found[n] for n in sorted(found)}


PROGRAMS = [
    under_autocast,
    without_gradients,
    inferring,
    in_place_on_views,
    checkpointed,
    checkpointed_reentrant,
    custom_function,
    transformed,
    random_vmap,
    second_order,
    through_hooks,
    swapped,
    swapped_by_a_name_of_its_own,
    converted,
    with_storage_taken_away,
    copied,
    with_own_modes,
    with_own_tensors,
    threads_of_the_program,
]


def outcome(program: Callable[[nn.Module, Tensor], Any], options: dict[str, Any] | None) -> Any:
    seed_everything()
    model, x = small_model(), torch.randn(5, 4)
    trace = None if options is None else clew.trace(model, **options)
    with contextlib.nullcontext() if trace is None else trace:
        result = program(model, x)
    if trace is not None:
        assert faults(trace) == []
        assert len(trace.events) > 0 or trace.env["level"] == "modules"
    found: dict[str, Any] = {path: facts(tensor) for path, tensor in leaves(result).items()}
    found |= {f"grad {name}": facts(gradient) for name, gradient in gradients(model)}
    found |= {f"parameter {name}": facts(p) for name, p in model.named_parameters()}
    return found | random_states()


@pytest.mark.parametrize("options", RECORDINGS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_bits_are_the_same(program: Any, options: dict[str, Any]) -> None:
    expected = outcome(program, None)
    assert differing(expected, outcome(program, None)) == []  # it can be told at all
    assert differing(expected, outcome(program, options)) == []


# Everything that was installed is gone


def fails_in_forward() -> None:
    nn.Linear(4, 2)(torch.ones(1, 3))


def fails_between_modules() -> None:
    nn.Linear(4, 2)(torch.ones(1, 4))
    raise LookupError("the program's own")


def interrupted() -> None:
    class Interrupting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    nn.Sequential(nn.Identity(), Interrupting())(torch.ones(1))


def exits() -> None:
    raise SystemExit(3)


def works() -> None:
    nn.Linear(4, 2)(torch.ones(1, 4)).sum().backward()


ENDINGS = [works, fails_in_forward, fails_between_modules, interrupted, exits]


def as_block(program: Callable[[], None], options: dict[str, Any]) -> None:
    with clew.trace(**options):
        assert options["level"] == "modules" or installed()["modes"]
        program()


def as_decorator(program: Callable[[], None], options: dict[str, Any]) -> None:
    clew.trace(**options)(program)()


def by_start_and_stop(program: Callable[[], None], options: dict[str, Any]) -> None:
    tracer = clew.trace(**options).start()
    try:
        program()
    finally:
        tracer.stop()


def on_an_exit_stack(program: Callable[[], None], options: dict[str, Any]) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(clew.trace(**options))
        stack.enter_context(torch.enable_grad())
        program()


def in_a_generator(program: Callable[[], None], options: dict[str, Any]) -> None:
    def steps() -> Iterator[int]:
        with clew.trace(**options):
            yield 1
            program()
            yield 2

    assert list(steps()) == [1, 2]


def in_a_generator_left_early(program: Callable[[], None], options: dict[str, Any]) -> None:
    def steps() -> Iterator[int]:
        with clew.trace(**options):
            yield 1
            yield 2

    running = steps()
    next(running)
    running.close()
    program()


def nested(program: Callable[[], None], options: dict[str, Any]) -> None:
    with clew.trace(**options), PassingMode(), clew.trace(values="full"):
        program()


@pytest.mark.parametrize("level", ["ops", "modules"])
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
@pytest.mark.parametrize(
    "way",
    [as_block, as_decorator, by_start_and_stop, on_an_exit_stack, in_a_generator,
     in_a_generator_left_early, nested],
    ids=lambda way: way.__name__,
)  # fmt: skip
def test_nothing_stays_installed(way: Any, ending: Any, level: str) -> None:
    before = installed()
    with contextlib.suppress(BaseException):
        way(ending, {"level": level, "values": "stats", "compiled": "eager"})
    assert differing(before, installed()) == []


def test_what_is_installed_shows_while_it_is(engine: str) -> None:
    """Without this, the test above would say nothing."""
    before = installed()
    with clew.trace():
        during = installed()
    changed = differing(before, during)
    assert ("modes" in changed) == (engine == "python")
    hooks = {"_global_forward_hooks", "_global_forward_pre_hooks"}
    assert hooks & set(changed) == (hooks if engine == "python" else set())


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
def test_hooks_of_the_program_stay(ending: Any) -> None:
    calls = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, a, o: calls.append(m))
    try:
        with contextlib.suppress(BaseException), clew.trace():
            ending()
        calls.clear()
        nn.Identity()(torch.ones(1))
        assert len(calls) == 1
    finally:
        handle.remove()


# Exceptions


class Awkward(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [ValueError("a", 1), KeyError("k"), StopIteration(3), Awkward(), KeyboardInterrupt(),
     SystemExit(2), GeneratorExit(), RuntimeError()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
@pytest.mark.parametrize("level", ["ops", "modules"])
def test_an_exception_comes_out_as_the_same_object(error: BaseException, level: str) -> None:
    class Raising(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise error from cause

    cause = OSError("the reason")
    arguments = error.args
    caught = None
    try:
        with clew.trace(level=level) as t:
            nn.Sequential(nn.Identity(), Raising())(torch.ones(2))
    except BaseException as raised:
        caught = raised
    assert caught is error
    assert caught.args == arguments
    assert caught.__cause__ is cause
    assert faults(t) == []
    del caught
    error.__traceback__ = None


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_a_failing_op_raises_what_it_would_have_raised(level: str) -> None:
    model, x = nn.Linear(4, 2), torch.ones(1, 3)
    with pytest.raises(RuntimeError) as plain:
        model(x)
    with pytest.raises(RuntimeError) as traced, clew.trace(model, level=level):
        model(x)
    assert type(traced.value) is type(plain.value)
    assert traced.value.args == plain.value.args
    assert traced.value.__context__ is plain.value.__context__ is None


def _step_of_adam(weight: Tensor) -> None:
    weight.grad = torch.ones(3)
    torch.optim.Adam([weight], foreach=True).step()


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.mul_(2),
        lambda weight: torch._foreach_mul_([weight], 2.0),
        lambda weight: torch._foreach_copy_([weight], [torch.zeros(3)]),
        lambda weight: torch._foreach_zero_([weight.detach()]),
        _step_of_adam,
    ],
    ids=["mul_", "foreach_mul_", "foreach_copy_", "foreach_zero_", "adam"],
)
@pytest.mark.parametrize("options", RECORDINGS, ids=str)
def test_autograd_notices_writes_to_what_it_saved(write: Any, options: dict[str, Any]) -> None:
    def program() -> tuple[str, int]:
        weight = torch.ones(3, requires_grad=True)
        loss = weight.square().sum()
        with torch.no_grad():
            write(weight)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as raised:
            loss.backward()
        return str(raised.value), weight._version

    expected = program()
    model = nn.Identity()
    with clew.trace(model, **options) as t:
        model(torch.ones(1))
        assert program() == expected
    writing = [op for op in t.ops if op.name.split(".")[1].endswith("_")]
    assert {value.version for op in writing[-1:] for value in op.outputs.values()} <= {expected[1]}


def test_an_op_of_the_program_s_own_raises_its_own_object() -> None:
    error = LookupError("inside the op", 3)

    @torch.library.custom_op("clewtests::raising", mutates_args=())
    def raising(x: Tensor) -> Tensor:
        raise error

    with pytest.raises(LookupError) as plain:
        raising(torch.ones(1))
    assert plain.value is error  # torch itself hands it through
    with pytest.raises(LookupError) as traced, clew.trace() as t:
        raising(torch.ones(1))
    assert traced.value is error
    assert t.crash.event.name == "clewtests.raising.default"


def test_a_note_is_added_to_the_exception() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(nn.Linear(4, 6), nn.Linear(10, 4))

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks(x)

    model = Net()
    with pytest.raises(RuntimeError) as raised, clew.trace(model):
        model(torch.ones(2, 4))
    (note,) = raised.value.__notes__
    assert "aten.addmm.default" in note
    assert "blocks.1" in note
    assert os.path.basename(__file__) in note
    assert "self.blocks(x)" in note
    assert "f32[2,6]" in note
    assert "blocks.1.weight f32[4,10]" in note
    assert "blocks.1.bias" in note


def test_no_note_on_an_exception_the_program_handled() -> None:
    with clew.trace() as t:
        try:
            nn.Linear(4, 2)(torch.ones(1, 3))
        except RuntimeError as handled:
            error = handled
    assert not hasattr(error, "__notes__")
    assert t.crash is None


def test_a_decorated_function_keeps_its_face() -> None:
    def compute(x: Tensor, *, twice: bool = False) -> Tensor:
        """Compute."""
        return x * 2 if twice else x

    traced = clew.trace()(compute)
    assert traced(torch.ones(2), twice=True).tolist() == [2.0, 2.0]
    assert (traced.__name__, traced.__doc__) == ("compute", "Compute.")
    assert inspect.signature(traced) == inspect.signature(compute)


# Warnings


def warned(options: dict[str, Any] | None) -> list[tuple[Any, ...]]:
    class Warning_(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            warnings.warn("mind this", DeprecationWarning, stacklevel=1)
            return F.softmax(x)  # warns of the missing `dim`

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.nullcontext() if options is None else clew.trace(**options):
            Warning_()(torch.ones(2, 2))
    return [(w.category, str(w.message), w.filename, w.lineno) for w in caught]


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_the_program_warns_as_before(level: str) -> None:
    plain = warned(None)
    assert len(plain) == 2
    assert warned({"level": level}) == plain


# Other users of Python's tracing


def test_a_debugger_sees_every_line() -> None:
    def program() -> list[int]:
        lines: list[int] = []

        def follow(frame: FrameType, event: str, arg: Any) -> Any:
            if frame.f_code.co_filename == __file__ and event == "line":
                lines.append(frame.f_lineno)
            return follow

        class Direct(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                x = x + 1
                return x * 2

        model = nn.Sequential(nn.Linear(3, 3), Direct())
        before = sys.gettrace()
        sys.settrace(follow)
        try:
            y = model(torch.ones(1, 3))
            model[1].forward(y)
        finally:
            sys.settrace(before)
        return lines

    plain = program()
    assert len(plain) == 4
    with clew.trace() as t:
        assert program() == plain
    assert [event.name for event in t.modules] == ["Sequential", "Linear", "Direct", "Direct"]


def test_a_debugger_may_start_while_a_direct_call_runs() -> None:
    """`.forward()` leaves a mark in the frame; a debugger that looks there must not stumble."""

    class Direct(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            sys.settrace(lambda frame, event, arg: None)
            try:
                z = y * 2
            finally:
                sys.settrace(None)
            return z

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Direct()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner.forward(x)

    before = sys.gettrace()
    try:
        with clew.trace(Outer()) as t:
            assert Outer()(torch.ones(2)).tolist() == [4.0, 4.0]
    finally:
        sys.settrace(before)
    assert faults(t) == []


@pytest.mark.parametrize("commands", ["continue", "next\nnext\ncontinue", "up\nstep\ncontinue"])
@pytest.mark.parametrize("before", [True, False])
def test_pdb_in_a_direct_call_leaves_it_one_call(commands: str, before: bool) -> None:
    class Direct(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for turn in range(3):
                x = x + 1
                if turn == 1:
                    # `nosigint`: else it leaves its own handler of Ctrl-C for the tests after this.
                    debugger = pdb.Pdb(
                        stdin=io.StringIO(commands + "\n"), stdout=shown, nosigint=True
                    )
                    debugger.set_trace()
                x = x * 2
            return x

    shown = io.StringIO()
    model, x = Direct(), torch.ones(1)
    with clew.trace(model) as t:
        for _ in range(2):
            if before:
                sys.settrace(lambda frame, event, arg: None)
            model.forward(x)
            sys.settrace(None)
    assert "x = x * 2" in shown.getvalue()
    assert [call.address for call in t.modules] == ["#0", "#1"]
    first, second = t.modules
    assert [op.parent_id for op in t.ops] == [first.id] * 6 + [second.id] * 6


def test_a_direct_call_in_traces_in_each_other() -> None:
    class Direct(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x + 1
            return x * 2

    model, one = Direct(), torch.ones(1)
    with clew.trace(model) as outer:
        one.exp()
        with clew.trace(model) as inner:
            model.forward(one)
    assert [op.parent_id for op in inner.ops] == [inner.modules[0].id] * 2
    assert [op.parent_id for op in outer.ops] == [None, *[outer.modules[0].id] * 2]


# Nothing is kept alive


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What dies must die of reference counts, as it does without a trace."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("options", RECORDINGS, ids=str)
def test_intermediate_tensors_die_when_the_program_lets_go(options: dict[str, Any]) -> None:
    died_in_block = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
            h = self.fc(x)
            died_in_block.append(weakref.ref(h))
            h = h * (scale if scale is not None else 2)
            died_in_block.append(weakref.ref(h))
            h = torch.cat([h, h[:1]]).view(-1)
            died_in_block.append(weakref.ref(h))
            return h.sum()

    model = Watched()
    with clew.trace(model, **options) as t, torch.no_grad():
        x, scale = torch.ones(3, 4), torch.tensor(3.0)
        y = model(x, scale=scale)
        inside = [ref() is None for ref in died_in_block]
        rest = [weakref.ref(value) for value in (x, scale, y)]
        del x, scale, y
        assert [ref() is None for ref in rest] == [True, True, True]
    assert inside == [True, True, True]
    assert len(t.modules) == 2


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("options", RECORDINGS, ids=str)
def test_the_graph_and_the_gradients_die_too(options: dict[str, Any]) -> None:
    model = small_model()
    with clew.trace(model, **options) as t:
        y = model(torch.ones(2, 4)).sum()
        mark = nn.Identity()  # anything that can be referred to weakly
        node = weakref.ref(mark)
        y.grad_fn.metadata["mark"] = mark
        del mark
        y.backward()
        saved = [weakref.ref(p.grad) for p in model.parameters()]
        model.zero_grad()
        assert [ref() for ref in saved] == [None] * len(saved)
        del y
        assert node() is None
    assert len(t.modules) > 0


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("options", RECORDINGS, ids=str)
def test_a_model_dies_inside_the_block_and_after_it(options: dict[str, Any]) -> None:
    class Plain(nn.Module):  # without the reference cycles of containers
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    kept = Plain()
    with clew.trace(**options) as t:
        passing = Plain()
        passing(torch.ones(2))
        ref = weakref.ref(passing)
        del passing
        assert ref() is None
        kept(torch.ones(2))
    ref = weakref.ref(kept)
    del kept
    assert ref() is None
    assert len(t.modules) == 2


@pytest.mark.usefixtures("no_collector")
def test_a_named_model_dies_though_its_trace_lives() -> None:
    model = Residual(2)
    with clew.trace(model) as t:
        model(torch.ones(1, 2, 3, 3))
    ref = weakref.ref(model)
    del model
    assert ref() is None
    assert [event.module for event in t.modules] == ["", "convolve", "norm", "act"]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("options", RECORDINGS, ids=str)
def test_no_frame_is_kept(options: dict[str, Any]) -> None:
    class Marker:
        """Lives in frames only."""

    markers = []

    class Direct(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            marker = Marker()
            markers.append(weakref.ref(marker))
            return x + 1

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.direct = Direct()

        def forward(self, x: Tensor, option: Any = None) -> Tensor:
            marker = Marker()
            markers.append(weakref.ref(marker))
            return self.direct.forward(self.direct(x))

    model = Net()
    with clew.trace(model, **options) as t:
        option = Marker()
        markers.append(weakref.ref(option))
        model(torch.ones(2), option=option)
        del option
        assert [ref() for ref in markers] == [None] * 4
    assert len(t.modules) >= 2


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("level", ["ops", "modules"])
def test_an_exception_and_its_frames_die(level: str) -> None:
    class Local:
        pass

    def program() -> weakref.ref[Local]:
        local = Local()
        ref = weakref.ref(local)
        model = nn.Linear(4, 2)
        try:
            with clew.trace(model, level=level) as t:
                model(torch.ones(1, 3))
        except RuntimeError:
            traces.append(t)
        return ref

    traces: list[Any] = []
    assert program()() is None
    assert traces[0].crash is not None


@pytest.mark.skipif(not HAS_PROC, reason="needs Linux's /proc")
@pytest.mark.parametrize("options", [{}, {"values": "stats"}, {"level": "modules"}], ids=str)
def test_memory_is_given_back_at_once(options: dict[str, Any]) -> None:
    class Plus(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    plus = Plus()
    x = torch.zeros(10 * MEGABYTE // 4)
    with clew.trace(plus, **options):
        plus(x)
        before = resident()
        for _ in range(40):
            x = plus(x)
        growth = resident() - before
    assert float(x[0]) == 40
    assert growth < 200 * MEGABYTE


@pytest.mark.skipif(not HAS_PROC, reason="needs Linux's /proc")
def test_memory_of_ops_that_are_not_recorded_is_given_back_at_once() -> None:
    passes_on = nn.Identity()
    x = torch.zeros(10 * MEGABYTE // 4)
    with clew.trace(passes_on, level="modules"):
        before = resident()
        for _ in range(60):
            x = passes_on(x + 1)
        growth = resident() - before
    assert growth < 200 * MEGABYTE


def test_reading_while_recording_keeps_nothing_and_changes_nothing() -> None:
    model = nn.Linear(3, 3)
    with torch.no_grad(), clew.trace(model, values="full") as t:
        y = model(torch.ones(1, 3))
        ref = weakref.ref(y)
        seen = [(event.name, [str(v) for v in event.outputs.values()]) for event in t.events]
        assert t["" if t.modules else "?"].output.array().tolist() == y.tolist()
        del y
        assert ref() is None
        assert len(t.events) == len(seen)  # reading recorded nothing
        model(torch.ones(1, 3))
        assert len(t.events) == 2 * len(seen)


class LooksAtItself(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        held = locals()
        torch.relu(x)
        return held


def test_what_a_forward_has_from_locals_is_not_emptied() -> None:
    model = LooksAtItself()
    with clew.trace(model):
        assert model.forward(torch.ones(1))["self"] is model


def test_a_warning_that_was_shown_is_not_shown_again_after_a_trace() -> None:
    importlib.import_module("torch._dynamo")
    net = nn.Linear(2, 2)

    def warns() -> None:
        warnings.warn("of the program", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        before = list(warnings.filters)
        warns()
        with clew.trace(net):
            net(torch.ones(1, 2))
        warns()
        assert list(warnings.filters) == before
        assert [str(one.message) for one in shown].count("of the program") == 1
        trace = clew.trace(net).start()
        with warnings.catch_warnings():
            net(torch.ones(1, 2))
            trace.stop()
            assert list(warnings.filters) == before
        assert list(warnings.filters) == before


@pytest.mark.parametrize("values", ["meta", "stats", "fingerprint", "full"])
def test_a_mode_around_the_trace_sees_no_op_of_ours(values: str) -> None:
    class Ops(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            ran.append(str(func))
            return func(*args, **kwargs or {})

    def run() -> None:
        x = torch.ones(4, 6, requires_grad=True)
        y = x.t() * 2
        (y.t() + x.bfloat16()).t().contiguous().sum().backward()

    ran: list[str] = []
    with Ops():
        run()
    plain, ran = ran, []
    with Ops(), clew.trace(values=values):
        run()
    assert ran == plain
