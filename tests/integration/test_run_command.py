"""`clew run`: programs behave as under Python alone, and what they did is recorded."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import clew
from clew.errors import ClewError
from clew.launch.defaults import defaults_for
from clew.launch.options import RunOptions, options_from_words, options_of, split_program
from clew.launch.output_folder import remove_oldest
from clew.launch.program import STARTUP
from clew.launch.summary import summary_of
from clew.session.late_model import LateModel
from clew.session.tracer import Tracer
from tests.processes import HANG_GUARD, SRC

MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
"""
TRAIN = (
    MODEL
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
"""
)
SHOW_LOSS = (
    "print(loss.item().hex(), torch.rand(1).item().hex(), 'CLEW_RUN' in __import__('os').environ)"
)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLEW_RUN")}
    return {**kept, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", **more}


def start(command: list[str], folder: Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, timeout=HANG_GUARD,
        env=options.pop("env", environment()), **options,
    )  # fmt: skip


def clew_run(
    folder: Path, *words: str, code: int = 0, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    done = start(["-m", "clew", "run", *words], folder, **options)
    assert done.returncode == code, done.stderr.decode()
    return done


def last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode().splitlines()[-1]


# Programs that never import torch, so that each takes a moment: whatever differs is the launch.
SHOW = """
import sys, os, json
main = sys.modules["__main__"]
facts = {name: repr(value) for name, value in sorted(vars(main).items())
         if name.startswith("__") and name not in ("__builtins__", "__loader__", "__spec__")}
spec = __spec__ and [__spec__.name, __spec__.origin, __spec__.parent]
print(json.dumps([sys.argv, sys.path, facts, spec, type(__loader__).__name__, sys.flags.optimize,
                  [n for n in os.environ if n.startswith(("CLEW", "PYTHONPATH"))],
                  os.environ.get("PYTHONPATH"), "clew" in sys.modules, sys.excepthook.__name__,
                  "sitecustomize" in sys.modules, "argparse" in sys.modules]))
"""

PROGRAMS: dict[str, str] = {
    "facts": '"""What it says."""\nx: int = 3\n' + SHOW,
    "exit": "import sys; sys.exit(7)",
    "exit_text": "import sys; sys.exit('as it was')",
    "hard_exit": "import os; print('gone', flush=True); os._exit(3)",
    "stdin": "import sys; sys.stdout.write(sys.stdin.read()[::-1])",
    "binary": "import sys; sys.stdout.buffer.write(bytes(range(256)))",
    "raises": "def f():\n    raise ValueError('x' * 3)\nf()",
    "chained": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('k') from e",
    "syntax": "x = = 3",
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "own_interrupt": (
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT); time.sleep(9)\n"
        "except KeyboardInterrupt:\n    print('caught')"
    ),
    "ignores": "import signal; print(signal.getsignal(signal.SIGINT), signal.getsignal(15))",
    "warns": "import warnings; warnings.warn('careful'); warnings.warn('old', DeprecationWarning)",
    "at_exit": (
        "import atexit, threading, time\natexit.register(print, 'first')\n"
        "atexit.register(print, 'second')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('main')"
    ),
    "forks": (
        "import os, sys\npid = os.fork()\nif not pid:\n    sys.exit(5)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    ),
    "spawns": (
        "import multiprocessing as mp\nclass Thing:\n    pass\n"
        "def work(queue):\n    queue.put((__name__, Thing()))\n"
        "if __name__ == '__main__':\n    mp.set_start_method('spawn')\n    queue = mp.Queue()\n"
        "    child = mp.Process(target=work, args=(queue,))\n    child.start()\n"
        "    name, thing = queue.get()\n    child.join()\n    print(name, type(thing).__module__)"
    ),
    "pickles": (
        "import pickle\nclass Thing:\n    pass\n"
        "print(type(pickle.loads(pickle.dumps(Thing()))) is Thing)"
    ),
    "children": (
        "import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', "
        "'import os, sys; print(sorted(n for n in os.environ if n[:5] in (\"CLEW_\", "
        "\"PYTHO\")), len(sys.path))']))"
    ),
    "own_hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0])\nraise ValueError",
    "local_modules": "import argparse, random\nprint(argparse.mine, random.mine)",
    "reads_itself": "import inspect\ndef f(): return 3\nprint(inspect.getsource(f), __file__)",
}  # fmt: skip


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (folder / "scripts" / name).mkdir(parents=True)
        (folder / "scripts" / name / "program.py").write_text(text)
    for module in ("argparse", "random"):
        (folder / "scripts" / "local_modules" / f"{module}.py").write_text("mine = True")
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("print('imported')")
    (package / "__main__.py").write_text("from . import other\n" + PROGRAMS["facts"])
    (package / "other.py").write_text(PROGRAMS["facts"])
    (folder / "bare").mkdir()
    (folder / "bare" / "__init__.py").write_text("")
    return folder


def comparable(done: subprocess.CompletedProcess[bytes]) -> tuple[int, bytes, str]:
    said = done.stderr.decode()
    said = said.replace("clew: nothing was recorded: the program did not import torch\n", "")
    return done.returncode, done.stdout, said


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_run_as_python_runs_it(programs: Path, name: str) -> None:
    command = [f"scripts/{name}/program.py", "--values", "full", "-m", "x"]
    plain = start(command, programs, input=b"abc\n\xc3\xa4")
    traced = start(["-m", "clew", "run", *command], programs, input=b"abc\n\xc3\xa4")
    assert comparable(traced) == comparable(plain)


@pytest.mark.parametrize(
    "command",
    [["-m", "package", "a"], ["-m", "package.other"], ["-m", "bare"], ["-m", "nowhere"],
     ["package"], ["./scripts/../scripts/facts/program.py"], ["-"]],
    ids=" ".join,
)  # fmt: skip
def test_modules_folders_and_standard_input(programs: Path, command: list[str]) -> None:
    given = PROGRAMS["facts"].encode()
    plain = start(command, programs, input=given)
    traced = start(["-O", "-m", "clew", "run", *command], programs, input=given)
    flagged = start(["-O", *command], programs, input=given)
    assert comparable(traced) == comparable(flagged)
    assert traced.returncode == plain.returncode


def test_a_signal_ends_the_program_as_it_would(programs: Path) -> None:
    """Exit codes of `clew run` are those of the process itself, not of a shell around it."""
    script = programs / "waits.py"
    script.write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(
            [sys.executable, "-m", "clew", "run", "waits.py"], cwd=programs, env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        process.communicate(timeout=HANG_GUARD)
        assert process.returncode == -number


def test_an_interrupt_ends_a_recorded_program_as_it_would(tmp_path: Path) -> None:
    program = "import os, signal, time, torch\ntorch.ones(3) + 1\nos.kill(os.getpid(), 2)\n"
    (tmp_path / "program.py").write_text(program + "time.sleep(600)")
    done = clew_run(tmp_path, "program.py", code=-signal.SIGINT)
    assert "ended by KeyboardInterrupt" in last_line(done)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.py"], "cannot run nowhere.py: there is no such file"),
        (["bare"], "it is a folder without __main__.py"),
        ([], "clew run needs a program: clew run script.py"),
        (["-m"], "-m needs the name of a module"),
        (["--valeus", "stats", "x.py"], "did you mean --values?"),
        (["--schedule", "each=3", "x.py"], "'each=3' is not understood"),
        (["--ranks", "a", "x.py"], "--ranks 'a': write numbers"),
        (["--capture", "a..b", "x.py"], "cannot read the address"),
        (["--level", "op", "x.py"], "invalid choice: 'op'"),
        (["-o", "x.py", "x.py"], "x.py is a file; give a folder"),
        (["-o", "package", "x.py"], "package is there and is not a trace"),
        (["-o", "run.h5", "x.py"], "clew export"),
    ],
)
def test_what_cannot_be_run_is_said_before_it_runs(
    programs: Path, words: list[str], said: str
) -> None:
    (programs / "x.py").write_text("print('ran')")
    done = clew_run(programs, *words, code=2)
    assert said in done.stderr.decode()
    assert done.stdout == b""


def test_a_disabled_clew_says_so(programs: Path) -> None:
    (programs / "torch.py").write_text("")
    (programs / "plain.py").write_text("import torch\nprint('ran')")
    done = clew_run(programs, "plain.py", env=environment(CLEW_DISABLE="1"))
    assert done.stdout == b"ran\n"
    assert done.stderr == b"clew: CLEW_DISABLE is set: nothing is recorded\n"


def test_a_missing_script_has_a_neighbour(programs: Path) -> None:
    (programs / "training.py").write_text("")
    assert "did you mean training.py?" in last_line(clew_run(programs, "trainig.py", code=2))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which a training was recorded, and what was said at the end."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.py").write_text(TRAIN + SHOW_LOSS)
    done = clew_run(folder, "train.py")
    with contextlib.redirect_stdout(io.StringIO()) as alone:
        exec(TRAIN + SHOW_LOSS, {})
    assert done.stdout.decode() == alone.getvalue()
    return folder, last_line(done)


def test_a_program_is_recorded(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    t = clew.load(folder / ".clew" / "train.clew")
    assert [m.module for m in t.modules[:4]] == [
        "Sequential", "Sequential.0", "Sequential.1", "Sequential.2",
    ]  # fmt: skip
    assert len(t.steps) == 3
    assert {op.phase for op in t.ops} == {"forward", "backward", "optimizer"}
    assert t.modules[0].source is not None
    assert t.modules[0].source.text == "loss = model(torch.ones(2, 4)).sum()"
    assert t.env["name"] == "train"


def test_the_last_line_says_what_there_is_and_what_to_do(trained: tuple[Path, str]) -> None:
    folder, said = trained
    wanted = (
        r"clew: recorded \d+ events in 3 steps: \.clew/train\.clew \([\d.]+ KiB\); "
        r"NaN and Inf not checked.*; next: clew show \.clew/train\.clew"
    )
    assert re.fullmatch(wanted, said)
    assert (folder / ".clew" / ".gitignore").read_text() == "*\n"
    assert (folder / ".clew").stat().st_mode & 0o777 == 0o700


def test_a_crash_has_its_traceback_and_a_note(tmp_path: Path) -> None:
    program = MODEL + (
        "def main():\n    import atexit\n    atexit.register(print, 'at exit')\n"
        "    net = model\n    return net(torch.ones(2, 5))\nmain()\n"
    )
    (tmp_path / "crash.py").write_text(program)
    done = clew_run(tmp_path, "--model", "net", "--json", "-o", "c.clew", "crash.py", code=1)
    said = done.stderr.decode()
    assert done.stdout == b"at exit\n"
    files = re.findall(r'^  File "([^"]+)"', said, re.M)
    assert files[:2] == [str(tmp_path / "crash.py")] * 2
    assert not any(STARTUP in file or "/clew/" in file.partition("-packages")[2] for file in files)
    note = said.partition("RuntimeError: mat1 and mat2 shapes")[2]
    assert "clew: aten.addmm.default failed in 0\n" in note
    facts = json.loads(said.splitlines()[-1])
    assert next(iter(facts)) == "schema"
    assert facts["finding"]["kind"] == "crash"
    assert facts["next"] == "clew crash c.clew"
    crash = clew.load(tmp_path / "c.clew").crash
    assert crash is not None
    assert crash.exception.startswith("RuntimeError: mat1 and mat2")


def test_a_model_is_found_by_its_name(tmp_path: Path) -> None:
    program = MODEL + (
        "class Trainer:\n    @property\n    def trap(self):\n        raise SystemExit(9)\n"
        "def main():\n    trainer = Trainer()\n"
        "    trainer.net = torch.nn.ModuleDict({'a': model})\n"
        "    trainer.net['a'](torch.ones(1, 4))\n"
        "main()\n"
    )
    (tmp_path / "program.py").write_text(program)
    clew_run(tmp_path, "--model", "trainer.net", "--level", "modules", "-o", "a.clew", "program.py")
    assert [m.module for m in clew.load(tmp_path / "a.clew").modules][:2] == ["a", "a.0"]


def test_a_model_that_never_is_there_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(MODEL + "torch.ones(3) + 1\nmodel(torch.ones(1, 4))\n")
    done = clew_run(tmp_path, "--model", "modle", "-o", "run.clew", "program.py")
    assert "model 'modle': no module had this name" in last_line(done)
    gap = next(gap for gap in clew.load(tmp_path / "run.clew").coverage if "modle" in gap.what)
    assert "modules in __main__: model" in gap.remedy
    doctor = start(["-m", "clew", "doctor", "run.clew"], tmp_path)
    assert doctor.returncode == 1
    assert "not seen   model 'modle'" in doctor.stdout.decode()
    assert "  to see   give the name of a variable" in doctor.stdout.decode()


def test_options_reach_the_recording(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.clew]\nvalues = "stats"\nlevel = "modules"\n')
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "train.py").write_text("import os\nos.chdir('/')\n" + TRAIN)
    words = ["--level", "ops", "--capture", "Sequential.0", "--watch", "loss", "--engine", "python"]
    clew_run(tmp_path, *words, "--schedule", "every=2", "--all", "-o", "x.clew", "deep/train.py")
    t = clew.load(tmp_path / "x.clew")
    assert (t.env["values"], t.env["level"], t.env["engine"]) == ("stats", "ops", "python")
    assert t.steps == [1]
    assert t["Sequential.0"].one.outputs[""].array().shape == (2, 8)
    assert {variable.name for variable in t.variables} == {"loss"}


def test_a_program_that_runs_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import torch")
    done = clew_run(tmp_path, "program.py")
    assert len(done.stderr.decode().splitlines()) == 1
    assert last_line(done).startswith("clew: nothing was recorded in .clew/program.clew: ")
    assert last_line(done).endswith("next: clew doctor .clew/program.clew")


def test_a_kill_leaves_what_was_recorded_and_a_terminal_shows_how_far_it_is(tmp_path: Path) -> None:
    program = MODEL + (
        "import time\nfor _ in range(20):\n    model(torch.ones(1, 4))\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    (tmp_path / "program.py").write_text(program)
    terminal, stderr = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "clew", "run", "-o", "run.clew", "program.py"], cwd=tmp_path,
        env=environment(), stdout=subprocess.PIPE, stderr=stderr,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    deadline = time.monotonic() + HANG_GUARD
    while time.monotonic() < deadline:
        if len(clew.load(tmp_path / "run.clew")):
            break
        time.sleep(0.2)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    shown = os.read(terminal, 10_000).decode().split("\r")[-1]
    assert re.fullmatch(r"\x1b\[Kclew: [\d,]+ events, step 0, [\d.]+ (B|KiB)", shown)
    os.close(terminal)
    os.close(stderr)
    assert (
        len([m for m in clew.load(tmp_path / "run.clew").modules if m.module == "Sequential"]) == 20
    )


def test_fork_and_hard_exit_leave_the_trace_alone(tmp_path: Path) -> None:
    program = TRAIN + (
        "import os, sys, time\npid = os.fork()\n"
        "if not pid:\n    model(torch.ones(1, 4))\n    sys.exit(4)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\ntime.sleep(2.5)\nos._exit(code)\n"
    )
    (tmp_path / "program.py").write_text(program)
    done = clew_run(tmp_path, "-o", "run.clew", "program.py", code=4)
    assert done.stderr == b""
    assert len(clew.load(tmp_path / "run.clew").steps) == 3


def test_ranks_write_parts_of_one_trace(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = start(
        ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "-m", "clew",
         "run", "--level", "modules", "train.py"], tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert os.listdir(tmp_path / ".clew").count("train.clew") == 1
    assert len(list((tmp_path / ".clew").glob("*.clew"))) == 1
    t = clew.load(tmp_path / ".clew" / "train.clew")
    assert t.ranks == [0, 1]
    assert len(re.findall("^.*clew: recorded", done.stderr.decode(), re.M)) == 1


def test_where_the_launch_cannot_be_edited(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.clew]\nlevel = "modules"\n')
    (tmp_path / "sitecustomize.py").write_text("print('next')")
    (tmp_path / "program.py").write_text(TRAIN)
    startup = start(["-m", "clew", "env"], tmp_path).stdout.decode().strip()
    assert startup == STARTUP
    path = os.pathsep.join([startup, str(tmp_path), str(SRC)])
    env = environment(PYTHONPATH=path, CLEW_RUN="-o run.clew")
    done = start(["program.py"], tmp_path, env=env)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"next\n"
    assert clew.load(tmp_path / "run.clew").env["level"] == "modules"


def test_children_are_recorded_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAIN)
    starts = "import subprocess, sys\nsubprocess.check_call([sys.executable, 'program.py'])\n"
    (tmp_path / "starts.py").write_text(starts)
    done = clew_run(tmp_path, "--children", "starts.py")
    said = done.stderr.decode().splitlines()
    assert len(said) == 2
    assert "in 3 steps: .clew/program.clew" in said[0]
    assert "did not import torch" in said[1]
    assert len(clew.load(tmp_path / ".clew" / "program.clew").steps) == 3


def test_wrong_options_in_the_environment_do_not_end_the_program(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")  # which is enough to begin
    (tmp_path / "program.py").write_text("import torch\nprint('ran')")
    path = os.pathsep.join([STARTUP, str(SRC)])
    env = environment(PYTHONPATH=path, CLEW_RUN="--vlaues stats")
    done = start(["program.py"], tmp_path, env=env)
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert last_line(done) == "clew: nothing is recorded: unrecognized arguments: --vlaues stats"


def test_the_newest_five_stay(tmp_path: Path) -> None:
    home = tmp_path / ".clew"
    traced = clew.trace(out=home / "run.clew")
    for at in range(7):
        with clew.trace(out=home / "run.clew"):
            pass
        for file in home.glob("run*/manifest.json"):
            if file.parent.name == "run.clew":
                os.utime(file, (at, at))
    (home / "mine.clew").mkdir()
    (home / "run.1.clew" / "note.txt").write_text("mine")
    (home / "link.clew").symlink_to(home / "run.2.clew")
    with traced:
        remove_oldest(home)
    left = {path.name for path in home.glob("*.clew")}
    assert left == {
        "mine.clew",
        "link.clew",
        "run.clew",
        "run.1.clew",
        *(f"run.{n}.clew" for n in (4, 5, 6, 7)),
    }


def test_words_of_the_program_are_its_own() -> None:
    assert split_program(["-o", "x", "--all", "a.py", "--all"]) == (
        ["-o", "x", "--all"],
        ["a.py", "--all"],
    )
    assert split_program(["--out=x", "-m", "p", "-m"]) == (["--out=x"], ["-m", "p", "-m"])
    assert split_program(["--", "-odd.py"]) == ([], ["-odd.py"])


def test_options_survive_the_way_into_the_program() -> None:
    options = RunOptions(
        level="modules", capture=("a b", "-x"), watch=("y",), schedule="every=3", ranks="0,2-3",
        live=True, out="it's", all=True, complete=True, model="pkg:net",
    )  # fmt: skip
    assert options_of(options_from_words(options.words()), RunOptions()) == options
    assert [rank for rank in range(5) if options.records_rank(rank)] == [0, 2, 3]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("vaules = 'stats'", r"\[tool.clew\] vaules is not an option .*nearest is values"),
        ("values = 'some'", r"values = 'some' is not one of meta, stats, fingerprint, full"),
        ("all = 1", r"\[tool.clew\] all = 1: give true or false"),
        ("capture = 3", r"\[tool.clew\] capture = 3: give a text, or a list"),
        ("capture = 'a..b'", r"\[tool.clew\] capture: cannot read the address"),
        ("schedule = {often = 3}", r"\[tool.clew\] schedule: .*'often=3' is not understood"),
        ("ranks = ['a']", r"\[tool.clew\] ranks: .*write numbers"),
        ("values = ", r"cannot read .*pyproject.toml"),
    ],
)  # fmt: skip
def test_a_wrong_default_names_file_and_key(tmp_path: Path, table: str, said: str) -> None:
    pytest.importorskip("tomllib", reason="Python 3.10 has no parser")
    (tmp_path / "pyproject.toml").write_text(f"[tool.clew]\n{table}\n")
    (tmp_path / "below").mkdir()
    with pytest.raises(ClewError, match=said) as raised:
        defaults_for(tmp_path / "below")
    assert str(tmp_path / "pyproject.toml") in str(raised.value)


def test_defaults_are_those_of_the_nearest_file(tmp_path: Path) -> None:
    pytest.importorskip("tomllib", reason="Python 3.10 has no parser")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.clew]\nranks = [0, 2]\nschedule = {every = 3}\ncapture = 'fc'\nall = true\n"
    )
    found = defaults_for(tmp_path / "a" / "b")
    assert found == RunOptions(ranks="0,2", schedule="every=3", capture=("fc",), all=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\n")
    assert defaults_for(tmp_path / "a" / "b") == RunOptions()


def test_a_ring_is_said_in_numbers(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with clew.trace(model, out=tmp_path / "run.clew", limits=clew.Limits(last=8)) as t:
        for _ in range(40):
            model(torch.ones(1, 2))
            t.step()
    said = summary_of(t, 400, str(tmp_path / "run.clew"), str(tmp_path))
    assert said.finding is not None
    assert said.finding["kind"] == "not checked"
    assert str(said).startswith(f"recorded the last {len(t)} of 400 events in ")
    assert said.next == "clew show run.clew"


@pytest.mark.parametrize(
    "name", ["late_model_program:net", "late_model_program:holder.net", "local"]
)
def test_a_model_that_comes_late_gives_the_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules that ran before keep the names they were given."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    program = types.ModuleType("late_model_program")
    monkeypatch.setitem(sys.modules, "late_model_program", program)
    with Tracer({}, RunOptions().request(), LateModel(name)) as t:
        model[0](torch.ones(1, 2))
        program.__dict__.update(net=model, holder=types.SimpleNamespace(net=model))
        call_with_a_local(model)
        model[0](torch.ones(1, 2))
    assert [m.module for m in t.modules] == ["Linear", "", "Linear", "1", "Linear"]
    assert not t.coverage


def call_with_a_local(model: torch.nn.Module) -> None:
    local = model
    local(torch.ones(1, 2))


NAN = (
    MODEL
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
(model(torch.ones(2, 4)) * 0).square().sum().sqrt().backward()
optimizer.step()
print("done")
"""
)


@pytest.mark.parametrize("is_in_file", [False, True])
def test_a_guard_ends_the_program_where_nan_matters(tmp_path: Path, is_in_file: bool) -> None:
    (tmp_path / "nan.py").write_text(NAN)
    if is_in_file:
        (tmp_path / "pyproject.toml").write_text("[tool.clew]\nguard = true\n")
    done = clew_run(tmp_path, *([] if is_in_file else ["--guard"]), "nan.py", code=1)
    said = done.stderr.decode()
    assert "NonFiniteError: the gradient of aten.sqrt.default" in said
    assert "done" not in done.stdout.decode()
    assert "clew: recorded" in said
    if not is_in_file:
        assert "done" in clew_run(tmp_path, "nan.py").stdout.decode()
