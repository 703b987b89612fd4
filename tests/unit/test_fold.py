"""What is folded, and above all what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import clew
from clew.analysis.fold import Folds, Item, Repeat, rows_of
from clew.events.vocabulary import MODULE
from tests.golden import programs


def folds_of(t: clew.Trace, **options: bool) -> Folds:
    return Folds(t._current_run(), **options)


def inside_root(t: clew.Trace, **options: bool) -> list[Item]:
    """What ran in the outermost module call."""
    folds = folds_of(t, **options)
    root = next(r for r in folds.structure.kids[-1] if folds.structure.kind[r] == MODULE)
    return folds.inside(root)


def shape(t: clew.Trace, items: Sequence[Item]) -> list[str]:
    """Items in words: `3 × block.0`."""
    structure = folds_of(t).structure

    def word(item: Item) -> str:
        if isinstance(item, Repeat):
            return f"{item.count} × {' '.join(filter(None, map(word, item.items)))}"
        return structure.name(item) if structure.kind[item] == MODULE else "op"

    return [word(item) for item in items]


def traced(model: nn.Module, *inputs: Tensor) -> clew.Trace:
    with torch.no_grad(), clew.trace(model) as t:
        model(*inputs)
    return t


class Layers(nn.Module):
    """Layers called one after the other."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Norm(nn.Module):
    """A layer whose residual comes before or after its norm: same ops, other wiring."""

    def __init__(self, after: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 4)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return (h if self.after else x) + self.fc(h)


class Named(nn.Module):
    """A layer that calls its one part by a name of its choice."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        (part,) = self.children()
        return part(x)


def mixed(usual: Callable[[], nn.Module], odd: Callable[[], nn.Module]) -> Layers:
    return Layers([odd() if i == 3 else usual() for i in range(6)])


def test_layers_that_are_the_same_fold() -> None:
    t = programs.stack()
    assert shape(t, inside_root(t)) == ["6 × blocks.0", "head"]


@pytest.mark.parametrize(
    ("usual", "odd"),
    [
        (programs.Block, lambda: programs.Block(width=16)),
        (programs.Block, lambda: programs.Block(act="tanh")),
        (lambda: nn.Sequential(nn.LayerNorm(4)), lambda: nn.Sequential(nn.LayerNorm(4, eps=1e-3))),
        (
            lambda: nn.Sequential(nn.Linear(4, 4)),
            lambda: nn.Sequential(nn.Linear(4, 4, bias=False)),
        ),
        (lambda: nn.Sequential(nn.ReLU()), lambda: nn.Sequential(nn.Identity())),
        (lambda: Named("up"), lambda: Named("down")),
        (Norm, lambda: Norm(after=True)),
    ],
    ids=["width", "activation", "constant", "parameter", "class", "name", "wiring"],
)
def test_a_layer_that_differs_is_kept_apart(
    usual: Callable[[], nn.Module], odd: Callable[[], nn.Module]
) -> None:
    t = traced(mixed(usual, odd), torch.ones(2, 4))
    assert shape(t, inside_root(t)) == ["3 × layers.0", "layers.3", "2 × layers.4"]


def test_a_dtype_that_differs_is_kept_apart() -> None:
    class Cast(nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4, dtype=dtype)
            self.dtype = dtype

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x.to(self.dtype)).to(torch.float32)

    layers = [Cast(torch.float64 if i == 1 else torch.float32) for i in range(5)]
    t = traced(Layers(layers), torch.ones(2, 4))
    assert shape(t, inside_root(t)) == ["layers.0", "layers.1", "3 × layers.2"]


def test_without_ops_parameters_tell_layers_apart() -> None:
    model = Layers([nn.Sequential(nn.Linear(4, 4, bias=i != 2)) for i in range(5)])
    with clew.trace(model, level="modules") as t:
        model(torch.ones(2, 4))
    assert shape(t, inside_root(t)) == ["2 × layers.0", "layers.2", "2 × layers.3"]


def test_layers_that_alternate_fold_in_pairs() -> None:
    model = Layers([programs.Block(act="relu" if i % 2 else "tanh") for i in range(8)])
    t = traced(model, torch.ones(2, 4))
    assert shape(t, inside_root(t)) == ["4 × layers.0 layers.1"]


def test_ops_between_layers_fold_along_and_constants_may_count_up() -> None:
    t = programs.gated()
    (first, *_) = items = inside_root(t)
    assert isinstance(first, Repeat)
    assert shape(t, items)[0].startswith("5 × layers.0 op op op")


def test_a_turn_that_lacks_the_ops_between_is_not_one_of_the_repeat() -> None:
    class Between(Layers):
        def forward(self, x: Tensor) -> Tensor:
            for number, layer in enumerate(self.layers):
                x = layer(x)
                if number < 4:
                    x = x * 2
            return x

    t = traced(Between([programs.Block() for _ in range(5)]), torch.ones(2, 4))
    repeat, last = inside_root(t)
    assert isinstance(repeat, Repeat)
    assert [len(run) for run in repeat.runs] == [2, 2, 2, 2]
    assert shape(t, [last]) == ["layers.4"]


def test_two_turns_fold_if_ops_come_before_each() -> None:
    class Before(Layers):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x * 2)
            return x.exp()

    t = traced(Before([programs.Block() for _ in range(2)]), torch.ones(2, 4))
    assert shape(t, inside_root(t)) == ["2 × op layers.0", "op"]


def test_a_turn_begins_with_the_ops_before_the_call_if_that_makes_all_alike() -> None:
    class Before(Layers):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x * 2)
            return x.exp()

    t = traced(Before([programs.Block() for _ in range(5)]), torch.ones(2, 4))
    assert shape(t, inside_root(t)) == ["5 × op layers.0", "op"]


def test_calls_of_one_module_in_a_loop_fold() -> None:
    t = programs.recurrent()
    items = inside_root(t)
    assert shape(t, items)[-1] == "4 × op cell"


def test_names_must_count_up() -> None:
    class Shuffled(Layers):
        def forward(self, x: Tensor) -> Tensor:
            for number in (0, 1, 2, 5, 4, 3):
                x = self.layers[number](x)
            return x

    t = traced(Shuffled([programs.Block() for _ in range(6)]), torch.ones(2, 4))
    assert shape(t, inside_root(t)) == ["3 × layers.0", "3 × layers.5"]


def test_a_stack_run_twice_folds_twice() -> None:
    class Twice(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(super().forward(x))

    t = traced(Twice([programs.Block() for _ in range(3)]), torch.ones(2, 4))
    assert shape(t, inside_root(t)) == ["2 × 3 × layers.0"]


def test_a_pattern_of_layers_folds_inside_too() -> None:
    kinds = ["relu", "relu", "relu", "tanh"] * 3
    t = traced(Layers([programs.Block(act=kind) for kind in kinds]), torch.ones(2, 4))
    assert shape(t, inside_root(t)) == ["3 × 3 × layers.0 layers.3"]


def test_a_failing_layer_is_never_folded() -> None:
    t = programs.crash()
    assert shape(t, inside_root(t)) == ["3 × blocks.0", "blocks.3"]


def test_two_leaves_are_not_worth_folding() -> None:
    t = traced(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.ones(2, 4))
    assert shape(t, inside_root(t)) == ["0", "1"]


def test_nothing_folds_when_not_wanted() -> None:
    t = programs.stack()
    assert shape(t, inside_root(t, fold=False)) == [*(f"blocks.{i}" for i in range(6)), "head"]


def test_sizes_count_unless_told_otherwise() -> None:
    t = programs.growing()
    roots = folds_of(t).structure.kids[-1]
    assert len(folds_of(t).fold(roots)) == 8
    (repeat,) = folds_of(t, sizes=False).fold(roots)
    assert isinstance(repeat, Repeat)
    assert (repeat.count, repeat.exact) == (8, False)


def test_sizes_of_different_layers_always_count() -> None:
    t = programs.stack(width=16)
    apart = ["3 × blocks.0", "blocks.3", "2 × blocks.4", "head"]
    assert shape(t, inside_root(t, sizes=False)) == apart


def test_twins_are_the_same_event_in_every_run() -> None:
    t = programs.stack()
    folds = folds_of(t)
    (repeat, _) = inside_root(t)
    assert isinstance(repeat, Repeat)
    inner = folds.structure.kids[repeat.runs[0][0]][1]
    rows = folds.twins([inner], (repeat,))
    paths = [t.events[row].module for row in rows]
    assert paths == [f"blocks.{i}.up" for i in range(6)]


_KINDS: list[Callable[[], nn.Module]] = [
    lambda: nn.Linear(4, 4),
    lambda: nn.Linear(4, 4, bias=False),
    nn.Tanh,
    lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(range(len(_KINDS))), min_size=1, max_size=14))
def test_folding_loses_nothing_and_joins_only_what_is_alike(kinds: list[int]) -> None:
    t = traced(nn.Sequential(*(_KINDS[kind]() for kind in kinds)), torch.ones(1, 4))
    folds = folds_of(t)
    root = folds.structure.kids[-1][0]
    items = folds.inside(root)
    assert [row for item in items for row in rows_of(item)] == folds.structure.kids[root]
    for item in items:
        if isinstance(item, Repeat):
            kinds_of_runs = {
                tuple(kinds[int(folds.structure.name(row))] for row in run) for run in item.runs
            }
            assert len(kinds_of_runs) == 1


def test_layers_with_the_same_named_values_are_folded() -> None:
    model = Layers([programs.Noted() for _ in range(6)])
    with torch.no_grad(), clew.trace(model, capture=["layers.*.forward.out"]) as t:
        model(torch.zeros(2, 4))
    assert shape(t, inside_root(t)) == ["6 × layers.0"]


def test_a_layer_with_another_variable_is_not_folded() -> None:
    model = Layers([programs.Noted() for _ in range(6)])
    capture = ["layers.*.forward.out", "layers.3.forward.self.runs"]
    with torch.no_grad(), clew.trace(model, capture=capture) as t:
        model(torch.zeros(2, 4))
    assert shape(t, inside_root(t)) == ["3 × layers.0", "layers.3", "2 × layers.4"]
