"""Two runs are compared: the first op that is wrong is named, and nothing where nothing is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew
from clew.cli.main import main
from clew.testing import assert_same_run


class Attention(nn.Module):
    """Attention with a fault that can be switched on."""

    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            layer(x).view(batch, tokens, 4, width // 4).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        scale = 1 / math.sqrt(width if self.fault == "scale" else width // 4)
        scores = (q @ k.transpose(-1, -2)) * scale
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril(int(self.fault == "mask"))
        weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
        heads = weights @ v
        if self.fault != "heads":
            heads = heads.transpose(1, 2)
        return self.out(heads.reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-3 if fault == "eps" else 1e-5)
        self.attention = Attention(width, fault)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.norm(x))
        x = attended if self.fault == "residual" else x + attended
        y = x if self.fault == "norm" else self.norm2(x)
        y = F.gelu(self.up(y), approximate="tanh" if self.fault == "gelu" else "none")
        y = self.down(y)
        if self.fault == "extra":
            y = y * 1.01
        return x + y


class Model(nn.Module):
    def __init__(self, fault: str = "", width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Block(width, fault if n == 1 else "") for n in range(3))
        self.head = nn.Linear(width, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class FusedAttention(nn.Module):
    """The same attention by other ops and other names."""

    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.reshape(batch, tokens, 4, width // 4).permute(0, 2, 1, 3)
            for part in self.qkv(x).chunk(3, -1)
        )
        scale = 0.3 if self.fault == "scale" else None
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return self.proj(heads.permute(0, 2, 1, 3).reshape(batch, tokens, width))


class Port(nn.Module):
    def __init__(self, model: Model, fault: str = "", width: int = 32) -> None:
        super().__init__()
        self.wte = model.embed
        self.h = nn.ModuleList()
        for n, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            attention = FusedAttention(width, fault if n == 1 else "")
            parts = [block.attention.q, block.attention.k, block.attention.v]
            with torch.no_grad():
                attention.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
                attention.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
            attention.proj = block.attention.out
            ln_1 = nn.LayerNorm(width, eps=1e-3 if fault == "eps" and n == 1 else 1e-5)
            layers = [ln_1, attention, block.norm2, block.up, block.down]
            self.h.append(nn.ModuleList(layers))
        self.lm_head = model.head

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        for ln_1, attention, ln_2, up, down in self.h:  # type: ignore[misc]
            x = torch.add(attention(ln_1(x)), x)
            x = torch.add(down(F.gelu(up(ln_2(x)))), x)
        return self.lm_head(x)


TOKENS = torch.randint(0, 50, (2, 10), generator=torch.Generator().manual_seed(3))


def recorded(model: nn.Module, values: str = "stats") -> clew.Trace:
    with torch.no_grad(), clew.trace(model, values=values) as t:
        model(TOKENS)
    return t


@pytest.fixture(scope="module")
def reference() -> tuple[Model, clew.Trace]:
    torch.manual_seed(0)
    model = Model()
    return model, recorded(model)


def faulty(model: Model, fault: str) -> Model:
    changed = Model(fault)
    changed.load_state_dict(model.state_dict())
    return changed


@pytest.mark.parametrize(
    ("fault", "kind", "op", "module", "text"),
    [
        ("scale", "wrong", "aten.mul.Tensor", "blocks.1.attention", "* scale"),
        ("mask", "wrong", "aten.tril.default", "blocks.1.attention", ".tril("),
        ("heads", "wrong", "aten.view.default", "blocks.1.attention", "heads.reshape"),
        ("eps", "wrong", "aten.native_layer_norm.default", "blocks.1.norm", "self.norm(x)"),
        ("gelu", "wrong", "aten.gelu.default", "blocks.1", "F.gelu"),
        ("residual", "missing", "aten.add.Tensor", "blocks.1", "x + attended"),
        ("norm", "missing", "aten.native_layer_norm.default", "blocks.1.norm2", "self.norm2(x)"),
        ("extra", "extra", "aten.mul.Tensor", "blocks.1", "y * 1.01"),
    ],
)
def test_the_op_at_fault_is_named(
    reference: tuple[Model, clew.Trace], fault: str, kind: str, op: str, module: str, text: str
) -> None:
    model, trace = reference
    found = clew.diff(trace, recorded(faulty(model, fault)))
    assert not found.equal
    assert found.first is not None
    assert found.first.kind == kind
    event = found.first.a if kind == "missing" else found.first.b
    assert event is not None
    assert event.source is not None
    assert (event.name, event.module) == (op, module)
    assert text in event.source.text


def test_the_evidence_says_what_agrees_and_what_differs(
    reference: tuple[Model, clew.Trace],
) -> None:
    model, trace = reference
    first = clew.diff(trace, recorded(faulty(model, "scale"))).first
    assert first is not None
    assert first.evidence[0].startswith("its inputs agree bit for bit, its result differs by ")
    assert "b is a × 0.5" in first.evidence
    assert any("argument 1: 0.3535" in said and "0.1767" in said for said in first.evidence)
    first = clew.diff(trace, recorded(faulty(model, "eps"))).first
    assert first is not None
    assert "blocks.1.norm: eps is 1e-05 in a, 0.001 in b" in first.evidence


def test_a_parameter_that_differs_is_an_input_that_differs(
    reference: tuple[Model, clew.Trace],
) -> None:
    model, trace = reference
    changed = faulty(model, "")
    with torch.no_grad():
        changed.blocks[1].up.bias[3] += 0.5  # type: ignore[operator, union-attr]
    first = clew.diff(trace, recorded(changed)).first
    assert first is not None
    assert first.kind == "inputs"
    assert first.evidence[0].startswith("the parameter or buffer blocks.1.up.bias differs by ")


def _reordered(x: Tensor) -> Tensor:
    left, right = x.cos(), x.sin()
    return left * right


def _other_order(x: Tensor) -> Tensor:
    right = x.sin()
    left = x.cos()
    unused = torch.empty_like(x)
    assert unused.shape == x.shape
    return right * left


def _halved(x: Tensor) -> Tensor:
    return (x * 0.5).sum(0) + (x / 2).sum(0)


def _summed(x: Tensor) -> Tensor:
    return x.flip(0).sum(0)


@pytest.mark.parametrize(("one", "other"), [(_reordered, _other_order), (_halved, _summed)])
def test_a_refactored_program_is_the_same(
    one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor]
) -> None:
    x = torch.randn(40, 7, generator=torch.Generator().manual_seed(1))
    traces = []
    for function in (one, other):
        with clew.trace(values="stats") as t:
            function(x)
        traces.append(t)
    found = clew.diff(*traces)
    assert found.equal, str(found)
    assert found.first is None


def test_a_correct_port_is_the_same(reference: tuple[Model, clew.Trace]) -> None:
    model, trace = reference
    found = clew.diff(trace, recorded(Port(model)))
    assert found.equal, str(found)
    assert min(found.matched.a, found.matched.b) > 0.9
    assert str(found).startswith("no difference beyond noise\n")


@pytest.mark.parametrize(
    ("fault", "text"),
    [("scale", "F.scaled_dot_product_attention"), ("eps", "attention(ln_1(x))")],
)
def test_the_line_of_a_port_at_fault_is_named(
    reference: tuple[Model, clew.Trace], fault: str, text: str
) -> None:
    model, trace = reference
    first = clew.diff(trace, recorded(Port(model, fault))).first
    assert first is not None
    assert first.b is not None
    assert first.b.source is not None
    assert text in first.b.source.text


def test_elements_are_compared_where_the_data_was_kept(
    reference: tuple[Model, clew.Trace],
) -> None:
    model, _ = reference
    a, b = recorded(model, "full"), recorded(faulty(model, "scale"), "full")
    first = clew.diff(a, b).first
    assert first is not None
    assert first.b is not None
    x, y = (event.outputs["0"].array() for event in (first.a, first.b) if event is not None)
    most = f"by at most {np.abs(x - y).max():.3g}"
    assert any(said.startswith("800 of 800 elements differ: ") and most in said
               for said in first.evidence)  # fmt: skip


def test_rounding_that_accumulates_is_no_difference(reference: tuple[Model, clew.Trace]) -> None:
    model, trace = reference
    found = clew.diff(trace, recorded(faulty(model, "").to(torch.bfloat16)))
    assert found.equal, str(found)
    assert any(note.startswith("a is in float32, b in bfloat16: ") for note in found.notes)
    first = clew.diff(trace, recorded(faulty(model, "scale").to(torch.bfloat16))).first
    assert first is not None
    assert first.b is not None
    assert (first.b.name, first.b.module) == ("aten.mul.Tensor", "blocks.1.attention")


def test_modules_are_renamed_by_a_map(reference: tuple[Model, clew.Trace]) -> None:
    model, trace = reference
    wrapped = nn.ModuleDict({"net": faulty(model, "scale")})
    with torch.no_grad(), clew.trace(wrapped, values="stats") as t:
        wrapped["net"](TOKENS)
    first = clew.diff(trace, t, map={"": "net"}).first
    assert first is not None
    assert first.kind == "wrong"
    assert first.evidence[0].startswith("its inputs agree bit for bit")
    with pytest.raises(clew.ClewError, match="the same number of"):
        clew.diff(trace, t, map={"blocks.*": "net"})


def test_other_models_altogether_are_said_to_be(reference: tuple[Model, clew.Trace]) -> None:
    _, trace = reference
    torch.manual_seed(7)
    other = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 2))
    with clew.trace(other, values="stats") as t:
        other(torch.randn(3, 5))
    found = clew.diff(trace, t)
    assert not found.equal
    assert any("almost nothing matches" in note for note in found.notes)


def test_without_values_it_says_that_only_ops_were_compared(
    reference: tuple[Model, clew.Trace],
) -> None:
    model, trace = reference
    found = clew.diff(trace, recorded(model, "meta"))
    assert any("b has no statistics of values" in note for note in found.notes)


def test_a_test_can_assert_that_two_runs_are_the_same(
    reference: tuple[Model, clew.Trace],
) -> None:
    model, trace = reference
    assert_same_run(trace, recorded(model))
    with pytest.raises(AssertionError, match=r"aten\.mul\.Tensor in blocks\.1\.attention"):
        assert_same_run(trace, recorded(faulty(model, "scale")))


def test_the_command_compares_saved_traces(
    reference: tuple[Model, clew.Trace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, trace = reference
    a, b = tmp_path / "a.clew", tmp_path / "b.clew"
    trace.save(a)
    recorded(faulty(model, "scale")).save(b)
    assert main(["diff", str(a), str(a)]) == 0
    assert capsys.readouterr().out.startswith("no difference beyond noise\n")
    assert main(["diff", str(a), str(b), "--rows", "3"]) == 1
    assert capsys.readouterr().out.startswith("the runs part at aten.mul.Tensor in blocks.1.att")
    assert main(["diff", str(a), str(b), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["first"]["kind"] == "wrong"
    assert not data["equal"]
    assert main(["diff", str(a), str(tmp_path / "none.clew")]) == 2
    assert "is not a trace" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["diff", str(a), str(b), "--map", "nothing"])
    assert "write the names as A=B" in capsys.readouterr().err
