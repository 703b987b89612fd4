"""NaN and Inf planted in forward passes, where people meet them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.nonfinite import Planted, trained

INF = float("inf")


class Classifier(nn.Module):
    """A body, a head, and a loss written by hand."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)
        self.fault = fault

    def forward(self, x: Tensor, temperature: float = 1.0) -> Tensor:
        h = self.body(x)
        if self.fault == "batch-std":
            h = (h - h.mean(0)) / h.std(0)  # nonfinite: batch-std
        if self.fault == "zero-std":
            h = h * 0 + 1
            spread = h.std(1, keepdim=True)
            h = (h - h.mean(1, keepdim=True)) / spread  # nonfinite: zero-std
        logits = self.head(h)
        if self.fault == "temperature":
            logits = logits / temperature  # nonfinite: temperature
        if self.fault == "log-softmax":
            return (1000 * logits).softmax(-1).log()  # nonfinite: log-softmax
        if self.fault == "own-softmax":
            raised = (300 * logits.abs() + 90).exp()  # nonfinite: own-softmax
            return raised / raised.sum(-1, keepdim=True)
        if self.fault == "own-bce":
            p = torch.sigmoid(100 + logits)
            return -torch.log(1 - p)  # nonfinite: own-bce
        if self.fault == "entropy":
            p = (1000 * logits).softmax(-1)
            return -(p * p.log()).sum(-1)  # nonfinite: entropy
        return logits


class Attention(nn.Module):
    """Attention with a mask, in several wrong ways."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.fault = fault

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(8)
        if self.fault == "mask-product":
            scores = scores + (~mask) * -INF  # nonfinite: mask-product
        else:
            scores = scores.masked_fill(~mask, -INF)  # nonfinite: masked-row, own-masked-softmax
        if self.fault == "own-masked-softmax":
            scores = scores - scores.amax(-1, keepdim=True)
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        else:
            weights = scores.softmax(-1)
        return weights @ self.v(x)


class Wrapped(nn.Module):
    """A layer inside another, so that the fault is deep in the model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), inner])

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.layers[1](*inputs)


class Variational(nn.Module):
    """A variational autoencoder."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(2, 6)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        mean, log_var = self.encoder(x).chunk(2, -1)
        if self.fault == "log-variance":
            log_var = 1e4 * log_var.abs() + 200
        std = torch.exp(0.5 * log_var)  # nonfinite: log-variance
        return self.decoder(mean + std * torch.randn_like(std))


class Graph(nn.Module):
    """Messages between nodes; one node has no neighbour."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.message = nn.Linear(4, 4)
        self.fault = fault

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        sent = self.message(x)[edges[0]]
        total = torch.zeros_like(x).index_add(0, edges[1], sent)
        degree = torch.zeros(len(x)).index_add(0, edges[1], torch.ones(edges.shape[1]))
        if self.fault == "degree-mean":
            return total / degree[:, None]  # nonfinite: degree-mean
        if self.fault == "degree-power":
            return total * degree.pow(-0.5)[:, None]  # nonfinite: degree-power
        weights = degree.rsqrt()  # nonfinite: degree-rsqrt
        return total * weights[:, None]


class Recurrent(nn.Module):
    """A state that grows at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.move = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = x
        for _ in range(9):
            state = state * (1e5 + self.move(state).tanh())  # nonfinite: growing-state
        return state


class Norms(nn.Module):
    """Normalisation without the small number."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norm: nn.Module = nn.Identity()
        if fault == "layer-norm":
            self.norm = nn.LayerNorm(4, eps=0.0)
        self.fault = fault
        self.out = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "layer-norm":
            x = self.norm(x)  # nonfinite: layer-norm
        elif self.fault == "rms-norm":
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True))  # nonfinite: rms-norm
        elif self.fault == "unit-length":
            x = x / x.norm(dim=-1, keepdim=True)  # nonfinite: unit-length
        elif self.fault == "min-max":
            span = x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)
            x = (x - x.amin(-1, keepdim=True)) / span  # nonfinite: min-max
        elif self.fault == "variance":
            mean = x.mean(-1, keepdim=True)
            variance = x.square().mean(-1, keepdim=True) - mean.square() - 1e-9
            x = (x - mean) / variance.sqrt()  # nonfinite: variance
        elif self.fault == "whitening":
            x = x / x.var(0)  # nonfinite: whitening
        return self.out(x)


class Half(nn.Module):
    """Layers in half precision."""

    def __init__(self, fault: str, dtype: torch.dtype = torch.float16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 64, dtype=dtype), nn.Linear(64, 8, dtype=dtype)
        self.fault = fault
        nn.init.constant_(self.up.weight, 4.0)
        nn.init.constant_(self.down.weight, 4.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        if self.fault == "half-square":
            return h.square()  # nonfinite: half-square
        if self.fault == "half-sum":
            return h.sum()  # nonfinite: half-sum
        if self.fault == "half-exp":
            return (h / 20).exp()  # nonfinite: half-exp
        if self.fault == "half-cast":
            return (h.float() * 1000).half()  # nonfinite: half-cast
        if self.fault == "bfloat-exp":
            return h.exp()  # nonfinite: bfloat-exp
        return self.down(h)  # nonfinite: half-linear


class Sound(nn.Module):
    """The logarithm of a spectrum; some of the sound is silence."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Linear(5, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        power = torch.fft.rfft(x, dim=-1).abs().square()
        return self.filters(power).abs().log10()  # nonfinite: silence


class Boxes(nn.Module):
    """Overlap of boxes, and their sizes as logarithms."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.head(x).chunk(2, -1)
        if self.fault == "box-log":
            return torch.log(high - high.abs() - 1 - low * 0)  # nonfinite: box-log
        size = (high - high).clamp(min=0)
        area = size.prod(-1)
        return area / (area + area - area)  # nonfinite: box-overlap


class Policy(nn.Module):
    """A policy and its ratio to an older one."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.actor = nn.Linear(4, 3)
        self.fault = fault

    def forward(self, state: Tensor) -> Tensor:
        logits = self.actor(state)
        if self.fault == "policy-ratio":
            return torch.exp(logits - logits.detach() + 100)  # nonfinite: policy-ratio
        if self.fault == "advantage":
            gain = logits.sum(-1)[:1]
            return (gain - gain.mean()) / gain.std()  # nonfinite: advantage
        p = (1e4 * logits).softmax(-1)
        return torch.log(p.amin(-1))  # nonfinite: policy-log


class Odd(nn.Module):
    """Functions with borders."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.scale = nn.Linear(3, 3)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale(x) * 0 + x
        if self.fault == "angle":
            return torch.acos(1.0001 * x)  # nonfinite: angle
        if self.fault == "logit":
            return torch.logit(x)  # nonfinite: logit
        if self.fault == "atanh":
            return torch.atanh(x)  # nonfinite: atanh
        if self.fault == "root-of-negative":
            return (-x) ** 0.5  # nonfinite: root-of-negative
        if self.fault == "log-determinant":
            return torch.logdet(x.repeat(3, 1))  # nonfinite: log-determinant
        if self.fault == "empty-mean":
            return x[x > 5].mean()  # nonfinite: empty-mean
        return 1 / (x - x)  # nonfinite: inverse


class Schedule(nn.Module):
    """Diffusion that divides by a noise of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.register_buffer("kept", torch.linspace(1, 0.1, 10))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        kept = self.kept[t][:, None]
        clean = (x - self.net(x)) / (1 - kept).sqrt()  # nonfinite: no-noise
        return clean


def _classified(fault: str, rows: int = 4, **more: float) -> Planted.Made:
    model = Classifier(fault)
    x = torch.randn(rows, 6)
    return trained(model, lambda: model(x, **more).sum())


def _attended(fault: str) -> Planted.Made:
    inner = Attention(fault)
    model = Wrapped(inner)
    mask = torch.ones(2, 5, 5, dtype=torch.bool).tril()
    mask[1, 0] = False
    x = torch.randn(2, 5, 8)
    return trained(model, lambda: model(x, mask).sum())


def _graphed(fault: str) -> Planted.Made:
    model = Graph(fault)
    edges = torch.tensor([[0, 1, 2], [1, 2, 1]])
    x = torch.randn(4, 4)
    return trained(model, lambda: model(x, edges).sum())


def _called(model: nn.Module, *inputs: Tensor) -> Planted.Made:
    return trained(model, lambda: model(*inputs).float().sum())


def _ignored() -> Planted.Made:
    model = Classifier("")
    x, y = torch.randn(4, 6), torch.full((4,), -100)
    return trained(model, lambda: F.cross_entropy(model(x), y))  # nonfinite: all-ignored


def _divergence() -> Planted.Made:
    model = Classifier("")
    x = torch.randn(4, 6)
    wanted = torch.tensor([1.0, 0.0, 0.0]).expand(4, 3)

    def loss() -> Tensor:
        said = model(x).log_softmax(-1)
        return (wanted * (wanted.log() - said)).sum()  # nonfinite: divergence

    return trained(model, loss)


def _learning_rate() -> Planted.Made:
    model = Classifier("")
    x = 1e4 * torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e37)

    def run() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()  # nonfinite: learning-rate

    return model, run


def _normed(fault: str, x: Tensor) -> Planted.Made:
    return _called(Wrapped(Norms(fault)), x)


_SAME = torch.ones(3, 4)
_ZERO = torch.zeros(3, 4)
_ENDS = torch.tensor([[1.0, 0.5, 0.2]])

PLANTED = [
    Planted("batch-std", lambda: _classified("batch-std", 1), "std", "Classifier", "of 1 element"),
    Planted("zero-std", lambda: _classified("zero-std"), "div", "Classifier", "0/0"),
    Planted("temperature", lambda: _classified("temperature", temperature=0.0), "div",
            "Classifier", "division by 0|division by zero"),
    Planted("log-softmax", lambda: _classified("log-softmax"), "log", "Classifier", "log of"),
    Planted("own-softmax", lambda: _classified("own-softmax"), "exp", "Classifier", "exp of"),
    Planted("own-bce", lambda: _classified("own-bce"), "log", "Classifier", "log of"),
    Planted("entropy", lambda: _classified("entropy"), "log", "Classifier", "log of"),
    Planted("masked-row", lambda: _attended("masked-row"), "masked_fill", "Wrapped.layers.1",
            "a row that softmax took is -inf alone"),
    Planted("own-masked-softmax", lambda: _attended("own-masked-softmax"), "masked_fill",
            "Wrapped.layers.1", "Inf becomes NaN"),
    Planted("mask-product", lambda: _attended("mask-product"), "mul", "Wrapped.layers.1", "0 ×"),
    Planted("log-variance", lambda: _called(Variational("log-variance"), torch.randn(3, 6)), "exp",
            "Variational", "exp of"),
    Planted("degree-mean", lambda: _graphed("degree-mean"), "div", "Graph", "0/0"),
    Planted("degree-power", lambda: _graphed("degree-power"), "pow", "Graph", "0 to the power"),
    Planted("degree-rsqrt", lambda: _graphed("degree-rsqrt"), "rsqrt", "Graph", "rsqrt of"),
    Planted("growing-state", lambda: _called(Recurrent(), torch.ones(2, 4)), "mul", "Recurrent",
            "overflow"),
    Planted("layer-norm", lambda: _normed("layer-norm", _SAME), "native_layer_norm",
            "Wrapped.layers.1.norm", "equal"),
    Planted("rms-norm", lambda: _normed("rms-norm", _ZERO), "rsqrt", "Wrapped.layers.1",
            "rsqrt of"),
    Planted("unit-length", lambda: _normed("unit-length", _ZERO), "div", "Wrapped.layers.1", "0/0"),
    Planted("min-max", lambda: _normed("min-max", _SAME), "div", "Wrapped.layers.1", "0/0"),
    Planted("variance", lambda: _normed("variance", _SAME), "sqrt", "Wrapped.layers.1",
            "sqrt of a negative"),
    Planted("whitening", lambda: _normed("whitening", torch.ones(1, 4)), "var",
            "Wrapped.layers.1", "of 1 element"),
    Planted("half-square", lambda: _called(Half("half-square"), 40 * torch.ones(2, 8).half()),
            "pow|square", "Half", "overflow, float16"),
    Planted("half-sum", lambda: _called(Half("half-sum"), 40 * torch.ones(2, 8).half()), "sum",
            "Half", "overflow, float16"),
    Planted("half-exp", lambda: _called(Half("half-exp"), 40 * torch.ones(2, 8).half()), "exp",
            "Half", "exp of"),
    Planted("half-cast", lambda: _called(Half("half-cast"), 40 * torch.ones(2, 8).half()),
            "_to_copy", "Half", "overflow, float16"),
    Planted("half-linear", lambda: _called(Half("half-linear"), 40 * torch.ones(2, 8).half()),
            "addmm", "Half.down", "overflow, float16"),
    Planted("bfloat-exp",
            lambda: _called(Half("bfloat-exp", torch.bfloat16), 40 * torch.ones(2, 8).bfloat16()),
            "exp", "Half", "exp of"),
    Planted("silence", lambda: _called(Sound(), torch.zeros(2, 8)), "log10", "Sound", "log10 of"),
    Planted("box-log", lambda: _called(Boxes("box-log"), torch.randn(3, 4)), "log", "Boxes",
            "log of"),
    Planted("box-overlap", lambda: _called(Boxes("box-overlap"), torch.randn(3, 4)), "div",
            "Boxes", "0/0"),
    Planted("policy-ratio", lambda: _called(Policy("policy-ratio"), torch.randn(3, 4)), "exp",
            "Policy", "exp of"),
    Planted("advantage", lambda: _called(Policy("advantage"), torch.randn(3, 4)), "std",
            "Policy", "of 1 element"),
    Planted("policy-log", lambda: _called(Policy("policy-log"), torch.randn(3, 4)), "log",
            "Policy", "log of"),
    Planted("angle", lambda: _called(Odd("angle"), _ENDS), "acos", "Odd", "acos of"),
    Planted("logit", lambda: _called(Odd("logit"), _ENDS), "logit", "Odd", "logit of"),
    Planted("atanh", lambda: _called(Odd("atanh"), _ENDS), "atanh", "Odd", "atanh of"),
    Planted("root-of-negative", lambda: _called(Odd("root-of-negative"), _ENDS), "pow|sqrt", "Odd",
            "negative value"),
    Planted("log-determinant", lambda: _called(Odd("log-determinant"), _ENDS),
            "_linalg_slogdet|log", "Odd", "singular"),
    Planted("empty-mean", lambda: _called(Odd("empty-mean"), _ENDS), "mean", "Odd",
            "mean of no elements"),
    Planted("inverse", lambda: _called(Odd("inverse"), _ENDS), "reciprocal", "Odd",
            "division by zero"),
    Planted("no-noise", lambda: _called(Schedule(), torch.randn(2, 4), torch.tensor([0, 3])),
            "div", "Schedule", "division by zero"),
    Planted("all-ignored", _ignored, "nll_loss_forward", None, "every target is ignored"),
    Planted("divergence", _divergence, "log", None, "log of"),
    Planted("learning-rate", _learning_rate, "add_|_foreach_add_|addcmul|mul_|lerp", None, "update",
            "optimizer"),
]  # fmt: skip
