"""What users install: built from the source distribution, in an environment of its own.

The environment borrows the packages that Clew needs, not the checkout that is being tested.
"""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest

import clew
from clew.native import target
from tests.processes import HANG_GUARD

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "tests" / "corpus" / "traces" / "gathered.clew"


class Built(NamedTuple):
    sdist: Path
    wheel: Path
    python: Path


def done(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed, away from the checkout; what it prints."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=HANG_GUARD
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the source distribution, from that the wheel, and install it."""
    folder = tmp_path_factory.mktemp("built")
    hatchling = (sys.executable, "-m", "hatchling", "build", "-d", folder)
    done(*hatchling, "-t", "sdist", cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    done(*hatchling, "-t", "wheel", cwd=folder / sdist.name.removesuffix(".tar.gz"))
    (wheel,) = folder.glob("*.whl")
    place = folder / "environment"
    venv.create(place)
    python = place / "bin" / "python"
    install = ("install", "--quiet", "--no-index", "--no-deps", wheel)
    done(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)
    (packages,) = place.glob("lib/python*/site-packages")
    # Links of the borrowed folder, such as the one to the checkout, are not followed.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return Built(sdist, wheel, python)


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


def sources() -> set[str]:
    package = ROOT / "src" / "clew"
    files = (path for path in package.rglob("*") if path.is_file())
    found = {path.relative_to(package.parent).as_posix() for path in files}
    return {name for name in found if "__pycache__" not in name}


def test_the_wheel_is_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if ".dist-info/" not in name} == sources()
    assert "clew/py.typed" in names
    # What `clew build` compiles.
    assert "clew/native/sources/module.cpp" in names
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        entries = archive.read(name).decode()
    assert "[pytest11]\nclew = clew.testing.pytest_plugin\n" in entries


def test_the_source_distribution_can_be_tested(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in sources()} <= names
    for name in (
        "pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt",
        "constraints-lowest.txt", "scripts/index_readme.py", "viewer/package-lock.json",
        "tests/packaging/test_wheel.py", "tests/no_torch/run.clew/manifest.json",
    ):  # fmt: skip
        assert name in names
    left_out = re.compile(r"(^|/)(node_modules|__pycache__|\.venv[^/]*|\.git)(/|$)")
    assert [name for name in names if left_out.search(name)] == []


def test_what_users_are_asked_to_install(built: Built) -> None:
    required = metadata(built.wheel).get_all("Requires-Dist", [])
    always = sorted(re.split("[<>=]", text)[0] for text in required if "extra ==" not in text)
    assert always == ["numpy", "pyarrow", "xxhash"]
    extras = metadata(built.wheel).get_all("Provides-Extra", [])
    assert sorted(extras) == ["all", "hdf5", "pandas", "png", "remote", "torch", "zarr"]
    everything = {re.split("[<>=]", text)[0] for text in required if "extra == 'all'" in text}
    assert everything == {"fsspec", "h5py", "pandas", "resvg-py", "zarr"}


def test_the_description_needs_no_file_beside_it(built: Built) -> None:
    text = str(metadata(built.wheel).get_payload())
    assert text.startswith("# Clew\n")
    assert "![" not in text
    assert "<img" not in text
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if "://" not in link] == []
    # What a link said is still there.
    assert "| `docs/addresses.md` | how to name modules, calls, operations, lines |" in text
    assert "What it costs (`docs/performance.md`) has all figures" in text


def test_an_installed_clew_works(built: Built, tmp_path: Path) -> None:
    command = built.python.parent / "clew"
    where = "import clew, sys; print(clew.__file__); print('torch' in sys.modules)"
    place, has_torch = done(built.python, "-c", where, cwd=tmp_path).splitlines()
    assert built.python.parents[1] in Path(place).parents
    assert has_torch == "False"
    assert done(command, "--version", cwd=tmp_path) == f"clew {clew.__version__}\n"
    hashed = "from clew.native.target import *; print(current_target(SOURCES).sources)"
    same = done(built.python, "-c", hashed, cwd=tmp_path).strip()
    assert same == target.current_target(ROOT / "src" / "clew" / "native" / "sources").sources
    shown, expected = done(command, "show", TRACE, cwd=tmp_path), str(clew.load(TRACE))
    assert shown.splitlines()[:10] == expected.splitlines()[:10]
    done(command, "html", TRACE, "-o", "run.html", cwd=tmp_path)
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assets = ROOT / "src" / "clew" / "views" / "html" / "assets"
    for name in ("viewer.js", "viewer.css"):
        assert (assets / name).read_text(encoding="utf-8").strip() in page
    assert re.search('id="clew-data">[^<]{1000}', page)
