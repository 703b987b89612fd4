"""What a listener is told while a trace is handed over piece by piece."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from torch import nn

import clew
from clew.events.live_events import Happening, LiveValue, values_in


class Listener:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def begins(self, event: Happening) -> None:
        pass

    def ends(self, event: Happening) -> None:
        self.told.append([*event.inputs, event.outputs])


def test_no_value_is_missed_when_the_records_before_were_handed_over(tmp_path: Path) -> None:
    listener, x, y = Listener(), torch.ones(2), torch.ones(2)
    with clew.trace(live=listener, out=tmp_path / "run.clew") as t:
        torch.zeros(3)
        t.step()
        x + y
        t.step()
        (x * y).exp()
    values = [[v for v in told if not isinstance(v, list | int)] for told in listener.told]
    assert [len(told) for told in values] == [1, 3, 3, 2]
    assert all(isinstance(value, LiveValue) for told in values for value in told)


def test_who_ran_an_op_is_a_function_of_the_program_or_a_module_of_torch() -> None:
    told: list[tuple[str, str | None]] = []

    class Callers(Listener):
        def ends(self, event: Happening) -> None:
            told.append((event.kind, event.caller))

    class Net(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    net, x = Net(nn.Sequential(nn.ReLU())), torch.ones(1)
    with torch.no_grad(), clew.trace(net, live=Callers()):
        net(x) * 2
    ops = [caller or "" for kind, caller in told if kind == "op"]
    assert [caller.rpartition("<locals>.")[2] for caller in ops] == [
        "ReLU.forward", "Net.forward", TEST_OF_CALLERS,
    ]  # fmt: skip
    assert {caller for kind, caller in told if kind == "module"} == {None}


TEST_OF_CALLERS = "test_who_ran_an_op_is_a_function_of_the_program_or_a_module_of_torch"


def test_values_are_forgotten_with_their_tensors(tmp_path: Path) -> None:
    class Deaf(Listener):
        def ends(self, event: Happening) -> None:
            pass

    model, x = nn.Sequential(*[nn.Linear(3, 3) for _ in range(5)]), torch.ones(1, 3)
    counts = []
    with torch.no_grad(), clew.trace(model, live=Deaf(), out=tmp_path / "run.clew") as t:
        for step in range(30):
            model(x)
            t.step()
            if step % 10 != 1:  # a collection is slow where many tests have run
                continue
            gc.collect()
            counts.append(sum(type(o) is LiveValue for o in gc.get_objects()))
    assert counts[-1] <= counts[0]


def test_the_tensors_among_arguments_are_found_however_deep() -> None:
    heard: list[Happening] = []

    class Nested(nn.Module):
        def forward(self, first: Any, *, second: Any) -> Any:
            return first

    class Listener:
        def begins(self, event: Happening) -> None:
            heard.append(event)

        def ends(self, event: Happening) -> None:
            pass

    model, a, b, c = Nested(), torch.ones(1), torch.ones(2), torch.ones(3)
    with clew.trace(model, live=Listener()):
        model([a, {"x": (b, 3)}, "text"], second={"y": [c]})
    [event] = heard
    assert [value.shape for value in values_in(event.inputs)] == [(1,), (2,)]
    assert [value.shape for value in values_in(event.keywords)] == [(3,)]
    assert list(values_in(3)) == []
