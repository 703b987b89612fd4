"""Labels: which addresses name them, and what a store makes of their rows."""

from __future__ import annotations

import pytest

from clew.address import parse
from clew.events.labels import is_made_of, is_named, role_of
from clew.events.vocabulary import COPIED, GATHERED, SAVED, TAP, VARIABLE, Label
from clew.store.format.json_rows import dump, from_json, load_label
from clew.store.format.upgrade import upgraded_row


@pytest.mark.parametrize(
    ("address", "role"),
    [
        ("fc", None), ("fc:out", None), ("fc:in", "in"), ("fc:in.mask", "in.mask"),
        ("fc:out.logits[0]", "out.logits.0"), ("fc.weight:grad", "grad"),
    ],
)  # fmt: skip
def test_the_side_of_a_call(address: str, role: str | None) -> None:
    assert role_of(parse(address)) == role


def test_a_value_is_named_as_recorded_or_as_made() -> None:
    own = Label(TAP, "blocks.0.h", "h")
    saved = Label(VARIABLE, "blocks.0", "0", "in.mask", stage=SAVED)
    assert is_named(parse("blocks.*.h"), own)
    assert not is_made_of(parse("blocks.*.h"), own)
    assert is_made_of(parse("blocks.*:in.mask"), saved)
    assert not is_named(parse("blocks.*:in"), saved)
    assert not is_made_of(parse("blocks.*"), saved)
    op = Label(VARIABLE, "op:aten.relu.default", "relu", stage=SAVED)
    assert is_made_of(parse("op:relu"), op)
    assert not is_made_of(parse("relu"), op)


def test_a_row_comes_back_also_from_before_there_were_stages() -> None:
    label = Label(GATHERED, "fc", "fc", "in", "fc", stage=COPIED, rank=3)
    assert load_label(from_json(dump(label))) == label
    before = upgraded_row("label", [5, "a.h", "h", None, "a", None, None], 2)
    assert load_label(before) == Label(TAP, "a.h", "h", None, "a")
    for broken in ([5, "a", "a", None, None, None, None, "x", 0], [5, "a", "a"], [],
                   [5, "a", "a", None, None, None, None, None, "0"]):  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            load_label(broken)
