"""Producer and consumer: which op made each value an op used, also through writes and views."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clew

ADD, MUL, RELU = "aten.add.Tensor", "aten.mul.Tensor", "aten.relu.default"


def made_by(value: Any) -> str | None:
    return None if value.producer is None else value.producer.address


def last(trace: clew.Trace) -> Any:
    return trace.ops[-1]


def test_each_input_leads_to_the_op_that_made_it() -> None:
    x = torch.ones(2)
    with clew.trace() as t:
        a = x + 1
        b = a * 2
        c = a.relu()
        torch.cat([b, c, x])
    inputs = last(t).inputs
    assert [made_by(v) for v in inputs.values()] == [f"op:{MUL}#0", f"op:{RELU}#0", None]
    assert made_by(t[f"op:{MUL}"].one.inputs["0"]) == f"op:{ADD}#0"


def test_a_result_leads_to_its_own_op() -> None:
    with clew.trace() as t:
        torch.ones(2) + 1
    for op in t.ops:
        assert op.outputs[""].producer == op


def test_equal_tensors_are_told_apart() -> None:
    """Python gives the memory and the id of a dead tensor to the next one."""
    with clew.trace() as t:
        for _ in range(50):
            torch.ones(3).relu()
    relus = t[f"op:{RELU}"]
    assert [made_by(e.inputs["0"]) for e in relus] == [
        f"op:aten.ones.default#{n}" for n in range(50)
    ]
    assert len({e.inputs["0"].number for e in relus}) == 50
    assert len({e.inputs["0"].storage for e in relus}) == 50


def test_a_write_in_place() -> None:
    with clew.trace() as t:
        x = torch.ones(2)
        x.add_(1)
        x + 1
    ones, write, plus = t.ops
    assert made_by(write.inputs["0"]) == ones.address
    assert made_by(plus.inputs["0"]) == write.address
    assert plus.inputs["0"].storage == ones.outputs[""].storage
    assert plus.inputs["0"].number == write.outputs[""].number
    assert write.inputs["0"].version < write.outputs[""].version


def test_versions_are_torch_s() -> None:
    versions = []
    with clew.trace() as t:
        x = torch.ones(2)
        for _ in range(3):
            x.mul_(2)
            versions.append(x._version)
            x + 1
    assert [e.inputs["0"].version for e in t[f"op:{ADD}"]] == versions


def test_a_write_through_a_view_is_seen_in_the_base() -> None:
    with clew.trace() as t:
        base = torch.zeros(2, 2)
        base[0].fill_(1)
        base + 1
    assert last(t).inputs["0"].producer.name == "aten.fill_.Scalar"


def test_a_write_to_the_base_is_seen_in_a_view_made_before() -> None:
    with clew.trace() as t:
        base = torch.zeros(2, 2)
        view = base.t()
        base.fill_(1)
        view + 1
    plus = last(t)
    assert plus.inputs["0"].producer.name == "aten.fill_.Scalar"
    assert plus.inputs["0"].shape == (2, 2)
    assert plus.inputs["0"].stride == (1, 2)


def test_a_write_through_one_view_is_seen_in_another() -> None:
    with clew.trace() as t:
        base = torch.zeros(4)
        a, b = base.view(2, 2), base.view(4, 1)
        a.mul_(2)
        b + 1
        b.add_(1)
        a + 1
    first, second = t[f"op:{ADD}"]
    assert first.inputs["0"].producer.name == "aten.mul_.Tensor"
    assert second.inputs["0"].producer.name == "aten.add_.Tensor"


def test_a_view_of_a_tensor_from_outside() -> None:
    outside = torch.zeros(2, 2)
    view = outside[0]
    with clew.trace() as t:
        outside + 1
        view.fill_(1)
        outside + 1
    before, after = t[f"op:{ADD}"]
    assert before.inputs["0"].producer is None
    assert after.inputs["0"].producer.name == "aten.fill_.Scalar"


def test_a_tensor_first_used_after_a_write_through_another() -> None:
    outside = torch.zeros(2, 2)
    view = outside[0]
    with clew.trace() as t:
        view.fill_(1)
        outside + 1
    assert last(t).inputs["0"].producer.name == "aten.fill_.Scalar"


def test_item_assignment() -> None:
    with clew.trace() as t:
        x = torch.zeros(2, 2)
        x[:, 0] = torch.ones(2)
        x[x > 0] = 5.0
        x + 1
    producers = [e.inputs["0"].producer.name for e in t["op:aten.gt.Scalar"]]
    assert producers == ["aten.copy_.default"]
    assert last(t).inputs["0"].producer.name in ("aten.index_put_.default",
                                                 "aten.masked_fill_.Scalar")  # fmt: skip


def test_writes_to_out_arguments() -> None:
    with clew.trace() as t:
        out = torch.empty(2)
        torch.add(torch.ones(2), 1, out=out)
        out + 1
    assert last(t).inputs["0"].producer.name == "aten.add.out"
    written = t["op:aten.add.out"].one
    assert written.outputs[""].number == last(t).inputs["0"].number


def test_several_out_arguments() -> None:
    with clew.trace() as t:
        values, indices = torch.empty(2), torch.empty(2, dtype=torch.long)
        torch.max(torch.ones(2, 3), 1, out=(values, indices))
        values + indices
    assert [made_by(v) for v in last(t).inputs.values()] == ["op:aten.max.dim_max#0"] * 2


def test_foreach_writes_to_every_tensor_of_a_list() -> None:
    with clew.trace() as t:
        xs = [torch.ones(2), torch.ones(3)]
        torch._foreach_add_(xs, 1)
        torch._foreach_mul_(xs, 2)
        xs[0] + 1
        xs[1] + 1
    for event in t[f"op:{ADD}"]:
        assert event.inputs["0"].producer.name == "aten._foreach_mul_.Scalar"
    second = t["op:aten._foreach_mul_.Scalar"].one
    assert {v.producer.name for v in second.inputs.values()} == {"aten._foreach_add_.Scalar"}


def test_foreach_results() -> None:
    with clew.trace() as t:
        made = torch._foreach_neg([torch.ones(2), torch.ones(3)])
        made[1] + 1
    assert made_by(last(t).inputs["0"]) == "op:aten._foreach_neg.default#0"


def test_an_optimizer_step_makes_the_parameters_new() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    with clew.trace(model) as t:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        model(torch.ones(1, 2))
    first, second = t["op:aten.addmm.default"]
    assert first.inputs["0"].producer is None
    assert second.inputs["0"].producer.phase == "optimizer"
    assert first.inputs["0"].name == second.inputs["0"].name == "bias"
    assert first.inputs["0"].storage == second.inputs["0"].storage


def test_split_views_see_a_write_to_one_another(engine: str) -> None:
    with clew.trace() as t:
        left, right = torch.zeros(4).split(2)
        left.add_(1)
        right + 1
        left + 1
    # The native engine knows which elements of the memory a write has changed.
    of_right = "aten.split.Tensor" if engine == "native" else "aten.add_.Tensor"
    producers = [e.inputs["0"].producer.name for e in t[f"op:{ADD}"]]
    assert producers == [of_right, "aten.add_.Tensor"]


def test_reshape_that_copies_does_not_share() -> None:
    with clew.trace() as t:
        x = torch.zeros(2, 3).t()
        y = x.reshape(6)
        y.add_(1)
        x + 1
    assert last(t).inputs["0"].producer.name == "aten.t.default"
    assert last(t).inputs["0"].storage != t["op:aten.add_.Tensor"].one.outputs[""].storage


def test_an_op_that_returns_its_argument() -> None:
    with clew.trace() as t:
        x = torch.ones(2)
        assert x.contiguous() is x
        assert x.to(torch.float32) is x
        x + 1
    assert made_by(last(t).inputs["0"]) == "op:aten.ones.default#0"


def test_running_statistics_are_written_by_batch_norm() -> None:
    model = nn.BatchNorm1d(2)
    with clew.trace(model) as t:
        model(torch.randn(4, 2))
        model(torch.randn(4, 2))
    second = t["op:aten.native_batch_norm.default#1"].one
    by_name = {v.name: v for v in second.inputs.values()}
    assert made_by(by_name["running_mean"]) == "op:aten.native_batch_norm.default#0"
    assert made_by(by_name["running_var"]) == "op:aten.native_batch_norm.default#0"
    assert by_name["weight"].producer is None


def test_set_data_and_swaps() -> None:
    with clew.trace() as t:
        x, y = torch.zeros(2), torch.ones(2)
        torch.utils.swap_tensors(x, y)
        x + 1
    # Which way the names point after a swap is torch's affair; that the edge is not a lie is ours.
    assert last(t).inputs["0"].shape == (2,)
    assert made_by(last(t).inputs["0"]) in (None, "op:aten.ones.default#0")


def test_detach_shares_memory() -> None:
    p = torch.ones(2, requires_grad=True)
    with clew.trace() as t:
        with torch.no_grad():
            p.detach().mul_(2)
        p + 1
    assert last(t).inputs["0"].producer.name == "aten.mul_.Tensor"


def test_module_inputs_and_outputs_join_the_ops() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Flatten())
    with clew.trace(model) as t:
        model(torch.ones(1, 2))
    addmm, relu = t["op:aten.addmm.default"].one, t["op:aten.relu_.default"].one
    assert t["0"].output.number == addmm.outputs[""].number
    assert t["1"].one.inputs["0"].producer == addmm
    assert t["1"].output.producer == relu
    assert t["2"].one.inputs["0"].producer == relu
    assert t[""].output.number == t["2"].output.number


def test_module_edges_without_ops() -> None:
    """At this level a value is made by the module that first returned it."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.ReLU())
    with clew.trace(model, level="modules") as t:
        model(torch.ones(1, 2))
    assert t["0"].output.producer == t["0"].one
    assert t["1"].output.producer == t["0"].one
    assert t["2"].one.inputs["0"].number == t["0"].output.number
    assert t[""].output.producer == t["2"].one


def test_module_edges_without_ops_see_writes() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Identity())
    with clew.trace(model, level="modules", values="full") as t, torch.no_grad():
        model(-torch.ones(1, 2))
    assert t["1"].output.producer == t["1"].one
    assert t["2"].one.inputs["0"].number == t["1"].output.number
    assert t["1"].one.inputs["0"].number == t["0"].output.number
    assert t["0"].output.number != t["1"].output.number


@pytest.mark.parametrize("count", [20_000])
def test_edges_survive_the_hand_over_between_batches(count: int) -> None:
    """Records are handed over every 16,384 events; a tensor may be used after that."""
    with clew.trace() as t:
        x, early = torch.zeros(2), torch.ones(2)
        view = early[:1]
        early.add_(1)
        for _ in range(count):
            x = x.neg()
        early + x
        early.mul_(3)
        view + 1
    negs = t["op:aten.neg.default"]
    assert len(negs) == count
    assert all(negs[n].inputs["0"].producer == negs[n - 1] for n in (1, 16_383, 16_384, count - 1))
    joined, on_view = t[f"op:{ADD}"]
    assert made_by(joined.inputs["0"]) == "op:aten.add_.Tensor#0"
    assert made_by(joined.inputs["1"]) == f"op:aten.neg.default#{count - 1}"
    assert made_by(on_view.inputs["0"]) == "op:aten.mul_.Tensor#0"


def test_a_saved_tensor_unpacked_in_backward_is_the_one_that_was_saved() -> None:
    x = torch.ones(2, requires_grad=True)
    with clew.trace() as t:
        y = x.exp()
        (y * 2).sum().backward()
    exp = t["op:aten.exp.default"].one
    products = [op for op in t[f"op:{MUL}"] if op.phase == "backward"]
    storages = {v.storage for op in products for v in op.inputs.values()}
    assert exp.outputs[""].storage in storages


def test_the_gradient_s_way_is_linked() -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model) as t:
        model(torch.ones(1, 2)).sum().backward()
    backward = [op for op in t.ops if op.phase == "backward"]
    seed = t["op:aten.ones_like.default"].one
    assert backward[0] == seed
    assert backward[1].inputs["0"].producer == seed
    for op in backward[1:]:
        assert any(v.producer in backward for v in op.inputs.values())


def test_gradients_read_by_the_optimizer_lead_back_to_backward() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with clew.trace(model) as t:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    updates = [op for op in t.ops if op.phase == "optimizer"]
    assert updates
    for op in updates:
        gradient = op.inputs["1"]
        assert gradient.producer.phase == "backward"


def test_accumulated_gradients_are_written_in_place() -> None:
    w = torch.ones(2, requires_grad=True)
    with clew.trace() as t:
        for _ in range(2):
            (w * 2).sum().backward()
        w.grad + 1
    assert last(t).inputs["0"].producer.name in ("aten.add_.Tensor", "aten.add.Tensor")
    assert last(t).inputs["0"].producer.phase == "backward"


def consumers(trace: clew.Trace, value: Any) -> list[str]:
    return [op.name for op in trace.ops for v in op.inputs.values() if v.number == value.number]


def test_consumers_can_be_found() -> None:
    with clew.trace() as t:
        x: Tensor = torch.ones(2)
        x + 1
        x.mul_(2)
        x.relu()
    ones, _, write, _ = t.ops
    assert consumers(t, ones.outputs[""]) == [ADD, "aten.mul_.Tensor"]
    assert consumers(t, write.outputs[""]) == [RELU]


def test_what_a_failed_op_wrote_before_it_failed() -> None:
    x, refused = torch.zeros(2), torch.zeros(1).expand(3)
    with clew.trace(values="full") as t:
        with contextlib.suppress(RuntimeError):
            torch._foreach_add_([x, refused], 1)
        x + 1
    assert t[f"op:{ADD}"].one.inputs["0"].array().tolist() == [1, 1]
