"""The command line: what it prints, where, and its exit code."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import clew
from clew.cli.commands import COMMANDS
from clew.cli.main import main, parser
from clew.cli.output import within
from tests.processes import HANG_GUARD

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = None

ROOT = Path(__file__).parents[2]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of two ranks and two steps with all data."""
    folder = tmp_path_factory.mktemp("cli") / "run.clew"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        for rank in range(2):
            patch.setenv("RANK", str(rank))
            model = Net()
            with clew.trace(model, values="full", out=folder, name="small net") as t:
                for _ in range(2):
                    model(torch.ones(2, 8))
                    t.step()
    return folder


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "crash.clew"
    model = Net()
    with pytest.raises(RuntimeError), clew.trace(model, out=folder):
        model(torch.ones(2, 7))
    return folder


class Done(NamedTuple):
    stdout: str
    stderr: str


def run(*args: object, code: int = 0) -> Done:
    """Run a command in this process, which spares a second each, and check its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            returned = main([str(arg) for arg in args])
        except SystemExit as left:
            returned = int(left.code or 0)
    assert returned == code, err.getvalue()
    return Done(out.getvalue(), err.getvalue())


def run_process(*args: object, code: int = 0, **env: str) -> Done:
    """Run `python -m clew` as people do, and check its exit code."""
    command = [sys.executable, "-W", "error", "-m", "clew", *map(str, args)]
    settings = {**os.environ, "PYTHONIOENCODING": "utf-8", **env}
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=HANG_GUARD, env=settings
    )
    assert done.returncode == code, done.stderr
    return Done(done.stdout, done.stderr)


def run_json(*args: object) -> Any:
    """Run a command with --json; its output must be strict JSON."""
    return json.loads(run(*args, "--json").stdout, parse_constant=pytest.fail)


def test_version_and_help() -> None:
    assert run_process("--version").stdout == f"clew {clew.__version__}\n"
    text = run("--help").stdout
    assert all(command in text for command in COMMANDS)
    assert "Exit codes: 0 fine, 1 found something, 2" in " ".join(text.split())


# Not about one trace: test_native_commands.py, test_run_command.py and test_diff.py here.
OTHERS = ("build", "determinism", "diff", "doctor", "env", "run")
TRACE_COMMANDS = [command for command in COMMANDS if command not in OTHERS]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str) -> None:
    text = run(command, "--help").stdout
    assert ("TRACE" in text) == (command in (*TRACE_COMMANDS, "doctor"))
    assert "--json" in text


# Commands that write something, or ask for more than a trace.
ARGUMENTS: dict[str, list[str]] = {
    "value": ["layers.0"],
    "why-shape": ["layers.0", "--dim", "1"],
    "html": ["-o", "{tmp}/x.html"],
    "export": ["csv", "{tmp}/x.csv"],
}


def numbers_as_text(data: Any, path: str = "") -> list[str]:
    """Where in JSON a text stands that is nothing but a number, perhaps with a unit."""
    if isinstance(data, dict):
        return [p for key, item in data.items() for p in numbers_as_text(item, f"{path}.{key}")]
    if isinstance(data, list):
        return [p for item in data for p in numbers_as_text(item, f"{path}[]")]
    is_number = isinstance(data, str) and re.fullmatch(r"[\d.,]+ ?(k|M|ns|µs|ms|s|B|KB|MB)?", data)
    return [path] if is_number else []


@pytest.mark.parametrize("command", TRACE_COMMANDS)
def test_json_begins_with_the_version_of_its_schema(
    command: str, run_folder: Path, tmp_path: Path
) -> None:
    arguments = [text.format(tmp=tmp_path) for text in ARGUMENTS.get(command, [])]
    data = run_json(command, run_folder, *arguments)
    assert next(iter(data.items())) == ("schema", 1)
    assert len(data) > 1


@pytest.mark.parametrize(
    "command", ["info", "health", "value", "why-shape", "graph", "html", "export"]
)
def test_numbers_in_json_are_numbers(command: str, run_folder: Path, tmp_path: Path) -> None:
    arguments = [text.format(tmp=tmp_path) for text in ARGUMENTS.get(command, [])]
    data = run_json(command, run_folder, *arguments)
    names = {".environment.python", ".environment.torch", ".environment.clew"}
    # What modules are called, which may be an index.
    names |= {".nodes[].name", ".nodes[].path", ".values[].module"}
    assert set(numbers_as_text(data)) <= names


# What each command says of the trace, in words that no other command uses.
SAID = {
    "info": r"ranks +2",
    "crash": r"no crash",
    "health": r"health of 2 steps: 0 of \d+ rules found something",
    "show": r"layers\.0 … layers\.3 ×4  Sequential",
    "code": r"\[layers.0.0\] Linear\(f32\[2,8\]\) -> f32\[2,8\]",
    "value": r"layers\.0#0.* f32\[2,8\]",
    "why-shape": r"parameter layers\.0\.0\.weight: out_features of layers\.0\.0",
    "mem": r"peak .* on cpu",
    "graph": r"layers",
    "html": r"x\.html",
    "export": r"x\.csv",
    "ranks": r"ranks 0, 1 agree in all they should",
    "recover": r"nothing",
}


@pytest.mark.parametrize("command", TRACE_COMMANDS)
def test_every_command_answers_in_words(command: str, run_folder: Path, tmp_path: Path) -> None:
    arguments = [text.format(tmp=tmp_path) for text in ARGUMENTS.get(command, [])]
    done = run(command, run_folder, *arguments)
    assert re.search(SAID[command], done.stdout), done.stdout
    assert done.stderr == ""


@pytest.mark.skipif(tomllib is None, reason="Python 3.10 cannot read pyproject.toml by itself")
def test_the_console_script_is_main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    home, _, name = project["scripts"]["clew"].partition(":")
    assert getattr(importlib.import_module(home), name) is main


def test_info_says_what_the_trace_is(run_folder: Path) -> None:
    lines = run_process("info", run_folder).stdout.splitlines()
    assert lines[0] == f"{run_folder}  (small net)"
    facts = dict(line.split(maxsplit=1) for line in lines[1:] if not line.startswith(" "))
    assert facts["recorded"].endswith("level='ops', values='full'")
    assert f"torch {torch.__version__}" in facts["with"]
    assert facts["ranks"] == "2 (0-1)"
    assert facts["steps"] == "2 (0-1)"
    assert "56 module calls" in facts["events"]
    assert facts["crash"] == "none"
    assert facts["coverage"] == "nothing missed"
    assert "  rank 1: " in "\n".join(lines)


def test_info_names_the_ranks_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    model = Net()
    with clew.trace(model, out=tmp_path / "run.clew"):
        model(torch.ones(2, 8))
    assert "1 (1); 0, 2-3 of 4 are not here" in run("info", tmp_path / "run.clew").stdout


@pytest.mark.parametrize("world_size", [10**15, -1, "many", None])
def test_info_believes_no_manifest(run_folder: Path, tmp_path: Path, world_size: object) -> None:
    folder = tmp_path / "run.clew"
    shutil.copytree(run_folder, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "world_size": world_size}))
    assert "ranks     2 (0-1)\n" in run("info", folder).stdout


def test_info_as_json(run_folder: Path) -> None:
    facts = run_json("info", run_folder)
    assert [rank["rank"] for rank in facts["ranks"]] == [0, 1]
    assert facts["steps"] == [0, 1]
    assert facts["kinds"]["module"] == 56
    assert facts["events"] == sum(facts["kinds"].values())
    assert facts["crash"] is None
    assert facts["coverage"] == []
    assert facts["unsealed"] == []
    assert facts["environment"]["values"] == "full"


def test_info_of_a_crash_is_fine_and_tells(crashed: Path) -> None:
    text = run("info", crashed, code=0).stdout
    assert "crash     RuntimeError: mat1 and mat2 shapes cannot be multiplied" in text
    assert "aten.addmm.default failed in layers.0.0" in text
    crash = run_json("info", crashed)["crash"]
    assert crash["event"].startswith("op:aten.addmm.default#")
    assert crash["source"].startswith(__file__)


def test_info_names_what_a_running_trace_has_open(tmp_path: Path) -> None:
    model = Net()
    with clew.trace(model, out=tmp_path / "run.clew") as t:
        model(torch.ones(2, 8))
        t.flush()
        text = run("info", tmp_path / "run.clew").stdout
        facts = run_json("info", tmp_path / "run.clew")
    assert "clew recover" in text
    assert any(name.endswith(".arrows") for name in facts["unsealed"])


def test_show_prints_the_tree(run_folder: Path) -> None:
    text = run("show", run_folder).stdout
    assert text == str(clew.load(run_folder).tree()) + "\n"
    assert "layers.0 … layers.3" in text
    assert "\x1b" not in text


def test_show_options(run_folder: Path) -> None:
    unfolded = run("show", run_folder, "--no-fold").stdout
    assert "layers.2" in unfolded
    short = run("show", run_folder, "--rows", 4).stdout
    assert len(short.splitlines()) <= 5
    assert "without --rows shows all" in short
    shallow = run("show", run_folder, "--depth", 1).stdout
    assert "ReLU" in unfolded
    assert "ReLU" not in shallow
    assert "left out; --depth" in shallow
    assert ": rank 1, 2 steps, " in run("show", run_folder, "--rank", 1).stdout.splitlines()[0]


def test_show_as_json(run_folder: Path) -> None:
    tree = run_json("show", run_folder)
    shown = clew.load(run_folder).tree().to_dict()
    assert tree == json.loads(json.dumps({"schema": 1, **shown}))


def test_code_prints_lines_with_their_ops(run_folder: Path) -> None:
    text = run("code", run_folder, "layers.1#0").stdout
    assert "x = layer(x)" in text
    assert "Linear(f32[2,8]) -> f32[2,8]" in text
    assert "addmm" not in text
    assert "addmm(" in run("code", run_folder, "layers.1#0", "--ops", "aten").stdout
    assert "addmm" in run("show", run_folder, "--ops", "aten", "--depth", 9).stdout
    assert len(run("code", run_folder, "--all").stdout) > len(run("code", run_folder).stdout)
    assert run_json("code", run_folder, "layers.1#0")


def test_code_within_rows(run_folder: Path) -> None:
    lines = run("code", run_folder, "--rows", 3).stdout.splitlines()
    assert len(lines) == 3
    assert "more lines left out; --rows" in lines[-1]


def test_value_lists_several_and_prints_one(run_folder: Path) -> None:
    listed = run("value", run_folder, "out").stdout.splitlines()
    assert listed[0].split()[:4] == ["address", "value", "step", "rank"]
    assert [line.split()[:4] for line in listed[1:-1]] == [
        ["out#0", "f32[2,3]", "0", "0"],
        ["out#1", "f32[2,3]", "1", "0"],
        ["out#0", "f32[2,3]", "0", "1"],
        ["out#1", "f32[2,3]", "1", "1"],
    ]
    one = run("value", run_folder, "out#0", "--rank", 0).stdout
    assert "f32[2,3]  on cpu, step 0, rank 0, forward" in one
    assert "min " in one
    assert f"{__file__}:" in one
    assert one.count("[") == 3 + 1
    assert run("value", run_folder, "out", "--rows", 1).stdout.splitlines()[2].startswith("... 3")


def test_value_as_json_has_the_data(run_folder: Path) -> None:
    found = run_json("value", run_folder, "out#1", "--rank", 0)
    expected = clew.load(run_folder)["out#1"].values[0]
    assert found["count"] == 1
    value = found["values"][0]
    assert value["data"] == expected.array().tolist()
    assert value["stats"]["count"] == 6
    left_out = run_json("value", run_folder, "out#1", "--elements", 3)["values"][0]
    assert left_out["data"] is None
    assert "--elements" in left_out["data_left_out"]


def test_value_names_each_by_an_address_that_finds_it(tmp_path: Path) -> None:
    model, folder = nn.Linear(2, 2), tmp_path / "run.clew"
    optimizer = torch.optim.Adam(model.parameters())
    with clew.trace(model, capture=["weight:state", ":in"], out=folder):
        clew.tap("pair", {"a": torch.ones(2), "b": [torch.zeros(3)]})
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    trace = clew.load(folder)
    for asked in ("weight:state", ":in", "pair"):
        for value in run_json("value", folder, asked)["values"]:
            (found,) = trace[value["address"]].values
            assert found.array().tolist() == value["data"], value["address"]


def test_value_without_data_says_how_to_record_it(crashed: Path) -> None:
    text = run("value", crashed, "layers.0:in").stdout
    assert "stats   not taken; record them with clew.trace(values='stats')" in text
    assert "clew.trace(values='full')" in text


def test_nan_and_infinity_are_strict_json(tmp_path: Path) -> None:
    model = nn.Identity()
    with clew.trace(model, values="full", out=tmp_path / "run.clew"):
        model(torch.tensor([float("nan"), float("-inf"), 1.0]))
        model(torch.complex(torch.ones(1), torch.zeros(1)))
    data = [value["data"] for value in run_json("value", tmp_path / "run.clew", "")["values"]]
    assert data == [["nan", "-inf", 1.0], [[1.0, 0.0]]]


def test_recover_seals_what_a_kill_left_open(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, torch, clew\n"
        "model = torch.nn.Linear(2, 2)\n"
        "t = clew.trace(model, values='full', out=sys.argv[1])\n"
        "t.start()\n"
        "model(torch.ones(1, 2))\n"
        "t.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    folder = tmp_path / "run.clew"
    subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert run_json("info", folder)["unsealed"]
    before = clew.load(folder).to_dict()["events"]
    assert any(
        line.startswith("rank=00000: closed") for line in run_json("recover", folder)["done"]
    )
    assert run_json("info", folder)["unsealed"] == []
    assert clew.load(folder).to_dict()["events"] == before
    assert "nothing to do" in run("recover", folder).stdout


def test_export_writes_and_says_what(run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.parquet"
    events = len(clew.load(run_folder).events)
    assert run("export", run_folder, "parquet", out).stdout == f"{out}: {events} events\n"
    refused = run("export", run_folder, "parquet", out, "--exist", "error", code=2)
    assert f"{out} exists" in refused.stderr
    assert run_json("export", run_folder, "parquet", out, "--replace")["events"] == events


def test_export_options(run_folder: Path, tmp_path: Path) -> None:
    import h5py

    options = ["--address", "out", "--address", "layers.0:in", "--dtype", "float64"]
    filters = ["--compression", "gzip", "--shuffle", "--rank", "1"]
    run("export", run_folder, "hdf5", tmp_path / "x.h5", *options, *filters)
    with h5py.File(tmp_path / "x.h5") as file:
        assert sorted(file) == ["layers.0:in.0", "out"]
        values = file["out/values"]
        assert (values.dtype.name, values.compression, values.shuffle) == ("float64", "gzip", True)
        assert set(file["out/ranks"]) == {1}
    run("export", run_folder, "zarr", tmp_path / "x.zarr", "--compression", "none")
    mapped = ["--dtype", "float32=float16", "--dtype", "int64=int32"]
    run("export", run_folder, "hdf5", tmp_path / "y.h5", *mapped)
    with h5py.File(tmp_path / "y.h5") as file:
        assert file["out/values"].dtype.name == "float16"


def test_export_that_leaves_something_out_exits_with_1(tmp_path: Path) -> None:
    folder = tmp_path / "run.clew"
    model = nn.Linear(64, 4096)
    with clew.trace(model, values="full", out=folder):
        model(torch.ones(2, 64))
    shard = next(folder.glob("rank=*/shard-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    done = run("export", folder, "hdf5", tmp_path / "x.h5", code=1)
    assert "values of" in done.stdout
    assert "clew: left out " in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["info", "nowhere"], "nowhere is not a trace"),
        (["value", "{run}", "layrs.0"], "nothing matches 'layrs.0'"),
        (["value", "{run}", "layers[.."], "cannot read the address 'layers[..'"),
        (["show", "{run}", "--rank", "7"], "has no rank 7; it has 0, 1"),
        (["export", "{run}", "csv", "{tmp}/x", "--labels"], "has no option 'labels'"),
        (["export", "{run}", "hdf5", "{tmp}/x", "--dtype", "a=int8"], "'a' is not a dtype"),
        (["export", "{run}", "hdf5", "{tmp}/x", "--dtype", "x", "--dtype", "y"], "RECORDED=STORED"),
        (["recover", "nowhere"], "nowhere"),
    ],
)
def test_broken_input_is_one_line_and_exit_2(
    run_folder: Path, tmp_path: Path, args: list[str], message: str
) -> None:
    done = run(*(arg.format(run=run_folder, tmp=tmp_path) for arg in args), code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("clew: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_an_empty_trace_is_no_success(tmp_path: Path) -> None:
    folder = tmp_path / "run.clew"
    with pytest.warns(clew.ClewWarning, match="never ran"), clew.trace(Net(), out=folder):
        pass
    for command in (["show"], ["code"], ["value", "out"], ["export", "csv", tmp_path / "x"]):
        done = run(command[0], folder, *command[1:], code=2)
        assert done.stderr == f"clew: nothing was recorded in {folder}; `clew info` says more\n"
    text = run("info", folder).stdout
    assert "events    0" in text
    assert "coverage  1 gap" in text


def test_clew_alone_says_what_to_do_first() -> None:
    text = run().stdout
    assert "clew run train.py" in text
    assert all(name in COMMANDS for name in re.findall(r"^  clew (\w+)", text, re.M))
    assert len(text.splitlines()) < 12


def test_lists_have_a_budget(run_folder: Path) -> None:
    lines = run("graph", run_folder, "--rows", 3).stdout.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(r"\.\.\. \d+ more lines left out; --rows \d+ shows all", lines[-1])
    doctor = run("doctor", run_folder, "--rows", 2, code=0).stdout.splitlines()
    assert len(doctor) == 2


def test_doctor_of_a_trace(run_folder: Path) -> None:
    facts = run_json("doctor", run_folder)
    assert facts["trace"]["events"] == len(clew.load(run_folder))
    assert facts["trace"]["coverage"] == []
    assert "not seen   nothing that Clew knows of" in run("doctor", run_folder).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shwo", "x"], "there is no command 'shwo'; did you mean show?"),
        (["zzz"], "there is no command 'zzz'\n"),
        (["show", "x", "--dpeth", "2"], "unrecognized arguments: --dpeth 2; did you mean --depth?"),
        (["value", "x", "y", "--rws=2"], "did you mean --rows?"),
    ],
)
def test_a_typo_suggests(words: list[str], said: str) -> None:
    assert said in run(*words, code=2).stderr


@pytest.mark.parametrize(
    "args", [["nonsense"], ["show", "x", "--rows", "0"], ["export", "x", "doc", "y"]]
)
def test_wrong_usage_is_exit_2(args: list[str]) -> None:
    assert "usage: clew" in run(*args, code=2).stderr


def test_a_reader_that_leaves_early_is_no_error(run_folder: Path) -> None:
    command = [sys.executable, "-m", "clew", "code", str(run_folder), "--all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_errors_of_a_process_are_one_line_too(tmp_path: Path) -> None:
    done = run_process("show", tmp_path, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith(f"clew: {tmp_path} is not a trace")
    assert done.stderr.count("\n") == 1


def test_a_plain_terminal_encoding_gets_plain_text(run_folder: Path) -> None:
    text = run_process("show", run_folder, PYTHONIOENCODING="ascii").stdout
    assert text.isascii()
    assert "x4" in text or "..." in text


def test_colour_only_where_it_is_wanted(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (["info"], ["show"], ["code"], ["value"]):
        more = ["out"] if command == ["value"] else []
        assert "\x1b" not in run(*command, run_folder, *more).stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" in run("show", run_folder).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("show", run_folder).stdout


READING = [
    ["info"],
    ["show"],
    ["code", "layers.1"],
    ["value", "out#0"],
    *(["export", fmt, f"x.{fmt}"] for fmt in ("chrome", "csv", "hdf5", "json", "parquet", "zarr")),
]


@pytest.mark.parametrize("torch_is_there", [True, False])
def test_reading_does_not_import_torch(
    torch_is_there: bool, run_folder: Path, tmp_path: Path
) -> None:
    commands = [[name, str(run_folder), *rest] for name, *rest in READING]
    program = (
        "import sys\n"
        f"if not {torch_is_there}: sys.modules['torch'] = None\n"
        "from clew.cli.main import main\n"
        f"codes = [main(command) for command in {commands!r}]\n"
        "assert not any(codes), codes\n"
        "assert not sys.modules.get('torch')"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "x.hdf5").exists()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["nothing"], ["--nothing"]])
def test_what_runs_no_command_loads_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys, clew.cli.main\n"
        "try:\n"
        f"    clew.cli.main.main({words!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(sorted({'numpy', 'pyarrow', 'torch', 'h5py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_parser_knows_every_command() -> None:
    assert parser().parse_args(["info", "x"]).run is importlib.import_module("clew.cli.info").run


def test_lines_left_out_are_counted() -> None:
    assert within(["a", "b"], 2, "--rows 2") == ["a", "b"]
    assert within(["a", "b", "c"], 2, "--rows 3") == [
        "a",
        "... 2 more lines left out; --rows 3 shows all",
    ]
