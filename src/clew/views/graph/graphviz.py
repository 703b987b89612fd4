"""Pictures by Graphviz's program `dot`, for those who ask for it."""

from __future__ import annotations

import shutil
import subprocess

from clew.errors import ClewError


def drawn_by_dot(source: str, form: str, *options: str) -> bytes:
    """What `dot` makes of a graph in its language, in a form such as `svg` or `png`."""
    program = shutil.which("dot")
    if program is None:
        raise ClewError(
            "engine='dot' needs Graphviz's program `dot`, which is not on the PATH; "
            "install Graphviz, or leave engine= out: Clew draws SVG by itself"
        )
    done = subprocess.run(
        [program, f"-T{form}", *options], input=source.encode(), capture_output=True, check=False
    )
    if done.returncode:
        raise ClewError(f"{program} failed with {done.returncode}: {done.stderr.decode().strip()}")
    return done.stdout
