"""The plugin of pytest, as projects use it: pytest runs in processes of its own, on their files.

Each start of pytest takes seconds, so that each run looks at many things.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from clew.testing import pytest_plugin

ROOT = Path(__file__).parents[2]

MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.down(torch.relu(self.up(x)))
        return x + h


def model(width=4):
    torch.manual_seed(0)
    return nn.Sequential(Block(width), Block(width), nn.Linear(width, 2))
"""

SNAPSHOT_TESTS = """
import pytest
import torch
from model import model


def test_two_checks(clew_snapshot):
    net = model()
    clew_snapshot.check(net, torch.ones(2, 4))
    clew_snapshot.check(net, torch.zeros(2, 4), name="zeros")


class TestWidths:
    @pytest.mark.parametrize("width", [3, 5], ids=["a/b", "five"])
    def test_width(self, clew_snapshot, width):
        clew_snapshot.check(model(width), torch.ones(2, width))
"""

TRACE_TESTS = """
import unittest

import torch
from model import model


def test_shape(clew_trace):
    net = model()
    with clew_trace(net) as t:
        net(torch.ones(2, 4))
    assert t["0.up"].output.shape == (2, 8)
    assert t["2"].output.shape == (2, 3)


def test_crash(clew_trace):
    net = model()
    with clew_trace(net):
        net(torch.ones(2, 5))


def test_crash_in_check(clew_snapshot):
    clew_snapshot.check(model(), torch.ones(2, 6))


def test_not_recorded():
    model()(torch.ones(2, 7))


class Old(unittest.TestCase):
    def test_fails(self):
        self.assertEqual(model()(torch.ones(2, 4)).shape, (2, 3))


def test_passes(clew_trace):
    clew_trace(model())  # never entered
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with a model and tests of it, whose warnings are errors."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "tests").mkdir()
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\nfilterwarnings = error\n")
    (folder / "model.py").write_text(MODEL)
    (folder / "tests" / "test_numbers.py").write_text(SNAPSHOT_TESTS)
    (folder / "tests" / "test_traces.py").write_text(TRACE_TESTS)
    return folder


def run_pytest(
    project: Path, *arguments: str, cwd: Path | None = None, **settings: str
) -> tuple[int, str]:
    """Run pytest on a project; return its exit code and what it printed."""
    # Other plugins of this environment take a second to load, and load NumPy.
    command = [sys.executable, "-m", "pytest", "-p", "clew.testing.pytest_plugin"]
    given = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    more = {
        "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [*command, *arguments], cwd=cwd or project, env={**given, **more, **settings},
        capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow  # two runs of pytest, which import torch
def test_snapshots_are_written_and_compared(project: Path, tmp_path: Path) -> None:
    tests, kept = project / "tests", project / "tests" / "__clew__" / "test_numbers"
    (project / "changing.py").write_text(MODEL)
    changing = SNAPSHOT_TESTS.replace("from model", "from changing")
    (tests / "test_changing.py").write_text(changing.partition("class")[0])
    code, said = run_pytest(project, "tests", "-k", "two_checks or width", "--clew-update",
                            "-p", "no:cacheprovider", "-p", "xdist", "-n", "2")  # fmt: skip
    assert code == 0, said
    assert "wrote tests/__clew__/test_numbers/test_two_checks.txt [zeros]" in said
    five = "TestWidths.test_width[five].txt"
    names = ["TestWidths.test_width[a_b]-622b0d53.txt", five, "test_two_checks.txt"]
    assert sorted(path.name for path in kept.iterdir()) == names

    # A section and a test are gone, a test is new, a model is another, and nothing can be written.
    text = SNAPSHOT_TESTS.replace('clew_snapshot.check(net, torch.zeros(2, 4), name="zeros")', "")
    (tests / "test_numbers.py").write_text(text)
    old = (kept / five).read_text().replace("TestWidths::test_width", "test_old")
    (kept / "test_old.txt").write_text(old)
    (kept / five).write_text((kept / five).read_text().replace(", python 3.", ", python 2."))
    (tests / "test_new.py").write_text(SNAPSHOT_TESTS.partition("class")[0])
    (project / "changing.py").write_text(MODEL.replace("x + h", "x + 1.01 * h"))
    kept.chmod(0o555)
    chosen = [str(tests / f"test_{name}.py") for name in ("numbers", "new", "changing")]
    elsewhere = ("--rootdir", str(tmp_path), "-c", str(project / "pytest.ini"))
    # Other kernels than those the snapshots were made with, where the processor has others.
    kernels = {"ATEN_CPU_CAPABILITY": "default"}
    code, said = run_pytest(project, *elsewhere, *chosen, cwd=tmp_path, **kernels)
    kept.chmod(0o755)
    assert (code, "2 failed, 3 passed" in said) == (1, True), said
    assert "E       AssertionError: there is no snapshot [check 1] in" in said
    assert f"write it with: pytest --clew-update {tests}/test_new.py::test_two_checks" in said
    assert not (tests / "__clew__" / "test_new").exists()
    assert "E         the first call that differs is 0 (Block)" in said
    assert "E         computes at changing.py:13: return x + 1.01 * h" in said
    notes = said.partition("= clew snapshots =")[2].partition("= short test summary")[0]
    assert f"not checked by any test any more: {kept / names[2]} [zeros]" in notes
    assert f"no such test any more: {kept / 'test_old.txt'}" in notes
    assert "snapshots agree that were made with python 2." in notes
    assert "test_changing" not in notes  # the test ended early


@pytest.mark.slow  # a run of pytest, which imports torch
def test_what_a_failing_test_shows(project: Path) -> None:
    code, said = run_pytest(project, "tests/test_traces.py", "--clew-trace")
    assert code == 1
    assert "5 failed, 1 passed" in said, said
    parts = {name: _part(said, name) for name in (
        "test_shape", "test_crash", "test_crash_in_check", "test_not_recorded", "Old.test_fails",
    )}  # fmt: skip
    for name, part in parts.items():
        shown = part.partition("- clew -")[2]
        assert shown, name
        assert shown.count("up  Linear") >= 1, part
    for name in ("test_crash", "test_crash_in_check", "test_not_recorded"):
        assert "takes [..., 4] and was given [..., " in parts[name]
        failed = "RuntimeError raised" if "check" in name else "aten.addmm.default failed"
        assert parts[name].count(f"clew: {failed} in ") == 1, parts[name]


def _part(said: str, name: str) -> str:
    """Return what pytest says of one failing test."""
    return said.partition(f"_ {name} _")[2].partition("\n____")[0]


def test_without_a_fixture_nothing_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\n\n\ndef test_plain():\n"
        "    assert not {'torch', 'numpy', 'pyarrow'} & sys.modules.keys()\n"
    )
    code, said = run_pytest(tmp_path, "--clew-trace", "--clew-update")
    assert (code, "1 passed" in said) == (0, True), said
    assert "clew snapshots" not in said


def test_the_entry_point_is_the_plugin() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    entry = text.partition("[project.entry-points.pytest11]\n")[2].partition("\n")[0]
    name, _, value = entry.partition(" = ")
    assert EntryPoint(name, value.strip('"'), "pytest11").load() is pytest_plugin
