"""`t.nonfinite()`: where NaN and Inf come from, in real programs; nothing is invented or missed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import clew
from tests.conformance.observe import BUILT

INF, NAN = math.inf, math.nan


class Bad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(-x.abs() - 1)


class Function(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.fc(x))  # type: ignore[operator, no-any-return]


def kinds(t: clew.Trace) -> list[str]:
    return [found.kind for found in t.nonfinite()]


def sequence() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), Bad(), nn.Linear(3, 3))


# What was made


def test_an_op_that_makes_nan_is_the_only_origin() -> None:
    model = sequence()
    with clew.trace(model, values="stats") as t:
        model(torch.ones(2, 3)).sum().backward()
    (found,) = t.nonfinite()
    assert (found.kind, found.event.name, found.event.module) == (
        "produced",
        "aten.log.default",
        "1",
    )
    assert found.value.stats is not None
    assert found.value.stats.nan == 6
    assert found.inputs["0"].stats == found.event.inputs["0"].stats
    assert found.hint.startswith("log of a value ≤ 0: min of input 0 is -")
    assert found.arrives == "NaN"
    assert repr(found).startswith(
        "<NonFiniteOrigin produced NaN at op:aten.log.default#0 in 1: log of"
    )
    data = found.to_dict()
    assert data["value"]["stats"]["nan"] == 6
    assert data["event"]["row"] == found.event.row


def test_a_module_call_alone_is_the_origin_when_there_are_no_ops() -> None:
    model = sequence()
    with clew.trace(model, level="modules", values="stats") as t:
        model(torch.ones(2, 3))
    (found,) = t.nonfinite()
    assert (found.kind, found.event.address) == ("produced", "1#0")


def test_what_a_module_makes_between_its_calls_is_its_own() -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.log(-self.a(x).abs()))

    model = nn.Sequential(Between(), nn.Linear(3, 3))
    with clew.trace(model, level="modules", values="stats") as t:
        model(torch.ones(2, 3))
    (found,) = t.nonfinite()
    assert (found.kind, found.event.address) == ("produced", "0#0")


def test_the_first_origin_comes_first() -> None:
    with clew.trace(values="stats") as t:
        torch.ones(2).neg().sqrt()
        t.step()
        torch.zeros(2).log()
    first, second = t.nonfinite()
    assert (first.event.name, first.event.step) == ("aten.sqrt.default", 0)
    assert (second.event.name, second.event.step) == ("aten.log.default", 1)


def test_nan_that_only_the_backward_pass_makes() -> None:
    model = Function(lambda x: (x * 0).sqrt())
    with clew.trace(model, values="stats") as t:
        model(torch.ones(2, 3)).sum().backward()
    first = t.nonfinite()[0]
    assert (first.kind, first.event.phase, first.arrives) == ("produced", "backward", "NaN")
    assert first.hint.startswith("the gradient of sqrt at 0 is not finite: 6 of 6 results")


def test_recomputed_ops_are_no_second_origin() -> None:
    from torch.utils.checkpoint import checkpoint

    inner = sequence()
    model = Function(lambda x: checkpoint(inner, x, use_reentrant=False))
    with clew.trace(model, values="stats") as t:
        model(torch.ones(2, 3)).sum().backward()
    assert any(event.phase == "recompute" for event in t.events)
    assert [found.event.phase for found in t.nonfinite()] == ["forward"]


HINTS = {
    "log": (lambda: torch.tensor([-3.0, 1.0]).log(), "log of a value ≤ 0: min of input 0 is -3"),
    "log1p": (lambda: torch.tensor([-1.0]).log1p(), "log1p of a value ≤ -1: min of input 0 is -1"),
    "sqrt": (lambda: torch.tensor([-2.0]).sqrt(), "sqrt of a negative value: min of input 0 is -2"),
    "rsqrt": (lambda: torch.zeros(2).rsqrt(), "rsqrt of a value ≤ 0: min of input 0 is 0"),
    "0/0": (lambda: torch.zeros(3) / torch.zeros(3), "0/0: 3 of 3 elements of input 1 are 0"),
    "1/0": (lambda: torch.ones(3) / torch.eye(3), "division by zero: 6 of 9 elements of input 1"),
    "by 0": (lambda: torch.ones(3) / 0, "division by 0"),
    "reciprocal": (lambda: torch.zeros(3).reciprocal(), "division by zero: 3 of 3 elements of inp"),
    "exp": (lambda: torch.tensor([95.2]).exp(), "exp of 95.2, the max of input 0, is more than f"),
    "pow": (lambda: torch.tensor([-4.0]).pow(0.5), "a negative value to the power of 0.5: min of"),
    "0 ** -1": (lambda: torch.zeros(2).pow(-1), "0 to the power of -1: 2 elements of input 0 are"),
    "acos": (lambda: torch.tensor([1.5]).acos(), "acos of a value outside [-1, 1]: input 0 is fr"),
    "std": (lambda: torch.ones(1).std(), "std of 1 element"),
    "mean": (lambda: torch.ones(0).mean(), "mean of no elements"),
    "targets": (
        lambda: F.nll_loss(torch.zeros(2, 3), torch.tensor([-100, -100])),
        "every target is ignored: the total weight is 0",
    ),
    "float16": (
        lambda: torch.tensor([70000.0]).half(),
        "overflow, float16 holds up to 65504: the largest element of input 0 is 70000",
    ),
    "product": (
        lambda: torch.full((2, 2), 300.0).half() @ torch.full((2, 2), 300.0).half(),
        "overflow, float16 holds up to 65504: the largest element of input 0 is 300",
    ),
    "square": (
        lambda: torch.tensor([1e30]).square(),
        "overflow, float32 holds up to 3.4028e+38: the largest element of input 0 is 1e+30",
    ),
    "0 × inf": (lambda: torch.zeros(2) * INF, "0 × inf: 2 of 2 elements of input 0 are 0"),
}


@pytest.mark.filterwarnings("ignore:std\\(\\)")
@pytest.mark.parametrize("name", HINTS)
def test_the_hint_says_what_statistics_tell(name: str) -> None:
    program, hint = HINTS[name]
    with clew.trace(values="stats") as t:
        program()
    found = t.nonfinite()[0]
    assert found.hint.startswith(hint), found.hint
    assert found.arrives


def test_nothing_is_said_where_nothing_is_known() -> None:
    with clew.trace(values="stats") as t:
        torch.lgamma(torch.zeros(2, 2))
    assert [found.hint for found in t.nonfinite()] == [""] * len(t.nonfinite())


# What came from outside


def test_a_batch_with_nan_came_with_the_data() -> None:
    model, batch = sequence()[0], torch.ones(2, 3)
    batch[0, 1] = NAN
    with clew.trace(model, values="stats") as t:
        model(torch.ones(2, 3)).sum()
        t.step()
        model(batch).sum().backward()
    (found,) = t.nonfinite()
    assert (found.kind, found.event.address, found.event.step) == ("input", "#1", 1)
    assert found.hint.startswith("1 NaN in 6 elements came from outside")


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_a_batch_with_nan_at_either_level(level: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with clew.trace(model, level=level, values="stats") as t:
        model(torch.full((2, 3), NAN))
    # With ops, what made the tensor was seen: a constant.
    assert kinds(t) == ["constant" if level == "ops" else "input"]


def test_weights_and_buffers_that_were_broken_before() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    with torch.no_grad():
        model[0].weight[0, 0] = NAN
        model[1].running_var[1] = NAN
    with clew.trace(model, values="stats") as t:
        model(torch.ones(2, 3))
    assert kinds(t) == ["parameter", "parameter"]
    assert {found.hint for found in t.nonfinite()} == {
        "0.weight held 1 NaN in 9 elements when it was first seen",
        "1.running_var held 1 NaN in 3 elements when it was first seen",
    }


def test_a_weight_that_an_update_broke_is_no_origin_of_its_own() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with clew.trace(model, values="stats") as t:
        for _ in range(2):
            optimizer.zero_grad()
            (model(torch.ones(2, 3)).sum() * 0).sqrt().backward()
            optimizer.step()
            t.step()
    assert [found.kind for found in t.nonfinite() if found.kind == "parameter"] == []
    assert t.nonfinite()[0].event.phase == "backward"


def test_a_captured_weight_that_broke_unseen_was_produced() -> None:
    model = nn.Linear(3, 3)
    with clew.trace(model, level="modules", capture=["weight:param"]) as t:
        model(torch.ones(2, 3))
        t.step()
        with torch.no_grad():
            model.weight.fill_(NAN)
        model(torch.ones(2, 3))
        t.step()
    assert t.series("weight:param").values[-1].stats.nan == 9
    assert kinds(t) == ["produced"]


# What is meant


class PositionBias(nn.Module):
    """The relative position bias of T5: the log(0) of near positions is chosen away."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(8, 2)

    def forward(self, length: int) -> Tensor:
        position = torch.arange(length)
        distance = (position[None] - position[:, None]).abs()
        far = 4 + (torch.log(distance.float() / 4) / math.log(4) * 4).to(torch.long)
        far = torch.min(far, torch.full_like(far, 7))
        return self.bias(torch.where(distance < 4, distance, far)).permute(2, 0, 1)


class Attention(nn.Module):
    def __init__(self, masking: str) -> None:
        super().__init__()
        self.masking, self.position, self.qkv = masking, PositionBias(), nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2]
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT + self.position(size)
        later = torch.ones(size, size, dtype=torch.bool).triu(1)
        if self.masking == "masked_fill":
            scores = scores.masked_fill(later, -INF)
        elif self.masking == "full":
            scores = scores + torch.full((size, size), -INF).triu(1)
        elif self.masking == "where":
            scores = torch.where(later, -INF, scores)
        elif self.masking == "in place":
            scores[..., later] = -INF
        elif self.masking == "empty":
            scores = scores + torch.empty(size, size).fill_(-INF).triu_(1)
        elif self.masking == "sdpa":
            mask = torch.zeros(size, size).masked_fill(later, -INF)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return scores.softmax(-1) @ v


@pytest.mark.parametrize("masking", ["masked_fill", "full", "where", "in place", "empty", "sdpa"])
def test_masks_and_a_masked_logarithm_are_absorbed(masking: str) -> None:
    model = Attention(masking)
    with clew.trace(model, values="stats") as t:
        model(torch.randn(2, 6, 4)).square().sum().backward()
    assert set(kinds(t)) == {"absorbed"}
    assert all(found.arrives == "" for found in t.nonfinite())


def test_a_mask_from_outside_is_absorbed() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    with clew.trace(layer, values="stats") as t:
        layer(torch.randn(2, 5, 8), src_mask=mask).sum().backward()
    assert set(kinds(t)) == {"absorbed"}


def test_a_mask_that_a_module_returns_is_a_constant_and_no_alarm() -> None:
    model = Function(lambda x: x.masked_fill(torch.eye(3).bool(), -INF))
    with clew.trace(model, values="stats") as t:
        model(torch.ones(3, 3)).softmax(-1).sum().backward()
    (found,) = t.nonfinite()
    assert (found.kind, found.arrives, found.is_alarm) == ("constant", "Inf", False)


def test_a_row_of_nothing_but_minus_inf_makes_nan_and_that_is_an_alarm() -> None:
    model = Function(lambda x: x.masked_fill(torch.ones(3, 3).bool(), -INF).softmax(-1))
    with clew.trace(model, values="stats") as t:
        model(torch.ones(3, 3)).sum().backward()
    found = t.nonfinite()[0]
    assert (found.kind, found.event.name) == ("constant", "aten.masked_fill.Scalar")
    assert (found.arrives, found.is_alarm) == ("NaN", True)
    assert (
        found.hint
        == "Inf becomes NaN at op:aten._softmax.default#0: a row that softmax took is -inf alone"
    )


def test_what_is_dropped_inside_a_module_is_absorbed() -> None:
    def dropping(x: Tensor) -> Tensor:
        torch.log(x * 0)
        return x

    model = Function(dropping)
    with clew.trace(model, values="stats") as t:
        model(torch.ones(2, 3)).sum().backward()
    assert kinds(t) == ["absorbed"]


def test_what_stays_with_the_program_is_not_absorbed() -> None:
    with clew.trace(values="stats") as t:
        loss = torch.ones(3).neg().log().mean()
        loss.item()
    assert kinds(t) == ["produced"]


def test_what_autograd_keeps_of_a_value_is_no_use_of_it() -> None:
    """`exp` keeps its result for the backward pass by a `detach`, which nobody asked for."""
    x = torch.tensor([100.0, 1.0], requires_grad=True)
    with clew.trace(values="stats") as t:
        x.exp()
    assert kinds(t) == ["produced"]
    with clew.trace(values="stats") as t:
        torch.where(x < 50, x.exp(), 0.0).sum()
    assert kinds(t) == ["absorbed"]


def test_where_saves_the_forward_pass_and_not_the_gradient() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with clew.trace(values="stats") as t:
        torch.where(x > 0, x.sqrt(), torch.zeros(2)).sum().backward()
    assert x.grad is not None
    assert x.grad.isnan().any()
    first = t.nonfinite()[0]
    assert (first.kind, first.event.phase) == ("produced", "backward")


def test_absorbed_ones_come_last() -> None:
    model = Function(lambda x: torch.log(torch.where(x > 1e9, torch.log(x * 0), -x.abs() - 1)))
    with clew.trace(model, values="stats") as t:
        model(torch.ones(2, 3))
    assert kinds(t) == ["produced", "absorbed"]


def test_memory_nobody_wrote_to_never_counts() -> None:
    def buffered(x: Tensor) -> Tensor:
        buffer = torch.empty_like(x)
        buffer.view(-1).data_ptr()
        rubbish = torch.empty(2, 3)
        torch.full((2, 3), NAN, out=rubbish)
        rows = torch.empty_strided((2, 3), (3, 1))
        rows[0] = x[0]
        rows[1] = x[1]
        return rows

    model = Function(buffered)
    garbage = torch.full((64, 3), NAN)
    del garbage
    with clew.trace(model, values="stats") as t:
        for _ in range(20):
            model(torch.ones(2, 3))
    assert {found.event.name for found in t.nonfinite()} <= {"aten.full.out"}


def test_memory_that_is_overwritten_unread_never_counts() -> None:
    """As a new parameter is: memory from outside that an initialiser fills."""
    weight = torch.full((3, 3), NAN)
    with clew.trace(values="stats") as t:
        weight.uniform_()
        weight.sum()
    assert t.nonfinite() == []


# What was looked at in part


def test_a_captured_variable_alone_shows_nan() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.log(-x)
            return h.nan_to_num()

    model = Model()
    with clew.trace(model, capture=["forward.h"]) as t:
        model(torch.ones(3))
    (found,) = t.nonfinite()
    assert (found.kind, found.event.name) == ("produced", "aten.log.default")
    assert found.arrives == "unknown"
    assert found.hint == "the values it took were not looked at; values='stats' does"


def test_a_captured_variable_at_each_level() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.log(-x)
            scale = float("nan")
            return h * scale

    model = Model()
    for level in ("modules", "values"):
        with clew.trace(model, level=level, capture=["forward.h", "forward.scale"]) as t:
            model(torch.ones(3))
        (found,) = t.nonfinite()
        assert (found.kind, found.event.address) == ("produced", "forward.h#0")


def infinite_difference() -> float:
    loss = math.inf - math.inf
    return loss


def test_a_python_float_is_looked_at() -> None:
    with clew.trace(capture=["test_nonfinite.py:infinite_difference.loss"]) as t:
        infinite_difference()
    (found,) = t.nonfinite()
    assert (found.event.name, found.what) == ("loss", "NaN")


def test_what_flows_through_values_nobody_took_is_no_new_origin() -> None:
    model = nn.Sequential(Bad(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    with clew.trace(model, capture=["0", "3"]) as t:
        model(torch.ones(2, 3))
    assert [found.event.module for found in t.nonfinite()] == ["0"]


def test_captured_gradients_alone_show_nan() -> None:
    model = nn.Linear(3, 1)
    with clew.trace(model, level="modules", capture=["weight:grad"]) as t:
        (model(torch.ones(2, 3)) * 0).sqrt().sum().backward()
    (found,) = t.nonfinite()
    assert (found.kind, found.event.address) == ("produced", "weight#0:grad")


def test_nothing_taken_nothing_found() -> None:
    with clew.trace() as t:
        torch.ones(2).neg().log()
    assert t.nonfinite() == []


# Numerics and ranks


def test_half_precision_that_overflows() -> None:
    model = Function(lambda x: (x.abs() + 1).half() * 60000)
    with clew.trace(model, values="stats") as t:
        model(torch.full((2, 3), 9.0)).float().sum().backward()
    found = t.nonfinite()[0]
    assert (found.kind, found.event.name) == ("produced", "aten.mul.Tensor")
    assert found.hint.startswith("overflow, float16 holds up to 65504")


def test_each_rank_has_its_own_origins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(3, 3)
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        batch = torch.full((2, 3), 1.0)
        batch[0, 0] = NAN if rank == 2 else 1
        with clew.trace(model, values="stats", out=tmp_path / "run.clew"):
            model(batch)
            if rank == 1:
                torch.zeros(2).log()
    found = clew.load(tmp_path / "run.clew").nonfinite()
    assert {(f.kind, f.event.rank) for f in found} == {("produced", 1), ("input", 2)}


def test_a_long_run_of_nan_is_one_origin_a_step() -> None:
    model = sequence()
    with clew.trace(model, values="stats") as t:
        for _ in range(5):
            model(torch.ones(2, 3)).sum().backward()
            t.step()
    assert [found.event.step for found in t.nonfinite()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("engine", BUILT)
def test_data_given_to_torch_tensor_comes_from_outside(engine: str) -> None:
    """`torch.tensor` fills memory that an op made, without an op."""
    with clew.trace(values="stats", engine=engine) as t:
        torch.tensor([NAN, 1.0]) * 2
        torch.empty(3).fill_(1).add(1)
    assert [(found.kind, found.event.name) for found in t.nonfinite()] == [
        ("input", "aten.mul.Tensor")
    ]
    assert [finding.kind for finding in t.findings] == ["input"]


class Broken(Dataset[Tensor]):
    """The third sample has a NaN that no op of torch made."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(np.full(3, NAN if index == 2 else 1, dtype=np.float32))


@pytest.mark.parametrize("engine", BUILT)
def test_what_a_worker_sends_comes_with_the_data(engine: str) -> None:
    """A tensor from another process is empty memory with a storage put under it."""
    model = nn.Linear(3, 3)
    with clew.trace(model, values="stats", engine=engine) as t:
        for batch in DataLoader(Broken(), batch_size=2, num_workers=1):
            model(batch).sum().backward()
    (found,) = t.nonfinite()
    assert (found.kind, found.event.name) == ("input", "Linear")
    assert found.hint == "3 NaN in 6 elements came from outside the recorded ops; look at the data"
    assert [finding.kind for finding in t.findings if finding.severity == "error"] == ["input"]


@pytest.mark.parametrize("engine", BUILT)
def test_what_a_file_held_comes_with_the_data(engine: str, tmp_path: Path) -> None:
    torch.save(torch.tensor([[NAN, 1.0, 1.0]]), tmp_path / "rows.pt")
    model = nn.Linear(3, 3)
    with clew.trace(model, values="stats", engine=engine) as t:
        model(torch.load(tmp_path / "rows.pt"))
    assert kinds(t) == ["input"]


@pytest.mark.parametrize("engine", BUILT)
def test_gradients_of_a_recurrent_cell_with_nan_are_no_data(engine: str) -> None:
    """Its gates are computed in place, so their memory is not followed to the backward pass."""
    cell = nn.GRUCell(3, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    with clew.trace(cell, values="stats", engine=engine) as t:
        for step in range(3):
            made = cell(torch.ones(2, 3))
            made = cell(torch.ones(2, 3), made)
            loss = made.sum() / (0 if step == 1 else 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert set(kinds(t)) == {"produced"}
    assert [finding.kind for finding in t.findings if finding.severity == "error"] == ["produced"]


@pytest.mark.parametrize(("scale", "severity"), [(2.0**30, "info"), (None, "error")])
def test_overflow_that_a_scaler_skips_is_no_error(scale: float | None, severity: str) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    with clew.trace(model, values="stats") as t:
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.float16):
                made = model(torch.ones(4, 8))
            loss = made.float().sum() * (1 if scale else 1e9)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    found = t.nonfinite()
    assert {one.kind for one in found} == {"produced"}
    assert {one.severity for one in found} == {severity}
    assert {one.is_skipped for one in found} == {scale is not None}
    said = [finding for finding in t.findings if finding.kind == "produced"]
    assert [finding.severity for finding in said] == [severity]
    assert ("GradScaler skips such a step" in str(said[0])) == (scale is not None)
    assert [finding for finding in t.findings if finding.kind == "range"] == []
