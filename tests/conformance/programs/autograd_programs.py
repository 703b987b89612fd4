"""Programs about gradients: graphs, custom functions, checkpoints, transformations, modes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.conformance.programs.registry import Prepared, program


@program
def second_derivatives() -> Prepared:
    x = torch.randn(3, requires_grad=True)

    def run() -> Any:
        y = (x**3).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return y, first, second

    return Prepared(run)


@program
def gradient_penalty() -> Prepared:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(2, 3, requires_grad=True)

    def run() -> Any:
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        return loss

    return Prepared(run, model)


@program
def accumulated_gradients() -> Prepared:
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)

    def run() -> Any:
        for part in x.split(2):
            model(part).square().sum().backward()
        return model.weight.grad.clone()

    return Prepared(run, model)


@program
def retained_graphs() -> Prepared:
    x = torch.randn(3, requires_grad=True)

    def run() -> Any:
        y = x.sin()
        y.retain_grad()
        z = y.exp().sum()
        z.backward(retain_graph=True)
        z.backward()
        return x.grad, y.grad

    return Prepared(run)


@program
def one_tensor_used_three_times() -> Prepared:
    x = torch.randn(3, requires_grad=True)

    def run() -> Any:
        y = x * 2
        (y + y.sin() + y.cos()).sum().backward()
        return x.grad

    return Prepared(run)


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


@program
def custom_function() -> Prepared:
    model = nn.Linear(3, 3)
    x = torch.randn(2, 3)

    def run() -> Any:
        out = Scaled.apply(model(x))
        out.sum().backward()
        return out

    return Prepared(run, model)


class Written(torch.autograd.Function):
    """Writes to what it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


@program
def custom_function_in_place() -> Prepared:
    x = torch.randn(3, requires_grad=True)

    def run() -> Any:
        y = Written.apply(x + 1)
        y.sum().backward()
        return y, x.grad

    return Prepared(run)


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 3))


@program
def checkpoint_without_reentry() -> Prepared:
    model = _layers()
    x = torch.randn(2, 3, requires_grad=True)

    def run() -> Any:
        out = checkpoint(model, x, use_reentrant=False)
        out.sum().backward()
        return out, x.grad

    return Prepared(run, model)


@program
def checkpoint_with_reentry() -> Prepared:
    model = _layers()
    x = torch.randn(2, 3, requires_grad=True)

    def run() -> Any:
        out = checkpoint(model, x, use_reentrant=True)
        out.sum().backward()
        return out, x.grad

    return Prepared(run, model)


@program
def checkpoint_of_a_sequence() -> Prepared:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    x = torch.randn(2, 3, requires_grad=True)

    def run() -> Any:
        out = checkpoint_sequential(model, 2, x, use_reentrant=False)
        out.sum().backward()
        return out

    return Prepared(run, model)


@program
def hooks_on_saved_tensors() -> Prepared:
    x = torch.randn(3, requires_grad=True)

    def run() -> Any:
        with saved_tensors_hooks(lambda t: t * 1, lambda t: t + 0), save_on_cpu():
            y = (x * x).exp().sum()
        y.backward()
        return x.grad

    return Prepared(run)


@program
def no_gradients() -> Prepared:
    model = nn.Linear(3, 3)
    x = torch.randn(2, 3)

    def run() -> Any:
        with torch.no_grad():
            first = model(x)
        with torch.enable_grad():
            return first, model(first).detach()

    return Prepared(run, model)


@program
def inference_of_a_layer_on_a_transposed_input() -> Prepared:
    model = nn.Linear(64, 64, bias=False)
    x = torch.randn(2, 7, 64).transpose(0, 1)

    def run() -> Any:
        with torch.inference_mode():
            return model(x)

    return Prepared(run, model)


@program
def inference_of_an_encoder() -> Prepared:
    model = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True).eval()
    x = torch.randn(3, 2, 8)

    def run() -> Any:
        with torch.inference_mode():
            return model(x)

    return Prepared(run, model)


@program
def inference_without_composite_ops() -> Prepared:
    x = torch.randn(2, 3)

    def run() -> Any:
        with torch.inference_mode():
            y = x + 1
            y.mul_(2)
            return y[0].exp(), y

    return Prepared(run)


@program
def autocast_to_bfloat16() -> Prepared:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Softmax(-1))
    x = torch.randn(2, 3)

    def run() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        out.float().sum().backward()
        return out

    return Prepared(run, model)


@program
def gradients_of_samples_by_vmap() -> Prepared:
    weight, x = torch.randn(3, 3), torch.randn(4, 3)

    def loss(weight: Tensor, row: Tensor) -> Tensor:
        return torch.tanh(weight @ row).sum()

    def run() -> Any:
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)

    return Prepared(run)


@program
def transformations_of_functions() -> Prepared:
    x = torch.randn(3)

    def f(x: Tensor) -> Tensor:
        return (x.sin() * x).sum()

    def run() -> Any:
        value, tangent = torch.func.jvp(f, (x,), (torch.ones(3),))
        _, pull = torch.func.vjp(f, x)
        return value, tangent, pull(torch.ones(())), torch.func.hessian(f)(x)

    return Prepared(run)


@program
def calls_with_other_parameters() -> Prepared:
    model = nn.Linear(3, 2)
    others = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    x = torch.randn(2, 3)

    def run() -> Any:
        return torch.func.functional_call(model, others, (x,))

    return Prepared(run, model)


@program
def random_vmap() -> Prepared:
    x = torch.randn(3, 2)

    def run() -> Any:
        return torch.func.vmap(lambda row: row + torch.rand_like(row), randomness="different")(x)

    return Prepared(run)


@program
def forward_mode() -> Prepared:
    x, tangent = torch.randn(3), torch.ones(3)

    def run() -> Any:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            return tuple(forward_ad.unpack_dual(dual.exp() * 2))

    return Prepared(run)


@program
def backward_of_products() -> Prepared:
    x = torch.randn(3, 5, requires_grad=True)

    def run() -> Any:
        (x.prod(1).sum() + x.prod()).backward()
        return x.grad

    return Prepared(run)


@program
def products_without_gradients() -> Prepared:
    x = torch.randn(3, 5, requires_grad=True)

    def run() -> Any:
        with torch.no_grad():
            return x.prod(1), x.prod()

    return Prepared(run)


@program
def backward_of_running_products() -> Prepared:
    x = torch.rand(3, 5, requires_grad=True)

    def run() -> Any:
        x.cumprod(0).sum().backward()
        return x.grad

    return Prepared(run)


@program
def backward_of_picked_elements() -> Prepared:
    x = torch.randn(4, 5, requires_grad=True)
    rows = torch.tensor([0, 2])

    def run() -> Any:
        parts = [
            x[rows], x.max(1).values, x.gather(1, torch.tensor([[0], [1], [2], [3]])),
            x.masked_fill(x > 1, 0.0), x.topk(2).values, x.sort().values, x.index_select(0, rows),
            x.cummax(0).values, x.clamp(-1, 1), x.masked_select(x > 0), x.take(rows), x.median(),
        ]  # fmt: skip
        sum(part.sum() for part in parts).backward()
        return parts, x.grad

    return Prepared(run)


@program
def frozen_parameters() -> Prepared:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    x = torch.randn(2, 3)

    def run() -> Any:
        out = model(x)
        out.sum().backward()
        model[0].requires_grad_(True)
        model(x).sum().backward()
        return out

    return Prepared(run, model)
