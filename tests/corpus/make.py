"""Make the corpus anew: `python -m tests.corpus.make [NAME ...]`, or `make corpus` (needs torch).

A trace holds the path of every file on its call stacks. So that the committed ones do not name the
machine that made them, the programs run in a copy of the project at `PLACE`, with a Python that is
reached through links there. The traces are copied back when all programs have run and nothing in
the files names this machine.
"""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clew.native.library import library_root
from tests.processes import HANG_GUARD

CORPUS = Path(__file__).parent
PROJECT = CORPUS.parents[1]
TRACES = CORPUS / "traces"
PLACE = Path("/tmp/example")
# Left in the place, so that only a folder made here is ever removed.
MARK = PLACE / "made-by-tests.corpus.make"
AT_ONCE = 2
# Programs that end by a signal, on purpose.
ENDINGS = {"killed": -signal.SIGKILL}


def main() -> None:
    """Record the named programs, or all of them, and replace their committed traces."""
    from tests.corpus.programs import PROGRAMS, Program

    by_name: dict[str, Program] = {program.__name__: program for program in PROGRAMS}
    names = sys.argv[1:] or list(by_name)
    if unknown := set(names) - set(by_name):
        sys.exit(f"no program {', '.join(sorted(unknown))}; there are {', '.join(by_name)}")
    _prepare()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda name: _record(name, by_name[name]), names))
    for name in names:
        made = PLACE / f"{name}.clew"
        _check_neutral(made)
        shutil.rmtree(TRACES / made.name, ignore_errors=True)
        shutil.copytree(made, TRACES / made.name)
    shutil.rmtree(PLACE)


def _prepare() -> None:
    """Copy the project's part that runs to the place, and link Python and its packages there."""
    if PLACE.exists() and not MARK.exists():
        sys.exit(f"{PLACE} is there and was not made by this program; move it away first")
    shutil.rmtree(PLACE, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "traces")
    shutil.copytree(PROJECT / "src", PLACE / "src", ignore=ignored)
    shutil.copytree(CORPUS, PLACE / "tests" / "corpus", ignore=ignored)
    MARK.touch()
    (PLACE / "python").symlink_to(sys.base_prefix)
    (PLACE / "site-packages").symlink_to(sysconfig.get_paths()["purelib"])


def _record(name: str, program: object) -> None:
    """Run a program, all its ranks at the same time, and expect each to end as it should."""
    numbers, size = getattr(program, "ranks", (0,)), getattr(program, "size", 1)
    environment = {**_environment(), "WORLD_SIZE": str(size), "MASTER_PORT": str(_free_port())}
    python = PLACE / "python" / "bin" / f"python{sysconfig.get_python_version()}"
    command = [str(python), "-m", "tests.corpus.record", name, str(PLACE / f"{name}.clew")]
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, cwd=PLACE)
        for rank in numbers
    ]
    try:
        codes = [process.wait(HANG_GUARD) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if set(codes) != {ENDINGS.get(name, 0)}:
        sys.exit(f"{name} ended with {codes}")


def _environment() -> dict[str, str]:
    """What the programs get to know: nothing of this machine but where its commands are."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(PLACE),
        "PYTHONHOME": str(PLACE / "python"),
        "PYTHONPATH": f"{PLACE}:{PLACE}/src:{PLACE}/site-packages",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "OMP_NUM_THREADS": "1",
        # The programs that want the native engine say so.
        "CLEW_ENGINE": "python",
        "CLEW_NATIVE": str(library_root().path),
        # Its name would have the user's in it.
        "TORCHINDUCTOR_CACHE_DIR": str(PLACE / "inductor"),
        # The name of the job in the manifest; without it that would be this machine's.
        "TORCHELASTIC_RUN_ID": "corpus",
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _check_neutral(trace: Path) -> None:
    """Exit if a string of the trace names this machine, its user, or a folder of theirs."""
    names = {str(PROJECT), sys.base_prefix, sys.prefix, str(Path.home()), platform.release()}
    words = {f'"{platform.node()}"', f'"{getpass.getuser()}"'}
    for file, text in _texts(trace):
        found = [name for name in names | words if len(name) > 1 and name in text]
        if found:
            sys.exit(f"{file} names this machine: {', '.join(found)}")


def _texts(trace: Path) -> Iterator[tuple[Path, str]]:
    """Every file of a trace as text; tables are compressed, so they are read first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in sorted(path for path in trace.rglob("*") if path.is_file()):
        if file.suffix == ".parquet":
            text = str(pq.read_table(file, partitioning=None).to_pydict())
        elif file.suffix == ".arrows":
            text = str(pa.ipc.open_stream(file).read_all().to_pydict())
        else:
            text = file.read_bytes().decode("latin-1")
        yield file, text


if __name__ == "__main__":
    main()
