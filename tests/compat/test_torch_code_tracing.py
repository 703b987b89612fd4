"""torch-code-tracing by its old names: the README's block, its format, and none of its faults."""

from __future__ import annotations

import gc
import re
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clew.compat.torch_code_tracing import DTYPE_ABBRS, TracingMode


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.scale = 2.0

    def forward(self, ids: Tensor) -> Tensor:
        return self.embed(ids) * self.scale


def test_readme_block(capsys: pytest.CaptureFixture[str]) -> None:
    model, args, kwargs = Scaled(), (torch.tensor([[1, 2, 3]]),), {}
    with TracingMode(succinct=True, color=True):
        out = model(*args, **kwargs)
    assert out.shape == (1, 3, 3)
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"out = model\(\*args, \*\*kwargs\)  # .*test_torch_code_tracing.py:\d+ in "
        r"test_readme_block:", lines[0],
    )  # fmt: skip
    assert lines[1] == "│ ⬇️"
    assert re.fullmatch(
        r"│ return self.embed\(ids\) \* self.scale  # .*test_torch_code_tracing.py:\d+ in forward:",
        lines[2],
    )
    assert lines[3:] == [
        "│ │ # embedding(f32[7, 3], i64[1, 3]) -> f32[1, 3, 3];",
        "│ │ # mul.Tensor(f32[1, 3, 3], 2.0) -> f32[1, 3, 3];",
    ]


def traced(program: Any, **options: Any) -> TracingMode:
    with TracingMode(quiet=True, **options) as mode:
        program()
    return mode


def test_quiet_keeps_traces_print_and_format(capsys: pytest.CaptureFixture[str]) -> None:
    mode = traced(lambda: torch.ones(2) + 1)
    assert capsys.readouterr().out == ""
    assert [t.op_str for t in mode.traces] == [
        "ones([2], device=cpu, pin_memory=False) -> f32[2]",
        "add.Tensor(f32[2], 1) -> f32[2]",
    ]
    assert mode.traces[0].stack[-1].function.endswith("<lambda>")
    mode.print()
    assert capsys.readouterr().out == mode.format()


def test_lines_are_shown_again_only_where_they_differ() -> None:
    mode = traced(lambda: torch.ones(2).relu().exp())
    once = mode.format(succinct=True)
    assert once.count("torch.ones(2)") == 1
    if sys.version_info >= (3, 11):
        assert mode.format(succinct=False).count("torch.ones(2)") == 3
        assert "\033[96mtorch.ones(2)\033[0m.relu()" in mode.format(succinct=False, color=True)


def test_results_of_several_tensors() -> None:
    mode = traced(lambda: torch.ones(2, 3).max(1))
    assert mode.traces[-1].op_str == "max.dim(f32[2, 3], 1) -> (f32[2], i64[2])"


def test_defect_frames_and_tensors_are_not_held() -> None:
    references = []

    def program() -> None:
        x = torch.ones(10) * 2
        references.append(weakref.ref(x))

    mode = traced(program)
    gc.collect()
    assert references[0]() is None
    assert len(mode.traces) == 2


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32])
def test_defect_quantised_dtypes(dtype: torch.dtype) -> None:
    mode = traced(lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, dtype))
    assert str(dtype).removeprefix("torch.") + "[2]" in mode.traces[-1].op_str


def test_defect_strided_nested_tensors() -> None:
    mode = traced(lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2)
    assert mode.traces[-1].op_str.startswith("mul.Tensor(f32[")


def test_defect_the_failing_op_is_shown() -> None:
    mode = TracingMode(quiet=True)
    with pytest.raises(RuntimeError), mode:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert mode.traces[-1].op_str.startswith("mm(f32[2, 3], f32[2, 3]) -> !! RuntimeError")


def test_defect_packages_named_torch_something_are_the_users(tmp_path: Any) -> None:
    package = tmp_path / "site-packages" / "torchvisions"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def twice(x):\n    return x * 2\n")
    sys.path.insert(0, str(package.parent))
    try:
        import torchvisions  # type: ignore[import-not-found]

        mode = traced(lambda: torchvisions.twice(torch.ones(1)))
    finally:
        sys.path.remove(str(package.parent))
    assert mode.traces[-1].stack[-1].text == "return x * 2"


def test_defect_no_colour_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with TracingMode(color=True):
        torch.ones(1)
    assert "\033" not in capsys.readouterr().out


def test_every_dtype_has_a_short_name() -> None:
    assert DTYPE_ABBRS[torch.bfloat16] == "bf16"
    assert DTYPE_ABBRS[torch.bool] == "b8"
    assert DTYPE_ABBRS[torch.float8_e4m3fn] == "f8e4m3fn"
    assert torch.qint8 in DTYPE_ABBRS
