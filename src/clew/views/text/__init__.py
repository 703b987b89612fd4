"""Text views: tree, code, table; plain where the output is not a terminal."""
