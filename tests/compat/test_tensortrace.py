"""TensorTracer by another import: its README, its newest interface, its promises."""

from __future__ import annotations

import importlib
import textwrap
import warnings
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, distributed, nn

from clew.compat import tensortrace
from clew.compat.tensortrace import (
    H5PYSaverCallback,
    H5PYTracedModel,
    ModelTracer,
    ModelTracerH5PY,
    TracedModel,
    Variable,
    stack_padded_tensors,
    stack_tensors,
    trace_model,
)
from clew.errors import ClewError, ClewWarning
from tests.processes import answers

# The README's three blocks; the second is the first with another callback and another ending.
IMPORTS = """
from clew.compat.tensortrace import ModelTracer, H5PYSaverCallback, stack_padded_tensors
"""
LOOP = """
with tracer:
    for epoch in range(4):
        sampler.set_epoch(epoch)
        ddp_model.train()

        for batch_idx, (data, target) in enumerate(dataloader):
            data, target = data.to(device_id), target.to(device_id)

            optimizer.zero_grad()
            output = ddp_model(data)
            loss = loss_fn(output, target.long())
            loss.backward()
            optimizer.step()
"""
STACKED = f"""
tracer = ModelTracer(
    model,
    [
        "forward", # Save output of forward function
        "forward.x", # Save input of forward function
    ],
    pre_gather_callbacks=[stack_padded_tensors],
    post_gather_callbacks=[stack_padded_tensors],
    post_trace_callbacks=[stack_padded_tensors],
    gathering_interval=4
)
{LOOP}
if rank == 0:
    x = tracer.results['forward.x'].values[0]
    print(x.shape)
"""
SAVED = f"""
saver_callback = H5PYSaverCallback(dataset_file="test.h5")
tracer = ModelTracer(
    model,
    [
        "forward", # Save output of forward function
        "forward.x", # Save input of forward function
    ],
    post_gather_callbacks=[stack_padded_tensors, saver_callback],
    gathering_interval=2
)
{LOOP}
if rank == 0:
    print(saver_callback.datasets['forward.x'])
"""
MEAN = """
def mean_post_gather(name, values, iterations, ranks):
    values[0] = values[0].mean(dim=(0,1)) # (G,B,C) -> (C)
    pass

tracer = ModelTracer(
    model,
    [
        "forward", # Save output of forward function
        "forward.x", # Save input of forward function
    ],
    post_gather_callbacks=[stack_padded_tensors, mean_post_gather],
    post_trace_callbacks=[stack_padded_tensors],
    gathering_interval=4
)

with tracer:
    for epoch in range(100):
        model.train()

        for batch_idx, (data, target) in enumerate(dataloader):
            data, target = data.to(device_id), target.to(device_id)

            optimizer.zero_grad()
            output = model(data)
            loss = loss_fn(output, target.long())
            loss.backward()
            optimizer.step()

x = tracer.results['forward.x'].values[0]
"""
# What the blocks leave to the reader: 16 rows a rank in batches of 4, each row its own number.
PLACEHOLDERS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x)

device_id = "cpu"
model = Net()
ddp_model = nn.parallel.DistributedDataParallel(model) if size > 1 else model
rows = torch.arange(16.0 * size).reshape(-1, 1).expand(-1, 3)
dataset = TensorDataset(rows, torch.zeros(len(rows)))
sampler = DistributedSampler(dataset, num_replicas=size, rank=rank, shuffle=False)
dataloader = DataLoader(dataset, batch_size=4, sampler=sampler)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""


def alone(block: str) -> dict[str, Any]:
    """What a block of the README leaves behind, run in this process."""
    found: dict[str, Any] = {"rank": 0, "size": 1, "__name__": "readme"}
    exec(PLACEHOLDERS + IMPORTS + block, found)
    return found


class Net(nn.Module):
    """A forward with locals of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(3, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])
        self.register_buffer("seen", torch.zeros(1))
        self.scale = 1.5

    def scaled(self, y: Tensor) -> Tensor:
        by = self.scale
        return y * by

    def forward(self, x: Tensor) -> Tensor:
        count = 7
        parts = {"a": x * 2, "b": [x + 1, {"deep": x + 2}]}
        nothing = None
        y = self.fc1(x)
        for layer in self.layers:
            y = layer(y)
        self.seen += 1
        text = f"{count}{nothing}"
        y = y * len(text) + parts["a"].sum()
        return self.scaled(y)


def passes(tracer: ModelTracer, model: nn.Module, number: int, rows: int = 5) -> None:
    with tracer:
        for step in range(number):
            model(torch.full((rows, 3), float(step)))


def traced(paths: list[str], number: int = 2, model: nn.Module | None = None, **how: Any) -> Any:
    model = model or Net()
    tracer = ModelTracer(model, paths, **how)
    passes(tracer, model, number)
    return tracer.results


# The README's blocks


def test_readme_stacked_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    results = alone(STACKED)["tracer"].results
    assert capsys.readouterr().out == "torch.Size([4, 1, 4, 4, 3])\n"
    assert set(results) == {"forward", "forward.x"}
    assert results["forward.x"].values[0].shape == (4, 1, 4, 4, 3)  # N//G, W, G, B, C
    assert results["forward"].values[0].shape == (4, 1, 4, 4, 2)
    assert results["forward.x"].values[0][1, 0, :, 0, 0].tolist() == [0, 4, 8, 12]
    assert results["forward.x"].iterations[0][:, 0].tolist() == [
        [4 * n + g + 1 for g in range(4)] for n in range(4)
    ]
    assert results["forward.x"].ranks[0].tolist() == [[0]] * 4


def test_readme_saved_to_hdf5_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = alone(SAVED)
    assert "shape (8, 2, 4, 3)" in capsys.readouterr().out
    saver = found["saver_callback"]
    assert saver.datasets["forward.x"].shape == (8, 2, 4, 3)  # N//G, G*W, B, C
    assert found["tracer"].results["forward.x"].values == []  # moved, not copied
    saver.close()
    with h5py.File("test.h5") as file:
        assert file["forward"].shape == (8, 2, 4, 2)
        assert file["forward.x"][0, :, 0, 0].tolist() == [0, 4]
        assert file["forward.x_iterations"][:2].tolist() == [[1, 2], [3, 4]]
        assert file["forward.x_ranks"][0].tolist() == [0, 0]


def test_readme_mean_in_one_process() -> None:
    found = alone(MEAN)
    results = found["tracer"].results
    assert found["x"].shape == (100, 3)  # N//G, C
    assert results["forward"].values[0].shape == (100, 2)
    assert found["x"][:, 0].tolist() == [7.5] * 100


def test_readme_in_two_processes(tmp_path: Path) -> None:
    mean = MEAN.replace("x = tracer", "if rank == 0: x = tracer")  # the others have no results
    script = textwrap.dedent(
        f"""
{PLACEHOLDERS}
{IMPORTS}
answer = {{}}
{STACKED}
if rank == 0:
    x, y = tracer.results['forward.x'], tracer.results['forward']
    answer["stacked"] = x.values[0].shape
    answer["forward"] = [y.values[0].shape, y.iterations[0].tolist() == x.iterations[0].tolist()]
    answer["values"] = x.values[0][0, :, :, 0, 0].tolist()
    answer["iterations"] = x.iterations[0][1].tolist()
    answer["ranks"] = x.ranks[0][1].tolist()
else:
    answer["elsewhere"] = list(tracer.results)
{SAVED}
if rank == 0:
    answer["saved"] = saver_callback.datasets['forward.x'].shape
    answer["saved forward"] = saver_callback.datasets['forward'].shape
    answer["saved ranks"] = saver_callback.datasets['forward.x'].ranks[0].tolist()
{mean}
if rank == 0:
    answer["mean"] = [x.shape, tracer.results['forward'].values[0].shape]
"""
    )
    first, second = answers(script, 2, tmp_path)
    assert second == {"elsewhere": []}
    assert first == {
        "stacked": [4, 2, 4, 4, 3],  # N//G, W, G, B, C
        "forward": [[4, 2, 4, 4, 2], True],
        "values": [[0, 8, 16, 24], [1, 9, 17, 25]],
        "iterations": [[5, 6, 7, 8]] * 2,
        "ranks": [0, 1],
        "saved": [8, 4, 4, 3],  # N//G, G*W, B, C
        "saved forward": [8, 4, 4, 2],
        "saved ranks": [0, 0, 1, 1],
        "mean": [[100, 3], [100, 2]],  # N//G, C
    }


# What the tool offers, one test for each entry of SEEDS 8


def test_checklist_variable_paths_and_wildcards() -> None:
    paths = [
        "fc1", "fc1.forward", "fc1.forward.input", "forward", "forward.x", "forward.count",
        "forward.text", "forward.parts.a", "forward.parts.b.0", "forward.parts.b.*.deep",
        "forward.self.fc1.weight", "forward.self.seen", "forward.self.scale", "layers.*",
        "forward.nothing", "scaled", "scaled.by",
    ]  # fmt: skip
    model = Net()
    results = traced(paths, 2, model)
    wildcards = {"forward.parts.b.*.deep": ["forward.parts.b.1.deep"],
                 "layers.*": ["layers.0", "layers.1"]}  # fmt: skip
    assert set(results) == {name for path in paths for name in wildcards.get(path, [path])}
    assert results["forward.x"].values[1].tolist() == [[1.0] * 3] * 5
    assert torch.equal(results["fc1.forward.input"].values[1], results["forward.x"].values[1])
    assert results["forward.parts.b.1.deep"].values[1][0, 0].item() == 3
    assert torch.equal(results["forward.self.fc1.weight"].values[0], model.fc1.weight)
    assert results["forward.self.seen"].values[-1].item() == 2
    assert results["forward.text"].values == ["7None", "7None"]
    assert results["forward.nothing"].values == [None, None]
    assert (results["forward.self.scale"].values[0], results["scaled.by"].values[0]) == (1.5, 1.5)
    assert torch.equal(results["scaled"].values[1], results["forward"].values[1])


def test_checklist_trace_interval_and_gather_interval_of_each_variable() -> None:
    model, windows = Net(), []

    def gathered(name: str, result: Any) -> None:
        windows.append((name, list(result.iterations)))

    seldom = Variable("forward.x", trace_interval=2, post_gather_callbacks=[gathered])
    often = Variable("fc1", gather_interval=4, post_gather_callbacks=[gathered])
    passes(ModelTracer(model, [seldom, often]), model, 6)
    assert windows == [
        ("forward.x", [2]), ("forward.x", [4]), ("fc1", [1, 2, 3, 4]), ("forward.x", [6]),
        ("fc1", [5, 6]),
    ]  # fmt: skip
    assert [value[0, 0].item() for value in seldom.results["forward.x"].values] == [1, 3, 5]


def test_checklist_train_and_eval_mode() -> None:
    model = Net()
    train = Variable(["forward.x"], trace_interval=2)
    evaluate = Variable("fc1", mode="eval", gather_interval=2)
    tracer = ModelTracer(model, [train, evaluate])
    with tracer:
        for step in range(9):
            model.train(step % 3 != 2)
            model(torch.full((2, 3), float(step)))
    assert (tracer.current_training_iteration, tracer.current_evaluation_iteration) == (6, 3)
    assert train.results["forward.x"].iterations == [2, 4, 6]
    assert [v[0, 0].item() for v in train.results["forward.x"].values] == [1, 4, 7]
    assert evaluate.results["fc1"].iterations == [1, 2, 3]
    assert evaluate.results["fc1"].ranks == [0, 0, 0]
    assert set(tracer.results) == {"forward.x", "fc1"}


def test_checklist_four_callback_stages() -> None:
    told: list[Any] = []

    def pre_save(name: str, value: Tensor, iteration: int) -> Tensor:
        told.append(("save", name, iteration))
        return value.mean()

    def pre_gather(name: str, result: Any) -> None:
        told.append(("gather", type(result).__name__, list(result.iterations)))

    def post_gather(name: str, result: Any) -> None:
        told.append(("gathered", result.ranks, len(result.values)))
        result.values = [value + 100 for value in result.values]

    def post_trace(name: str, result: Any) -> None:
        told.append(("end", len(result.values)))

    model = Net()
    how = Variable(["forward.x"], 1, 2, [pre_save], [pre_gather], [post_gather], [post_trace])
    passes(ModelTracer(model, how), model, 3)
    assert told == [
        ("save", "forward.x", 1), ("save", "forward.x", 2),
        ("gather", "LocalVariableResult", [1, 2]), ("gathered", [0, 0], 2),
        ("save", "forward.x", 3), ("gather", "LocalVariableResult", [3]),
        ("gathered", [0], 1), ("end", 3),
    ]  # fmt: skip
    assert [value.item() for value in how.results["forward.x"].values] == [100, 101, 102]
    assert not how.local_results  # gathered, all of them


def test_checklist_change_detection_with_iteration_numbers() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            y.mul_(10)
            same = y
            y = self.fc(same)
            return y

    model = Changing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tracer = ModelTracer(model, ["forward.y", "forward.self.fc.weight"])
    with tracer:
        for step in range(2):
            optimizer.zero_grad()
            model(torch.full((1, 1), float(step))).sum().backward()
            optimizer.step()
    y, weight = tracer.results["forward.y"], tracer.results["forward.self.fc.weight"]
    assert y.iterations == [1, 1, 1, 2, 2, 2]  # bound, written in place, bound again
    assert [value.item() for n, value in enumerate(y.values) if n % 3 != 2] == [1, 10, 2, 20]
    assert weight.iterations == [1, 2]  # once in each pass, in which nothing changes it
    assert weight.values[0].item() - weight.values[1].item() == pytest.approx(5)


def test_checklist_gather_to_rank_0_with_ranks(tmp_path: Path) -> None:
    script = f"""
{PLACEHOLDERS}
{IMPORTS}
tracer = ModelTracer(ddp_model, ["forward.x"], gathering_interval=3)
{LOOP}
found = tracer.results.get("forward.x")
answer = None if found is None else [
    found.iterations, found.ranks, [value[0, 0].item() for value in found.values]]
"""
    first, second = answers(script, 2, tmp_path)
    assert second is None
    iterations, ranks, values = first
    assert (iterations[:6], ranks[:6]) == ([1, 2, 3, 1, 2, 3], [0, 0, 0, 1, 1, 1])
    assert values[:6] == [0, 8, 16, 1, 9, 17]
    assert (len(values), iterations[-2:], ranks[-2:]) == (32, [16, 16], [0, 1])


def test_checklist_stack_and_padded_stack() -> None:
    model = Net()
    ragged = Variable("forward.x", 1, 2, post_trace_callbacks=[stack_padded_tensors])
    even = Variable("forward.count", 1, 2, [], [stack_tensors], [stack_tensors], [stack_tensors])
    with ModelTracer(model, [ragged, even]):
        for rows in (1, 3, 2):
            model(torch.ones(rows, 3))
    found = ragged.results["forward.x"]
    assert isinstance(found.values, Tensor)
    assert found.values.shape == (3, 3, 3)
    assert found.values.sum(dim=(1, 2)).tolist() == [3, 9, 6]
    assert found.iterations == [1, 2, 3]
    assert even.results["forward.count"].values.tolist() == [7, 7, 7]
    assert even.results["forward.count"].iterations == [1, 2, 3]
    empty = tensortrace.GlobalVariableResult()
    stack_padded_tensors("none", empty)
    assert empty.values.tolist() == []


@pytest.fixture
def lone_rank() -> Iterator[None]:
    """A process group of one.

    It outlives what the test makes with it: freed as part of a DistributedDataParallel, it makes
    torch wait for its threads with the GIL held, which these may need (pytorch/pytorch#56297).
    """
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    group = distributed.group.WORLD
    yield
    distributed.destroy_process_group()
    del group


@pytest.mark.usefixtures("lone_rank")
def test_checklist_ddp_and_dp_unwrapping() -> None:
    model = Net()
    with ModelTracer(nn.DataParallel(model), ["fc1"]) as tracer:
        nn.DataParallel(model)(torch.ones(2, 3))
    assert tracer.model is model
    assert tracer.results["fc1"].iterations == [1]
    wrapped = nn.parallel.DistributedDataParallel(model)
    with ModelTracer(wrapped, ["fc1", "forward.self.seen"]) as tracer:
        wrapped(torch.ones(2, 3)).sum().backward()
    assert (tracer.model, tracer.rank) == (model, 0)
    assert set(tracer.results) == {"fc1", "forward.self.seen"}


def test_checklist_one_shot_trace_model() -> None:
    model = Net()
    output, tracer = trace_model(model, Variable(["forward"]), torch.ones(2, 3))
    assert torch.equal(tracer.results["forward"].values[0], output)
    again = ModelTracer(model, ["fc1"])
    assert torch.equal(again(torch.ones(2, 3)), output)
    assert again.results["fc1"].iterations == [1]


def test_checklist_traced_model_wrapper() -> None:
    model = Net()
    every = Variable(["fc1"], post_trace_callbacks=[stack_tensors])
    wrapped = TracedModel(model, [every, Variable(["forward"], trace_interval=2)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClewWarning)  # in the first pass `forward` is not due
        for _ in range(4):
            wrapped(torch.ones(2, 3))
    assert wrapped.tracer.results["fc1"].values.shape == (4, 2, 4)
    assert wrapped.tracer.results["fc1"].iterations == [1, 2, 3, 4]
    assert wrapped.tracer.results["forward"].iterations == [2, 4]
    assert all(key.startswith("model.") for key in wrapped.state_dict())


def test_checklist_hdf5_streaming_dtype_compression_shuffle_overwrite_and_iterations(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.h5"
    path.write_text("of another run")
    saver = H5PYSaverCallback(
        path, iteration_dtype=np.uint16, float_dtype=np.float32, int_dtype=np.int16,
        compression="gzip", compression_opts=4, shuffle=True,
    )  # fmt: skip
    model = Net().double()
    variable = Variable(["forward.x", "forward.count"], 1, 2, [], [], [saver])
    with ModelTracer(model, variable):
        for step in range(4):
            model(torch.full((8, 3), float(step), dtype=torch.float64))
            if step == 1:  # half of the run is in the file, and not in memory
                assert saver.datasets["forward.x"].shape == (2, 8, 3)
                assert variable.results["forward.x"].values == []
    content, iterations = saver.datasets["forward.x"]
    assert (content.dtype, content.compression, content.shuffle) == (np.float32, "gzip", True)
    assert content[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert (iterations.dtype, iterations[:].tolist()) == (np.uint16, [1, 2, 3, 4])
    assert saver.datasets["forward.count"][0].dtype == np.int16
    saver.close()
    with pytest.raises(ValueError, match="exists: give another dataset_file"):
        H5PYSaverCallback(path, existing_ok=False)
    with h5py.File(path) as file:
        assert file["forward.x_ranks"][:].tolist() == [0, 0, 0, 0]


def test_checklist_old_padded_ragged_writing_and_saving_interval(tmp_path: Path) -> None:
    model = Net()
    tracer = ModelTracerH5PY(model, ["forward.x"], tmp_path / "old.h5", saving_interval=2)
    saved = []
    with tracer:
        for rows in (1, 3, 2):
            model(torch.ones(rows, 3))
            saved.append(len(tracer.datasets["forward.x"][0]) if tracer.datasets else 0)
    assert saved == [0, 2, 2]
    assert tracer.datasets["forward.x"].shape == (3, 3, 3)
    content, iterations = tracer.datasets["forward.x"]
    assert content[:].sum(axis=(1, 2)).tolist() == [3, 9, 6]
    assert iterations[:].tolist() == [1, 2, 3]
    tracer.saver.close()
    wrapped = H5PYTracedModel(model, ["forward.x"], tmp_path / "wrapped.h5")
    for _ in range(2):
        wrapped(torch.ones(1, 3))
    assert wrapped.tracer.datasets["forward.x"][1][:].tolist() == [1, 2]
    wrapped.tracer.saver.close()


# The rest of its names


def test_values_of_the_programs_own_are_saved_when_they_change() -> None:
    seen: list[Any] = []

    def pre_save(name: str, value: Any, iteration: int) -> Any:
        seen.append((name, iteration))
        return value

    own = Variable("fc1", pre_save_callbacks=[pre_save])
    loss = torch.ones(2, requires_grad=True) * 2
    own.save_variable_result("loss", loss, 1)
    own.save_variable_result("loss", loss, 1)  # as it was
    loss.data.mul_(3)
    own.save_variable_result("loss", loss, 1)
    own.save_variable_result("loss", loss, 2)  # as it was, and in another iteration
    own.save_variable_result("rate", 0.5, 2)
    own.save_variable_result("both", (loss, [1]), 2)
    assert seen[:4] == [("loss", 1)] * 3 + [("loss", 2)]
    assert own.local_results["loss"].iterations == [1, 1, 2]
    assert [value.tolist() for value in own.local_results["loss"].values] == [
        [2, 2],
        [6, 6],
        [6, 6],
    ]
    assert not own.local_results["loss"].values[0].requires_grad
    loss.data.zero_()
    own.gather_results(0, 1)
    assert not own.local_results
    found = own.results["loss"]
    assert (found.iterations, found.ranks, found.values[1].tolist()) == ([1, 1, 2], [0] * 3, [6, 6])
    assert own.results["both"].values[0][0].tolist() == [6, 6]
    # After a gather all is new; and callbacks see what was gathered.
    own.post_gather_callbacks = [stack_tensors]
    own.save_variable_result("rate", 0.5, 2)
    own.save_variable_result("rate", 0.25, 2)
    own.gather_results(rank=0, world_size=1)
    assert [float(value) for value in own.results["rate"].values] == [0.5, 0.5, 0.25]


def test_a_tracer_gathers_the_programs_own_values_with_its_own() -> None:
    model, windows = Net(), []

    def gathered(name: str, result: Any) -> None:
        windows.append((name, list(result.iterations)))

    variable = Variable("fc1", 1, 2, post_gather_callbacks=[gathered],
                        post_trace_callbacks=[stack_tensors])  # fmt: skip
    with ModelTracer(model, variable) as tracer:
        for step in range(3):
            model(torch.ones(1, 3))
            variable.save_variable_result("loss", step, tracer.current_iteration)
    assert windows == [("fc1", [1, 2]), ("loss", [1]), ("loss", [2, 3]), ("fc1", [3])]
    assert variable.results["loss"].values.tolist() == [0, 1, 2]
    assert tracer.current_iteration == 3


def test_the_programs_own_values_of_two_processes(tmp_path: Path) -> None:
    script = """
from clew.compat.tensortrace import Variable, stack_padded_tensors
variable = Variable("x", pre_gather_callbacks=[stack_padded_tensors])
for step in (1, 2):
    variable.save_variable_result("loss", torch.full((1 + rank,), 10.0 * rank + step), step)
if rank:
    variable.save_variable_result("only", 7, 1)
variable.gather_results(rank, size)
answer = {name: [r.iterations, r.ranks, [torch.as_tensor(v).tolist() for v in r.values]]
          for name, r in variable.results.items()}
"""
    first, second = answers(script, 2, tmp_path)
    assert second == {}
    assert first == {
        "loss": [[1, 2, 1, 2], [0, 0, 1, 1], [[1], [2], [11, 11], [12, 12]]],
        "only": [[1], [1], [7]],
    }


def test_a_variable_has_its_paths_in_parts_and_a_tracer_counts_its_passes() -> None:
    assert Variable(["layers.*", "forward.x"]).target_paths == [["layers", "*"], ["forward", "x"]]
    model = Net()
    tracer = ModelTracer(model, ["forward"], eval_only=True)
    with tracer:
        for step in range(3):
            model.train(step == 1)
            model(torch.ones(1, 3))
    assert tracer.current_iteration == 2


def test_every_module_of_the_package_has_its_names() -> None:
    names = {
        "variable": "GlobalVariableResult LocalVariableResult Variable",
        "tracer": "ModelTracer TracedModel stack_padded_tensors stack_tensors trace_model",
        "h5py_tracer": "H5PYSaverCallback H5PYTracedModel ModelTracerH5PY",
        "utils": "extract_nested_values get_object_items get_object_value",
    }
    for module, given in names.items():
        found = importlib.import_module(f"clew.compat.tensortrace.{module}")
        for name in given.split():
            assert getattr(found, name) is getattr(tensortrace, name)


def test_helpers_for_paths() -> None:
    point = namedtuple("point", "x y")
    data = {"a": [1, {"b": 2}], "p": point(3, 4), "n": None, 5: "five", "t": torch.ones(2)}
    found = tensortrace.extract_nested_values(data, [["a", "*"], ["a", "1", "b"], ["p", "y"],
                                                     ["n"], ["5"], ["t", "*"], ["x"]])  # fmt: skip
    assert found == {"a.0": 1, "a.1": {"b": 2}, "a.1.b": 2, "p.y": 4, "n": None, "5": "five"}
    linear = nn.Linear(2, 2)
    assert tensortrace.get_object_value(linear, "weight") is linear.weight
    assert "bias" in dict(tensortrace.get_object_items(linear))
    generator = iter([1, 2])
    assert list(tensortrace.get_object_items(generator)) == []
    assert list(generator) == [1, 2]
    assert tensortrace.exact_path_matching(["a", "*"], ["a", "b"])
    assert not tensortrace.exact_path_matching(["a", "*"], ["a"])
    assert tensortrace.partial_path_matching(["a", "*"], ["a"])
    assert not tensortrace.partial_path_matching(["a"], ["a", "b"])


def test_wrong_arguments_say_what_to_give() -> None:
    with pytest.raises(ClewError, match=r"Variable\(\[\]\): give paths"):
        Variable([])
    with pytest.raises(ClewError, match="give paths or Variables"):
        ModelTracer(Net(), [])
    with pytest.raises(ClewError, match="nothing is left to trace"):
        ModelTracer(Net(), ["forward"], eval_only=True, train_only=True)
    tracer = ModelTracer(Net(), ["forward"])
    with tracer, pytest.raises(ClewError, match="traced already"), tracer:
        pass


def test_eval_only_and_train_only() -> None:
    for settings, wanted in (
        ({"eval_only": True}, [1, 2]),
        ({"train_only": True}, [1, 2, 3]),
        ({}, [1, 2, 3, 4, 5]),
    ):
        model = Net()
        tracer = ModelTracer(model, ["forward"], **settings)  # type: ignore[arg-type]
        with tracer:
            for step in range(5):
                model.train(step % 2 == 0)
                model(torch.ones(1, 3))
        assert tracer.results["forward"].iterations == wanted
