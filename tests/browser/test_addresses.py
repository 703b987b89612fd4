"""The viewer's matcher of addresses answers as Python's does, and finds rows by rank."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.address import compile_pattern, matches_file, matches_op
from clew.errors import AddressSyntaxError
from tests.browser import reports
from tests.processes import HANG_GUARD

HERE = Path(__file__).parent

NAMES = (
    "", "encoder", "encoder.layers", "encoder.layers.0", "encoder.layers.10.self_attn", "h.3.mlp",
    "cache['a.b']", "cache.k.0", "cache[0]", "a.a.a.b", "Net#2.fc", "x-y", "blocks.1.attn", "**",
)  # fmt: skip
PATTERNS = (
    "", "*", "**", "encoder", "encoder.*", "encoder.**", "**.self_attn", "encoder.layers.[0-3]",
    "encoder.layers.?", "encoder.layers.1?", "encoder.layers.1[0-5].**", "**.*_attn", "*.*.*",
    "cache['a.b']", "cache['k'][0]", "cache[0]", "cache.0", "h.[!0-2].mlp", "a.**.b", "**.a.**.b",
    "a.**.a.b", "x-y", "[x]-y", "*-*", "**.**", "h.[", "a..b", ".a", "a.", "blocks.[01].a*n",
)  # fmt: skip
OPS = ("aten.addmm.default", "aten._softmax.default", "mylib.op.out", "compiled")
OP_PATTERNS = ("addmm", "aten.addmm", "aten.addmm.default", "aten._soft*", "*", "**", "default")
FILES = ("/home/me/models/vit.py", "model.py", "/a.b/model.py", "src/model.pyx")
FILE_PATTERNS = ("model.py", "models/*.py", "/home/**/vit.py", "*.py", "./model.py", "/model.py")


def python(kind: str, pattern: str, name: str) -> bool | None:
    try:
        if kind == "path":
            return compile_pattern(pattern)(name)
        return matches_op(pattern, name) if kind == "op" else matches_file(pattern, name)
    except AddressSyntaxError:
        return None


def node(script: str, asked: Any) -> list[Any]:
    node = shutil.which("node")
    if node is None:
        pytest.fail("the tests of the viewer need Node: run `make browser`")
    done = subprocess.run(
        [node, str(HERE / script)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=HANG_GUARD,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def differences(asked: list[tuple[str, str, str]]) -> list[tuple[object, ...]]:
    wanted = [python(*one) for one in asked]
    found = node("match.mjs", asked)
    # What Python refuses must find nothing here.
    return [
        (*one, f"Python {a}", f"viewer {b}")
        for one, a, b in zip(asked, wanted, found, strict=True)
        if (a or False) != (b or False)
    ]


def test_written_patterns_match_alike() -> None:
    asked = [("path", p, n) for p in PATTERNS for n in NAMES]
    asked += [("op", p, n) for p in OP_PATTERNS for n in OPS]
    asked += [("file", p, n) for p in FILE_PATTERNS for n in FILES]
    assert any(python(*one) for one in asked)
    assert differences(asked) == []


def test_random_patterns_match_alike() -> None:
    draw = random.Random(7)
    pieces = ["a", "b", "0", "1", "*", "**", "?", "[01]", "[!a]", "ab", "a*", "*b"]
    names = ["a", "b", "0", "1", "ab", "ba", "01"]

    def dotted(words: list[str]) -> str:
        return ".".join(draw.choice(words) for _ in range(draw.randint(1, 4)))

    asked = [("path", dotted(pieces), dotted(names)) for _ in range(4000)]
    assert 200 < sum(bool(python(*one)) for one in asked) < 3800
    assert differences(asked) == []


HEAD = [[0, "head#0"], [1, "head#0"]]
# Of a trace of two ranks: the rank and address of each row found.
RANKED = {
    "head": HEAD, "head@*": HEAD, "head@0": HEAD[:1], "head@1": HEAD[1:], "head@2": [],
    "head#0@1": HEAD[1:], "head#1@1": [], "head#0:out@1": HEAD[1:], "head:in[0]@1": HEAD[1:],
    "head:out.x@0": HEAD[:1], "**.attn@1": [[1, "blocks.0.attn#0"]],
    "@1": [[1, "#0"]], "#0@1": [[1, "#0"]], "#0@*": [[0, "#0"], [1, "#0"]],
    "op:aten.embedding@1": [[1, "op:aten.embedding.default#0"]],
    "op:aten.embedding.default#0@0": [[0, "op:aten.embedding.default#0"]],
    "line:reports.py:LINE@1": [[1, "embed#0"], [1, "op:aten.embedding.default#0"]],
    # Any part of a name; what Python refuses.
    "ead@1": HEAD[1:], "head@01": [], "head@1#0": [], "head@x": [],
}  # fmt: skip


def test_an_address_finds_rows_of_its_rank(tmp_path: Path) -> None:
    page = Path(str(reports.two_ranks(tmp_path / "run.clew").html(tmp_path / "r.html").path))
    found = re.search('id="clew-data">([^<]*)<', page.read_text(encoding="utf-8"))
    assert found is not None
    before, _, _ = Path(reports.__file__).read_text(encoding="utf-8").partition("self.embed(")
    line = str(before.count("\n") + 1)
    addresses = [address.replace("LINE", line) for address in RANKED]
    rows = node("search.mjs", {"data": found[1], "addresses": addresses})
    assert dict(zip(RANKED, rows, strict=True)) == RANKED


def test_roles_and_tied_names_find_what_python_finds(tmp_path: Path) -> None:
    model = reports.nn.Sequential(reports.nn.Linear(3, 3), reports.nn.BatchNorm1d(3))
    model.add_module("tied", model[0])
    optimizer = reports.torch.optim.Adam(model.parameters())
    roles = ["0.weight:update", "0.weight:state", "0.weight:param", "1.running_mean:buffer"]
    with clew.trace(model, capture=["**:grad", "1:grad_in", *roles]) as t:
        for _ in range(2):
            model(reports.torch.ones(4, 3)).sum().backward()
            optimizer.step()
            t.step()
    page = t.html(tmp_path / "r.html").path.read_text(encoding="utf-8")
    data = re.search('id="clew-data">([^<]*)<', page)
    assert data is not None
    asked = [
        *roles,
        "**:grad",
        "1:grad_in",
        "0:in",
        "tied",
        "0.weight#1:update",
        "0.weight:state.exp_avg",
    ]
    rows = node("search.mjs", {"data": data[1], "addresses": asked})
    assert rows == [[[event.rank, event.address] for event in t[one]] for one in asked]
    assert all(rows)
