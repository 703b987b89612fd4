"""A changed number or text is named though its effect is below the noise; another form never is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew

Form = Callable[[Tensor], Tensor]


class Around(nn.Module):
    """A model with a function in its middle, which adds little."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.first, self.up, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.form = form
        for name, weight in self.named_parameters():
            generator = torch.Generator().manual_seed(sum(name.encode()))
            with torch.no_grad():
                weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = x + 1e-2 * self.up(self.form(x))
        x = torch.sigmoid(self.last(x)) + x
        return torch.tanh(x) * 1.5


class Port(Around):
    """The same in other words."""

    def forward(self, h: Tensor) -> Tensor:
        h = F.linear(h, self.first.weight, self.first.bias).tanh()
        middle = self.form(h)
        h = torch.add(h, middle @ self.up.weight.T + self.up.bias, alpha=1e-2)
        end = torch.addmm(self.last.bias, h.flatten(0, 1), self.last.weight.T).view(h.shape)
        return (end.sigmoid_() + h).tanh().mul_(1.5)


def recorded(model: nn.Module, dtype: torch.dtype = torch.float32) -> clew.Trace:
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(3)).to(dtype)
    model = model.to(dtype)
    with torch.no_grad(), clew.trace(model, values="fingerprint") as t:
        model(x)
    return t


def norm(eps: float) -> Form:
    return lambda x: F.layer_norm(x, (16,), eps=eps)


def gelu(form: str) -> Form:
    return lambda x: F.gelu(0.1 * x, approximate=form)


CHANGES = {
    "epsilon": (norm(1e-5), norm(1e-6), "argument 4: 1e-05 in a, 1e-06 in b"),
    "text": (gelu("none"), gelu("tanh"), "argument approximate: not given in a, 'tanh' in b"),
    "factor": (
        lambda x: x * 0.5,
        lambda x: x * 0.500001,
        "argument 1: 0.5 in a, 0.500001 in b",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_below_the_noise_is_named(name: str) -> None:
    before, after, said = CHANGES[name]
    found = clew.diff(recorded(Around(before)), recorded(Around(after)))
    assert not found.equal
    assert found.first is not None
    assert found.first.kind == "wrong"
    assert "its inputs agree bit for bit" in found.first.evidence[0]
    assert said in found.first.evidence
    small = found.first.evidence[-1]
    assert small.startswith("what comes out differs by ")
    assert small.endswith(" at most: below the noise, but another number is no rounding")


def test_a_change_below_the_noise_is_named_in_other_code() -> None:
    found = clew.diff(recorded(Around(norm(1e-5))), recorded(Port(norm(1e-6))))
    assert found.first is not None
    assert found.first.a is not None
    assert found.first.b is not None
    assert found.first.a.name == found.first.b.name == "aten.native_layer_norm.default"
    assert "argument 4: 1e-05 in a, 1e-06 in b" in found.first.evidence


def test_models_at_hand_are_told_apart_by_it_too() -> None:
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(3))
    found = clew.diff_models(Around(norm(1e-5)), (x,), Around(norm(1e-6)), (x,))
    assert found.first is not None
    assert "argument 4: 1e-05 in a, 1e-06 in b" in found.first.evidence


def test_a_tolerance_that_is_asked_for_holds() -> None:
    a, b = recorded(Around(norm(1e-5))), recorded(Around(norm(1e-6)))
    found = clew.diff(a, b, tol=1e-3)
    assert found.equal, str(found)
    assert any("argument 4: 1e-05 in a, 1e-06 in b" in note for note in found.notes)


def attended(scale: float | None) -> Form:
    def form(x: Tensor) -> Tensor:
        q = x.unflatten(2, (2, 8)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, scale=scale).transpose(1, 2).flatten(2)

    return form


REFACTORS: dict[str, tuple[Form, Form]] = {
    "scale by default": (attended(None), attended(8**-0.5)),
    "last axis": (lambda x: x.softmax(-1), lambda x: x.softmax(2)),
    "order of axes": (
        lambda x: x - x.mean((1, 2), keepdim=True),
        lambda x: x - x.mean((-1, -2), keepdim=True),
    ),
    "product and quotient": (lambda x: x * (1 / 3), lambda x: x / 3),
    "rounded epsilon": (norm(1e-5), norm(float(np.float32(1e-5)))),
    "factor moved": (lambda x: (x * 0.25) * 3, lambda x: (x * 0.5) * 1.5),
    "limit out of reach": (
        lambda x: x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12),
        lambda x: x / x.norm(dim=-1, keepdim=True).clamp_min(1e-8),
    ),
    "masked by another number": (
        lambda x: x.masked_fill(x > 0.3, float("-inf")).softmax(-1),
        lambda x: x.masked_fill(x > 0.3, -1e9).softmax(-1),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("other", [Around, Port])
@pytest.mark.parametrize("name", REFACTORS)
def test_another_form_is_no_difference(name: str, other: type[Around], dtype: torch.dtype) -> None:
    before, after = REFACTORS[name]
    found = clew.diff(recorded(Around(before), dtype), recorded(other(after), dtype))
    assert found.equal, str(found)


def test_a_constant_rounded_to_the_dtype_of_the_run_is_no_difference() -> None:
    scale = 0.3535533905932738
    rounded = float(torch.tensor(scale).to(torch.bfloat16))
    a, b = (
        recorded(Around(lambda x, by=one: x * by), torch.bfloat16)  # type: ignore[misc]
        for one in (scale, rounded)
    )
    assert clew.diff(a, b).equal


def test_training_runs_are_told_apart_by_it_too() -> None:
    def trained(eps: float) -> clew.Trace:
        torch.manual_seed(0)
        model = Around(norm(eps))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with clew.trace(model, values="fingerprint") as t:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(2, 5, 16)).square().mean().backward()
                optimizer.step()
        return t

    first = clew.diff(trained(1e-5), trained(1e-6)).first
    assert first is not None
    assert (first.cause, first.step) == ("forward", 0)
    assert "argument 4: 1e-05 in a, 1e-06 in b" in first.evidence


class Normed(nn.Module):
    """A norm of small numbers between two products."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.up, self.down = (
            nn.Parameter(0.1 * torch.randn(16, 16, generator=generator)) for _ in range(2)
        )
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x @ self.up, (16,), eps=self.eps)
        return torch.tanh(x @ self.down)


class NormedByHand(Normed):
    """The same, written out."""

    def forward(self, z: Tensor) -> Tensor:
        z = torch.einsum("btw,wv->btv", z, self.up)
        spread, centred = z.var(-1, correction=0, keepdim=True), z - z.mean(-1, keepdim=True)
        root = torch.sqrt(spread + self.eps)
        return torch.einsum("btw,wv->btv", centred / root, self.down).tanh()


def test_an_epsilon_is_another_though_it_is_the_root_of_the_other() -> None:
    reference = recorded(Normed(1e-6))
    assert clew.diff(reference, recorded(NormedByHand(1e-6))).equal
    first = clew.diff(reference, recorded(NormedByHand(1e-3))).first
    assert first is not None
    assert first.b is not None
    assert first.b.source is not None
    assert first.b.source.text == "root = torch.sqrt(spread + self.eps)"
