"""What works in a process that has loaded nothing else before: each part loads what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import torch, clew

class Model(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        return clew.tap("doubled", y) + 1

model = Model()
with clew.trace(model, {options}) as t:
    model(torch.ones(2))
print(len(t.variables), [str(gap) for gap in t.coverage])
"""


@pytest.mark.parametrize(
    ("options", "found"),
    [('capture=["forward.y"]', 1), ('watch=["y"]', 2), ('capture=[":out"], values="stats"', 0)],
)
def test_values_are_kept(options: str, found: int) -> None:
    program = PROGRAM.format(options=options)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == f"{found} []", done.stderr
