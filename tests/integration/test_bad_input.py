"""Mistakes: each is answered by a message that says what to do, and the program goes on."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from torch import Tensor, nn

import clew
from clew.cli.main import main
from clew.errors import AddressSyntaxError, NoMatch, TraceStateError
from tests.outcomes import PassingMode, clean_up, differing, faults, installed

ONE = torch.ones(1, 2)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before = installed()
    yield
    after = installed()
    clean_up(before)
    assert differing(before, after) == []


# What is given to `trace`


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "op"}, r"level='op' is not one of 'values', 'modules', 'ops'"),
        ({"values": "all"}, r"values='all' is not one of 'meta', 'stats', 'fingerprint', 'full'"),
        ({"compiled": "no"}, r"compiled='no' is not one of 'opaque', 'eager'"),
        ({"level": None}, r"level=None is not one of"),
        ({"capture": 3}, r"capture=3: give addresses such as 'layers.0:in', one or a list"),
        ({"capture": ["fc", 3]}, r"capture=\['fc', 3\]: give addresses"),
        ({"watch": 3}, r"watch=3: give names of variables"),
        ({"limits": 3}, r"limits=3: give clew.Limits\(...\), or None"),
        ({"out": 3}, r"out=3: give a path or a URL, False to keep nothing"),
        ({"schedule": 3}, r"schedule=3: give clew.schedule\(...\), or None"),
        ({"live": "x"}, r"live='x': give True, False, or a listener with begins and ends"),
        ({"model": {3: nn.Linear(2, 2)}}, r"dict of name to nn.Module"),
    ],
)
def test_an_option_that_does_not_exist(options: dict[str, Any], message: str) -> None:
    with pytest.raises(clew.ClewError, match=message):
        clew.trace(**options)


@pytest.mark.parametrize(
    "out",
    ["run.h5", Path("run.h5"), clew.Hdf5("run.h5", compression="gzip")],
    ids=["text", "path", "Hdf5"],
)
def test_hdf5_is_exported_from_a_folder(
    out: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(clew.ClewError) as refused:
        clew.trace(out=out)
    assert str(refused.value) == (
        "out='run.h5': a running trace is written to a folder, out='run.clew'; "
        "`clew export run.clew hdf5 run.h5` makes the HDF5 file, while it runs or later"
    )
    with clew.trace(values="full", out="run.clew") as t:
        torch.ones(3) + 1
        t.flush()
        assert main(["export", "run.clew", "hdf5", "run.h5"]) == 0
    with h5py.File("run.h5") as file:
        assert file["op:aten.add.Tensor"]["values"][:].tolist() == [[2, 2, 2]]


@pytest.mark.parametrize(
    "model",
    [nn.Linear, [nn.Linear(2, 2)], "model", 3, {"a": nn.Linear}, torch.ones(1), lambda x: x],
    ids=["class", "list", "text", "number", "dict of classes", "tensor", "function"],
)
def test_a_model_that_is_none(model: Any) -> None:
    with pytest.raises(clew.ClewError, match=r"nn\.Module.*dict of name to nn\.Module.*None"):
        clew.trace(model)


def test_an_address_to_capture_that_cannot_be_read() -> None:
    with pytest.raises(AddressSyntaxError):
        clew.trace(capture=["layers.[0"])


def test_an_address_to_capture_that_matches_nothing_is_in_the_coverage() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with clew.trace(model, capture=["0", "decoder", "op:aten.nothing"]) as t:
        model(ONE)
    missed = [str(gap) for gap in t.coverage]
    assert any("decoder" in text for text in missed)
    assert any("aten.nothing" in text for text in missed)
    assert not any("'0'" in text for text in missed)


@pytest.mark.parametrize("address", ["0.weight:grad", "0:grad", "model.py:run.x"])
def test_an_address_of_something_that_did_not_happen(address: str) -> None:
    """Said at once or in the coverage, never silently nothing."""
    model = nn.Sequential(nn.Linear(2, 2))
    try:
        with clew.trace(model, capture=[address]) as t:
            model(ONE)
    except clew.ClewError as error:
        assert address in str(error)
    else:
        assert any(address in str(gap) for gap in t.coverage)


def test_a_string_to_capture_is_one_address() -> None:
    model = nn.Sequential(nn.ReLU())
    with clew.trace(model, capture="0") as t:
        model(ONE)
    assert t["0"].value.tolist() == ONE.tolist()


# Runs in which nothing happens


def test_a_model_that_an_exception_kept_from_running_is_no_news() -> None:
    model = nn.Linear(3, 4)
    with pytest.raises(RuntimeError, match="multiplied"), clew.trace(model, capture=["fc"]) as t:
        model(torch.ones(2, 3) @ torch.ones(2, 3))
    assert [str(gap) for gap in t.coverage] == [
        "an address to capture at fc: nothing that ran matches it; the nearest that ran: none"
    ]


@pytest.mark.parametrize("again", [False, True])
def test_a_container_that_is_made_for_the_trace_gives_its_names(again: bool) -> None:
    encoder, head = nn.Linear(3, 4), nn.Linear(4, 2)
    for _ in range(1 + again):
        with clew.trace(nn.ModuleDict({"encoder": encoder, "head": head})) as t:
            head(encoder(torch.ones(1, 3))).sum().backward()
    assert [call.module for call in t.modules] == ["encoder", "head"]
    assert t["head"].inputs["0"].shape == (1, 4)
    assert not t.coverage


def test_a_model_that_never_runs() -> None:
    model, other = nn.Linear(2, 2), nn.Sequential(nn.ReLU())
    with pytest.warns(clew.ClewWarning, match="never ran inside the trace") as warned:
        with clew.trace(model) as t:
            other(ONE)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    (gap,) = t.coverage
    assert "Linear" in gap.what
    assert "Sequential" in gap.why
    assert "call this model object inside the block" in gap.remedy
    assert len(t.modules) == 2


def test_a_copy_of_the_model_ran_instead() -> None:
    import copy

    model = nn.Linear(2, 2)
    twin = copy.deepcopy(model)
    with pytest.warns(clew.ClewWarning, match=r"what ran: Linear"), clew.trace(model):
        twin(ONE)


def test_one_of_two_models_never_runs() -> None:
    models = {"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}
    with pytest.warns(clew.ClewWarning, match="model 'b'"), clew.trace(models) as t:
        models["a"](ONE)
    assert [event.module for event in t.modules] == ["a"]


def test_a_part_of_the_model_is_enough() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with clew.trace(model) as t:
        model[1](ONE)
    assert [event.module for event in t.modules] == ["1"]


def test_nothing_at_all_runs() -> None:
    with pytest.warns(clew.ClewWarning, match="no module at all"), clew.trace(nn.Linear(2, 2)) as t:
        pass
    assert len(t.events) == 0
    assert list(t.ops) == []
    assert t.crash is None
    assert t.steps in ([], [0])


def test_an_empty_trace_is_said_to_be_empty() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with clew.trace() as t:
            pass
    assert len(t.events) == 0
    assert t.coverage


def test_a_crash_before_the_model_ran_does_not_add_a_warning() -> None:
    """The exception says enough; the coverage may."""
    model = nn.Linear(2, 2)
    with pytest.raises(LookupError), clew.trace(model):
        raise LookupError


# Addresses


@pytest.fixture
def traced() -> clew.Trace:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))
    with clew.trace(model) as t:
        model(ONE)
        model(ONE)
    return t


@pytest.mark.parametrize(
    ("address", "nearest"),
    [
        ("0.2", "'0.0'"),
        ("0.o", "'0.0'"),
        ("op:aten.admm.default", "'op:aten.addmm.default'"),
        ("line:nothere.py:3", "test_bad_input.py"),
        ("0.0:out.logits", "''"),
        ("0.0:in.1", "'0'"),
    ],
)
def test_an_address_without_a_match_names_the_nearest(
    traced: clew.Trace, address: str, nearest: str
) -> None:
    with pytest.raises(NoMatch) as missed:
        traced[address]
    assert address in str(missed.value)
    assert nearest in str(missed.value)
    assert isinstance(missed.value, LookupError)


@pytest.mark.parametrize("read", [lambda t: t[3], list, lambda t: t.series(3)])
def test_an_address_that_is_no_text(traced: clew.Trace, read: Any) -> None:
    with pytest.raises(clew.ClewError, match=r"an address is text .* not [03]; .*\.events"):
        read(traced)


def test_a_call_that_was_not_made(traced: clew.Trace) -> None:
    with pytest.raises(NoMatch, match="0.0#7"):
        traced["0.0#7"]


def test_a_pattern_without_a_match(traced: clew.Trace) -> None:
    with pytest.raises(NoMatch):
        traced["**.attention"]
    with pytest.raises(NoMatch):
        traced.find("attention")


def test_a_module_that_is_there_and_did_not_run() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    with clew.trace(model) as t:
        model["used"](ONE)
    with pytest.raises(NoMatch, match=r"'unused' did not") as missed:
        t["unused"]
    assert "'used'" in str(missed.value)


def test_one_of_many(traced: clew.Trace) -> None:
    with pytest.raises(clew.ClewError, match=r"stands for 2 calls; pick one of: 0\.0#0, 0\.0#1"):
        traced["0.0"].one
    with pytest.raises(clew.ClewError, match=r"pick one of"):
        traced["0.0"].output
    with pytest.raises(clew.ClewError, match=r"pick one of"):
        traced["0.0"].value


def test_one_output_of_several() -> None:
    with clew.trace() as t:
        torch.ones(2, 2).max(0)
    with pytest.raises(clew.ClewError, match=r"2 outputs \(0, 1\)"):
        t["op:aten.max.dim"].output


def test_a_path_that_is_not_among_the_outputs(traced: clew.Trace) -> None:
    with pytest.raises(KeyError, match="there are"):
        traced["0.0#0"].one.inputs["mask"]


@pytest.mark.parametrize("address", ["0:grad", "0.0.weight:param"])
def test_something_this_trace_does_not_hold(traced: clew.Trace, address: str) -> None:
    with pytest.raises(clew.ClewError, match="does not hold"):
        traced[address]


@pytest.fixture(scope="module")
def followed() -> clew.Trace:
    model = nn.Linear(2, 1)
    wanted = ["weight:grad", "weight:param", ":grad_in"]
    with clew.trace(model, capture=wanted) as t:
        model(torch.ones(1, 2)).sum().backward()
        clew.tap("seen", torch.ones(1))
    return t


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("weight", r"nearest: 'weight:grad', 'weight:param'"),
        ("bias:grad", r"capture=\['bias:grad'\]\); nearest that it holds: 'weight:grad'"),
        (":grad_in", r"':grad_in' was asked for, but no gradient arrived for it"),
        ("#7", r"among the 1 call there are; nearest: '#0'"),
        ("weight#7:grad", r"nearest that it holds: 'weight:grad'"),
        ("data.py:load.x", r"capture=\['data.py:load.x'\]\)$"),
    ],
)
def test_a_miss_names_what_is_there_instead(followed: clew.Trace, address: str, words: str) -> None:
    with pytest.raises(LookupError, match=words) as caught:
        followed[address]
    assert isinstance(caught.value, clew.ClewError)


def test_find_takes_names_of_variables_and_taps(followed: clew.Trace) -> None:
    assert [event.address for event in followed.find("see")] == ["seen#0"]
    assert {event.kind for event in followed.find("weight")} == {"grad", "variable"}


@pytest.mark.parametrize("address", [":in.mask", ":out.logits", "0#0:in.mask", "op:aten.t*:in.9"])
def test_a_part_that_no_call_has_is_in_the_coverage(address: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with clew.trace(model, capture=[address]) as t:
        model(torch.ones(1, 2))
    (gap,) = t.coverage
    assert gap.where == address
    assert gap.remedy.startswith("the nearest that ran: ")


class Direct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Any:
        return self.fc.forward(x) + 1


@pytest.mark.parametrize(
    ("address", "instead"), [("fc", "fc.forward,"), ("fc:in", "fc.forward.<argument>,")]
)
def test_what_was_called_past_the_hooks_says_what_to_capture(address: str, instead: str) -> None:
    model = Direct()
    with clew.trace(model, capture=[address]) as t:
        model(torch.ones(2))
    (gap,) = t.coverage
    assert (gap.where, gap.remedy.split()[1]) == (address, instead)
    assert "module.forward" in gap.why


# Starting and stopping


def test_reading_before_it_was_started() -> None:
    tracer = clew.trace()
    with pytest.raises(TraceStateError, match=r"with clew\.trace\(model\) as t:"):
        tracer.events
    with pytest.raises(TraceStateError):
        tracer["x"]


def test_a_trace_that_was_not_started_says_so_and_can_be_started_later() -> None:
    model = nn.Linear(2, 2)
    tracer = clew.trace(model)
    model(torch.ones(1, 2))
    assert repr(tracer) == "<Trace, nothing recorded yet>"
    assert bool(tracer) is True
    assert tracer.recording is False
    with tracer:
        assert tracer.recording is True
        model(torch.ones(1, 2))
    assert tracer.recording is False
    assert len(tracer.modules) == 1


def test_an_empty_trace_is_true() -> None:
    """`t or other` must not depend on what was recorded."""
    with clew.trace(level="modules") as t:
        assert t


def test_stop_without_start() -> None:
    tracer = clew.trace()
    with pytest.warns(clew.ClewWarning, match=r"not recording: call start\(\) first") as warned:
        assert tracer.stop() is tracer
    assert warned[0].filename == __file__
    with tracer:
        torch.ones(1)
    assert len(tracer.ops) == 1


def test_stop_twice() -> None:
    tracer = clew.trace().start()
    torch.ones(1)
    tracer.stop()
    with pytest.warns(clew.ClewWarning, match="not recording"):
        tracer.stop()
    assert len(tracer.ops) == 1


def test_stop_inside_the_block() -> None:
    with pytest.warns(clew.ClewWarning, match="not recording"), clew.trace() as t:
        torch.ones(1)
        t.stop()
        torch.ones(2)
    assert len(t.ops) == 1


def test_step_without_start() -> None:
    with pytest.raises(TraceStateError, match="not recording"):
        clew.trace().step()


def test_flush_at_any_time() -> None:
    tracer = clew.trace()
    tracer.flush()
    with tracer:
        torch.ones(1)
        assert tracer.flush() is tracer
        assert len(tracer.ops) == 1
    tracer.flush()
    assert len(tracer.ops) == 1


def test_the_same_trace_entered_twice_goes_on_as_one() -> None:
    tracer = clew.trace()
    with tracer:
        with pytest.warns(clew.ClewWarning, match="already recording"), tracer:
            torch.ones(1)
        torch.ones(2)
        assert tracer.recording
    assert not tracer.recording
    assert len(tracer.ops) == 2


def test_the_same_trace_again_adds_to_it() -> None:
    model = nn.Linear(2, 2)
    tracer = clew.trace(model)
    for _ in range(3):
        with tracer:
            model(ONE)
    assert [event.call for event in tracer[""]] == [0, 1, 2]
    starts = [event.start for event in tracer.events]
    assert starts == sorted(starts)


def test_many_traces_one_after_the_other_know_nothing_of_each_other() -> None:
    model = nn.Linear(2, 2)
    traces = []
    for _ in range(5):
        with clew.trace(model) as t:
            model(ONE)
        traces.append(t)
    assert [(len(t.modules), len(t.ops)) for t in traces] == [(1, 2)] * 5
    assert [t[""].one.call for t in traces] == [0] * 5


def test_nested_traces_both_record() -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model) as outer:
        with clew.trace({"inner": model}) as inner:
            model(ONE)
        model(ONE)
    assert [event.address for event in outer.modules] == ["#0", "#1"]
    assert [event.address for event in inner.modules] == ["inner#0"]
    assert [op.name for op in inner.ops] == ["aten.t.default", "aten.addmm.default"]
    assert [op.name for op in outer.ops] == ["aten.t.default", "aten.addmm.default"] * 2
    (gap,) = inner.coverage
    assert "another trace was already recording" in gap.why
    assert list(outer.coverage) == []


def test_nested_traces_do_not_see_each_other_s_work() -> None:
    """Keeping values is the inner trace's work, not the program's."""
    with clew.trace(values="full") as outer, clew.trace(values="full") as inner:
        torch.ones(2) + 1
    names = ["aten.ones.default", "aten.add.Tensor"]
    assert [op.name for op in outer.ops] == [op.name for op in inner.ops] == names


def test_traces_stopped_in_the_order_they_were_started() -> None:
    first, second = clew.trace().start(), clew.trace().start()
    torch.ones(1)
    first.stop()
    torch.ones(2)
    second.stop()
    torch.ones(3)
    assert [op.outputs[""].shape for op in first.ops] == [(1,)]
    assert [op.outputs[""].shape for op in second.ops] == [(1,), (2,)]
    assert faults(first) == faults(second) == []


def test_a_mode_of_the_program_s_that_outlives_the_trace() -> None:
    mode = PassingMode()
    tracer = clew.trace().start()
    mode.__enter__()
    torch.ones(1)
    tracer.stop()
    torch.ones(2)
    mode.__exit__(None, None, None)
    assert len(tracer.ops) == 1


# As a decorator


def test_each_call_of_a_decorated_function_is_recorded() -> None:
    tracer = clew.trace()

    @tracer
    def compute(x: Tensor) -> Tensor:
        return x + 1

    compute(ONE)
    compute(ONE)
    assert [op.name for op in tracer.ops] == ["aten.add.Tensor"] * 2


def test_a_decorated_function_has_its_trace() -> None:
    @clew.trace()
    def compute(x: Tensor) -> Tensor:
        return x + 1

    compute(ONE)
    assert [op.name for op in compute.trace.ops] == ["aten.add.Tensor"]  # type: ignore[attr-defined]


def test_decorated_methods_of_every_kind_are_called_as_they_were() -> None:
    class Sums:
        base = 1

        @clew.trace()
        def own(self, x: Tensor) -> Tensor:
            return x + self.base

        @clew.trace()
        @staticmethod
        def static(x: Tensor) -> Tensor:
            return x + 2

        @clew.trace()
        @classmethod
        def of_class(cls, x: Tensor) -> Tensor:
            return x + cls.base

    sums: Any = Sums()
    for method, result in ((sums.own, 2), (sums.static, 3), (sums.of_class, 2)):
        assert float(method(ONE)[0, 0]) == result
        assert len(method.trace.ops) == 1


def test_a_decorated_function_that_calls_itself() -> None:
    tracer = clew.trace()

    @tracer
    def compute(x: Tensor, depth: int) -> Tensor:
        return compute(x + 1, depth - 1) if depth else x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compute(ONE, 3)
    assert len(tracer.ops) == 3
    assert not tracer.recording


def test_something_that_is_no_function_cannot_be_decorated() -> None:
    """`clew.trace(model)(x)` looks right and is not."""
    with pytest.raises(clew.ClewError, match="function"):
        clew.trace(nn.Linear(2, 2))(ONE)


def test_a_decorated_generator() -> None:
    """Its body runs later: recorded then, or refused now."""
    tracer = clew.trace()

    def numbers() -> Iterator[Tensor]:
        yield torch.ones(1)
        yield torch.ones(2)

    try:
        traced = tracer(numbers)
    except clew.ClewError as error:
        assert "generator" in str(error)
        return
    assert len(list(traced())) == 2
    assert len(tracer.ops) == 2


def test_a_decorated_coroutine() -> None:
    tracer = clew.trace()

    async def compute() -> Tensor:
        await asyncio.sleep(0)
        return torch.ones(1) + 1

    try:
        traced = tracer(compute)
    except clew.ClewError as error:
        assert "async" in str(error)
        return
    asyncio.run(traced())
    assert len(tracer.ops) == 2


def test_a_decorated_asynchronous_generator() -> None:
    model = nn.Linear(2, 2)
    tracer = clew.trace(model)
    ended = []

    @tracer
    async def compute() -> AsyncIterator[Tensor]:
        try:
            for number in range(3):
                await asyncio.sleep(0)
                try:
                    yield model(torch.full((1, 2), float(number)))
                except ValueError:
                    yield model(torch.zeros(1, 2))
        finally:
            ended.append(True)

    async def use() -> list[Tensor]:
        found = [y async for y in compute()]
        outside = torch.ones(5).cos()
        steps = compute()
        await anext(steps)
        found.append(await steps.athrow(ValueError("from outside")))
        await steps.aclose()
        return [*found, outside]

    assert len(asyncio.run(use())) == 5
    assert len(tracer.modules) == 5
    assert "aten.cos.default" not in {op.name for op in tracer.ops}
    assert ended == [True, True]


# Ids and names that do not behave


def test_a_model_whose_names_look_like_addresses() -> None:
    model = nn.ModuleDict({"in": nn.Linear(2, 2), "a:b": nn.ReLU(), "x#1": nn.Tanh()})
    with clew.trace(model) as t:
        for part in model.values():
            part(ONE)
    assert [event.module for event in t.modules] == ["in", "a:b", "x#1"]
    assert t["in"].one.name == "Linear"
    assert t["['a:b']"].one.name == "ReLU"
    assert t["['x#1']"].one.name == "Tanh"


def test_a_model_with_an_odd_name() -> None:
    model = nn.Linear(2, 2)
    with clew.trace({"Größe ✓": model}) as t:
        model(ONE)
    assert t["Größe ✓"].one.name == "Linear"


def test_a_decorator_without_parentheses() -> None:
    def step() -> None:
        """Do nothing."""

    with pytest.raises(clew.ClewError, match=r"parentheses: @clew\.trace\(\)$"):
        clew.trace(step)  # type: ignore[arg-type]


def test_the_nearest_of_ops_and_of_gradients_are_of_their_kind() -> None:
    model = nn.ModuleDict({"head": nn.Linear(3, 4)})
    asked = ["op:aten.addmmm*", "haed:grad", "head.weigth:grad"]
    with pytest.warns(clew.ClewWarning), clew.trace(model, capture=asked) as t:
        model["head"](torch.ones(1, 3)).sum().backward()
    assert [gap.remedy.split(", ")[0] for gap in t.coverage if gap.where in asked] == [
        "the nearest that ran: op:aten.addmm.default",
        "the nearest that ran: head",
        "the nearest that ran: head.weight",
    ]
