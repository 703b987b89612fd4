"""What the source calls an op: read from places in a file, and from ops as they run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clew
from clew.compat.engine.expressions import Expression, Wording, expression_at
from clew.events.live_events import Happening
from clew.events.model import Source
from clew.views.text.style import base_op
from tests.processes import HANG_GUARD


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


Said = tuple[str | None, dict[str, tuple[int, ...] | None], str | None]


class Heard:
    """The words for each op of a program as it runs: its text, its operands' shapes, its result."""

    def __init__(self) -> None:
        self.wording = Wording()
        self.words: list[tuple[str, Said]] = []

    def begins(self, event: Happening) -> None:
        pass

    def ends(self, event: Happening) -> None:
        if event.kind == "op":
            op = base_op(event.name)
            text, inputs, output = self.wording.of(event, op)
            shapes = {name: value.shape for name, value in inputs.values()}
            self.words.append((op, (text, shapes, output)))


def heard(program: Callable[[], Any]) -> list[tuple[str, Said]]:
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
        ("mm", ("a @ b", {"a": (2, 3), "b": (3, 2)}, "product")),
        ("rsub", ("1 - product", {"product": (2, 2)}, "shifted")),
        ("add_", ("shifted += 2", {"shifted": (2, 2)}, "shifted")),
        ("relu", (None, {}, None)),
    ]


def test_operands_are_what_the_source_names_whatever_was_made_of_them() -> None:
    q, k, w, v = torch.ones(2, 3, 4, 5), torch.ones(2, 3, 5, 4), torch.ones(5, 5), torch.ones(5)

    def program() -> list[Tensor]:
        for _ in range(2):
            att = q @ k
        wide = torch.matmul(q, w)
        row = v @ w
        return [att, wide, row]

    nothing = (None, {}, None)
    product = ("q @ k", {"q": (2, 3, 4, 5), "k": (2, 3, 5, 4)}, None)
    ready = [("expand", nothing), ("view", nothing)] * 2
    assert heard(program) == [
        *([*ready, ("bmm", product), ("_unsafe_view", (None, {}, "att"))] * 2),
        ("view", nothing), ("mm", nothing), ("_unsafe_view", (None, {}, "wide")),
        ("unsqueeze", nothing), ("mm", ("v @ w", {"v": (5,), "w": (5, 5)}, None)),
        ("squeeze_", (None, {}, "row")),
    ]  # fmt: skip


def test_operands_that_may_have_changed_sides_have_no_names() -> None:
    v, x = torch.ones(5), torch.ones(2, 4, 5).mT

    def program() -> Tensor:
        turned = v @ x
        return turned

    words = dict(heard(program))
    assert words["mv"] == ("v @ x", {}, None)
    assert {output for _, _, output in words.values()} == {None}


def test_nothing_piles_up_where_an_expression_runs_again_and_again() -> None:
    x, listener = torch.ones(2, 2), Heard()
    with clew.trace(live=listener):
        for _ in range(100):
            torch.einsum("ij,jk->ik", x, x)
    assert len(listener.words) > 200
    assert len(listener.wording._origins) < 100


def test_a_result_of_several_ops_is_none_of_the_first() -> None:
    x = torch.ones(3, 4, 5)

    def program() -> Tensor:
        part = x[1:, 0, :2]
        flat = x.transpose(0, 1).reshape(-1)
        return part.sum() + flat.sum()

    words = heard(program)
    assert [(op, output) for op, (_, _, output) in words if output] == [("_unsafe_view", "flat")]
    assert "clone" in dict(words)


def test_what_a_function_of_a_library_ran_is_not_what_is_written() -> None:
    x = torch.ones(2, 2)

    def program() -> Tensor:
        # Python code of torch's, which may run an op of its own name among others.
        result = torch.nn.functional.softmax(x, -1)
        return result

    assert {output for _, (_, _, output) in heard(program)} == {None}


def test_threads_do_not_mix_their_words() -> None:
    q, x = torch.ones(2, 3, 4, 5), torch.ones(2, 2)
    inside, done = threading.Event(), threading.Event()

    class Mixed(Heard):
        def ends(self, event: Happening) -> None:
            super().ends(event)
            if [op for op, _ in self.words].count("view") == 2 and not inside.is_set():
                inside.set()
                assert done.wait(HANG_GUARD)

    listener = Mixed()

    class Other(torch.nn.Module):
        def forward(self) -> Tensor:
            assert inside.wait(HANG_GUARD)
            y = x @ x
            done.set()
            return y

    with clew.trace(live=listener):
        thread = threading.Thread(target=Other())
        thread.start()
        q @ q.mT
        thread.join()
    words = dict(listener.words)
    assert words["mm"] == ("x @ x", {"x": (2, 2)}, "y")
    assert words["bmm"] == ("q @ q.mT", {"q": (2, 3, 4, 5), "q.mT": (2, 3, 5, 4)}, None)
