"""Names of notebook cells: `In[2]` instead of the file that a cell pretends to be.

IPython compiles a cell under a name such as `<ipython-input-2-1f0e8f2f>`, Jupyter under
`/tmp/ipykernel_7/2259872203.py`. In comes such a name, out comes the one people know, and the other
way round for whoever needs the text of the cell. IPython itself is never imported.
"""

from __future__ import annotations

import re
import sys

_CELL = re.compile(r"In ?\[(\d+)\]")

# The file of each cell that was met.
_files: dict[str, str] = {}


def shown_file(file: str) -> str:
    """Give the name of a cell for the file it was compiled as; other files as they are.

    Numbers begin anew when a session is reset. A name then still means the first cell that had it,
    and later ones keep their files' names.
    """
    if "IPython" not in sys.modules:
        return file
    name = _cell_name(file)
    return file if name is None or _files.setdefault(name, file) != file else name


def file_of(name: str) -> str:
    """Give the file that a cell was compiled as; anything else as it is."""
    return _files.get(name, name)


def _cell_name(file: str) -> str | None:
    """Ask the shell that runs what it calls a file, None if that is no cell."""
    try:
        shell = sys.modules["IPython"].get_ipython()
        # A label and a name, as in its tracebacks: `Cell`, `In[2]`.
        found = shell.compile.format_code_name(file)
        cell = _CELL.fullmatch(found[1]) if found else None
    except Exception:  # another version, another shell, one that is not ready
        return None
    return f"In[{cell[1]}]" if cell else None
