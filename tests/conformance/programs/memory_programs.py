"""Programs about memory: views, writes, aliases, tensors that are given other data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tests.conformance.programs.registry import Prepared, program


@program
def views_of_views() -> Prepared:
    x = torch.arange(24.0).reshape(2, 3, 4)

    def run() -> Any:
        y = x.transpose(0, 1)[1:].flatten(1)
        z = y.unflatten(1, (2, 4)).movedim(0, -1)
        return y, z, z.squeeze(), x.diagonal(), x.unfold(2, 2, 2), x.expand(2, 2, 3, 4)

    return Prepared(run)


@program
def writes_through_views() -> Prepared:
    def run() -> Any:
        base = torch.zeros(3, 4)
        row, column = base[1], base[:, 2]
        row.add_(1)
        column.mul_(3)
        base.t()[0].copy_(torch.ones(3))
        return base + 1, row * 2, column - 1

    return Prepared(run)


@program
def writes_that_autograd_follows() -> Prepared:
    x = torch.randn(3, 4, requires_grad=True)

    def run() -> Any:
        y = x * 2
        y[0] = 0
        y[:, 1].mul_(3)
        y.mul_(1.5).add_(y)
        y[1:].neg_()
        y.relu_()
        y.sum().backward()
        return y, x.grad

    return Prepared(run)


@program
def writes_by_index() -> Prepared:
    ids = torch.tensor([0, 2, 0])

    def run() -> Any:
        x = torch.zeros(3, 3)
        x[ids, 1] = 5.0
        x.index_put_((ids,), torch.ones(3), accumulate=True)
        x.index_add_(0, ids, torch.ones(3, 3))
        x.scatter_(1, ids[:, None], 7.0)
        x.scatter_add_(0, ids[None], torch.ones(1, 3))
        x.masked_fill_(x > 6, -1.0)
        x.index_fill_(0, ids[:1], 4.0)
        x.scatter_reduce_(0, ids[None], torch.ones(1, 3), "amax")
        return x, x.masked_scatter(x > 0, torch.arange(9.0))

    return Prepared(run)


@program
def results_into_given_memory() -> Prepared:
    a, b = torch.randn(3), torch.randn(3)

    def run() -> Any:
        out, wide = torch.empty(3), torch.empty(0)
        torch.add(a, b, out=out)
        torch.cat([a, b], out=wide)
        values, places = torch.empty(3), torch.empty(3, dtype=torch.long)
        torch.sort(a, out=(values, places))
        return out * 2, wide * 2, values + 1, places + 1

    return Prepared(run)


@program
def memory_that_changes_its_shape() -> Prepared:
    def run() -> Any:
        x = torch.arange(4.0)
        y = x.view(2, 2)
        x.resize_(2)
        x.add_(1)
        z = torch.zeros(2)
        z.set_(y.untyped_storage(), 0, (4,))
        y.t_()
        y.unsqueeze_(0)
        y.squeeze_()
        return x * 1, y * 1, z * 1

    return Prepared(run)


@program
def tensors_given_other_data() -> Prepared:
    model = nn.Linear(2, 2)
    x = torch.ones(1, 2)

    def run() -> Any:
        first = model(x)
        model.weight.data = torch.ones(2, 2)
        model.bias.data.zero_()
        second = model(x)
        with torch.no_grad():
            model.weight.mul_(2)
            model.bias.fill_(1)
        return first, second, model(x)

    return Prepared(run, model)


@program
def detached_and_cloned() -> Prepared:
    x = torch.randn(3, requires_grad=True)

    def run() -> Any:
        y = x * 2
        z = y.detach()
        w = z.clone()
        w.add_(1)
        v = y.detach().requires_grad_()
        (v * v).sum().backward()
        return z, w, v.grad, y

    return Prepared(run)


@program
def lists_of_views() -> Prepared:
    x = torch.arange(12.0).reshape(3, 4)

    def run() -> Any:
        a, b = x.chunk(2, 1)
        c, d, e = x.unbind(0)
        f, g = x.split([1, 3], 1)
        h = torch.tensor_split(x, 2)
        return a + b, c * d * e, f + g, torch.vstack(h)

    return Prepared(run)


@program
def writes_through_lists_of_views() -> Prepared:
    def run() -> Any:
        x = torch.zeros(4)
        first, second = x.clone().chunk(2)
        first.add_(1)
        torch._foreach_add_([first, second], 2.0)
        torch._foreach_mul_([x], [3.0])
        return first + second, x + 1

    return Prepared(run)


@program
def foreach_ops() -> Prepared:
    xs = [torch.randn(2), torch.randn(3)]

    def run() -> Any:
        ys = torch._foreach_mul(xs, 2.0)
        torch._foreach_addcmul_(ys, xs, xs, 0.5)
        torch._foreach_sqrt_([y.abs_() for y in ys])
        return ys, torch._foreach_norm(ys)

    return Prepared(run)


@program
def numpy_on_the_same_memory() -> Prepared:
    def run() -> Any:
        x = torch.from_numpy(np.arange(3.0, dtype=np.float32))
        y = x * 2
        y.numpy()[0] = 9.0
        z = torch.as_tensor(np.ones(2))
        return y + 1, z.numpy().sum() + torch.zeros(1), torch.tensor(y.tolist())

    return Prepared(run)


@program
def memory_formats_and_dtypes() -> Prepared:
    x = torch.randn(1, 2, 3, 3)

    def run() -> Any:
        y = x.contiguous(memory_format=torch.channels_last)
        same = x.to(torch.float32)
        return y + 1, same + 1, x.double(), x.to(torch.bfloat16).view(torch.int16), x.half().float()

    return Prepared(run)


@program
def complex_numbers() -> Prepared:
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)

    def run() -> Any:
        y = x.conj() * 2
        real = torch.view_as_real(y.resolve_conj())
        z = torch.complex(real[:, 0], real[:, 1]).abs().sum()
        z.backward()
        return y, z, x.grad, x.detach().imag + 1, torch.polar(torch.ones(2), torch.zeros(2)).angle()

    return Prepared(run)


@program
def overlapping_writes() -> Prepared:
    def run() -> Any:
        x = torch.arange(6.0)
        x[1:].copy_(x[:-1].clone())
        y = x.as_strided((2, 3), (3, 1))
        y.fill_diagonal_(0)
        x.swapaxes(0, 0).neg_()
        return x + 0, y + 0

    return Prepared(run)


@program
def tensors_that_die_and_leave_their_address() -> Prepared:
    def run() -> Any:
        total = torch.zeros(3)
        for number in range(6):
            piece = torch.full((3,), float(number))
            total = total + piece.exp()
            del piece
        return total

    return Prepared(run)
