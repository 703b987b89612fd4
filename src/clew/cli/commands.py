"""The commands of `clew` with a line about each, which is all that `clew --help` loads."""

from __future__ import annotations

# The module of a command has its name, with `_` for `-`.
COMMANDS = {
    "run": "record a program without editing it",
    "info": "say what a trace holds",
    "crash": "say why the program crashed",
    "health": "say whether training and data look healthy",
    "show": "show what ran as a tree of module calls",
    "code": "show source lines with the ops they ran and their shapes",
    "value": "show the values of an address, with statistics and data",
    "why-shape": "show where a dimension of a tensor comes from",
    "mem": "show where the memory of tensors went: the peak and what was alive then",
    "diff": "say where two runs part first",
    "determinism": "run a program twice and say which op differs first",
    "ranks": "say which ranks of a run disagree, and where first",
    "graph": "draw what flowed from module to module",
    "html": "write one HTML file to look at the trace",
    "export": "write the trace for other tools",
    "recover": "seal the files that a killed run left open",
    "build": "compile the native engine",
    "doctor": "say which engine records, and why; with a trace, what was not seen",
    "env": "print the folder for PYTHONPATH",
}
