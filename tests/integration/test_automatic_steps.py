"""Steps of programs that never call `t.step()`: by their optimizers and forward passes."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.checkpoint import checkpoint

import clew
from tests.same_trace import facts_of

X = torch.ones(2, 2)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


class Program:
    """A model that is trained and evaluated."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = net() if model is None else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def train(self, steps: int, passes: int = 1) -> None:
        self.model.train()
        for _ in range(steps):
            for _ in range(passes):
                self.model(X).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def evaluate(self, passes: int = 2) -> None:
        self.model.eval()
        with torch.no_grad():
            for _ in range(passes):
                self.model(X)


def outermost(t: clew.Trace) -> dict[int, int]:
    """How many calls of the whole model, or of others beside it, each step has."""
    return dict(Counter(e.step for e in t.modules if e.parent is None))


def test_a_step_ends_when_the_forward_after_an_optimizer_begins() -> None:
    program = Program()
    with clew.trace(program.model) as t:
        program.train(3)
    assert outermost(t) == {0: 1, 1: 1, 2: 1}
    assert t.modes == {0: "train", 1: "train", 2: "train"}
    for step in range(3):
        phases = [e.phase for e in t.only(step=step).ops]
        assert set(phases) == {"forward", "backward", "optimizer"}
        assert phases.index("backward") < phases.index("optimizer")
    assert t.env["steps"] == "automatic"


def test_passes_of_one_gradient_accumulation_are_one_step() -> None:
    program = Program()
    with clew.trace(program.model) as t:
        program.train(3, passes=4)
    assert outermost(t) == {0: 4, 1: 4, 2: 4}


def test_several_optimizers_between_two_forwards_are_one_step() -> None:
    model = net()
    optimizers = [torch.optim.SGD([p], 0.1) for p in model.parameters()]
    with clew.trace(model) as t:
        for _ in range(3):
            model(X).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    assert outermost(t) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("named", [True, False])
def test_a_gan_has_a_step_for_each_of_its_two_optimizers(named: bool) -> None:
    generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.Adam(m.parameters()) for m in (critic, generator)]
    with clew.trace({"generator": generator, "critic": critic} if named else None) as t:
        for _ in range(2):
            loss = critic(generator(X).detach()).sum() - critic(X).sum()
            loss.backward()
            optimizers[0].step()
            critic(generator(X)).sum().backward()
            optimizers[1].step()
    assert outermost(t) == {0: 3, 1: 2, 2: 3, 3: 2}
    assert set(t.modes.values()) == {"train"}


def test_forwards_inside_an_optimizer_are_of_its_step() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)
    passes = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = ((model(X) - 3) ** 2).sum()
        loss.backward()
        passes[-1] += 1
        return loss

    with clew.trace(model) as t:
        for _ in range(3):
            passes.append(0)
            optimizer.step(closure)
    assert min(passes) > 1
    assert outermost(t) == dict(enumerate(passes))


@pytest.mark.parametrize("named", [True, False])
def test_an_evaluation_is_a_step_of_its_own(named: bool) -> None:
    program = Program()
    with clew.trace(program.model if named else None) as t:
        program.evaluate()
        for _ in range(2):
            program.train(2)
            program.evaluate(3)
    modes = ["eval", "train", "train", "eval", "train", "train", "eval"]
    assert t.modes == dict(enumerate(modes))
    assert outermost(t) == {0: 2, 1: 1, 2: 1, 3: 3, 4: 1, 5: 1, 6: 3}
    if named:
        assert t.series("", mode="train").steps == [1, 2, 4, 5]


def test_a_frozen_teacher_does_not_split_steps() -> None:
    teacher, program, loss = net().eval(), Program(), nn.MSELoss()
    with clew.trace() as t:
        for _ in range(3):
            loss(program.model(X), teacher(X)).backward()
            program.optimizer.step()
    assert outermost(t) == {0: 3, 1: 3, 2: 3}


def test_without_an_optimizer_there_is_one_step() -> None:
    model = net()
    with clew.trace(model) as t:
        for _ in range(3):
            model(X).sum().backward()
    assert t.steps == [0]


def test_a_forward_that_a_checkpoint_runs_again_begins_no_step() -> None:
    """An optimizer makes a step in the middle of the backward pass, before a recomputation."""
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], 0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
    with clew.trace(model) as t:
        for _ in range(3):
            h = checkpoint(model[0], X, use_reentrant=False)
            checkpoint(model[1], h, use_reentrant=False).sum().backward()
    assert t.steps == [0, 1, 2]
    recomputed = [e.step for e in t.modules if e.phase == "recompute"]
    assert recomputed == [0, 0, 1, 1, 2, 2]


def test_a_step_inside_a_wrapper_lasts_until_the_wrapper_runs_again() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.program = [Program()]

        def forward(self) -> None:
            self.program[0].train(2)

    loop = Loop()
    for schedule in (None, clew.schedule(every=2)):
        with clew.trace(schedule=schedule) as t:
            for _ in range(4):
                loop()
        assert t.steps == ([0, 1, 2, 3] if schedule is None else [1, 3])


def test_modules_on_other_threads_begin_no_step() -> None:
    program, other = Program(), nn.Linear(2, 2)

    def elsewhere() -> None:
        for _ in range(3):
            thread = threading.Thread(target=other, args=(X,))
            thread.start()
            thread.join()

    with clew.trace(level="modules") as t:
        program.train(1)
        elsewhere()
        program.train(1)
        elsewhere()
    assert [(e.module, e.step) for e in t.modules if e.parent is None] == (
        [("Sequential", 0), *[("Linear", 0)] * 3, ("Sequential", 1), *[("Linear", 1)] * 3]
    )


def test_training_on_another_thread_makes_steps_too() -> None:
    program = Program()
    with clew.trace(program.model) as t:
        thread = threading.Thread(target=program.train, args=(3,))
        thread.start()
        thread.join()
    assert outermost(t) == {0: 1, 1: 1, 2: 1}


def test_a_forward_past_the_hooks_begins_a_step() -> None:
    program = Program()
    with clew.trace(program.model) as t:
        for _ in range(3):
            program.model.forward(X).sum().backward()
            program.optimizer.step()
    assert outermost(t) == {0: 1, 1: 1, 2: 1}


def test_the_first_step_call_switches_it_off() -> None:
    program = Program()
    with clew.trace(program.model) as t:
        program.train(1)
        assert t.step() == 1  # before another forward: the same step as would have begun
        program.train(3)
        assert t.step() == 2
        program.train(1)
        program.evaluate()
    assert outermost(t) == {0: 1, 1: 3, 2: 3}
    assert t.env["steps"] == "step()"


def test_steps_found_before_the_first_step_call_stay() -> None:
    program = Program()
    with clew.trace(program.model) as t:
        program.train(3)
        assert t.step() == 3
        program.train(2)
        assert t.step() == 4
        program.train(1)
    assert outermost(t) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 1}
    assert t.env["steps"] == "automatic to 2, then step()"


@pytest.mark.parametrize("level", ["ops", "modules"])
@pytest.mark.parametrize("named", [True, False])
def test_a_schedule_counts_the_steps_it_leaves_out(level: str, named: bool) -> None:
    program = Program()

    def run(schedule: clew.schedule | None) -> clew.Trace:
        with clew.trace(program.model if named else None, level=level, schedule=schedule) as t:
            program.evaluate()
            program.train(4, passes=2)
            program.evaluate()
            program.evaluate()
            program.train(5)
        return t

    whole = run(None)
    assert whole.steps == list(range(11))
    for wait in range(1, 5):
        some = run(clew.schedule(wait=wait))
        steps = list(range(wait, 11, wait + 1))
        assert some.steps == steps
        assert some.modes == {step: whole.modes[step] for step in steps}
        counts = outermost(whole)
        assert outermost(some) == {step: counts[step] for step in steps}
        assert _told(some) == [fact for fact in _told(whole) if fact[0] in steps]


def _told(t: clew.Trace) -> list[Any]:
    """What is told of each call and op."""
    return [
        (e.step, e.name, e.module, e.phase, str(e.source), len(e.inputs), len(e.outputs), e.error)
        for e in t.events
        if e.kind != "step" and not e.name.startswith("aten.zero")
    ]


def test_steps_left_out_cost_a_forward_nothing() -> None:
    """After the first forward of a step no hook of ours is left, until an optimizer steps."""
    program, hooks = Program(), []
    program.model[0].register_forward_pre_hook(
        lambda *_: hooks.append(len(nn_module._global_forward_pre_hooks))
    )
    with clew.trace(program.model, schedule=clew.schedule(skip_first=100)):
        program.train(3, passes=3)
        program.evaluate()
        program.train(2)
        # Its own end is watched for in an evaluation.
        assert hooks == [0] * 9 + [1, 1] + [0] * 2
        assert not nn_module._global_forward_hooks


def test_nothing_stays_installed() -> None:
    program = Program()

    def installed() -> tuple[int, int]:
        posts = torch_optimizer._global_optimizer_post_hooks
        return len(nn_module._global_forward_pre_hooks), len(posts)

    before = installed()
    for schedule in (None, clew.schedule(skip_first=100)):
        for explicit in (False, True):
            with clew.trace(program.model, schedule=schedule) as t:
                program.train(1)
                if explicit:
                    t.step()
                    assert installed()[1] == before[1]
            assert installed() == before


def test_a_schedule_that_left_out_everything_says_so_and_no_more() -> None:
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    with pytest.warns(
        UserWarning, match="leaves out every step there was, the last of them step 0"
    ):
        with clew.trace(schedule=clew.schedule(every=2)) as t:
            for _ in range(4):
                weight.square().backward()
                optimizer.step()
    (gap,) = t.coverage
    assert "as does, where it is never called, the first forward after" in gap.remedy
    program, some = Program(), ["0", "0.weight:param", "forward.input"]
    with pytest.warns(UserWarning, match="the last of them step 2"):
        with clew.trace(program.model, schedule=clew.schedule(skip_first=9), capture=some) as t:
            program.train(3)
    assert len(t.coverage) == 1


def test_level_values_has_steps_too() -> None:
    program = Program(nn.Sequential(nn.Linear(2, 2)))
    with clew.trace(program.model, level="values", capture=["0", "0.weight:param"]) as t:
        program.train(3)
        program.evaluate(1)
    assert t.series("0").steps == [0, 1, 2, 3]
    assert t.series("0").modes == ["train", "train", "train", "eval"]
    assert t.series("0.weight:param").steps == [0, 0, 1, 2]


def test_a_parameter_is_recorded_in_the_step_that_changed_it() -> None:
    program = Program(nn.Linear(2, 2))
    with clew.trace(program.model, capture=["weight:param", "weight:grad"]) as t:
        program.train(3)
    assert t.series("weight:grad").steps == [0, 1, 2]
    # As it was at first, and after each step.
    assert t.series("weight:param").steps == [0, 0, 1, 2]


@pytest.mark.parametrize("explicit", [True, False])
def test_what_sources_find_when_they_come_back_is_of_the_step_that_begins(explicit: bool) -> None:
    program = Program(nn.Linear(2, 2))
    every = clew.schedule(every=2)
    with clew.trace(program.model, schedule=every, capture=["weight:param"]) as t:
        for _ in range(6):
            program.train(1)
            if explicit:
                t.step()
    assert set(t.series("weight:param").steps) == {1, 3, 5}


@pytest.mark.parametrize("explicit", [True, False])
def test_a_watched_loop_is_followed_in_the_steps_of_a_schedule(explicit: bool) -> None:
    program = Program()

    def loop() -> None:
        for _ in range(6):
            loss = program.model(X).sum()
            loss.backward()
            program.optimizer.step()
            if explicit:
                t.step()

    with clew.trace(program.model, schedule=clew.schedule(every=2), watch=["loss"]) as t:
        loop()
    assert {e.step for e in t.variables} == {1, 3, 5}


def test_callbacks_and_gather_count_them() -> None:
    program = Program()
    means = {"0": clew.Callbacks(before_gather=lambda values: [sum(v.sum() for v in values)])}
    with clew.trace(program.model, level="values", gather=2, callbacks=means, values="full") as t:
        program.train(6)
    assert [e.step for e in t.events if e.kind == "gathered"] == [1, 3, 5]
    every = {"0": clew.Callbacks(every=2, only="train")}
    with clew.trace(program.model, level="values", callbacks=every) as t:
        for _ in range(2):
            program.train(2)
            program.evaluate()
    assert t.series("0").steps == [1, 4]


@pytest.mark.parametrize("level", ["ops", "modules"])
@pytest.mark.parametrize("schedule", [None, clew.schedule(every=2)])
def test_a_streamed_trace_has_the_same_steps(
    level: str, schedule: clew.schedule | None, tmp_path: Path
) -> None:
    program = Program()
    with clew.trace(program.model, level=level, schedule=schedule) as kept:
        program.train(4)
        program.evaluate()
    with clew.trace(
        program.model, level=level, schedule=schedule, out=tmp_path / "run.clew"
    ) as streamed:
        program.train(4)
        program.evaluate()
    loaded = clew.load(tmp_path / "run.clew")
    assert loaded.steps == kept.steps
    assert loaded.modes == kept.modes
    assert outermost(loaded) == outermost(kept)
    assert loaded.env["steps"] == "automatic"
    assert facts_of(loaded) == facts_of(streamed)


def test_each_step_is_on_disk_when_the_next_begins(tmp_path: Path) -> None:
    program, read = Program(), []
    with clew.trace(program.model, out=tmp_path / "run.clew") as t:
        program.model.register_forward_hook(lambda *_: read.append(t.flush().steps))
        program.train(3)
    assert read == [[0], [0, 1], [0, 1, 2]]


def test_a_decorated_training_step_is_a_step() -> None:
    program = Program()
    t = clew.trace(program.model)

    @t
    def train() -> None:
        program.train(1)

    for _ in range(3):
        train()
    assert outermost(t) == {0: 1, 1: 1, 2: 1}


def test_past_the_limit_of_events_steps_go_on() -> None:
    program = Program()
    with clew.trace(program.model, limits=clew.Limits(events=10)) as t:
        program.train(5)
        assert t.step() == 5
    assert t.steps == [0]


def test_a_crash_at_the_start_of_a_step_is_of_that_step() -> None:
    program = Program()

    def fail() -> None:
        program.train(2)
        program.model(torch.ones(3, 3))

    for schedule in (None, clew.schedule(skip_first=2)):
        crashed = clew.trace(program.model, schedule=schedule)
        with pytest.raises(RuntimeError), crashed:
            fail()
        failed = [e for e in crashed.modules if e.error]
        assert {e.step for e in failed} == {2}
        assert [e.module for e in failed] == ["", "0"]


def test_a_compiled_optimizer_ends_a_step() -> None:
    program = Program()
    step = torch.compile(program.optimizer.step, backend="eager")
    with clew.trace(program.model) as t:
        for _ in range(3):
            program.model(X).sum().backward()
            step()
    assert [e.step for e in t.modules if e.module == ""] == [0, 1, 2]


def test_results_are_what_they_are_without_a_trace() -> None:
    def trained(wrap: Callable[[nn.Module], Any]) -> list[Tensor]:
        torch.manual_seed(0)
        program = Program(nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2)))
        with wrap(program.model):
            program.train(3)
            program.evaluate()
            program.train(2)
        return [*program.model.state_dict().values(), torch.get_rng_state()]

    plain = trained(lambda model: torch.enable_grad())
    for schedule in (None, clew.schedule(every=2)):
        traced = trained(functools.partial(clew.trace, schedule=schedule))
        assert all(map(torch.equal, plain, traced))


def test_another_trace_around_it_has_steps_of_its_own() -> None:
    program = Program()
    with clew.trace(program.model) as outer:
        program.train(2)
        with clew.trace(program.model) as inner:
            program.train(2)
            inner.step()
        program.train(1)
    assert outermost(outer) == dict.fromkeys(range(5), 1)
    assert outermost(inner) == {0: 1, 1: 1}
