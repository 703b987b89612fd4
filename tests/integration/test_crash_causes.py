"""Crash notes: the tensor that was changed, casts, shared graphs, inner exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models import Call
from tests.outcomes import guess

NoteOf = Callable[..., str]


@pytest.mark.parametrize("is_first", [True, False])
def test_the_history_is_that_of_the_side_which_was_changed(note_of: NoteOf, is_first: bool) -> None:
    conv = nn.Conv2d(3, 3, 3, stride=2)
    x = torch.ones(2, 3, 8, 8)

    def run() -> Any:
        y = conv(x)
        return y + x if is_first else x + y

    note = note_of(run, conv)
    assert "dimension 3 of y is 3:\n    resized: 8 → 3 (kernel 3, stride 2)" in note
    assert "dimension 3 of x is 8:" not in note
    assert guess(note) is None


def test_both_sides_of_a_product_that_no_op_changed_have_their_history(note_of: NoteOf) -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 5), "b": nn.Linear(4, 6)})
    x = torch.ones(3, 4)
    note = note_of(lambda: model["a"](x) @ model["b"](x).T.contiguous(), model)
    assert "parameter a.weight: out_features of a, addmm in a" in note
    assert "parameter b.weight: out_features of b, addmm in b" in note


@pytest.mark.parametrize(
    ("conv", "guessed"),
    [
        (nn.Conv1d(4, 4, 3), "padding=1 in the root module"),
        (nn.Conv1d(4, 4, 3, dilation=2, padding=1), "padding=2 in the root module"),
        (nn.Conv1d(4, 4, 4), None),  # no padding keeps the size
        (nn.Conv1d(4, 4, 3, stride=2), None),
    ],
)
def test_the_padding_that_keeps_a_size(note_of: NoteOf, conv: nn.Module, guessed: str) -> None:
    x = torch.ones(2, 4, 16)
    assert guess(note_of(lambda: x + conv(x), conv)) == guessed


def test_a_kernel_that_is_too_large(note_of: NoteOf) -> None:
    model = nn.Sequential(nn.MaxPool2d(2), nn.MaxPool2d(2), nn.MaxPool2d(2))
    note = note_of(lambda: model(torch.ones(1, 1, 4, 4)), model)
    assert "2 is MaxPool2d(kernel_size=2, stride=2, padding=0)" in note
    assert "too small for the kernel of 2" in note
    assert "resized: 2 → 1 (kernel 2, stride 2)" in note
    assert "takes 1 channel in dimension 1 and was given 3" in note_of(
        lambda: nn.Conv2d(1, 2, 3)(torch.ones(1, 3, 4, 4))
    )


def test_letters_of_einsum(note_of: NoteOf) -> None:
    q, k, w = torch.ones(2, 4, 6, 8), torch.ones(2, 6, 4, 8), torch.ones(5, 8)
    x = torch.ones(2, 6, 8)
    note = note_of(lambda: torch.einsum("bhqd, bhkd -> bhqk", q, k))
    assert "'h' is 4 in dimension 1 of q, 6 in dimension 1 of k" in note
    assert guess(note) is None
    note = note_of(lambda: torch.einsum("bd,od->bo", x, w))
    assert "'bd' has 2 letters, x is f32[2,6,8]" in note
    assert guess(note) == "'...d,od->...o'"
    assert guess(note_of(lambda: torch.einsum("db,od->bo", x, w))) is None


def test_more_than_there_are(note_of: NoteOf) -> None:
    x = torch.ones(4, 6)
    note = note_of(lambda: x.topk(5, dim=0))
    assert "k is 5, dimension 0 of x has 4" in note
    assert guess(note) == "k=min(5, x.size(0))"


def test_a_target_of_whole_numbers_for_each_class(note_of: NoteOf) -> None:
    logits, y = torch.ones(4, 6), torch.ones(4, 6).long()
    assert guess(note_of(lambda: F.cross_entropy(logits, y))) == "y.float()"


def test_casts_go_to_the_dtype_of_the_model(note_of: NoteOf) -> None:
    layer, x = nn.Linear(6, 6), torch.ones(2, 6)
    memory, index = torch.zeros(4, 6), torch.tensor([0, 1])

    def write() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = layer(x)
        memory[index] = h

    assert guess(note_of(write, layer)) == "h.float()"

    def multiply(self: nn.Module, given: Tensor) -> Any:
        return given @ self.weight

    half: Any = Call(multiply)
    half.weight = nn.Parameter(torch.ones(6, 6, dtype=torch.bfloat16))
    assert guess(note_of(lambda: half(x), half)) == "given.bfloat16()"


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(6, 4)
        self.judge = nn.Linear(4, 1)
        self.other = nn.Linear(4, 1)


@pytest.mark.parametrize("has_step", [True, False])
def test_a_tensor_that_the_same_layers_judge_twice_is_detached(
    note_of: NoteOf, has_step: bool
) -> None:
    model = Adversaries()
    optimizer = torch.optim.SGD(model.judge.parameters(), 0.1)

    def run() -> None:
        fake = model.generator(torch.ones(5, 6)).tanh()
        model.judge(fake).mean().backward()
        if has_step:
            optimizer.step()
        loss = model.judge(fake).var()
        loss.backward()

    note = note_of(run, model)
    assert "the first backward ran at" in note
    assert "model.judge(fake).mean().backward()" in note
    guessed = guess(note)
    assert guessed is not None
    assert guessed.startswith("fake.detach() at test_crash_causes.py:")


def test_two_heads_on_one_body_keep_their_graph(note_of: NoteOf) -> None:
    model = Adversaries()

    def run() -> None:
        shared = model.generator(torch.ones(5, 6)).tanh()
        model.judge(shared).mean().backward()
        model.other(shared).mean().backward()

    assert guess(note_of(run, model)) == "retain_graph=True in the first backward"


def test_the_first_backward_is_the_one_that_freed_the_graph(note_of: NoteOf) -> None:
    model = Adversaries()

    def run() -> None:
        model.other(torch.ones(2, 4)).sum().backward()  # has nothing to do with it
        one = model.generator(torch.ones(5, 6)).tanh()
        two = one.mean()
        one.sum().backward()
        two.backward()

    note = note_of(run, model)
    assert "one.sum().backward()" in note
    assert "nothing to do" not in note


def tried_again(layer: nn.Module, x: Tensor, how: str) -> None:
    try:
        layer(x)
    except RuntimeError:
        if how == "from None":
            raise ValueError("batch 7") from None
        torch.ones(2) + torch.ones(3)  # another fault


@pytest.mark.parametrize("how", ["from", "context"])
def test_an_exception_raised_from_another_has_its_facts(note_of: NoteOf, how: str) -> None:
    layer = nn.Linear(3, 4)

    def run() -> None:
        x = torch.ones(2, 5)
        try:
            layer(x)
        except RuntimeError as wrong:
            if how == "from":
                raise ValueError("batch 7") from wrong
            raise ValueError("batch 7")  # noqa: B904  # as programs do

    note = note_of(run, layer)
    assert note.startswith("clew: ValueError raised outside any module\n  at ")
    assert "\n  after aten.addmm.default failed in the root module\n  at " in note
    assert "given: x f32[2,5], weight f32[4,3], bias f32[4]" in note
    assert "takes [..., 3] and was given [..., 5]" in note


@pytest.mark.parametrize("how", ["from None", "again"])
def test_an_exception_that_led_to_nothing_is_left_out(note_of: NoteOf, how: str) -> None:
    layer = nn.Linear(3, 4)
    note = note_of(lambda: tried_again(layer, torch.ones(2, 5), how), layer)
    assert "addmm" not in note
