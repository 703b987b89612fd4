"""Crash notes: names of what is in tuples and lists, and of what no variable holds."""

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


class Recurrent(nn.Module):
    """A recurrent layer and a head, joined by a function."""

    def __init__(self, joined: Callable[[Recurrent, Tensor], Any]) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 7, batch_first=True)
        self.head = nn.Linear(7, 3)
        self.joined = joined

    def forward(self, x: Tensor) -> Any:
        return self.joined(self, x)


def passed_on(self: Recurrent, x: Tensor) -> Any:
    h = self.rnn(x)
    return self.head(h)


def averaged(self: Recurrent, x: Tensor) -> Any:
    h = self.rnn(x)
    return h.mean(1)


def sliced(self: Recurrent, x: Tensor) -> Any:
    h = self.rnn(x)
    return h[:, -1]


def added(self: Recurrent, x: Tensor) -> Any:
    h = self.rnn(x)
    return h[0] + self.rnn(x)


def states(self: Recurrent, x: Tensor) -> Any:
    _, h = self.rnn(x)
    return torch.relu(h)


@pytest.mark.parametrize(
    ("joined", "said", "guessed"),
    [
        (passed_on, "h is a tuple of 2, not a tensor", "h[0]"),
        (averaged, "h is a tuple of 2, not a tensor", "h[0]"),
        (sliced, "h is a tuple of 2, not a tensor", "h[0]"),
        (added, "self.rnn(x) is a tuple of 2, not a tensor", "self.rnn(x)[0]"),
        (states, "h is a tuple of 2, not a tensor", "h[0]"),
    ],
)
def test_a_tuple_where_a_tensor_goes(
    note_of: NoteOf, joined: Callable[..., Any], said: str, guessed: str
) -> None:
    model = Recurrent(joined)
    note = note_of(lambda: model(torch.ones(2, 5, 6)), model)
    assert f"\n  {said}\n" in note
    assert guess(note) == guessed


def test_a_tuple_between_the_layers_of_a_container(note_of: NoteOf) -> None:
    model = nn.Sequential(nn.GRU(6, 7), nn.Linear(7, 3))
    note = note_of(lambda: model(torch.ones(2, 5, 6)), model)
    assert "1:in.0.0 f32[2,5,7]" in note
    assert "1 was given a tuple, not a tensor" in note


@pytest.mark.parametrize(
    "both",
    [
        (torch.ones(4, 3), torch.ones(4, 2)),  # which of the two is not known
        [torch.ones(4, 3), torch.ones(4, 3)],  # nor of a list
    ],
)
def test_which_of_several_tensors_is_meant_is_not_guessed(note_of: NoteOf, both: Any) -> None:
    note = note_of(lambda: torch.relu(both))
    kind = type(both).__name__
    assert f"both is a {kind} of 2, not a tensor" in note
    assert "given: both[0] f32[4,3], both[1] f32[4" in note
    assert guess(note) is None


def test_the_item_that_fits_the_layer_is_meant(note_of: NoteOf) -> None:
    layer, both = nn.Linear(2, 2), (torch.ones(4, 3), torch.ones(4, 2))
    assert guess(note_of(lambda: layer(both), layer)) == "both[1]"


def test_the_one_tensor_of_a_dict_is_meant(note_of: NoteOf) -> None:
    batch: Any = {"image": torch.ones(4, 3), "name": "first"}
    note = note_of(lambda: batch.mean(0))
    assert "batch is a dict of 2, not a tensor" in note
    assert guess(note) == "batch['image']"


def test_the_states_of_a_recurrent_layer_are_arguments(note_of: NoteOf) -> None:
    rnn, x = nn.LSTM(6, 7, batch_first=True), torch.ones(2, 5, 6)
    h, c = torch.zeros(1, 3, 7), torch.zeros(1, 3, 7)
    note = note_of(lambda: rnn(x, (h, c)), rnn)
    assert "given: x f32[2,5,6], h f32[1,3,7], c f32[1,3,7], weight_ih_l0" in note
    assert "h must be [1, 2, 7] and is [1, 3, 7]" in note
    state = h[:, :2].contiguous(), torch.zeros(1, 2, 8)
    note = note_of(lambda: rnn(x, state), rnn)
    assert "state[0] f32[1,2,7], state[1] f32[1,2,8]" in note
    assert "state[1] must be [1, 2, 7] and is [1, 2, 8]" in note


def test_tensors_of_a_list_have_its_name(note_of: NoteOf) -> None:
    xs = [torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3), torch.ones(4, 3)]
    note = note_of(lambda: torch.cat(xs, 1))
    assert "given: xs[0] f32[2,3], xs[1] f32[2,3], xs[2] f32[2,3], xs[3] f32[4,3]" in note
    assert "dimension 0 does: xs[3] 4, the others 2" in note
    note = note_of(lambda: torch.cat(list(reversed(xs)), 1))
    assert "list(reversed(xs))[0] f32[4,3]" in note


def test_a_list_of_another_shape_is_the_odd_one_wherever_it_stands(note_of: NoteOf) -> None:
    xs = [torch.ones(2, 4), torch.ones(2, 3), torch.ones(2, 3)]
    assert "xs[0] differs from xs[1]: f32[2,4] and f32[2,3]" in note_of(lambda: torch.stack(xs))


class Items(list[Tensor]):
    """A list whose items nobody may take while a note is written."""

    def __iter__(self) -> Any:
        raise AssertionError("the program's code ran")


def test_no_code_of_a_container_runs(note_of: NoteOf) -> None:
    items: Any = Items([torch.ones(2), torch.ones(3)])
    note = note_of(lambda: torch.ones(2) + items.missing)
    assert "AttributeError" in note
    assert "items[1] f32[3]" in note


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda table, ids: F.embedding(ids * 2 + 1, table), "ids * 2 + 1 holds 11 at [5]"),
        (lambda table, ids: F.cross_entropy(table.T, ids[:4].clone() + 7),
         "ids[:4].clone() + 7 holds 10 at [3]"),
        (lambda table, ids: table[ids + 5], "the index is 10, in ids + 5"),
        (lambda table, ids: F.cross_entropy(table.T, ids[:4].clone() + 9),
         "a target is 10, in ids[:4].clone() + 9"),
    ],
)  # fmt: skip
def test_an_index_that_no_variable_holds(
    note_of: NoteOf, run: Callable[[Tensor, Tensor], Any], said: str
) -> None:
    table, ids = torch.ones(10, 4), torch.arange(6)
    assert said in note_of(lambda: run(table, ids))


def test_an_index_given_to_an_embedding_in_a_container(note_of: NoteOf) -> None:
    model = nn.Sequential(nn.Identity(), nn.Embedding(10, 4))
    note = note_of(lambda: model(torch.arange(6) * 2), model)
    assert "1 has 10 rows (0 to 9); torch.arange(6) * 2 holds 10 at [5]" in note
    model = nn.Sequential(Call(lambda self, x: x * 2), nn.Embedding(10, 4))
    note = note_of(lambda: model(torch.arange(6)), model)
    assert "1 has 10 rows (0 to 9); 1:in holds 10 at [5]" in note


def test_values_unpacked_into_the_wrong_number_of_names(note_of: NoteOf) -> None:
    x, rnn = torch.ones(2, 6), nn.LSTM(6, 7)
    batch = (x, x, x)

    def three() -> Any:
        q, k = x.chunk(3, dim=-1)
        return q @ k

    def sizes() -> Any:
        b, t, c = x.shape
        return b, t, c

    def pair() -> Any:
        first, second = batch
        return first, second

    def flat() -> Any:
        out, h, c = rnn(x)
        return out, h, c

    assert "x.chunk(3, dim=-1) gives 3, unpacked into 2 names (q, k)" in note_of(three)
    note = note_of(sizes)
    assert "with: x f32[2,6]" in note
    assert "x.shape has 2 sizes, unpacked into 3 names (b, t, c)" in note
    note = note_of(pair)
    assert "given: batch[0] f32[2,6], batch[1] f32[2,6], batch[2] f32[2,6]" in note
    assert "batch gives 3, unpacked into 2 names (first, second)" in note
    assert guess(note) is None
    assert guess(note_of(flat, rnn)) == "out, (h, c) = rnn(x)"
