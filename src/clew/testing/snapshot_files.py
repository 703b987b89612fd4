"""Files of snapshots next to the tests: `__clew__/test_model/test_block.txt`.

Input: the path and name of a test. Output: its sections, read or written. It must know neither
torch nor pytest.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from clew.errors import ClewError
from clew.testing.snapshot_text import SnapshotFile, read_file, write_file

FOLDER = "__clew__"
_MOST_CHARACTERS = 100


def path_of(test_file: Path, test: str) -> Path:
    """Return the file of a test: of a function, a method of a class, or one set of parameters.

    Characters that a file name may not have on some system become `_`, and a few digits of a
    checksum of the whole name keep such files apart.
    """
    name = test.replace("::", ".")
    safe = re.sub(r"[^\w.,=+\[\]-]", "_", name, flags=re.ASCII)[:_MOST_CHARACTERS]
    if safe != name:
        safe += "-" + hashlib.sha256(name.encode()).hexdigest()[:8]
    return test_file.parent / FOLDER / test_file.stem / f"{safe}.txt"


def read_snapshots(path: Path, test: str) -> SnapshotFile:
    """Read the sections of a test; none if there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return SnapshotFile(test)
    except (OSError, UnicodeDecodeError) as error:
        raise ClewError(f"the snapshot {path} cannot be read: {error}") from error
    return read_file(text, str(path))


def write_snapshots(path: Path, file: SnapshotFile) -> bool:
    """Write the sections of a test, or remove its file if there are none; False if it was so."""
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if not file.sections:
            path.unlink(missing_ok=True)
            return before is not None
        text = write_file(file)
        if text == before:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_text(text, encoding="utf-8", newline="\n")
        os.replace(aside, path)
    except OSError as error:
        raise ClewError(f"the snapshot {path} cannot be written: {error}") from error
    return True


def tests_with_files(test_file: Path) -> dict[str, Path]:
    """Return the files that there are for the tests of a file, by the names of the tests."""
    folder = test_file.parent / FOLDER / test_file.stem
    found = {}
    for path in sorted(folder.glob("*.txt")) if folder.is_dir() else ():
        try:
            found[read_file(path.read_text(encoding="utf-8"), str(path)).test] = path
        except (ClewError, OSError, UnicodeDecodeError):
            continue  # the test it belongs to says what is wrong with it
    return found
