"""Damages traces at random and reads them: `python -m tests.mutations --count 20000`.

Each round copies a small trace of the corpus, damages bytes, rows, columns, JSON or files of it,
and reads it by some of `tests.reading_calls`. Data or a ClewError is fine, in memory bounded by the
bytes of the files; anything else is a failure: another exception, a crash, a hang, a huge
allocation. Rounds go on after a failure; each kind of failure is printed once, with the trace that
shows it kept. Runs without torch, some hundred rounds in each forked process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.modules["torch"] = None  # type: ignore[assignment]

import pyarrow as pa
import pyarrow.parquet as pq

import clew
from clew.store.format.live_stream import LiveFile
from clew.store.format.schema import SCHEMAS
from clew.store.read.allowance import MEMORY_PER_BYTE
from tests.bounded import LIMIT, SPARE, memory, size_of, warm_up
from tests.reading_calls import CALLS

MEMORY = 4 << 30
# Seconds of CPU time.
PATIENCE = 30
BATCH = 200
# A file that was made huge takes no room, a copy of it would.
_LARGEST_COPY = 1 << 24
_TRACES = Path(__file__).parent
BASES = [
    *(_TRACES / f"corpus/traces/{name}.clew" for name in (
        "compiled", "crash", "full", "fused", "killed", "missing_rank", "nan_modules", "nan_op",
        "native", "taps", "threads", "two_callers", "unnamed", "workers")),
    *(_TRACES / f"formats/v{version}/killed.clew" for version in (2, 3, 4, 5)),
]  # fmt: skip
# Calls of a round, after the one that reads everything.
_CALLS = 3
NUMBERS = [0, 1, -1, -2, 2, 3, 7, 255, 1 << 16, 1 << 31, -(1 << 31), 1 << 40, 10**9, 1 << 62,
           (1 << 63) - 1, -(1 << 63)]  # fmt: skip
TEXTS = ["", "?", "\n", "x" * 5000, "x" * 3999, "9" * 5000, "0.1.2", "é漢🧵", "[]", "{}", "null",
         "-1", "true", "[1,2,3]", "[" * 5000, '"text"', '["in","0",["tensor"]]',
         '[["in","0",["tensor"]]]', '[["out","",["unseen"]]]', "[-1]", "NaN", "1e999",
         '{"events":1e9}', "../../etc/passwd", "\x1b[31m", "module", "op", "step", "note", "gap",
         "end", "place", "template", "gathered", "variable", "prefix", "." * 3000]  # fmt: skip
DTYPES = ["numpy:V0", "numpy:O", "numpy:U99999999", "numpy:datetime64", "float32", "bfloat16",
          "complex128", "bool", "int4", "sparse_coo:float32", "quint8", "object", "none", "str",
          "float8_e4m3fn", ""]  # fmt: skip
SHAPES = [[], [0], [1 << 40], [1 << 62] * 20, [-1], [3], [1] * 3000, [0, 1 << 62], [2, 2]]


class Hang(BaseException):
    """Raised in the middle of whatever takes too long."""


def _too_long(number: int, frame: Any) -> None:
    raise Hang


class Damage:
    """Ways to damage a trace."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def apply(self, folder: Path) -> str:
        ways = [self.bytes_of_a_file] * 3 + [self.rows_of_a_table] * 6 + [self.files]
        way = self.chance.choice(ways)
        for _ in range(self.chance.choice([1, 1, 1, 2, 4])):
            way(folder)
        return way.__name__

    def file(self, folder: Path, pattern: str = "**/*") -> Path | None:
        files = sorted(p for p in folder.glob(pattern) if p.is_file() and not p.is_symlink())
        return self.chance.choice(files) if files else None

    # Bytes

    def bytes_of_a_file(self, folder: Path) -> None:
        path = self.file(folder)
        if path is None or path.stat().st_size > _LARGEST_COPY:
            return
        data = bytearray(path.read_bytes())
        for _ in range(self.chance.choice([1, 1, 2, 8])):
            self.damage(data)
        path.write_bytes(data)

    def damage(self, data: bytearray) -> None:
        chance = self.chance
        if not data:
            return
        # Headers and footers are where the structure is.
        at = chance.choice([
            chance.randrange(len(data)),
            chance.randrange(min(len(data), 400)),
            len(data) - 1 - chance.randrange(min(len(data), 3500)),
        ])  # fmt: skip
        kind = chance.randrange(7)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + chance.randrange(1, 64)]
        elif kind == 4:
            data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 64)))
        elif kind == 5:
            size = chance.choice([4, 8])
            number = chance.choice(NUMBERS) % (1 << 8 * size)
            data[at : at + size] = number.to_bytes(size, "little")
        else:
            other = chance.randrange(len(data))
            data[at : at + 64] = data[other : other + 64]

    # Rows, columns and JSON, in files that are sound

    def rows_of_a_table(self, folder: Path) -> None:
        """Rewrite a part with something changed, so that the format itself is sound."""
        path = self.file(folder, "rank=*/*-*.[pa][ar]*[st]")
        table = "" if path is None else path.name.partition("-")[0]
        if path is None or table not in SCHEMAS:
            return
        try:
            rows = self.read(path).to_pylist()
        except Exception:
            return
        if not rows:
            return
        for row in rows:
            row |= {name: None for name in SCHEMAS[table].names if name not in row}
        changes: list[Callable[[list[dict[str, Any]], str], None]] = [
            self.cells, self.cells, self.cells, self.a_column, self.order, self.repeat, self.nest,
            self.long_rows,
        ]  # fmt: skip
        for _ in range(self.chance.choice([1, 1, 2])):
            self.chance.choice(changes)(rows, table)
        self.write(path, table, pa.Table.from_pylist(rows, schema=SCHEMAS[table]))

    def read(self, path: Path) -> pa.Table:
        if path.suffix == ".parquet":
            return pq.ParquetFile(path).read()
        return pa.ipc.open_stream(path.read_bytes()).read_all()

    def write(self, path: Path, table: str, rows: pa.Table) -> None:
        path.unlink()
        path.with_name(f".{path.stem}.footer").unlink(missing_ok=True)
        if path.suffix == ".parquet":
            pq.write_table(
                rows, path, store_schema=False, use_dictionary=self.chance.random() < 0.8,
                compression=self.chance.choice(["zstd", "snappy", "none"]),
                row_group_size=self.chance.choice([1, 7, 100_000]) if len(rows) < 400 else 100_000,
            )  # fmt: skip
        else:
            live = LiveFile(path, SCHEMAS[table])
            for batch in rows.to_batches(
                max_chunksize=1 + len(rows) // self.chance.choice([1, 300])
            ):
                live.write(batch)
            live.close()

    def cells(self, rows: list[dict[str, Any]], table: str) -> None:
        """Some cells of some rows."""
        for _ in range(self.chance.choice([1, 1, 3, 20])):
            row = self.chance.choice(rows)
            name = self.chance.choice(list(row))
            row[name] = self.cell(table, name, row[name])

    def a_column(self, rows: list[dict[str, Any]], table: str) -> None:
        """One column in all rows: the same, none, or anything."""
        name = self.chance.choice(SCHEMAS[table].names)
        kind = self.chance.randrange(3)
        one = None if kind == 0 else self.cell(table, name, rows[0][name])
        for row in rows:
            row[name] = self.cell(table, name, row[name]) if kind == 2 else one

    def order(self, rows: list[dict[str, Any]], table: str) -> None:
        """Rows in another order, or without some."""
        if self.chance.random() < 0.5:
            self.chance.shuffle(rows)
        else:
            at = self.chance.randrange(len(rows))
            del rows[at : at + self.chance.choice([1, 5, 1000])]

    def repeat(self, rows: list[dict[str, Any]], table: str) -> None:
        """A row very often, with its number or with others."""
        number = {"events": "id", "values": "value", "tables": "number"}[table]
        row = self.chance.choice(rows)
        start = self.chance.choice([0, len(rows), 10**6, 1 << 62])
        step = self.chance.choice([0, 1, 1000])
        count = self.chance.choice([30, 300, 300, 300, 5000])
        rows += [{**row, number: start + n * step} for n in range(count)]

    def nest(self, rows: list[dict[str, Any]], table: str) -> None:
        """Events each in the one before, places each called by the one before, or in a ring."""
        ring = self.chance.random() < 0.3
        if table == "events":
            del rows[1000:]
            for before, row in zip([rows[-1] if ring else {"id": None}, *rows], rows, strict=False):
                row |= {"parent": before["id"], "kind": "module", "owner": before["id"]}
        elif table == "tables":
            first = -1 if not ring else 10**6
            for number in range(self.chance.choice([30, 3000])):
                place = [number - 1 if number else first, "a.py", "f", 1, 1, 0, 0, False, 0, 0]
                rows.append({"table": "place", "number": number, "row": json.dumps(place)})
        else:
            for row in rows:
                row |= {"data_of": (row["value"] or 0) + 1, "length": 8, "shard": None}

    def long_rows(self, rows: list[dict[str, Any]], table: str) -> None:
        """Rows of tables that are long, or of which there are many."""
        if table != "tables":
            return self.cells(rows, table)
        size = self.chance.choice([1000, 3999, 50_000])
        name = self.chance.choice(["x" * size, "a." * (size // 2), "0." * (size // 2)])
        leaf = self.chance.choice([["tensor"], ["value", 1], ["value", "s"], ["symbol", name]])
        side = self.chance.choice(["in", "out"])
        made: dict[str, Any] = {
            "op": name, "note": name, "value_name": name, "thread": name,
            "module": [name, name, self.chance.choice(NUMBERS), True],
            "label": [self.chance.randrange(3, 9), name, name, "grad", name, name, name, None,
                      self.chance.choice(NUMBERS)],
            "template": [[side, str(n), leaf] for n in range(size // 10)],
            "meta": ["float32", self.chance.choice(SHAPES), self.chance.choice(SHAPES), "cpu",
                     "strided", "Tensor", None, None],
            "place": [-1, name, name, self.chance.choice(NUMBERS), 1, 0, 0, False, 0,
                      self.chance.choice([0, 3, 65535])],
            "mode": [self.chance.choice(NUMBERS), "train"],
            "parameter": [name, 0, self.chance.choice(NUMBERS)],
            "environment": {"time": 4e18, "clock": 2**61, "name": [name], "level": {}},
            "end": {"events": self.chance.choice(NUMBERS)},
            "source": [name[:50], name * 10],
            "gap": [name, name, name, name],
        }  # fmt: skip
        kind = self.chance.choice(list(made))
        numbers = [row["number"] for row in rows if row["table"] == kind] or [0]
        row = {"table": kind, "number": self.chance.choice(numbers), "row": json.dumps(made[kind])}
        rows.append(row)
        return None

    def cell(self, table: str, name: str, old: Any) -> Any:
        """Another cell."""
        chance = self.chance
        kind = SCHEMAS[table].field(name).type
        if chance.random() < 0.1:
            return None
        if name == "data_dtype":
            return chance.choice(DTYPES)
        if name == "data_shape":
            return chance.choice(SHAPES)
        if pa.types.is_integer(kind):
            number = chance.choice([*NUMBERS, (old or 0) + 1, (old or 0) - 1])
            bits = kind.bit_width
            return (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        if pa.types.is_floating(kind):
            return chance.choice([0.0, float("nan"), float("inf"), float("-inf"), -1e308, 1e308])
        if kind == pa.string():
            return self.text(old)
        if kind == pa.binary():
            return bytes(chance.randrange(256) for _ in range(chance.randrange(40)))
        if pa.types.is_floating(kind.value_type):
            numbers = [*(old or [])]
            strange = (0.0, 3.0, -1.0, 0.5, 1e308, float("nan"), float("inf"))
            at = chance.randrange(len(numbers) + 1)
            return [*numbers[:at], chance.choice(strange), *numbers[at + chance.randrange(2) :]]
        texts = kind.value_type == pa.string()
        return [chance.choice(TEXTS if texts else NUMBERS) for _ in range(chance.randrange(4))]

    def text(self, text: str | None) -> str:
        """Another text, or the JSON in it with something replaced."""
        chance = self.chance
        if text is None or chance.random() < 0.3:
            return chance.choice(TEXTS)
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return chance.choice(TEXTS)
        strange = chance.choice(
            [None, True, "", "x", [], {}, [[]], 1.5, float("nan"), 10**400, *NUMBERS]
        )
        spot = data
        while isinstance(spot, list) and spot and isinstance(spot[0], list):
            if chance.random() < 0.3:
                break
            spot = chance.choice(spot)
        if isinstance(spot, list) and spot:
            at = chance.randrange(len(spot))
            if chance.random() < 0.2:
                del spot[at]
            else:
                spot[at] = strange
        elif isinstance(spot, dict) and spot:
            spot[chance.choice(list(spot))] = strange
        else:
            data = strange
        return json.dumps(data)

    # Files

    def files(self, folder: Path) -> None:
        """Take a file away, give it to another, or put something odd in its place."""
        path, other = self.file(folder), self.file(folder)
        if path is None or other is None:
            return
        kind = self.chance.randrange(9)
        if kind == 0:
            path.unlink()
        elif kind == 1 and path != other and path.stat().st_size < _LARGEST_COPY:
            shutil.copyfile(path, other)
        elif kind == 2:
            path.write_bytes(b"")
        elif kind == 3:
            path.unlink()
            path.mkdir()
        elif kind == 4:
            path.unlink()
            os.mkfifo(path)
        elif kind == 5:
            path.unlink()
            path.symlink_to(self.chance.choice(["/dev/zero", "/dev/null", path.name, "..", "/"]))
        elif kind == 6:
            path.rename(path.with_name(self.chance.choice(
                ["events-00001.parquet", "values-99999.arrows", "tables-123456789.parquet",
                 "shard-00000.safetensors", ".shard-00001.open", "events-00000.tmp"])))  # fmt: skip
        elif kind == 7 and path.parent != folder and size_of(folder) < _LARGEST_COPY:
            for rank in range(1, self.chance.choice([2, 20])):
                if not (folder / f"rank={rank:05d}").exists():
                    shutil.copytree(path.parent, folder / f"rank={rank:05d}", symlinks=True)
        elif kind == 8:
            # Takes no room on the disk, and must not in memory.
            os.truncate(path, 1 << 36)


def one_round(number: int, seed: int, place: Path) -> tuple[str, str, str]:
    """Damage a trace and read it: the way, what came of it, and what should not have."""
    chance = random.Random(f"{seed} {number}")
    trace = place / "run.clew"
    shutil.copytree(chance.choice(BASES), trace)
    way = Damage(chance).apply(trace)
    calls = chance.sample([name for name in CALLS if name != "len"], _CALLS)
    Path("/proc/self/clear_refs").write_text("5")
    before, most = memory("VmRSS"), SPARE + MEMORY_PER_BYTE * size_of(trace)
    # Of CPU time, which does not pass while others use the machine.
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    outcome, call = "nothing", "len"
    try:
        t = clew.load(trace)
        outcome = "data" if CALLS["len"](t, place) else "nothing"
        for call in calls:
            (folder := place / "written").mkdir()
            with contextlib.suppress(clew.ClewError):
                CALLS[call](t, folder)
            shutil.rmtree(folder)
            most += LIMIT[call] * size_of(trace) if LIMIT[call] > MEMORY_PER_BYTE else 0
    except clew.ClewError:
        return way, "refused", ""
    except BaseException as broken:
        return way, "failed", f"{call}: {_described(broken)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    peak = memory("VmHWM") - before
    if peak > most:
        return way, "failed", f"{calls}: {peak >> 20} MB, {most >> 20} MB are the limit"
    return way, outcome, ""


def _described(broken: BaseException) -> str:
    """An exception and the innermost line of Clew's own, which together tell failures apart."""
    frames = traceback.extract_tb(broken.__traceback__)
    own = [f for f in frames if "clew" in f.filename and "tests" not in f.filename] or frames
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno} ({own[-1].name})"
    return f"{type(broken).__name__} at {where}: {str(broken)[:150]}"


def rounds(numbers: range, seed: int, report: Path, kept: Path) -> None:
    """Some rounds, each told in a line of a report as it ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    with open(report, "a") as lines:
        for number in numbers:
            with tempfile.TemporaryDirectory(dir=report.parent) as name:
                way, outcome, failure = one_round(number, seed, Path(name))
                if failure:
                    shutil.rmtree(kept / f"{seed}-{number}.clew", ignore_errors=True)
                    shutil.move(Path(name) / "run.clew", kept / f"{seed}-{number}.clew")
            lines.write(json.dumps([number, way, outcome, failure]) + "\n")
            lines.flush()


def worker(numbers: range, seed: int, report: Path, kept: Path) -> None:
    """All rounds of one worker, batch after batch in forked processes."""
    done = numbers.start
    while done < numbers.stop:
        child = os.fork()
        if child == 0:
            try:
                rounds(range(done, min(done + BATCH, numbers.stop)), seed, report, kept)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        told = [json.loads(line)[0] for line in report.read_text().splitlines()]
        after = told[-1] + 1 if told else numbers.start
        if status and after < numbers.stop:
            code = os.waitstatus_to_exitcode(status)
            failure = f"the process ended with {code}"
            with open(report, "a") as lines:
                lines.write(json.dumps([after, "", "failed", failure]) + "\n")
            after += 1
        done = max(after, done + 1)


def run(count: int, seed: int, jobs: int, kept: Path) -> bool:
    """Run all rounds and print what came of them; whether nothing failed."""
    kept.mkdir(parents=True, exist_ok=True)
    outcomes: Counter[str] = Counter()
    failures: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        warm_up(place)
        bounds = [count * job // jobs for job in range(jobs + 1)]
        workers = []
        for job in range(jobs):
            (own := place / str(job)).mkdir()
            (own / "report").touch()
            child = os.fork()
            if child == 0:
                try:
                    worker(range(bounds[job], bounds[job + 1]), seed, own / "report", kept)
                finally:
                    os._exit(0)
            workers.append(child)
        for child in workers:
            os.waitpid(child, 0)
        for job in range(jobs):
            for line in (place / str(job) / "report").read_text().splitlines():
                number, way, outcome, failure = json.loads(line)
                outcomes[f"{way} {outcome}"] += 1
                if failure:
                    failures.setdefault(failure.partition(": ")[2][:100] or failure, []).append(
                        f"{seed}-{number} ({way}): {failure}"
                    )
    for found in sorted(failures.values(), key=len, reverse=True):
        print(f"{len(found)} times, first {found[0]}")
    print(json.dumps(outcomes))
    print(f"{sum(outcomes.values())} rounds, {sum(map(len, failures.values()))} failures")
    return not failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kept", type=Path, default=Path(tempfile.gettempdir()) / "clew-failures")
    wanted = parser.parse_args()
    sys.exit(0 if run(wanted.count, wanted.seed, wanted.jobs, wanted.kept) else 1)
