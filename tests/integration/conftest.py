"""One thread per worker, as several whose threads wait for each other take minutes; crash notes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clew
from tests.outcomes import faults

os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(1)


@pytest.fixture
def note_of(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a program until it crashes, and returns the note.

    It also checks that the saved trace has the same note.
    """

    def crash(program: Callable[[], Any], model: nn.Module | None = None, **options: Any) -> str:
        caught: BaseException | None = None
        with contextlib.suppress(Exception):
            try:
                with clew.trace(model, **options) as t:
                    program()
            except Exception as error:
                caught = error
        assert caught is not None, "the program did not crash"
        assert faults(t) == []
        assert caught.__notes__ == [t.crash.note]
        t.save(tmp_path / "run.clew", exist="replace")
        assert clew.load(tmp_path / "run.clew").crash.note == t.crash.note
        assert len(t.crash.note.splitlines()) <= 15
        return str(t.crash.note)

    return crash
