"""Record one program of the corpus: `python -m tests.corpus.record NAME FOLDER`.

`make.py` starts this, once for each rank, in a copy of the project that names no machine.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path


def main() -> None:
    """Run the program with one thread, a fixed seed and a machine without a name."""
    # A trace says which machine wrote it; whoever makes the corpus need not tell theirs.
    platform.node = lambda: "example"
    platform.platform = lambda *args, **kwargs: "Linux"

    import torch

    from tests.corpus import programs

    name, folder = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    program: programs.Program = getattr(programs, name)
    program(Path(folder))


if __name__ == "__main__":
    main()
