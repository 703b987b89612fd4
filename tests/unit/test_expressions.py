"""What the source calls an op: read from places in a file, and from ops as they run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clew
from clew.analysis.expressions import Expression, Wording, Words, expression_at
from clew.events.live import Happening
from clew.events.model import Source
from clew.views.text.style import base_op


def found(folder: Path, text: str, part: str | None = None) -> Expression | None:
    """The expression that a part of a file's text is; by default the right side of `=`."""
    path = folder / f"{len(list(folder.iterdir()))}.py"
    path.write_text(text, encoding="utf-8")
    part = text.partition(" = ")[2].strip() if part is None else part
    start = text.encode().index(part.encode())
    end = start + len(part.encode())
    line, end_line = (text.encode()[:at].count(b"\n") + 1 for at in (start, end))
    col, end_col = (at - (text.encode().rfind(b"\n", 0, at) + 1) for at in (start, end))
    return expression_at(Source(str(path), line, end_line, col, end_col, "f", ""))


@pytest.mark.parametrize(
    ("text", "op", "operands"),
    [
        ("a @ b", "bmm", ("a", "b")),
        ("a + self.b[0]", "add", ("a", "self.b[0]")),
        ("2 - a", "rsub", ("2", "a")),
        ("a / b.sqrt()", "div", ("a", "b.sqrt()")),
        ("a // 2", "floor_divide", ("a", "2")),
        ("a % 2", "remainder", ("a", "2")),
        ("a ** 2", "pow", ("a", "2")),
        ("a * (b + c)", "mul", ("a", "b + c")),
        ("-a", "neg", ("a",)),
        ("~a", "bitwise_not", ("a",)),
    ],
)
def test_an_operator_has_its_text_its_ops_and_its_operands(
    text: str, op: str, operands: tuple[str, ...], tmp_path: Path
) -> None:
    expression = found(tmp_path, f"    y = {text}\n")
    assert expression is not None
    assert (expression.text, expression.operands, expression.target) == (text, operands, "y")
    assert expression.stands_for(op)
    assert not expression.stands_for("view")


@pytest.mark.parametrize(
    ("text", "ops", "others"),
    [
        ("x.transpose(0, 1)", ["transpose"], ["view"]),
        ("torch.relu(x)", ["relu", "relu_"], ["add"]),
        ("x.softmax(-1)", ["_softmax"], ["exp"]),
        ("x.reshape(-1)", ["view", "_unsafe_view"], ["clone"]),
        ("torch.matmul(x, y)", ["mm", "bmm"], ["expand"]),
        ("x.to('cpu')", ["_to_copy"], ["copy"]),
        ("x.mT", ["transpose"], ["permute"]),
        ("x[0]", ["select"], ["add"]),
        ("x[:, 0]", [], ["select", "slice"]),
        ("x > 1", [], ["gt"]),
        ("functions[0](x)", [], ["relu"]),
    ],
)
def test_calls_and_indices_stand_for_the_op_that_gives_their_result(
    text: str, ops: list[str], others: list[str], tmp_path: Path
) -> None:
    expression = found(tmp_path, f"y = {text}\n")
    assert expression is not None
    assert expression.operands == ()
    assert [op for op in ops if not expression.stands_for(op)] == []
    assert [op for op in others if expression.stands_for(op)] == []


@pytest.mark.parametrize(
    ("text", "part", "target"),
    [
        ("y = a + b", "a + b", "y"),
        ("self.y: Tensor = a + b", "a + b", "self.y"),
        ("y, z = a.chunk(2)", "a.chunk(2)", "(y, z)"),
        ("y = z = a + b", "a + b", "y, z"),
        ("y = (a +\n     b)", "a +\n     b", "y"),
        ("é = a + ü", "a + ü", "é"),
        ("y += b", "y += b", "y"),
        ("y = a + b * 3", "b * 3", None),
        ("return a + b", "a + b", None),
        ("if a + b: pass", "a + b", None),
        ("y: int", "int", None),
    ],
)
def test_the_target_is_what_the_whole_result_is_assigned_to(
    text: str, part: str, target: str | None, tmp_path: Path
) -> None:
    expression = found(tmp_path, f"{text}\n", part)
    assert expression is not None
    assert expression.target == target


def test_an_augmented_assignment_is_an_operator(tmp_path: Path) -> None:
    expression = found(tmp_path, "\n  x[0] -= y\n", "x[0] -= y")
    assert expression is not None
    assert (expression.text, expression.operands) == ("x[0] -= y", ("x[0]", "y"))
    assert expression.stands_for("sub_")


def test_where_there_is_nothing_to_read_there_is_no_expression(tmp_path: Path) -> None:
    assert found(tmp_path, "y = a +\n", "a +") is None
    assert found(tmp_path, "import os\n", "import os") is None
    assert expression_at(Source(str(tmp_path / "none.py"), 1, 1, 0, 5, "f", "a + b")) is None
    # Python 3.10 does not tell columns.
    (tmp_path / "a.py").write_text("a + b\n")
    assert expression_at(Source(str(tmp_path / "a.py"), 1, 1, 0, 0, "f", "a + b")) is None


@pytest.mark.parametrize(
    ("text", "op", "tensors", "names"),
    [
        ("a @ b", "bmm", [0, 1], {0: "a", 1: "b"}),
        ("a / s", "div", [0], {0: "a"}),
        ("s - a", "rsub", [0], {0: "a"}),
        ("s ** a", "pow", [1], {1: "a"}),
        ("2 * a", "mul", [0], {0: "a"}),
        ("a * -2", "mul", [0], {0: "a"}),
        ("s * a", "mul", [0], {}),
        ("a + b", "add", [0, 1], {0: "a", 1: "b"}),
        ("f(a)", "f", [0], {}),
    ],
)
def test_operands_that_are_tensors_have_names_where_that_is_certain(
    text: str, op: str, tensors: list[int], names: dict[int, str], tmp_path: Path
) -> None:
    expression = found(tmp_path, f"y = {text}\n")
    assert expression is not None
    assert expression.names(op, tensors) == names


class Heard:
    """The words for each op of a program, as it runs."""

    def __init__(self) -> None:
        self.wording = Wording()
        self.words: list[tuple[str, Words]] = []

    def begins(self, event: Happening) -> None:
        pass

    def ends(self, event: Happening) -> None:
        if event.kind == "op":
            op = base_op(event.name)
            self.words.append((op, self.wording.of(event, op)))


def heard(program: Any) -> list[tuple[str, Words]]:
    listener = Heard()
    with clew.trace(live=listener):
        program()
    return listener.words


def test_the_words_for_ops_as_they_run() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 2)

    def program() -> Tensor:
        product = a @ b
        shifted = 1 - product
        shifted += 2
        return shifted.relu()

    assert heard(program) == [
        ("mm", Words("a @ b", {0: "a", 1: "b"}, "product")),
        ("rsub", Words("1 - product", {0: "product"}, "shifted")),
        ("add_", Words("shifted += 2", {0: "shifted"}, "shifted")),
        ("relu", Words(None, {}, None)),
    ]


def test_what_was_resized_on_the_way_has_not_the_names_of_what_it_was_made_of() -> None:
    q, k, w = torch.ones(2, 3, 4, 5), torch.ones(2, 3, 5, 4), torch.ones(5, 5)

    def program() -> None:
        for _ in range(2):
            att = q @ k
        q[0, 0] @ w
        wide = torch.matmul(q, w)
        return att, wide

    words = heard(program)
    assert [said for op, said in words if op == "bmm"] == [Words("q @ k", {}, None)] * 2
    products = [said for op, said in words if op == "mm"]
    assert products == [Words("q[0, 0] @ w", {0: "q[0, 0]", 1: "w"}, None), Words(None, {}, None)]
    assert {said.output for op, said in words} == {None}


def test_what_a_library_ran_is_not_what_is_written() -> None:
    x = torch.ones(2, 2)

    def program() -> Tensor:
        result = torch.nn.functional.normalize(x)
        return result

    assert {said.output for _, said in heard(program)} == {None}


def test_threads_do_not_mix_their_words() -> None:
    q, x = torch.ones(2, 3, 4, 5), torch.ones(2, 2)
    inside, done = threading.Event(), threading.Event()

    class Mixed(Heard):
        def ends(self, event: Happening) -> None:
            super().ends(event)
            if [op for op, _ in self.words].count("view") == 2 and not inside.is_set():
                inside.set()
                assert done.wait(10)

    listener = Mixed()

    class Other(torch.nn.Module):
        def forward(self) -> Tensor:
            assert inside.wait(10)
            y = x @ x
            done.set()
            return y

    with clew.trace(live=listener):
        thread = threading.Thread(target=Other())
        thread.start()
        q @ q.mT
        thread.join()
    words = listener.words
    assert [said for op, said in words if op == "mm"] == [Words("x @ x", {0: "x", 1: "x"}, "y")]
    assert [said for op, said in words if op == "bmm"] == [Words("q @ q.mT", {}, None)]
