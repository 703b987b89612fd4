"""Ports that compute in slices what the original computes at once: by token, by head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew
from clew import Diff

WIDTH, HEADS, LENGTH, LAYERS = 24, 3, 7, 3
FAULTY = 1


class Block(nn.Module):
    """A layer of a decoder, for all tokens and heads at once."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(2, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class Decoder(nn.Module):
    """The original."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.head(x)
        return result


def written_out(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


class Step(Block):
    """A layer for one token, which keeps keys and values of those before."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def normed(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        spread = x.square().mean(-1, keepdim=True)
        if self.mistake == "eps":
            return x / (spread + 0.1).sqrt() * norm.weight + norm.bias
        return x / (spread + 1e-5).sqrt() * norm.weight + norm.bias

    def step(self, x: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        h = self.normed(self.norm1, x)
        q, k, v = (f(h).view(len(x), HEADS, -1) for f in (self.q, self.k, self.v))
        if self.mistake == "keys":
            k = k.tanh()
        cache.append((k, v))
        keys, values = (torch.stack(kept, 2) for kept in zip(*cache, strict=True))
        if self.mistake == "window":
            keys, values = keys[:, :, -3:], values[:, :, -3:]
        shares = torch.einsum("bhd,bhtd->bht", q, keys) * (WIDTH // HEADS) ** -0.5
        mixed = torch.einsum("bht,bhtd->bhd", shares.softmax(-1), values).flatten(1)
        attended = self.out(mixed)
        if self.mistake == "shortcut":
            x = h
        x = x + attended
        up = self.up(self.normed(self.norm2, x))
        up = F.silu(up) if self.mistake == "act" else written_out(up)
        down = self.down(up)
        if self.mistake == "factor":
            down = down * 0.9
        return x + down


class ByToken(Decoder):
    """The port, one token after the other."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake
        self.layers = nn.ModuleList(Step(mistake if n == FAULTY else "") for n in range(LAYERS))

    def forward(self, ids: Tensor) -> Tensor:
        caches: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.layers]
        found = []
        for t in range(LENGTH):
            at = max(t - 1, 0) if self.mistake == "place" else t
            x = F.embedding(ids[:, t], self.words.weight)
            x = x + self.places.weight[at]
            for layer, cache in zip(self.layers, caches, strict=True):
                assert isinstance(layer, Step)
                x = layer.step(x, cache)
            found.append(F.linear(x, self.head.weight, self.head.bias))
        if self.mistake == "order":
            return torch.stack(found[::-1], 1)
        return torch.stack(found, 1)


class Heads(Block):
    """A layer that goes through its heads one by one."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def forward(self, x: Tensor) -> Tensor:
        h, size = self.norm1(x), WIDTH // HEADS
        mixed = []
        for n in range(HEADS):
            part = slice(n * size, (n + 1) * size)
            q, k, v = (F.linear(h, f.weight[part], f.bias[part]) for f in (self.q, self.k, self.v))
            if self.mistake == "query":
                q = q.tanh()
            root = WIDTH if self.mistake == "scale" else size
            scores = torch.matmul(q, k.mT) * root**-0.5
            blocked = torch.arange(LENGTH) > torch.arange(LENGTH)[:, None]
            shares = torch.where(blocked, -torch.inf, scores).softmax(-1)
            if self.mistake == "values":
                v = v.abs()
            mixed.append(shares @ v)
        together = torch.cat(mixed, -1)
        x = x + F.linear(together, self.out.weight, self.out.bias)
        up = self.up(self.norm2(x))
        result: Tensor = x + self.down(written_out(up))
        return result


class ByHead(Decoder):
    """The port, one head after the other."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Heads(mistake if n == FAULTY else "") for n in range(LAYERS))


def compared(port: type[Decoder], mistake: str = "", turned: bool = False) -> Diff:
    torch.manual_seed(0)
    model, other = Decoder(), port(mistake)
    for part in model.parameters():
        nn.init.normal_(part, std=0.4)
    other.load_state_dict(model.state_dict())
    ids = torch.randint(50, (2, LENGTH))
    traces = []
    for one in (other, model) if turned else (model, other):
        with torch.no_grad(), clew.trace(one, values="fingerprint") as trace:
            one(ids)
        traces.append(trace)
    return clew.diff(*traces)


def line(found: Diff) -> str:
    """The line of the port that is named."""
    assert found.first is not None
    assert found.first.b is not None
    assert found.first.b.source is not None
    return found.first.b.source.text.strip()


def test_a_right_port_by_slices_is_no_difference_in_either_direction() -> None:
    for port in (ByToken, ByHead):
        assert compared(port).equal
        assert compared(port, turned=True).equal


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("eps", "return x / (spread + 0.1).sqrt() * norm.weight + norm.bias"),
        ("keys", "k = k.tanh()"),
        ("shortcut", "x = x + attended"),
        ("act", 'up = F.silu(up) if self.mistake == "act" else written_out(up)'),
        ("factor", "down = down * 0.9"),
        ("place", "x = x + self.places.weight[at]"),
        ("order", "return torch.stack(found[::-1], 1)"),
    ],
)
def test_a_line_that_is_wrong_token_by_token_is_named(mistake: str, said: str) -> None:
    assert line(compared(ByToken, mistake)) == said


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("query", "q = q.tanh()"),
        ("scale", "scores = torch.matmul(q, k.mT) * root**-0.5"),
        ("values", "v = v.abs()"),
    ],
)
def test_a_line_that_is_wrong_head_by_head_is_named(mistake: str, said: str) -> None:
    assert line(compared(ByHead, mistake)) == said


class Cached(Decoder):
    """A model that goes on from what it keeps, called once for all tokens or once for each."""

    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        self.mistake = mistake

    def forward(self, ids: Tensor, kept: list[Tensor] | None = None) -> Tensor:
        before = 0 if kept is None or not kept else kept[-1].shape[1]
        x = self.words(ids)
        x = x + self.places.weight[before : before + ids.shape[1]]
        if kept is not None:
            if self.mistake == "kept":
                x = x.tanh()
            kept.append(torch.cat([*kept[-1:], x], 1))
        for layer in self.layers:
            assert isinstance(layer, Block)
            x = x + layer.down(F.gelu(layer.up(layer.norm1(x))))
        seen = kept[-1] if kept else x
        sums = seen.cumsum(1)[:, before:]
        result: Tensor = self.head(x + sums)
        if self.mistake == "extra":
            result = result.log_softmax(-1)
        return result


def cached(first: int, mistake: str = "", turned: bool = False) -> Diff:
    """Compare one call for all tokens with one for the first and one for each of the rest."""
    torch.manual_seed(0)
    model, other = Cached(), Cached(mistake)
    other.load_state_dict(model.state_dict())
    ids = torch.randint(50, (2, LENGTH))
    with torch.no_grad(), clew.trace(model, values="fingerprint") as whole:
        model(ids, [])
    with torch.no_grad(), clew.trace(other, values="fingerprint") as steps:
        kept: list[Tensor] = []
        other(ids[:, :first], kept)
        for t in range(first, LENGTH):
            other(ids[:, t : t + 1], kept)
    return clew.diff(steps, whole) if turned else clew.diff(whole, steps)


@pytest.mark.parametrize("first", [1, 4, 6])
def test_a_model_called_token_by_token_agrees_with_one_call(first: int) -> None:
    assert cached(first).equal
    assert cached(first, turned=True).equal


@pytest.mark.parametrize("first", [1, 4, 6])
def test_a_model_called_token_by_token_that_is_wrong_is_named(first: int) -> None:
    assert line(cached(first, "kept")) == "x = x.tanh()"
    assert line(cached(first, "extra")) == "result = result.log_softmax(-1)"


def known(width: int) -> tuple[bool, bool]:
    """Whether the result of all rows, and those of each row, are known to agree."""
    torch.manual_seed(0)
    x = torch.randn(3, width)
    with clew.trace(values="fingerprint") as whole:
        x.exp() + 1
    with clew.trace(values="fingerprint") as rows:
        for row in x:
            torch.exp(row)
    found = clew.diff(whole, rows).compared
    assert found is not None
    a, b = (
        [
            half.far[half.graph.gives[op][0]]
            for op in np.flatnonzero(half.graph.are(frozenset({"exp"})))
        ]
        for half in (found.a, found.b)
    )
    return not np.isnan(a).any(), not np.isnan(b).any()


def test_slices_of_some_numbers_agree_with_the_whole_in_both_runs() -> None:
    assert known(width=6) == (True, True)


def test_slices_of_few_numbers_prove_nothing() -> None:
    assert known(width=5) == (False, False)
