"""Cells of a notebook read `In[2]:5`, whatever file IPython or Jupyter compiles them as."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.processes import HANG_GUARD

pytest.importorskip("IPython")

# Runs the cells given as JSON in a shell that names them as IPython or as Jupyter does.
SHELL = """
import hashlib, json, sys
from IPython.core.compilerop import CachingCompiler
from IPython.core.interactiveshell import InteractiveShell

class JupyterCompiler(CachingCompiler):
    # As ipykernel.compiler.XCachingCompiler: by the text of the cell alone.
    def get_code_name(self, raw_code, code, number):
        return f"/tmp/ipykernel_7/{int(hashlib.md5(raw_code.encode()).hexdigest(), 16) % 10**10}.py"

cells, jupyter = json.loads(sys.argv[1]), sys.argv[2] == "jupyter"
if jupyter:
    InteractiveShell.compiler_class = JupyterCompiler
shell = InteractiveShell.instance()
shell.history_manager.enabled = False
for cell in cells:
    result = shell.run_cell(cell, store_history=True)
    result.raise_error()
print("\\n" + json.dumps(shell.user_ns["answer"]))
"""

MODEL = """\
import torch, clew

class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2
"""
RUN = """\
model = Net()

with clew.trace(model) as t:
    y = model(torch.ones(2))
    z = y + 1
"""


def answer(cells: list[str], shell: str) -> Any:
    """Run cells in a process of their own and give what they call `answer`."""
    command = [sys.executable, "-c", SHELL, json.dumps(cells), shell]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_GUARD)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("shell", ["ipython", "jupyter"])
def test_sources_name_the_cell(shell: str) -> None:
    facts = (
        "answer = {'sources': [(str(e.source), e.source.text) for e in t.ops], "
        "'found': [e.name for e in t['line:In[1]:5']], 'code': str(t.code()), "
        "'files': sorted({s.file for e in t.ops for s in e.stack if s.file.startswith('In')})}"
    )
    found = answer([MODEL, RUN, facts], shell)
    assert found["sources"] == [
        ["In[2]:4", "y = model(torch.ones(2))"],
        ["In[1]:5", "return x * 2"],
        ["In[2]:5", "z = y + 1"],
    ]
    assert found["found"] == ["aten.mul.Tensor"]
    assert found["files"] == ["In[1]", "In[2]"]
    assert "│ return x * 2  # In[1]:5 in Net.forward   [Net]\n" in found["code"]
    assert "z = y + 1  # In[2]:5 in <module>\n" in found["code"]


def test_a_cell_that_is_run_again_has_its_new_number() -> None:
    # Jupyter compiles it as the same file.
    keep = "first = t"
    facts = "answer = [str(trace.ops[-1].source) for trace in (first, t)]"
    assert answer([MODEL, RUN, keep, RUN, facts], "jupyter") == ["In[2]:5", "In[4]:5"]


def test_numbers_that_begin_anew_are_not_mixed_up() -> None:
    reset = "get_ipython().execution_count = 1"
    other = "with clew.trace() as u:\n    torch.zeros(3)\n"
    facts = "answer = [(str(o.source), o.source.text) for o in (t.ops[-1], u.ops[0])]"
    # The next cell is In[1] as well, and another one.
    first, second = answer([MODEL, RUN, reset, other, facts], "ipython")
    assert first == ["In[2]:5", "z = y + 1"]
    assert second[0].startswith("<ipython-input-1-")
    assert second[1] == "torch.zeros(3)"


def test_a_saved_trace_keeps_the_text_of_cells(tmp_path: Any) -> None:
    folder = str(tmp_path / "run.clew")
    facts = (
        f"path = t.save({folder!r})\nloaded = clew.load(path)\n"
        "answer = [(str(e.source), e.source.text) for e in loaded.ops]"
    )
    assert answer([MODEL, RUN, facts], "jupyter")[-1] == ["In[2]:5", "z = y + 1"]


def test_watch_names_the_cell() -> None:
    watched = (
        "import io, numpy as np, clew\nout = io.StringIO()\n"
        "@clew.watch('x', out=out, lines=True)\ndef f(x):\n    x = x + 1\n    return x\n"
    )
    text = answer([watched, "f(np.ones(2))", "answer = out.getvalue()"], "jupyter")
    assert "In[1]" in text
    assert "x = x + 1" in text
    assert "ipykernel" not in text
