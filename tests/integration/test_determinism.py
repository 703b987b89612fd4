"""A program is run twice: what differs first is named, and nothing where nothing does."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew
from clew.cli.main import main

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def program(middle: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    """Make a program that computes something between two layers."""
    torch.manual_seed(0)
    first, last = nn.Linear(8, 8), nn.Linear(8, 2)
    return lambda: last(middle(first(X)))


def _other_generator(x: Tensor) -> Tensor:
    generator = torch.Generator()
    generator.seed()
    return x + torch.randn(x.shape, generator=generator)


def _drawn_by_numpy(x: Tensor) -> Tensor:
    return x + torch.from_numpy(np.random.default_rng().normal(size=(4, 8)).astype("float32"))


def _padded(x: Tensor) -> Tensor:
    buffer = torch.empty(16, 8)
    buffer[:4] = x
    return torch.relu(buffer)[:4]


def _seeded(x: Tensor) -> Tensor:
    noise = torch.from_numpy(np.random.rand(4, 8).astype("float32"))
    return torch.dropout(x, 0.5, True) + noise * random.random()


@torch.library.custom_op("clew_tests::unsteady", mutates_args=())
def unsteady(x: Tensor) -> Tensor:
    """Stand for a kernel whose threads add in another order each time."""
    return x * (1 + 1e-6 * next(_calls))


_calls = itertools.count()


@pytest.mark.parametrize("middle", [torch.sin, _seeded])
def test_a_program_that_repeats_itself_is_the_same(middle: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    found = clew.determinism(program(middle), n=3)
    assert found.equal, str(found)
    assert str(found) == "no difference\nmatched: 100% of a, 100% of b\ncompared bit for bit"
    torch.manual_seed(3)
    assert torch.equal(state, torch.get_rng_state())


def test_the_op_that_returns_other_bits_for_the_same_is_named() -> None:
    found = clew.determinism(program(unsteady))
    assert found.first is not None
    assert found.first.b is not None
    assert found.first.kind == "wrong"
    assert found.first.b.name == "clew_tests.unsteady.default"
    assert found.first.evidence[0].startswith("its inputs agree bit for bit, its result differs by")


def test_random_numbers_are_named_as_such() -> None:
    first = clew.determinism(program(_other_generator)).first
    assert first is not None
    assert first.b is not None
    assert (first.kind, first.b.name) == ("wrong", "aten.randn.generator")
    assert "began with another seed or state" in first.evidence[-1]
    counts = itertools.count()

    def drawn_before(x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        for _ in range(next(counts)):
            torch.rand(8, generator=generator)
        return torch.bernoulli(x.sigmoid(), generator=generator)

    first = clew.determinism(program(drawn_before)).first
    assert first is not None
    assert first.b is not None
    assert (first.kind, first.b.name) == ("extra", "aten.rand.generator")


def test_inputs_from_outside_are_said_to_differ() -> None:
    first = clew.determinism(program(_drawn_by_numpy)).first
    assert first is not None
    assert first.kind == "inputs"
    assert any(said.startswith("inputs differ from here: ") for said in first.evidence)


@pytest.mark.parametrize(("doubled", "kind"), [(0, "missing"), (1, "extra")])
def test_an_op_that_only_one_run_has_is_named(doubled: int, kind: str) -> None:
    counts = itertools.count()
    first = clew.determinism(program(lambda x: x * 2 if next(counts) == doubled else x)).first
    assert first is not None
    event = first.a if kind == "missing" else first.b
    assert event is not None
    assert (first.kind, event.name) == (kind, "aten.mul.Tensor")


def test_memory_that_nothing_has_written_raises_no_alarm() -> None:
    """Whatever it holds: beside huge numbers small ones add nothing to a sum."""
    for scale in [1.0, 1e30] * 20:
        left = [scale * torch.randn(size) for size in (16, 32, 64, 128, 128, 128)]
        del left
        found = clew.determinism(program(_padded))
        assert found.equal, str(found)


def test_a_parameter_that_training_has_changed_is_named(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()

    found = clew.determinism(step)
    assert found.first is not None
    assert found.first.kind == "inputs"
    found.html(tmp_path / "reruns.html")
    assert (tmp_path / "reruns.html").exists()


def test_it_takes_two_runs() -> None:
    with pytest.raises(clew.ClewError, match="it takes two runs or more"):
        clew.determinism(lambda: None, n=1)


SCRIPT = """
import sys
if "--fail" in sys.argv:
    raise SystemExit(3)
import torch
if "--seed" in sys.argv:
    torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
print("loss", model(torch.ones(3, 8)).sum().item())
"""


@pytest.mark.parametrize(("given", "code"), [(["--seed"], 0), ([], 1), (["--fail"], 2)])
def test_the_command_runs_a_program_twice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], given: list[str], code: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    folder = tmp_path / "kept"
    assert main(["determinism", "--json", "--out", str(folder), str(script), *given]) == code
    out, err = capfd.readouterr()
    if code == 2:
        assert "the program failed in run 1, with the exit code 3" in err
        return
    assert err.count("loss ") == 2
    data = json.loads(out)
    assert data["equal"] == (code == 0)
    assert sorted(path.name for path in folder.iterdir()) == ["run-1.clew", "run-2.clew"]
    if code:
        assert data["first"]["b"]["name"] == "aten.uniform_.default"
        assert "began with another seed" in data["first"]["evidence"][-1]


def test_the_command_says_what_it_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["determinism", "nowhere.py"]) == 2
    assert "there is no such file" in capsys.readouterr().err
