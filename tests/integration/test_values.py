"""Values: true at the moment they were recorded, exact in every dtype, and no more than asked."""

from __future__ import annotations

import contextlib
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew
from clew.events.digest import checksum
from clew.keep.snapshots import counted_snapshot, fresh, plain_snapshot
from clew.session.batching import WriterThread
from tests import models
from tests.outcomes import HAS_PROC, MEGABYTE, faults, resident

# Snapshots are true


def test_an_output_written_in_place_by_the_next_module() -> None:
    """Saved in a hook, the Linear's output would have no negatives any more."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True))
    x = torch.randn(5, 3)
    with torch.no_grad():
        expected = model[0](x)
        with clew.trace(model, values="full") as t:
            model(x)
    assert (expected < 0).any()
    assert torch.equal(t["0"].output.tensor(), expected)
    assert torch.equal(t["1"].one.inputs["0"].tensor(), expected)
    assert torch.equal(t["1"].output.tensor(), expected.relu())
    assert torch.equal(t["op:aten.relu_.default"].one.inputs["0"].tensor(), expected)


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_the_same_at_either_level(level: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    with torch.no_grad():
        hidden = model[0](x)
        with clew.trace(model, values="full", level=level) as t:
            y = model(x)
    assert torch.equal(t["0"].output.tensor(), hidden)
    assert torch.equal(t["1"].one.inputs["0"].tensor(), hidden)
    assert torch.equal(t["1"].output.tensor(), hidden.relu())
    assert torch.equal(t["2"].one.inputs["0"].tensor(), hidden.relu())
    assert torch.equal(t[""].output.tensor(), y)


def test_captured_values_are_true_too() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True))
    x = torch.randn(5, 3)
    with torch.no_grad():
        expected = model[0](x)
        with clew.trace(model, capture=["0", "1:in", "op:aten.relu_*"]) as t:
            model(x)
    assert torch.equal(t["0"].output.tensor(), expected)
    assert torch.equal(t["1"].one.inputs["0"].tensor(), expected)
    assert torch.equal(t["op:aten.relu_.default"].output.tensor(), expected.relu())


def test_an_input_the_module_overwrites() -> None:
    class Clear(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.zero_()
            return x

    with clew.trace(values="full") as t:
        Clear()(torch.ones(2))
    event = t["Clear"].one
    assert event.inputs["0"].array().tolist() == [1, 1]
    assert event.outputs[""].array().tolist() == [0, 0]
    assert event.inputs["0"].number != event.outputs[""].number


def test_a_write_through_another_view() -> None:
    with clew.trace(values="full") as t:
        base = torch.zeros(2, 2)
        column = base[:, 0]
        base.fill_(3)
        column + 1
        column.mul_(2)
        base + 1
    plus_column, plus_base = t["op:aten.add.Tensor"]
    assert plus_column.outputs[""].array().tolist() == [4, 4]
    assert plus_base.outputs[""].array().tolist() == [[7, 4], [7, 4]]
    assert plus_column.inputs["0"].array().tolist() == [3, 3]
    assert plus_base.inputs["0"].array().tolist() == [[6, 3], [6, 3]]


def test_running_statistics_before_and_after() -> None:
    model = nn.BatchNorm1d(2)
    expected = []
    with clew.trace(model, values="full") as t:
        for _ in range(3):
            expected.append(model.running_mean.tolist())
            model(torch.randn(4, 2))
    norms = t["op:aten.native_batch_norm.default"]
    assert [event.inputs["3"].name for event in norms] == ["running_mean"] * 3
    assert [event.inputs["3"].array().tolist() for event in norms] == expected


def test_parameters_before_and_after_the_optimizer() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    expected = []
    with clew.trace(model, values="full") as t:
        for _ in range(3):
            expected.append(model.bias.tolist())
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    biases = [event.inputs["0"].array().tolist() for event in t["op:aten.addmm.default"]]
    assert biases == expected
    assert len(set(map(tuple, expected))) == 3


def test_a_random_fill() -> None:
    with clew.trace(values="full") as t:
        x = torch.empty(3)
        x.normal_()
        expected = x.tolist()
        x.uniform_()
    assert t["op:aten.normal_.default"].output.array().tolist() == expected


def test_the_program_may_free_or_resize_what_was_recorded() -> None:
    with clew.trace(values="full") as t:
        x = torch.arange(4.0)
        y = x * 2
        x.resize_(0)
        y.set_()
    assert t["op:aten.mul.Tensor"].output.array().tolist() == [0, 2, 4, 6]


# No more than asked


@pytest.mark.skipif(not HAS_PROC, reason="needs Linux's /proc")
def test_a_view_stores_its_own_elements_only() -> None:
    base = torch.zeros(10 * MEGABYTE // 4).view(1024, -1)
    with clew.trace(values="full", capture=["**"]) as t:
        base.sum()  # which keeps the base, once
        before = resident()
        for row in range(40):
            nn.Identity()(base[row, :3])
        growth = resident() - before
    assert growth < 200 * MEGABYTE
    value = t["Identity#39"].output
    assert value.array().tolist() == [0, 0, 0]
    assert value.tensor().untyped_storage().nbytes() == 3 * 4


@pytest.mark.skipif(not HAS_PROC, reason="needs Linux's /proc")
def test_the_same_version_is_kept_once() -> None:
    x = torch.zeros(10 * MEGABYTE // 4)
    with clew.trace(values="full") as t:
        x.sum()
        before = resident()
        for _ in range(40):
            x.sum()
        growth = resident() - before
    assert growth < 200 * MEGABYTE
    assert len({op.inputs["0"].number for op in t.ops}) == 1


def test_an_expanded_tensor_is_stored_as_it_reads() -> None:
    with clew.trace(values="full") as t:
        torch.ones(1).expand(3) + 1
    assert t["op:aten.expand.default"].output.array().tolist() == [1, 1, 1]


def test_meta_keeps_no_data_and_says_how_to() -> None:
    with clew.trace() as t:
        torch.ones(2) + 1
    value = t.ops[-1].outputs[""]
    assert value.stats is None
    assert value.digest is None
    with pytest.raises(clew.ClewError, match=r"values='full'.*capture="):
        value.array()
    with pytest.raises(clew.ClewError, match="values='full'"):
        value.tensor()


def test_stats_keep_no_data() -> None:
    with clew.trace(values="stats") as t:
        torch.ones(2) + 1
    value = t.ops[-1].outputs[""]
    assert value.stats.max == 2
    with pytest.raises(clew.ClewError, match="was not kept"):
        value.array()


def test_capture_keeps_what_is_named_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with clew.trace(model, capture=["1", "2:in", "op:aten.addmm*#1"]) as t:
        y = model(torch.ones(1, 2))
    assert t["1"].value.shape == (1, 2)
    with pytest.raises(clew.ClewError, match="capture="):
        t["0:in"].value
    assert y.shape == (1, 2)
    with pytest.raises(clew.ClewError):
        t[""].one.inputs["0"].array()


def test_capture_of_one_call() -> None:
    model = nn.ReLU()
    with clew.trace({"act": model}, capture="act#1") as t:
        for number in range(3):
            model(torch.tensor([float(number)]))
    assert t["act#1"].value.tolist() == [1.0]
    for address in ("act#0", "act#2"):
        with pytest.raises(clew.ClewError):
            t[address].value


class Nested(nn.Module):
    def forward(self, x: Tensor, *, deep: dict[str, Tensor]) -> dict[str, Any]:
        return {"logits": x * 2, "states": [deep["k"] + 1, deep["v"] + 2]}


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        (":in.0", [2]),
        (":in.deep", [3, 4]),
        (":in.deep['v']", [4]),
        (":in.d*.k", [3]),
        (":out.logits", [2]),
        (":out.states[1]", [4]),
        (":out.*.0", [3]),
        ("op:aten.mul*:in.0", [2]),
    ],
)
def test_capture_of_a_part_keeps_that_part_and_nothing_else(address: str, kept: list[int]) -> None:
    model = Nested()
    x, deep = torch.zeros(2), {"k": torch.zeros(3), "v": torch.zeros(4)}
    with clew.trace(model, capture=[address]) as t:
        model(x, deep=deep)
    assert [len(value.array()) for value in t[address].values] == kept
    there = [
        value for event in t.events for value in (*event.inputs.values(), *event.outputs.values())
    ]
    assert {v.number for v in there if v.stats is not None} == {v.number for v in t[address].values}
    assert list(t.coverage) == []


def test_capture_by_any_name_of_a_shared_module() -> None:
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    with clew.trace(model, capture=["2"]) as t:
        model(torch.ones(1, 2))
    assert len(t.series("0").stack()) == 2


def test_capture_at_the_level_of_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with clew.trace(model, level="modules", capture=["*"]) as t:
        y = model(torch.ones(1, 2))
    assert torch.equal(t["1"].output.tensor(), y)
    with pytest.raises(clew.ClewError):
        t[":in"].value


# Exact in every dtype

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32,
    torch.uint64, torch.bool, torch.complex32, torch.complex64, torch.complex128,
]  # fmt: skip


def all_bits(dtype: torch.dtype) -> Tensor:
    """A tensor of a dtype with many bit patterns, odd ones included."""
    if dtype is torch.bool:
        return torch.tensor([True, False, True, True])
    raw = torch.arange(256, dtype=torch.uint8).repeat(2 * dtype.itemsize)
    raw = raw[torch.randperm(len(raw), generator=torch.Generator().manual_seed(0))]
    return raw.view(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_survives(dtype: torch.dtype) -> None:
    tensor = all_bits(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex32 is experimental
        with clew.trace(values="full") as t:
            nn.Identity()(tensor)
    value = t["Identity"].output
    assert value.tensor().dtype == dtype
    assert torch.equal(value.tensor().view(torch.uint8), tensor.view(torch.uint8))
    assert faults(t) == []
    assert not t.coverage


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_are_exact(dtype: torch.dtype) -> None:
    tensor = all_bits(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with clew.trace(values="full") as t:
            nn.Identity()(tensor)
        array = t["Identity"].output.array()
        if dtype.is_complex:
            wide = tensor.to(torch.complex128).numpy()
        elif dtype.is_floating_point:
            wide = tensor.to(torch.float64).numpy()
        else:
            wide = tensor.numpy()
    with np.errstate(invalid="ignore"):  # signalling NaNs
        np.testing.assert_array_equal(array.astype(wide.dtype), wide)
    assert array.shape == tuple(tensor.shape)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(2.5),
        torch.zeros(0, 3),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(24.0).reshape(2, 3, 4)[:, ::2, 1:],
        torch.arange(2.0)[::2],
        torch.arange(4.0).reshape(2, 2)[:, :1].t(),
        torch.arange(8.0).mul(1 + 2j).conj(),
        torch.arange(8.0).mul(1 + 2j).conj().imag,
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(3, requires_grad=True),
    ],
    ids=["scalar", "empty", "transposed", "strided", "one element", "one row",
         "conjugated", "negated", "channels last",
         "requires grad"],
)  # fmt: skip
def test_any_layout_reads_as_it_was(tensor: Tensor) -> None:
    with clew.trace(values="full") as t:
        nn.Identity()(tensor)
    value = t["Identity"].output
    assert torch.equal(value.tensor(), tensor.detach().resolve_conj().resolve_neg())
    assert value.array().tolist() == tensor.tolist()
    assert value.stride == tensor.stride()


SPARSE = torch.tensor([[0.0, 1.5], [-2.0, 0.0]])


@pytest.mark.parametrize("values", ["stats", "full"])
@pytest.mark.parametrize("tensor", [
    SPARSE.to_sparse(), SPARSE.to_sparse_csr(), SPARSE.to_sparse_csc(),
    SPARSE.to_sparse_bsr((1, 1)), SPARSE.to_sparse_bsc((1, 2)),
], ids=lambda tensor: str(tensor.layout))  # fmt: skip
def test_sparse_tensors_read_as_they_were(tensor: Tensor, values: str) -> None:
    with clew.trace(values=values) as t:
        nn.Identity()(tensor)
    assert list(t.coverage) == []
    value = t["Identity"].output
    assert (value.stats.min, value.stats.max) == (-2.0, 1.5)
    if values == "full":
        assert value.tensor().layout is tensor.layout
        assert torch.equal(value.tensor().to_dense(), SPARSE)
        assert value.array().tolist() == SPARSE.tolist()


def test_what_is_read_belongs_to_the_reader() -> None:
    with clew.trace(values="full") as t:
        torch.ones(2) + 1
    value = t.ops[-1].outputs[""]
    value.array()[0] = 9
    value.tensor()[0] = 9
    assert value.array().tolist() == [2, 2]
    assert value.tensor().tolist() == [2, 2]


# Statistics

nan, inf = math.nan, math.inf


def stats_of(tensor: Tensor) -> Any:
    with clew.trace(values="stats") as t:
        nn.Identity()(tensor)
    assert faults(t) == []
    assert not t.coverage
    return t["Identity"].output.stats


@pytest.mark.parametrize("dtype", [d for d in DTYPES if not d.is_complex], ids=str)
def test_statistics_are_right(dtype: torch.dtype) -> None:
    if dtype.is_floating_point and dtype.itemsize == 1:
        tensor = torch.tensor([0.5, 1.0, 2.0, 4.0, 1.0]).to(dtype)
    else:
        tensor = torch.tensor([0, 1, 1, 3, 100]).to(dtype)
    exact = tensor.to(torch.float64)
    stats = stats_of(tensor)
    assert (stats.min, stats.max) == (exact.min().item(), exact.max().item())
    assert stats.mean == pytest.approx(exact.mean().item())
    assert stats.std == pytest.approx(exact.std(correction=0).item())
    assert stats.norm == pytest.approx(exact.norm().item())
    assert stats.zeros == int((exact == 0).sum())
    assert (stats.nan, stats.inf, stats.count) == (0, 0, 5)


def test_large_integers() -> None:
    stats = stats_of(torch.tensor([2**40, -(2**40)]))
    assert (stats.min, stats.max, stats.mean) == (-(2.0**40), 2.0**40, 0.0)


def test_a_mean_far_from_zero_does_not_spoil_the_deviation() -> None:
    tensor = torch.tensor([10000.0, 10001.0, 10002.0, 10003.0])
    assert stats_of(tensor).std == pytest.approx(1.118033988, rel=1e-3)


def test_sums_of_half_precision_do_not_overflow() -> None:
    stats = stats_of(torch.full((1000,), 60000.0, dtype=torch.float16))
    assert stats.mean == pytest.approx(60000.0, rel=1e-3)
    assert stats.norm == pytest.approx(60000 * 1000**0.5, rel=1e-2)
    assert stats.inf == 0


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([1.0, nan, 3.0], (1, 3, 2, 1, 0)),
        ([inf, -inf, 4.0], (4, 4, 4, 0, 2)),
        ([nan, inf, -inf, 2.0, 4.0], (2, 4, 3, 1, 2)),
    ],
)
def test_non_finite_elements_are_counted_apart(data: list[float], expected: Any) -> None:
    stats = stats_of(torch.tensor(data))
    assert (stats.min, stats.max, stats.mean, stats.nan, stats.inf) == expected


@pytest.mark.parametrize("data", [[nan], [inf, inf]])
def test_nothing_finite_at_all(data: list[float]) -> None:
    stats = stats_of(torch.tensor(data))
    assert stats.mean is None or math.isnan(stats.mean)
    assert stats.nan + stats.inf == stats.count == len(data)


def test_statistics_of_nothing() -> None:
    stats = stats_of(torch.zeros(0, 3))
    assert (stats.count, stats.zeros, stats.nan) == (0, 0, 0)


def test_statistics_of_complex_numbers() -> None:
    stats = stats_of(torch.tensor([3 + 4j, 0j]))
    assert stats.count == 2
    assert stats.norm == pytest.approx(5.0)
    assert stats.zeros == 1


def test_statistics_of_a_boolean_mask() -> None:
    stats = stats_of(torch.tensor([True, False, True, True]))
    assert (stats.min, stats.max, stats.mean, stats.zeros) == (0, 1, 0.75, 1)


def test_statistics_are_those_of_the_moment() -> None:
    with clew.trace(values="stats") as t:
        x = torch.ones(3)
        x.mul_(5)
        x.add_(1)
    assert [op.outputs[""].stats.max for op in t.ops] == [1, 5, 6]


def digest_of(tensor: Tensor) -> str:
    with clew.trace(values="stats") as t:
        nn.Identity()(tensor)
    return t["Identity"].output.digest


def test_a_digest_tells_contents_apart_not_layouts() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    spread = torch.zeros(3, 8)[:, ::2]
    spread.copy_(tensor)
    assert digest_of(tensor) == digest_of(tensor.clone()) == digest_of(spread)
    changed = tensor.clone()
    changed[2, 3] += 1
    assert digest_of(changed) != digest_of(tensor)


def test_a_view_of_a_view_has_the_statistics_of_its_elements() -> None:
    with clew.trace(values="stats") as t:
        x = torch.arange(60_000.0).reshape(3, 200, 100) + 1
        x.view(3, 20_000).unsqueeze(0).transpose(1, 2).squeeze(0)[10:].t()
    whole, part = t["op:aten.squeeze.dim"].output, t["op:aten.t.default"].output
    assert (whole.stats.min, whole.stats.max, whole.stats.count) == (1, 60_000, 60_000)
    assert (part.stats.min, part.stats.count) == (11, 3 * 19_990)
    assert whole.digest is None


def test_elements_back_in_row_major_order_have_their_digest() -> None:
    data = torch.arange(60_000.0).reshape(300, 200)
    with clew.trace(values="stats") as t:
        torch.empty_strided((300, 200), (1, 300)).copy_(data).t()
    assert t["op:aten.t.default"].output.digest == digest_of(data.t().contiguous())
    assert t["op:aten.copy_.default"].output.digest == digest_of(data)


def test_memory_handed_on_without_a_word_has_the_same_statistics() -> None:
    layer = nn.Linear(64, 300, bias=False)
    with clew.trace(values="stats") as t, torch.no_grad():
        y = layer(torch.randn(40, 5, 64).transpose(0, 1))
        y.add_(1)
        y.sum()
    made, handed = t["op:aten.mm.default"].output, t["op:aten._unsafe_view.default#1"].output
    assert handed.stats == made.stats
    assert handed.digest == made.digest
    assert t["op:aten.add_.Tensor"].output.stats.max == pytest.approx(made.stats.max + 1)
    assert t["op:aten.add_.Tensor"].output.digest == digest_of(y)


def test_statistics_of_a_parameter_follow_every_write_from_trace_to_trace() -> None:
    layer = nn.Linear(300, 300)
    x = torch.ones(2, 300)

    def found() -> tuple[float, str]:
        with clew.trace(layer, values="stats") as t, torch.no_grad():
            layer(x)
        value = next(v for op in t.ops for v in op.inputs.values() if v.name == "weight")
        return value.stats.max, value.digest

    with torch.no_grad():
        for write in (
            lambda: layer.weight.fill_(1),
            lambda: layer.weight.data.fill_(2),
            lambda: layer.weight.data.numpy().fill(3),
            lambda: None,
            lambda: layer.weight.data.view(-1)[77].fill_(4),
        ):
            write()
            assert found() == (layer.weight.max().item(), digest_of(layer.weight.detach()))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "bfloat16", "int64", "bool"])
@pytest.mark.parametrize("spoil", [False, True])
def test_a_copy_counted_on_the_way_is_like_one_counted_later(dtype: str, spoil: bool) -> None:
    tensor = (torch.randn(400_003) * 3).to(getattr(torch, dtype))
    tensor[::7] = 0
    if spoil and tensor.dtype.is_floating_point:
        tensor[5], tensor[-1], tensor[1000] = nan, inf, -inf
    size = tensor.numel() * tensor.element_size()
    later = plain_snapshot(tensor, size, fresh)
    at_once = counted_snapshot(tensor, size, fresh)
    tensor.zero_()
    one, other = at_once.payload((400_003,)), later.payload((400_003,))
    assert bytes(one.data) == bytes(other.data)
    assert at_once.stats == later.stats
    assert one.checksum == checksum(other.data)


def test_the_program_counts_along_when_the_writer_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(behind: bool) -> list[tuple[Any, bytes]]:
        out = tmp_path / f"{behind}.clew"
        monkeypatch.setattr(WriterThread, "is_behind", lambda _: behind)
        x = torch.arange(200_000.0)
        with clew.trace(level="modules", values="full", out=out):
            for _ in range(6):
                nn.Identity()(x)
                x.add_(1)
        values = [value for call in clew.load(out).modules for value in call.outputs.values()]
        return [(value.stats, value.array().tobytes()) for value in values]

    found = run(behind=True)
    assert [stats.min for stats, _ in found] == list(range(6))
    assert found == run(behind=False)


def test_full_has_statistics_as_well() -> None:
    with clew.trace(values="full") as t:
        torch.ones(2) * 3
    value = t.ops[-1].outputs[""]
    assert value.stats.max == 3
    assert value.digest
    assert value.array().tolist() == [3, 3]


def test_stats_of_a_selection() -> None:
    model = nn.Sequential(nn.ReLU(), nn.ReLU())
    with clew.trace(model, values="stats") as t:
        model(torch.tensor([-1.0, 2.0]))
    assert [s.zeros for s in t["*"].stats] == [1, 1]


# Against the program itself


@pytest.mark.parametrize("name", ["gpt2", "t5", "resnet", "lstm", "functional"])
def test_every_module_output_is_what_the_model_computed(name: str) -> None:
    """Checked with the program's own hooks, which copy on the spot."""
    model, inputs = models.build(name)
    model.eval()
    expected: list[dict[str, Tensor]] = []

    def copy(module: nn.Module, args: Any, out: Any) -> None:
        leaves = models.leaves(out).items()
        expected.append({path: tensor.detach().clone() for path, tensor in leaves})

    handles = [module.register_forward_hook(copy) for module in model.modules()]
    torch.manual_seed(0)
    with clew.trace(model, values="full") as t:
        model(**inputs)
    for handle in handles:
        handle.remove()
    paths = {path for path, _ in model.named_modules()}
    # Hooks run as calls end, events are in the order in which they began.
    ended = sorted(
        (e for e in t.modules if e.module in paths and not e.reconstructed),
        key=lambda e: e.start + e.duration,
    )
    assert len(ended) == len(expected)
    for event, copies in zip(ended, expected, strict=True):
        assert list(event.outputs) == list(copies)
        for path, tensor in copies.items():
            assert torch.equal(event.outputs[path].tensor(), tensor), (event, path)


@pytest.mark.parametrize("values", ["stats", "full"])
def test_views_that_read_other_elements_have_their_own_statistics(values: str) -> None:
    with clew.trace(values=values) as t:
        x = torch.tensor([1.0, 2.0, 3.0, 4.0])
        x[:2].as_strided((2,), (1,), 2)
        x.view(torch.int32)
        z = torch.tensor([1 + 5j])
        z.conj().imag
    (strided,) = t["op:aten.as_strided.default"].stats
    assert (strided.min, strided.max) == (3, 4)
    (as_ints,) = t["op:aten.view.dtype"].stats
    assert as_ints.min == 0x3F800000
    assert [s.min for s in t["op:aten._neg_view.default"].stats] == [-5]
    assert t["op:aten._conj.default"].stats[0].min == -5


def test_a_view_of_what_is_kept_is_not_copied_again() -> None:
    with clew.trace(values="full") as t:
        x = torch.arange(120_000.0)
        x.view(300, 400)
        x.view(400, 300).t()
    arrays = [v.array() for v in t["op:aten.view.default"].values]
    assert [a.shape for a in arrays] == [(300, 400), (400, 300)]
    assert (t["op:aten.t.default"].values[0].array() == arrays[1].T).all()
    kept = t._current_run().columns.kept
    made, three, four = (kept[v.number].payload for v in [
        *t["op:aten.arange.default"].values, *t["op:aten.view.default"].values])  # fmt: skip
    assert made.data is three.data is four.data


@pytest.mark.parametrize("size", [100, 100_000])
@pytest.mark.parametrize("values", ["stats", "full"])
def test_memory_that_was_given_back_is_not_read(values: str, size: int) -> None:
    """As FSDP does with the parameters of layers that do not run now."""
    x = torch.ones(size)
    later = x[10:]
    model = nn.Identity()
    with clew.trace(model, values=values) as t:
        x.untyped_storage().resize_(0)
        model(x)
        model(later)
        model(torch._efficientzerotensor(size))
    first, second, zeros = t[""].values
    assert first.stats is None
    assert second.stats is None
    assert zeros.stats is not None
    assert zeros.stats.zeros == size
    assert ["no elements of its own" in gap.why for gap in t.coverage] == [True]
    with pytest.raises(clew.ClewError, match="was not kept"):
        first.array()


def test_series_of_a_value_over_steps() -> None:
    model = nn.Linear(1, 1)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    with clew.trace(model, values="full") as t:
        for step in range(3):
            model(torch.tensor([[float(step)]]))
            t.step()
    series = t.series("")
    assert series.stack().reshape(-1).tolist() == [0, 1, 2]
    assert series.steps == [0, 1, 2]
    assert series.ranks == [0, 0, 0]
    assert {source.file for source in series.sources} == {__file__}


def test_series_of_ragged_values() -> None:
    model = nn.Identity()
    with clew.trace(model, values="full") as t:
        model(torch.ones(2))
        model(torch.ones(3))
    with pytest.raises(clew.ClewError, match="pad=True"):
        t.series("").stack()
    assert t.series("").stack(pad=True).tolist() == [[1, 1, 0], [1, 1, 1]]


def test_values_survive_the_hand_over_between_batches() -> None:
    x = torch.zeros(1)
    with clew.trace(values="full") as t:
        kept = torch.ones(1)
        for _ in range(17_000):
            x = x + kept
    assert t.ops[-1].outputs[""].array().tolist() == [17_000]
    assert t.ops[16_384].outputs[""].array().tolist() == [16_384]
    assert t.ops[-1].inputs["1"].array().tolist() == [1]


def test_values_of_a_crashed_run_are_there() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(2, 2))
    with contextlib.suppress(RuntimeError), clew.trace(model, values="full") as t:
        model(torch.ones(1, 2))
    wrong = t.crash.event
    assert wrong.inputs["1"].array().shape == (1, 3)
    assert t["0"].output.array().shape == (1, 3)


# Sparse tensors: statistics, bars and counts are of what is stored, added up


TWICE = torch.tensor([[0, 0, 1], [1, 1, 2]])


def coordinates(places: Tensor, values: Tensor, *shape: int) -> Tensor:
    return torch.sparse_coo_tensor(places, values, shape, check_invariants=True)


DUPLICATES = coordinates(TWICE, torch.tensor([1.0, 2.0, -4.0]), 4, 4)


@pytest.mark.parametrize("values", ["stats", "full"])
@pytest.mark.parametrize(
    "tensor",
    [
        DUPLICATES, DUPLICATES.coalesce(), DUPLICATES.to_dense().to_sparse_csr(),
        DUPLICATES.to_dense().to_sparse_csc(),
        DUPLICATES.to_dense().to_sparse_bsr((1, 1)),
    ],
    ids=["coo", "coalesced", "csr", "csc", "bsr"],
)  # fmt: skip
def test_what_is_told_of_a_sparse_tensor_is_told_of_its_values(tensor: Tensor, values: str) -> None:
    plain = torch.tensor([3.0, -4.0])
    with clew.trace(values=values) as t:
        clew.tap("sparse", tensor)
        clew.tap("plain", plain)
        tensor.detach()
    found, wanted = t["sparse"].output, t["plain"].output
    assert found.stats == wanted.stats
    assert str(found).split("[4,4]")[1].split(" ", 2)[2] == str(wanted).split("[2] ")[1]
    of_op = t["op:aten.detach*"].values[0].stats
    assert of_op == wanted.stats
    assert torch.equal(found.tensor().to_dense(), tensor.to_dense()), "the data is as it was"


def test_the_zeros_of_a_block_are_stored() -> None:
    with clew.trace() as t:
        clew.tap("blocks", DUPLICATES.to_dense().to_sparse_bsr((2, 2)))
    stats = t["blocks"].output.stats
    assert (stats.count, stats.zeros, stats.norm) == (8, 6, 5.0)


def test_values_that_add_up_to_inf_are_counted_as_one() -> None:
    places, large = torch.tensor([[0, 0]]), torch.tensor([[3e38, 1.0], [3e38, 2.0]])
    with clew.trace() as t:
        clew.tap("rows", coordinates(places, large, 3, 2))
        clew.tap("scalars", coordinates(torch.zeros(0, 2).long(), torch.ones(2)))
    rows = t["rows"].output
    assert (rows.stats.count, rows.stats.inf, rows.stats.max) == (2, 1, 3.0)
    assert "Inf ×1" in str(rows)
    assert t["scalars"].output.stats.max == 2


@pytest.mark.parametrize("values", ["stats", "full"])
def test_a_sparse_optimizer_loses_no_op(values: str) -> None:
    def ran(values: str) -> list[str]:
        embedding = nn.Embedding(10, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(embedding.parameters())
        with clew.trace(embedding, values=values) as t:
            for _ in range(2):
                optimizer.zero_grad()
                embedding(torch.tensor([1, 2, 2, 5])).sum().backward()
                optimizer.step()
        assert not t.coverage
        return [op.name for op in t.ops]

    assert ran(values) == ran("meta")
