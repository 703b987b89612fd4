"""Traces whose every text holds what a terminal would obey, and what to look for in their views.

In comes a trace, out comes the same trace as a stranger might have made it: the same events, with
`EVIL` in every name, message, path and source line of its tables.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

import clew
from clew.events.columns import Columns, Leaf, Symbol, Tensor
from clew.events.vocabulary import Label, Unseen
from clew.run.run import Run

# Codes that set a colour as Clew does and otherwise, a title, a bell, a link; a cursor that goes
# back; codes of one character; text that is reversed, hidden or ends a line; marks of formats.
EVIL = (
    "\x1b[31mRED\x1b[5mBLINK\x1b]0;owned\x07\x1b]8;;mailto:x\x1b\\\r\x08\x00\x7f\t\x0b\x0c\x1c\x85"
    "\x9b31m\x9d0;x\x9c\u202eabc\u2066\u2069\u061c\u200b\u200d\ufeff\xad\u2028\u2029\n\U000e0041"
    "\ufffe<b>&amp;\"'`#%%{init}$$;=1+1"
)
# A lone half of a character, which files cannot hold and a program can.
HALF = "\ud83d"
# What a file or a class may be called.
ODD_NAME = EVIL.replace("\0", "")


def hostile(trace: clew.Trace, evil: str = EVIL) -> clew.Trace:
    """Give a trace with a text after every text of its tables."""
    run = trace._current_run()
    parts = {rank: _columns(c, evil) for rank, (c, _) in zip(run.ranks, run.parts, strict=True)}
    return clew.Trace(Run(parts))


def _columns(columns: Columns, evil: str) -> Columns:
    changed = {
        field.name: _with(getattr(columns, field.name), evil)
        for field in fields(columns)
        if field.name not in ("kept", "derived", "rank")
    }
    return replace(columns, **changed, derived=None)


def _with(thing: Any, evil: str) -> Any:
    """Give a thing with a text after every text in it; an empty one means that there is none."""
    if isinstance(thing, Symbol):
        return Symbol(str(thing) + evil)
    if isinstance(thing, str):
        # The last line of a source is not the only one that is shown.
        return "\n".join(line + evil.replace("\n", "") for line in thing.split("\n")) + (
            evil if thing else ""
        )
    if isinstance(thing, np.ndarray) or thing in (Tensor, Unseen):
        return thing
    if isinstance(thing, Leaf):
        return replace(thing, path=_with(thing.path, evil), constant=_with(thing.constant, evil))
    if isinstance(thing, Label):
        # Roles and stages are words of the format.
        kept = {"role": thing.role, "stage": thing.stage}
        return replace(_with_fields(thing, evil), **kept)
    if is_dataclass(thing) and not isinstance(thing, type):
        return _with_fields(thing, evil)
    if isinstance(thing, Mapping):
        return {_key(key, evil): _with(item, evil) for key, item in thing.items()}
    if isinstance(thing, list | tuple):
        return type(thing)(_with(item, evil) for item in thing)
    return thing


def _key(key: Any, evil: str) -> Any:
    """Files are keys, and so are the names of facts of the machine, which are Clew's."""
    return _with(key, evil) if isinstance(key, str) and "/" in key else key


def _with_fields(thing: Any, evil: str) -> Any:
    return replace(thing, **{f.name: _with(getattr(thing, f.name), evil) for f in fields(thing)})


_OWN_CODES = re.compile(r"\x1b\[(0|(1|2|3[1-6])(;(1|2|3[1-6]))*)m")


def assert_plain(text: str, where: object, color: bool = False) -> None:
    """Check that a text holds lines of characters that can be seen, and with `color` Clew's own."""
    if color:
        assert "\x1b[31mRED" not in text, where
        text = _OWN_CODES.sub("", text)
    bad = {
        character
        for character in set(text) - {"\n"}
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        or character == "\ufffe"
    }
    at = min((text.index(character) for character in bad), default=0)
    assert not bad, f"{where} holds {sorted(map(ascii, bad))}: {text[max(at - 60, 0) : at + 40]!r}"
