"""Traces in a bucket: S3 as moto serves it on this machine, through s3fs.

s3fs and moto need a python-dateutil that others of our tools have left behind, so they live in an
environment of their own: `scripts/test_s3.sh` makes it and runs these tests.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

s3fs = pytest.importorskip("s3fs", reason="run scripts/test_s3.sh, which has s3fs and moto")
moto_server = pytest.importorskip("moto.server")

import torch  # noqa: E402
from torch import nn  # noqa: E402

import clew  # noqa: E402
from clew.cli.main import main  # noqa: E402
from clew.errors import BadTrace  # noqa: E402
from clew.store import remote_storage  # noqa: E402
from tests.same_trace import facts_of  # noqa: E402

LARGE = 9000


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket, and the settings that lead s3fs to it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem()
    fs.mkdir("runs")
    yield "s3://runs"
    fs.rm("runs", recursive=True)


def program(out: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, LARGE))
    with clew.trace(net, values="full", out=out, **options) as t:
        for step in range(3):
            net(torch.randn(2, 8)).sum().backward()
            t.step()
            if step == 1:
                t.flush()
    return t


def test_streamed_saved_and_loaded_it_is_the_trace(bucket: str) -> None:
    t = program(f"{bucket}/deep/run.clew")
    assert t.path == f"{bucket}/deep/run.clew"
    # The server is in this process, and nobody knows what its threads do.
    assert {gap.what for gap in t.coverage} <= {"a thread that was not watched"}
    loaded = clew.load(f"{bucket}/deep/run.clew")
    assert facts_of(loaded) == facts_of(t)
    assert torch.equal(loaded["2"].values[1].tensor(), t["2"].values[1].tensor())
    with pytest.warns(clew.ClewWarning, match="is taken, and nothing is moved there"):
        kept = loaded.save(f"{bucket}/deep/run.clew", exist="keep")
    assert kept == f"{bucket}/deep/run.1.clew"
    assert facts_of(clew.load(kept)) == facts_of(t)
    before = facts_of(t)
    assert loaded.save(f"{bucket}/deep/run.clew") == f"{bucket}/deep/run.clew"
    assert facts_of(loaded) == before
    assert program(f"{bucket}/deep/run.clew", exist="replace").path == f"{bucket}/deep/run.clew"


def test_a_growing_trace_is_read_by_others(bucket: str) -> None:
    layer = nn.Linear(8, LARGE)
    with clew.trace(layer, values="full", out=f"{bucket}/run.clew") as t:
        for step in range(3):
            layer(torch.ones(1, 8))
            t.flush()
            growing = clew.load(f"{bucket}/run.clew")
            assert len(growing.modules) == step + 1
            assert growing.modules[step].outputs[""].array().shape == (1, LARGE)


def test_commands_read_it(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    program(f"{bucket}/run.clew")
    assert main(["info", f"{bucket}/run.clew"]) == 0
    assert main(["value", f"{bucket}/run.clew", "0#1"]) == 0
    assert "f32[2,8]" in capsys.readouterr().out


def test_what_is_not_there_is_said(bucket: str) -> None:
    with pytest.raises(BadTrace, match="s3://runs/none.clew is not a trace"):
        clew.load(f"{bucket}/none.clew")
    with pytest.warns(clew.ClewWarning, match="cannot write a trace to s3://nobodys/run.clew"):
        program("s3://nobodys/run.clew")


def test_a_server_out_of_reach_is_said(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_storage, "_WAITS", (0.0,))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(BadTrace, match="s3://runs/run.clew cannot be read"):
            clew.load(f"{bucket}/run.clew")
    s3fs.S3FileSystem.clear_instance_cache()
