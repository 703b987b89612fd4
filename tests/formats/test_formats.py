"""Every format opens: the smallest real trace of each version says what the newest says."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.cli.main import main
from clew.errors import BadTrace
from clew.events.columns import OLDEST_VERSION, SCHEMA_VERSION
from clew.run.event import Event
from clew.run.value import Value
from clew.store.format.checksums import CHECKSUMS
from clew.store.format.upgrade import UPGRADES

HERE = Path(__file__).parent
VERSIONS = range(OLDEST_VERSION, SCHEMA_VERSION + 1)
NEWEST = HERE / f"v{SCHEMA_VERSION}"
NAMES = ("run.clew", "killed.clew")

every_trace = pytest.mark.parametrize(
    ("version", "name"), [(version, name) for version in VERSIONS for name in NAMES]
)


def facts(event: Event) -> dict[str, Any]:
    """All that a trace says of an event, but for what the recorders of the time saw otherwise.

    Those are the times, the phase of the first op of a backward pass, `requires_grad` inside it,
    and the last digits of statistics.
    """
    return {
        **{name: getattr(event, name) for name in ("id", "parent_id", "kind", "name", "address")},
        **{name: getattr(event, name) for name in ("module", "call", "step", "thread")},
        "forward": None if event.forward is None else event.forward.id,
        "source": str(event.source),
        "error": event.error,
        "inputs": {path: value_facts(value) for path, value in event.inputs.items()},
        "outputs": {path: value_facts(value) for path, value in event.outputs.items()},
    }


def told(t: clew.Trace) -> list[dict[str, Any]]:
    """The facts of all events but `detach`: up to version 6 torch's own aliases were events too."""
    events = [event for event in t.events if event.name != "aten.detach.default"]
    number = {event.id: index for index, event in enumerate(events)} | {None: None}
    renumbered = ("id", "parent_id", "forward")
    return [
        {name: number[f] if name in renumbered else f for name, f in facts(event).items()}
        for event in events
    ]


def value_facts(value: Any) -> Any:
    if not isinstance(value, Value):
        return repr(value)
    known = (value.dtype, value.shape, value.stride, value.device)
    taken = {} if value.stats is None else value.stats.to_dict()
    stats = {name: float(f"{number:.3g}") for name, number in taken.items()}
    return (*known, stats, data_of(value))


def data_of(value: Value) -> Any:
    """The data as a list, None where none was kept."""
    try:
        return value.array().tolist()
    except clew.ClewError as error:
        assert "was not kept" in str(error) or "not recorded" in str(error), error
        return None


def test_there_is_a_trace_of_each_version() -> None:
    written = {
        json.loads((HERE / f"v{version}" / name / "manifest.json").read_text())["version"]
        for version in VERSIONS
        for name in NAMES
    }
    assert written == set(VERSIONS)
    assert set(UPGRADES) == set(VERSIONS[1:])


def test_all_algorithms_of_checksums_are_among_them() -> None:
    manifests = [json.loads(path.read_text()) for path in HERE.glob("v*/*/manifest.json")]
    assert {manifest["checksum"] for manifest in manifests} == set(CHECKSUMS)


@every_trace
def test_a_version_says_what_the_newest_says(version: int, name: str) -> None:
    t, newest = clew.load(HERE / f"v{version}" / name), clew.load(NEWEST / name)
    assert told(t) == told(newest)
    assert (t.steps, t.modes, t.ranks) == (newest.steps, newest.modes, newest.ranks)
    assert [gap.what for gap in t.coverage] == [gap.what for gap in newest.coverage]


@pytest.mark.parametrize("version", VERSIONS)
def test_data_in_rows_and_in_shards_is_what_the_program_made(version: int) -> None:
    t = clew.load(HERE / f"v{version}" / "run.clew")
    wide = np.arange(3000, dtype=np.float32) / np.float32(7)
    assert [v.array().tobytes() for v in t["forward.wide"].values] == [wide.tobytes()] * 3
    assert [v.shape for v in t["hidden"].values] == [(2, 3)] * 3
    assert [np.shape(data_of(v)) for v in t["up.weight:grad"].values] == [(3, 2)] * 3


def test_the_newest_holds_fingerprints_and_those_before_it_none() -> None:
    for version in VERSIONS:
        first = clew.load(HERE / f"v{version}" / "run.clew")["op:aten.relu.default"][0]
        found = first.inputs["0"].fingerprint
        assert (found is None) == (version < 7)
    assert found is not None
    assert found.shape == (2, 3)
    assert [len(sums) for sums in found.marginals] == [2, 3]


@every_trace
def test_a_version_saved_again_is_of_the_newest(version: int, name: str, tmp_path: Path) -> None:
    t = clew.load(HERE / f"v{version}" / name)
    again = clew.load(t.save(tmp_path / name))
    assert json.loads((tmp_path / name / "manifest.json").read_text())["version"] == SCHEMA_VERSION
    assert [facts(event) for event in again.events] == [facts(event) for event in t.events]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_kill_left_of_a_version_is_recovered(version: int, tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / f"v{version}" / "killed.clew", tmp_path / "killed.clew")
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (0, 0))  # long ago, however new this copy of the project is
    before = [facts(event) for event in clew.load(folder).events]
    assert main(["recover", str(folder)]) == 0
    assert not list(folder.rglob("*.arrows"))
    assert [facts(event) for event in clew.load(folder).events] == before
    assert json.loads((folder / "manifest.json").read_text())["version"] == version


@pytest.mark.parametrize("version", VERSIONS)
def test_data_that_was_changed_is_not_given_out(version: int, tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / f"v{version}" / "run.clew", tmp_path / "run.clew")
    (shard,) = folder.rglob("shard-*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    value = clew.load(folder)["forward.wide"].values[0]
    with pytest.raises(BadTrace, match="damaged"):
        value.array()


@every_trace
@pytest.mark.parametrize("command", ["show", "info", "code"])
def test_commands_read_every_version(
    version: int, name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(HERE / f"v{version}" / name), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["schema"] == 1


@pytest.mark.parametrize("version", [OLDEST_VERSION - 1, SCHEMA_VERSION + 1])
def test_other_versions_are_refused_with_what_to_do(version: int, tmp_path: Path) -> None:
    folder = shutil.copytree(NEWEST / "run.clew", tmp_path / "run.clew")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "version": version}))
    with pytest.raises(BadTrace, match=f"version.*{version}.*this Clew reads 2 to"):
        clew.load(folder)


@every_trace
def test_a_trace_names_no_machine(version: int, name: str) -> None:
    (columns,) = clew.load(HERE / f"v{version}" / name)._current_run().recorded()
    files = {place.file for place in columns.places}
    assert {
        f for f in files if f and not f.startswith(("/tmp/example/", "/the/place/", "<"))
    } == set()
