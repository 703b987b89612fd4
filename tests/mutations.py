"""Damages traces at random and reads them: `python -m tests.mutations FOLDER SEED COUNT`.

FOLDER holds traces. Each round copies one, damages its bytes or rewrites some of its rows with
nonsense, and reads all that can be read. Data or a ClewError is fine; anything else is printed
and ends the run, as do a crash, a hang and a huge allocation. Runs in a process of its own,
without torch, in little memory.
"""

from __future__ import annotations

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
from pathlib import Path
from typing import Any

sys.modules["torch"] = None  # type: ignore[assignment]

import pyarrow as pa
import pyarrow.parquet as pq

import clew
from clew.store.format.live_stream import LiveFile
from clew.store.format.schema import SCHEMAS
from clew.store.write.recover import recover

MEMORY = 3 << 30
PATIENCE = 20
# A file that was made huge takes no room, a copy of it would.
_LARGEST_COPY = 1 << 24
NUMBERS = [0, 1, -1, -2, 2, 3, 7, 255, 1 << 16, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1,
           -(1 << 63)]  # fmt: skip
TEXTS = ["", "?", "\n", "x" * 5000, "9" * 5000, "0.1.2", "é漢🧵", "[]", "{}", "null", "-1", "true",
         "[1,2,3]", "[" * 5000, '"text"', '["in","0",["tensor"]]', '[["in","0",["tensor"]]]',
         '[["out","",["unseen"]]]', "[-1]", "NaN", "1e999", '{"events":1e9}', "../../etc/passwd",
         "\x1b[31m", "module", "op", "step", "note", "gap", "end", "place", "template"]  # fmt: skip


def read_everything(path: Path, views: bool) -> int:
    """Look at everything in a trace; how many events could be read."""
    t = clew.load(path)
    count = 0
    for event in t.events:
        count += 1
        _ = event.source, event.stack, event.arguments, event.forward, repr(event)
        for value in (*event.inputs.values(), *event.outputs.values()):
            _ = value.stats, value.producer, str(value), repr(value)
            try:
                value.array()
            except clew.ClewError:
                pass
    _ = t.coverage, t.crash, t.steps, t.ranks, t.env
    str(t)
    if views:
        str(t.code())
        str(t.table())
        t.to_dict()
        for address in ("", "op:*", "**"):
            try:
                _ = t[address].values, t.find("linear"), t.series(address).steps
            except clew.ClewError:
                pass
    return count


class Hang(BaseException):
    """Raised in the middle of whatever takes too long."""


def _too_long(number: int, frame: Any) -> None:
    raise Hang


class Damage:
    """Ways to damage a trace."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def apply(self, folder: Path) -> str:
        ways = [self.bytes_of_a_file] * 4 + [self.rows_of_a_table] * 4 + [self.files]
        way = self.chance.choice(ways)
        for _ in range(self.chance.choice([1, 1, 1, 2, 4])):
            way(folder)
        return way.__name__

    def file(self, folder: Path, pattern: str = "**/*") -> Path:
        files = sorted(p for p in folder.glob(pattern) if p.is_file())
        return self.chance.choice(files)

    def bytes_of_a_file(self, folder: Path) -> None:
        path = self.file(folder)
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

    def rows_of_a_table(self, folder: Path) -> None:
        """Rewrite a part with some cells changed, so that the format itself is sound."""
        path = self.file(folder, "rank=*/*-*.[pa][ar]*[st]")
        table = path.name.partition("-")[0]
        if table not in SCHEMAS:
            return
        try:
            rows = self.read(path).to_pylist()
        except Exception:
            return
        if not rows:
            return
        for _ in range(self.chance.choice([1, 1, 3, 20])):
            self.change(self.chance.choice(rows), table)
        if self.chance.random() < 0.2:
            self.chance.shuffle(rows)
        if self.chance.random() < 0.2:
            del rows[self.chance.randrange(len(rows))]
        changed = pa.Table.from_pylist(rows, schema=SCHEMAS[table])
        path.unlink()
        if path.suffix == ".parquet":
            pq.write_table(changed, path, store_schema=False)
        else:
            live = LiveFile(path, SCHEMAS[table])
            for batch in changed.to_batches():
                live.write(batch)
            live.close()

    def read(self, path: Path) -> pa.Table:
        if path.suffix == ".parquet":
            return pq.ParquetFile(path).read()
        return pa.ipc.open_stream(path.read_bytes()).read_all()

    def change(self, row: dict[str, Any], table: str) -> None:
        chance = self.chance
        name = chance.choice(list(row))
        kind = SCHEMAS[table].field(name).type
        if chance.random() < 0.1:
            row[name] = None
        elif pa.types.is_integer(kind):
            number = chance.choice([*NUMBERS, (row[name] or 0) + 1, (row[name] or 0) - 1])
            bits = kind.bit_width
            row[name] = (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        elif pa.types.is_floating(kind):
            row[name] = chance.choice([0.0, float("nan"), float("inf"), -1e308])
        elif kind == pa.string():
            row[name] = self.text(row[name])
        elif kind == pa.binary():
            row[name] = bytes(chance.randrange(256) for _ in range(chance.randrange(40)))
        elif pa.types.is_list(kind):
            texts = kind.value_type == pa.string()
            length = chance.randrange(4)
            row[name] = [chance.choice(TEXTS if texts else NUMBERS) for _ in range(length)]

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

    def files(self, folder: Path) -> None:
        """Take a file away, give it to another, or put something odd in its place."""
        path, other = self.file(folder), self.file(folder)
        kind = self.chance.randrange(8)
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
        else:
            # Takes no room on the disk, and must not in memory.
            os.truncate(path, 1 << 36)


def run(folder: Path, seed: int, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _too_long)
    chance = random.Random(seed)
    damage = Damage(chance)
    originals = sorted(folder.iterdir())
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        for number in range(count):
            trace = Path(place) / "run.clew"
            shutil.rmtree(trace, ignore_errors=True)
            shutil.copytree(chance.choice(originals), trace)
            way = damage.apply(trace)
            signal.alarm(PATIENCE)
            try:
                events = read_everything(trace, views=number % 8 == 0)
                outcome = "some" if events else "nothing"
                if number % 20 == 0:
                    recover(trace)
                    read_everything(trace, views=False)
            except clew.ClewError:
                outcome = "refused"
            except BaseException:
                kept = folder.parent / f"failure-{seed}-{number}.clew"
                trace.rename(kept)
                print(f"round {number} of seed {seed} ({way}), kept in {kept}:")
                traceback.print_exc(file=sys.stdout)
                raise SystemExit(1) from None
            signal.alarm(0)
            outcomes[f"{way} {outcome}"] += 1
    print(json.dumps(outcomes))
    print(f"{count} rounds")


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
