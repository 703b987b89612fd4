"""torch-code-tracing by its old names: the README's block, the checklist, none of its faults."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import io
import os
import re
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import clew
from clew.compat.torch_code_tracing import (
    DTYPE_ABBRS,
    Trace,
    TracingMode,
    _arg_to_str,
    _op_to_str,
    _stringify_shape,
    _tensor_debug_string,
)

needs_columns = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python tells no columns")


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


def traced(program: Callable[[], Any], **options: Any) -> TracingMode:
    with TracingMode(quiet=True, **options) as mode:
        program()
    return mode


def ops_of(mode: TracingMode) -> list[str]:
    return [trace.op_str for trace in mode.traces]


def line_of(trace: Trace) -> str:
    """The innermost line of an op."""
    (line,) = trace.stack[-1].code_context or [""]
    return line.strip()


# The checklist


def inner(x: Tensor) -> Tensor:
    return x.max(1)[0].to(torch.bfloat16)


def test_checklist_op_log_as_a_tree_of_source_lines() -> None:
    def outer(x: Tensor) -> Tensor:
        y = torch.cat([x, torch.full((1, 3), 0.5)])
        return inner(y)

    x = torch.ones(1, 3)
    text = traced(lambda: outer(x)).format()
    assert [re.sub(r"  # \S+", "  #", line) for line in text.splitlines()] == [
        "program()  # in traced:",
        "│ ⬇️",
        "│ text = traced(lambda: outer(x)).format()  # in <lambda>:",
        "│ │ ⬇️",
        "│ │ y = torch.cat([x, torch.full((1, 3), 0.5)])  # in outer:",
        "│ │ │ # full([1, 3], 0.5, device=cpu, pin_memory=False) -> f32[1, 3];",
        "│ │ │ # cat([f32[1, 3], f32[1, 3]]) -> f32[2, 3];",
        "│ │ return inner(y)  # in outer:",
        "│ │ │ ⬇️",
        "│ │ │ return x.max(1)[0].to(torch.bfloat16)  # in inner:",
        "│ │ │ │ # max.dim(f32[2, 3], 1) -> (f32[2], i64[2]);",
        "│ │ │ │ # _to_copy(f32[2], dtype=torch.bfloat16) -> bf16[2];",
    ]


@needs_columns
def test_checklist_column_highlighting() -> None:
    mode = traced(lambda: torch.ones(2).relu().exp())
    text = mode.format(succinct=False, color=True)
    assert "\033[96mtorch.ones(2)\033[0m.relu().exp()" in text
    assert "\033[96mtorch.ones(2).relu()\033[0m.exp()" in text
    assert "\033[96mtorch.ones(2).relu().exp()\033[0m)" in text
    assert re.search(r"\033\[2m# \S+:\d+ in <lambda>:\033\[0m", text)
    assert "│ \033[2m⬇️\033[0m\n" in text
    assert "│ │ \033[2m# relu(f32[2]) -> f32[2];\033[0m\n" in text
    assert "\033" not in mode.format(succinct=False)


@needs_columns
def test_the_right_part_is_in_colour_behind_letters_of_any_kind() -> None:
    def program() -> None:
        größe = torch.ones(2) if "€" else None; größe.exp()  # fmt: skip  # noqa: E702

    text = traced(program).format(succinct=False, color=True)
    assert 'größe = \033[96mtorch.ones(2)\033[0m if "€" else None; größe.exp()' in text
    assert 'größe = torch.ones(2) if "€" else None; \033[96mgröße.exp()\033[0m' in text


@needs_columns
def test_checklist_succinct_mode(capsys: pytest.CaptureFixture[str]) -> None:
    mode = traced(lambda: torch.ones(2).relu().exp())
    assert mode.format().count("torch.ones(2)") == 1
    assert mode.format(succinct=False).count("torch.ones(2)") == 3
    for succinct, times in ((True, 1), (False, 3)):
        with TracingMode(succinct=succinct):
            torch.ones(2).relu().exp()
        assert capsys.readouterr().out.count("torch.ones(2)") == times


def test_checklist_quiet_and_stored_traces(capsys: pytest.CaptureFixture[str]) -> None:
    mode = traced(lambda: torch.ones(2) + 1)
    assert capsys.readouterr().out == ""
    assert ops_of(mode) == [
        "ones([2], device=cpu, pin_memory=False) -> f32[2]",
        "add.Tensor(f32[2], 1) -> f32[2]",
    ]
    assert all(isinstance(trace, Trace) for trace in mode.traces)
    assert [frame.function for frame in mode.traces[0].stack] == ["traced", "<lambda>"]
    with mode:
        torch.zeros(1)
    assert len(mode.traces) == 3


def test_a_mode_inside_itself_goes_on_as_one() -> None:
    mode = TracingMode(quiet=True)
    with pytest.warns(clew.ClewWarning, match="entered again: it goes on as one"):
        with mode:
            torch.ones(1)
            with mode:
                torch.zeros(1)
            torch.ones(2)
    assert [op.partition("(")[0] for op in ops_of(mode)] == ["ones", "zeros", "ones"]
    torch.ones(3)
    assert len(mode.traces) == 3
    with mode:
        torch.zeros(2)
    assert len(mode.traces) == 4


@needs_columns
def test_checklist_print_and_format(capsys: pytest.CaptureFixture[str]) -> None:
    mode = traced(lambda: torch.ones(2).relu(), succinct=False)
    assert mode.format().endswith("# relu(f32[2]) -> f32[2];")
    assert mode.format() != mode.format(succinct=False)
    mode.print()
    assert capsys.readouterr().out == f"{mode.format()}\n"
    mode.print(succinct=False)
    assert capsys.readouterr().out == f"{mode.format(color=False, succinct=False)}\n"
    empty = TracingMode()
    empty.print()
    assert capsys.readouterr().out == empty.format() == ""
    with TracingMode():
        traced(lambda: torch.ones(2).relu())
    assert capsys.readouterr().out.endswith("# relu(f32[2]) -> f32[2];\n")


# Behaviours


def test_a_mode_takes_what_torchs_modes_take_and_no_more() -> None:
    for mode in (TracingMode(None, quiet=True), TracingMode(_dispatch_key=None, quiet=True)):
        with mode:
            torch.ones(1)
        assert len(mode.traces) == 1
    with pytest.warns(clew.ClewWarning, match="does not heed DispatchKey.PreDispatch: ops are"):
        TracingMode(torch._C.DispatchKey.PreDispatch)
    with pytest.raises(TypeError, match="unexpected keyword argument 'quite'"):
        TracingMode(quite=True)  # type: ignore[call-arg]


def test_every_dtype_has_a_short_name() -> None:
    assert DTYPE_ABBRS[torch.bfloat16] == "bf16"
    assert DTYPE_ABBRS[torch.float64] == "f64"
    assert DTYPE_ABBRS[torch.bool] == "b8"
    assert DTYPE_ABBRS[torch.uint8] == "u8"
    assert DTYPE_ABBRS[torch.complex64] == "c64"
    assert DTYPE_ABBRS[torch.float8_e4m3fn] == "f8e4m3fn"
    assert DTYPE_ABBRS[torch.bits16] == "b16"
    assert DTYPE_ABBRS[torch.bits1x8] == "b1x8"
    assert torch.qint8 in DTYPE_ABBRS


def test_words_for_a_program_s_own_tensors_and_ops() -> None:
    x = torch.ones(2, 3)
    assert _stringify_shape(x.shape) == "[2, 3]"
    assert _stringify_shape(torch.Size([])) == "[]"
    assert _tensor_debug_string(x.bfloat16()) == "bf16[2, 3]"
    assert _tensor_debug_string(nn.Parameter(x)) == "f32[2, 3]"
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert _tensor_debug_string(ragged) == "f32[?]"
    assert _arg_to_str(x) == "f32[2, 3]"
    assert _arg_to_str([x, (x, 1), {"mask": x}]) == "[f32[2, 3], (f32[2, 3], 1), {mask: f32[2, 3]}]"
    assert _arg_to_str(torch.float16) == "torch.float16"
    add, relu = torch.ops.aten.add.Tensor, torch.ops.aten.relu.default
    assert _op_to_str(add, x, 1, alpha=2) == "add.Tensor(f32[2, 3], 1, alpha=2)"
    assert _op_to_str(relu, x) == "relu(f32[2, 3])"


@torch.library.custom_op("clew_tests::shifted", mutates_args=())
def shifted(x: Tensor, *, op: int) -> Tensor:
    return x + op


def test_ops_of_other_libraries_keep_their_namespace() -> None:
    mode = traced(lambda: shifted(torch.ones(2), op=3))
    assert ops_of(mode)[-1] == "clew_tests::shifted(f32[2], op=3) -> f32[2]"
    overload = torch.ops.clew_tests.shifted.default
    assert _op_to_str(overload, torch.ones(2), op=3) == "clew_tests::shifted(f32[2], op=3)"


def backward() -> None:
    torch.ones(2, requires_grad=True).exp().sum().backward()


def autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        torch.ones(2, 2) @ torch.ones(2, 2)


def checkpointed() -> None:
    x = torch.ones(2, requires_grad=True)
    checkpoint(torch.sin, x, use_reentrant=False).sum().backward()


def jagged() -> None:
    torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged).cos()


@pytest.mark.parametrize(
    ("program", "op"),
    [
        (backward, "mul.Tensor(f32[2], f32[2]) -> f32[2]"),
        (lambda: torch.ones(2).add_(1), "add_.Tensor(f32[2], 1) -> f32[2]"),
        (autocast, "mm(bf16[2, 2], bf16[2, 2]) -> bf16[2, 2]"),
        (checkpointed, "cos(f32[2]) -> f32[2]"),
        (jagged, "cos(f32[2, ?]) -> f32[2, ?]"),
        (lambda: torch.eye(2).to_sparse() * 2, "mul.Tensor(f32[2, 2], 2) -> f32[2, 2]"),
        (lambda: torch.ones(()).item(), "_local_scalar_dense(f32[]) -> 1.0"),
    ],
    ids=["backward", "in place", "autocast", "checkpoint", "jagged", "sparse", "item"],
)
def test_every_kind_of_op_is_seen(program: Callable[[], Any], op: str) -> None:
    assert [found for found in ops_of(traced(program)) if found.startswith(op)]


@torch.library.custom_op("clew_tests::counted", mutates_args=["calls"])
def counted(x: Tensor, calls: Tensor) -> Tensor:
    calls += 1
    return x * 2


@pytest.mark.parametrize(
    ("program", "op", "result"),
    [
        (lambda: nn.BatchNorm1d(3)(torch.ones(2, 3)), "native_batch_norm",
         "(f32[2, 3], f32[3], f32[3])"),
        (lambda: torch._foreach_add_([torch.ones(2), torch.ones(3)], 1), "_foreach_add_.Scalar",
         "None"),
        (lambda: counted(torch.ones(2), torch.zeros(1)), "clew_tests::counted", "f32[2]"),
        (lambda: torch.add(torch.ones(2), 1, out=torch.empty(2)), "add.out", "f32[2]"),
    ],
    ids=["some", "none", "one", "all"],
)  # fmt: skip
def test_results_are_what_an_op_returns_not_what_it_writes_to(
    program: Callable[[], Any], op: str, result: str
) -> None:
    found = [text for text in ops_of(traced(program)) if text.startswith(f"{op}(")]
    assert [text.rpartition(" -> ")[2] for text in found] == [result]


def test_backward_stands_under_the_line_that_ran_it() -> None:
    mode = traced(backward)
    assert line_of(mode.traces[-1]).endswith(".sum().backward()")


def chained(x: Tensor) -> tuple[Tensor, inspect.FrameInfo]:
    return x.relu().exp(), inspect.stack()[0]


def test_stacks_are_those_of_inspect_without_its_frames() -> None:
    results = []
    mode = traced(lambda: results.append(chained(torch.ones(2))))
    relu, exp = mode.traces[-2:]
    assert [type(frame) for frame in exp.stack] == [inspect.FrameInfo] * 3
    original = results[0][1]
    frame, file, line, function, context, index = exp.stack[-1]
    assert frame is None
    assert [file, line, function, context, index] == [*original[1:]]
    if sys.version_info >= (3, 11):
        text = context[0] if context else ""
        places = [trace.stack[-1].positions for trace in (relu, exp)]
        parts = [text[place.col_offset : place.end_col_offset] for place in places if place]
        assert parts == ["x.relu()", "x.relu().exp()"]
        assert {(place.lineno, place.end_lineno) for place in places if place} == {(line, line)}
    # A program may edit what it reads.
    exp.stack.clear()
    exp.op_str = "exp"
    assert len(relu.stack) == 3


def test_code_without_source_has_no_context() -> None:
    names: dict[str, Any] = {}
    exec(compile("def twice(x):\n    return x * 2\n", "<nowhere>", "exec"), names)
    mode = traced(lambda: names["twice"](torch.ones(1)))
    assert [*mode.traces[-1].stack[-1]] == [None, "<nowhere>", 2, "twice", None, None]
    assert "  # <nowhere>:2 in twice:\n" in mode.format()


def test_fake_tensors_are_seen() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        mode = traced(lambda: torch.ones(2) + 1)
    assert ops_of(mode)[-1] == "add.Tensor(f32[2], 1) -> f32[2]"


# Faults that are gone


def test_defect_compiled_code_stays_compiled() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x.sin() + 1).cos())
    x = torch.ones(2)
    expected = compiled(x)
    mode = traced(lambda: compiled(x))
    # One call of the compiled region: had it been run op by op, its ops would be here.
    assert ops_of(mode) == ["compiled(f32[2]) -> (f32[2])"]
    assert torch.equal(compiled(x), expected)


def test_defect_code_is_compiled_inside_the_block() -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x.sin(), backend=backend)
    traced(lambda: compiled(torch.ones(2)))
    assert len(graphs) == 1


def test_defect_ops_inside_torchs_modules_have_a_module() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    mode = traced(lambda: model(torch.rand(1, 3, 8)))
    modules = {trace.module for trace in mode.traces}
    assert {f"TransformerEncoder.layers.{n}.linear1" for n in range(2)} <= modules
    assert mode.traces[0].module is None


ELSEWHERE = """
import torch
from torch import nn
from clew.compat.torch_code_tracing import TracingMode
layer, x = nn.TransformerEncoderLayer(8, 2, 16), torch.rand(1, 3, 8)
with TracingMode(quiet=True) as mode:
    layer(x)
print(torch.__file__)
print(len(mode.traces), {frame.filename for trace in mode.traces for frame in trace.stack})
"""


def test_defect_torchs_own_lines_are_left_out_wherever_torch_is(tmp_path: Path) -> None:
    (tmp_path / "torch").symlink_to(Path(torch.__file__).parent, target_is_directory=True)
    (tmp_path / "program.py").write_text(ELSEWHERE)
    paths = [str(tmp_path), str(Path(clew.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    where, found = done.stdout.splitlines()
    assert where.startswith(str(tmp_path))
    count, files = found.split(" ", 1)
    assert int(count) > 20
    assert files == str({str(tmp_path / "program.py")})


def test_defect_packages_named_torch_something_are_the_users(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "torchvisions"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def twice(x):\n    return x * 2\n")
    sys.path.insert(0, str(package.parent))
    try:
        import torchvisions  # type: ignore[import-not-found]

        mode = traced(lambda: torchvisions.twice(torch.ones(1)))
    finally:
        sys.path.remove(str(package.parent))
        sys.modules.pop("torchvisions", None)
    assert line_of(mode.traces[-1]) == "return x * 2"


def test_defect_files_are_shown_from_the_current_folder_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "lib" / "site-packages" / "somewhere" / "code.py"
    own = tmp_path / "work" / "own.py"
    for path in (installed, own):
        path.parent.mkdir(parents=True)
        path.write_text("def twice(x):\n    return x * 2\n")
    monkeypatch.chdir(own.parent)
    text = ""
    for path in (installed, own):
        names: dict[str, Any] = {}
        exec(compile(path.read_text(), path, "exec"), names)
        text += traced(functools.partial(names["twice"], torch.ones(1))).format()
    assert f"# site-packages{os.sep}somewhere{os.sep}code.py:2 in twice:" in text
    assert "  # own.py:2 in twice:" in text


def test_defect_frames_and_tensors_are_not_held() -> None:
    references = []

    def program() -> None:
        for _ in range(40):
            x = torch.ones(2_621_440)  # 10 MB
            references.append(weakref.ref(x))

    mode = traced(program)
    gc.collect()
    assert len(mode.traces) == 40
    assert [reference for reference in references if reference() is not None] == []


@pytest.mark.parametrize(
    "name", ["bits8", "bits16", "int4", "uint4", "uint1", "float4_e2m1fn_x2", "uint16"]
)
def test_defect_every_dtype_can_be_shown(name: str) -> None:
    dtype = getattr(torch, name)
    mode = traced(lambda: torch.empty(2, dtype=dtype))
    assert ops_of(mode)[0].endswith(f"-> {DTYPE_ABBRS[dtype]}[2]")


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


@needs_columns
def test_iterations_on_one_line_are_told_apart_by_their_places() -> None:
    def loop(x: Tensor) -> None:
        for _ in range(3): x = (x + 1).relu()  # fmt: skip  # noqa: E701

    text = traced(lambda: loop(torch.ones(1))).format(succinct=False)
    assert text.count("for _ in range(3)") == 6


def in_thread(program: Callable[[], Any]) -> None:
    thread = threading.Thread(target=program, name="worker")
    thread.start()
    thread.join()


def test_defect_models_run_by_other_threads_are_seen() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    mode = traced(lambda: in_thread(lambda: model(x)))
    assert ops_of(mode)[-1] == "addmm(f32[2], f32[1, 2], f32[2, 2]) -> f32[1, 2]"


def test_ops_of_threads_that_are_not_shown_are_told_of() -> None:
    with ThreadPoolExecutor(1, "pool") as pool, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        pool.submit(torch.ones, 1).result()
        with TracingMode(quiet=True) as mode:
            torch.ones(1)
            in_thread(lambda: torch.ones(2))
            pool.submit(torch.ones, 3).result()
    assert len(mode.traces) == 1
    assert [str(warning.message) for warning in told] == [
        "ops of other threads are shown only inside module calls; open a TracingMode in a thread "
        "to see all of its ops: thread worker, thread pool_0"
    ]
    assert told[0].filename == __file__
    # A thread with a mode of its own tells, and one without ops is nobody's business.
    modes: list[TracingMode] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        in_thread(lambda: modes.append(traced(lambda: torch.ones(2))))
        with TracingMode(quiet=True):
            torch.ones(1)
            in_thread(lambda: None)
    assert [len(mode.traces) for mode in modes] == [1]
    assert [str(w.message) for w in told] == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_defect_no_colour_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for setting in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(setting, raising=False)
    for stream, color, coloured in (
        (io.StringIO(), True, False), (Terminal(), True, True), (Terminal(), False, False),
    ):  # fmt: skip
        with contextlib.redirect_stdout(stream), TracingMode(color=color) as mode:
            torch.ones(1)
            mode.print()
        assert ("\033" in stream.getvalue()) == coloured


def test_ops_are_kept_where_there_is_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with TracingMode() as mode:
        torch.ones(1)
        torch.zeros(1)
    mode.print()
    assert len(mode.traces) == 2
