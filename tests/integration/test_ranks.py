"""Several ranks: each records its own part, and `gather=` brings values to rank 0 as they come."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import clew
from clew.errors import NotRecorded
from tests.processes import answers, run_ranks

MODEL = """
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
ddp = nn.parallel.DistributedDataParallel(model)

def train(t, steps, after=lambda step: None):
    for step in range(steps):
        ddp(torch.full((5, 3), 10.0 * rank + step)).sum().backward()
        after(step)
        t.step()

def series(t, address):
    s = t.series(address)
    return {"steps": s.steps, "ranks": s.ranks, "shape": s.stack(pad=True).shape}
"""


def test_each_rank_writes_its_own_part_and_they_are_merged(tmp_path: Path) -> None:
    script = (
        MODEL
        + """
with clew.trace(ddp, capture=["0:in", "2.weight:grad"], out="run.clew") as t:
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    train(t, 3, lambda step: optimizer.step())
answer = [t.ranks, t.path.name]
"""
    )
    assert answers(script, 4, tmp_path) == [[[rank], "run.clew"] for rank in range(4)]
    trace = clew.load(tmp_path / "run.clew")
    assert trace.ranks == [0, 1, 2, 3]
    series = trace.series("0:in")
    assert series.ranks == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert series.steps == [0, 1, 2] * 4
    by_rank = series.stack(by="rank")
    assert by_rank.shape == (4, 3, 5, 3)
    assert by_rank[:, :, 0, 0].tolist() == [[10 * r + s for s in range(3)] for r in range(4)]
    assert series.stack(by="step")[2, 1, 0, 0] == 12
    # Each step first as it is accumulated, then as the optimizer gets it.
    gradients = trace.series("2.weight:grad").stack(by="rank")
    assert (gradients[1, ::2] != gradients[0, ::2]).any()
    assert (gradients[:, 1::2] == gradients[0, 1::2]).all()


def test_readme_layouts_of_tensortracer(tmp_path: Path) -> None:
    """SEEDS 2.2.1: the shapes its README promises, with N steps, W ranks, a gather every G."""
    script = (
        MODEL
        + """
how = {
    "0:in": Callbacks(before_gather=callbacks.stack_padded, after_gather=callbacks.stack_padded),
    "1": Callbacks(after_gather=callbacks.stack_padded),
    "2": Callbacks(after_gather=lambda values: callbacks.stack(values).mean(axis=(0, 1))),
    "0": Callbacks(before_gather=callbacks.stack_padded, after_gather=callbacks.stack_padded,
                   end=callbacks.stack_padded),
}
with clew.trace(ddp, callbacks=how, gather=4) as t:
    train(t, 8)
answer = {address: series(t, address) for address in how}
answer["gaps"] = list(map(str, t.coverage))
if rank == 0:
    answer["values"] = t.series("0:in").stack()[:, :, :, 0, 0].tolist()
    t.save("run.clew")
"""
    )
    first, second = answers(script, 2, tmp_path)
    assert first["gaps"] == second["gaps"] == []
    made = {"steps": [3, 7], "ranks": [None, None]}
    assert first["0:in"] == {**made, "shape": [2, 2, 4, 5, 3]}  # N//G, W, G, B, C
    assert first["values"] == [[[10 * r + 4 * n + s for s in range(4)] for r in range(2)]
                               for n in range(2)]  # fmt: skip
    assert first["1"] == {**made, "shape": [2, 8, 5, 4]}  # N//G, W*G, B, C
    assert first["2"] == {**made, "shape": [2, 2]}  # N//G, C
    assert first["0"] == {"steps": [7], "ranks": [None], "shape": [1, 2, 2, 4, 5, 4]}
    # What other ranks hold is their own, as it was.
    assert second["0:in"] == {"steps": [*range(8)], "ranks": [1] * 8, "shape": [8, 5, 3]}
    loaded = clew.load(tmp_path / "run.clew")
    assert loaded.series("0:in").stack().shape == (2, 2, 4, 5, 3)
    assert loaded.series("0:in").ranks == [None, None]


def test_the_tail_is_gathered_with_steps_and_ranks(tmp_path: Path) -> None:
    """SEEDS 2.2.6: 6 passes with a gather every 4 lose nothing, nor do intervals that differ."""
    script = (
        MODEL
        + """
how = {"1": Callbacks(every=3), "2": Callbacks(save="norm")}
with clew.trace(ddp, capture=["0:in", "0.weight:grad"], callbacks=how, gather=4) as t:
    train(t, 6)
    ddp.eval()
    train(t, 1)
answer = {a: series(t, a) for a in ("0:in", "0.weight:grad", "1", "2")}
answer["modes"] = t.series("2").modes
answer["counts"] = t.series("2").counts
answer["values"] = t.series("0:in").stack()[:, 0, 0].tolist()
answer["kinds"] = sorted({event.kind for event in t.events})
t.export("pt", f"values{rank}.pt", labels=True)
exported = torch.load(f"values{rank}.pt", weights_only=True)
answer["exported"] = {
    address: [found["steps"], found["ranks"], [v.double().sum().item() for v in found["values"]]]
    for address, found in exported.items()
}
answer["sums"] = {
    address: [float(v.array().astype(float).sum()) for v in t.series(address).values]
    for address in exported
}
"""
    )
    first, second = answers(script, 2, tmp_path)
    both = {"steps": [*range(7)] * 2, "ranks": [0] * 7 + [1] * 7}
    assert first["0:in"] == {**both, "shape": [14, 5, 3]}
    assert first["values"] == [0, 1, 2, 3, 4, 5, 0, 10, 11, 12, 13, 14, 15, 10]
    assert first["0.weight:grad"] == {**both, "shape": [14, 4, 3]}
    assert first["1"] == {"steps": [2, 5] * 2, "ranks": [0, 0, 1, 1], "shape": [4, 5, 4]}
    assert first["2"] == {**both, "shape": [14]}
    assert first["modes"] == (["train"] * 6 + ["eval"]) * 2
    assert first["counts"] == [0, 1, 2, 3, 4, 5, 0] * 2
    assert "gathered" in first["kinds"]
    assert set(first["exported"]) == {":in.0", "0:in", "0.weight:grad", "1", "2"}
    for address, (steps, ranks, sums) in first["exported"].items():
        if address == ":in.0":  # the same tensors, of which nothing was gathered
            assert ranks == [0] * 7
            continue
        assert (steps, ranks) == (first[address]["steps"], first[address]["ranks"]), address
        assert sums == pytest.approx(first["sums"][address])
    assert second["2"]["ranks"] == [1] * 7
    assert "gathered" not in second["kinds"]


def test_copies_are_not_counted_twice_where_the_parts_are_merged(tmp_path: Path) -> None:
    script = (
        MODEL
        + """
with clew.trace(ddp, capture=["2"], gather=2, out="run.clew") as t:
    train(t, 3)
answer = series(t, "2")
"""
    )
    first, _ = answers(script, 2, tmp_path)
    assert first["ranks"] == [0, 0, 0, 1, 1, 1]
    loaded = clew.load(tmp_path / "run.clew").series("2")
    assert (loaded.steps, loaded.ranks) == ([0, 1, 2] * 2, [0] * 3 + [1] * 3)


def test_odd_values_reach_rank_0_as_they_were(tmp_path: Path) -> None:
    """SEEDS 2.2.3 and 2.2.18: no pickles, no broadcast, nothing narrowed, ragged shapes as well."""
    script = (
        MODEL
        + """
import numpy as np
odd = [torch.tensor([2.0, 3.0], dtype=torch.bfloat16), torch.tensor([2**40 + rank]),
       torch.tensor(1e300, dtype=torch.float64), torch.tensor([1 + 2j]), 2**70, "text", None, 1.5,
       np.array(["a", "bc"]), {"a": torch.ones(rank + 1), "b": [torch.zeros(2, 0)]}, object(),
       torch.eye(3).to_sparse(), b"bytes", torch.ones(1 + rank, 2), True]
with clew.trace(capture=["value"], gather=4) as t:
    for value in odd:
        clew.tap("value", value)
        t.step()
answer = []
if rank == 0:
    theirs = t.series("value").by_rank()[1]
    ours = t.series("value").by_rank()[0]
    answer = [[v.look for v in ours.values], [v.look for v in theirs.values],
              theirs.values[0].tensor().tolist(), theirs.values[1].tensor().item(),
              theirs.values[2].item(), str(theirs.values[3].item()), theirs.values[4].item(),
              theirs.values[5].item(), theirs.values[6].item()]
"""
    )
    ours, theirs, *values = answers(script, 2, tmp_path)[0]
    assert values == [[2, 3], 2**40 + 1, 1e300, "[1.+2.j]", 2**70, "text", None]
    assert ours[:9] == theirs[:9]
    assert ours[:3] == ["bf16[2]", "i64[1]", "f64[]"]
    assert theirs[9:11] == ["f32[2]", "f32[2,0]"]
    assert ours[-4:] == ["f32[3,3] sparse_coo", "bytes", "f32[1,2]", "bool"]
    assert theirs[-4:] == ["f32[3,3] sparse_coo", "bytes", "f32[2,2]", "bool"]


@pytest.mark.parametrize("longer", [0, 1])
def test_uneven_step_counts_lose_nothing(longer: int, tmp_path: Path) -> None:
    """SEEDS 2.2.18: a rank that makes fewer steps is said to, and hangs nobody."""
    script = f"""
model = nn.Linear(3, 2)
with clew.trace(model, capture=[":in"], gather=2) as t:
    for step in range(7 if rank == {longer} else 4):
        model(torch.full((1, 3), float(step)))
        t.step()
dist.barrier()
answer = [t.series(":in").steps, t.series(":in").ranks, list(map(str, t.coverage))]
"""
    steps = {longer: 7, 1 - longer: 4}
    first, second = answers(script, 2, tmp_path)
    assert first[0] == [*range(steps[0]), *range(steps[1])]
    assert first[1] == [0] * steps[0] + [1] * steps[1]
    [gap] = first[2]
    assert f"uneven numbers of them (rank 0: {steps[0]}, rank 1: {steps[1]})" in gap
    assert second[2] == []  # nobody waits to hear of it


def test_a_dead_rank_ends_the_gather_not_the_run(tmp_path: Path) -> None:
    script = """
model = nn.Linear(3, 2)
with warnings.catch_warnings(record=True) as told:
    with clew.trace(model, capture=[":in"], gather=2) as t:
        for step in range(6):
            model(torch.full((1, 3), float(step)))
            if rank == 1 and step == 3:
                reached("the death of rank 1")
                os._exit(3)
            t.step()
        if rank == 0:
            wait_for("the death of rank 1")
            wait_for("the end of rank 2")
reached(f"the end of rank {rank}")
answer = [t.series(":in").steps, t.series(":in").ranks, list(map(str, t.coverage)),
          [str(w.message) for w in told]]
"""
    first, _, third = answers(script, 3, tmp_path, timeout=2, dead=(1,))
    assert first[0] == [*range(6), 0, 1, *range(6)]
    assert first[1] == [0] * 6 + [1] * 2 + [2] * 6
    assert third == [[*range(6)], [2] * 6, [], []]
    _, _, gaps, told = first
    assert gaps[:1] == told
    assert "values of other ranks at step 6: nothing was heard of rank 1 for 2 seconds" in gaps[0]
    assert "each rank's own part has them: record with out= and load the folder" in gaps[0]


def test_a_rank_that_does_not_gather_is_named(tmp_path: Path) -> None:
    script = """
model = nn.Linear(3, 2)
with warnings.catch_warnings(record=True) as told:
    with clew.trace(model, capture=[""], gather=None if rank else 1) as t:
        for step in range(2):
            model(torch.ones(1, 3))
            t.step()
answer = [t.series("").steps, [str(w.message) for w in told]]
reached(f"the end of rank {rank}")
wait_for("the end of rank 0")
"""
    (steps, told), (_, silent) = answers(script, 2, tmp_path, timeout=2.0)
    assert steps == [0, 1]
    assert silent == []
    assert (
        "rank 1 did not come within 2 seconds; every rank has to trace as this one does" in told[0]
    )


def test_an_exception_does_not_wait_for_the_others(tmp_path: Path) -> None:
    script = """
model = nn.Linear(3, 2)
raised = False
try:
    with warnings.catch_warnings(record=True), clew.trace(model, capture=[""], gather=2) as t:
        for step in range(4):
            model(torch.ones(1, 3))
            if rank == 1 and step == 2:
                raise ValueError("as it was")
            t.step()
        wait_for("the exception")
except ValueError as error:
    raised = str(error) == "as it was"
    reached("the exception")
answer = [raised, t.series("").ranks, list(map(str, t.coverage))]
"""
    # With this timeout, rank 0 would give up on a rank that has not said that it is over.
    first, second = answers(script, 2, tmp_path, timeout=2)
    assert first[:2] == [False, [0] * 4 + [1] * 3]  # what was there when it was raised
    assert [gap for gap in first[2] if "uneven numbers of them" not in gap] == []
    assert second == [True, [1] * 3, []]


def test_an_exception_on_rank_0_does_not_wait_either(tmp_path: Path) -> None:
    script = """
model = nn.Linear(3, 2)
try:
    with warnings.catch_warnings(record=True) as told:
        with clew.trace(model, capture=[""], gather=2) as t:
            for step in range(2):
                model(torch.ones(1, 3))
                t.step()
            if rank == 0:
                raise ValueError
            wait_for("the end of rank 0")
except ValueError:
    pass
reached(f"the end of rank {rank}")
wait_for("the end of rank 1")  # rank 0 has the store of the ranks
answer = [str(w.message) for w in told]
"""
    told, _ = answers(script, 2, tmp_path, timeout=2)
    assert "the block ended with an exception on rank 0, before rank 1" in told[0]


def test_ranks_need_not_step_together(tmp_path: Path) -> None:
    """Rank 0 evaluates alone while the others wait for it: nobody waits for a gather."""
    script = """
model = nn.Linear(3, 2)
with clew.trace(model, capture=[""], gather=1) as t:
    for epoch in range(3):
        model(torch.full((1, 3), float(epoch)))
        t.step()
        if rank == 0:
            for _ in range(4):
                model(torch.full((1, 3), -1.0))
                t.step()
        dist.barrier()
answer = [t.series("").ranks, t.series("").steps]
"""
    first, second = answers(script, 2, tmp_path)
    assert first == [[0] * 15 + [1] * 3, [*range(15), 0, 1, 2]]
    assert second == [[1] * 3, [0, 1, 2]]


def test_a_gather_leaves_the_program_alone(tmp_path: Path) -> None:
    """Gradients, random numbers, the program's groups and the threads of the process."""
    script = (
        MODEL
        + """
import threading
def run(tracing):
    torch.manual_seed(rank)
    for p in model.parameters():
        p.grad = None
    own = dist.new_group()
    total = torch.tensor([rank + 1.0])
    if tracing:
        with clew.trace(ddp, capture=["2"], gather=1,
                        callbacks={"1": Callbacks(save=lambda v: v + torch.randn_like(v))}) as t:
            for _ in range(3):
                ddp(torch.randn(4, 3)).sum().backward()
                dist.all_reduce(total, group=own)
                t.step()
    else:
        for _ in range(3):
            ddp(torch.randn(4, 3)).sum().backward()
            dist.all_reduce(total, group=own)
    name = own.group_name if hasattr(own, "group_name") else ""
    return [name, total.item(), torch.get_rng_state().sum().item(),
            [p.grad.tolist() for p in model.parameters()]]
plain, traced = run(False), run(True)
after = dist.new_group()
answer = [plain[1:] == traced[1:], int(traced[0]) - int(plain[0]),
          int(after.group_name) - int(traced[0])]
"""
    )
    assert answers(script, 2, tmp_path) == [[True, 1, 1]] * 2


def test_local_and_global_shapes_and_placements(tmp_path: Path) -> None:
    """FSDP2, tensor parallelism and a plain DTensor, in the tree, in values and on rank 0."""
    script = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cpu", (size,))

def linears():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

def traced(model, x, capture, how=None):
    optimizer = torch.optim.SGD(list(model.parameters()) or [torch.zeros(1)], lr=0.1)
    with clew.trace(model, capture=capture, callbacks=how, gather=2) as t:
        for _ in range(2):
            y = model(x)
            if y.requires_grad:
                y.sum().backward()
            optimizer.step()
            t.step()
    found = {a: [sorted({v.look for v in t.series(a).values}), sorted(set(t.series(a).ranks)),
                 list(t.series(a).values[0].array().shape)] for a in capture}
    return [found, str(t), list(map(str, t.coverage))], t

sharded = linears()
for layer in sharded:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(sharded, mesh=mesh)
fsdp, t = traced(sharded, torch.ones(4, 8), ["0", "0.weight:param", "0.weight:grad",
                                             "2.weight:update"])
split = parallelize_module(linears(), mesh, {"0": ColwiseParallel(use_local_output=False),
                                             "2": RowwiseParallel()})
norm = Callbacks(save="norm")
tp, t = traced(split, torch.ones(4, 8), ["", "0", "0.weight:grad"], {"2.weight:param": norm})
weight = split[2].weight
local = [t.series("2.weight:param").values[-1].item() if rank else 0.0,
         weight._local_tensor.norm().item() if rank else 0.0]
plain, t = traced(nn.ReLU(), distribute_tensor(torch.arange(32.0).reshape(4, 8), mesh, [Shard(0)]),
                  ["", ":in"])
rows = t.series("").stack()[:, 0, 0].tolist()
answer = [fsdp, tp, plain, local, rows]
"""
    (fsdp, tp, plain, _, rows), (_, _, _, local, _) = answers(script, 2, tmp_path)
    shard = "f32[16,8] local [8,8] S(0)"
    assert fsdp[2] == tp[2] == plain[2] == []
    assert fsdp[0]["0"] == [["f32[4,16]"], [0, 1], [4, 16]]
    assert fsdp[0]["0.weight:param"] == [[shard], [0, 1], [8, 8]]
    assert fsdp[0]["0.weight:grad"] == [[shard], [0, 1], [8, 8]]
    assert fsdp[0]["2.weight:update"] == [["f32[8,16] local [4,16] S(0)"], [0, 1], [4, 16]]
    assert tp[0]["0"] == [["f32[4,16] local [4,8] S(1)"], [0, 1], [4, 8]]
    assert tp[0]["0.weight:grad"] == [[shard], [0, 1], [8, 8]]
    assert tp[0][""][1:] == [[0, 1], [4, 8]]
    assert "f32[4,16] local [4,8] S(1)" in tp[1]
    assert local[0] == pytest.approx(local[1])
    placed = "f32[4,8] local [2,8] S(0)"
    assert plain[0] == {"": [[placed], [0, 1], [2, 8]], ":in": [[placed], [0, 1], [2, 8]]}
    assert placed in plain[1]
    assert rows == [0, 0, 16, 16]


def forward(x: Tensor, model: nn.Module) -> Tensor:
    """A function with a variable to watch."""
    result: Tensor = model(x)
    return result


def recorded_on(
    rank: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[set[str], list[str]]:
    """What is recorded by name on a rank, and the gaps."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    # Made before the process knows its rank, as a decorator is.
    tracer = clew.trace(
        model, level=level, watch=["result@1"],
        capture=["0.weight:grad@1", "0.bias:grad@0", "0.bias:param@*", "forward.module@1"],
        callbacks={"0:in@1": clew.Callbacks(save="norm"), "1@0": clew.Callbacks(save="norm")},
    )  # fmt: skip
    monkeypatch.setenv("RANK", str(rank))
    with tracer as t:
        forward(torch.ones(2, 3), model).sum().backward()
    named = (event for event in t.events if event.kind in ("grad", "variable"))
    return {re.sub("#[0-9]+", "", event.address) for event in named}, list(map(str, t.coverage))


@pytest.mark.parametrize("level", ["ops", "values"])
def test_an_address_of_another_rank_is_left_out(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    first = {"0.bias:grad", "0.bias:param", "1"}
    second = {
        "0.weight:grad", "0.bias:param", "0:in", "forward.module",
        "test_ranks.py:forward.result", "test_ranks.py:forward.return",
    }  # fmt: skip
    assert recorded_on(0, level, monkeypatch) == (first, [])
    assert recorded_on(1, level, monkeypatch) == (second, [])


def test_data_is_kept_on_the_rank_an_address_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    with clew.trace(model, capture=["0@0", "1@1", "op:addmm:in@0"]) as t:
        expected = model(torch.ones(2, 3))
    assert list(t.coverage) == []
    assert torch.equal(t["1"].output.tensor(), expected)
    for address in ("0", "op:addmm"):
        with pytest.raises(NotRecorded):
            t[address].output.tensor()


def test_an_address_of_this_rank_without_match_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    model = nn.Sequential(nn.Linear(3, 4))
    with clew.trace(model, capture=["fc@1", "fc@0"]) as t:
        model(torch.ones(2, 3))
    assert [gap.where for gap in t.coverage] == ["fc@1"]


def test_a_gather_takes_no_address_of_one_rank() -> None:
    for asked in ({"capture": ["fc@1"]}, {"callbacks": {"fc@1": clew.Callbacks()}}):
        with pytest.raises(clew.ClewError, match="'fc@1' names rank 1, and gather= .* write 'fc'"):
            clew.trace(gather=2, **asked)  # type: ignore[arg-type]
    clew.trace(gather=2, capture=["fc@*"])


def test_a_watch_of_its_own_takes_no_rank() -> None:
    with pytest.raises(clew.ClewError, match=r"on every rank, and 'x@1' .*trace\(watch=\['x@1'\]"):
        clew.watch("x@1")
    clew.watch("x@*")


DOCUMENT = Path(__file__).parents[2] / "docs" / "training-runs.md"
SCRIPT = re.compile(r"```py\n(.*?)```\n+```text\n(.*?)```", re.DOTALL)


def test_the_scripts_of_the_guide(tmp_path: Path) -> None:
    found = SCRIPT.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert found
    for number, (script, printed) in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        [(first, _), *_] = run_ranks(script, 2, folder)
        assert first == printed, json.dumps(first)
