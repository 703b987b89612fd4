"""Random programs: the numbers of any tree sum to its header, as data and as printed."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import clew
from clew.views.text.style import Style
from tests.printed_tree import check_data, check_text


class Loop(nn.Module):
    """Calls its parts one after the other, with an op before, between or after them."""

    def __init__(self, parts: list[nn.Module], place: str) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        for number, part in enumerate(self.parts):
            x = x * 2 if self.place == "before" else x
            x = part(x)
            if self.place == "after" or (self.place == "between" and number < len(self.parts) - 1):
                x = x.view(-1, 4)
        return x


class Zoo(nn.Module):
    """Parts of several kinds; what it runs is told call by call."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(4, 4)
        self.linear = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), shared))
        self.stack = Loop([nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)], "none")
        self.before = Loop([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)], "before")
        self.after = Loop([shared] * 3, "after")
        self.between = Loop(
            [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)], "between"
        )
        self.idle = nn.Identity()

    def forward(self, x: Tensor, actions: list[Any]) -> Tensor:
        return run(self, actions, x)


def run(model: Zoo, actions: list[Any], x: Tensor) -> Tensor:
    for action in actions:
        if action == "op":
            x = x.exp().sin()
        elif action == "view":
            x = x.reshape(-1).view(-1, 4)
        elif isinstance(action, str):
            x = getattr(model, action)(x)
        elif action[0] == "model":
            x = model(x, action[1])
        else:
            for _ in range(action[0]):
                x = run(model, action[1], x)
    return x


PARTS = ["linear", "block", "stack", "before", "after", "between", "idle", "op", "view"]
_simple = st.sampled_from(PARTS)
_loops = st.tuples(st.integers(2, 3), st.lists(_simple, min_size=1, max_size=3))
_calls = st.tuples(st.just("model"), st.lists(st.one_of(_simple, _loops), max_size=4))
ACTIONS = st.lists(st.one_of(_simple, _loops, _calls), min_size=1, max_size=4)
STEP = st.tuples(ACTIONS, st.sampled_from(["", "backward", "optimizer"]), st.integers(1, 4))


def record(steps: list[Any], values: str) -> clew.Trace:
    torch.manual_seed(0)
    model = Zoo()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with clew.trace(model, values=values) as t:
        for actions, how, times in steps:
            for _ in range(times):
                loss = run(model, actions, torch.ones(2, 4)).sum()
                if how and loss.requires_grad:
                    loss.backward()
                if how == "optimizer":
                    optimizer.step()
                    optimizer.zero_grad()
                t.step()
    return t


@settings(max_examples=25, deadline=None, derandomize=True)
@given(steps=st.lists(STEP, min_size=1, max_size=3), values=st.sampled_from(["meta", "stats"]))
def test_numbers_of_any_tree_sum_to_its_header(steps: list[Any], values: str) -> None:
    t = record(steps, values)
    if not len(t):
        return
    # Without threads or ranks, calls and ops come one after the other.
    outermost = [e for e in t.events if e.parent is None and e.kind in ("module", "op")]
    least = sum(event.duration or 0.0 for event in outermost)
    for fold in (True, False):
        for depth in (None, 0, 1, 3):
            tree = t.tree(depth=depth, fold=fold, rows=None if depth is not None else 10_000)
            data = tree.to_dict()
            check_data(t, data)
            assert least - 1e-9 <= data["seconds"] <= data["wall_seconds"] + 1e-9
            check_text(t, tree.text(Style()))


def test_a_short_tree_sums_too() -> None:
    steps = [([("model", [part])], "optimizer", 2) for part in PARTS[:6]]
    t = record(steps, "meta")
    text = str(t)
    assert len(text.splitlines()) <= 60
    check_text(t, text)
