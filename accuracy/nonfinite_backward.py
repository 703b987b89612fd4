"""NaN and Inf planted in backward passes: the loss is finite, its gradient is not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from accuracy.nonfinite import Planted, trained


class Distances(nn.Module):
    """Distances between samples, of which two are the same."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 3)
        self.fault = fault

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        apart = self.embed(x) - self.embed(y)
        if self.fault == "distance-root":
            return apart.square().sum(-1).sqrt()  # nonfinite: distance-root
        if self.fault == "distance-power":
            return (apart**2).sum(-1) ** 0.5  # nonfinite: distance-power
        if self.fault == "distance-cube":
            return apart.abs().sum(-1) ** 0.3  # nonfinite: distance-cube
        return torch.hypot(apart[:, 0], apart[:, 1])  # nonfinite: distance-hypot


class Angles(nn.Module):
    """Angles between vectors, of which two are parallel."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 3)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        z = self.embed(x)
        cosine = (z * 0 + 1).amax(-1)
        if self.fault == "angle-acos":
            return torch.acos(cosine)  # nonfinite: angle-acos
        return torch.asin(cosine)  # nonfinite: angle-asin


class Safe(nn.Module):
    """Values that torch.where leaves out, whose gradients it does not."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = self.gate(x).abs() * (x > 0)
        zero = torch.zeros_like(x)
        if self.fault == "where-log":
            return torch.where(x > 0, x.log(), zero)  # nonfinite: where-log
        if self.fault == "where-root":
            return torch.where(x > 0, x.sqrt(), zero)  # nonfinite: where-root
        if self.fault == "where-quotient":
            return torch.where(x > 0, 1 / x, zero)  # nonfinite: where-quotient
        if self.fault == "where-rsqrt":
            return torch.where(x > 0, x.rsqrt(), zero)  # nonfinite: where-rsqrt
        if self.fault == "where-power":
            return torch.where(x > 0, x**0.5, zero)  # nonfinite: where-power
        if self.fault == "mask-log":
            return (x.log() * (x > 0)).nan_to_num()  # nonfinite: mask-log
        if self.fault == "entropy-xlogy":
            return torch.xlogy(x, x)  # nonfinite: entropy-xlogy
        return x.sqrt()  # nonfinite: plain-root


class Decomposed(nn.Module):
    """Decompositions of a matrix with equal singular values."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 3))
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        matrix = torch.eye(3) + self.weight
        if self.fault == "equal-singular":
            left, _, _ = torch.linalg.svd(matrix)  # nonfinite: equal-singular
            return x @ left
        _, vectors = torch.linalg.eigh(matrix)  # nonfinite: equal-eigenvalues
        return x @ vectors


class Half(nn.Module):
    """A head in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4, dtype=torch.float16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.half()).float()  # nonfinite: loss-scale


class Critic(nn.Module):
    """A critic whose input does not matter, so that its slope is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)
        nn.init.zeros_(self.net.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def _distances(fault: str) -> Planted.Made:
    model = Distances(fault)
    x = torch.randn(3, 4)
    y = x.clone()
    y[1:] += 1
    return trained(model, lambda: model(x, y).sum())


def _called(model: nn.Module) -> Planted.Made:
    x = torch.randn(5, 4)
    return trained(model, lambda: model(x).sum())


def _decomposed(fault: str) -> Planted.Made:
    model = Decomposed(fault)
    x = torch.randn(2, 3)
    return trained(model, lambda: (model(x) * x).sum())


def _scaled() -> Planted.Made:
    model = Half()
    x = torch.randn(5, 4)
    return trained(model, lambda: model(x).sum() * 2.0**24)


def _penalty() -> Planted.Made:
    model = Critic()
    x = torch.randn(3, 4, requires_grad=True)

    def loss() -> Tensor:
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope.square().sum(1).sqrt() - 1).square().mean()  # nonfinite: slope-root

    return trained(model, loss)


def _weights() -> Planted.Made:
    model = nn.Linear(4, 4)
    nn.init.zeros_(model.weight)

    def loss() -> Tensor:
        size = model.weight.square().sum().sqrt()  # nonfinite: decay-root
        return model(torch.ones(1, 4)).sum() + size

    return trained(model, loss)


_AT_ZERO = "gradient of {} at 0"
PLANTED = [
    Planted("distance-root", lambda: _distances("distance-root"), "sqrt", "Distances",
            _AT_ZERO.format("sqrt"), "backward"),
    Planted("distance-power", lambda: _distances("distance-power"), "pow", "Distances",
            r"gradient of x \*\* 0.5 at 0", "backward"),
    Planted("distance-cube", lambda: _distances("distance-cube"), "pow", "Distances",
            r"gradient of x \*\* 0.3 at 0", "backward"),
    Planted("distance-hypot", lambda: _distances("distance-hypot"), "hypot", "Distances",
            _AT_ZERO.format("hypot"), "backward"),
    Planted("angle-acos", lambda: _called(Angles("angle-acos")), "acos", "Angles",
            "gradient of acos at ±1", "backward"),
    Planted("angle-asin", lambda: _called(Angles("angle-asin")), "asin", "Angles",
            "gradient of asin at ±1", "backward"),
    Planted("where-log", lambda: _called(Safe("where-log")), "log", "Safe", "left out", "backward"),
    Planted("where-root", lambda: _called(Safe("where-root")), "sqrt", "Safe", "left out",
            "backward"),
    # These make Inf in the forward pass, which their gradient uses.
    Planted("where-quotient", lambda: _called(Safe("where-quotient")), "reciprocal", "Safe",
            "division by zero"),
    Planted("where-rsqrt", lambda: _called(Safe("where-rsqrt")), "rsqrt", "Safe", "rsqrt of"),
    Planted("where-power", lambda: _called(Safe("where-power")), "pow", "Safe",
            r"gradient of x \*\* 0.5 at 0", "backward"),
    Planted("mask-log", lambda: _called(Safe("mask-log")), "log", "Safe", "left out", "backward"),
    Planted("entropy-xlogy", lambda: _called(Safe("entropy-xlogy")), "xlogy", "Safe",
            _AT_ZERO.format("xlogy"), "backward"),
    Planted("plain-root", lambda: _called(Safe("plain-root")), "sqrt", "Safe",
            _AT_ZERO.format("sqrt"), "backward"),
    Planted("equal-singular", lambda: _decomposed("equal-singular"), "_linalg_svd", "Decomposed",
            "equal singular values", "backward"),
    Planted("equal-eigenvalues", lambda: _decomposed("equal-eigenvalues"), "_linalg_eigh",
            "Decomposed", "equal eigenvalues", "backward"),
    Planted("loss-scale", _scaled, "_to_copy", "Half", "overflows: float16", "backward"),
    Planted("slope-root", _penalty, "sqrt", None, _AT_ZERO.format("sqrt"), "backward"),
    Planted("decay-root", _weights, "sqrt", None, _AT_ZERO.format("sqrt"), "backward"),
]  # fmt: skip
