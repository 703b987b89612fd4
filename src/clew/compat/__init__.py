"""Five older tools on Clew's engine: change the import line, and everything else stays.

Each module or package here has the public names of the tool it is called after; none traces by
itself. `docs/migrating/` shows old and new side by side.
"""
