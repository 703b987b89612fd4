"""Tensor Tracker by its old names: the README's blocks, its forms, and none of its faults."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import math
import os
import re
import signal
import subprocess
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import clew
from clew.compat import ttracker
from clew.compat.ttracker import (
    IndentManager,
    ThreadFileHandler,
    auto_diff,
    check_run_count,
    debug_trace,
    dlog,
    dump_data,
    extract_tensor_info,
    fstack,
    get_call_stack,
    h4logger,
    inlog,
    is_content_changed,
    log2file,
    logger,
    pskip,
    safe_getsourcelines,
    safe_mean,
    setup_logger,
    trace_calls,
    var_tracker,
)  # fmt: skip
from tests.processes import HANG_GUARD, answers

FILE = Path(__file__).name


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Logs go to an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LTAG", raising=False)
    yield tmp_path
    h4logger().close()


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Any:
    """What was printed since it was last asked, times as 0."""
    return lambda: re.sub(r"time [\d.]+ s", "time 0 s", capsys.readouterr().out).splitlines()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Takes the handlers away that pytest has for every logger, as it is in a program."""
    return lambda: monkeypatch.setattr(logger, "handlers", [h4logger()])


def line_of(function: Any, text: str) -> int:
    """The line of a function's source that begins with a text."""
    source, first = safe_getsourcelines(function)
    return first + next(n for n, line in enumerate(source) if line.strip().startswith(text))


def run_program(program: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env={**os.environ, **environment},
        timeout=HANG_GUARD, capture_output=True, text=True,
    )  # fmt: skip


# The README's blocks


def test_readme_auto_diff(lines: Any) -> None:
    class T2VDataset:
        @auto_diff
        def process_data(self, inputs: Any, index: int) -> Any:
            outputs = torch.cat(inputs).float()
            return outputs

    def getitem() -> Any:
        return T2VDataset().process_data([torch.ones(2, 3)] * 4, 113)

    getitem()
    first = line_of(T2VDataset.process_data, "@auto_diff")
    caller = line_of(getitem, "return")
    shown = lines()
    start = f"┌── [{FILE}:{first}] function [T2VDataset.process_data] called at getitem:{caller} "
    assert shown[0].startswith(f"{start}({FILE}:{caller} <- {FILE}:")
    assert shown[1].startswith("├─ input [Var] inputs@0 len(value): 4 | 0: [[1 1 1] [1 1 1]]")
    assert shown[2] == "├─ input [Var] index@0 value: 113"
    assert shown[3].startswith("└─ output shape=torch.Size([8, 3]) | dtype=torch.float32 | sum=24")
    assert shown[4:] == ["└─ time 0 s"]


def test_readme_var_tracker(lines: Any) -> None:
    @var_tracker("video")
    def transform_video(video_tensor: Any, start_frame_idx: int = 0) -> Any:
        video = video_tensor.astype(np.uint8)
        video = torch.from_numpy(video)
        video = video.permute(0, 3, 1, 2)
        transformed_video = video
        return transformed_video

    transform_video(np.ones((73, 4, 6, 3)))
    at = line_of(transform_video, "video = video_tensor")
    same = "sum=5256 | mean=1 | min=1 | max=1"
    shown = lines()
    shape = "shape=(73, 4, 6, 3) | dtype=float64"
    assert shown[1] == f"├─ input [Tensor] video_tensor@0 → {shape} | {same}"
    assert shown[2] == "├─ input [Var] start_frame_idx@0 value: 0"
    assert shown[3:6] == [
        f"│   ├─ [Tensor] video@{at} → shape=(73, 4, 6, 3) | dtype=uint8 | {same}",
        f"│   ├─ [Tensor] video@{at + 1} → shape=torch.Size([73, 4, 6, 3]) | dtype=torch.uint8 "
        f"| {same}",
        f"│   ├─ [Tensor] video@{at + 2} → shape=torch.Size([73, 3, 4, 6]) | dtype=torch.uint8 "
        f"| {same} | layout=strided",
    ]
    assert shown[6].startswith("└─ output shape=torch.Size([73, 3, 4, 6])")


def test_readme_log2file(folder: Path, lines: Any) -> None:
    xxx = 3
    logger.addHandler(h4logger())

    log2file(f"xx is {xxx}")

    assert lines() == ["xx is 3"]
    [path] = folder.rglob("*.log")
    thread = threading.get_ident()
    assert path == folder / "logs" / "NOTAG" / f"process_{os.getpid()}_thread_{thread}.log"
    [line] = path.read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:,]+ - INFO - xx is 3", line)


def test_readme_accuracy_monitor(lines: Any) -> None:
    model_executable = nn.Sequential(nn.Linear(3, 2), nn.ReLU())

    def check_hook(module, input, output):  # type: ignore[no-untyped-def]
        from clew.compat.ttracker import _log_change

        _log_change(f"{module.__class__.__name__}", "input", input, "", 0)
        _log_change(f"{module.__class__.__name__}", "output", output, "", 0)

    for _name, layer in model_executable.named_modules():
        layer.register_forward_hook(check_hook)
    model_executable(torch.ones(20, 3))
    shown = lines()
    assert [line.split("@")[0] for line in shown] == [
        "Linear [Var] input", "Linear [Tensor] output", "ReLU [Var] input",
        "ReLU [Tensor] output", "Sequential [Var] input", "Sequential [Tensor] output",
    ]  # fmt: skip
    assert shown[0].endswith(
        "len(value): 1 | 0: shape=torch.Size([20, 3]) | dtype=torch.float32 | sum=60 | mean=1 "
        "| min=1 | max=1"
    )


def test_what_comes_before_a_value_is_as_it_is_given(lines: Any) -> None:
    ttracker._log_change("├─ 输入", "n", 1, "│   ", 2)
    ttracker._log_change("└─", "n", torch.ones(30), "")
    ttracker._log_change("", "n", 1, "│   ")
    assert lines() == [
        "│   ├─ 输入 [Var] n@2 value: 1",
        "└─ [Tensor] n@0 → shape=torch.Size([30]) | dtype=torch.float32 | sum=30 | mean=1 "
        "| min=1 | max=1",
        "│   [Var] n@0 value: 1",
    ]


# Names


def test_every_name_is_there() -> None:
    names = {
        "auto_diff", "var_tracker", "debug_trace", "fstack", "_log_change", "extract_tensor_info",
        "is_content_changed", "log2file", "logger", "setup_logger", "h4logger", "trace_lines",
        "ThreadFileHandler", "IndentManager", "get_call_stack", "pskip", "safe_getsourcelines",
        "trace_calls", "check_run_count", "inlog", "safe_mean", "dlog", "dump_data",
    }  # fmt: skip
    assert names == set(ttracker.__all__)
    assert all(hasattr(ttracker, name) for name in names)


# The checklist


def test_checklist_function_decorator_with_inputs_outputs_caller_chain_and_duration(
    lines: Any,
) -> None:
    @auto_diff
    def pair(a: Any, *args: Any, **more: Any) -> Any:
        return torch.ones(30), [a]

    pair(None, 1, torch.zeros(2), name="x")
    shown = lines()
    assert shown[1:4] == [
        "├─ input [Var] a@0 value: None",
        "├─ input [Var] args@0 len(value): 2 | 0: 1, 1: [0 0]",
        "├─ input [Var] more@0 len(value): 1 | name: 'x'",
    ]
    assert shown[4].startswith("└─ output[0] shape=torch.Size([30]) | dtype=torch.float32 | sum=30")
    assert shown[5:] == ["└─ output[1.0] value: None", "└─ time 0 s"]


def test_checklist_variable_decorator_follows_callees(lines: Any) -> None:
    def halve(video: Tensor) -> Tensor:
        video = video / 2
        return video

    @var_tracker("video", "count")
    def load() -> Tensor:
        video = torch.full((5, 8), 8.0)
        count = 1
        video = halve(video)
        count += 1
        return video * count

    load()
    shown = [line.partition(" → ")[0] for line in lines()[1:]]
    first, below = line_of(load, "video = torch.full"), line_of(halve, "video = video / 2")
    assert shown[:-2] == [
        f"│   ├─ [Tensor] video@{first}",
        f"│   ├─ [Var] count@{first + 1} value: 1",
        f"│   ├─ [Tensor] video@{below}",
        f"│   ├─ [Tensor] video@{first + 2}",
        f"│   ├─ [Var] count@{first + 3} value: 2",
    ]


def test_checklist_variable_decorator_with_value_changes_by_line(lines: Any) -> None:
    @var_tracker("x")
    def run() -> Tensor:
        x = torch.full((5, 8), 2.0)
        x[0] = 4
        x = x.double()
        return x

    run()
    first = line_of(run, "x = torch.full")
    shape = "shape=torch.Size([5, 8]) | dtype=torch"
    assert lines()[1:-2] == [
        f"│   ├─ [Tensor] x@{first} → {shape}.float32 | sum=80 | mean=2 | min=2 | max=2",
        f"│   ├─ [Tensor] x@{first + 1} → {shape}.float32 | sum=96 | mean=2.4 | min=2 | max=4",
        "│   ├─ [WARN] dtype changed: torch.float32 → torch.float64",
        f"│   ├─ [Tensor] x@{first + 2} → {shape}.float64 | sum=96 | mean=2.4 | min=2 | max=4",
    ]


def test_checklist_line_tracer(lines: Any) -> None:
    @debug_trace
    def run(n: int) -> int:
        total = 0
        while n:
            n -= 1
            total += n
        return total

    assert run(2) == 1
    first = line_of(run, "total = 0")
    shown = [line.strip("│ ") for line in lines()]
    assert shown[1] == "├─ input [Var] n@0 value: 2"
    told = [line for line in shown[2:-2] if "while" not in line]
    body = [(2, "n -= 1"), (3, "total += n")]
    assert told == [
        f"├─ [{FILE}:{first + at}] {text}"
        for at, text in [(0, "total = 0"), *body, *body, (4, "return total")]
    ]
    assert f"├─ [{FILE}:{first + 1}] while n:" in shown


def test_checklist_log_and_print_helper(folder: Path, lines: Any) -> None:
    log2file("one")
    log2file({"two": 2})
    other = logging.NullHandler()
    logger.addHandler(other)
    try:
        log2file("three")
    finally:
        logger.removeHandler(other)
    assert lines() == ["one", "{'two': 2}", "three"]
    [path] = folder.rglob("*.log")
    written = path.read_text().splitlines()
    assert [line.partition(" - ")[2] for line in written] == [
        "INFO - one", "INFO - {'two': 2}", "INFO - three",
    ]  # fmt: skip
    stamps = [
        re.fullmatch(r"[\d-]{10} [\d:]{8},\d{3}", line.partition(" - ")[0]) for line in written
    ]
    assert all(stamps)


def test_logs_go_where_the_user_sends_them_and_in_their_form(
    folder: Path, lines: Any, alone: Callable[[], None]
) -> None:
    alone()
    seen: list[logging.LogRecord] = []
    mine = logging.Handler()
    mine.emit = seen.append  # type: ignore[method-assign]
    own, factory = h4logger(), logging.getLogRecordFactory()

    def marked(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = factory(*args, **kwargs)
        record.msg = f"<{record.msg}>"
        return record

    log2file("as usual")
    try:
        logger.addHandler(mine)
        log2file("to another handler", "of %s lines")
        logger.removeHandler(mine)
        own.setFormatter(logging.Formatter("%(levelname)s! %(message)s"))
        log2file("in another form")
        own.setFormatter(own.FORM)
        own.addFilter(lambda record: "secret" not in record.getMessage())
        log2file("a secret", "no such thing")
        own.filters.clear()
        own.setLevel(logging.WARNING)
        log2file("of a level that is off")
        own.setLevel(logging.NOTSET)
        logging.setLogRecordFactory(marked)
        log2file("of another factory")
    finally:
        logging.setLogRecordFactory(factory)
        logger.removeHandler(mine)
        own.setFormatter(own.FORM)
        own.filters.clear()
        own.setLevel(logging.NOTSET)
    logger.setLevel(logging.WARNING)
    log2file("switched off")
    logger.setLevel(logging.DEBUG)
    assert [record.getMessage() for record in seen] == ["to another handler", "of %s lines"]
    [path] = folder.rglob("*.log")
    said = [line.rpartition(" - ")[2] for line in path.read_text().splitlines()]
    assert said == [
        "as usual", "to another handler", "of %s lines", "INFO! in another form", "no such thing",
        "<of another factory>",
    ]  # fmt: skip
    assert len(lines()) == 8


def test_every_level_of_the_logger_is_written(folder: Path, lines: Any) -> None:
    logger.debug("in detail")
    logger.error("badly")
    [path] = folder.rglob("*.log")
    said = [line.partition(" - ")[2] for line in path.read_text().splitlines()]
    assert said == ["DEBUG - in detail", "ERROR - badly"]
    assert lines() == []


def test_a_line_of_the_file_is_dated_as_logging_dates_a_record(
    folder: Path, alone: Callable[[], None]
) -> None:
    alone()
    log2file("quick")
    logger.info("as a record")
    [path] = folder.rglob("*.log")
    quick, record = path.read_text().splitlines()
    form = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) - INFO - "
    stamps = [re.match(form, line) for line in (quick, record)]
    found = [datetime.strptime(f"{s[1]}.{s[2]}", "%Y-%m-%d %H:%M:%S.%f") for s in stamps if s]
    assert abs((datetime.now() - found[0]).total_seconds()) < 60
    assert 0 <= (found[1] - found[0]).total_seconds() < 10


def test_lines_are_there_when_the_process_is_killed(folder: Path) -> None:
    program = (
        "import os, signal\n"
        "from clew.compat.ttracker import var_tracker\n"
        "@var_tracker('x')\n"
        "def f(n):\n    x = n\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "f(3)\n"
    )
    done = run_program(program, folder)
    assert done.returncode == -signal.SIGKILL
    [path] = folder.rglob("*.log")
    said = [line.rpartition(" - ")[2] for line in path.read_text().splitlines()]
    assert said == done.stdout.splitlines()
    assert said[1:] == ["├─ input [Var] n@0 value: 3", "│   ├─ [Var] x@5 value: 3"]


def test_texts_that_no_encoding_has_and_no_standard_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch, alone: Callable[[], None]
) -> None:
    alone()
    log2file("half a \udcff character")
    monkeypatch.setattr(sys, "stdout", None)
    log2file("unheard")

    @auto_diff
    def run(n: int) -> int:
        return n + 1

    assert run(1) == 2
    [path] = folder.rglob("*.log")
    said = [line.rpartition(" - ")[2] for line in path.read_text().splitlines()]
    assert said[:2] == ["half a \\udcff character", "unheard"]
    assert said[3:5] == ["├─ input [Var] n@0 value: 1", "└─ output value: 2"]


def test_checklist_hook_style_accuracy_monitor(lines: Any) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    x = torch.randn(3, 5, 8)
    torch.manual_seed(1)
    expected = model(x)

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        ttracker._log_change(type(module).__name__, "input", inputs, "", 0)
        ttracker._log_change(type(module).__name__, "output", output, "", 0)

    handles = [module.register_forward_hook(hook) for module in model.modules()]
    torch.manual_seed(1)
    assert torch.equal(model(x), expected)
    shown = lines()
    assert len(shown) % 2 == 0
    called = [line.split()[0] for line in shown[::2]]
    assert called[-1] == "TransformerEncoder"
    assert called.count("TransformerEncoderLayer") == 2
    lowest, highest = expected.min().item(), expected.max().item()
    assert shown[-1].startswith("TransformerEncoder [Tensor] output@0 → shape=torch.Size([3, 5, ")
    assert f"min={lowest:.6g} | max={highest:.6g} | " in shown[-1]
    # What one layer gives the next is told of both in the same numbers.
    texts = [line.partition("shape=")[2] for line in shown]
    attention = called.index("TransformerEncoderLayer")
    assert texts[2 * attention + 1] in texts[2 * attention + 2]
    for handle in handles:
        handle.remove()


def test_checklist_numpy_alone(folder: Path) -> None:
    program = (
        "import sys, numpy as np\n"
        "sys.modules['torch'] = None\n"
        "from clew.compat.ttracker import *\n"
        "@var_tracker('x')\n"
        "def f(n):\n    x = np.arange(n)\n    x = x * 2\n    return x\n"
        "f(30)\n"
        "dlog('mean of', np.arange(4))\n"
    )
    done = run_program(program, folder)
    assert done.returncode == 0, done.stderr
    assert "[Tensor] x@7 → shape=(30,) | dtype=int64 | sum=870 | mean=29 | min=0" in done.stdout
    assert done.stdout.endswith("mean of rank0 (4,) 6\nmean of rank0 1.5\n")


def test_checklist_nested_structures_with_small_tensors_printed() -> None:
    found = extract_tensor_info(
        {"ids": torch.arange(3), "large": (torch.ones(26), np.ones(25)), "n": 4, "s": {5}}
    )
    assert found == {
        "ids": [0, 1, 2],
        "large": [
            {"type": "Tensor", "shape": (26,), "dtype": "torch.float32", "sum": 26, "mean": 1,
             "min": 1, "max": 1},
            [1.0] * 25,
        ],
        "n": 4,
        "s": [5],
    }  # fmt: skip
    assert extract_tensor_info(np.array([1, 2, 6]), max_elements=2) == {
        "type": "ndarray", "shape": (3,), "dtype": "int64", "sum": 9, "mean": 3, "min": 1, "max": 6,
    }  # fmt: skip
    assert extract_tensor_info(torch.ones(2, device="meta")) == {
        "type": "Tensor", "shape": (2,), "dtype": "torch.float32",
    }  # fmt: skip
    large = extract_tensor_info(torch.tensor([NAN, 1] * 20, dtype=torch.complex64))
    assert large == {
        "type": "Tensor", "shape": (40,), "dtype": "torch.complex64", "nan parts": 20,
    }  # fmt: skip


def test_checklist_stack_printer(lines: Any) -> None:
    @fstack
    def innermost() -> int:
        return 1

    def outer() -> int:
        return innermost()

    assert outer() == 1
    shown = lines()
    assert re.fullmatch(rf"-> .*innermost\(\) at {FILE}:\d+", shown[-1])
    assert shown[-2] == f"-> outer() at {FILE}:{line_of(outer, 'return')}"
    assert len(shown) > 4
    assert not any("watching.py" in line for line in shown)


def test_checklist_log_files_for_each_process_and_thread_with_a_tag(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LTAG", "trial7")
    log2file("here")
    thread = threading.Thread(target=log2file, args=("there",))
    thread.start()
    thread.join()
    log2file("here again")
    program = "from clew.compat.ttracker import log2file\nlog2file('elsewhere')\n"
    assert run_program(program, folder).returncode == 0
    paths = list((folder / "logs" / "trial7").iterdir())
    texts = sorted(
        [line.rpartition(" - ")[2] for line in path.read_text().splitlines()] for path in paths
    )
    assert texts == [["elsewhere"], ["here", "here again"], ["there"]]


def test_checklist_a_handler_with_a_folder_of_its_own(folder: Path) -> None:
    handler = ThreadFileHandler(folder / "mine")
    assert Path(handler.base_path) == folder / "mine"
    assert Path(h4logger().base_path) == Path("logs", "NOTAG")
    own = logging.getLogger("ttracker.test")
    own.addHandler(handler)
    try:
        own.warning("careful")
    finally:
        own.removeHandler(handler)
        handler.close()
    [path] = (folder / "mine").iterdir()
    assert path.read_text().endswith(" - WARNING - careful\n")


def test_checklist_run_count_stop(folder: Path, lines: Any) -> None:
    check_run_count("step", 3)
    check_run_count("step", 3)
    [path] = folder.glob("run_count_*_step.txt")
    assert path.name == f"run_count_{os.getpid()}_{threading.get_ident()}_step.txt"
    with pytest.raises(SystemExit) as stopped:
        check_run_count("step", 3)
    assert stopped.value.code == 1
    assert not path.exists()
    check_run_count("a/b", 3)
    assert len(list(folder.glob("run_count_*_a_b.txt"))) == 1
    assert lines() == ["step ran 3 times, and 3 are allowed: the end"]


def test_checklist_interval_logging_and_ranks(folder: Path, lines: Any) -> None:
    for n in range(4):
        inlog("every second", n, interval=2)
    assert lines() == ["every second 1", "every second 3"]
    dlog("ids", torch.arange(3), record_all=True)
    dlog("nothing", None)
    assert lines() == ["ids rank0 torch.Size([3]) 3", "ids rank0 1.0", "nothing rank0 None"]
    kept = (folder / "logs" / "ranklogs" / "rank_0.log").read_text()
    assert kept == "ids rank0 torch.Size([3]) 3 \nids rank0 1.0 \n"


@pytest.mark.parametrize(
    "value",
    [torch.ones(3).to(torch.float8_e5m2), torch.ones(2, 2).to_sparse(), np.array(["a", "b"]),
     np.array([None, 1], dtype=object), object()],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_what_has_no_sum_or_mean_is_printed_as_it_is(value: Any, lines: Any) -> None:
    dlog("odd", value)
    assert "\n".join(lines()) == f"odd rank0 {value}"


def test_checklist_two_ranks(folder: Path) -> None:
    script = (
        "from clew.compat.ttracker import dlog, dump_data\n"
        "dlog('x', torch.full((2,), rank))\n"
        "dlog('y', rank, record_all=True)\n"
        "dump_data('z', torch.tensor(rank))\n"
        "answer = 0\n"
    )
    answers(script, 2, folder)
    ranks = folder / "logs" / "ranklogs"
    assert [(ranks / f"rank_{r}.log").read_text() for r in (0, 1)] == [
        "y rank0 0 \n", "y rank1 1 \n",
    ]  # fmt: skip
    found = [torch.load(folder / "dump_data" / f"tensor_z_1_{r}.pt").item() for r in (0, 1)]
    assert found == [0, 1]


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64, torch.complex64,
     torch.float8_e4m3fn],
)  # fmt: skip
def test_checklist_safe_mean(dtype: torch.dtype) -> None:
    assert safe_mean(torch.ones(4).to(dtype)).item() == 1
    assert safe_mean(np.array([True, False])) == 0.5
    assert math.isnan(safe_mean(torch.ones(0).to(dtype)).real)
    assert math.isnan(safe_mean(np.ones(0)))


def test_checklist_tensor_dump(folder: Path) -> None:
    whole = torch.arange(1000)
    dump_data("q/k", whole[:2])
    dump_data("q/k", whole[2:4])
    paths = sorted((folder / "dump_data").iterdir(), key=lambda p: int(p.stem.split("_")[-2]))
    assert [re.sub(r"\d+_0", "N_0", path.name) for path in paths] == ["tensor_q_k_N_0.pt"] * 2
    assert [torch.load(path).tolist() for path in paths] == [[0, 1], [2, 3]]
    assert paths[0].stat().st_size < 4000


def test_checklist_indent_stack_and_source_helpers(lines: Any) -> None:
    IndentManager.increase()
    assert IndentManager.get_indent() == "│   "
    log2file(f"{IndentManager().get_indent()}at any depth")
    assert lines() == ["│   at any depth"]
    IndentManager().decrease()
    IndentManager.decrease()
    assert IndentManager.get_indent() == ""

    def ask() -> str:
        return get_call_stack()

    here = ask()
    assert re.fullmatch(rf"{FILE}:\d+ <- [^ ]+ <- [^ ]+", here)
    assert pskip() is True
    assert safe_getsourcelines(ask)[0][0].strip() == "def ask() -> str:"
    assert safe_getsourcelines(len) == ([], 0)
    assert setup_logger() is logger

    before = sys.gettrace()
    sys.settrace(trace_calls)
    try:
        ask()
    finally:
        sys.settrace(before)
    shown = lines()
    assert re.fullmatch(rf"┌── \[{FILE}:\d+\] function \[ask\]", shown[0])
    assert re.fullmatch(rf"├─ \[{FILE}:\d+\] return get_call_stack\(\)", shown[1])


def test_what_is_told_is_kept_by_a_trace_around_it() -> None:
    @var_tracker("x")
    def run() -> Tensor:
        x = torch.ones(3)
        return x

    run()
    assert len(run.watch.trace.variables) == 0  # type: ignore[attr-defined]
    with clew.trace() as trace:
        run()
    [event] = [e for e in trace.variables if e.name == "x"]
    assert event.outputs[""].shape == (3,)


# The defects


INF, NAN = math.inf, math.nan


def unwarned(make: Callable[[], Tensor]) -> Tensor:
    """A tensor of a kind that torch warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (torch.arange(30), "sum=435 | mean=14.5 | min=0 | max=29"),
        (torch.tensor([True, False]), "sum=1 | mean=0.5 | min=0 | max=1"),
        (torch.full((3,), 2**60), "sum=3.45876e+18 | mean=1.15292e+18 | min=1.15292e+18 "
         "| max=1.15292e+18"),
        (torch.ones(0), ""),
        (torch.tensor([1 + 2j, 3 - 1j]), ""),
        (torch.tensor([1 + 2j, complex(NAN, NAN)]), "nan parts=2"),
        (torch.ones(4, 5, device="meta"), "device=meta"),
        (torch.eye(4).to_sparse(), "sum=4 | mean=0.25 | min=0 | max=1 | layout=sparse_coo"),
        (torch.zeros(4, 4).to_sparse(), "sum=0 | mean=0 | min=0 | max=0 | layout=sparse_coo"),
        # Two pieces of one element, which is larger than each of them.
        (unwarned(lambda: torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,))),
         "sum=3 | mean=1.5 | min=0 | max=3 | layout=sparse_coo"),
        (unwarned(torch.eye(4).to_sparse_csr),
         "sum=4 | mean=0.25 | min=0 | max=1 | layout=sparse_csr"),
        (unwarned(torch.full((2, 2), -3).to_sparse_csr),
         "sum=-12 | mean=-3 | min=-3 | max=-3 | layout=sparse_csr"),
        (unwarned(torch.tensor([[0, INF]]).to_sparse_csr),
         "sum=inf | mean=inf | min=0 | max=inf | inf=1 | layout=sparse_csr"),
        (torch.tensor([1, INF]), "sum=inf | mean=inf | min=1 | max=inf | inf=1"),
        (torch.tensor([1, -INF] * 20), "sum=-inf | mean=-inf | min=-inf | max=1 | inf=20"),
        (torch.tensor([-INF, INF, 3]), "sum=nan | mean=nan | min=-inf | max=inf | inf=2"),
        (torch.tensor([-INF]), "sum=-inf | mean=-inf | min=-inf | max=-inf | inf=1"),
        (torch.tensor([1, NAN, INF]), "sum=nan | mean=nan | min=nan | max=nan | nan=1 | inf=1"),
        (torch.tensor([0.5, 1.5]).to(torch.float8_e5m2), "sum=2 | mean=1 | min=0.5 | max=1.5"),
        (np.arange(30), "sum=435 | mean=14.5 | min=0 | max=29"),
        (np.array([1, INF, 2]), "sum=inf | mean=inf | min=1 | max=inf | inf=1"),
        (np.array([1j]), ""),
        (np.ma.array([1.0, 2.0, 99.0], mask=[0, 0, 1]), ""),
        (np.array([]), ""),
        (np.array(["a", "b"]), ""),
        (np.array([None, 1], dtype=object), ""),
    ],
    ids=lambda v: v if isinstance(v, str) else f"{type(v).__name__} {v.dtype}",
)  # fmt: skip
def test_defect_int_bool_empty_and_complex_tensors_crash(
    value: Any, numbers: str, lines: Any
) -> None:
    @var_tracker("x")
    def run(given: Any) -> Any:
        x = given
        return x

    assert run(value) is value
    facts = f"shape={value.shape} | dtype={value.dtype}" + f" | {numbers}" * bool(numbers)
    line = line_of(run, "x = given")
    assert lines()[1:-1] == [
        f"├─ input [Tensor] given@0 → {facts}",
        f"│   ├─ [Tensor] x@{line} → {facts}",
        f"└─ output {facts}",
    ]


def test_quantised_numbers_are_those_it_means(lines: Any) -> None:
    plain = torch.tensor([0.5, 2.0])
    value = unwarned(lambda: torch.quantize_per_tensor(plain, 0.5, 0, torch.qint8))
    ttracker._log_change("", "x", value, "", 7)
    assert "sum=2.5 | mean=1.25 | min=0.5 | max=2" in lines()[0]


def test_elements_of_sparse_tensors_and_masked_arrays_are_not_taken_for_all(lines: Any) -> None:
    masked = np.ma.array([1.0, 99.0], mask=[0, 1])
    ttracker._log_change("", "x", [torch.eye(3).to_sparse(), masked, np.array([5])], "", 7)
    assert lines()[0].endswith(
        "len(value): 3 | 0: shape=torch.Size([3, 3]) | dtype=torch.float32 | sum=3 "
        "| mean=0.333333 | min=0 | max=1 | layout=sparse_coo, 1: shape=(2,) | dtype=float64, 2: [5]"
    )


def test_defect_arrays_lists_that_change_shape_and_mixed_sets_crash(lines: Any) -> None:
    @var_tracker("x")
    def run() -> None:
        x: Any = np.ones(3)
        x = x * 2
        x = [torch.ones(2), torch.ones(3)]
        x[0] = torch.ones(4, 4)
        x = {1, "a", (2, 3), None}
        x = {1, "b"}

    run()
    assert len([line for line in lines() if "] x@" in line]) == 6


def test_defect_trace_function_stays_on_or_is_lost(lines: Any) -> None:
    def mine(frame: Any, event: str, arg: Any) -> Any:
        return None

    @var_tracker("v")
    def fails() -> None:
        v = 1
        raise KeyError(v)

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        with pytest.raises(KeyError):
            fails()
        kept = sys.gettrace()
    finally:
        sys.settrace(before)
    assert kept is mine
    shown = lines()
    assert shown[-2:] == ["└─ raised KeyError: 1", "└─ time 0 s"]
    log2file("after")
    v = 2
    assert lines() == ["after"]
    assert v == 2
    assert IndentManager.get_indent() == ""


def test_defect_an_outer_tracker_stops_after_an_inner_one(lines: Any) -> None:
    @var_tracker("v")
    def inner(v: int) -> int:
        v = v * 3
        return v

    @var_tracker("v")
    def outer() -> int:
        v = 1
        v = inner(v)
        v = v * 5
        v = v * 6
        return v

    assert outer() == 90
    shown = [re.sub(r"@\d+", "", line) for line in lines() if "[Var]" in line]
    assert shown == [
        "│   ├─ [Var] v value: 1", "│   ├─ input [Var] v value: 1",
        "│   │   ├─ [Var] v value: 3", "│   ├─ [Var] v value: 3", "│   ├─ [Var] v value: 15",
        "│   ├─ [Var] v value: 90",
    ]  # fmt: skip


def test_a_function_whose_stack_is_told_has_its_variables_told_by_the_tracker(lines: Any) -> None:
    @fstack
    def inner(v: int) -> int:
        return v

    @var_tracker("v")
    def outer() -> int:
        v = 1
        return inner(v + 6)

    assert outer() == 7
    shown = [re.sub(r"@\d+", "", line) for line in lines() if "[Var]" in line]
    assert shown == ["│   ├─ [Var] v value: 1", "│   ├─ [Var] v value: 7"]


def test_defect_nan_small_changes_layout_grad_and_last_assignment(lines: Any) -> None:
    @var_tracker("nan", "small", "turned", "last")
    def run() -> None:
        nan = torch.full((30,), math.nan)
        small = torch.full((30,), 1e-7)
        small = small + 8.9e-6
        turned = torch.ones(5, 5)
        turned = turned.T
        turned = turned.requires_grad_()
        del nan
        last = turned.detach() + small.sum()  # noqa: F841 - the last assignment is the point

    run()
    found = [line.strip("│ ") for line in lines() if "@" in line]
    first = line_of(run, "nan =")
    places = [re.search(r"\] (\w+@\d+)", line)[1] for line in found]  # type: ignore[index]
    names = ["nan", "small", "small", "turned", "turned", "turned", "nan", "last"]
    assert places == [f"{name}@{first + n}" for n, name in enumerate(names)]
    assert found[0].endswith("sum=nan | mean=nan | min=nan | max=nan | nan=30")
    assert found[4].endswith("layout=strided")
    assert found[5].endswith("requires_grad=True")
    assert found[6].endswith("deleted")


def test_defect_device_changes_are_missed(lines: Any) -> None:
    @var_tracker("x")
    def run() -> None:
        x = torch.ones(30)
        x = x.to("meta")

    run()
    assert lines()[2].endswith("shape=torch.Size([30]) | dtype=torch.float32 | device=meta")


def test_defect_every_look_reduces_clones_and_compares_with_ops() -> None:
    ran: list[str] = []

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            ran.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    @var_tracker("x")
    def run(x: Tensor) -> Tensor:
        x = x + 1
        y = x * 2
        return y

    with Ops():
        run(torch.zeros(100_000))
    assert ran[-2:] == ["add", "mul"]
    assert not {"sum", "mean", "min", "max", "clone", "isclose"} & set(ran)


def test_defect_dtype_change_is_told(lines: Any) -> None:
    @var_tracker("x")
    def run() -> None:
        x = torch.ones(30)
        x = x.double()

    run()
    assert lines()[2] == "│   ├─ [WARN] dtype changed: torch.float32 → torch.float64"


class Outer:
    class Inner:
        @var_tracker("x")
        def method(self, n: int) -> int:
            x = n
            return x

        @classmethod
        @auto_diff
        def of_class(cls) -> int:
            return 4

        @auto_diff
        @staticmethod
        def alone() -> int:
            return 5


def test_defect_header_names_the_tracker_and_the_wrong_class(lines: Any) -> None:
    assert Outer.Inner().method(3) == 3
    assert Outer.Inner.of_class() + Outer.Inner.alone() == 9
    headers = [line for line in lines() if line.startswith("┌──")]
    assert [line.split("[")[2].split("]")[0] for line in headers] == [
        "Inner.method", "Inner.of_class", "Inner.alone",
    ]  # fmt: skip
    assert all(line.startswith(f"┌── [{FILE}:") for line in headers)
    assert not any("watching.py" in line or "ttracker/" in line for line in headers)


@pytest.mark.parametrize("result", [{"n": 1, "t": torch.ones(2)}, 3, None, "text", True, []])
def test_defect_dict_scalar_and_none_results_are_not_logged(result: Any, lines: Any) -> None:
    auto_diff(lambda: result)()
    shown = lines()[1]
    if isinstance(result, dict):
        assert shown == "└─ output len(value): 2 | n: 1, t: [1 1]"
    elif result == []:
        assert shown == "└─ output len(value): 0"
    else:
        assert shown == f"└─ output value: {result!r}"


def test_tensors_in_a_result_of_any_class_have_their_numbers(lines: Any) -> None:
    @dataclasses.dataclass
    class Output:
        logits: Tensor
        loss: float

    auto_diff(lambda: Output(torch.ones(30), 0.5))()
    facts = "shape=torch.Size([30]) | dtype=torch.float32 | sum=30 | mean=1 | min=1 | max=1"
    assert lines()[1] == f"└─ output len(value): 2 | logits: {facts}, loss: 0.5"


def test_the_same_numbers_are_told_with_what_else_has_changed(lines: Any) -> None:
    tensor, asks = torch.ones(4, 5), torch.ones(4, 5, requires_grad=True)
    for value in (tensor, tensor, asks, tensor.double(), asks.T):
        ttracker._log_change("", "x", value, "", 7)
    start, end = "[Tensor] x@7 → shape=torch.Size(", "sum=20 | mean=1 | min=1 | max=1"
    assert lines() == [
        f"{start}[4, 5]) | dtype=torch.float32 | {end}",
        f"{start}[4, 5]) | dtype=torch.float32 | {end}",
        f"{start}[4, 5]) | dtype=torch.float32 | {end} | requires_grad=True",
        f"{start}[4, 5]) | dtype=torch.float64 | {end}",
        f"{start}[5, 4]) | dtype=torch.float32 | {end} | layout=strided | requires_grad=True",
    ]


def test_a_variable_bound_to_an_equal_tensor_is_not_told_again(lines: Any) -> None:
    @var_tracker("x", "turned")
    def run() -> None:
        x = torch.arange(100_000.0)
        x = x.clone()
        x = x + 1
        turned = x.view(100, 1000).T
        turned = turned.clone(memory_format=torch.preserve_format)
        turned = turned.contiguous()
        turned = turned * 2

    run()
    first = line_of(run, "x = torch.arange")
    told = [re.search(r"\] (\w+)@(\d+)", line) for line in lines()]
    assert [(found[1], int(found[2]) - first) for found in told if found] == [
        ("x", 0), ("x", 2), ("turned", 3), ("turned", 5), ("turned", 6),
    ]  # fmt: skip


def test_defect_handler_doubles_each_line(folder: Path) -> None:
    logger.addHandler(h4logger())
    logger.addHandler(h4logger())

    @auto_diff
    def run() -> int:
        return 1

    run()
    [path] = folder.rglob("*.log")
    said = [line.rpartition(" - ")[2] for line in path.read_text().splitlines()]
    assert len(said) == 3
    assert said[1] == "└─ output value: 1"


def test_defect_debug_trace_skips_own_lines_and_callee_names(lines: Any) -> None:
    def below(n: int) -> int:
        return n + 1

    @debug_trace
    def run() -> int:
        m = below(1)
        return m

    assert run() == 2
    shown = [re.sub(r":\d+\]", "]", line) for line in lines()]
    assert shown[1] == f"│   ├─ [{FILE}] m = below(1)"
    assert shown[2].startswith(f"│   ┌── [{FILE}] function [")
    assert shown[2].endswith("below]")
    assert shown[3:] == [
        "│   ├─ input [Var] n@0 value: 1",
        f"│   │   ├─ [{FILE}] return n + 1",
        "│   └─ output value: 2", "│   └─ time 0 s",
        f"│   ├─ [{FILE}] return m",
        "└─ output value: 2", "└─ time 0 s",
    ]  # fmt: skip


def test_defect_builtins_end_in_an_attribute_error() -> None:
    with pytest.raises(clew.ClewError, match="sum is built in; watch the function that calls it"):
        auto_diff(sum)


def test_a_partial_is_tracked_in_the_function_it_calls(lines: Any) -> None:
    def add(a: int, b: int, c: int = 0) -> int:
        total = a + b + c
        return total

    tracked = var_tracker("total")(auto_diff(functools.partial(add, 1, c=5)))
    assert tracked(2) == 8
    assert auto_diff(tracked) is tracked
    assert copy.deepcopy(tracked).keywords == {"c": 5}  # type: ignore[attr-defined]
    at = line_of(add, "total")
    assert [line.rpartition("input ")[2] for line in lines()[1:]] == [
        "[Var] a@0 value: 1", "[Var] b@0 value: 2", "[Var] c@0 value: 5",
        f"│   ├─ [Var] total@{at} value: 8", "└─ output value: 8", "└─ time 0 s",
    ]  # fmt: skip
    with pytest.raises(clew.ClewError, match="max is built in"):
        auto_diff(functools.partial(max, 1))


def test_objects_that_are_called_end_in_an_error_that_says_what_to_decorate(lines: Any) -> None:
    class Scale:
        def __call__(self, x: int) -> int:
            return x

    module = nn.Linear(2, 2)
    with pytest.raises(clew.ClewError) as error:
        auto_diff(module)
    assert str(error.value) == (
        "clew.watch decorates functions, and was given an object of class Linear; decorate "
        "Linear.forward, or this one's alone: it.forward = decorator(it.forward)"
    )
    module.forward = auto_diff(module.forward)  # type: ignore[method-assign]
    module(torch.ones(1, 2))
    assert "function [Linear.forward]" in lines()[0]
    with pytest.raises(clew.ClewError, match="decorate Scale.__call__ where the class is written$"):
        auto_diff(Scale())


def test_defect_only_the_creation_of_generators_is_logged(lines: Any) -> None:
    @auto_diff
    def produce(count: int) -> Iterator[Tensor]:
        for n in range(count):
            yield torch.full((30,), n)

    for item in produce(2):
        log2file(f"got {int(item[0])}")
    shown = [line.partition(" | ")[0] for line in lines()]
    assert shown[2:] == [
        "├─ yield shape=torch.Size([30])", "got 0", "├─ yield shape=torch.Size([30])", "got 1",
        "└─ output value: None", "└─ time 0 s",
    ]  # fmt: skip
    unfinished = produce(2)
    next(unfinished)
    unfinished.close()
    assert IndentManager.get_indent() == ""


def test_calls_of_itself_are_told(lines: Any) -> None:
    @auto_diff
    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert factorial(3) == 6
    shown = [line for line in lines() if "output" in line or "input" in line]
    assert shown == [
        "├─ input [Var] n@0 value: 3", "│   ├─ input [Var] n@0 value: 2",
        "│   │   ├─ input [Var] n@0 value: 1", "│   │   └─ output value: 1",
        "│   └─ output value: 2", "└─ output value: 6",
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("decorator", [auto_diff, var_tracker("y"), debug_trace])
def test_a_function_that_is_compiled_says_so_once(decorator: Any, lines: Any) -> None:
    @decorator
    def double(x: Tensor) -> Tensor:
        y = x * 2
        return y

    torch.compiler.reset()
    compiled = torch.compile(double, backend="eager")
    with pytest.raises(TypeError):
        double()
    assert "compile" not in "".join(lines())
    assert double(torch.ones(2)).tolist() == [2, 2]
    assert lines()[-2].startswith("└─ output shape=torch.Size([2])")
    for _ in range(3):
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    said = (
        "a watched function at double: it was called but its own code did not run, as when "
        "torch.compile runs other code in its place; run it under "
        "torch.compiler.set_stance('force_eager') to see inside"
    )
    assert lines() == [f"├─ [WARN] {said}"]
    assert said in [str(gap) for gap in double.watch.trace.coverage]  # type: ignore[attr-defined]
    with torch.compiler.set_stance("force_eager"):
        compiled(torch.ones(2))
    assert lines()[-2].startswith("└─ output shape=torch.Size([2])")


@pytest.mark.filterwarnings("ignore:Clew could not watch")
@pytest.mark.parametrize("decorator", [auto_diff, var_tracker("rest"), debug_trace])
def test_a_full_stack_leaves_no_indent_behind(decorator: Any, lines: Any) -> None:
    @decorator
    def endless(n: int) -> int:
        rest = n
        return endless(rest + 1) if n else 1

    IndentManager.increase()
    with pytest.raises(RecursionError):
        endless(1)
    assert IndentManager.get_indent() == "│   "
    IndentManager.decrease()
    assert any("│   │   │   ┌──" in line for line in lines())
    assert endless(0) == 1
    shown = lines()
    assert shown[0].startswith("┌── ")
    assert shown[-2:] == ["└─ output value: 1", "└─ time 0 s"]


@pytest.mark.parametrize("order", ["tracker first", "tracker last"])
def test_both_decorators_on_one_function_tell_once(order: str, lines: Any) -> None:
    def run() -> int:
        a = 1
        return a

    both = var_tracker("a")(auto_diff(run))
    if order == "tracker last":
        both = auto_diff(var_tracker("a")(run))
    assert both() == 1
    shown = lines()
    assert len(shown) == 4
    assert shown[1].endswith("value: 1")


def test_defect_import_writes_and_everything_is_in_chinese(folder: Path) -> None:
    program = (
        "from clew.compat.ttracker import *\n"
        "import logging\n"
        "@var_tracker('x')\n"
        "def f():\n    x = 1\n    return x\n"
    )
    done = run_program(program, folder)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(folder.iterdir()) == []
    silent = program + "logger.setLevel(logging.WARNING)\nf()\n"
    done = run_program(silent, folder)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(folder.iterdir()) == []
    done = run_program(program + "f()\n", folder)
    assert not re.search("[一-鿿]", done.stdout)
    assert len(done.stdout.splitlines()) == 4


def test_a_terminal_without_tree_lines_and_a_folder_that_cannot_be_written(folder: Path) -> None:
    (folder / "logs").write_text("in the way")
    program = (
        "from clew.compat.ttracker import auto_diff\n"
        "@auto_diff\ndef f(n):\n    return n\n"
        "assert f(1) == 1 and f(2) == 2\n"
    )
    done = run_program(program, folder, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1] == "?? input [Var] n@0 value: 1"
    assert done.stderr.count("the log files of ttracker end here") == 1


def test_defect_each_tracked_tensor_is_cloned() -> None:
    @var_tracker("x")
    def run() -> None:
        x = np.zeros(2_000_000, np.float32)
        for n in range(4):
            x[n] = 1

    run()
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * 8_000_000


# Whether content has changed


@pytest.mark.parametrize(
    ("last", "current", "changed"),
    [
        (torch.ones(3), torch.ones(3), False),
        (torch.ones(50_000), torch.ones(50_000), False),
        (torch.full((3,), 1e-7), torch.full((3,), 9e-6), True),
        (torch.full((3,), math.nan), torch.full((3,), math.nan), False),
        (torch.ones(2, 2), torch.ones(4), True),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), True),
        (torch.ones(2), torch.ones(2, requires_grad=True), True),
        (np.ones(3), np.ones(3), False),
        (np.array(["a", "b"]), np.array(["a", "c"]), True),
        (np.array([None, 1], dtype=object), np.array([None, 1], dtype=object), False),
        ([torch.ones(2), {"a": 1}], [torch.ones(2), {"a": 1}], False),
        ([torch.ones(2)], [torch.ones(3)], True),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, True),
        (list(range(3000)), [*range(2999), 0], True),
        ({1, "a", None}, {None, 1, "a"}, False),
        (math.nan, float("nan"), False),
        (1, 1.0, True),
        ((1, 2), (1, 2, 3), True),
    ],
)
def test_content_changed(last: Any, current: Any, changed: bool) -> None:
    assert is_content_changed(last, current) is changed
