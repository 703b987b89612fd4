"""Names of notebook cells: `In[2]` instead of the file name under which a cell is compiled.

IPython compiles a cell under a name such as `<ipython-input-2-1f0e8f2f>`, Jupyter under
`/tmp/ipykernel_7/2259872203.py`. Input: such a name. Output: the name that users know, and the
reverse for code that needs the text of the cell. IPython itself is never imported.
"""

from __future__ import annotations

import re
import sys

_CELL = re.compile(r"In ?\[(\d+)\]")

# The file of each cell met so far.
_files: dict[str, str] = {}


def shown_file(file: str) -> str:
    """Return the name of a cell for the file it was compiled as; other files unchanged.

    Cell numbers start again when a session is reset. A name then still means the first cell that
    had it, and later ones keep their file names.
    """
    if "IPython" not in sys.modules:
        return file
    name = _cell_name(file)
    return file if name is None or _files.setdefault(name, file) != file else name


def file_of(name: str) -> str:
    """Return the file that a cell was compiled as; anything else unchanged."""
    return _files.get(name, name)


def _cell_name(file: str) -> str | None:
    """Ask the running shell for the name of a file, None if that is no cell."""
    try:
        shell = sys.modules["IPython"].get_ipython()
        # A label and a name, as in IPython's tracebacks: `Cell`, `In[2]`.
        found = shell.compile.format_code_name(file)
        cell = _CELL.fullmatch(found[1]) if found else None
    except Exception:  # another version, another shell, or one that is not ready
        return None
    return f"In[{cell[1]}]" if cell else None
