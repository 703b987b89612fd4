"""Snapshots of models: what is written, what counts as a difference, what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clew.errors import ClewError
from clew.testing.model_snapshots import Snapshots


class Block(nn.Module):
    """A layer with lines of its own."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(self.norm(x))
        return x + self.scale * h  # the line of the block itself


class Model(nn.Module):
    """Two blocks, the second perhaps with another scale, and a head that is called twice."""

    def __init__(self, scale: float = 1.0, extra: type[nn.Module] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = Block(), Block(scale), nn.Linear(8, 8)
        self.extra = extra() if extra is not None else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        if self.extra is not None:
            x = self.extra(x)
        return self.head(self.head(x))


class Renamed(Model):
    """The same numbers by other names."""

    def __init__(self) -> None:
        super().__init__()
        self.tail = self.head
        del self.head

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.tail(self.second(self.first(x))))


Taken = Callable[..., Snapshots]


@pytest.fixture
def taken(tmp_path: Path) -> Taken:
    """Return what makes the snapshots of one test, as a new run of pytest does."""

    def snapshots(*, update: bool = False, test: str = "test_model") -> Snapshots:
        file = tmp_path / "test_it.py"
        return Snapshots(file, test, here=tmp_path, update=update, failed=lambda t: None)

    return snapshots


def rows() -> Tensor:
    """Return the same inputs each time."""
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def difference(snapshots: Snapshots, model: object, *args: object, **options: object) -> str:
    """Return what a check says that fails."""
    with pytest.raises(AssertionError) as raised:
        snapshots.check(model, *args, **options)  # type: ignore[arg-type]
    return str(raised.value)


def test_a_line_for_each_call_in_the_order_they_ended(taken: Taken) -> None:
    snapshots = taken(update=True)
    y = snapshots.check(Model(), rows())
    assert torch.equal(y, Model()(rows()))
    title, _, name, made, *lines = snapshots.path.read_text().splitlines()
    assert (title, name) == ("clew snapshot 1 of test_model", "[check 1]")
    assert f"torch {torch.__version__}" in made
    assert "default float32" in made
    assert [line.split()[:3] for line in lines] == [
        ["input:0", "Tensor", "f32[4,8]"],
        ["first.norm", "LayerNorm", "f32[4,8]"], ["first.fc", "Linear", "f32[4,8]"],
        ["first", "Block", "f32[4,8]"],
        ["second.norm", "LayerNorm", "f32[4,8]"], ["second.fc", "Linear", "f32[4,8]"],
        ["second", "Block", "f32[4,8]"],
        ["head", "Linear", "f32[4,8]"], ["head#1", "Linear", "f32[4,8]"],
        ["(root)", "Model", "f32[4,8]"],
    ]  # fmt: skip
    x = rows()
    numbers = lines[0].split()
    assert float(numbers[4]) == pytest.approx(float(x.mean()), abs=1e-5)
    assert float(numbers[8]) == pytest.approx(float(x.min()), abs=1e-4)
    assert all(len(line) < 150 for line in lines)
    taken().check(Model(), rows())


def test_the_first_call_that_differs_is_named_with_its_line(taken: Taken) -> None:
    taken(update=True).check(Model(), rows())
    said = difference(taken(), Model(scale=1.01), rows())
    assert "the first call that differs is second (Block)" in said
    assert "called at test_snapshots.py:" in said
    assert "x = self.second(self.first(x))" in said
    assert "return x + self.scale * h  # the line of the block itself" in said
    assert "computes" in said
    assert re.search(r"mean: \S+ expected, \S+ found", said)
    assert "5 calls before it agree, and so do the inputs" in said
    assert "after it differ: head, head#1, (root)" in said
    assert "__clew__/test_it/test_model.txt [check 1]" in said
    assert "if this is meant: pytest --clew-update test_it.py::test_model" in said


def test_noise_is_no_difference(taken: Taken) -> None:
    taken(update=True).check(Model(), rows())
    taken().check(Model(), rows() * (1 + 1e-7))
    assert "the inputs differ already: 0" in difference(taken(), Model(), rows() * (1 + 1e-4))
    taken().check(Model(), rows() * (1 + 1e-4), tol=1e-2)


def test_noise_is_measured_where_a_model_makes_more_of_it(taken: Taken) -> None:
    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.fc = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x)
            return (y - y.detach().round(decimals=3)) * 1e3  # loses the first digits

    snapshots = taken(update=True)
    snapshots.check(Steep(), rows())
    last = snapshots.path.read_text().splitlines()[-1]
    assert float(last.partition(" tol ")[2]) > 2e-5
    assert " tol " not in snapshots.path.read_text().splitlines()[-2]
    taken().check(Steep(), rows())


def test_other_order_of_elements_is_a_difference(taken: Taken) -> None:
    taken(update=True).check(lambda x: x.flip(0), rows())
    said = difference(taken(), lambda x: x.roll(1, 0), rows())
    assert "the first call that differs is result:0" in said
    assert "axes: " in said
    assert "mean: " not in said


def test_what_changed_in_the_structure_is_named(taken: Taken) -> None:
    taken(update=True).check(Model(), rows())
    said = difference(taken(), Model(extra=nn.Tanh), rows())
    assert "calls added: extra (Tanh)" in said
    assert "the first call that differs is head" in said
    said = difference(taken(), Model(extra=nn.Identity), rows())
    assert "calls added: extra (Identity)" in said
    assert "the numbers of all calls that remain agree" in said
    said = difference(taken(), Renamed(), rows())
    assert "calls renamed: head is tail, head#1 is tail#1" in said
    taken(update=True, test="test_more").check(Model(extra=nn.Tanh), rows())
    said = difference(taken(test="test_more"), Model(), rows())
    assert "calls gone: extra (Tanh)" in said
    said = difference(taken(), Model(), rows()[:3])
    assert "value f32[4,8] expected, f32[3,8] found" in said


def test_other_weights_are_named_as_such(taken: Taken) -> None:
    taken(update=True).check(Model(), rows())
    model = Model()
    nn.init.normal_(model.second.fc.weight)
    said = difference(taken(), model, rows())
    assert "the first call that differs is second.fc" in said
    assert "weights: norm" in said
    assert "was the model made with the same seed" in said


def test_gradients(taken: Taken) -> None:
    class Gate(torch.autograd.Function):
        scale = 1.0

        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad * Gate.scale

    class Gated(Model):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(Gate.apply(self.second(self.first(x))))

    model = Gated()
    taken(update=True).check(model, rows(), gradients=True)
    taken().check(model, rows(), gradients=True)
    assert model.head.weight.grad is None
    Gate.scale = 1.1
    said = difference(taken(), model, rows(), gradients=True)
    assert "the first gradient that differs is that of second.fc.bias" in said
    taken(update=True, test="test_loss").check(model, rows(), gradients=lambda y: y[:, 0].sum())
    text = taken(test="test_loss").path.read_text()
    assert "head.bias:grad Tensor f32[8] mean 0.5" in text
    normed = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    taken(update=True, test="test_normed").check(normed, rows(), gradients=True)
    text = taken(test="test_normed").path.read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("0.weight:grad"))
    assert float(line.split()[6]) > 1e-3  # not 0 but for rounding
    with (
        pytest.raises(ClewError, match="nothing that the model returned requires a gradient"),
        torch.no_grad(),
    ):
        taken(test="test_none").check(model, x=rows(), gradients=True)


def test_a_model_is_left_as_it_was_and_draws_what_it_drew(taken: Taken) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5))
    before = {name: one.clone() for name, one in model.state_dict().items()}
    x, state = rows(), torch.get_rng_state()
    taken(update=True).check(model, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert torch.equal(x, rows())
    taken().check(model, x)
    torch.manual_seed(4)
    assert "the first call that differs is 1 (Dropout)" in difference(taken(), model, x)


def test_a_model_that_does_not_repeat_itself_gets_no_snapshot(taken: Taken) -> None:
    calls: list[int] = []

    def counting(x: Tensor) -> Tensor:
        calls.append(1)
        return x + len(calls)

    snapshots = taken(update=True)
    said = difference(snapshots, counting, rows())
    assert "no snapshot was written: a second run from the same random state differs" in said
    assert not snapshots.path.exists()


def test_a_missing_snapshot_fails_and_writes_nothing(taken: Taken, tmp_path: Path) -> None:
    said = difference(taken(), Model(), rows())
    assert "there is no snapshot [check 1] in __clew__/test_it/test_model.txt" in said
    assert "write it with: pytest --clew-update test_it.py::test_model" in said
    assert list(tmp_path.iterdir()) == []
    taken(update=True).check(Model(), rows(), name="other")
    assert "it has [other]" in difference(taken(), Model(), rows())


def test_update_leaves_what_agrees_and_removes_what_nobody_checks(taken: Taken) -> None:
    first = taken(update=True)
    for name in ("kept", "changed", "unused"):
        first.check(Model(), rows(), name=name)
    before = first.path.read_text()
    again = taken(update=True)
    again.check(Model(), rows() * (1 + 1e-7), name="kept")
    again.check(Model(), rows(), name="changed")
    assert first.path.read_text() == before
    third = taken(update=True)
    third.check(Model(), rows(), name="kept")
    third.check(Model(scale=2), rows(), name="changed")
    third.finish(passed=True)
    assert third.notes == [
        "rewrote __clew__/test_it/test_model.txt [changed]",
        "removed __clew__/test_it/test_model.txt [unused]",
    ]
    kept, _, changed = before.partition("[changed]")
    kept_after, _, changed_after = first.path.read_text().partition("[changed]")
    assert kept_after == kept
    assert changed_after.split() != changed.partition("[unused]")[0].split()
    with pytest.raises(ClewError, match="once in each test"):
        third.check(Model(), rows(), name="kept")


def test_another_environment_is_named(taken: Taken) -> None:
    path = taken().path
    taken(update=True).check(Model(), rows())
    path.write_text(path.read_text().replace(f"torch {torch.__version__}", "torch 1.0"))
    other = taken()
    other.check(Model(), rows())
    said = f"made with torch 1.0; here is torch {torch.__version__}"
    assert other.notes == [f"snapshots agree that were {said}"]
    assert f"the snapshot was {said}" in difference(taken(), Model(scale=2), rows())


def test_all_kinds_of_values(taken: Taken) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor, *, mask: Tensor, name: str = "") -> dict[str, object]:
            half = x.to(torch.bfloat16)
            return {
                "half": half, "index": x.argmax(1), "mask": mask, "none": None,
                "parts": [x.to(torch.complex64), x.log(), x[:0], x.sum()],
            }  # fmt: skip

    snapshots = taken(update=True)
    snapshots.check(partial(Odd(), name="x"), rows(), mask=rows() > 0)
    lines = [line.split()[:3] for line in snapshots.path.read_text().splitlines()[4:]]
    assert lines == [
        ["input:0", "Tensor", "f32[4,8]"], ["input:mask", "Tensor", "b8[4,8]"],
        ["(root):half", "Odd", "bf16[4,8]"], ["(root):index", "Odd", "i64[4]"],
        ["(root):mask", "Odd", "b8[4,8]"], ["(root):parts.0", "Odd", "c64[4,8]"],
        ["(root):parts.1", "Odd", "f32[4,8]"], ["(root):parts.2", "Odd", "f32[0,8]"],
        ["(root):parts.3", "Odd", "f32[]"],
    ]  # fmt: skip
    assert f" nan {int((rows() < 0).sum())}" in snapshots.path.read_text()
    taken().check(partial(Odd(), name="x"), rows(), mask=rows() > 0)
    with pytest.raises(ClewError, match="check\\(\\) takes a model or function, not int"):
        taken().check(3)  # type: ignore[arg-type]
