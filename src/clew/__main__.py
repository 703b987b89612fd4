"""`python -m clew`, the same as the `clew` command."""

from __future__ import annotations

import sys

from clew.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
