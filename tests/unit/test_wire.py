"""Batches as bytes: what comes out on the other side is what went in, and nothing runs there."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import clew
from clew.callbacks.samples import Sample, leaves_of
from clew.events.columns import COLUMN_NAMES
from clew.events.vocabulary import TAP, Label
from clew.session.rank_mail import SampleMail
from clew.store.format.wire import read_message, to_bytes
from clew.store.write.memory_sink import MemoryStore
from clew.stream.batch import TABLES, Batch

VALUES: dict[str, Any] = {
    "tensor": torch.arange(6.0).view(2, 3).t(),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "empty": torch.ones(0, 2),
    "sparse": torch.eye(3).to_sparse(),
    "array": np.arange(4, dtype=">i4"),
    "text": "día\ud800",
    "nothing": None,
    "large": 1 << 70,
    "nested": {"a": [torch.ones(2), 1.5], "b": {"c": True}},
    "meta": torch.ones(2, device="meta"),
}


def refuse(trouble: str) -> None:
    raise AssertionError(trouble)


@pytest.mark.parametrize("name", VALUES)
def test_samples_arrive_as_they_were(name: str) -> None:
    label = Label(TAP, "x", "x", module="net.0")
    sent = [
        Sample(label, 3, 2, None, leaves_of(VALUES[name])),
        Sample(label, 4, np.array([1, 2]), None, leaves_of(1)),
    ]
    key, arrived, steps = SampleMail().load(SampleMail().dump((7, sent, None), refuse))
    assert (key, steps) == (7, None)
    assert [(one.label, one.step) for one in arrived] == [(label, 3), (label, 4)]
    assert arrived[0].ordinal == 2
    assert arrived[1].ordinal.tolist() == [1, 2]
    for one, other in zip(sent, arrived, strict=True):
        assert [leaf[:-1] for leaf in one.leaves] == [leaf[:-1] for leaf in other.leaves]
        for mine, theirs in zip(one.leaves, other.leaves, strict=True):
            if mine.payload is None:
                assert theirs.payload is None
            else:
                assert theirs.payload is not None
                assert mine.payload[:2] == theirs.payload[:2]
                assert bytes(mine.payload.data) == bytes(theirs.payload.data)


def test_no_samples_arrive_as_none() -> None:
    assert SampleMail().load(SampleMail().dump((None, [], 5), refuse)) == (None, [], 5)


class Bomb:
    def __reduce__(self) -> Any:
        return pytest.fail, ("it ran",)


def test_nothing_runs_on_the_other_side() -> None:
    with pytest.raises(ValueError, match="cut off"):
        SampleMail().load(pickle.dumps(Bomb()))


@pytest.mark.parametrize("values", ["fingerprint", "full"])
def test_a_whole_run_arrives_as_it_was(monkeypatch: pytest.MonkeyPatch, values: str) -> None:
    """All that a recording hands over, with an op that failed and calls that are open."""
    handed: list[Batch] = []
    extend = MemoryStore.extend

    def noted(store: MemoryStore, batch: Batch) -> None:
        handed.append(batch)
        extend(store, batch)

    monkeypatch.setattr(MemoryStore, "extend", noted)

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            clew.tap("h", x)
            assert len(t.events)  # reads, and so hands over, within the call
            with pytest.raises(RuntimeError):
                x @ torch.ones(7)
            return x.relu_().sum()

    with clew.trace(Net(), values=values) as t:
        Net()(torch.ones(2, 3, requires_grad=True) * 2).backward()
    assert len(t.events)
    assert any(batch.open_calls for batch in handed)
    for batch in handed:
        message = read_message(io.BytesIO(to_bytes(batch, {"worker": "w"})))
        assert message is not None
        assert message.facts == {"worker": "w"}
        other = message.batch
        assert other.open_calls == batch.open_calls
        assert other.gone.tolist() == batch.gone.tolist()
        for name in COLUMN_NAMES:
            assert other.columns[name].tolist() == batch.columns[name].tolist()
        for table in TABLES:
            assert other.tables[table] == batch.tables[table]
        assert {n: (k.stats, k.fingerprint) for n, k in other.kept.items()} == {
            n: (k.stats, k.fingerprint) for n, k in batch.kept.items()
        }
    marks = [kept.fingerprint for batch in handed for kept in batch.kept.values()]
    assert any(marks) == (values == "fingerprint")


@pytest.mark.parametrize("cut", [0, 1, 15, 16, 40, -1])
def test_a_message_that_is_cut_off_is_none(cut: int) -> None:
    label = Label(TAP, "x", "x")
    data = SampleMail().dump((0, [Sample(label, 0, 1, None, leaves_of(1.0))], None), refuse)
    file = io.BytesIO(data + data[:cut] if cut >= 0 else data + data[:-1])
    assert read_message(file) is not None
    assert file.tell() == len(data)
    assert read_message(file) is None
    assert file.tell() == len(data)
