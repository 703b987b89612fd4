"""No thread waits for the GIL with a mutex of the engine, for which others wait with the GIL."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.native.engine import needs_engine

pytestmark = needs_engine

# Both need the recording's lock all the time: one with the GIL, as module calls do, the other in
# callbacks of ops, without it. Alone with them, a third collects garbage and a fourth reads.
COMMON = """
import faulthandler, gc, threading, time
import torch, clew
from torch import nn

faulthandler.dump_traceback_later(60, exit=True)
end = time.monotonic() + 3

def modules():
    model, x = nn.Identity(), torch.ones(3)
    while time.monotonic() < end:
        model(x)

def garbage():
    while time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)

def run(ops, **options):
    options = {"limits": clew.Limits(last=5000), "engine": "native", **options}
    with clew.trace(None, **options) as t:
        threads = [threading.Thread(target=one) for one in (ops, modules, garbage)]
        for one in threads:
            one.start()
        while time.monotonic() < end:
            time.sleep(0.2)
            t.step()
            t.flush()
        for one in threads:
            one.join()
    assert len(t.ops) > 0
    print("ended")
"""

PROGRAMS = {
    # Arguments that nobody but their Python objects holds when the op ends.
    "asked": """
def ops():
    x, y = torch.ones(4), torch.ones(4)
    while time.monotonic() < end:
        torch.ops.aten.mul.Tensor(x, y)

run(ops, callbacks={"op:aten.mul*": clew.Callbacks(save=lambda value: value.sum())})
""",
    # Tensors whose values only Python code can read.
    "unread": """
def ops():
    x = torch.eye(3).to_sparse()
    while time.monotonic() < end:
        torch.ops.aten.mul.Tensor(x, x)

run(ops, values="stats")
""",
    # Wrappers that hold another tensor, and are dropped once they are dead.
    "wrappers": """
def ops():
    double = torch.vmap(lambda one: one * 2)
    while time.monotonic() < end:
        double(torch.ones(2, 3))

run(ops)
""",
    # Parameters that are met again, and leave with their module.
    "parameters": """
def ops():
    while time.monotonic() < end:
        layer = nn.Linear(3, 3)
        layer(torch.ones(2, 3)).sum().backward()
        layer(torch.ones(2, 3))

run(ops, values="stats")
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_threads_with_and_without_the_gil_go_on(name: str) -> None:
    words = [sys.executable, "-c", COMMON + PROGRAMS[name]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ended\n"
