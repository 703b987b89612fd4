"""A fixed sample of `make accuracy`: notes of crashes planted in real architectures."""

from __future__ import annotations

import os

import pytest

from accuracy import crashes
from accuracy.crashes import Outcome

SAMPLE = (
    "cnn-flatten", "cnn-last", "resnet-shortcut", "unet-dim", "vae-decoder", "vit-token",
    "attention-scores", "gpt-word", "gpt-loss", "tagger-first", "graph-degree", "train-write",
)  # fmt: skip


@pytest.fixture(scope="module")
def found() -> list[Outcome]:

    planted = [one for one in crashes.ALL if one.name in SAMPLE]
    assert len(planted) == len(SAMPLE)
    return crashes.outcomes(os.environ["CLEW_ENGINE"], planted)


@pytest.mark.parametrize("part", ["module", "line", "names", "sizes"])
def test_notes_name_what_was_planted(part: str, found: list[Outcome]) -> None:
    assert [one.planted.name for one in found if not getattr(one, part)] == []


def test_guesses_are_right_or_absent(found: list[Outcome]) -> None:
    assert [one.note for one in found if one.guess == "wrong"] == []
    assert sum(one.guess == "right" for one in found) >= 9


def test_the_list_is_long_enough() -> None:
    names = [one.name for one in crashes.ALL]
    assert len(names) == len(set(names)) >= 40
    assert len({one.kind for one in crashes.ALL}) >= 8
    assert all(one.line for one in crashes.ALL)
