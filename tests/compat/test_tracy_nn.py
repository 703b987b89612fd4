"""Tracy NN by its old names: the README's blocks, all ops of its list, and none of its faults."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import relu

from clew.compat.tracy_nn import Color, Tracer, trace_model


class MHA(nn.Module):
    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.w_q, self.w_k = nn.Linear(d_in, d_out), nn.Linear(d_in, d_out)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q = self.w_q(x)
        k = self.w_k(x)
        att = q @ k.transpose(-2, -1)
        att = self.drop(att / 2)
        return att.view(-1, 2)


def test_readme_basic_usage(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.rand(2, 4)
    mha = MHA(4, 4)
    tracer = Tracer("MHA")
    tracer.start(mha)
    output = mha(x)
    tracer.stop()
    assert output.shape == (2, 2)
    text = capsys.readouterr().out
    assert "-" * 80 in text
    assert "● TRACING MHA STARTED" in text
    assert "● TRACING MHA COMPLETE" in text
    assert "│  ● w_q (Linear) (in_features=4, out_features=4)\n" in text
    assert "│  ├─ Input: Tensor [2, 4] torch.float32 @ cpu\n" in text
    assert "● Tensor.view(-1, 2) @ [MHA.forward]" in text


def test_readme_context_manager_and_trace_model(capsys: pytest.CaptureFixture[str]) -> None:
    model, input_tensor = MHA(4, 4), torch.rand(2, 4)
    tracer = Tracer("MyModel")
    with tracer.trace(model):
        output = model(input_tensor)
    assert "TRACING MyModel STARTED" in capsys.readouterr().out
    tracer = trace_model(model, "MyModel")
    with tracer.trace(model):
        output = model(input_tensor)
    assert output.shape == (2, 2)
    assert "● drop (Dropout) (p=0.1)" in capsys.readouterr().out


def test_operands_have_the_names_they_have_in_the_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Sum(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            out = a + b * 3
            return out

    with Tracer().trace(model := Sum()):
        model(torch.ones(2), torch.ones(2))
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if "● b * 3" in line)
    assert [line.strip("│ ") for line in lines[at : at + 3]] == [
        "● b * 3 @ [test_operands_have_the_names_they_have_in_the_source.Sum.forward]",
        "├─ b: Tensor [2] torch.float32 @ cpu",
        "└─ Output: Tensor [2] torch.float32 @ cpu",
    ]
    at = next(i for i, line in enumerate(lines) if "● a + b * 3" in line)
    assert [line.strip("│ ").split(":")[0] for line in lines[at + 1 : at + 4]] == [
        "├─ a", "├─ b * 3", "└─ out",
    ]  # fmt: skip


A, B, IDS = torch.rand(4, 4) + 1, torch.rand(4, 4) + 1, torch.tensor([0, 1])
OPS: dict[str, Callable[[], Any]] = {
    "cat": lambda: torch.cat([A, B]), "stack": lambda: torch.stack([A, B]),
    "softmax": lambda: torch.softmax(A, -1), "relu": lambda: torch.relu(A),
    "einsum": lambda: torch.einsum("ij,jk->ik", A, B), "matmul": lambda: torch.matmul(A, B),
    "add": lambda: torch.add(A, B), "sum": lambda: torch.sum(A),
    "rmul": lambda: 2 * A, "radd": lambda: 1 + A, "rsub": lambda: 1 - A, "neg": lambda: -A,
    "iadd": lambda: A.clone().__iadd__(1), "getitem": lambda: A[0], "gt": lambda: A > 1,
    "T": lambda: A.T, "split": lambda: A.split(2), "expand": lambda: A[0:1].expand(4, 4),
    "repeat": lambda: A.repeat(2, 1), "masked_fill": lambda: A.masked_fill(A > 1, 0),
    "to": lambda: A.to(torch.float64), "method add": lambda: A.add(1),
    "method mul": lambda: A.mul(2), "method relu": lambda: A.relu(),
    "method softmax": lambda: A.softmax(-1), "linear": lambda: F.linear(A, B),
    "layer_norm": lambda: F.layer_norm(A, (4,)), "silu": lambda: F.silu(A),
    "conv1d": lambda: F.conv1d(A[None], B[:, :, None]), "embedding": lambda: F.embedding(IDS, A),
    "sdpa": lambda: F.scaled_dot_product_attention(A[None], A[None], A[None]),
    "view": lambda: A.view(16), "permute": lambda: A.permute(1, 0), "mm": lambda: A @ B,
    "pow": lambda: A**2, "div": lambda: A / 2, "max": lambda: A.max(0), "norm": lambda: A.norm(),
    "sqrt": lambda: A.sqrt(), "imported relu": lambda: relu(A), "clone": lambda: A.clone(),
    "unsqueeze": lambda: A.unsqueeze(0),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_defect_all_42_kinds_of_operations_are_seen(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(OPS) == 42

    class Op(nn.Module):
        def forward(self) -> Any:
            return OPS[name]()

    with Tracer().trace(model := Op()):
        model()
    blocks = [line for line in capsys.readouterr().out.splitlines() if "● " in line]
    assert len(blocks) >= 4  # started, the module, at least one operation, complete


def test_defect_modules_with_children_are_shown_and_indented(
    capsys: pytest.CaptureFixture[str],
) -> None:
    layer = nn.TransformerEncoderLayer(4, 2, batch_first=True)
    with Tracer().trace(layer):
        layer(torch.rand(1, 3, 4))
    text = capsys.readouterr().out
    assert "│  ● self_attn (MultiheadAttention) (embed_dim=4, num_heads=2)" in text
    assert text.count("● Tensor.relu()") == 1
    assert "scaled_dot_product" in text or "bmm" in text


def test_defect_keyword_arguments_and_nested_results(capsys: pytest.CaptureFixture[str]) -> None:
    class Net(nn.Module):
        def forward(self, *, x: Tensor) -> Any:
            return {"a": (x, x.max(0))}

    with Tracer().trace(model := Net()):
        model(x=torch.ones(2))
    text = capsys.readouterr().out
    assert "├─ Input: Tensor [2] torch.float32 @ cpu" in text
    assert "{a: (Tensor [2] torch.float32 @ cpu, (Tensor [] torch.float32" in text


def test_defect_nothing_is_patched_in_any_order_of_stopping() -> None:
    before = dict(vars(torch.Tensor)), dict(vars(F))
    model = nn.Linear(2, 2)
    first, second = Tracer("a"), Tracer("b")
    first.start(model)
    second.start(model)
    model(torch.ones(1, 2))
    first.stop()
    second.stop()
    assert dict(vars(torch.Tensor)) == before[0]
    assert dict(vars(F)) == before[1]
    assert not model._forward_hooks


def test_defect_a_failing_op_ends_its_block(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(RuntimeError), Tracer().trace(model):
        model(torch.ones(1, 3))
    text = capsys.readouterr().out
    assert "└─ Error: RuntimeError" in text
    assert "COMPLETE" in text


def test_defect_other_threads_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 2)
    with Tracer().trace(model):
        thread = threading.Thread(target=lambda: model(torch.ones(1, 2)))
        thread.start()
        thread.join()
        model(torch.ones(1, 2))
    assert capsys.readouterr().out.count("(Linear)") == 2


def test_starting_twice_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    tracer, model = Tracer("x"), nn.Linear(1, 1)
    tracer.start(model)
    tracer.start(model)
    tracer.stop()
    tracer.stop()
    text = capsys.readouterr().out
    assert "already active" in text
    assert text.count("COMPLETE") == 1


def test_colour_is_left_out_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Tracer().trace(model := nn.ReLU()):
        model(torch.ones(1))
    assert "\033" not in capsys.readouterr().out
    assert Color.BOLD.startswith("\033")
