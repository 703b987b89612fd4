"""Passes of a model, counted by mode and told when they are over."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from clew.capture.passes import Passes


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        x = self.fc(x)
        return self(x, depth - 1) if depth else x


def test_passes_are_counted_by_mode_and_calls_inside_belong_to_them() -> None:
    model, ends = Recursive(), []
    with Passes(model, lambda mode: ends.append(passes.count())) as passes:
        model(torch.ones(1, 2), depth=3)
        model.eval()
        model(torch.ones(1, 2))
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 3), depth=1)
        model.fc(torch.ones(1, 2))
        model.train()
        model(torch.ones(1, 2))
    model(torch.ones(1, 2))
    assert ends == [1, 2, 3, 4]
    assert (passes.count("train"), passes.count("eval")) == (2, 2)


def test_counts_go_on_in_another_block_and_nothing_stays_behind() -> None:
    hooks = nn.modules.module._global_forward_hooks
    model, before = nn.Linear(2, 2), list(hooks)
    passes = Passes(model, lambda mode: None)
    for _ in range(2):
        with passes:
            model(torch.ones(1, 2))
    assert passes.count("train") == 2
    assert list(hooks) == before
