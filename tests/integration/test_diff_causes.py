"""Where two versions of a program part at a line that nobody changed, the change is named too."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import clew
from clew.analysis.diff.divergence import Divergence

PROGRAM = """
    import torch
    import torch.nn.functional as F
    from torch import nn


    def attend(q, k, v, scale, mask=None):
        # Scores are scaled first.
        scores = q @ k.transpose(1, 2) * scale
        if mask is not None:
            scores = scores + mask
        return torch.softmax(scores, dim=-1) @ v


    def far_away(x):
        steps = torch.arange(x.shape[1])
        distance = (steps[:, None] - steps[None, :]).abs()
        return distance.float() * -0.5


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 8**-0.5
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
            self.last = nn.Linear(8, 8)

        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            y = attend(q, k, v, self.scale)
            y = x + self.last(y)
            return y, y[:, 0].tanh()
"""


def version(folder: Path, old: str = "", new: str = "") -> nn.Module:
    """Write a version of the program, and make its model with weights that depend on names only."""
    assert old in PROGRAM
    folder.mkdir()
    file = folder / "program.py"
    file.write_text(textwrap.dedent(PROGRAM.replace(old, new)))
    spec = importlib.util.spec_from_file_location("program", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: nn.Module = module.Model()
    for name, weight in model.named_parameters():
        generator = torch.Generator().manual_seed(sum(name.encode()))
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return model


def recorded(model: nn.Module) -> clew.Trace:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3))
    with torch.no_grad(), clew.trace(model, values="stats") as t:
        model(x)
    return t


def parted(folder: Path, old: str, new: str) -> Divergence:
    """Compare the program with one in which some text is replaced."""
    a, b = version(folder / "a"), version(folder / "b", old, new)
    first = clew.diff(recorded(a), recorded(b)).first
    assert first is not None
    return first


def has(said: tuple[str, ...], *parts: str) -> bool:
    return any(all(part in one for part in parts) for one in said)


def test_a_constructor_that_reads_otherwise_is_a_suspect(tmp_path: Path) -> None:
    first = parted(tmp_path, "8**-0.5", "8**0.5")
    assert first.b is not None
    assert first.b.source is not None
    assert first.b.source.text == "scores = q @ k.transpose(1, 2) * scale"
    assert has(first.evidence, "both are called from program.py:30 in Model.forward")
    assert first.suspects[0] == (
        "Model.__init__ reads otherwise: a `self.scale = 8**-0.5` (program.py:24), "
        "b `self.scale = 8**0.5` (program.py:24)"
    )


def test_comments_and_blank_lines_are_no_change(tmp_path: Path) -> None:
    new = "8**0.5\n\n            # Larger heads.\n            "
    first = parted(tmp_path, "8**-0.5\n            ", new)
    assert first.suspects[0].count("program.py:") == 2
    assert not has(first.suspects, "Larger")


def test_an_argument_that_only_one_version_makes_is_named_where_it_is_made(tmp_path: Path) -> None:
    first = parted(tmp_path, "k, v, self.scale)", "k, v, self.scale, far_away(x))")
    assert first.kind == "extra"
    assert first.b is not None
    assert first.b.source is not None
    assert "scores + mask" in first.b.source.text
    assert has(first.evidence, "both are called from program.py:30 in Model.forward")
    assert has(first.suspects, "attend(q, k, v, self.scale, far_away(x))")


def test_a_tensor_that_one_op_alone_gets_is_named_where_it_is_made(tmp_path: Path) -> None:
    fused = "F.scaled_dot_product_attention(q[None], k[None], v[None])[0]"
    masked = fused.replace(")[0]", ", attn_mask=far_away(x))[0]")
    call = "attend(q, k, v, self.scale)"
    models = [version(tmp_path / str(n), call, text) for n, text in enumerate((fused, masked))]
    traces = [recorded(model) for model in models]
    for (a, b), kind in ((traces, "extra"), (traces[::-1], "missing")):
        first = clew.diff(a, b).first
        assert first is not None
        assert first.kind == kind
        event = first.b if kind == "extra" else first.a
        assert event is not None
        assert event.source is not None
        assert event.source.function == "far_away"
        assert has(first.evidence, "is called from program.py:30 in Model.forward")


def test_tensors_that_were_swapped_are_named_with_their_makers(tmp_path: Path) -> None:
    first = parted(tmp_path, "attend(q, k, v, self", "attend(k, q, v, self")
    assert first.kind == "wrong"
    assert first.b is not None
    assert first.b.source is not None
    assert "q @ k.transpose(1, 2)" in first.b.source.text
    assert has(first.evidence, "argument 0: made by aten.addmm.default in k", "addmm.default in q")
    assert has(first.suspects, "`y = attend(k, q, v, self.scale)` (program.py:30)")


def test_a_bias_that_is_missing_is_named(tmp_path: Path) -> None:
    first = parted(tmp_path, "nn.Linear(8, 8)\n", "nn.Linear(8, 8, bias=False)\n")
    assert has(first.evidence, "only a gets last.bias")
    assert has(first.suspects, "`self.last = nn.Linear(8, 8, bias=False)`")


def test_a_result_that_differs_in_part_is_a_difference(tmp_path: Path) -> None:
    first = parted(
        tmp_path, "y = x + self.last(y)", "y = x + self.last(y)\n            y[:, 1:] *= 2"
    )
    assert first.b is not None
    assert first.b.source is not None
    assert first.b.source.text == "y[:, 1:] *= 2"


@pytest.mark.parametrize(
    "text", ["", "def far_away(", "class Model", '"""', "\x00\n\x00", "((((" * 9000]
)
def test_sources_of_strangers_are_only_read(text: str) -> None:
    from clew.analysis.diff.source_changes import code_of

    assert code_of(text.split("\n"), 3, "Model.forward", "Model.forward") == []
