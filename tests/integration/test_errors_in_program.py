"""Errors of the program: the op that failed, or the line, is in the trace with all it was given."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import signal
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew
from tests.models import Call
from tests.outcomes import differing, faults, installed


def crash(program: Any, model: nn.Module | None = None, **options: Any) -> clew.Trace:
    with contextlib.suppress(Exception), clew.trace(model, **options) as t:
        program()
    assert faults(t) == []
    return t


# Ops that fail


def test_the_op_that_raises_is_recorded() -> None:
    """The traceback of this error names no module anywhere."""
    model = nn.ModuleDict({"blocks": nn.Sequential(nn.Linear(10, 4))})
    t = crash(lambda: model["blocks"](torch.ones(2, 6)), model)
    failed = t.ops[-1]
    assert failed.name == "aten.addmm.default"
    assert failed.module == "blocks.0"
    assert failed.error == (
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x6 and 10x4)"
    )
    assert {path: str(v) for path, v in failed.inputs.items()} == {
        "0": "f32[4]", "1": "f32[2,6]", "2": "f32[10,4]",
    }  # fmt: skip
    assert failed.inputs["0"].name == "blocks.0.bias"
    assert failed.inputs["1"].producer.name == "aten.ones.default"
    assert dict(failed.outputs) == {}
    assert failed.duration >= 0
    assert failed.source.file == __file__


def test_the_crash_names_it() -> None:
    model = nn.Sequential(nn.Linear(10, 4))
    t = crash(lambda: model(torch.ones(2, 6)), model)
    assert t.crash.event == t.ops[-1]
    assert t.crash.exception.startswith("RuntimeError: mat1 and mat2")
    for part in ("aten.addmm.default", "in 0", "f32[2,6]", "0.bias", Path(__file__).name):
        assert part in t.crash.note


def test_the_calls_around_it_carry_the_error() -> None:
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.Linear(10, 4)))
    t = crash(lambda: model(torch.ones(2, 6)), model)
    errors = {event.address: event.error is not None for event in t.modules}
    assert errors == {"#0": True, "0#0": False, "1#0": True, "1.0#0": True}
    assert all(dict(e.outputs) == {} for e in t.modules if e.error)
    assert len([e for e in t.events if e.kind == "note"]) == 0


def test_an_error_outside_any_module() -> None:
    t = crash(lambda: torch.ones(2) + torch.ones(3))
    assert t.crash.event.name == "aten.add.Tensor"
    assert t.crash.event.module is None
    assert "outside any module" in t.crash.note


def test_tensors_that_lie_apart_are_said_to() -> None:
    with pytest.raises(RuntimeError, match="device") as caught, clew.trace():
        torch.cat([torch.ones(2), torch.ones(3, device="meta")])
    (note,) = caught.value.__notes__
    named = "torch.ones(2) f32[2] on cpu, torch.ones(3, device='meta') f32[3] on meta"
    assert f"given: {named}\n" in note
    assert note.endswith("torch.ones(3, device='meta') has no data: it is on meta")


def test_an_error_in_backward() -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient + torch.ones(7)

    model = Call(lambda self, x: Failing.apply(self.fc(x)), fc=nn.Linear(3, 3))
    t = crash(lambda: model(torch.ones(2, 3)).sum().backward(), model)
    event = t.crash.event
    assert (event.name, event.phase) == ("aten.add.Tensor", "backward")
    assert event.source.text == "return gradient + torch.ones(7)"


def test_an_error_in_the_optimizer() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def program() -> None:
        model(torch.ones(1, 2)).sum().backward()
        model.weight.data = torch.ones(5, 5)
        optimizer.step()

    t = crash(program, model)
    assert t.crash.event.phase == "optimizer"


# Errors before any op


class Ids(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids)


def test_an_argument_check_is_noted_with_line_and_module() -> None:
    model = Call(lambda self, x: torch.einsum("ij,jk->ik", x, x[0]))
    t = crash(lambda: model(torch.ones(2, 3)), nn.Sequential(model))
    (note,) = (e for e in t.events if e.kind == "note")
    assert note.name == "error"
    assert note.module == "0"
    assert "einsum" in note.error
    assert note.source.file == __file__
    assert "torch.einsum" in note.source.text
    assert t.crash.event == note


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (lambda x: torch.einsum("ij,jk->ik", x, x[0]), "einsum"),
        (lambda x: F.cross_entropy(x, torch.zeros(5)), "batch_size"),
        (lambda x: x.view(7, 7), "shape"),
        (lambda x: torch.cat([x, x[0]]), "Tensors must have same number of dimensions"),
        (lambda x: x.no_such_method(), "AttributeError"),
        (lambda x: F.layer_norm(x, (7,)), "normalized_shape"),
        (lambda x: torch.stack([x, "text"]), "TypeError"),
        (lambda x: F.interpolate(x, scale_factor=2, mode="nonsense"), "Error"),
        (lambda x: int("x"), "ValueError"),
    ],
    ids=["einsum", "cross_entropy", "view", "cat", "attribute", "layer_norm", "type",
         "python check", "plain python"],
)  # fmt: skip
def test_any_error_has_a_line_and_a_module(program: Any, text: str) -> None:
    inner = Call(lambda self, x: program(x))
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(inner))
    t = crash(lambda: model(torch.ones(2, 3)), model)
    event = t.crash.event
    assert text in t.crash.exception
    assert event.kind in ("op", "note", "composite")
    assert event.module == "1.0"
    assert event.error == t.crash.exception
    assert event.source.file == __file__
    assert event.source.text.startswith("(lambda x:")


def test_embedding_with_float_ids() -> None:
    model = Ids()
    t = crash(lambda: model(torch.ones(2)), model)
    assert t.crash.event.module == "table"
    assert t.crash.event.source.text == "return self.table(ids)"
    assert "Expected tensor for argument #1 'indices'" in t.crash.exception


def test_embedding_with_an_index_out_of_range() -> None:
    model = Ids()
    t = crash(lambda: model(torch.tensor([99])), model, values="full")
    event = t.crash.event
    assert (event.name, event.module) == ("aten.embedding.default", "table")
    assert event.inputs["1"].array().tolist() == [99]
    assert event.inputs["0"].name == "table.weight"


def test_an_error_between_modules_is_noted() -> None:
    def program() -> None:
        torch.ones(1)
        raise LookupError("the program's own")

    t = crash(program)
    note = t.crash.event
    assert (note.kind, note.module) == ("note", None)
    assert note.error == "LookupError: the program's own"
    assert note.source.text == 'raise LookupError("the program\'s own")'


def test_an_error_deep_in_helpers_has_the_innermost_line_of_the_user() -> None:
    def deeper(x: Tensor) -> None:
        F.cross_entropy(x, torch.zeros(5))

    def helper(x: Tensor) -> None:
        deeper(x)

    t = crash(lambda: helper(torch.ones(2, 3)))
    assert t.crash.event.source.text == "F.cross_entropy(x, torch.zeros(5))"
    functions = [place.function.rpartition(".")[2] for place in t.crash.event.stack]
    assert functions[-4:-2] == ["helper", "deeper"] or "deeper" in functions


@pytest.mark.parametrize("level", ["modules"])
def test_without_ops_the_innermost_module_and_line_are_known(level: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 4))
    t = crash(lambda: model(torch.ones(2, 3)), model, level=level)
    event = t.crash.event
    assert event.kind == "note"
    assert event.module == "1"
    assert event.source.file == __file__
    assert [e.error is not None for e in t.modules] == [True, False, True]


# Errors the program handles


def test_handled_errors_are_recorded_and_nothing_crashed() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        for _ in range(2):
            with contextlib.suppress(RuntimeError):
                self.wrong(x)
            with contextlib.suppress(ValueError):
                raise ValueError("handled")
            x = self.right(x)
        return x

    model = Call(forward, wrong=nn.Linear(5, 5), right=nn.Linear(3, 3))
    with clew.trace(model) as t:
        model(torch.ones(2, 3))
        torch.ones(1)
    assert t.crash is None
    failed = [op for op in t.ops if op.error]
    assert [op.module for op in failed] == ["wrong", "wrong"]
    assert [e.error for e in t["right"]] == [None, None]
    assert [op.module for op in t["op:aten.addmm.default"]] == ["wrong", "right"] * 2
    assert t.ops[-1].module is None


def test_a_handled_error_is_not_taken_for_the_crash() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        with contextlib.suppress(RuntimeError):
            self.wrong(x)
        raise LookupError("the real one")

    model = Call(forward, wrong=nn.Linear(5, 5))
    t = crash(lambda: model(torch.ones(2, 3)), model)
    assert t.crash.event.kind == "note"
    assert t.crash.event.module == ""
    assert t.crash.event.error == "LookupError: the real one"
    assert t.crash.exception == "LookupError: the real one"


def test_an_error_with_the_same_text_as_one_handled_before() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        with contextlib.suppress(RuntimeError):
            self.first(x)
        return self.second(x)

    model = Call(forward, first=nn.Linear(5, 5), second=nn.Linear(5, 5))
    t = crash(lambda: model(torch.ones(2, 3)), model)
    assert t.crash.event.module == "second"


def test_an_exception_raised_again_by_an_outer_module_is_noted_once() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        try:
            return self.inner(x)
        except RuntimeError as error:
            raise TypeError("worse") from error

    model = nn.Sequential(Call(forward, inner=nn.Linear(5, 5)))
    t = crash(lambda: model(torch.ones(2, 3)), model)
    assert t["0.inner"].one.error.startswith("RuntimeError")
    assert t["0"].one.error == t[""].one.error == "TypeError: worse"
    notes = [e for e in t.events if e.kind == "note"]
    assert [(e.module, e.error) for e in notes] == [("0", "TypeError: worse")]
    assert t.crash.event == notes[0]


def test_the_same_exception_through_many_modules_is_noted_once() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        raise ValueError("deep")

    model = nn.Sequential(nn.Sequential(nn.Sequential(Call(forward))))
    t = crash(lambda: model(torch.ones(1)), model)
    assert len([e for e in t.events if e.kind == "note"]) == 1
    assert t.crash.event.module == "0.0.0"


def test_after_a_crash_the_same_tracer_can_go_on() -> None:
    model = nn.Linear(3, 3)
    tracer = clew.trace(model)
    with contextlib.suppress(RuntimeError), tracer:
        model(torch.ones(1, 5))
    with tracer:
        model(torch.ones(1, 3))
    assert [e.error is None for e in tracer[""]] == [False, True]


def test_a_crash_can_be_read_inside_the_except_clause() -> None:
    model = nn.Linear(3, 3)
    try:
        with clew.trace(model) as t:
            model(torch.ones(1, 5))
    except RuntimeError as error:
        assert t.crash.exception == f"RuntimeError: {error}"
        assert error.__notes__ == [t.crash.note]


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_traces_in_each_other_say_the_same_once(level: str) -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(RuntimeError) as raised, clew.trace(model, level=level) as outer:
        with clew.trace(model, level=level) as inner:
            model(torch.ones(1, 5))
    assert raised.value.__notes__ == [inner.crash.note]
    assert inner.crash.note == outer.crash.note
    assert inner.crash.event.name == outer.crash.event.name
    assert vars(raised.value).keys() == {"__notes__"}


def test_traces_in_each_other_that_say_different_things() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(RuntimeError) as raised, clew.trace(model):
        with clew.trace({"net": model}):
            model(torch.ones(1, 5))
    first, second = raised.value.__notes__
    assert " in net.0" in first
    assert " in 0" in second


def test_an_error_in_another_thread_is_recorded() -> None:
    import threading

    model = nn.Linear(3, 3)
    caught: list[BaseException] = []

    def work() -> None:
        try:
            model(torch.ones(1, 5))
        except RuntimeError as error:
            caught.append(error)

    with clew.trace(model) as t:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(caught) == 1
    failed = [op for op in t.ops if op.error]
    assert [(op.name, op.module) for op in failed] == [("aten.addmm.default", "")]
    assert t.crash is None


# Faults of Clew's own never reach the program


class Hostile:
    """An argument that breaks whoever looks at it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"looked at {name}")


class HostileTensor(Tensor):
    """A tensor that breaks whoever asks for its facts outside an op."""

    @property
    def shape(self) -> Any:  # type: ignore[override]
        raise RuntimeError("looked at shape")

    @property
    def device(self) -> Any:  # type: ignore[override]
        raise RuntimeError("looked at device")

    @property
    def layout(self) -> Any:  # type: ignore[override]
        raise RuntimeError("looked at layout")


@pytest.mark.parametrize("level", ["ops", "modules"])
@pytest.mark.parametrize("values", ["meta", "full"])
def test_hostile_arguments(level: str, values: str) -> None:
    model = Call(lambda self, x, y: x)
    with clew.trace(model, level=level, values=values) as t:
        assert model(torch.ones(1), Hostile()).tolist() == [1]
        model(torch.ones(2).as_subclass(HostileTensor), 3)
        model(torch.ones(1), 4)
    # Either recorded after all, or said to be missing.
    assert len(t[""]) == 3 or faults(t)
    last = t[""][-1]
    assert last.arguments["1"] == 4
    assert last.inputs["0"].shape == last.outputs[""].shape == (1,)


# Signals come at any moment, also while Clew looks at something


class OutOfTime(Exception):
    """What a handler of the program raises."""


class Alarm:
    """Handlers of a signal, in the forms that programs give them."""

    def method(self, number: int, frame: Any) -> None:
        raise OutOfTime("after a second", number)

    def __call__(self, number: int, frame: Any) -> None:
        raise OutOfTime("after a second", number)


def late(text: str, number: int, frame: Any) -> None:
    raise OutOfTime(text, number)


class RingingTensor(Tensor):
    """A tensor that a signal interrupts the reading of."""

    @property
    def _local_tensor(self) -> Any:
        signal.raise_signal(signal.SIGUSR1)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="the system has no such signal")
@pytest.mark.parametrize("handler", [Alarm().method, Alarm(), functools.partial(late, "late")])
@pytest.mark.parametrize("level", ["ops", "modules"])
def test_what_a_signal_handler_raises_comes_out(handler: Any, level: str) -> None:
    model, y = Call(lambda self, x, y: x + 1), torch.ones(2).as_subclass(RingingTensor)
    before, usual = installed(), signal.signal(signal.SIGUSR1, handler)
    try:
        with clew.trace(model, level=level, values="stats") as t:
            with pytest.raises(OutOfTime) as raised:
                model(torch.ones(1), y)
            assert model(torch.ones(1), 3).tolist() == [2]
    finally:
        signal.signal(signal.SIGUSR1, usual)
    assert raised.value.args[1] == signal.SIGUSR1
    assert faults(t) == []
    assert t[""][-1].arguments["1"] == 3
    assert differing(before, installed()) == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no such timer")
# Python drops what is raised while it collects garbage, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("level", ["ops", "modules"])
def test_interrupts_leave_torch_as_it_was(level: str) -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    usual = signal.signal(signal.SIGALRM, Alarm())
    came = 0
    try:
        with clew.trace(model, level=level, values="stats"):
            before = installed()
            for number in range(600):
                with contextlib.suppress(OutOfTime):
                    signal.setitimer(signal.ITIMER_REAL, 0.001 + number % 97 * 1e-5)
                    for _ in range(100):
                        model(torch.ones(1, 4))
                came += torch.is_grad_enabled()
            assert differing(before, installed()) == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
        torch.set_grad_enabled(True)
    assert came == 600


@pytest.mark.parametrize(
    "part", ["observe.tap_source.TapSource.stop", "record.recorder.Recorder.close"]
)
def test_an_interrupt_at_the_end_leaves_nothing_installed(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_end(monkeypatch, part, KeyboardInterrupt("now"))
    before, model = installed(), nn.ReLU()
    with pytest.raises(KeyboardInterrupt, match="now"), clew.trace(model) as t:
        model(torch.ones(1))
    assert differing(before, installed()) == []
    assert t.ops[-1].name == "aten.relu.default"
    monkeypatch.undo()
    with clew.trace(model) as again:
        model(torch.ones(1))
    assert "nested trace" not in str(again.coverage)


def at_the_end(monkeypatch: pytest.MonkeyPatch, part: str, error: BaseException) -> None:
    """Have a part of Clew raise once it has done its work."""
    module, cls, name = part.rsplit(".", 2)
    owner = getattr(importlib.import_module(f"clew.{module}"), cls)
    usual = getattr(owner, name)

    def fail(*args: Any) -> None:
        usual(*args)
        raise error

    monkeypatch.setattr(owner, name, fail)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break Clew where it first meets a tensor, or with the native engine a line of a forward."""
    from clew.keep.identity import TensorTable
    from clew.observe.native_ops import Host

    def fail(*args: Any) -> Any:
        raise ZeroDivisionError("a bug of ours")

    def node(host: Host, parent: int, code: CodeType, *rest: int) -> int:
        return fail() if code.co_name == "forward" else usual(host, parent, code, *rest)

    usual = Host.node
    monkeypatch.setattr(TensorTable, "known", fail)
    monkeypatch.setattr(Host, "node", node)


@pytest.mark.usefixtures("broken")
def test_a_fault_of_clew_s_is_said_once_and_the_program_goes_on() -> None:
    model = nn.Sequential(nn.ReLU(), nn.ReLU())
    x = torch.tensor([-1.0, 1.0])
    with pytest.warns(clew.ClewWarning, match="ZeroDivisionError: a bug of ours") as warned:
        with clew.trace(model) as t:
            y = model(x)
    assert y.tolist() == [0, 1]
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert any("Clew failed" in gap.why for gap in t.coverage)


@pytest.mark.usefixtures("broken")
def test_a_fault_where_warnings_are_errors_does_not_raise() -> None:
    x = torch.ones(1)
    with clew.trace() as t:  # pytest makes warnings errors here
        assert nn.ReLU()(x).tolist() == [1]
    assert faults(t)


@pytest.mark.parametrize(
    "part", ["observe.compiled.CompiledSource.stop", "record.module_registry.ModuleTable.tensors"]
)
def test_a_fault_at_the_end_does_not_raise(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_the_end(monkeypatch, part, ZeroDivisionError("a bug of ours"))
    before = installed()
    model = nn.ReLU()
    with pytest.warns(clew.ClewWarning) as warned:
        with clew.trace(model, capture=["nowhere"]) as t:
            assert model(torch.ones(1)).tolist() == [1]
    assert {warning.filename for warning in warned} == {__file__}
    said = [str(warning.message) for warning in warned]
    assert sum("ZeroDivisionError: a bug of ours" in text for text in said) == 1
    assert differing(before, installed()) == []
    assert t.ops[-1].name == "aten.relu.default"
    assert faults(t)
    with clew.trace(model) as again:
        model(torch.ones(1))
    assert "nested trace" not in str(again.coverage)


class Nested(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = Nested(depth - 1) if depth else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.inner(x)
        return inner


@pytest.mark.usefixtures("python_engine")
@pytest.mark.parametrize("level", ["ops", "modules"])
def test_coverage_says_that_hooks_make_a_recursion_deeper(level: str) -> None:
    room = sys.getrecursionlimit() - len(inspect.stack())
    # Four levels for each call of a module, five with a hook.
    model = Nested(room * 2 // 9)
    model(torch.ones(1))
    with clew.trace(model, level=level) as t:
        with pytest.raises(RecursionError):
            model(torch.ones(1))
    assert [gap.what for gap in t.coverage] == ["calls as deep as Python allows"]
    assert "sys.setrecursionlimit" in t.coverage[0].remedy
    with clew.trace(model.inner.inner, level=level) as shallow:
        Nested(5)(torch.ones(1))
    assert "calls as deep as Python allows" not in [gap.what for gap in shallow.coverage]
