"""`clew.watch` on real programs: what is printed, what is recorded, what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clew
from clew.events.tensor_text import tensor_text as facts
from clew.run.event import Event
from tests.processes import HANG_GUARD


def texts(stream: io.StringIO) -> list[str]:
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def names(events: Any) -> list[str]:
    return [event.name for event in events]


def values(trace: clew.Trace, name: str) -> list[Event]:
    return [event for event in trace.variables if event.name == name]


def looks(trace: clew.Trace, name: str) -> list[str]:
    return [facts(event.outputs[""]) for event in values(trace, name)]


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        attn = q @ k.transpose(-2, -1)
        attn = attn / 2
        attn = attn.softmax(-1)
        attn[:, 0] = 0
        attn.mul_(2)
        attn = attn.to(torch.bfloat16)
        return attn.float() @ v


def test_the_five_changes_that_other_tools_miss_are_all_seen() -> None:
    model = Attention()

    @clew.watch("attn", out=False)
    def run() -> Any:
        return model(torch.randn(2, 5, 4))

    run()
    trace = run.watch.trace  # type: ignore[attr-defined]
    lines = [event.source.text.strip() for event in values(trace, "attn") if event.source]
    assert lines == [
        "attn = q @ k.transpose(-2, -1)",
        "attn = attn / 2",
        "attn = attn.softmax(-1)",
        "attn[:, 0] = 0",
        "attn.mul_(2)",
        "attn = attn.to(torch.bfloat16)",
    ]
    assert looks(trace, "attn")[-1] == "bf16[2,5,5]"


def test_an_array_that_becomes_a_tensor_is_told_as_one_change() -> None:
    stream = io.StringIO()

    @clew.watch("video", out=stream)
    def load() -> Any:
        video: Any = np.zeros((73, 64, 96, 3), np.uint8)
        video = torch.from_numpy(video).permute(0, 3, 1, 2)
        return video

    load()
    assert "np.u8[73,64,96,3] → torch.u8[73,3,64,96]" in stream.getvalue()
    assert f"{os.path.basename(__file__)}:" in stream.getvalue()


def test_what_changed_is_marked() -> None:
    stream = io.StringIO()

    @clew.watch("x", out=stream)
    def run() -> None:
        x = torch.ones(20, 30)
        x = x.reshape(30, 20)
        x = x.double()
        x = x.t()
        x = x * torch.arange(30)
        x[0, 0] = float("nan")
        x.requires_grad_()

    run()
    text = stream.getvalue()
    assert "⇄ shape [20,30]→[30,20]" in text
    assert "⇄ f32→f64" in text
    assert "shape [30,20]→[20,30]  layout contiguous→strided" in text
    assert "~ [1 1]→[0 29]" in text
    assert "✎ " in text
    assert "NaN! 1/600" in text
    assert "requires_grad False→True" in text


def test_it_records_into_the_trace_that_is_active() -> None:
    model = Attention()
    with clew.trace(model) as t:
        with clew.watch("attn", out=False) as w:
            model(torch.randn(2, 5, 4))
    assert w.trace is t
    assert looks(t, "attn")[0] == "f32[2,5,5]"
    assert len(t["forward.attn"]) == 6
    assert t.modules
    assert t.ops


def test_trace_takes_names_to_watch() -> None:
    model = Attention()
    with clew.trace(model, watch=["attn"]) as t:
        model(torch.randn(2, 5, 4))
    assert len(t["forward.attn"]) == 6
    first = t["forward.attn#0"].one
    assert first.outputs[""].stats is not None
    assert first.module == ""


def test_watching_prints_with_a_live_trace_only(capsys: pytest.CaptureFixture[str]) -> None:
    model = Attention()
    with clew.trace(model, watch=["attn"]):
        model(torch.randn(2, 5, 4))
    assert capsys.readouterr().out == ""
    with clew.trace(model, watch=["attn"], live=True):
        model(torch.randn(2, 5, 4))
    assert "attn   = f32[2,5,5]" in capsys.readouterr().out


def test_names_that_nothing_has_are_reported_with_the_nearest() -> None:
    stream = io.StringIO()

    @clew.watch("vidoe", out=stream)
    def run() -> None:
        video = np.ones(3)
        del video

    run()
    [gap] = run.watch.trace.coverage  # type: ignore[attr-defined]
    assert gap.where == "vidoe"
    assert "video" in gap.remedy
    assert "clew: a variable to watch at vidoe" in stream.getvalue()


def test_the_variable_is_followed_into_callees_under_their_name_for_it() -> None:
    def halve(v: Any) -> Any:
        v = v / 2
        return v

    stream = io.StringIO()

    @clew.watch("video", out=stream)
    def run() -> Any:
        video = np.arange(100.0)
        return halve(video)

    run()
    trace = run.watch.trace  # type: ignore[attr-defined]
    assert looks(trace, "v") == ["np.f64[100]", "np.f64[100]"]
    assert "v (video)" in stream.getvalue()


def test_addresses_and_paths_narrow_it_down() -> None:
    class Cache:
        def __init__(self) -> None:
            self.kept = {"k": np.zeros(2), "v": np.zeros(3)}

        def fill(self) -> None:
            self.kept["k"] = np.ones(2)
            self.kept["v"] += 1

    def other() -> Any:
        video = np.ones(1)
        return video

    def load() -> Any:
        video = np.ones(2)
        return video

    here = os.path.basename(__file__)
    place = "test_addresses_and_paths_narrow_it_down.load.video"

    @clew.watch(f"{here}:{place}", "self.kept.k", out=False)
    def run() -> None:
        cache = Cache()
        cache.fill()
        load()
        other()

    run()
    trace = run.watch.trace  # type: ignore[attr-defined]
    assert looks(trace, "video") == ["np.f64[2]"]
    assert looks(trace, "self.kept.k")[-1] == "np.f64[2]"
    assert not values(trace, "self.kept.v")


def test_on_change_false_records_every_binding() -> None:
    def kept() -> None:
        x = 0
        for _ in range(3):
            x = 0
        del x

    quiet = clew.watch("x", out=False)(kept)
    every = clew.watch("x", out=False, on_change=False)(kept)
    quiet()
    every()
    assert len(values(quiet.watch.trace, "x")) == 1  # type: ignore[attr-defined]
    assert len(values(every.watch.trace, "x")) == 4  # type: ignore[attr-defined]


def test_loops_are_told_a_few_times_then_counted() -> None:
    stream = io.StringIO()

    @clew.watch("x", out=stream)
    def run() -> Any:
        x = np.zeros(20)
        for _ in range(1000):
            x = x + 1
        return x

    run()
    lines = [line for line in texts(stream) if " x " in line]
    assert len(lines) == 5
    assert "… ×997 more, last: np.f64[20]  [1e+03 1e+03]" in lines[-1]
    assert len(values(run.watch.trace, "x")) == 1001  # type: ignore[attr-defined]


def test_calls_in_a_loop_are_told_a_few_times_then_counted() -> None:
    def step(x: Any) -> Any:
        x = x + 1
        return x

    stream = io.StringIO()

    @clew.watch("x", out=stream)
    def run() -> None:
        for i in range(50):
            step(np.full(20, i))

    run()
    entered = [line for line in texts(stream) if "▶" in line and "step" in line]
    assert len(entered) == 4
    assert "… ×47 more, last: np.i64[20]" in entered[-1]


def test_beyond_the_budget_it_is_said_and_the_last_value_still_seen() -> None:
    stream = io.StringIO()

    def count(x: Any) -> Any:
        for _ in range(500):
            x = x + 1
        return x

    @clew.watch("x", out=stream, budget=50)
    def run() -> Any:
        return count(np.zeros(2))

    run()
    trace = run.watch.trace  # type: ignore[attr-defined]
    assert any("more than 50 times" in gap.why for gap in trace.coverage)
    assert "[500 500]" in stream.getvalue()


def test_inputs_outputs_time_and_callers_make_a_tree() -> None:
    stream = io.StringIO()

    def inner(y: Any, scale: float = 2.0) -> Any:
        return y * scale

    @clew.watch(out=stream)
    def outer(x: Any) -> Any:
        return {"out": inner(x), "n": 1}

    outer(np.ones(3))
    lines = texts(stream)
    assert lines[0].startswith("▶ ")
    assert "test_inputs_outputs_time_and_callers_make_a_tree" in lines[0]
    assert f" ← {os.path.basename(__file__)}:" in lines[0]
    assert lines[1] == "│  x      np.f64[3]  [1 1 1]"
    assert lines[2].startswith("├─▶ ")
    assert lines[3] == "│  │  y (x) np.f64[3]  [1 1 1]"
    assert lines[4] == "│  │  scale  2.0"
    assert lines[5].startswith("│  ◀ np.f64[3]  [2 2 2]  ")
    assert lines[6].startswith("◀ {out: np.f64[3]  [2 2 2], n: 1}  ")
    assert lines[6].endswith("s")


def test_a_call_records_how_long_it_took() -> None:
    @clew.watch(out=False)
    def run() -> Any:
        return np.ones(2)

    run()
    returned = values(run.watch.trace, "return")  # type: ignore[attr-defined]
    assert returned[0].duration
    assert returned[0].duration > 0


def test_lines_and_the_stack_are_printed_when_asked_for() -> None:
    stream = io.StringIO()

    @clew.watch("x", out=stream, lines=True, stack=True)
    def run() -> Any:
        x = np.ones(2)
        return x

    run()
    lines = texts(stream)
    entered = next(i for i, line in enumerate(lines) if line.startswith("▶"))
    assert entered > 3
    assert all(line.startswith("-> ") for line in lines[:entered])
    assert "test_lines_and_the_stack_are_printed_when_asked_for" in lines[entered - 1]
    assert any(line.endswith("x = np.ones(2)") and "│" in line for line in lines)
    assert any(line.endswith("return x") for line in lines)


def test_a_logger_gets_a_record_for_each_line(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("test.watch")

    @clew.watch("x", out=logger)
    def run() -> None:
        x = np.ones(2)
        raise ValueError(f"{len(x)} of them")

    with caplog.at_level(logging.INFO, "test.watch"), pytest.raises(ValueError, match="2 of them"):
        run()
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "INFO", "WARNING"]
    assert "= np.f64[2]" in caplog.records[1].getMessage()


def test_a_path_becomes_a_file_for_each_process_and_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_TAG", "trial 7")

    @clew.watch("x", out=tmp_path / "logs" / "run.log")
    def run(n: int) -> None:
        x = np.full(2, n)
        del x

    run(1)
    thread = threading.Thread(target=run, args=(2,), name="loader/1")
    thread.start()
    thread.join()
    files = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    stem = f"run-trial_7-p{os.getpid()}"
    assert sorted(files) == [f"{stem}-MainThread.log", f"{stem}-loader_1.log"]
    assert "[1 1]" in files[f"{stem}-MainThread.log"]
    assert "[2 2]" in files[f"{stem}-loader_1.log"]
    assert sorted(map(os.path.basename, run.watch.files)) == sorted(files)  # type: ignore[attr-defined]


def test_a_path_that_cannot_be_written_stops_the_text_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")

    @clew.watch("x", out=tmp_path / "file" / "run.log")
    def run() -> Any:
        x = np.ones(2)
        return x

    with caplog.at_level(logging.WARNING, "clew"):
        run()
    assert len(values(run.watch.trace, "x")) == 1  # type: ignore[attr-defined]
    assert len([r for r in caplog.records if "the text of a watch ends here" in r.message]) == 1


def test_colour_is_for_terminals() -> None:
    stream = io.StringIO()
    with clew.watch("x", out=stream):
        x = np.ones(2)
    assert "\x1b[" not in stream.getvalue()
    assert len(x) == 2


class BrokenRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__


class BrokenEverything:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equality")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


ODD = [
    5, True, 2.5, 3 + 4j, "text", b"bytes", None, ..., object(), BrokenRepr(), BrokenEverything(),
    [], {}, (), set(), {1, "a", (2, 3)}, frozenset({1}), [BrokenRepr()], {"k": BrokenEverything()},
    np.array([]), np.zeros((0, 3)), np.array(1 + 2j), np.array([1, "a", None], dtype=object),
    np.array(["a", "bb"]), np.array(["2020-01-01"], dtype="M8[D]"), np.float16(1.5), np.bool_(True),
    np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]), np.ma.masked_array([1, 2], [True, False]),
    np.arange(10)[::2], np.array(7), 1 << 5000, float("nan"), range(3), iter([1, 2]), int, len,
    torch.empty(0), torch.tensor(True), torch.tensor([1, 2]), torch.tensor([1 + 2j]),
    torch.ones(2, device="meta"), torch.ones(2, 2).to_sparse(), torch.nn.Linear(2, 2),
    torch.ones(3, dtype=torch.bfloat16), torch.ones(2).to(torch.float8_e4m3fn),
    torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["meta", "stats", "full"])
def test_nothing_a_variable_holds_can_break_the_program(kind: str) -> None:
    stream = io.StringIO()

    @clew.watch("x", out=stream, values=kind)
    def run() -> Any:
        for value in ODD:
            x = value
            x = None
        return x

    assert run() is None
    gaps = [g for g in run.watch.trace.coverage if "Clew failed" in g.why]  # type: ignore[attr-defined]
    assert gaps == []


def test_an_iterator_is_not_consumed() -> None:
    @clew.watch("x", out=False)
    def run() -> list[int]:
        x = iter([1, 2, 3])
        y = (n for n in x)
        return list(y)

    assert run() == [1, 2, 3]


def test_a_generator_is_watched_while_it_runs() -> None:
    def other() -> None:
        x = np.zeros(5)
        del x

    stream = io.StringIO()

    @clew.watch("x", out=stream)
    def produce(n: int) -> Iterator[Any]:
        for i in range(n):
            x = np.full(2, i)
            received = yield x
            assert received is None

    for _ in produce(2):
        other()
    trace = produce.watch.trace  # type: ignore[attr-defined]
    assert looks(trace, "x") == ["np.i64[2]", "np.i64[2]"]
    assert "yields np.i64[2]  [1 1]" in stream.getvalue()


def test_a_generator_that_is_abandoned_leaves_nothing_behind() -> None:
    before = sys.gettrace()

    @clew.watch("x", out=False)
    def produce() -> Iterator[Any]:
        x = np.ones(2)
        yield x
        yield x

    items = produce()
    next(items)
    items.close()
    assert sys.gettrace() is before


def test_tasks_that_take_turns_are_told_apart() -> None:
    @clew.watch("x", out=False)
    async def task(n: int) -> Any:
        x = np.full(1, n)
        await asyncio.sleep(0)
        x = x * 10
        return x

    async def both() -> list[Any]:
        return await asyncio.gather(task(1), task(2))

    assert [int(a[0]) for a in asyncio.run(both())] == [10, 20]
    assert len(values(task.watch.trace, "x")) == 4  # type: ignore[attr-defined]


def test_an_asynchronous_generator_takes_what_is_sent() -> None:
    @clew.watch("got", out=False)
    async def echo() -> AsyncIterator[Any]:
        got = yield 0
        while got is not None:
            got = yield got

    async def talk() -> list[Any]:
        stream = echo()
        found = [await stream.asend(None)]  # type: ignore[attr-defined]
        found.append(await stream.asend(5))  # type: ignore[attr-defined]
        await stream.aclose()  # type: ignore[attr-defined]
        return found

    assert asyncio.run(talk()) == [0, 5]
    assert len(values(echo.watch.trace, "got")) == 1  # type: ignore[attr-defined]


def test_recursion_nests() -> None:
    stream = io.StringIO()

    @clew.watch("x", out=stream)
    def down(n: int, x: Any) -> Any:
        x = x * 2
        return down(n - 1, x) if n else x

    down(3, np.ones(2))
    depths = [line.index("▶") for line in texts(stream) if "▶" in line]
    assert depths == [0, 2, 5, 8]
    assert len(values(down.watch.trace, "x")) == 8  # type: ignore[attr-defined]


def test_threads_begun_inside_are_followed_and_named() -> None:
    def work() -> None:
        x = np.ones(3)
        del x

    stream = io.StringIO()

    @clew.watch("x", out=stream)
    def run() -> None:
        thread = threading.Thread(target=work, name="second")
        thread.start()
        thread.join()

    run()
    [event] = values(run.watch.trace, "x")  # type: ignore[attr-defined]
    assert event.thread == "second"
    assert any(line.startswith("[second] ") for line in texts(stream))


def test_calls_on_several_threads_at_once_share_one_watch() -> None:
    ready = threading.Barrier(3)

    @clew.watch("x", out=False)
    def run(n: int) -> Any:
        ready.wait(HANG_GUARD)
        x = np.full(1, n)
        x = x + 1
        ready.wait(HANG_GUARD)
        return x

    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_GUARD)
    assert len(values(run.watch.trace, "x")) == 6  # type: ignore[attr-defined]


def test_an_exception_comes_out_unchanged_and_everything_is_restored() -> None:
    before = sys.gettrace()

    @clew.watch("x", out=False)
    def run() -> None:
        x = np.ones(2)
        raise KeyError(len(x))

    with pytest.raises(KeyError) as caught:
        run()
    assert caught.value.args == (2,)
    assert sys.gettrace() is before
    crash = run.watch.trace.crash  # type: ignore[attr-defined]
    assert crash is not None
    assert crash.exception == "KeyError: 2"


def test_watches_inside_each_other_both_see_to_the_end() -> None:
    inner = clew.watch("v", out=False)

    @inner
    def below(v: int) -> int:
        v = v + 1
        return v

    @clew.watch("v", out=False)
    def above(v: int) -> int:
        v = v * 2
        v = below(v)
        v = v * 5
        v = v * 6
        return v

    assert above(1) == 90
    outer = [e.outputs[""].item() for e in values(above.watch.trace, "v")]  # type: ignore[attr-defined]
    assert outer == [1, 2, 2, 3, 3, 15, 90]
    assert len(values(inner.trace, "v")) == 2


def test_methods_static_methods_and_class_methods_can_be_decorated() -> None:
    class Loader:
        @clew.watch("x", out=False)
        def load(self, n: int) -> Any:
            x = np.full(2, n)
            return x

        @clew.watch("x", out=False)
        @staticmethod
        def plain(n: int) -> Any:
            x = np.full(2, n)
            return x

        @clew.watch("x", out=False)
        @classmethod
        def made(cls, n: int) -> Any:
            x = np.full(2, n)
            return x

    assert int(Loader().load(1)[0]) == 1
    assert int(Loader.plain(2)[0]) == 2
    assert int(Loader.made(3)[0]) == 3
    for method in (Loader.load, Loader.plain, Loader.made):
        assert len(values(method.watch.trace, "x")) == 1  # type: ignore[attr-defined]


def test_what_cannot_be_decorated_is_refused_with_advice() -> None:
    with pytest.raises(clew.ClewError, match="len is built in; watch the function that calls it"):
        clew.watch()(len)
    with pytest.raises(clew.ClewError, match="was given the class Attention"):
        clew.watch()(Attention)
    with pytest.raises(clew.ClewError, match="write @clew.watch\\(\\)"):
        clew.watch(len)  # type: ignore[arg-type]
    with pytest.raises(clew.ClewError, match="names something else"):
        clew.watch("op:aten.add")
    known = "'meta', 'stats', 'fingerprint', 'full'"
    with pytest.raises(clew.ClewError, match=f"values='all' is not one of {known}"):
        clew.watch(values="all")
    with pytest.raises(clew.ClewError, match="out=3 is of type int; give a path"):
        clew.watch(out=3)  # type: ignore[arg-type]


def test_it_keeps_nothing_alive() -> None:
    import gc
    import weakref

    class Held:
        pass

    @clew.watch(out=False)
    def run() -> weakref.ref[Any]:
        held = [np.ones(3), Held()]
        return weakref.ref(held[1])

    gone = run()
    gc.collect()
    assert gone() is None


def test_results_and_random_numbers_are_the_same() -> None:
    model = Attention()

    def run() -> torch.Tensor:
        torch.manual_seed(1)
        out: torch.Tensor = model(torch.randn(2, 5, 4)) + torch.randn(5, 4)
        return out

    plain = run()
    assert torch.equal(clew.watch(out=False)(run)(), plain)


def test_full_values_can_be_read_back() -> None:
    @clew.watch("x", out=False, values="full")
    def run() -> None:
        x = np.arange(4)
        x[0] = 9
        x = torch.ones(2, 2)
        x.add_(1)

    run()
    arrays = [e.outputs[""].array().tolist() for e in values(run.watch.trace, "x")]  # type: ignore[attr-defined]
    assert arrays == [[0, 1, 2, 3], [9, 1, 2, 3], [[1, 1], [1, 1]], [[2, 2], [2, 2]]]


def test_the_trace_can_be_saved_and_loaded(tmp_path: Path) -> None:
    @clew.watch("x", out=False, values="full")
    def run() -> None:
        x = np.arange(4)
        del x

    run()
    folder = run.watch.trace.save(tmp_path / "watched.clew")  # type: ignore[attr-defined]
    loaded = clew.load(folder)
    assert loaded.variables[0].outputs[""].array().tolist() == [0, 1, 2, 3]
    here = os.path.basename(__file__)
    assert len(loaded[f"{here}:test_the_trace_can_be_saved_and_loaded.run.x"]) == 1


def test_compiled_code_below_a_watch_runs_and_nothing_of_clew_is_compiled() -> None:
    model = torch.nn.Linear(3, 3)

    def inner(x: torch.Tensor) -> torch.Tensor:
        h = model(x)
        h = h.relu()
        return h

    @clew.watch("h", out=False)
    def run() -> torch.Tensor:
        return torch.compile(inner, backend="eager")(torch.ones(2, 3))

    assert torch.equal(run(), inner(torch.ones(2, 3)))
    gaps = run.watch.trace.coverage  # type: ignore[attr-defined]
    assert not [gap for gap in gaps if "Clew failed" in gap.why]


@clew.watch("x", out=False)
def doubled(x: Any) -> Any:
    return x * 2


def test_a_decorated_function_can_be_pickled_by_its_name() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(doubled)) is doubled


def test_a_sparse_tensor_has_one_layout(capsys: pytest.CaptureFixture[str]) -> None:
    with clew.watch("x"):
        x = torch.eye(3)
        x = x.to_sparse()
    assert x.is_sparse
    printed = capsys.readouterr().out
    assert "layout contiguous→sparse_coo" in printed
    with clew.watch("y"):
        y = x
    assert y is x
    printed = capsys.readouterr().out
    assert "f32[3,3] sparse_coo" in printed
    assert "strided" not in printed


# Several threads at a time


@pytest.mark.parametrize("values", ["full", "stats"])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("within", [True, False], ids=["in a trace", "alone"])
def test_values_of_several_threads_are_all_kept(values: str, kind: str, within: bool) -> None:
    """Each has its own data, or statistics, whatever the others keep meanwhile."""
    threads, rounds = 4, 60
    make = (lambda n: torch.full((40,), n)) if kind == "torch" else (lambda n: np.full((40,), n))
    start = threading.Barrier(threads)

    @clew.watch("x", values=values, out=False)
    def work(number: int) -> None:
        start.wait()
        for at in range(rounds):
            x = make(float(number * rounds + at))  # noqa: F841

    def run() -> None:
        several = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for thread in several:
            thread.start()
        for thread in several:
            thread.join()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        if within:
            with clew.trace(level="values"):
                run()
        else:
            run()
    finally:
        sys.setswitchinterval(interval)
    found = [event.outputs[""] for event in work.watch.trace.variables if event.name == "x"]
    assert sorted(value.stats.max for value in found) == list(range(threads * rounds))
    if values == "full":
        assert sorted(value.array()[-1] for value in found) == list(range(threads * rounds))
    assert not work.watch.trace.coverage


# Names that an object has in several functions


def double(x: Any) -> Any:
    y = x * 2
    return y


def outer(x: Any) -> Any:
    x = x * 2
    return double(x)


@pytest.mark.parametrize("array", [torch.ones, np.ones])
def test_an_object_where_another_was_is_not_taken_for_it(array: Any) -> None:
    stream = io.StringIO()

    @clew.watch("loss", out=stream)
    def run() -> None:
        for _ in range(100):
            h = double(array((1, 4)))
            loss = h + h.sum()
            del h, loss

    run()
    assert "(loss)" not in stream.getvalue()
    assert "double" not in stream.getvalue()


def test_an_argument_is_called_what_its_caller_calls_it_now() -> None:
    stream = io.StringIO()

    @clew.watch("loss", out=stream)
    def run() -> None:
        loss = torch.ones(2)
        double(loss)
        other = loss
        loss = torch.ones(3)
        double(other)

    run()
    assert [line for line in texts(stream) if "(loss)" in line] == ["│  │  x (loss) f32[2]  [1 1]"]


def test_an_argument_that_is_bound_anew_has_its_own_name() -> None:
    stream = io.StringIO()

    @clew.watch("loss", out=stream)
    def run() -> None:
        loss = torch.ones(2)
        outer(loss)

    run()
    assert [line for line in texts(stream) if "(loss)" in line] == ["│  │  x (loss) f32[2]  [1 1]"]


class Counter:
    """Calls its object `s`."""

    def __init__(s) -> None:
        s.total = torch.zeros(1)

    def add(s, x: Any) -> None:
        s.total = s.total + x


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code does not know its class")
def test_self_is_the_object_whatever_its_method_calls_it() -> None:
    counter = Counter()
    with clew.watch("self.total", out=False) as block:
        counter.add(1)
    totals = [e for e in block.trace.variables if e.name == "s.total"]
    assert [float(e.outputs[""].stats.max) for e in totals] == [0, 1]
    whole = clew.watch("self.total", out=False)(Counter.add)
    whole(counter, 2)
    totals = [e for e in whole.watch.trace.variables if e.name == "s.total"]
    assert [float(e.outputs[""].stats.max) for e in totals] == [1, 3]
    assert [gap for gap in whole.watch.trace.coverage if gap.what == "a variable to watch"] == []


@pytest.mark.parametrize("traced", [None, "meta", "stats", "fingerprint"])
def test_fingerprints_of_tensors_are_those_of_a_trace(traced: str | None) -> None:
    def program() -> None:
        y = torch.arange(24.0).reshape(2, 3, 4).sin()
        y = y.transpose(0, 1)
        y = torch.nn.Parameter(y.contiguous())
        y = y.detach()[:, ::2].to(torch.bfloat16)
        y = y.bool()

    watch = clew.watch("y", values="fingerprint", out=False)
    with clew.trace(values=traced) if traced else contextlib.nullcontext(), watch as w:
        program()
    found = [event.outputs[""] for event in w.trace.variables if event.name == "y"]
    with clew.watch("y", values="full", out=False) as w:
        program()
    expected = [event.outputs[""] for event in w.trace.variables if event.name == "y"]
    assert len(found) == len(expected) == 5
    for one, other in zip(found, expected, strict=True):
        assert one.fingerprint is not None
        assert other.fingerprint is not None
        assert one.fingerprint.shape == other.fingerprint.shape
        for name in ("total", "squares", "min", "max", "count"):
            mine, theirs = getattr(one.fingerprint, name), getattr(other.fingerprint, name)
            assert mine == pytest.approx(theirs, rel=1e-12)
        for mine, theirs in zip(
            one.fingerprint.marginals, other.fingerprint.marginals, strict=True
        ):
            assert mine == pytest.approx(theirs, rel=1e-12, abs=1e-12)
        assert one.stats == other.stats


def test_watched_variables_of_a_trace_have_its_fingerprints() -> None:
    def program() -> None:
        y = np.arange(6.0).reshape(2, 3)
        y = torch.from_numpy(y)
        del y

    with clew.trace(watch=["y"], values="fingerprint") as t:
        program()
    found = [event.outputs[""].fingerprint for event in t.variables if event.name == "y"]
    assert [None if one is None else one.total for one in found] == [15.0, 15.0]
