"""Callbacks: what is made of the values of an address, in which steps, unseen by the program."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import clew
from clew import Callbacks, callbacks
from clew.errors import ClewError
from tests.outcomes import faults


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc(x)
        clew.tap("marked", hidden * 2, self)
        return self.out(hidden.relu())


def run(t: clew.Trace, net: nn.Module, steps: int = 3) -> None:
    for step in range(steps):
        net(torch.full((5, 3), float(step + 1))).sum().backward()
        t.step()


ADDRESSES = [
    "", "fc", "fc:in", "fc:out", "fc.forward.input", "forward.hidden", "marked", "fc:grad",
    "fc.weight:grad", "fc.weight:param", "op:aten.relu", "op:aten.relu:in",
]  # fmt: skip


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("address", ADDRESSES)
def test_save_decides_what_is_recorded(address: str, on_disk: bool, tmp_path: Path) -> None:
    net, given = Net(), []

    def save(value: Tensor) -> Tensor:
        given.append(value.clone())
        return value.sum()

    out = tmp_path / "run.clew" if on_disk else None
    with clew.trace(net, callbacks={address: Callbacks(save=save)}, out=out) as t:
        run(t, net)
    trace = clew.load(tmp_path / "run.clew") if on_disk else t
    assert faults(trace) == []
    assert trace.coverage == ()
    series = trace.series(address)
    assert len(series) == len(given) >= 1
    assert series.stack().tolist() == pytest.approx([float(v.sum()) for v in given])
    assert not any(value.requires_grad for value in given)
    assert set(series.ranks) == {0}


def test_a_module_is_still_its_calls() -> None:
    net = Net()
    with clew.trace(net, callbacks={"fc": Callbacks(save="norm")}) as t:
        run(t, net)
    assert {event.kind for event in t["fc"]} == {"module"}
    assert t["fc#1"].output.shape == (5, 4)
    assert [v.shape for v in t.series("fc").values] == [()] * 3
    with pytest.raises(clew.errors.NotRecorded, match="was not kept"):
        t["fc#1"].value


def test_none_drops_a_value() -> None:
    net = Net()
    seen: list[float] = []

    def large(value: Tensor) -> Tensor | None:
        seen.append(float(value.max()))
        return value if value.max() > 1 else None

    with clew.trace(net, callbacks={"fc:in": Callbacks(save=large)}) as t:
        run(t, net)
    assert seen == [1, 2, 3]
    assert t.series("fc:in").steps == [1, 2]


def test_a_callback_that_fails_is_reported_and_the_value_kept() -> None:
    net = Net()
    failing = Callbacks(
        save=lambda v: v.nonsense, before_gather=lambda v: 1 / 0, after_gather=lambda v: v[99],
        end=lambda v: v.nonsense,
    )  # fmt: skip
    with clew.trace(net, callbacks={"fc:in": failing}, gather=2) as t:
        run(t, net)
    assert faults(t) == []
    assert t.series("fc:in").stack().shape == (3, 5, 3)
    assert t.series("fc:in").steps == [0, 1, 2]
    [gap] = t.coverage
    assert (gap.what, gap.where) == ("a reduced value", "fc:in")
    assert "<lambda> raised AttributeError" in gap.why


def test_fields_of_inputs_and_outputs() -> None:
    class Attend(nn.Module):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
            return {"logits": x + 1, "states": [x, x * 3]}

    net = Attend()
    how = {a: Callbacks(save="max") for a in (":in.mask", ":out.logits", ":out.states.1", ":in.0")}
    with clew.trace(net, callbacks={**how, ":out": Callbacks(save=lambda out: len(out))}) as t:
        net(torch.ones(2), mask=torch.full((2,), 7.0))
        net(torch.zeros(2))
    assert t.series(":in.mask").stack().tolist() == [7]
    assert t.series(":out.logits").stack().tolist() == [2, 1]
    assert t.series(":out.states.1").stack().tolist() == [3, 0]
    assert t.series(":in.0").stack().tolist() == [1, 0]
    assert [v.item() for v in t.series("").values] == [2, 2]


def draws() -> list[Any]:
    return [torch.rand(1).item(), random.random(), float(np.random.rand())]


def test_the_program_does_not_notice() -> None:
    """Autograd, random numbers, modes of the program and hooks see nothing of a callback."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.ops: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            self.ops.append(str(func))
            return func(*args, **(kwargs or {}))

    def noisy(value: Tensor) -> Tensor:
        draws()
        return nn.functional.dropout(nn.Linear(4, 4)(value), 0.5)

    def once(how: dict[str, Callbacks]) -> tuple[Any, ...]:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        net = Net()
        with clew.trace(net, callbacks=how) as t, Count() as count:
            y = net(torch.ones(5, 3))
            y.sum().backward()
        made = [p.grad.tolist() for p in net.parameters() if p.grad is not None]
        return y.tolist(), made, draws(), count.ops, [e.name for e in (*t.ops, *t.modules)]

    treated = once({"fc": Callbacks(save=noisy), "out:in": Callbacks(save="std")})
    assert treated == once({})


def test_two_addresses_for_one_value_record_it_once() -> None:
    """SEEDS 2.2.7: an address that is a prefix of another, or overlaps it, loses neither."""
    net = Net()
    with clew.trace(
        net, capture=["forward.*", "fc", "fc.forward", "forward"],
        callbacks={"forward.hidden": Callbacks(save="norm")},
    ) as t:  # fmt: skip
        run(t, net, 2)
    assert t.series("forward.hidden").stack().shape == (2,)
    for address in ("forward.x", "fc", "fc.forward", "forward"):
        assert t.series(address).steps == [0, 1], address


def test_recomputed_calls_are_not_counted_again() -> None:
    net = Net()
    with clew.trace(net, callbacks={"fc": Callbacks(save="norm")}) as t:
        for _ in range(2):
            checkpoint(net, torch.ones(2, 3), use_reentrant=False).sum().backward()
            t.step()
    assert t.series("fc").steps == [0, 1]


def train_and_eval(t: clew.Trace, net: nn.Module, modes: str) -> None:
    for mode in modes:
        net.train(mode == "t")
        net(torch.ones(1, 3)).sum().backward()
        t.step()


def test_interval_and_mode_are_each_addresss_own() -> None:
    """SEEDS 2.2.5: one address that is due does not make the others record."""
    net = Net()
    how = {
        "": Callbacks(only="eval"),
        "fc": Callbacks(every=2),
        "out": Callbacks(every=2, only="train"),
        "fc:in": Callbacks(every=10),
        "fc.weight:grad": Callbacks(every=2, only="train"),
    }
    with clew.trace(net, callbacks=how) as t:
        train_and_eval(t, net, "tttettee")
    assert t.series("").steps == [3, 6, 7]
    assert t.series("").counts == [0, 1, 2]
    assert t.series("fc").steps == [1, 4, 6]
    assert t.series("fc").modes == ["train", "train", "eval"]
    assert t.series("out").steps == [1, 4]
    assert t.series("fc.weight:grad").steps == [1, 4]
    with pytest.raises(clew.errors.NotRecorded):
        t.series("fc:in").stack()
    [gap] = t.coverage
    assert gap.where == "fc:in"
    assert gap.why == "none of the steps in which it ran was due (every=10)"


def test_without_a_model_the_outermost_module_says_what_a_step_is() -> None:
    net = Net()
    with clew.trace(callbacks={"Net.fc": Callbacks(only="eval")}) as t:
        train_and_eval(t, net, "tete")
    assert t.series("Net.fc").steps == [1, 3]


def test_equal_values_line_up_over_steps() -> None:
    """SEEDS 2.2.10: a scalar that stays the same is there for every step."""
    net = Net()
    with clew.trace(net, callbacks={"fc": Callbacks(save=lambda v: v.ndim)}) as t:
        run(t, net, 4)
    assert [v.item() for v in t.series("fc").values] == [2, 2, 2, 2]
    assert t.series("fc").steps == [0, 1, 2, 3]


def test_single_process_ranks_are_ranks() -> None:
    """SEEDS 2.2.4: they are not the steps."""
    net = Net()
    with clew.trace(net, callbacks={"fc": Callbacks(save="norm")}, gather=2) as t:
        run(t, net)
    assert (t.series("fc").ranks, t.series("fc").steps) == ([0, 0, 0], [0, 1, 2])


@pytest.mark.parametrize(("every", "gather", "steps"), [(1, 4, [*range(6)]), (3, 4, [2, 5])])
def test_what_is_left_is_gathered_at_the_end(every: int, gather: int, steps: list[int]) -> None:
    """SEEDS 2.2.6: also when no gather falls on a step that is recorded."""
    net, windows = Net(), []

    def after(values: list[Tensor]) -> list[Tensor]:
        windows.append(len(values))
        return values

    how = Callbacks(every=every, after_gather=after)
    with clew.trace(net, callbacks={"fc": how}, gather=gather) as t:
        run(t, net, 6)
    assert t.series("fc").steps == steps
    assert sum(windows) == len(steps)


def test_layouts_of_one_process() -> None:
    """SEEDS 2.2.1: what TensorTracer's README promises, with one rank."""
    net, stack = Net(), callbacks.stack_padded
    how = {
        "fc:in": Callbacks(before_gather=stack, after_gather=stack, end=stack),
        "fc": Callbacks(before_gather=stack, after_gather=stack),
        "out": Callbacks(after_gather=stack),
        "": Callbacks(end=lambda values: [v.mean() for v in values]),
    }
    with clew.trace(net, callbacks=how, gather=4) as t:
        run(t, net, 8)
    assert t.series("fc:in").values[0].array().shape == (2, 1, 4, 5, 3)
    assert t.series("fc").stack().shape == (2, 1, 4, 5, 4)
    assert t.series("out").stack().shape == (2, 4, 5, 2)
    assert t.series("").steps == [*range(8)]
    assert t.series("").stack().shape == (8,)


def test_ragged_and_scalar_values_are_stacked() -> None:
    """SEEDS 2.2.15 and 2.2.3: stacking takes numbers, and one row is not spread over many."""
    net = nn.Identity()
    padded = Callbacks(end=callbacks.stack_padded)
    numbers = Callbacks(save=lambda v: len(v), end=callbacks.stack_padded)
    with clew.trace(net, callbacks={"": padded, ":in": numbers}) as t:
        for size in (2, 3, 1):
            net(torch.ones(size, 2))
            t.step()
    [whole] = t.series("").values
    assert whole.array().sum(axis=(1, 2)).tolist() == [4, 6, 2]
    assert t.series(":in").values[0].array().tolist() == [2, 3, 1]


def test_one_trace_used_again_goes_on() -> None:
    """SEEDS 2.2.15: each block of it is gathered and ended by itself."""
    net = Net()
    t = clew.trace(net, callbacks={"fc": Callbacks(end=len)}, gather=2)
    for _ in range(2):
        with t:
            run(t, net)
    assert [v.item() for v in t.series("fc").values] == [3, 3]


def test_containers_and_graph_tensors_are_gathered() -> None:
    """SEEDS 2.2.8: attention in training has a tuple of tensors on the graph."""
    net = nn.MultiheadAttention(4, 2)
    x = torch.randn(3, 1, 4)
    sizes: list[list[str]] = []
    how = Callbacks(before_gather=lambda values: sizes.append([*values[0]]))
    with clew.trace(net, callbacks={"": how}, gather=1) as t:
        net(x, x, x)[0].sum().backward()
        t.step()
    assert faults(t) == []
    assert sizes == [["0", "1"]]
    assert [v.shape for v in t.series("").values] == [(3, 1, 4), (1, 3, 3)]


def test_a_forward_that_raises_has_no_output() -> None:
    """SEEDS 2.2.14."""
    net = Net()
    with clew.trace(net, callbacks={"": Callbacks(save="norm"), "fc:in": Callbacks()}) as t:
        net(torch.ones(5, 3))
        with pytest.raises(RuntimeError):
            net(torch.ones(5, 4))
    assert len(t.series("")) == 1
    assert [v.shape for v in t.series("fc:in").values] == [(5, 3), (5, 4)]


def test_nothing_is_left_on_the_model() -> None:
    """SEEDS 2.2.19 and 2.2.20: nothing stays behind, and defaults are shared by nobody."""
    net = Net()
    before = {name: dict(vars(m)) for name, m in net.named_modules()}
    with clew.trace(net, callbacks={"fc": Callbacks(save="norm")}, gather=1) as t:
        net(torch.ones(1, 3))
        t.step()
    assert {name: dict(vars(m)) for name, m in net.named_modules()} == before
    assert Callbacks() == Callbacks()
    assert hash(Callbacks()) == hash(Callbacks())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Callbacks(save="median"), "no reduction is called 'median'; there are: mean"),
        (lambda: Callbacks(save=3), r"Callbacks\(save=3\): give a function of the value, or"),  # type: ignore[arg-type]
        (lambda: Callbacks(end=[]), r"Callbacks\(end=\[\]\): give a function of the values"),  # type: ignore[arg-type]
        (lambda: Callbacks(every=0), r"Callbacks\(every=0\): give a whole number, 1 or more"),
        (lambda: Callbacks(only="valid"), r"only='valid'\): give 'train', 'eval' or None"),
        (
            lambda: clew.trace(callbacks={"fc": len}),
            r"callbacks\['fc'\] is of type builtin_function",
        ),  # type: ignore[dict-item]
        (lambda: clew.trace(callbacks=[len]), "callbacks is of type list; give a dict of address"),  # type: ignore[arg-type]
        (lambda: clew.trace(gather=0), "gather=0: give the number of steps between"),
        (
            lambda: clew.trace(callbacks={"fc": Callbacks(after_gather=len)}),
            r"callbacks\['fc'\] has before_gather or after_gather, and nothing is gathered",
        ),
        (lambda: clew.trace(callbacks={"line:a.py:3": Callbacks()}), "a line has no value"),
    ],
)
def test_mistakes_are_explained(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ClewError, match=message):
        make()


def test_an_address_with_callbacks_that_names_nothing_is_reported() -> None:
    net = Net()
    with clew.trace(net, capture=["marked"], callbacks={"fd": Callbacks(save="norm")}) as t:
        run(t, net, 1)
    [gap] = t.coverage
    assert (gap.where, gap.why) == ("fd", "nothing that ran matches it")
    assert "fc" in gap.remedy


def test_stacking_by_says_what_is_uneven() -> None:
    net = Net()
    with clew.trace(net, capture=["fc"]) as t:
        net(torch.ones(5, 3))
        t.step()
        net(torch.ones(5, 3))
        net(torch.ones(5, 3))
    series = t.series("fc")
    with pytest.raises(ClewError, match=r"uneven numbers of values \(step 0 has 1, step 1 has 2\)"):
        series.stack(by="step")
    assert series.stack(by="step", pad=True).shape == (2, 2, 5, 4)
    assert series.stack(by="rank").shape == (1, 3, 5, 4)
    with pytest.raises(ClewError, match=r"stack\(by='step0'\): give 'rank', 'step' or None"):
        series.stack(by="step0")
