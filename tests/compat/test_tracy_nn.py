"""Tracy NN by its old names: the README's blocks, the checklist, and none of its faults."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import relu

from clew.compat import tracy_nn
from clew.compat.tracy_nn import Color, TensorOpsTracer, Tracer, trace_model


class MHA(nn.Module):
    """Attention with as many settings as the README's."""

    def __init__(
        self, d_in: int, d_out: int, seq_len: int, num_heads: int, context_window: int,
        dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.w_q, self.w_k = nn.Linear(d_in, d_out), nn.Linear(d_in, d_out)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q = self.w_q(x)
        k = self.w_k(x)
        k = k.transpose(-2, -1)
        att = q @ k
        att = self.drop(att / 2)
        return att.view(-1, 3)


# The README's blocks, with only the import lines changed.
BASIC = """
import torch
import torch.nn as nn
from clew.compat.tracy_nn import Tracer

x = torch.rand(batch_size, seq_len, d_in)
mha = MHA(d_in, d_out, seq_len, num_heads, context_window, dropout)

tracer = Tracer('MHA')
tracer.start(mha)

output = mha(x)

tracer.stop()
"""
CONTEXT = """
from clew.compat.tracy_nn import Tracer

tracer = Tracer('MyModel')
with tracer.trace(model):
    output = model(input_tensor)
"""
SHORTER = """
from clew.compat.tracy_nn import trace_model

tracer = trace_model(model, 'MyModel')
with tracer.trace(model):
    output = model(input_tensor)
"""
SIZES: dict[str, Any] = {
    "batch_size": 2, "seq_len": 3, "d_in": 4, "d_out": 4, "num_heads": 1, "context_window": 8,
    "dropout": 0.1,
}  # fmt: skip


def filled() -> dict[str, Any]:
    model = MHA(4, 4, 3, 1, 8, 0.1)
    return {**SIZES, "MHA": MHA, "model": model, "input_tensor": torch.rand(2, 3, 4)}


def test_readme_basic_usage(capsys: pytest.CaptureFixture[str]) -> None:
    names = filled()
    exec(BASIC, names)
    assert names["output"].shape == (6, 3)
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[:3] == ["-" * 80, "● TRACING MHA STARTED", "-" * 80]
    assert lines[-3:] == ["-" * 80, "● TRACING MHA COMPLETE", "-" * 80]
    assert "│  ● w_q (Linear) (in_features=4, out_features=4)\n" in text
    assert "│  ├─ Input: Tensor [2, 3, 4] torch.float32 @ cpu\n" in text
    assert "● Tensor.view(-1, 3) @ [MHA.forward]" in text


@pytest.mark.parametrize("block", [CONTEXT, SHORTER], ids=["trace", "trace_model"])
def test_readme_context_manager_and_trace_model(
    block: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = filled()
    exec(block, names)
    assert names["output"].shape == (6, 3)
    text = capsys.readouterr().out
    assert "● TRACING MyModel STARTED" in text
    assert "● drop (Dropout) (p=0.1)" in text
    assert "● TRACING MyModel COMPLETE" in text


def log_of(program: Callable[[], Any], model: nn.Module) -> str:
    """What is printed while a program runs."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, Tracer().trace(model):
        program()
    return printed.getvalue()


def blocks(text: str) -> list[str]:
    """What each block is about, without the first and the last."""
    titles = [line.strip("│ ") for line in text.splitlines() if "● " in line]
    return [title.removeprefix("● ") for title in titles[1:-1]]


# The checklist


def test_checklist_log_of_modules_and_ops(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = MHA(4, 4, 3, 1, 8, 0.1).double(), torch.rand(2, 3, 4).double()
    text = log_of(lambda: model(x), model)
    tensor = "torch.float64 @ cpu"
    assert f"● Neural Network (MHA)\n├─ Input: Tensor [2, 3, 4] {tensor}\n" in text
    assert "│  ● w_k (Linear) (in_features=4, out_features=4)\n" in text
    assert (
        "│  ● q @ k @ [MHA.forward]\n"
        f"│  ├─ q: Tensor [2, 3, 4] {tensor}\n"
        f"│  ├─ k: Tensor [2, 4, 3] {tensor}\n"
    ) in text
    assert f"│  └─ k: Tensor [2, 4, 3] {tensor}\n" in text
    assert f"└─ Output: Tensor [6, 3] {tensor}\n│\n" in text


@pytest.mark.parametrize(
    ("layer", "shown"),
    [
        (nn.Conv1d(1, 2, 3), "(in_channels=1, out_channels=2, kernel_size=(3,), stride=(1,)"),
        (nn.Conv2d(1, 2, 3), "(in_channels=1, out_channels=2, kernel_size=(3, 3)"),
        (nn.Conv3d(1, 2, 3), "(in_channels=1, out_channels=2, kernel_size=(3, 3, 3)"),
        (nn.BatchNorm2d(1), "(num_features=1)"),
        (nn.Dropout(0.5), "(p=0.5)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_checklist_log_of_layer_parameters(layer: nn.Module, shown: str) -> None:
    sizes = {nn.Conv1d: (1, 1, 5), nn.Conv3d: (1, 1, 5, 5, 5)}.get(type(layer), (1, 1, 5, 5))  # type: ignore[call-overload]
    assert shown in blocks(log_of(lambda: layer(torch.ones(sizes)), layer))[1]


def test_checklist_start_stop_context_manager_and_quick_helper(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tracer, model, x = Tracer("x"), nn.Linear(1, 1), torch.ones(1)
    tracer.stop()
    assert capsys.readouterr().out == ""
    tracer.start(model)
    tracer.start(model)
    assert "already active" in capsys.readouterr().out
    model(x)
    tracer.stop()
    tracer.stop()
    text = capsys.readouterr().out
    assert text.count("(Linear)") == 1
    assert text.count("COMPLETE") == 1
    with tracer as entered:
        assert entered is tracer
        model(x)
        assert capsys.readouterr().out == ""
        tracer.start(model)
    assert "● TRACING x COMPLETE" in capsys.readouterr().out
    assert trace_model(model).name == "Quick Trace"
    assert isinstance(tracer.tensor_ops_tracer, TensorOpsTracer)
    assert Tracer().name == "Neural Network"
    assert tracy_nn.__version__ == "0.1.0"


def test_every_attribute_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    tracer, model = Tracer(), nn.ReLU()
    tracer.start(model)
    assert tracer._is_active
    # Nothing is hooked or patched.
    assert (tracer.hooks, tracer.original_methods, tracer.original_tensor_methods) == ([], {}, {})
    tracer.stop()
    assert not tracer._is_active

    class Other(Color):
        YELLOW = "<yellow>"

    tracer.tensor_ops_tracer = TensorOpsTracer(Other)
    assert tracer.tensor_ops_tracer.Color is Other
    with tracer.trace(model):
        model(torch.ones(1))
    assert "<yellow>● Tensor.relu()" in capsys.readouterr().out
    names = [
        "PURPLE", "CYAN", "DARKCYAN", "BLUE", "GREEN", "YELLOW", "RED", "ORANGE", "BOLD", "DIM",
        "UNDERLINE", "GREY", "END",
    ]  # fmt: skip
    assert len({getattr(Color, name) for name in names}) == len(names)
    assert all(getattr(Color, name).startswith("\033[") for name in names)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_checklist_colours_with_auto_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for setting in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(setting, raising=False)
    names = [name for name in vars(Color) if name.isupper()]
    model, shown = nn.ReLU(), {}
    for stream in (Terminal(), io.StringIO()):
        with contextlib.redirect_stdout(stream), Tracer().trace(model):
            model(torch.ones(1))
        shown[type(stream)] = stream.getvalue()
    assert f"{Color.GREEN}● Neural Network (ReLU){Color.END}" in shown[Terminal]
    assert "\033" not in shown[io.StringIO]
    for name in names:
        monkeypatch.setattr(Color, name, getattr(Color, name))
    Color.disable()
    assert {getattr(Color, name) for name in names} == {""}
    with contextlib.redirect_stdout(Terminal()) as stream, Tracer().trace(model):
        model(torch.ones(1))
    assert stream.getvalue() == shown[io.StringIO]


# Faults that are gone


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


# What they are shown as, where that is not their own name.
SHOWN = {
    "softmax": "_softmax", "einsum": "bmm", "matmul": "mm", "rmul": "2 * A", "radd": "1 + A",
    "rsub": "1 - A", "neg": "-A", "iadd": "add", "getitem": "select", "T": "permute",
    "to": "_to_copy", "method add": "add", "method mul": "mul", "method relu": "relu",
    "method softmax": "_softmax", "linear": "mm", "layer_norm": "native_layer_norm",
    "conv1d": "convolution", "sdpa": "bmm", "mm": "A @ B", "pow": "A ** 2", "div": "A / 2",
    "norm": "linalg_vector_norm", "imported relu": "relu",
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_defect_all_42_kinds_of_operations_are_seen(name: str) -> None:
    assert len(OPS) == 42
    results: list[Any] = []

    class Op(nn.Module):
        def forward(self) -> Any:
            results.append(OPS[name]())

    model, shown = Op(), SHOWN.get(name, name)
    text = log_of(model, model)
    titles = [title.partition(" @ [")[0] for title in blocks(text)[1:]]
    assert [title for title in titles if title == shown or title.startswith(f"Tensor.{shown}(")]
    result = results[0] if isinstance(results[0], Tensor) else results[0][0]
    outputs = [line.strip("│ ") for line in text.splitlines() if "└─ Output: " in line]
    made = f"Tensor {list(result.shape)} {result.dtype} @ cpu"
    assert outputs[-2].removeprefix("└─ Output: ").lstrip("(").startswith(made)


def test_defect_modules_with_children_are_shown_and_indented() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, batch_first=True)
    text = log_of(lambda: layer(torch.rand(1, 3, 4)), layer)
    assert "│  ● self_attn (MultiheadAttention) (embed_dim=4, num_heads=2)" in text
    assert "scaled_dot_product" in text or "bmm" in text


def test_an_operation_says_which_module_ran_it() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Conv1d(1, 1, 1), nn.ReLU())

        def own(self, x: Tensor) -> Tensor:
            return self.layers(x) * 2

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.own(x))

    net, x = Net(), torch.ones(1, 1, 2)
    test = "test_an_operation_says_which_module_ran_it"
    with torch.no_grad():
        titles = [title for title in blocks(log_of(lambda: net(x), net)) if " @ [" in title]
    assert [title.partition(" @ ")[2] for title in titles] == [
        "[Conv1d.forward]", "[ReLU.forward]", f"[{test}.Net.own]", f"[{test}.Net.forward]",
    ]  # fmt: skip


def test_defect_an_activation_is_reported_once() -> None:
    model = nn.Sequential(nn.ReLU())
    titles = blocks(log_of(lambda: model(torch.ones(1)), model))
    assert [title.partition(" @")[0] for title in titles] == [
        "Tensor.ones(1)", "Neural Network (Sequential)", "0 (ReLU)", "Tensor.relu()",
    ]  # fmt: skip


class Sum(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out = a + b * 3
        return out


def test_defect_operands_have_the_names_they_have_in_the_source() -> None:
    model = Sum()
    lines = log_of(lambda: model(torch.ones(2), torch.ones(2)), model).splitlines()
    at = next(i for i, line in enumerate(lines) if "● b * 3" in line)
    assert [line.strip("│ ") for line in lines[at : at + 3]] == [
        "● b * 3 @ [Sum.forward]",
        "├─ b: Tensor [2] torch.float32 @ cpu",
        "└─ Output: Tensor [2] torch.float32 @ cpu",
    ]
    at = next(i for i, line in enumerate(lines) if "● a + b * 3" in line)
    assert [line.strip("│ ").split(":")[0] for line in lines[at + 1 : at + 4]] == [
        "├─ a", "├─ b * 3", "└─ out",
    ]  # fmt: skip


class Scaled(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        scale = 0.5
        a = 2 * q
        b = scale * q
        c = q / scale
        d = q @ k
        return a + b + c + d


def test_defect_only_tensors_have_the_names_of_operands_and_only_in_the_operators_own_op() -> None:
    model = Scaled()
    lines = log_of(lambda: model(torch.ones(2, 3, 3), torch.ones(2, 3, 3)), model).splitlines()
    shown = [line.strip("│ ").partition(": Tensor")[0] for line in lines]
    text = "\n".join(shown)
    assert "● 2 * q @ [Scaled.forward]\n├─ q\n└─ a" in text
    assert "● scale * q @ [Scaled.forward]\n├─ Input\n└─ b" in text  # either might be the tensor
    assert "● q / scale @ [Scaled.forward]\n├─ q\n└─ c" in text
    # The product of batches takes several ops; one of them is what the line says.
    assert text.count("● q @ k") == 1
    assert "● q @ k @ [Scaled.forward]\n├─ q\n├─ k\n└─ d" in text
    assert "● Tensor.expand(2, 3, 3) @ [Scaled.forward]\n├─ Input\n└─ Output" in text


def shown_of(model: nn.Module, *tensors: Tensor) -> str:
    """The lines that are printed of a model, without their indentation."""
    lines = log_of(lambda: model(*tensors), model).splitlines()
    return "\n".join(line.strip("│ ") for line in lines)


def test_defect_a_name_stands_only_beside_the_sizes_that_it_has() -> None:
    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, w: Tensor) -> Tensor:
            att = q @ k
            first = att[:, 0, 1:]
            wide = torch.matmul(first, w)
            return wide

    text = shown_of(Attention(), torch.ones(2, 3, 4, 5), torch.ones(2, 3, 5, 4), torch.ones(4, 4))
    dtype = "torch.float32 @ cpu"
    # Six matrices are multiplied, and neither `q` nor `k` nor `att` is so.
    _, _, product = text.partition("● q @ k @ [")
    assert product.partition("\n")[2].startswith(
        f"├─ q: Tensor [2, 3, 4, 5] {dtype}\n├─ k: Tensor [2, 3, 5, 4] {dtype}\n"
        f"└─ Output: Tensor [6, 4, 4] {dtype}\n"
    )
    # What it takes several operations to make is the result of the last.
    named = [line for line in text.splitlines() if line.startswith(("└─ att", "└─ wide"))]
    assert named == [f"└─ att: Tensor [2, 3, 4, 4] {dtype}", f"└─ wide: Tensor [2, 3, 4] {dtype}"]
    assert "└─ first" not in text


def test_defect_expressions_are_shown_as_they_are_written() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
            a = x * (x + 1)
            b = (a
                 - x)  # fmt: skip
            c = scale - b
            c += scale**x
            d: Tensor = -c
            return d

    text = "\n".join(
        line.partition(": Tensor")[0].partition(" @ [")[0]
        for line in shown_of(Net(), torch.ones(2)).splitlines()
    )
    assert "● x * (x + 1)\n├─ x\n├─ x + 1\n└─ a" in text
    assert "● a - x\n├─ a\n├─ x\n└─ b" in text
    assert "● scale - b\n├─ b\n└─ c" in text
    assert "● scale ** x\n├─ x\n└─ Output" in text
    assert "● c += scale ** x\n├─ c\n├─ scale ** x\n└─ c" in text
    assert "● -c\n├─ c\n└─ d" in text


def test_defect_keyword_arguments_and_nested_results() -> None:
    class Net(nn.Module):
        def forward(self, *, x: Tensor) -> Any:
            return {"a": (x, x.max(0))}

    model = Net()
    text = log_of(lambda: model(x=torch.ones(2)), model)
    assert "├─ Input: Tensor [2] torch.float32 @ cpu" in text
    assert "{a: (Tensor [2] torch.float32 @ cpu, (Tensor [] torch.float32" in text


def test_defect_other_models_are_not_logged() -> None:
    model, other = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Tanh(), nn.Linear(2, 2))

    def program() -> None:
        x = torch.ones(1, 2)
        other(x)
        thread = threading.Thread(target=lambda: other(x))
        thread.start()
        thread.join()
        model(x)
        model[0](x)

    titles = blocks(log_of(program, model))
    assert [title for title in titles if "(" in title and "Tensor." not in title] == [
        "Neural Network (Sequential)", "0 (Linear) (in_features=2, out_features=2)",
        "0 (Linear) (in_features=2, out_features=2)",
    ]  # fmt: skip
    assert not [title for title in titles if "tanh" in title]


def test_defect_a_part_of_a_model_is_logged_alone() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Tanh()
            self.part = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return self.part(self.first(x) * 2)[0]

    net, x = Net(), torch.ones(1, 2)
    alone = log_of(lambda: net.part(x), net.part)
    assert "Neural Network (Sequential)" in alone
    assert log_of(lambda: net(x), net.part) == alone
    # Before and after it, what runs outside any module is logged as ever.
    titles = blocks(log_of(lambda: (x + 1, net(x), x + 2), net.part))
    around = [title.partition(" @")[0] for title in (titles[0], titles[1], titles[-1])]
    assert around == ["x + 1", "Neural Network (Sequential)", "x + 2"]


def test_defect_a_part_that_raises_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    part = nn.Linear(2, 2)
    net = nn.Sequential(part, nn.Tanh())
    with Tracer().trace(part):
        for width in (3, 2):
            with contextlib.suppress(RuntimeError):
                net(torch.ones(1, width))
    text = capsys.readouterr().out
    assert text.count("● Neural Network (Linear)") == 2
    assert "tanh" not in text


def test_defect_other_threads_are_told_apart() -> None:
    model = nn.Linear(2, 2)

    def program() -> None:
        thread = threading.Thread(target=lambda: model(torch.ones(1, 2)), name="loader")
        thread.start()
        thread.join()
        model(torch.ones(1, 2))

    titles = [title for title in blocks(log_of(program, model)) if "(Linear)" in title]
    assert ["@ [thread loader]" in title for title in titles] == [True, False]


def test_defect_nothing_is_patched_in_any_order_of_stopping() -> None:
    before = dict(vars(torch.Tensor)), dict(vars(F))
    model = nn.Linear(2, 2)
    first, second = Tracer("a"), Tracer("b")
    first.start(model)
    second.start(model)
    assert dict(vars(torch.Tensor)) == before[0]
    model(torch.ones(1, 2))
    first.stop()
    second.stop()
    assert dict(vars(torch.Tensor)) == before[0]
    assert dict(vars(F)) == before[1]
    assert not model._forward_hooks


def test_defect_functions_imported_earlier_are_seen() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return relu(x)

    model, x = Net(), torch.ones(1)
    assert blocks(log_of(lambda: model(x), model))[-1].startswith("Tensor.relu() @ [")


def test_defect_printing_a_tensor_adds_nothing() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    quiet = blocks(log_of(lambda: model(x), model))
    assert blocks(log_of(lambda: (repr(x), model(x), str(x)), model)) == quiet


def test_defect_an_error_between_start_and_stop_leaves_nothing_patched(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, model, tracer = dict(vars(torch.Tensor)), nn.Linear(2, 2), Tracer()
    tracer.start(model)
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 3))
    assert dict(vars(torch.Tensor)) == before
    tracer.stop()
    text = capsys.readouterr().out
    assert "└─ Error: RuntimeError" in text
    model(torch.ones(1, 2))
    assert capsys.readouterr().out == ""


def test_defect_a_failing_op_ends_its_block(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(RuntimeError), Tracer().trace(model):
        model(torch.ones(1, 3))
    text = capsys.readouterr().out
    assert text.count("└─ Error: RuntimeError") == 2  # the operation's and the module's
    assert "COMPLETE" in text


def test_defect_a_shared_module_has_all_its_names() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))
    titles = blocks(log_of(lambda: model(torch.ones(1, 2)), model))
    named = [title.split()[0] for title in titles if "(Linear)" in title]
    assert named == ["0.0", "1.0"]


def test_defect_backward_is_shown() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    forward = blocks(log_of(lambda: model(x).sum(), model))
    both = blocks(log_of(lambda: model(x).sum().backward(), model))
    assert both[: len(forward)] == forward
    assert [title for title in both[len(forward) :] if title.startswith("Tensor.mm()")]


def test_defect_compilation_does_not_show() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    compiled = torch.compile(model, backend="aot_eager")
    titles = blocks(log_of(lambda: compiled(torch.ones(1, 2)), model))
    places = {title.partition(" @ ")[2] for title in titles if " @ " in title}
    assert places == {"[test_defect_compilation_does_not_show.<lambda>]"}
    assert titles[1].startswith("Neural Network (OptimizedModule)")


def test_defect_the_fused_path_stays_on() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        titles = blocks(log_of(lambda: layer(torch.rand(1, 3, 8)), layer))
    assert [title for title in titles if "Tensor._transformer_encoder_layer_fwd" in title]


def test_a_stream_that_has_no_tree_lines_gets_others() -> None:
    model, raw = nn.ReLU(), io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii", write_through=True)
    with contextlib.redirect_stdout(stream), Tracer().trace(model):
        model(torch.ones(1))
    assert b"`- Output: Tensor [1] torch.float32 @ cpu\n" in raw.getvalue()
    assert b"COMPLETE" in raw.getvalue()


def test_defect_colour_is_not_fixed_at_import_and_a_file_gets_none(tmp_path: Any) -> None:
    model = nn.ReLU()
    with (tmp_path / "log.txt").open("w") as file, contextlib.redirect_stdout(file):
        with Tracer().trace(model):
            model(torch.ones(1))
    assert "\033" not in (tmp_path / "log.txt").read_text()
    assert Color.BOLD.startswith("\033")
