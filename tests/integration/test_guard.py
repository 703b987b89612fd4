"""`clew.guard`: what it raises for, what it lets pass, and that it leaves nothing behind."""

from __future__ import annotations

import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clew
from accuracy import nonfinite
from accuracy.clean import clean_programs
from clew.torch_compat import GLOBAL_HOOKS

PLANTED = (
    "batch-std", "log-softmax", "own-softmax", "masked-row", "mask-product", "layer-norm",
    "half-linear", "all-ignored", "learning-rate", "distance-root", "angle-acos", "where-log",
    "where-quotient", "loss-scale",
)  # fmt: skip
CLEAN = ("gpt", "policy-gradient")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Check after each test that nothing of the guard is installed."""
    before = [dict(hooks) for hooks in GLOBAL_HOOKS]
    backward = torch.autograd.backward
    yield
    assert [dict(hooks) for hooks in GLOBAL_HOOKS] == before
    assert torch.autograd.backward is backward


class Log(nn.Module):
    """A layer whose result may be log(0)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(self.fc(x).sub(1e9).relu())


class Root(nn.Module):
    """A layer whose result is finite and whose gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (self.fc(x) * 0).square().sum().sqrt()


@pytest.mark.parametrize("one", [p for p in nonfinite.all_planted() if p.name in PLANTED],
                         ids=lambda p: p.name)  # fmt: skip
def test_a_planted_source_is_named(one: nonfinite.Planted) -> None:
    found = nonfinite.outcome(one)
    assert found.is_hit, found.text
    assert found.hint == "right", found.text


def test_the_lists_are_long_enough() -> None:
    planted = nonfinite.all_planted()
    assert len({one.name for one in planted}) == len(planted) >= 40
    assert sum(one.phase == "backward" for one in planted) >= 10
    assert all(one.line for one in planted)
    assert len({name for name, _ in clean_programs()}) >= 40


def test_clean_programs_raise_nothing() -> None:
    assert nonfinite.false_alarms(CLEAN) == []


def test_the_error_says_what_ran_and_what_helps() -> None:
    error = _raised(Log())
    text = str(error)
    assert "aten.log.default made Inf in Log, forward, step 0: log of a value ≤ 0" in text
    assert "at test_guard.py:" in text
    assert "return torch.log(" in text
    assert "took 0: f32[1,2] 0 2 zeros" in text
    assert "found in the output of Log" in text
    assert "usually helps: clamp first" in text
    assert "aten.relu.default" in text
    assert "ops before it" in text
    assert error.nonfinite is not None
    assert error.nonfinite.event.name == "aten.log.default"
    assert str(pickle.loads(pickle.dumps(error))) == text


def test_a_gradient_is_named_with_its_forward_op_before_the_optimizer_writes() -> None:
    model = Root()
    before = model.fc.weight.detach().clone()
    text = str(_raised(model))
    assert "the gradient of aten.sqrt.default (aten.div.Tensor) made Inf in Root, backward" in text
    assert "add a small number before the root" in text
    assert torch.equal(model.fc.weight, before)


def test_a_loss_outside_any_module_is_found_when_backward_begins() -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(clew.NonFiniteError, match="backward was called on"), clew.guard():
        model(torch.ones(1, 2)).sub(1e9).relu().log().sum().backward()
    assert model.weight.grad is None


def test_a_result_that_nothing_uses_is_found_at_the_end() -> None:
    with pytest.raises(clew.NonFiniteError, match="the end of the block"), clew.guard():
        torch.zeros(2).log()


def test_nan_of_the_data_is_no_error() -> None:
    model = nn.Linear(2, 1)
    _step(model, torch.tensor([[1.0, float("nan")]]))
    with clew.trace(model, values="stats") as t:
        model(torch.tensor([[1.0, float("nan")]]))
    assert [found.kind for found in t.nonfinite()][:1] == ["input"]


def test_nan_of_a_parameter_is_no_error() -> None:
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, float("nan"))
    with clew.guard():
        model(torch.ones(1, 2))


def test_what_is_absorbed_is_no_error_unless_any_op_is_asked_for() -> None:
    def run() -> None:
        x = torch.tensor([0.0, 1.0])
        torch.where(x > 0, x.log(), x).sum()
        nn.Identity()(x)

    with clew.guard():
        run()
    with pytest.raises(clew.NonFiniteError, match="aten.log.default"), clew.guard(at="op"):
        run()


def test_a_mask_is_no_error_for_any_op() -> None:
    with clew.guard(at="op"):
        nn.Softmax(-1)(torch.zeros(2, 2).masked_fill(torch.eye(2).bool(), float("-inf")))


@pytest.mark.parametrize("allow", ["Log", "op:aten.log.default", "op:aten.log*", "line:{}"])
def test_allowed_addresses_pass(allow: str) -> None:
    model = Log()
    line = f"test_guard.py:{Log.forward.__code__.co_firstlineno + 1}"
    with clew.guard(allow=[allow.format(line)]):
        model(torch.ones(1, 2))
    with pytest.raises(clew.NonFiniteError), clew.guard(allow=["op:aten.exp*", "Other.*"]):
        model(torch.ones(1, 2))


def test_only_nan_or_only_inf() -> None:
    inf: Callable[[], Any] = lambda: nn.Identity()(torch.full((2,), 200.0).exp())  # noqa: E731
    nan: Callable[[], Any] = lambda: nn.Identity()(torch.zeros(2) / torch.zeros(2))  # noqa: E731
    with clew.guard(inf=False):
        inf()
    with clew.guard(nan=False):
        nan()
    for run in (inf, nan):
        with pytest.raises(clew.NonFiniteError), clew.guard():
            run()


def test_wrong_arguments_say_what_to_write() -> None:
    with pytest.raises(clew.ClewError, match="'reach', 'op'"):
        clew.guard(at="end")
    with pytest.raises(clew.ClewError, match="cannot read the address"):
        clew.guard(allow=["a..b"])


def test_an_overflow_that_a_scaler_handles_is_no_error() -> None:
    model = nn.Linear(4, 4)
    assert _scaled_step(model, 2.0**24) == 2.0**23  # skipped, and the scale was lowered
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(2, 4)).float().sum() * 2.0**24
    with pytest.raises(clew.NonFiniteError, match="float16"), clew.guard():
        loss.backward()


def test_a_scaler_does_not_excuse_nan_or_a_scale_of_one() -> None:
    with pytest.raises(clew.NonFiniteError, match="sqrt"):
        _scaled_step(Root(), 8.0)
    with pytest.raises(clew.NonFiniteError, match="float16"):
        _scaled_step(nn.Linear(4, 4), 1.0, times=2.0**24)


def test_bits_and_random_numbers_stay_as_they_are() -> None:
    program = dict(clean_programs())["gpt"]
    alone = program("train", "float32")
    state = torch.get_rng_state()
    _, step = program.prepare("train", "float32")
    with clew.guard():
        guarded = [step() for _ in range(3)]
    assert guarded == alone
    assert torch.equal(torch.get_rng_state(), state)


def test_the_innermost_guard_decides() -> None:
    model = Log()
    with clew.guard():
        with clew.guard(allow="Log"):
            model(torch.ones(1, 2))
        with pytest.raises(clew.NonFiniteError):
            model(torch.ones(1, 2))
    with clew.guard(allow="Log"), pytest.raises(clew.NonFiniteError), clew.guard():
        model(torch.ones(1, 2))


def test_an_open_guard_is_not_entered_again_but_a_closed_one_is() -> None:
    guard = clew.guard()
    with guard, pytest.raises(clew.ClewError, match="open already"):
        guard.__enter__()
    with pytest.raises(clew.NonFiniteError), guard:
        Log()(torch.ones(1, 2))


def test_threads_of_the_block_are_guarded_and_older_ones_are_not() -> None:
    raised: list[str] = []
    go, model = threading.Event(), Log()

    def run(name: str) -> None:
        go.wait()
        try:
            model(torch.ones(1, 2))
        except clew.NonFiniteError:
            raised.append(name)

    older = threading.Thread(target=run, args=("older",))
    older.start()
    with clew.guard():
        younger = threading.Thread(target=run, args=("younger",))
        younger.start()
        go.set()
        older.join()
        younger.join()
    assert raised == ["younger"]


def test_beside_a_trace() -> None:
    model = Log()
    with pytest.raises(clew.NonFiniteError), clew.trace(model) as t, clew.guard():
        model(torch.ones(1, 2))
    assert t.crash is not None
    assert "NonFiniteError" in t.crash.exception
    with pytest.raises(clew.NonFiniteError), clew.guard(), clew.trace(model):
        model(torch.ones(1, 2))


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_DISABLE", "1")
    with clew.guard():
        Log()(torch.ones(1, 2)).sum().backward()


def test_exceptions_of_the_program_come_out_unchanged() -> None:
    with pytest.raises(IndexError) as caught, clew.guard():
        torch.zeros(2).log()[5]
    assert not getattr(caught.value, "__notes__", [])


def test_a_gradient_of_compiled_code_is_found_before_the_optimizer_writes() -> None:
    model = Root()
    before = model.fc.weight.detach().clone()
    compiled = torch.compile(model, backend="aot_eager")
    with pytest.raises(clew.NonFiniteError):
        _step(compiled, torch.ones(1, 2))
    assert torch.equal(model.fc.weight, before)
    torch.compiler.reset()


def test_inf_that_is_harmless_is_searched_for_ever_more_rarely() -> None:
    model = nn.Identity()
    mask = torch.zeros(2, 2).masked_fill(torch.eye(2).bool(), float("-inf"))
    with clew.guard() as guard:
        for _ in range(40):
            model(mask)
        assert guard.searches <= 7


def _step(model: Any, x: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with clew.guard():
        model(x).sum().backward()
        optimizer.step()


def _raised(model: nn.Module) -> clew.NonFiniteError:
    with pytest.raises(clew.NonFiniteError) as caught:
        _step(model, torch.ones(1, 2))
    return caught.value


def _scaled_step(model: nn.Module, scale: float, times: float = 1.0) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    x = torch.ones(2, next(model.parameters()).shape[-1])
    with warnings.catch_warnings(), clew.guard():
        warnings.simplefilter("ignore", UserWarning)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(x).float().sum() * times
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


class Narrow(nn.Module):
    """A product in float16, near the end of its range or not."""

    def forward(self, x: Tensor, times: float) -> Tensor:
        mask = torch.tensor([[True, False, False, False]])
        return (x * times).masked_fill(mask, torch.finfo(x.dtype).min).softmax(-1)


@pytest.mark.parametrize(("times", "is_near"), [(40_000.0, True), (20_000.0, False)])
def test_numbers_near_the_end_of_float16_are_a_finding_and_a_warning(
    times: float, is_near: bool
) -> None:
    model, x = Narrow(), torch.ones(1, 4, dtype=torch.float16)
    with clew.trace(model, values="stats") as t:
        model(x, times)
    found = [finding.text for finding in t.findings if finding.kind == "range"]
    with warnings.catch_warnings(record=True) as warned, clew.guard():
        warnings.simplefilter("always")
        model(x, times)
    texts = [str(one.message) for one in warned if one.category is clew.ClewWarning]
    if is_near:
        assert len(found) == len(texts) == 1
        assert "aten.mul.Tensor" in found[0]
        assert "numbers up to 40000" in found[0]
        assert "numbers up to 40000, and float16 ends at 65504" in texts[0]
    else:
        assert not found
        assert not texts


def test_gradients_that_become_0_in_float16_are_a_finding() -> None:
    model = nn.Linear(8, 8)

    def step(scale: float) -> list[str]:
        with clew.trace(model, values="stats") as t:
            with torch.autocast("cpu", dtype=torch.float16):
                y = model(torch.ones(4, 8))
            (y.float().mean() * scale).backward()
        return [finding.text for finding in t.findings if finding.kind == "range"]

    assert step(1.0) == []
    (text,) = step(1e-9)
    assert "32 of 32 elements of a gradient became 0 in float16" in text
    assert "GradScaler" in text
