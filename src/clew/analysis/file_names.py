"""Short names of source files, the same on every machine.

Input: paths as recorded. Output: distinct short names that do not reveal the folders of the
machine.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from clew.run.run import Run

# Folders whose inside is the same everywhere: installed packages, the standard library.
_INSTALLED = re.compile(r"site-packages|dist-packages|python3\.\d+t?")


def bare_name(file: str) -> str:
    """Return the last part of a path of any operating system.

    >>> bare_name("C:\\\\models\\\\vit.py"), bare_name("/home/me/vit.py")
    ('vit.py', 'vit.py')
    """
    return file.replace("\\", "/").rpartition("/")[2]


def file_names(run: Run) -> dict[str, str]:
    """Return the short name of every file of a trace; names of user files are distinct."""
    places = run.columns.places
    own = {place.file for place in places if not place.library}
    others = {place.file for place in places} - own
    alone = {file: name for other in others for file, name in short_names({other}).items()}
    return {**alone, **short_names(own)}


def short_names(files: set[str]) -> dict[str, str]:
    """Return the shortest distinct names of files; those of installed files begin at the package.

    >>> sorted(short_names({"/a/b/model.py", "/a/c/model.py", "/x/site-packages/p/q.py"}).values())
    ['b/model.py', 'c/model.py', 'p/q.py']
    """
    names = {}
    parts = {file: PurePath(file.replace("\\", "/")).parts for file in files}
    for file, mine in parts.items():
        installed = [i for i, part in enumerate(mine[:-1]) if _INSTALLED.fullmatch(part)]
        length = len(mine) - installed[-1] - 1 if installed else 1
        others = [other for f, other in parts.items() if f != file]
        while length < len(mine) and any(other[-length:] == mine[-length:] for other in others):
            length += 1
        names[file] = "/".join(mine[-length:])
    return names
