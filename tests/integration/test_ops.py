"""Operations: all of them, by torch's own names, with every argument and where it came from."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import clew
from tests.outcomes import faults

A = torch.arange(6, dtype=torch.float32).reshape(2, 3) + 1
B = torch.ones(2, 3)
IDS = torch.tensor([0, 1, 1])
X = torch.ones(1, 3, 5)
Q = torch.ones(1, 2, 4, 8)


def added_in_place(a: Tensor) -> Tensor:
    a = a.clone()
    a += 1
    return a


# What people write -> the op that must be among those recorded for it.
WRITTEN: dict[str, tuple[Callable[[], Any], str]] = {
    "torch.cat": (lambda: torch.cat([A, B]), "aten.cat.default"),
    "torch.stack": (lambda: torch.stack([A, B]), "aten.stack.default"),
    "torch.softmax": (lambda: torch.softmax(A, -1), "aten._softmax.default"),
    "torch.relu": (lambda: torch.relu(A), "aten.relu.default"),
    "torch.einsum": (lambda: torch.einsum("ij,kj->ik", A, B), "aten.bmm.default"),
    "torch.matmul": (lambda: torch.matmul(A, B.t()), "aten.mm.default"),
    "a @ b": (lambda: A @ B.T, "aten.mm.default"),
    "torch.add": (lambda: torch.add(A, B, alpha=2), "aten.add.Tensor"),
    "torch.sum": (lambda: torch.sum(A, 0), "aten.sum.dim_IntList"),
    "a + b": (lambda: A + B, "aten.add.Tensor"),
    "a - b": (lambda: A - B, "aten.sub.Tensor"),
    "a / b": (lambda: A / B, "aten.div.Tensor"),
    "a ** 2": (lambda: A**2, "aten.pow.Tensor_Scalar"),
    "2 * a": (lambda: 2 * A, "aten.mul.Tensor"),
    "1 + a": (lambda: 1 + A, "aten.add.Tensor"),
    "1 - a": (lambda: 1 - A, "aten.rsub.Scalar"),
    "-a": (lambda: -A, "aten.neg.default"),
    "a += 1": (lambda: added_in_place(A), "aten.add_.Tensor"),
    "a[0]": (lambda: A[0], "aten.select.int"),
    "a[:, 1:]": (lambda: A[:, 1:], "aten.slice.Tensor"),
    "a[mask]": (lambda: A[A > 1], "aten.index.Tensor"),
    "a > 1": (lambda: A > 1, "aten.gt.Scalar"),
    "a.T": (lambda: A.T, "aten.permute.default"),
    "a.t()": (lambda: A.t(), "aten.t.default"),
    "a.mean": (lambda: A.mean(-1), "aten.mean.dim"),
    "a.view": (lambda: A.view(3, 2), "aten.view.default"),
    "a.split": (lambda: A.split(1), "aten.split.Tensor"),
    "a.chunk": (lambda: A.chunk(2), "aten.split.Tensor"),
    "a.expand": (lambda: A[:1].expand(4, 3), "aten.expand.default"),
    "a.repeat": (lambda: A.repeat(2, 1), "aten.repeat.default"),
    "a.masked_fill": (lambda: A.masked_fill(A > 2, 0.0), "aten.masked_fill.Scalar"),
    "a.to": (lambda: A.to(torch.float16), "aten._to_copy.default"),
    "a.add": (lambda: A.add(B), "aten.add.Tensor"),
    "a.mul": (lambda: A.mul(3), "aten.mul.Tensor"),
    "a.relu()": (lambda: A.relu(), "aten.relu.default"),
    "a.softmax()": (lambda: A.softmax(-1), "aten._softmax.default"),
    "a.max": (lambda: A.max(0), "aten.max.dim"),
    "a.item": (lambda: A.sum().item(), "aten._local_scalar_dense.default"),
    "a.tolist": (lambda: torch.zeros(2).topk(1), "aten.topk.default"),
    "torch.where": (lambda: torch.where(A > 1, A, B), "aten.where.self"),
    "torch.arange": (lambda: torch.arange(3), "aten.arange.default"),
    "torch.randn": (lambda: torch.randn(2), "aten.randn.default"),
    "torch.tensor": (lambda: torch.tensor([1.0]), "aten.lift_fresh.default"),
    "F.linear": (lambda: F.linear(A, torch.ones(4, 3), torch.ones(4)), "aten.addmm.default"),
    "F.layer_norm": (lambda: F.layer_norm(A, (3,)), "aten.native_layer_norm.default"),
    "F.silu": (lambda: F.silu(A), "aten.silu.default"),
    "F.gelu": (lambda: F.gelu(A), "aten.gelu.default"),
    "F.conv1d": (lambda: F.conv1d(X, torch.ones(2, 3, 2)), "aten.convolution.default"),
    "F.embedding": (lambda: F.embedding(IDS, A), "aten.embedding.default"),
    "F.dropout": (lambda: F.dropout(A, 0.5), "aten.bernoulli_.float"),
    "F.cross_entropy": (lambda: F.cross_entropy(A, IDS[:2]), "aten.nll_loss_forward.default"),
    "sdpa": (
        lambda: F.scaled_dot_product_attention(Q, Q, Q),
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
    ),
}


class Names(TorchDispatchMode):
    """Torch's own account of what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("name", WRITTEN)
def test_what_people_write_is_seen(name: str) -> None:
    compute, op = WRITTEN[name]
    with Names() as names:
        compute()
    with clew.trace() as t:
        compute()
    seen = [event.name for event in t.ops]
    if t.env["engine"] == "native":
        assert op in seen  # tests/conformance compares the lists
    else:
        assert seen == names.seen
        assert op in names.seen
    assert faults(t) == []


@pytest.mark.parametrize("name", WRITTEN)
def test_each_has_this_line_its_inputs_and_its_outputs(name: str) -> None:
    compute, _ = WRITTEN[name]
    with clew.trace(values="full") as t:
        result = compute()
    for event in t.ops:
        assert event.source.file == __file__
        assert event.phase == "forward"
        assert event.duration >= 0
        assert event.kind == "op"
    last = t.ops[-1]
    if isinstance(result, Tensor):
        recorded = next(iter(last.outputs.values())).tensor()
        torch.testing.assert_close(recorded, result, rtol=0, atol=0)


def one(compute: Callable[[], Any], op: str) -> Any:
    with clew.trace(values="full") as t:
        compute()
    return t[f"op:{op}"].one


# Arguments


def test_constants_are_recorded() -> None:
    event = one(lambda: torch.add(A, B, alpha=2), "aten.add.Tensor")
    assert list(event.arguments) == ["0", "1", "alpha"]
    assert event.arguments["alpha"] == 2
    assert event.arguments["0"].shape == (2, 3)
    assert list(event.inputs) == ["0", "1"]


@pytest.mark.parametrize(
    ("compute", "op", "expected"),
    [
        (lambda: A.view(3, 2), "aten.view.default", {"1": [3, 2]}),
        (lambda: A.mul(1.5), "aten.mul.Tensor", {"1": 1.5}),
        (lambda: A.mul(True), "aten.mul.Tensor", {"1": True}),
        (lambda: A.sum(-1, keepdim=True), "aten.sum.dim_IntList", {"1": [-1], "2": True}),
        (lambda: A.clamp(min=0.5), "aten.clamp.default", {"1": 0.5}),
        (lambda: A.clamp(max=0.5), "aten.clamp.default", {"1": None, "2": 0.5}),
        (lambda: A[:, 1:], "aten.slice.Tensor", {"1": 1, "2": 1}),
        (lambda: A.div(2, rounding_mode="floor"), "aten.div.Tensor_mode",
         {"1": 2, "rounding_mode": "floor"}),
        (lambda: A.to(torch.float16), "aten._to_copy.default", {"dtype": "torch.float16"}),
        (lambda: torch.zeros(2, dtype=torch.int8), "aten.zeros.default",
         {"0": [2], "dtype": "torch.int8"}),
        (lambda: A * complex(1, 2), "aten.mul.Tensor", {"1": 1 + 2j}),
        (lambda: A.masked_fill(A > 2, float("-inf")), "aten.masked_fill.Scalar",
         {"2": float("-inf")}),
        (lambda: F.gelu(A, approximate="tanh"), "aten.gelu.default", {"approximate": "tanh"}),
        (lambda: A.permute(1, 0), "aten.permute.default", {"1": [1, 0]}),
    ],
)  # fmt: skip
def test_every_constant_has_its_place(
    compute: Callable[[], Any], op: str, expected: dict[str, Any]
) -> None:
    arguments = one(compute, op).arguments
    found = {path: arguments[path] for path in expected}
    assert found == expected
    assert {path: type(value) for path, value in found.items() if value in (1, 0)} == {
        path: type(value) for path, value in expected.items() if value in (1, 0)
    }


def test_equal_constants_of_different_types_stay_apart() -> None:
    with clew.trace() as t:
        A.mul(1), A.mul(1.0), A.mul(True), A.mul(2)
    assert [repr(event.arguments["1"]) for event in t.ops] == ["1", "1.0", "True", "2"]


def test_arguments_that_are_all_whole_numbers() -> None:
    class Sized(nn.Module):
        def forward(self, rows: int, columns: int) -> Tensor:
            return torch.arange(rows)

    with clew.trace() as t:
        Sized()(3, 4)
    assert dict(t["Sized"].one.arguments) == {"0": 3, "1": 4}
    assert t["op:aten.arange.default"].one.arguments["0"] == 3


def test_nan_as_a_constant() -> None:
    with clew.trace() as t:
        for _ in range(3):
            A.masked_fill(A > 2, float("nan"))
    first, *others = (event.arguments["2"] for event in t["op:aten.masked_fill.Scalar"])
    assert first != first
    assert all(other != other for other in others)


def test_lists_of_tensors() -> None:
    event = one(lambda: torch.cat([A, B, A], dim=1), "aten.cat.default")
    assert {path: v.shape for path, v in event.inputs.items()} == {
        "0.0": (2, 3), "0.1": (2, 3), "0.2": (2, 3),
    }  # fmt: skip
    assert event.inputs["0.0"].number == event.inputs["0.2"].number
    assert event.arguments["1"] == 1


def test_optional_tensors_in_lists() -> None:
    event = one(lambda: A[:, IDS], "aten.index.Tensor")
    assert list(event.inputs) == ["0", "1.1"]
    assert event.arguments["1.0"] is None


def test_several_results() -> None:
    event = one(lambda: A.max(0), "aten.max.dim")
    assert {path: v.look for path, v in event.outputs.items()} == {"0": "f32[3]", "1": "i64[3]"}
    assert event.outputs["1"].array().tolist() == [1, 1, 1]


def test_a_list_of_results() -> None:
    event = one(lambda: A.unbind(0), "aten.unbind.int")
    assert [v.array().tolist() for v in event.outputs.values()] == A.tolist()


def test_no_result_but_a_number() -> None:
    event = one(lambda: A[0, 0].item(), "aten._local_scalar_dense.default")
    assert dict(event.outputs) == {}
    assert len(event.inputs) == 1


@pytest.mark.parametrize("device_index", [torch.Generator()])
def test_a_generator_argument(device_index: torch.Generator) -> None:
    event = one(lambda: torch.rand(2, generator=device_index), "aten.rand.generator")
    assert event.arguments["generator"] == "Generator"


def test_a_long_list_of_sizes_and_a_deep_one() -> None:
    x = torch.ones([1] * 20)
    event = one(lambda: x.permute(*range(19, -1, -1)), "aten.permute.default")
    assert event.arguments["1"] == list(range(19, -1, -1))
    assert len(event.outputs[""].shape) == 20


# Contexts


@pytest.mark.usefixtures("python_engine")
def test_composite_ops_arrive_whole_under_inference_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).eval()
    with clew.trace(model) as t, torch.inference_mode():
        model(torch.ones(2, 3))
    assert [(op.name, op.module) for op in t.ops][-2:] == [
        ("aten.linear.default", "0"),
        ("aten.layer_norm.default", "1"),
    ]
    assert t["op:aten.layer_norm.default"].one.inputs["0"].producer == (
        t["op:aten.linear.default"].one
    )


def test_a_view_that_may_copy_under_inference_mode() -> None:
    """`reshape` shares memory only where it can."""
    with clew.trace() as t, torch.inference_mode():
        x = torch.arange(6.0).reshape(2, 3)
        x.reshape(3, 2).zero_()
        x + 1
        y = torch.arange(6.0).reshape(2, 3).t()
        y.reshape(6).zero_()
        y + 1
    first, second = t["op:aten.add.Tensor"]
    assert first.inputs["0"].producer.name == "aten.zero_.default"
    assert second.inputs["0"].producer.name != "aten.zero_.default"


def test_autocast_shows_its_casts() -> None:
    model = nn.Linear(3, 4)
    with clew.trace(model) as t, torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(2, 3))
    casts = t["op:aten._to_copy.default"]
    assert {event.module for event in casts} == {""}
    assert {event.outputs[""].look for event in casts} == {"bf16[4,3]", "bf16[4]", "bf16[2,3]"}
    assert t["op:aten.addmm.default"].one.outputs[""].dtype == "bfloat16"
    assert t[""].output.dtype == "bfloat16"


@pytest.mark.parametrize("context", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_requires_grad_is_told(context: Any) -> None:
    model = nn.Linear(3, 4)
    with clew.trace(model) as t, context():
        y = model(torch.ones(2, 3))
    last = t.ops[-1].outputs[""]
    assert last.requires_grad == y.requires_grad == (context is contextlib.nullcontext)
    assert t[""].output.requires_grad == y.requires_grad
    assert t[""].one.inputs["0"].requires_grad is False
    weight = next(v for op in t.ops for v in op.inputs.values() if v.name == "weight")
    assert weight.requires_grad is True


def test_requires_grad_of_many_ops() -> None:
    """Also where an op follows one that made no autograd node."""
    p = torch.ones(3, requires_grad=True)
    plain = torch.ones(3)
    expected = []
    with clew.trace() as t:
        for compute in (
            lambda: p * 2, lambda: plain * 2, lambda: p > 1, lambda: p.detach(), lambda: p[0],
            lambda: plain + p, lambda: p.long(), lambda: plain.view(3, 1), lambda: p.view(3, 1),
            lambda: torch.cat([plain, p]), lambda: (p * 2).mul_(2), lambda: plain.clone(),
        ):  # fmt: skip
            expected.append(compute().requires_grad)
    found = [e.outputs[""].requires_grad for e in t.ops if e.name != "aten.mul.Tensor"]
    wanted = [e for i, e in enumerate(expected) if i not in (0, 1)]
    assert found == wanted
    assert [e.outputs[""].requires_grad for e in t["op:aten.mul.Tensor"]] == [True, False, True]


def test_requires_grad_of_the_first_op() -> None:
    with clew.trace() as t:
        torch.ones(2)
    assert t.ops[0].outputs[""].requires_grad is False


def test_requires_grad_after_a_node_that_no_op_made() -> None:
    x = torch.ones(2, requires_grad=True)
    with clew.trace() as t:
        Cubed.apply(x)
        torch.ones(2)
    assert t.ops[-1].outputs[""].requires_grad is False


def test_no_grad_parts_inside_a_graph() -> None:
    p = torch.ones(3, requires_grad=True)
    with clew.trace() as t:
        y = p * 2
        with torch.no_grad():
            z = p * 3
            y + z
        y + z
    assert [e.outputs[""].requires_grad for e in t.ops] == [True, False, False, True]


# torch.func


def test_vmap_and_grad_are_recorded() -> None:
    w = torch.ones(3, requires_grad=True)

    def loss(x: Tensor) -> Tensor:
        return (w * x).sum()

    with clew.trace(values="stats") as t:
        torch.func.vmap(torch.func.grad(loss))(torch.ones(4, 3))
        torch.func.jvp(torch.sin, (torch.ones(2),), (torch.ones(2),))
        torch.func.hessian(lambda x: x.pow(3).sum())(torch.ones(2))
    names = {op.name for op in t.ops}
    assert {"aten.mul.Tensor", "aten.sin.default"} <= names
    # What a transformation makes of an op is a part of it for the native engine.
    assert ("aten.cos.default" in names) == (t.env["engine"] == "python")
    assert all(op.source.file == __file__ for op in t.ops)
    assert faults(t) == []


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.square() * 3


def test_the_ops_of_a_custom_function() -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model) as t:
        Cubed.apply(model(torch.ones(1, 2))).sum().backward()
    forward = [op for op in t.ops if op.source.function.endswith("Cubed.forward")]
    assert [op.name for op in forward] == ["aten.mul.Tensor"] * 2
    (square,) = t["op:aten.pow.Tensor_Scalar"]
    assert square.phase == "backward"
    assert square.source.function.endswith("Cubed.backward")


def test_custom_ops_are_recorded() -> None:
    @torch.library.custom_op("clewtests::halve", mutates_args=())
    def halve(x: Tensor) -> Tensor:
        return x / 2

    @torch.library.custom_op("clewtests::fill", mutates_args={"x"})
    def fill(x: Tensor, value: float) -> None:
        x.fill_(value)

    with clew.trace(values="full") as t:
        y = halve(torch.ones(2))
        fill(y, 3.0)
        y + 1
    assert t["op:clewtests.halve.default"].one.outputs[""].array().tolist() == [0.5, 0.5]
    written = t["op:clewtests.fill.default"].one
    assert written.arguments["1"] == 3.0
    last = t.ops[-1]
    assert last.inputs["0"].array().tolist() == [3.0, 3.0]
    assert last.inputs["0"].producer.name in ("clewtests.fill.default", "aten.fill_.Scalar")


# Every kind of tensor


class Wrapped(Tensor):
    """A subclass of the program's own."""


class Holder(Tensor):
    """A subclass that has no data of its own, only another tensor inside."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        opened = [a.inner if isinstance(a, Holder) else a for a in args]
        return Holder(func(*opened, **kwargs or {}))

    def __repr__(self) -> str:
        raise AssertionError("asked for its text")


def fake() -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2, 3)


TENSORS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "float64": (lambda: torch.ones(2, 3, dtype=torch.float64), "f64[2,3]"),
    "float32": (lambda: torch.ones(2, 3), "f32[2,3]"),
    "float16": (lambda: torch.ones(2, dtype=torch.float16), "f16[2]"),
    "bfloat16": (lambda: torch.ones(2, dtype=torch.bfloat16), "bf16[2]"),
    "float8_e4m3fn": (lambda: torch.ones(2).to(torch.float8_e4m3fn), "f8e4m3fn[2]"),
    "float8_e5m2": (lambda: torch.ones(2).to(torch.float8_e5m2), "f8e5m2[2]"),
    "float8_e8m0fnu": (lambda: torch.ones(2).to(torch.float8_e8m0fnu), "f8e8m0fnu[2]"),
    "int64": (lambda: torch.ones(2, dtype=torch.int64), "i64[2]"),
    "int32": (lambda: torch.ones(2, dtype=torch.int32), "i32[2]"),
    "int16": (lambda: torch.ones(2, dtype=torch.int16), "i16[2]"),
    "int8": (lambda: torch.ones(2, dtype=torch.int8), "i8[2]"),
    "uint8": (lambda: torch.ones(2, dtype=torch.uint8), "u8[2]"),
    "uint16": (lambda: torch.ones(2, dtype=torch.uint16), "u16[2]"),
    "uint32": (lambda: torch.ones(2, dtype=torch.uint32), "u32[2]"),
    "uint64": (lambda: torch.ones(2, dtype=torch.uint64), "u64[2]"),
    "bool": (lambda: torch.ones(2, dtype=torch.bool), "b8[2]"),
    "complex64": (lambda: torch.ones(2, dtype=torch.complex64), "c64[2]"),
    "complex128": (lambda: torch.ones(2, dtype=torch.complex128), "c128[2]"),
    "conjugated": (lambda: torch.ones(2, dtype=torch.complex64).conj(), "c64[2]"),
    "negated": (lambda: torch.ones(2, dtype=torch.complex64).conj().imag, "f32[2]"),
    "scalar": (lambda: torch.tensor(1.0), "f32[]"),
    "empty": (lambda: torch.ones(0, 3), "f32[0,3]"),
    "expanded": (lambda: torch.ones(1).expand(4), "f32[4]"),
    "transposed": (lambda: torch.ones(2, 3).t(), "f32[3,2]"),
    "quantised": (
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "quint8[2]",
    ),
    "sparse": (lambda: torch.ones(2, 3).to_sparse(), "f32[2,3] sparse_coo"),
    "sparse rows": (lambda: torch.ones(2, 3).to_sparse_csr(), "f32[2,3] sparse_csr"),
    "sparse columns": (lambda: torch.ones(2, 3).to_sparse_csc(), "f32[2,3] sparse_csc"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "f32[?]"),
    "jagged": (
        lambda: torch.nested.nested_tensor(
            [torch.ones(1, 3), torch.ones(2, 3)], layout=torch.jagged
        ),
        "f32[2,?,3] jagged",
    ),
    "meta": (lambda: torch.ones(2, 3, device="meta"), "f32[2,3]"),
    "fake": (fake, "f32[2,3] FakeTensor"),
    "subclass": (lambda: torch.ones(2).as_subclass(Wrapped), "f32[2] Wrapped"),
    "holder": (lambda: Holder(torch.ones(2)), "f32[2] Holder"),
    "parameter": (lambda: nn.Parameter(torch.ones(2)), "f32[2]"),
    "mkldnn": (lambda: torch.ones(2, 3).to_mkldnn(), "f32[2,3] _mkldnn"),
}  # fmt: skip


@pytest.mark.parametrize("values", ["meta", "stats", "full"])
@pytest.mark.parametrize("kind", TENSORS)
def test_any_tensor_is_recorded_and_prints(kind: str, values: str) -> None:
    make, text = TENSORS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = make()
        passing = nn.Identity()
        with clew.trace(values=values) as t:
            with contextlib.suppress(Exception):
                tensor.clone()
            with contextlib.suppress(Exception):
                tensor + tensor
            passing(tensor)
    assert faults(t) == []
    call = t["Identity"].one
    assert call.inputs["0"].look == text
    assert call.outputs[""].look == text
    for event in t.ops:
        for value in (*event.inputs.values(), *event.outputs.values()):
            assert str(value)
            assert repr(value)
            assert value.to_dict()
    if kind not in ("quantised", "mkldnn"):
        assert "aten.clone.default" in [event.name for event in t.ops]


def test_what_cannot_be_kept_is_in_the_coverage() -> None:
    with clew.trace(values="full") as t:
        torch.ones(2, 3, device="meta") * 2
    assert any("Tensor" in gap.what and "metadata" in gap.remedy for gap in t.coverage)


def test_strides_and_devices() -> None:
    with clew.trace() as t:
        torch.ones(2, 3).t()
        torch.ones(2, 3, device="meta")
    flipped = t["op:aten.t.default"].output
    assert (flipped.stride, flipped.device, flipped.layout) == ((1, 3), "cpu", "strided")
    assert t.ops[-1].outputs[""].device == "meta"


# Names of parameters and buffers


def test_parameters_and_buffers_are_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with clew.trace(model) as t:
        model(torch.ones(4, 3))
    (addmm,) = t["op:aten.addmm.default"]
    assert addmm.inputs["0"].name == "0.bias"
    (norm,) = t["op:aten.native_batch_norm.default"]
    names = [value.name for value in norm.inputs.values()]
    assert names == [None, "1.weight", "1.bias", "1.running_mean", "1.running_var"]


def test_the_same_tensor_has_one_number_until_it_is_written() -> None:
    model = nn.Linear(3, 3)
    with torch.no_grad(), clew.trace(model) as t:
        model(torch.ones(1, 3))
        model(torch.ones(1, 3))
        model.bias.add_(1)
        model(torch.ones(1, 3))
    first, second, third = (e.inputs["0"] for e in t["op:aten.addmm.default"])
    assert first.number == second.number != third.number
    assert first.storage == third.storage
    assert {first.name, third.name} == {"bias"}
    assert third.producer.name == "aten.add_.Tensor"
    assert first.producer is None
