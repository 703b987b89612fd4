"""The `clew` command: one file per command, each over the public `Trace`."""
