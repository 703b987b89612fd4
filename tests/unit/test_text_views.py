"""What the text views promise beyond how they look: budgets, errors, honesty, data."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew
from clew.events.live_events import Happening, LiveValue
from clew.events.model import Gap, Source
from clew.views.text.call_texts import CallTexts
from clew.views.text.live import LivePrinter
from clew.views.text.style import Style
from clew.views.text.tree import tree_view
from tests.golden import programs

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def trace_of(model: nn.Module, x: Tensor, **options: str) -> clew.Trace:
    with clew.trace(model, **options) as t:
        model(x)
    return t


def distinct(count: int) -> nn.Sequential:
    """Layers of which no two are the same."""
    layers = [nn.Sequential(nn.Linear(i + 1, i + 2), nn.ReLU()) for i in range(count)]
    return nn.Sequential(*layers)


# The tree


def test_the_default_tree_fits_a_screen_and_says_what_it_left_out() -> None:
    text = str(trace_of(distinct(25), torch.ones(1, 1)))
    lines = text.splitlines()
    assert len(lines) <= 60
    assert lines[-2] == "… 50 lines below depth 1 left out; t.tree(depth=2) shows all"
    assert lines[-1].startswith("NaN and Inf not checked")


def test_a_tree_too_long_at_any_depth_is_cut_and_says_so() -> None:
    t = trace_of(distinct(100), torch.ones(1, 1))
    lines = str(t).splitlines()
    assert len(lines) <= 60
    assert re.fullmatch(r"… \d+ more lines left out; t.tree\(depth=2\) shows all", lines[-2])
    assert len(str(t.tree(depth=2)).splitlines()) == 304


@pytest.mark.parametrize("rows", [5, 10, 30])
def test_rows_is_never_exceeded(rows: int) -> None:
    lines = str(trace_of(distinct(40), torch.ones(1, 1)).tree(rows=rows)).splitlines()
    assert len(lines) <= rows
    assert "left out" in lines[-2]


def test_depth_shows_modules_down_to_it() -> None:
    t = programs.stack()
    assert "blocks.0" not in str(t.tree(depth=0))
    assert "blocks.0" in str(t.tree(depth=1))
    assert "norm" not in str(t.tree(depth=1))


def test_a_failure_is_shown_at_any_depth() -> None:
    text = str(programs.crash().tree(depth=0))
    assert "✗ RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x8 and 5x4)" in text
    assert "✗ down  Linear" in text


def test_an_error_of_python_is_shown_where_it_was_raised() -> None:
    class Refuses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("too small\nby far")

    with contextlib.suppress(ValueError), clew.trace(Refuses()) as t:
        Refuses()(torch.ones(1))
    text = str(t)
    assert "✗ ValueError: too small\n" in text
    assert 'raise ValueError("too small\\nby far")' in text


def test_an_open_call_is_marked() -> None:
    seen = []

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            seen.append(str(t))
            return y

    model = Looks()
    with clew.trace(model) as t:
        model(torch.ones(1))
    assert "Looks (open)" in seen[0]
    assert "(open)" not in str(t)


def test_a_call_past_the_hooks_says_so() -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc.forward(x)

    assert re.search(
        r"fc  Linear\.forward +.*→ f32\[1,3\]", str(trace_of(Direct(), torch.ones(1, 2)))
    )


def test_shared_parameters_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x))

    lines = str(trace_of(Tied(), torch.zeros(2, dtype=torch.long))).splitlines()
    assert "40 parameters" in lines[0]
    assert re.search(r" 40 ", next(line for line in lines if "embed" in line))
    assert " shared " in next(line for line in lines if "head" in line)


def test_what_was_not_seen_is_counted_and_named() -> None:
    t = programs.stack()
    gaps = [Gap(f"thing {i}", "", "it hid", "look there") for i in range(5)]
    t._current_run().columns.gaps.extend(gaps)
    tail = str(t).splitlines()[-4:]
    assert tail[0] == "! not seen: 5 things, t.coverage lists them"
    assert tail[1] == "  thing 0: it hid; look there"


def test_modules_only() -> None:
    text = str(trace_of(programs.Stack(), torch.ones(2, 4), level="modules"))
    assert " ops" not in text
    assert "blocks.0 … blocks.5 ×6  Block" in text


def test_nothing_recorded() -> None:
    with clew.trace() as t:
        pass
    assert str(t).startswith("nothing was recorded: run the model inside")


def test_a_second_thread_has_its_own_heading() -> None:
    import threading

    model = nn.Linear(2, 2)
    with clew.trace(model) as t:
        thread = threading.Thread(target=model, args=(torch.ones(1, 2),), name="worker")
        thread.start()
        thread.join()
        model(torch.ones(1, 2))
    lines = str(t).splitlines()
    assert "thread worker" in lines
    assert "thread MainThread" in lines


def test_the_tree_as_data() -> None:
    data = programs.stack(width=16).tree().to_dict()
    (root,) = data["children"]
    assert [(c["name"], c["count"], c["same_as"]) for c in root["children"]] == [
        ("blocks.0 … blocks.2", 3, None),
        ("blocks.3", 1, None),
        ("blocks.4 … blocks.5", 2, "blocks.0"),
        ("head", 1, None),
    ]
    inside = root["children"][0]["children"]
    assert inside[2]["op_counts"] == {"aten.relu.default": 3}


def widest(text: str) -> int:
    return max(len(line) for line in ANSI.sub("", text).splitlines())


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_every_line_fits_a_terminal(width: int) -> None:
    style = Style(color=True, width=width, bounded=True)
    for t in (programs.crash(), programs.training()):
        for view in (t.tree(), t.code(), t.code(succinct=False), t.table()):
            assert widest(view.text(style)) <= width


def test_a_width_that_was_asked_for_holds_for_a_pipe_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    model = torch.nn.TransformerEncoderLayer(4, 1, 4, batch_first=True)
    with clew.trace(model, live=True) as t:
        model(torch.ones(1, 2, 4))
    printed = capsys.readouterr().out
    assert "native_layer_norm" in printed
    for text in (printed, str(t), str(t.code()), str(t.table())):
        assert widest(text) <= 60


class Odd(nn.Module):
    """Takes and returns more than tensors."""

    def forward(self, x: Tensor, mask: Any, *, how: Any, more: Any = None) -> Any:
        return [x.to(torch.float64), None, {"how": how}]


def test_the_live_log_writes_constants_as_the_code_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Odd()
    with clew.trace(model, live=True):
        model(torch.ones(2), None, how="so", more=[1, None, print])
    printed = capsys.readouterr().out
    assert "▸ Odd(f32[2], None, how='so', more=[1, None, builtin_function_or_method])" in printed
    assert "◂ Odd -> [f64[2], None, {how: 'so'}]" in printed
    assert "# _to_copy(f32[2], dtype=f64) -> f64[2]" in printed


def test_a_class_with_a_short_name_is_shown_in_the_widest_line_too() -> None:
    class MLP(nn.Sequential):
        pass

    model = nn.Sequential(*(MLP(nn.ReLU(), nn.Tanh()) for _ in range(3)))
    with clew.trace(model) as t:
        model(torch.ones(1, 2))
    (line,) = (line for line in str(t).splitlines() if "×3" in line)
    assert line.startswith("└─ 0 … 2 ×3  MLP  ")


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_cut_when_not_a_terminal(width: int) -> None:
    view = tree_view(programs.crash()._current_run())
    text = view.text(Style(width=width)).replace("blocks.0 … blocks.2", "")
    assert "…" not in text
    assert "norm  LayerNorm" in text


def test_views_are_plain_when_not_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    t = programs.stack()
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert "\x1b" not in str(t) + str(t.code()) + str(t.table())


def test_views_take_color_from_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    t = programs.stack()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert all("\x1b" in text for text in (str(t), str(t.code()), str(t.table())))
    monkeypatch.setenv("NO_COLOR", "1")
    assert all("\x1b" not in text for text in (str(t), str(t.code()), str(t.table())))
    assert "\x1b" in str(t.code(color=True))


def test_views_have_one_line_for_a_repr_and_text_for_notebooks() -> None:
    t = programs.stack()
    for view in (t.tree(), t.code(), t.table()):
        assert "\n" not in repr(view)
        assert view._repr_mimebundle_()["text/plain"]


# The code


def test_color_marks_the_columns_of_the_call_past_wide_letters() -> None:
    space: dict[str, object] = {"torch": torch}
    with clew.trace() as t:
        ü = "naïve"  # noqa: F841
        café = torch.ones(2); torch.relu(café)  # fmt: skip # noqa: E702
    assert space
    assert "\x1b[36mtorch.ones(2)\x1b[0m" in str(t.code(color=True))


def test_iterations_of_a_loop_are_told_apart() -> None:
    text = str(programs.loops().code())
    assert re.findall(r"x = x \* 2 \+ 1 .* in doubled(.*)", text) == ["", " (2)", " (3)"]
    assert re.findall(r"x = x - 1 .* in doubled(.*)", text) == ["", " (2)", " (3)"]


def test_one_line_that_calls_two_modules_is_printed_once() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + self.b(x)

    t = trace_of(Sum(), torch.ones(1, 2))
    assert str(t.code()).count("return self.a(x) + self.b(x)") == 1
    assert str(t.code(succinct=False)).count("return self.a(x) + self.b(x)") == 3


def test_folded_layers_are_all_there_in_full() -> None:
    t = programs.stack()
    assert "… ×5 more like this: blocks.1 … blocks.5" in str(t.code())
    full = str(t.code(succinct=False))
    assert "more like this" not in full
    assert "[blocks.5.down] Linear" in full


def test_backward_ops_stand_under_their_forward_op() -> None:
    text = str(programs.training(steps=1).code(ops="aten"))
    after = text.split("[head] Linear")[1]
    assert re.search(r"# addmm.*\n.*# ↩ backward: t ×4, mm ×2", after)


def test_a_line_without_source_still_says_where() -> None:
    model = nn.Linear(2, 2)
    with clew.trace(model, redact=True) as t:
        model(torch.ones(1, 2))
    assert re.match(r"# test_text_views\.py:\d+ in test_a_line", str(t.code()))


def test_code_as_data() -> None:
    (outer,) = programs.loops().code().to_dict()["nodes"]
    first, second, *_ = outer["children"]
    assert [line["kind"] for line in (outer, first, second)] == ["line"] * 3
    assert (outer["text"], outer["module"]) == ("doubled(x, 3)", None)
    assert (first["line"], first["function"], first["run"], first["runs"]) == (90, "doubled", 1, 3)
    assert (second["line"], second["run"], second["runs"]) == (90, 2, 3)
    op, _ = first["children"]
    assert (op["op"], op["inputs"], op["outputs"]) == ("aten.mul.Tensor", "f32[2], 2", "f32[2]")
    assert [value["shape"] for value in op["input_values"] + op["output_values"]] == [[2], [2]]


# Named values


def halved(x: np.ndarray, times: int) -> np.ndarray:
    for _ in range(times):
        x = x / 2
    return x


def test_the_code_of_a_watch_shows_its_variables_at_their_lines() -> None:
    watch = clew.watch("x", out=io.StringIO())
    watch(halved)(np.array([4.0, 8.0]), 2)
    text = str(watch.trace.code())
    runs = re.findall(r"x = x / 2 .* in halved(.*)\n.*# (.*)", text)
    assert runs == [
        ("", "x = np.f64[2]  [2, 4] μ 3 σ 1"),
        (" (2)", "x = np.f64[2]  [1, 2] μ 1.5 σ 0.5"),
    ]
    assert re.search(r"return x .* in halved\n.*# return np.f64\[2\]  \[1, 2\]", text)


def test_each_gradient_is_told_once_under_the_line_of_the_backward_pass() -> None:
    t = programs.named()
    for text in (str(t.code()), str(t.code(succinct=False))):
        after = text.split("y.sum().backward()")[-1].split("optimizer.step()")[0]
        assert after.count("# 1:grad = f32[2,4]") == text.count("1:grad") == 1
        assert after.count("# 0.proj.bias:grad = f32[4]") == text.count("bias:grad") == 1


def test_updates_are_told_where_the_ops_of_an_optimizer_are_only_counted() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, foreach=False)
    with clew.trace(model, capture=["3.bias:update"]) as t:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    after = str(t.code()).split("optimizer.step()")[1].splitlines()[1:]
    assert after[0] == "│ # 16 ops: add_.Tensor ×16"
    assert [line.split("  ")[0] for line in after[1:]] == ["│ # 3.bias:update = f32[2]"]


def test_named_values_without_ops() -> None:
    model = programs.Noted()
    with clew.trace(model, level="modules", capture=["forward.out"]) as t:
        model(torch.ones(2, 4))
    text = str(t.code())
    assert re.search(r"out = parts\[.* \[Noted\]\n.*# out = f32\[2,4\]", text)
    assert re.search(r"return clew.tap\(.* \[Noted\]\n.*# tap gated = f32\[2,4\]", text)


def test_the_tree_lists_named_values_and_counts_the_rest() -> None:
    first = programs.named().tree().to_dict()["named"][0]
    assert (first["name"], first["count"]) == ("0.proj.bias:param", 2)
    assert first["outputs"] == [{"path": "", "tensor": "f32[4]"}]
    assert (first["source"]["line"], first["source"]["last_line"]) == (210, 213)
    with clew.trace() as t:
        for number in range(12):
            clew.tap(f"tap{'x' * number}", np.zeros(number))
    lines = str(t).splitlines()
    assert lines[2] == "named values ×12"
    assert re.match(r"├─ tap +np.f64\[0\]  test_text_views.py:\d+$", lines[3])
    assert lines[-1] == "└─ … 4 more names"


def test_names_that_differ_in_an_index_are_listed_as_one_in_the_tree() -> None:
    with clew.trace() as t:
        for number in range(5):
            clew.tap(f"layer{number}", np.zeros(3))
        for size in range(5):
            clew.tap("grows", np.zeros(size))
    lines = str(t).splitlines()
    assert re.match(r"├─ layer0 … layer4 ×5  np.f64\[3\] ", lines[3])
    assert re.match(r"└─ grows ×5 +np.f64\[0\] → np.f64\[1\] → … → np.f64\[4\] ", lines[4])


# Texts of calls


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (lambda x: torch.cat([x, x], 1), "cat([f32[2,3], f32[2,3]], 1) -> f32[2,6]"),
        (lambda x: x.sum(1, keepdim=True), "sum.dim_IntList(f32[2,3], [1], True) -> f32[2,1]"),
        (lambda x: x.to(torch.int8), "_to_copy(f32[2,3], dtype=i8) -> i8[2,3]"),
        (lambda x: x.split(1), "split.Tensor(f32[2,3], 1) -> (f32[1,3], f32[1,3])"),
        (lambda x: x.add_(1.5), "add_.Tensor(f32[2,3], 1.5) -> f32[2,3]"),
        (lambda x: x.sum().item(), "_local_scalar_dense(f32[]) -> 6.0"),
        (
            lambda x: torch.arange(3, 6),
            "arange.start(3, 6, device=cpu, pin_memory=False) -> i64[3]",
        ),
        (
            lambda x: torch.cat([x] * 20),
            "cat([f32[2,3], f32[2,3], f32[2,3], f32[2,3], … 16 more]) -> f32[40,3]",
        ),
    ],
)
def test_ops_as_text(run: object, text: str) -> None:
    x = torch.ones(2, 3)
    with clew.trace() as t:
        run(x)  # type: ignore[operator]
    reader = t._current_run()
    assert CallTexts(reader).op(len(reader) - 1) == text


# The table


def test_the_table_has_every_column_of_every_event() -> None:
    t = programs.training(steps=2)
    columns = t.table().columns()
    assert list(columns) == [
        "id", "parent", "kind", "name", "address", "module", "call", "step", "phase", "rank",
        "thread", "file", "line", "function", "inputs", "outputs", "start", "duration", "error",
        "min", "max", "nan", "inf",
    ]  # fmt: skip
    assert {len(column) for column in columns.values()} == {len(t)}
    for event, *row in zip(t.events, *columns.values(), strict=True):
        cells = dict(zip(columns, row, strict=True))
        source = event.source
        assert cells["id"] == event.id
        assert cells["parent"] == event.parent_id
        assert (cells["kind"], cells["name"]) == (event.kind, event.name)
        assert cells["address"] == event.address
        assert cells["module"] == event.module
        # A step mark is no call.
        assert cells["call"] == (None if event.kind == "step" else event.call)
        assert (cells["step"], cells["phase"]) == (event.step, event.phase)
        assert cells["line"] == (None if source is None else source.line)
        assert cells["file"] == (None if source is None else source.file)
        assert cells["duration"] == event.duration


def test_the_table_says_what_it_left_out() -> None:
    t = programs.stack()
    assert len(t) == 70
    lines = str(t.table()).splitlines()
    assert len(lines) == 42
    note = "… 30 rows left out; t.table().head(70) shows all, t.to_pandas() has all columns"
    assert lines[36] == note
    assert len(str(t.table().head(70)).splitlines()) == 71


# The live log


def happening(
    kind: str, name: str, path: str | None, depth: int, inputs: list[Any], outputs: Any = None,
    seconds: float | None = None, error: str | None = None, source: Source | None = None,
) -> Happening:  # fmt: skip
    stack = () if source is None else (source,)
    return Happening(
        kind,
        name,
        path,
        depth,
        inputs,
        {},
        outputs,
        seconds,
        error,
        True,
        lambda: stack,
        lambda: None,
    )


def f32(*shape: int) -> LiveValue:
    return LiveValue("float32", shape, "cpu", "strided", "Tensor", None, None)


def test_the_live_log_nests_calls_and_ops_under_their_lines() -> None:
    stream = io.StringIO()
    log = LivePrinter(stream, color=False)
    line = Source("/a/net.py", 7, 7, 0, 0, "Net.forward", "y = self.fc(x) * 2")
    failed = "RuntimeError: no\nmore"
    log.begins(happening("module", "Net", "", 0, [f32(2, 4)]))
    log.begins(happening("module", "Linear", "fc", 1, [f32(2, 4)], source=line))
    log.ends(happening("op", "aten.addmm.default", None, 2, [f32(8)], f32(2, 8), source=line))
    log.ends(happening("module", "Linear", "fc", 1, [], f32(2, 8), 0.0012))
    log.ends(happening("tap", "h", "", 1, [], f32(2, 8), source=line))
    log.ends(happening("op", "aten.mul.Tensor", None, 1, [f32(2, 8), 2], error=failed, source=line))
    log.ends(happening("module", "Net", "", 0, [], None, 0.5, failed))
    assert stream.getvalue().splitlines() == [
        "▸ Net(f32[2,4])",
        "│ y = self.fc(x) * 2  # net.py:7 in Net.forward",
        "│ │ ▸ fc Linear(f32[2,4])",
        "│ │ │ # addmm(f32[8]) -> f32[2,8]",
        "│ │ ◂ fc -> f32[2,8]  1.20 ms",
        "│ │ h = f32[2,8]",
        "│ │ # ✗ mul.Tensor(f32[2,8], 2)  RuntimeError: no",
        "✗ Net RuntimeError: no  500 ms",
    ]


def test_the_live_log_never_raises() -> None:
    stream = io.StringIO()
    log = LivePrinter(stream)
    stream.close()
    log.ends(happening("op", "aten.relu.default", None, 3, [f32(2)]))
    log.ends(happening("module", "X", "x", 9, []))
    log.begins(happening("module", "X", "x", 0, []))


def test_the_live_log_copes_with_calls_it_did_not_see_begin() -> None:
    stream = io.StringIO()
    log = LivePrinter(stream, color=False)
    log.ends(happening("op", "aten.relu.default", None, 2, [f32(2)]))
    log.ends(happening("module", "A", "a", 1, [], f32(2), 0.001))
    assert stream.getvalue().splitlines() == ["# relu(f32[2])", "◂ a -> f32[2]  1.00 ms"]
