"""What was wrong in TensorTracer is right here: one test for each defect of SEEDS 2.2."""

from __future__ import annotations

import enum
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clew.compat.tensortrace import (
    H5PYSaverCallback,
    ModelTracer,
    Variable,
    stack_padded_tensors,
    stack_tensors,
)
from clew.errors import ClewWarning
from tests.compat.test_tensortrace import Net, passes, traced
from tests.processes import HANG_GUARD, answers


class Given(nn.Module):
    """Returns what it was given, through a local."""

    def forward(self, x: Any) -> Any:
        y = x
        return y


def saved(tmp_path: Path, values: list[Any], gather: int = 2, **settings: Any) -> Any:
    """An HDF5 file with values of `y`, as it is when read back."""
    saver = H5PYSaverCallback(tmp_path / "run.h5", **settings)
    model = Given()
    tracer = ModelTracer(
        model, ["forward.y"], post_gather_callbacks=[saver], gathering_interval=gather
    )
    with tracer:
        for value in values:
            model(value)
    saver.close()
    with h5py.File(tmp_path / "run.h5") as file:
        return {name: dataset[()] for name, dataset in file.items()}


def test_2_saving_to_hdf5_works_in_one_process(tmp_path: Path) -> None:
    model = Net()
    for name in ("lists", "result"):
        saver = H5PYSaverCallback(tmp_path / f"{name}.h5")
        settings = {"post_gather_callbacks": [saver]}
        variable = "forward.x" if name == "lists" else Variable("forward.x", **settings)
        passes(ModelTracer(model, variable, **settings), model, 3)
        saver.close()
        saver = H5PYSaverCallback(tmp_path / "gone.h5")
        saver.close()  # nothing was written
        with h5py.File(tmp_path / f"{name}.h5") as file:
            assert file["forward.x"][:, 0, 0].tolist() == [0, 1, 2]
            assert file["forward.x_iterations"][:].tolist() == [1, 2, 3]
    assert not (tmp_path / "gone.h5").exists()


@pytest.mark.parametrize(
    "values",
    [
        [torch.tensor([2**40, -(2**62)]), torch.tensor([1, 2])],
        [torch.tensor([1e300], dtype=torch.float64)] * 3,
        [torch.tensor([1 + 2j])],
        [torch.tensor([True, False])],
        [torch.tensor([0.5, 1.0], dtype=torch.bfloat16)],
        [torch.tensor([0.5, 1.0], dtype=torch.float16)],
    ],
    ids=["int64", "float64", "complex", "bool", "bfloat16", "float16"],
)
def test_3_hdf5_holds_exactly_what_was_traced(tmp_path: Path, values: list[Tensor]) -> None:
    found = saved(tmp_path, values, compression="gzip", compression_opts=4, shuffle=True)
    wanted = np.stack([v.float().numpy() if v.dtype == torch.bfloat16 else v.numpy()
                       for v in values])  # fmt: skip
    assert found["forward.y"].dtype == wanted.dtype
    assert np.array_equal(found["forward.y"], wanted)
    assert found["forward.y_iterations"].tolist() == list(range(1, len(values) + 1))
    assert found["forward.y_ranks"].tolist() == [0] * len(values)


@pytest.mark.parametrize("gather", [1, 4])
def test_3_ragged_shapes_are_padded_and_never_broadcast(tmp_path: Path, gather: int) -> None:
    values = [torch.ones(3, 2), torch.ones(1, 2), torch.ones(4, 2), torch.ones(2)]
    found = saved(tmp_path, values, gather)["forward.y"]
    assert found.shape == (4, 4, 2)
    assert found.sum(axis=(1, 2)).tolist() == [6, 2, 8, 2]


def test_3_text_numbers_none_and_containers_are_stored(tmp_path: Path) -> None:
    found = saved(tmp_path, [2**40, 1.5, "text", None, (torch.ones(2), {"k": 3})])
    assert found["forward.y"].tolist() == [2**40, 1.5]
    assert found["forward.y.text"].tolist() == [b"text", b"None"]
    assert found["forward.y.text_iterations"].tolist() == [3, 4]
    assert found["forward.y.0"].tolist() == [[1, 1]]
    assert found["forward.y.1.k"].tolist() == [3]


class Loss(nn.Module):
    """Begins with `loss = None`, as models of Hugging Face do."""

    def forward(self, x: Tensor, has_labels: bool = True) -> Tensor | None:
        loss = None
        if has_labels:
            loss = x.mean()
        return loss


def test_3_none_is_left_out_where_values_are_stacked() -> None:
    model, padded = Loss(), [stack_padded_tensors]
    tracer = ModelTracer(
        model, ["forward.loss"], 1, 2, pre_gather_callbacks=padded, post_gather_callbacks=padded,
        post_trace_callbacks=padded,
    )  # fmt: skip
    variable = Variable("forward.loss", post_trace_callbacks=[stack_tensors])
    for one in (tracer, ModelTracer(model, variable)):
        with one:
            for step in range(6):
                model(torch.full((2,), float(step)), step not in (2, 3))
    lists = tracer.results["forward.loss"]
    assert lists.values[0].tolist() == [[[0, 1]], [[4, 5]]]  # nothing of the second gather
    assert lists.iterations[0].tolist() == [[[1, 2]], [[5, 6]]]
    assert lists.ranks[0].tolist() == [[0], [0]]
    result = variable.results["forward.loss"]
    assert (result.values.tolist(), result.iterations) == ([0, 1, 4, 5], [1, 2, 5, 6])
    assert result.ranks == [0] * 4


def test_3_numbers_have_the_name_that_was_asked_for(tmp_path: Path) -> None:
    model, saver = Loss(), H5PYSaverCallback(tmp_path / "run.h5")
    with ModelTracer(model, Variable("forward.loss", post_gather_callbacks=[saver])):
        for step in range(3):
            model(torch.full((2,), float(step)), step != 1)
    content, iterations = saver.datasets["forward.loss"]
    assert (content[:].tolist(), iterations[:].tolist()) == ([0, 2], [1, 3])
    assert saver.datasets["forward.loss"].ranks[:].tolist() == [0, 0]
    content, iterations = saver.datasets["forward.loss.text"]
    assert (content[:].tolist(), iterations[:].tolist()) == ([b"None"] * 3, [1, 2, 3])
    saver.close()


def test_a_saver_goes_on_with_its_file_after_it_was_closed(tmp_path: Path) -> None:
    model, saver = Given(), H5PYSaverCallback(tmp_path / "run.h5")
    first = Variable(["forward.x", "forward.y"], post_gather_callbacks=[saver])
    second = Variable("forward.y", post_gather_callbacks=[saver])
    for variable in (first, second):
        with ModelTracer(model, variable):
            model(torch.ones(2))
        content = {name: saved[0][:].tolist() for name, saved in saver.datasets.items()}
        saver.close()
    assert content == {"forward.x": [[1, 1]], "forward.y": [[1, 1]] * 2}


def test_a_saver_has_its_settings_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.h5"
    saver = H5PYSaverCallback(path, np.int32, np.float32, np.int16, "gzip", 4, True, False)
    assert (saver.dataset_file, saver.iteration_dtype) == (path, np.int32)
    assert (saver.float_dtype, saver.int_dtype) == (np.float32, np.int16)
    assert (saver.compression, saver.compression_opts, saver.shuffle) == ("gzip", 4, True)
    assert not saver.existing_ok
    saver.h5_file.attrs["rate"] = 0.5
    passes(ModelTracer(model := Net(), "fc1", post_gather_callbacks=[saver]), model, 1)
    assert saver.h5_file["fc1"].compression == "gzip"
    saver.close()
    with h5py.File(path) as file:
        assert (file.attrs["rate"], list(file)) == (0.5, ["fc1", "fc1_iterations", "fc1_ranks"])


def test_3_a_dtype_that_cannot_hold_the_values_is_refused(tmp_path: Path) -> None:
    with pytest.warns(ClewWarning, match=r"'forward.y' has values that int32 cannot hold"):
        saver = H5PYSaverCallback(tmp_path / "run.h5", int_dtype=np.int32)
        model = Given()
        tracer = ModelTracer(model, ["forward.y"], post_gather_callbacks=[saver])
        with tracer:
            model(torch.tensor([2**40]))
    assert tracer.results["forward.y"].values[0].item() == 2**40  # not written, and not lost
    narrow = saved(tmp_path, [torch.tensor([1.5], dtype=torch.float64)], float_dtype=np.float32)
    assert narrow["forward.y"].dtype == np.float32


def test_4_ranks_in_one_process_are_zero() -> None:
    found = traced(["forward.x"], 4)["forward.x"]
    assert (found.iterations, found.ranks) == ([1, 2, 3, 4], [0, 0, 0, 0])


def test_5_mode_and_interval_are_those_of_each_variable() -> None:
    model = Net()
    often, seldom = Variable("forward.x"), Variable("forward.x", trace_interval=10)
    never = Variable("forward.x", mode="eval")
    with pytest.warns(ClewWarning, match="none of the steps in which it ran was due"):
        passes(ModelTracer(model, [often, seldom, never]), model, 4)
    assert often.results["forward.x"].iterations == [1, 2, 3, 4]
    assert not seldom.results
    assert not never.results


def test_6_nothing_is_lost_at_the_end() -> None:
    found = traced(["forward.x"], 6, gathering_interval=4)["forward.x"]
    assert found.iterations == [1, 2, 3, 4, 5, 6]
    found = traced(["forward.x"], 8, trace_interval=3, gathering_interval=4)["forward.x"]
    assert found.iterations == [3, 6]
    found = traced(["forward.x"], 6, gathering_interval=4,
                   post_gather_callbacks=[stack_padded_tensors],
                   post_trace_callbacks=[stack_padded_tensors])["forward.x"]  # fmt: skip
    assert found.values[0].shape == (2, 4, 5, 3)
    assert found.iterations[0].tolist() == [[1, 2, 3, 4], [5, 6, 0, 0]]
    assert found.ranks[0].tolist() == [[0, 0, 0, 0], [0, 0, -1, -1]]


def test_6_what_was_traced_before_an_exception_is_there() -> None:
    model = Net()
    tracer = ModelTracer(model, ["forward.x"], gathering_interval=4)

    def run() -> None:
        with tracer:
            model(torch.ones(1, 3))
            model(torch.ones(1, 4))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run()
    assert tracer.results["forward.x"].iterations == [1, 2]


def test_7_a_path_that_begins_another_is_traced_too() -> None:
    paths = ["fc1", "fc1.forward", "forward.parts.b", "forward.parts.b.*", "forward.self.fc1.bias",
             "forward.self.fc1.bias.grad"]  # fmt: skip
    model = Net()
    model(torch.ones(1, 3)).sum().backward()
    assert set(traced(paths, 1, model)) == {
        "fc1", "fc1.forward", "forward.parts.b", "forward.parts.b.0", "forward.parts.b.1",
        "forward.self.fc1.bias", "forward.self.fc1.bias.grad",
    }  # fmt: skip


def test_7_a_value_that_two_paths_name_is_traced_once() -> None:
    found = traced(["layers.*", "layers.0", "*.*", "forward.y", "forward.*"], 2)
    assert found["layers.0"].iterations == found["layers.1"].iterations == [1, 2]
    assert found["forward.y"].iterations == [1] * 4 + [2] * 4


def test_8_containers_of_graph_tensors_are_traced_in_training() -> None:
    attention = nn.MultiheadAttention(4, 2)
    query = torch.ones(3, 1, 4)
    tracer = ModelTracer(attention, ["forward"])
    with tracer:
        output, weights = attention(query, query, query)
        output.sum().backward()
    value = tracer.results["forward"].values[0]
    assert torch.equal(value[0], output)
    assert torch.equal(value[1], weights)
    assert not value[0].requires_grad


def test_9_wildcards_change_nothing_and_find_only_values() -> None:
    class Sums(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            g = (x + n for n in range(3))
            text = "abc"
            return torch.stack(list(g)).sum() + len(text)

    model = Sums()
    tracer = ModelTracer(model, ["forward.*.*", "forward.*"])
    with tracer:
        assert model(torch.zeros(1)).item() == 6
    assert not [name for name in tracer.results if name.startswith(("forward.text.", "forward.x."))]
    assert tracer.results["forward.text"].values == ["abc"]
    assert "forward.self" not in tracer.results
    assert set(traced(["layers.*", "forward.x"])) == {"layers.0", "layers.1", "forward.x"}
    assert set(traced(["forward.parts.b.0"])) == {"forward.parts.b.0"}


def test_10_the_last_line_mutation_and_equal_values_are_seen() -> None:
    class Last(nn.Module):
        def forward(self, x: Tensor) -> None:
            items = []
            items.append(1)
            n = 5
            y = x * 2
            y = y * 3 * n  # the last line

    found = traced(["forward.y", "forward.items.*", "forward.n"], 2, Last())
    assert [value[0, 0].item() for value in found["forward.y"].values] == [0, 0, 2, 30]
    assert found["forward.items.0"].values == [1, 1]
    assert found["forward.n"].iterations == [1, 2]


def test_11_every_output_of_a_loop_is_recorded() -> None:
    assert traced(["fc1"], 200)["fc1"].iterations == list(range(1, 201))


def halved(value: Tensor) -> Tensor:
    half = value / 2
    return half


def test_12_any_function_and_any_name_for_self_and_modules_added_later() -> None:
    class Odd(nn.Module):
        def forward(s, x: Tensor) -> Tensor:
            y = s.late(x) if hasattr(s, "late") else x
            return halved(y)

    model = Odd()
    function = f"{Path(__file__).name}:halved.half"
    tracer = ModelTracer(model, ["forward.y", "late", function])
    with tracer:
        model(torch.ones(1, 3))
        model.late = nn.Linear(3, 3)
        model(torch.ones(1, 3))
        model.late(torch.ones(2, 3))  # outside of a pass
    assert tracer.results["forward.y"].iterations == [1, 2]
    assert [len(value) for value in tracer.results["late"].values] == [1, 2]
    assert tracer.results[function].values[0].tolist() == [[0.5] * 3]


def test_12_static_and_class_methods() -> None:
    class Static(nn.Module):
        @staticmethod
        def more(x: Tensor) -> Tensor:
            y = x + 1
            return y

        @classmethod
        def twice(cls, x: Tensor) -> Tensor:
            return x * 2

        def forward(self, x: Tensor) -> Tensor:
            return self.twice(self.more(x))

    paths = ["more", "more.x", "more.y", "twice"]
    found = traced(paths, 2, Static())
    assert [found[path].iterations for path in paths] == [[1, 2]] * 4
    assert [value[0, 0].item() for value in found["twice"].values] == [2, 4]


def test_13_a_forward_may_give_up_its_self() -> None:
    class Deletes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            del self
            return y

    class Unbinds(nn.Module):
        def forward(self: Any, x: Tensor) -> Tensor:
            module, self = self, None
            return x + 1 if module.training and self is None else x

    for model in (Deletes(), Unbinds()):
        found = traced(["forward.x", "forward"], 2, model)
        assert found["forward.x"].iterations == [1, 2]
        assert [value[0, 0].item() for value in found["forward"].values] == [1, 2]


def test_14_a_pass_that_raises_has_no_output() -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() == 0:
                raise ValueError("zero")
            return x

    model = Picky()
    tracer = ModelTracer(model, ["forward"])
    with tracer:
        model(torch.ones(1))
        with pytest.raises(ValueError, match="zero"):
            model(torch.zeros(1))
        model(torch.ones(1) * 2)
    assert [value.item() for value in tracer.results["forward"].values] == [1, 2]
    assert tracer.results["forward"].iterations == [1, 3]


def test_15_a_tracer_with_stacking_can_be_used_again() -> None:
    model = Net()
    tracer = ModelTracer(model, ["forward.x", "forward.count"],
                         post_trace_callbacks=[stack_padded_tensors])  # fmt: skip
    passes(tracer, model, 2)
    passes(tracer, model, 1)
    assert tracer.results["forward.x"].values[0].shape == (3, 5, 3)
    assert tracer.results["forward.count"].values[0].tolist() == [7, 7, 7]
    assert tracer.results["forward.x"].iterations[0].tolist() == [1, 2, 3]


def test_16_a_compiled_model_returns() -> None:
    torch._dynamo.reset()
    model = Given()
    compiled = torch.compile(model, backend="eager")
    tracer = ModelTracer(compiled, ["forward.y"])
    with tracer:
        for step in range(2):
            assert torch.equal(compiled(torch.full((2,), float(step))), torch.full((2,), step))
    assert [v[0].item() for v in tracer.results["forward.y"].values] == [0, 1]
    assert tracer.results["forward.y"].iterations == [1, 2]


@pytest.mark.parametrize("way", ["compiled", "in place", "forward"])
def test_16_iterations_of_compiled_passes_and_of_calls_of_forward(way: str) -> None:
    torch._dynamo.reset()
    model = Given()
    run: Any = model.forward
    if way == "compiled":
        run = torch.compile(model, backend="eager")
    elif way == "in place":
        model.compile(backend="eager")
        run = model
    often = Variable(["forward", "forward.y"], gather_interval=2)
    seldom = Variable("forward.y", 2)
    evaluate = Variable("forward.y", mode="eval")
    with ModelTracer(model, [often, seldom, evaluate]) as tracer:
        for step in range(5):
            model.train(step != 2)
            run(torch.full((1,), float(step)))
            if step == 1:
                assert often.results["forward"].iterations == [1, 2]
    for name in ("forward", "forward.y"):
        assert often.results[name].iterations == [1, 2, 3, 4]
        assert [value.item() for value in often.results[name].values] == [0, 1, 3, 4]
    assert seldom.results["forward.y"].iterations == [2, 4]
    assert evaluate.results["forward.y"].iterations == [1]
    assert (tracer.current_training_iteration, tracer.current_evaluation_iteration) == (4, 1)


def test_16_what_runs_compiled_and_unseen_is_told() -> None:
    torch._dynamo.reset()
    model = Net()
    compiled = torch.compile(model, backend="eager")
    with pytest.warns(ClewWarning, match="fc1: nothing that ran matches it"):
        tracer = ModelTracer(model, ["fc1"])
        passes(tracer, compiled, 2)
    assert (tracer.current_iteration, tracer.results) == (2, {})
    unseen = torch.compile(lambda x: model(x), backend="eager")
    unseen(torch.ones(5, 3))
    with pytest.warns(ClewWarning, match="never ran.*or only in code that was compiled before"):
        passes(ModelTracer(model, ["forward.x"]), unseen, 1)


def test_17_other_trace_functions_see_what_they_saw() -> None:
    seen: list[str] = []

    def other(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename == __file__:
            seen.append(frame.f_code.co_name)

    model = Given()
    before = sys.gettrace()
    with ModelTracer(model, ["forward.y"]):
        sys.settrace(other)
        try:
            model(1)
        finally:
            sys.settrace(before)
    assert "forward" in seen


def test_18_ranks_may_make_uneven_numbers_of_passes(tmp_path: Path) -> None:
    script = """
from clew.compat.tensortrace import ModelTracer
model = nn.Linear(3, 2)
tracer = ModelTracer(model, [""], gathering_interval=2)
with tracer:
    for step in range(3 + 2 * rank):
        model(torch.full((1, 3), float(step)))
found = tracer.results.get("")
answer = [found.iterations, found.ranks] if found else None
"""
    first, second = answers(script, 2, tmp_path)
    assert sorted(zip(*first, strict=True)) == sorted(
        [(n, 0) for n in (1, 2, 3)] + [(n, 1) for n in (1, 2, 3, 4, 5)]
    )
    assert second is None


def test_18_several_variables_do_not_wait_for_each_other(tmp_path: Path) -> None:
    script = """
from clew.compat.tensortrace import ModelTracer, Variable
model = nn.Linear(3, 2)
often, seldom = Variable("", 1, 2), Variable("", 1, 3)
with ModelTracer(model, [often, seldom]):
    for step in range(3 + 4 * rank):
        model(torch.full((1, 3), float(step)))
answer = [sorted(zip(v.results[""].ranks, v.results[""].iterations)) for v in (often, seldom)]
"""
    first, second = answers(script, 2, tmp_path)
    all_of_them = [[0, n] for n in (1, 2, 3)] + [[1, n] for n in range(1, 8)]
    assert first == [all_of_them, all_of_them]
    assert second == [[], []]


def test_18_a_rank_may_evaluate_alone(tmp_path: Path) -> None:
    script = """
from clew.compat.tensortrace import ModelTracer, Variable
model = nn.Linear(3, 2)
tracer = ModelTracer(model, [""])  # passes of both modes
with tracer:
    for epoch in range(3):
        model.train()(torch.full((1, 3), float(epoch)))
        if rank == 0:
            for _ in range(4):
                model.eval()(torch.full((1, 3), -1.0))
        dist.barrier()
found = tracer.results.get("")
answer = found.ranks if found else None
"""
    first, second = answers(script, 2, tmp_path)
    assert sorted(first) == [0] * 15 + [1] * 3
    assert second is None


def test_18_nothing_is_lost_when_another_rank_fails(tmp_path: Path) -> None:
    script = """
from clew.compat.tensortrace import ModelTracer
model = nn.Linear(3, 2)
tracer = ModelTracer(model, [""], gathering_interval=2)
told = []
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    try:
        with tracer:
            for step in range(7):
                model(torch.full((1, 3), float(step)))
                if rank and step == 2:
                    raise KeyError(step)
    except KeyError:
        pass
found = tracer.results.get("")
answer = [list(zip(found.iterations, found.ranks)), len(told)] if found else None
"""
    first, second = answers(script, 2, tmp_path)
    assert second is None
    pairs, warnings = first
    assert sorted(pairs) == sorted([[n, 0] for n in range(1, 8)] + [[1, 1], [2, 1], [3, 1]])
    assert warnings == 0


def test_a_wrapper_moves_no_pass_to_another_mode() -> None:
    model = nn.Linear(2, 2)
    wrapped = nn.DataParallel(model)
    train, evaluate = Variable("", gather_interval=2), Variable("", 2, mode="eval")
    with ModelTracer(wrapped, [train, evaluate]):
        for step in range(8):
            wrapped.train(step < 3 or step == 7)
            wrapped(torch.full((1, 2), float(step)))
    assert train.results[""].iterations == [1, 2, 3, 4]
    assert evaluate.results[""].iterations == [2, 4]


def test_19_nothing_stays_on_the_model() -> None:
    model = Net()
    code, before = Net.forward.__code__, dict(vars(model))
    tracer = ModelTracer(model, ["forward.x", "fc1"])
    with tracer:
        model(torch.ones(1, 3))
    assert vars(model).keys() == before.keys()
    assert Net.forward.__code__ is code


def test_20_settings_of_variables_are_their_own() -> None:
    one, two = Variable("a"), Variable("b")
    one.post_gather_callbacks.append(stack_padded_tensors)
    assert two.post_gather_callbacks == []
    assert one.results is not two.results


class Kind(enum.Enum):
    WARM = 1


class Noted:
    def __init__(self, note: str) -> None:
        self.note = note


def test_any_python_object_is_traced() -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            noted = Noted("first")
            kind, names, none, shape = Kind.WARM, {"a", "b"}, [], x.dtype
            noted = Noted(f"{kind} {names} {none} {shape}"[:9])
            lazy = (n for n in range(3))
            return noted, sum(lazy)

    paths = [f"forward.{name}" for name in ("noted", "kind", "names", "none", "shape")]
    model, told = Odd(), []
    tracer = ModelTracer(model, [*paths, "forward.l*"], gathering_interval=2,
                         pre_gather_callbacks=[lambda name, *lists: told.append(name)])  # fmt: skip
    with tracer:
        assert [model(torch.ones(2))[1] for _ in range(2)] == [3, 3]
    found = tracer.results
    assert [noted.note for noted in found["forward.noted"].values] == ["first", "Kind.WARM"] * 2
    assert found["forward.kind"].values == [Kind.WARM] * 2
    assert found["forward.names"].values == [{"a", "b"}] * 2
    assert found["forward.none"].values == [[], []]
    assert found["forward.shape"].values == [torch.float32] * 2
    assert sorted(told) == sorted(paths)


def test_objects_inside_containers_are_what_they_were() -> None:
    class Cached(nn.Module):
        def forward(self, x: Tensor) -> Any:
            noted = Noted("kept")
            noted.grown = x * 2  # type: ignore[attr-defined]
            return {"cache": [noted, (x * 3,)], "none": None}

    model = Cached()
    tracer = ModelTracer(model, ["forward"])
    with tracer:
        model(torch.ones(2, requires_grad=True))
    [value] = tracer.results["forward"].values
    assert list(value) == ["cache", "none"]
    noted, inner = value["cache"]
    assert (type(noted), noted.note, noted.grown.tolist()) == (Noted, "kept", [2, 2])
    assert type(inner) is tuple
    assert not inner[0].requires_grad
    assert value["none"] is None


def test_what_cannot_be_copied_is_told_and_not_traced() -> None:
    class Lazy(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x, (n for n in range(3))

    with pytest.warns(ClewWarning, match="'forward' is not traced: TypeError: tuple cannot be"):
        assert traced(["forward"], 1, Lazy()) == {}


def test_passes_that_overlap_have_the_values_of_their_own_iteration() -> None:
    first_began, second_over = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.item() == 1:
                first_began.set()
                second_over.wait(HANG_GUARD)
            y = x * 10
            return y

    model = Waits()
    tracer = ModelTracer(model, ["forward.y"], gathering_interval=10)
    with tracer:
        thread = threading.Thread(target=model, args=(torch.ones(1),))
        thread.start()
        first_began.wait(HANG_GUARD)
        model(torch.full((1,), 2.0))
        second_over.set()
        thread.join()
    found = tracer.results["forward.y"]
    assert sorted((n, v.item()) for n, v in zip(found.iterations, found.values, strict=True)) == [
        (1, 10.0),
        (2, 20.0),
    ]


def test_a_callback_that_runs_the_model_makes_no_pass_of_it() -> None:
    model = nn.Linear(2, 2)

    def again(name: str, value: Any, iteration: int) -> Any:
        return model(value)

    def after(name: str, values: list[Any], *lists: Any) -> None:
        values[:] = [model(value) for value in values]

    tracer = ModelTracer(model, [""], pre_save_callbacks=[again], post_gather_callbacks=[after])
    with tracer:
        for _ in range(3):
            y = model(torch.ones(1, 2))
    found = tracer.results[""]
    assert found.iterations == [1, 2, 3]
    assert torch.equal(found.values[0], model(model(y)))
    assert tracer.current_training_iteration == 3


def test_a_rank_that_fails_before_its_first_gather_is_not_waited_for(tmp_path: Path) -> None:
    script = """
from clew.compat.tensortrace import ModelTracer
model = nn.Linear(3, 2)
tracer = ModelTracer(model, [""], gathering_interval=4)
with warnings.catch_warnings(record=True) as told:
    try:
        with tracer:
            for step in range(5):
                if rank:
                    raise KeyError(step)
                model(torch.full((1, 3), float(step)))
            wait_for("the exception")
    except KeyError:
        reached("the exception")
found = tracer.results.get("")
answer = [found.iterations if found else None, [str(w.message) for w in told]]
"""
    # With this timeout, rank 0 would give up on a rank that has not said that it is over.
    first, second = answers(script, 2, tmp_path, timeout=2)
    assert first == [[1, 2, 3, 4, 5], []]
    assert second[0] is None


def test_own_values_and_odd_objects_of_two_ranks(tmp_path: Path) -> None:
    script = """
from clew.compat.tensortrace import ModelTracer, Variable
class Net(nn.Module):
    def forward(self, x):
        class Local:
            pass
        local, kept = Local(), {"at": {rank}}
        return x
model, variable = Net(), Variable(["forward.kept", "forward.local"], 1, 2)
with warnings.catch_warnings(record=True) as told:
    with ModelTracer(model, variable) as tracer:
        for step in range(3):
            model(torch.ones(1))
            variable.save_variable_result("loss", 10.0 * rank + step, tracer.current_iteration)
answer = [{name: [r.iterations, r.ranks, [str(v) for v in r.values]]
           for name, r in variable.results.items() if name != "forward.local"},
          [str(w.message) for w in told]]
"""
    (first, silent), (second, told) = answers(script, 2, tmp_path)
    assert sorted(map(tuple, zip(*first["loss"], strict=True))) == [
        (1, 0, "0.0"), (1, 1, "10.0"), (2, 0, "1.0"), (2, 1, "11.0"), (3, 0, "2.0"), (3, 1, "12.0"),
    ]  # fmt: skip
    assert first["forward.kept"][1:] == [
        [0, 0, 1, 1, 0, 1],
        ["{'at': {0}}"] * 2 + ["{'at': {1}}"] * 2 + ["{'at': {0}}", "{'at': {1}}"],
    ]
    assert silent == []
    assert second == {}
    assert "2 of 5 values cannot be sent to rank 0, and stay behind" in told[0]


def test_passes_of_threads_at_the_same_time_are_counted_one_by_one() -> None:
    both = threading.Barrier(2, timeout=HANG_GUARD)

    class Meets(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            both.wait()
            return x

    def run() -> None:
        for _ in range(5):
            model(torch.ones(1))

    model = Meets()
    often, seldom = Variable("forward"), Variable("forward", 2)
    with ModelTracer(model, [often, seldom]) as tracer:
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert tracer.current_training_iteration == 10
    assert sorted(often.results["forward"].iterations) == list(range(1, 11))
    assert sorted(seldom.results["forward"].iterations) == [2, 4, 6, 8, 10]


def test_a_callback_that_fails_is_passed_over_and_nothing_is_lost() -> None:
    def wrong(name: str, values: list[Any], iterations: list[int], ranks: list[int]) -> None:
        values.clear()
        raise KeyError("oops")

    with pytest.warns(ClewWarning, match=r"the callback wrong failed for 'forward.x'.*KeyError"):
        found = traced(["forward.x"], 1, post_gather_callbacks=[wrong])["forward.x"]
    assert len(found.values) == 1


def test_a_path_that_names_nothing_is_told() -> None:
    with pytest.warns(ClewWarning, match="forward.nonesuch"):
        assert traced(["forward.nonesuch"], 1) == {}


@pytest.fixture(autouse=True)
def _same_trace_function() -> Iterator[None]:
    before = sys.gettrace()
    yield
    assert sys.gettrace() is before
