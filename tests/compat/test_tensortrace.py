"""TensorTracer by another import: its README, its newest interface, its promises."""

from __future__ import annotations

import textwrap
from collections import namedtuple
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from torch import Tensor, nn

from clew.compat import tensortrace
from clew.compat.tensortrace import (
    ModelTracer,
    TracedModel,
    Variable,
    stack_padded_tensors,
    stack_tensors,
    trace_model,
)
from clew.errors import ClewError
from tests.processes import answers

# The README's three blocks; `loop` is the training loop they share.
IMPORTS = """
from clew.compat.tensortrace import ModelTracer, H5PYSaverCallback, stack_padded_tensors
"""
LOOP = """
with tracer:
    for epoch in range(EPOCHS):
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
STACKED = (
    """
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
"""
    + LOOP
)
SAVED = (
    """
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
"""
    + LOOP
)
MEAN = (
    """
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
"""
    + LOOP
)
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

device_id, EPOCHS = "cpu", 4
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
        return y


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


def test_readme_stacked_in_one_process() -> None:
    results = alone(STACKED)["tracer"].results
    assert set(results) == {"forward", "forward.x"}
    assert results["forward.x"].values[0].shape == (4, 1, 4, 4, 3)  # N//G, W, G, B, C
    assert results["forward"].values[0].shape == (4, 1, 4, 4, 2)
    assert results["forward.x"].values[0][1, 0, :, 0, 0].tolist() == [0, 4, 8, 12]
    assert results["forward.x"].iterations[0][:, 0].tolist() == [
        [4 * n + g + 1 for g in range(4)] for n in range(4)
    ]
    assert results["forward.x"].ranks[0].tolist() == [[0]] * 4


def test_readme_saved_to_hdf5_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = alone(SAVED)
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
    results = alone(MEAN)["tracer"].results
    assert results["forward.x"].values[0].shape == (4, 3)  # N//G, C
    assert results["forward"].values[0].shape == (4, 2)
    assert results["forward.x"].values[0][:, 0].tolist() == [7.5] * 4


def test_readme_in_two_processes(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
{PLACEHOLDERS}
{IMPORTS}
answer = {{}}
{STACKED}
if rank == 0:
    x = tracer.results['forward.x']
    answer["stacked"] = x.values[0].shape
    answer["values"] = x.values[0][0, :, :, 0, 0].tolist()
    answer["iterations"] = x.iterations[0][1].tolist()
    answer["ranks"] = x.ranks[0][1].tolist()
else:
    answer["elsewhere"] = list(tracer.results)
{SAVED}
if rank == 0:
    answer["saved"] = saver_callback.datasets['forward.x'].shape
    answer["saved ranks"] = saver_callback.datasets['forward.x'].ranks[0].tolist()
{MEAN}
if rank == 0:
    answer["mean"] = tracer.results['forward.x'].values[0].shape
tracer = ModelTracer(ddp_model, ["forward.x"], gathering_interval=3)
{LOOP}
if rank == 0:
    plain = tracer.results["forward.x"]
    answer["plain"] = [plain.iterations[:6], plain.ranks[:6], len(plain.values)]
"""
    )
    first, second = answers(script, 2, tmp_path)
    assert second == {"elsewhere": []}
    assert first == {
        "stacked": [4, 2, 4, 4, 3],  # N//G, W, G, B, C
        "values": [[0, 8, 16, 24], [1, 9, 17, 25]],
        "iterations": [[5, 6, 7, 8]] * 2,
        "ranks": [0, 1],
        "saved": [8, 4, 4, 3],  # N//G, G*W, B, C
        "saved ranks": [0, 0, 1, 1],
        "mean": [4, 3],  # N//G, C
        "plain": [[1, 2, 3, 1, 2, 3], [0, 0, 0, 1, 1, 1], 32],
    }


# The newest interface


def test_variables_with_settings_of_their_own() -> None:
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


def test_the_four_stages_of_callbacks_in_order() -> None:
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
    assert how.local_results["forward.x"].iterations == [3]


def test_stacking_a_result() -> None:
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


def test_one_pass_and_a_traced_model() -> None:
    model = Net()
    output, tracer = trace_model(model, Variable(["forward"]), torch.ones(2, 3))
    assert torch.equal(tracer.results["forward"].values[0], output)
    wrapped = TracedModel(model, Variable(["fc1"], post_trace_callbacks=[stack_tensors]))
    for _ in range(3):
        wrapped(torch.ones(2, 3))
    assert wrapped.tracer.results["fc1"].values.shape == (3, 2, 4)
    assert wrapped.tracer.results["fc1"].iterations == [1, 2, 3]
    assert all(key.startswith("model.") for key in wrapped.state_dict())
    again = ModelTracer(model, ["fc1"])
    assert torch.equal(again(torch.ones(2, 3)), output)
    assert again.results["fc1"].iterations == [1]


def test_paths_of_every_kind() -> None:
    paths = [
        "fc1", "fc1.forward", "fc1.forward.input", "forward", "forward.count", "forward.text",
        "forward.parts.a", "forward.parts.b.0", "forward.parts.b.*.deep", "forward.self.fc1.weight",
        "forward.self.seen", "layers.*", "forward.nothing",
    ]  # fmt: skip
    model = Net()
    results = traced(paths, 2, model)
    assert set(results) == {
        "fc1", "fc1.forward", "fc1.forward.input", "forward", "forward.count", "forward.text",
        "forward.parts.a", "forward.parts.b.0", "forward.parts.b.1.deep",
        "forward.self.fc1.weight", "forward.self.seen", "layers.0", "layers.1", "forward.nothing",
    }  # fmt: skip
    assert results["forward.parts.b.1.deep"].values[1][0, 0].item() == 3
    assert torch.equal(results["forward.self.fc1.weight"].values[0], model.fc1.weight)
    assert results["forward.text"].values == ["7None", "7None"]
    assert results["forward.nothing"].values == [None, None]


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
    with tracer, pytest.raises(ClewError, match="tracing already"), tracer:
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
