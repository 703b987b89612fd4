"""Source lines: the user's own line for every event, with its columns, text and stack."""

from __future__ import annotations

import copy
import functools
import importlib
import linecache
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew
from tests import models

HAS_COLUMNS = sys.version_info >= (3, 11)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.attention = nn.TransformerEncoderLayer(2, 1, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x) + self.helper(x)
        return self.attention(h)

    def helper(self, x: Tensor) -> Tensor:
        return x.relu()


def line_of(text: str) -> int:
    """The number of the only line of this file that is `text`."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.strip() == text)
    return number


def test_an_op_has_the_line_it_was_written_on() -> None:
    model = Net()
    with clew.trace(model) as t:
        model(torch.ones(1, 3, 2))
    relu = next(op for op in t.ops if op.module == "" and op.name == "aten.relu.default")
    assert relu.source.file == __file__
    assert relu.source.line == relu.source.end_line == line_of("return x.relu()")
    assert relu.source.text == "return x.relu()"
    assert relu.source.function.endswith("helper")
    assert relu.module == ""


@pytest.mark.skipif(not HAS_COLUMNS, reason="Python 3.11 tells columns")
def test_two_ops_of_one_line_have_their_own_columns() -> None:
    with clew.trace() as t:
        torch.ones(2).add(1) * torch.zeros(2)
    text = Path(__file__).read_text().splitlines()[t.ops[0].source.line - 1]
    shown = [text[op.source.col : op.source.end_col] for op in t.ops]
    assert shown == [
        "torch.ones(2)",
        "torch.ones(2).add(1)",
        "torch.zeros(2)",
        "torch.ones(2).add(1) * torch.zeros(2)",
    ]


@pytest.mark.skipif(not HAS_COLUMNS, reason="Python 3.11 tells columns")
def test_a_call_over_several_lines() -> None:
    with clew.trace() as t:
        torch.cat(
            [
                torch.ones(2),
                torch.zeros(2),
            ]
        )
    ones, zeros, cat = (op.source for op in t.ops)
    assert cat.line < ones.line < zeros.line < cat.end_line
    assert cat.text == "torch.cat("


def test_a_module_call_has_the_line_that_calls_it() -> None:
    model = Net()
    with clew.trace(model) as t:
        model(torch.ones(1, 3, 2))
    assert t["fc"].one.source.text == "h = self.fc(x) + self.helper(x)"
    assert t[""].one.source.function == "test_a_module_call_has_the_line_that_calls_it"


def test_built_in_modules_show_the_user_s_line_and_their_inner_paths() -> None:
    model = Net()
    with clew.trace(model) as t:
        model(torch.ones(1, 3, 2))
    inner = [op for op in t.ops if op.module and op.module.startswith("attention")]
    assert len(inner) > 10
    assert {op.source.text for op in inner} == {"return self.attention(h)"}
    assert {"attention.self_attn", "attention.linear1", "attention.norm2"} <= {
        op.module for op in inner
    }


def test_the_whole_stack_is_there() -> None:
    model = Net()
    with clew.trace(model) as t:
        model(torch.ones(1, 3, 2))
    relu = next(op for op in t.ops if op.module == "" and op.name == "aten.relu.default")
    functions = [place.function.rpartition(".")[2] for place in relu.stack]
    assert functions[-3:] == ["test_the_whole_stack_is_there", "forward", "helper"]
    product = next(op for op in t.ops if op.module == "attention.linear1")
    files = [place.file for place in product.stack]
    assert any("torch/nn" in file for file in files)  # folded in `source`, kept here


def test_functions_of_torch_are_folded() -> None:
    with clew.trace() as t:
        F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 1]))
        torch.nn.init.kaiming_uniform_(torch.empty(2, 2))
        torch.autograd.functional.jacobian(lambda x: x * 2, torch.ones(2))
    assert {op.source.file for op in t.ops} == {__file__}


def test_code_of_a_package_merely_named_torch_something_is_the_user_s(tmp_path: Path) -> None:
    package = tmp_path / "torchfoo"
    package.mkdir()
    (package / "__init__.py").write_text("def double(x):\n    return x * 2\n")
    other = tmp_path / "torch_layers.py"
    other.write_text("def halve(x):\n    return x / 2\n")
    sys.path.insert(0, str(tmp_path))
    try:
        double = importlib.import_module("torchfoo").double
        halve = importlib.import_module("torch_layers").halve
        with clew.trace() as t:
            halve(double(torch.ones(2)))
    finally:
        sys.path.remove(str(tmp_path))
        for name in ("torchfoo", "torch_layers"):
            sys.modules.pop(name, None)
    _, first, second = t.ops
    assert (first.source.file, first.source.line) == (str(package / "__init__.py"), 2)
    assert (second.source.file, second.source.text) == (str(other), "return x / 2")


def test_lines_of_the_standard_library_are_not_the_user_s() -> None:
    model = nn.Linear(2, 2)
    with clew.trace() as t:
        copy.deepcopy(model)
    assert {op.source.text for op in t.ops} == {"copy.deepcopy(model)"}


def test_code_beside_torch_in_site_packages_is_the_user_s() -> None:
    model, inputs = models.build("gpt2")
    with clew.trace(model) as t:
        model(**inputs)
    inside = [op for op in t.ops if op.module and op.module.startswith("transformer.h.0.attn")]
    assert all("transformers" in op.source.file for op in inside)


def test_ops_in_a_loop_share_a_line_and_differ_in_nothing_else() -> None:
    with clew.trace() as t:
        x = torch.ones(1)
        for _ in range(3):
            x = x + 1
    assert len({str(op.source) for op in t["op:aten.add.Tensor"]}) == 1


def test_the_same_function_from_two_lines_has_two_stacks() -> None:
    def helper(x: Tensor) -> Tensor:
        return x + 1

    with clew.trace() as t:
        x = torch.ones(1)
        helper(x)
        helper(x)
    first, second = t["op:aten.add.Tensor"]
    assert first.source == second.source
    assert first.stack[-2].line + 1 == second.stack[-2].line


@pytest.mark.parametrize("way", ["with", "start", "decorator"])
def test_lines_do_not_depend_on_how_the_trace_was_opened(way: str) -> None:
    def program() -> Tensor:
        return torch.ones(1) + 1

    tracer = clew.trace()
    if way == "with":
        with tracer:
            program()
    elif way == "start":
        tracer.start()
        program()
        tracer.stop()
    else:
        tracer(program)()
    assert {op.source.text for op in tracer.ops} == {"return torch.ones(1) + 1"}
    assert tracer.ops[0].stack[-1].function.endswith("program")


def test_started_in_one_function_and_used_in_another() -> None:
    def start() -> Any:
        return clew.trace().start()

    def use() -> Tensor:
        return torch.ones(1) + 1

    tracer = start()
    use()
    tracer.stop()
    assert [op.source.function.rpartition(".")[2] for op in tracer.ops] == ["use", "use"]


def test_generators_comprehensions_lambdas_and_partials() -> None:
    def numbers() -> Any:
        for n in range(2):
            yield torch.full((1,), float(n))

    scale = functools.partial(torch.mul, torch.ones(1))
    with clew.trace() as t:
        listed = [x + 1 for x in numbers()]
        (lambda x: x - 1)(listed[0])
        scale(2)
        sorted(listed, key=lambda x: x.item())
    texts = [
        op.source.text for op in t.ops if op.name.startswith(("aten.add", "aten.sub", "aten.mul"))
    ]
    assert texts == [
        "listed = [x + 1 for x in numbers()]",
        "listed = [x + 1 for x in numbers()]",
        "(lambda x: x - 1)(listed[0])",
        "scale(2)",
    ]
    fulls = {op.source.text for op in t["op:aten.full.default"]}
    assert fulls == {"yield torch.full((1,), float(n))"}


def test_code_without_a_file() -> None:
    with clew.trace() as t:
        exec("import torch\ntorch.ones(1) + 1", {})
    assert t.ops[-1].source.file == "<string>"
    assert t.ops[-1].source.line == 2
    assert t.ops[-1].source.text == ""


def test_code_of_a_notebook_cell() -> None:
    """Cells have names of their own and live in linecache."""
    source = "import torch\nx = torch.ones(1)\ny = x * 5\n"
    name = "<ipython-input-1-abc>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    try:
        with clew.trace() as t:
            exec(compile(source, name, "exec"), {})
        assert t.ops[-1].source.text == "y = x * 5"
    finally:
        del linecache.cache[name]


def test_redact_leaves_the_text_out_and_keeps_the_place() -> None:
    with clew.trace(redact=True) as t:
        torch.ones(1)
    assert t.ops[0].source.text == ""
    assert t.ops[0].source.line > 0
    assert "torch.ones" not in str(t.to_dict())


def test_text_is_that_of_the_run_even_if_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text("def run(x):\n    return x * 3\n")
    scope: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    with clew.trace() as t:
        scope["run"](torch.ones(1))
    assert t.ops[-1].source.text == "return x * 3"
    file.write_text("# gone\n")
    linecache.checkcache()
    assert t.ops[-1].source.text == "return x * 3"


def test_addresses_by_line() -> None:
    model = Net()
    with clew.trace(model) as t:
        model(torch.ones(1, 3, 2))
    number = line_of("return x.relu()")
    found = t[f"line:{Path(__file__).name}:{number}"]
    assert [event.name for event in found] == ["aten.relu.default"]


def test_many_files_and_functions(tmp_path: Path) -> None:
    """Code objects made at run time, each with lines of its own."""
    with clew.trace() as t:
        x = torch.ones(1)
        for number in range(30):
            scope: dict[str, Any] = {}
            text = textwrap.dedent(f"""
                def step(x):
                    {"pass; " * number}
                    return x + {number}
            """)
            exec(compile(text, f"generated{number}.py", "exec"), scope)
            x = scope["step"](x)
            del scope
    files = [op.source.file for op in t["op:aten.add.Tensor"]]
    assert files == [f"generated{number}.py" for number in range(30)]
