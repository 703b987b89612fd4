"""A native engine that compiles in half a second: the same module without any torch in it."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from pathlib import Path

import pytest

from clew.native import target
from clew.native.building import Built, build

MODULE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "answer.h"

namespace {
PyObject* features(PyObject*, PyObject*) { return Py_BuildValue("[s]", "avx2"); }
PyObject* number(PyObject*, PyObject*) { return PyLong_FromLong(answer()); }
PyMethodDef methods[] = {
    {"features", features, METH_NOARGS, nullptr},
    {"number", number, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_clew_native", nullptr, -1, methods,
    nullptr, nullptr, nullptr, nullptr};
}

PyMODINIT_FUNC PyInit__clew_native() { return PyModule_Create(&definition); }
"""

SMALL = {
    "module.cpp": MODULE,
    "answer.cpp": '#include "answer.h"\nint answer() { return 42; }\n',
    "answer.h": "#pragma once\nint answer();\n",
    "alone.cpp": "int alone() { return 1; }\n",
}


def write_sources(folder: Path, **changed: str) -> Path:
    """Write the sources into a folder; files can be changed: `answer_cpp="…"`."""
    folder.mkdir(exist_ok=True)
    replaced = {name.replace("_", "."): text for name, text in changed.items()}
    for name, text in {**SMALL, **replaced}.items():
        (folder / name).write_text(text)
    return folder


def _can_compile() -> bool:
    named = shlex.split(os.environ.get("CXX", ""))[:1]
    there = any(map(shutil.which, named or ["c++", "g++", "clang++"]))
    return there and Path(sysconfig.get_path("include"), "Python.h").exists()


needs_compiler = pytest.mark.skipif(
    not _can_compile(), reason="there is no C++ compiler here, or no headers of Python"
)


def build_small(folder: Path) -> Built:
    """Build the small sources into a cache inside a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "SOURCES", write_sources(folder / "sources"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.delenv("CLEW_NATIVE", raising=False)
        return build()
