"""The viewer's matcher of addresses answers as Python's does."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from clew.address import compile_pattern, matches_file, matches_op
from clew.errors import AddressSyntaxError

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


def viewer(asked: list[tuple[str, str, str]]) -> list[bool | None]:
    node = shutil.which("node")
    if node is None:
        pytest.fail("the tests of the viewer need Node: run `make browser`")
    done = subprocess.run(
        [node, str(HERE / "match.mjs")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def differences(asked: list[tuple[str, str, str]]) -> list[tuple[object, ...]]:
    wanted = [python(*one) for one in asked]
    found = viewer(asked)
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
