"""Programs of Python around torch: training loops, threads, errors, compilers, subclasses."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from tests.conformance.programs.registry import Prepared, program


def _training(make: Any, steps: int = 2) -> Prepared:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = make(model.parameters())
    x = torch.randn(4, 3)

    def run() -> Any:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
        return loss, list(model.parameters()), optimizer.state_dict()["state"]

    return Prepared(run, model)


@program
def training_with_sgd() -> Prepared:
    return _training(lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=False))


@program
def training_with_adam_by_foreach() -> Prepared:
    return _training(lambda p: optim.AdamW(p, lr=0.1, amsgrad=True, foreach=True))


@program
def training_with_fused_adam() -> Prepared:
    return _training(lambda p: optim.Adam(p, lr=0.1, fused=True))


@program
def training_with_rmsprop() -> Prepared:
    return _training(lambda p: optim.RMSprop(p, lr=0.01, centered=True))


@program
def training_with_lbfgs() -> Prepared:
    weight = torch.randn(3, requires_grad=True)
    optimizer = optim.LBFGS([weight], max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (weight - 1).square().sum()
        loss.backward()
        return loss

    def run() -> Any:
        optimizer.step(closure)
        return weight

    return Prepared(run)


@program
def training_with_clipping_and_a_scheduler() -> Prepared:
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    average = optim.swa_utils.AveragedModel(model)
    x = torch.randn(4, 3)

    def run() -> Any:
        for _ in range(2):
            model(x).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
            optimizer.zero_grad(set_to_none=False)
        return list(model.parameters()), list(average.parameters())

    return Prepared(run, model)


@program
def data_loader_in_the_process() -> Prepared:
    data = TensorDataset(torch.randn(5, 3), torch.arange(5))
    model = nn.Linear(3, 5)

    def run() -> Any:
        losses = []
        for x, y in DataLoader(data, batch_size=2, shuffle=True):
            losses.append(F.cross_entropy(model(x), y))
        torch.stack(losses).sum().backward()
        return losses

    return Prepared(run, model)


@program
def errors_that_the_program_catches() -> Prepared:
    model = nn.Linear(3, 2)

    def run() -> Any:
        x = torch.ones(2, 3)
        for attempt in (
            lambda: model(torch.ones(2, 4)),
            lambda: x.view(7),
            lambda: x + torch.ones(5),
            lambda: torch.linalg.cholesky(-torch.eye(2)),
            lambda: x[5],
            lambda: F.embedding(torch.tensor([9]), x),
            lambda: x.detach().requires_grad_().add_(1),
        ):
            with contextlib.suppress(RuntimeError, IndexError):
                attempt()
        return x * 2

    return Prepared(run, model)


@program
def errors_in_backward() -> Prepared:
    x = torch.randn(3, requires_grad=True)

    def run() -> Any:
        y = x.exp()
        y.mul_(2)
        with contextlib.suppress(RuntimeError):
            y.sum().backward()
        return y

    return Prepared(run)


def _pieces(x: Tensor) -> Iterator[Tensor]:
    for row in x:
        yield row * 2


@program
def generators_and_closures() -> Prepared:
    x = torch.randn(3, 2)

    def run() -> Any:
        def scaled(y: Tensor) -> Tensor:
            return y * x.sum()

        return [scaled(piece) for piece in _pieces(x)], sum(p.sum() for p in _pieces(x))

    return Prepared(run)


@program
def modules_in_threads() -> Prepared:
    model = nn.Linear(3, 2)
    x = torch.randn(2, 3)

    def run() -> Any:
        outs: list[Tensor] = []
        worker = threading.Thread(target=lambda: outs.append(model(x)), name="worker")
        worker.start()
        worker.join()
        return outs[0] * 2

    return Prepared(run, model)


@program
def ops_in_threads() -> Prepared:
    x = torch.randn(2, 3)

    def run() -> Any:
        outs: list[Tensor] = []
        worker = threading.Thread(target=lambda: outs.append(x.exp() + 1), name="worker")
        worker.start()
        worker.join()
        return outs[0] * 2

    return Prepared(run)


@program
def backward_in_threads() -> Prepared:
    model = nn.Linear(3, 2)
    x = torch.randn(2, 3)

    def run() -> Any:
        loss = model(x).exp().sum()
        worker = threading.Thread(target=loss.backward, name="worker")
        worker.start()
        worker.join()
        return model.weight.grad * 2

    return Prepared(run, model)


@program
def scripted_function() -> Prepared:
    graph = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval())
    x = torch.randn(2, 3)
    for _ in range(3):
        graph(x)

    def run() -> Any:
        with torch.no_grad():
            return graph(x) * 2

    return Prepared(run)


@program
def compiled_by_the_eager_backend() -> Prepared:
    torch._dynamo.reset()
    model = nn.Linear(3, 3)
    compiled = torch.compile(lambda x: model(x).relu() * 2, backend="eager")
    x = torch.randn(2, 3)
    compiled(x)

    def run() -> Any:
        return compiled(x) + 1

    return Prepared(run)


class Wrapped(Tensor):
    """Holds a tensor and runs every op on it."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Wrapped:
        made = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*[a.held if isinstance(a, Wrapped) else a for a in args], **kwargs or {})
        return Wrapped(out) if isinstance(out, Tensor) else out


@program
def subclass_that_wraps() -> Prepared:
    x = torch.randn(3)

    def run() -> Any:
        y = Wrapped(x).exp() + 1
        return y.held * 2

    return Prepared(run)


class Named(Tensor):
    """A tensor by another name, as many libraries have it."""


@program
def subclass_by_name() -> Prepared:
    x = torch.randn(3).as_subclass(Named)

    def run() -> Any:
        y = (x * 2).exp()
        return y.as_subclass(Tensor), y[0].as_subclass(Tensor)

    return Prepared(run)


class Doubling(TorchDispatchMode):
    """Doubles every sine."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        return out * 2 if func is torch.ops.aten.sin.default else out

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@program
def dispatch_mode_of_the_program() -> Prepared:
    x = torch.randn(3)

    def run() -> Any:
        with Doubling():
            return x.sin() + 1

    return Prepared(run)


class Counting(TorchFunctionMode):
    """Counts the functions that are called."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **kwargs or {})


@program
def function_mode_of_the_program() -> Prepared:
    x = torch.randn(3, requires_grad=True)

    def run() -> Any:
        with Counting() as mode:
            y = (x * 2).exp().sum()
        y.backward()
        return x.grad, mode.count

    return Prepared(run)


@torch.library.custom_op("conformance::scaled_sine", mutates_args=())
def scaled_sine(x: Tensor, scale: float) -> Tensor:
    return x.sin() * scale


scaled_sine.register_autograd(
    lambda ctx, gradient: (gradient * ctx.x.cos() * ctx.scale, None),
    setup_context=lambda ctx, inputs, output: (
        setattr(ctx, "x", inputs[0]), setattr(ctx, "scale", inputs[1])
    )[0],
)  # fmt: skip


@program
def custom_op() -> Prepared:
    x = torch.randn(3, requires_grad=True)

    def run() -> Any:
        y = scaled_sine(x, 2.0)
        y.sum().backward()
        return y, x.grad

    return Prepared(run)


@program
def copies_of_modules() -> Prepared:
    model = nn.Linear(2, 2)
    x = torch.randn(1, 2)

    def run() -> Any:
        other = copy.deepcopy(model)
        other.load_state_dict(model.state_dict())
        model.double()
        return model(x.double())

    return Prepared(run, model)


@program
def default_settings_inside() -> Prepared:
    def run() -> Any:
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("cpu"):
                return torch.ones(2) * torch.rand(2)
        finally:
            torch.set_default_dtype(torch.float32)

    return Prepared(run)


@program
def scalars_and_tensors_mixed() -> Prepared:
    x = torch.randn(3)

    def run() -> Any:
        number = torch.tensor(2.0)
        return x * number, x.add(1, alpha=2), float(x.sum()) + number, -x + True, x.int() / 2

    return Prepared(run)


@program
def higher_order_operator() -> Prepared:
    x = torch.randn(3)

    def run() -> Any:
        return torch.cond(x.sum() > 100, torch.sin, torch.cos, (x,)) * 2

    return Prepared(run)
