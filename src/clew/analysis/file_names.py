"""Short names of source files, the same wherever a program is installed.

In come paths as they were recorded, out come names that tell them apart: nothing that is shown
says where on a machine somebody keeps a program.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from clew.run.run import Run

# Folders whose inside is the same everywhere: installed packages, the standard library.
_INSTALLED = re.compile(r"site-packages|dist-packages|python3\.\d+t?")


def bare_name(file: str) -> str:
    """The last part of a path, of whatever system it is.

    >>> bare_name("C:\\\\models\\\\vit.py"), bare_name("/home/me/vit.py")
    ('vit.py', 'vit.py')
    """
    return file.replace("\\", "/").rpartition("/")[2]


def file_names(run: Run) -> dict[str, str]:
    """The short name of every file of a trace, those of the user's own code told apart."""
    places = run.columns.places
    own = {place.file for place in places if not place.library}
    others = {place.file for place in places} - own
    alone = {file: name for other in others for file, name in short_names({other}).items()}
    return {**alone, **short_names(own)}


def short_names(files: set[str]) -> dict[str, str]:
    """The shortest names by which files can be told apart; installed ones from their package on.

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
