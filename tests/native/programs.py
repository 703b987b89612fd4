"""Programs that use what is rare in torch; each returns tensors and numbers to compare.

`PROGRAMS` has them by name. `tests.native.soak` runs them too, so they import no pytest.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, grad, jacfwd, jacrev, vmap
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}


def program(run: Program) -> Program:
    PROGRAMS[run.__name__] = run
    return run


def train_until(over: threading.Event) -> None:
    """Train a small model, with an op that raises now and then, until it is over."""
    model = small_model()
    while not over.is_set():
        model(torch.ones(2, 3)).sum().backward()
        with contextlib.suppress(RuntimeError):
            torch.ones(2) @ torch.ones(3)


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))


# Tensors whose memory or contents are changed past the dispatcher


@program
def swapped_tensors() -> Any:
    a, b = torch.randn(2), torch.randn(2)
    torch.utils.swap_tensors(a, b)
    model = nn.Linear(2, 2)
    first = model(a)
    torch.utils.swap_tensors(model.weight, nn.Parameter(torch.zeros(2, 2)))
    return a, b, first, model(a)


@program
def modules_converted_by_swapping() -> Any:
    model = small_model()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        before = model(torch.ones(3)).detach()
        model.double()
        model.load_state_dict(small_model().double().state_dict())
        return before, model(torch.ones(3, dtype=torch.float64))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@program
def memory_set_and_resized() -> Any:
    a = torch.ones(4)
    b = a * 2
    a.data = torch.zeros(3)
    b.set_(torch.arange(6.0))  # type: ignore[call-overload]
    found = [a + 1, b.sum()]
    b.resize_(12)
    b.zero_()
    b.resize_(0)
    weight = nn.Parameter(torch.ones(3))
    (weight * 2).sum().backward()
    weight.data = torch.zeros(5)
    weight.grad = None
    (weight * 3).sum().backward()
    return [*found, b + 1, weight.grad]


@program
def memory_freed_under_a_tensor() -> Any:
    """As FSDP does between uses; the view begins far behind the start of the memory."""
    whole = torch.randn(1 << 20)
    part = whole[1 << 19 :]
    kept = whole[:4].clone()
    whole.untyped_storage().resize_(0)
    shape = part.view(2, -1).shape
    whole.untyped_storage().resize_(4 << 20)
    whole.fill_(1)
    return kept, list(shape), part.sum()


@program
def writes_past_torch() -> Any:
    x = torch.ones(3)
    x.numpy()[0] = 5
    y = x * 2
    x.data.add_(1)
    with torch.no_grad():
        x[1:] = 7
    return x, y, x * 2


# Classes and layouts of tensors


class Named(torch.Tensor):
    pass


@program
def subclass_by_function() -> Any:
    x = torch.ones(3).as_subclass(Named)
    y = (x * 2).sin() + torch.ones(3)
    y.add_(1)
    return y


@program
def subclass_by_dispatch() -> Any:
    x = TwoTensor(torch.ones(3), torch.zeros(3))
    y = (x * 2).sin() + 1
    y.add_(x)
    z = nn.Parameter(TwoTensor(torch.ones(2, 3), torch.ones(2, 3)))
    return y.a, y.b, nn.functional.linear(x, z).a


@program
def parameters_of_rare_tensors() -> Any:
    """A parameter is made of a tensor that has no Python object yet."""
    sparse = nn.Parameter(torch.eye(3).to_sparse())
    meta = nn.Linear(3, 3, device="meta")
    transformed = nn.Parameter(torch.ones(2, dtype=torch.complex64).conj())
    buffer = nn.Buffer(torch.eye(2).to_sparse())
    outs = [type(p).__name__ for p in (sparse, meta.weight, transformed, buffer)]
    return outs, torch.sparse.mm(sparse, torch.ones(3, 2)), list(meta(meta.weight).shape)


@program
def fake_tensors() -> Any:
    with FakeTensorMode():
        out = small_model()(torch.ones(2, 3))
    return list(out.shape), type(out).__name__


@program
def nested_tensors() -> Any:
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    model = nn.Linear(3, 3)
    old = torch.nested.to_padded_tensor(model(torch.nested.nested_tensor(parts)) * 2, 0.0)
    jagged = model(torch.nested.nested_tensor(parts, layout=torch.jagged)).sin()
    return old, jagged.values()


@program
def sparse_tensors() -> Any:
    a = torch.eye(4).to_sparse()
    b = (a + a).coalesce()
    rows = torch.eye(3).to_sparse_csr() @ torch.ones(3)
    weight = torch.randn(4, 2, requires_grad=True)
    torch.sparse.mm(a, weight).sum().backward()
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    return a @ torch.ones(4, 4), b.values(), rows, weight.grad, table.weight.grad.to_dense()


@program
def quantised_tensors() -> Any:
    q = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    rows = torch.quantize_per_channel(
        torch.randn(2, 3), torch.ones(2), torch.zeros(2), 0, torch.qint8
    )
    return q.dequantize() * 2, q.int_repr(), rows.dequantize()


@program
def unusual_shapes() -> Any:
    views = torch.as_strided(torch.arange(10.0), (4, 4), (1, 1))
    wide = torch.ones(2).expand(1000, 2)
    number = torch.empty(()).fill_(2)
    many = torch.zeros([1] * 20)
    cut = torch.arange(12.0).view(3, 4).t()[::2]
    nothing = torch.ones(3, 0, 2)
    return nothing.sum(), number + 1, wide.sum(), views.sum(), many.sum(), cut * 2


@program
def complex_and_negated() -> Any:
    a = torch.view_as_complex(torch.randn(3, 2))
    return (a.conj() * a).real, torch.fft.fft(torch.randn(8)), a.conj().imag + 1, a.conj()


# Transforms and compilers


@program
def functorch_transforms() -> Any:
    model = small_model()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, weights, (x,)).sum()

    each = vmap(grad(loss), (None, 0))(weights, torch.randn(5, 3))
    cubes = jacfwd(jacrev(lambda x: (x**3).sum()))(torch.randn(3))
    drawn = vmap(lambda x: x + torch.rand(2), randomness="different")(torch.ones(3, 2))
    return each, grad(loss)(weights, torch.ones(3)), cubes, drawn


@program
def exported() -> Any:
    found = torch.export.export(small_model(), (torch.ones(2, 3),))
    return found.module()(torch.ones(2, 3))


@program
def jit_traced() -> Any:
    model = torch.jit.trace(small_model(), (torch.ones(2, 3),))
    out = model(torch.ones(2, 3))
    out.sum().backward()
    return out, [weight.grad for weight in model.parameters()]


@program
def jit_scripted() -> Any:
    class Writes(nn.Module):
        def forward(self, xs: list[Tensor]) -> Tensor:
            torch._foreach_add_([xs[0] + 1, xs[1] + 1], 1.0)
            torch._foreach_add_(xs, 1.0)
            return xs[0] + xs[1]

    return torch.jit.script(Writes())([torch.ones(2), torch.zeros(2)])


@program
def branches_as_data() -> Any:
    def choose(x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        return found

    with contextlib.redirect_stderr(None):
        return choose(torch.ones(3)), choose(-torch.ones(3))


@program
def recomputed() -> Any:
    model = small_model()
    for reentrant in (True, False):
        x = torch.ones(2, 3, requires_grad=True)
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    return [weight.grad for weight in model.parameters()]


# Modes


class SameDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class SameFunction(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Doubles(TorchDispatchMode):
    """Changes what the program computes, and calls ops of its own."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 2 if isinstance(out, Tensor) and out.is_floating_point() else out


@program
def modes_inside() -> Any:
    model = small_model()
    with SameDispatch(), SameFunction():
        first = model(torch.ones(2, 3))
    with SameFunction(), Doubles():
        second = model(first)
        second.sum().backward()
    return second, [weight.grad for weight in model.parameters()]


@program
def other_contexts() -> Any:
    model = small_model()
    with torch.inference_mode():
        inferred = model(torch.ones(2, 3)) * 2
    with torch.autocast("cpu", torch.bfloat16):
        cast = model(torch.ones(2, 3))
    with torch.device("meta"):
        away = torch.ones(3) + 1
    with torch.no_grad():
        values = torch.linalg.svdvals(torch.randn(4, 5, 5))
    return inferred.clone(), cast, list(away.shape), values


# Module calls


@program
def many_tensors_at_once() -> Any:
    weights = [nn.Parameter(torch.randn(3)) for _ in range(4)]
    optimizer = torch.optim.Adam(weights, foreach=True)
    for _ in range(3):
        torch.stack([(weight**2).sum() for weight in weights]).sum().backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return weights


@program
def modules_250_deep() -> Any:
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(250):
        model = nn.Sequential(model)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        x = torch.ones(2, requires_grad=True)
        model(x).sum().backward()
        return x.grad
    finally:
        sys.setrecursionlimit(before)


class Raises(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        if self.inner(x).shape:
            raise self.error
        return x


@program
def calls_that_raise() -> Any:
    found: list[Any] = []
    for error in (ValueError("a"), KeyboardInterrupt("b"), SystemExit(3), GeneratorExit("c")):
        model = nn.Sequential(nn.Linear(2, 2), Raises(error))
        for _ in range(2):
            try:
                model(torch.ones(2))
            except BaseException as raised:
                found.append(repr(raised))
        found.append(nn.Linear(2, 2)(torch.ones(2)))
    for bad in (torch.ones(3), torch.ones(2).long()):
        try:
            nn.Sequential(nn.Linear(2, 2))(bad)
        except RuntimeError as raised:
            found.append(str(raised))
    return found


class Steps(nn.Module):
    """Its call returns a generator, which calls another module in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Iterator[Tensor]:
        for _ in range(3):
            x = self.inner(x)
            yield x


class Abandons(nn.Module):
    """Leaves a generator in the middle of its own call."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = Steps()
        self.after = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        def calls() -> Iterator[Tensor]:
            yield self.after(x)
            yield self.after(next(self.steps(x)))

        running = calls()
        next(running)
        steps = self.steps(x)
        first = next(steps)
        del running
        out: Tensor = self.after(first)
        return out


@program
def generators_abandoned() -> Any:
    model, steps = Abandons(), Steps()
    held = steps(torch.ones(2))
    found = [next(held), model(torch.ones(2))]
    held.close()
    left = steps(torch.ones(2))
    found += [next(left), model(torch.ones(2)), *steps(torch.ones(2))]
    return found


class Structured(nn.Module):
    """Takes and returns dicts whose keys are no texts, and objects."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, given: Any, *more: Any, **named: Any) -> Any:
        a, b = given["a"], given[1]
        return {"a": self.inner(a), 3: b * 2, "z": [a, (b, {"q": a, None: b}), object]}


@program
def nested_arguments() -> Any:
    model = Structured()
    a, b = torch.ones(2), torch.zeros(2)
    out = model({"a": a, 1: b}, [a] * 40, 2**70, "\ud800", named={"b": b, 2: a})
    recursive: list[Any] = [a]
    recursive.append(recursive)
    model({"a": a, 1: b}, recursive, float("nan"), b"bytes", {a, b})
    return out["a"], out[3], out["z"][:2]


class Changes:
    """Changes the list it is in while it is described."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __repr__(self) -> str:
        del self.items[1:]
        return "Changes"


@program
def arguments_that_change_while_read() -> Any:
    model = nn.Flatten(0)
    items: list[Any] = []
    items += [Changes(items), *(object() for _ in range(20))]

    class Takes(nn.Module):
        def forward(self, x: Tensor, items: list[Any]) -> Tensor:
            out: Tensor = model(x)
            return out

    return Takes()(torch.ones(2, 2), items)


# Random numbers


@program
def generators_of_random_numbers() -> Any:
    found = []
    for seed in range(5):
        own = torch.Generator().manual_seed(seed)
        found += [torch.rand(2, generator=own), torch.randn(2), torch.randperm(3, generator=own)]
    dropped = nn.Dropout(0.5)(torch.ones(10))
    return [*found, dropped]
