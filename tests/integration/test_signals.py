"""What a signal handler of the program raises reaches the program, wherever in Clew's code it ran.

A profile function raises the signal at the n-th step of Clew's Python code, for many n.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import clew
from clew.deferred_signals import uninterrupted
from clew.session.session import Session
from tests.outcomes import differing, faults, installed

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "SIGUSR1"), reason="the system has no such signal"
)

# Nothing can be done about an interrupt between a setting's being changed and its being noted,
# between its being taken off the list and undone, or before the block's end is begun.
SETTINGS = {"silence_extra_call", "add_hook", "_start", "__exit__"}
OWN_FILES = os.path.dirname(clew.__file__) + os.sep
# So many points of each program are interrupted.
POINTS = 25

PROGRAM = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.layers = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 4), nn.Dropout(0.1)])

    def forward(self, x, key=None):
        h = self.first(x)
        for layer in self.layers:
            h = layer(h).relu()
        return {"h": h, "shape": h.shape}

def run(model, optimizer, t):
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4), key={"q": [1, "s"]})["h"].pow(2).mean()
        clew.tap("loss", loss)
        loss.backward()
        optimizer.step()
        t.step()
"""


class OutOfTime(TimeoutError, RuntimeError, ValueError, TypeError):
    """What Clew's code might take for many an error of its own."""


class Interruption:
    """A profile function that raises a signal at one step of Clew's code, and counts the steps."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0
        self.raised = 0
        self.where = ""

    def handle(self, number: int, frame: Any) -> None:
        self.raised += 1
        raise OutOfTime("the time is over")

    def __call__(self, frame: FrameType, what: str, argument: Any) -> None:
        # Python runs signal handlers when a function begins and after calls of built-in ones.
        if what not in ("call", "c_return"):
            return
        code = frame.f_code
        # A generator that is let go of is closed, where Python drops what is raised.
        if not code.co_filename.startswith(OWN_FILES) or code.co_flags & inspect.CO_GENERATOR:
            return
        # A comprehension is a function of its own.
        around = code if frame.f_back is None else frame.f_back.f_code
        if code.co_name in SETTINGS or around.co_name in SETTINGS:
            return
        self.seen += 1
        if self.seen == self.at:
            sys.setprofile(None)
            self.where = f"{what} in {code.co_filename}:{frame.f_lineno} {code.co_name}"
            signal.raise_signal(signal.SIGUSR1)


def interrupted(at: int, options: dict[str, Any]) -> tuple[Interruption, bool, clew.Trace | None]:
    """Run the program; return the interruption, whether the program got it, and the trace.

    The native engine has Python raise what came in a callback of torch at its next instruction,
    which may be one where nothing can be done: `where` is empty then.
    """
    # Lines that were never seen before, so that the native engine asks Python for them.
    names: dict[str, Any] = {"nn": nn, "torch": torch, "clew": clew, "__name__": "program"}
    exec(compile(PROGRAM, f"/nowhere/program_{at}.py", "exec"), names)
    model = names["Model"]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    interruption, t, came = Interruption(at), None, False
    usual = signal.signal(signal.SIGUSR1, interruption.handle)
    sys.setprofile(interruption)
    try:
        if "out" in options:
            options = {**options, "out": f"{at}_{options['out']}"}
        with clew.trace(model, **options) as t:
            names["run"](model, optimizer, t)
    except OutOfTime as error:
        came = True
        frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        own = [code.co_name for code in frames if code.co_filename.startswith(OWN_FILES)]
        if t is not None and own and own[-1] in SETTINGS:
            interruption.where = ""
            sys.settrace(None)
            t.stop()
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, usual)
    return interruption, came, t


OPTIONS: dict[str, dict[str, Any]] = {
    "ops": {},
    "stats": {"values": "stats"},
    "modules": {"level": "modules"},
    "named": {
        "capture": ["layers.*:in", "first.weight:grad"],
        "callbacks": {"op:aten.relu*": clew.Callbacks(save=lambda value: value.sum())},
    },
    "folder": {"values": "full", "out": "run.clew"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_signal_comes_out_of_every_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    monkeypatch.chdir(tmp_path)
    options = OPTIONS[name]
    interrupted(0, options)
    before, steps = installed(), interrupted(0, options)[0].seen
    assert steps > POINTS
    for at in range(1 + steps % 7, steps, max(1, steps // POINTS)):
        dropped.clear()
        interruption, came, t = interrupted(at, options)
        assert came == bool(interruption.raised and not dropped), interruption.where
        assert t is None or faults(t) == [], interruption.where
        if interruption.where or not came:
            assert differing(before, installed()) == [], interruption.where


@pytest.mark.parametrize("folder", [False, True])
def test_a_signal_that_comes_while_events_are_handed_over(folder: bool, tmp_path: Path) -> None:
    """Whatever was recorded before and after it can be read."""
    model, at, came = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), 0, True
    while came:
        at += 23
        came = False
        interruption = Interruption(at)
        usual = signal.signal(signal.SIGUSR1, interruption.handle)
        try:
            with clew.trace(model, out=tmp_path / f"{at}.clew" if folder else None) as t:
                model(torch.ones(2, 4))
                sys.setprofile(interruption)
                try:
                    t.step()
                    assert len(t["0"]) == 1
                except OutOfTime:
                    came = True
                finally:
                    sys.setprofile(None)
                model(torch.ones(2, 4))
        finally:
            signal.signal(signal.SIGUSR1, usual)
        assert came == bool(interruption.raised), interruption.where
        found = [str(event.outputs[""]) for event in t["1"]]
        assert found == ["f32[2,4]", "f32[2,4]"], interruption.where
        assert faults(t) == [], interruption.where
    assert at > 23 * POINTS


def test_handlers_run_once_after_what_must_not_be_interrupted() -> None:
    came: list[int] = []

    def handle(number: int, frame: Any) -> None:
        came.append(number)
        raise OutOfTime("the time is over")

    def action() -> None:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
        assert came == []
        came.append(0)

    usual = [signal.signal(number, handle) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    try:
        with pytest.raises(OutOfTime):
            uninterrupted(action)
        assert came == [0, signal.SIGUSR1, signal.SIGUSR2]
        assert signal.getsignal(signal.SIGUSR1) == signal.getsignal(signal.SIGUSR2) == handle
    finally:
        for number, before in zip((signal.SIGUSR1, signal.SIGUSR2), usual, strict=True):
            signal.signal(number, before)


def test_a_second_ctrl_c_does_not_wait() -> None:
    done: list[int] = []

    def action() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append(1)
        signal.raise_signal(signal.SIGINT)
        done.append(2)

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(action)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_a_handler_that_leaves_its_place_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those do that raise at the first signal and end the program at the second."""

    def handle(*given: Any) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        raise OutOfTime("the time is over")

    class Ringing(torch.Tensor):
        @property
        def _local_tensor(self) -> Any:
            signal.raise_signal(signal.SIGUSR1)

    model, usual = nn.Identity(), signal.signal(signal.SIGUSR1, handle)
    try:
        with clew.trace(model) as t, pytest.raises(OutOfTime):
            model(torch.ones(2).as_subclass(Ringing))
    finally:
        signal.signal(signal.SIGUSR1, usual)
    assert faults(t) == []


def test_an_exception_that_the_program_has_had_is_not_raised_again() -> None:
    def handle(number: int, frame: Any) -> None:
        raise OutOfTime("the time is over")

    class Hostile(torch.Tensor):
        @property
        def _local_tensor(self) -> Any:
            raise ValueError("nobody may read this")

    model, usual = nn.Identity(), signal.signal(signal.SIGUSR1, handle)
    try:
        with clew.trace(model):
            try:
                signal.raise_signal(signal.SIGUSR1)
            except OutOfTime:
                model(torch.ones(2).as_subclass(Hostile))
    finally:
        signal.signal(signal.SIGUSR1, usual)


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_an_interrupt_at_the_very_end_of_the_start(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When everything is installed, and the block has not begun."""

    def interrupt(session: Session) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "name_models", interrupt)
    before, model = installed(), nn.Linear(4, 4)
    # Nobody else holds this model, so that it is named at once.
    tracer = clew.trace(nn.ModuleList([model]), level=level)
    with pytest.raises(KeyboardInterrupt):
        tracer.start()
    model(torch.ones(2, 4))
    assert differing(before, installed()) == []
    assert tracer._session is not None
    tracer._session.recorder.drain()
    assert len(tracer.events) == 0
