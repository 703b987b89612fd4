"""Words after a colon: which value of a call an address names, and common mistakes.

In: a word. Out: yes or no, or the advice that an error gives.
"""

from __future__ import annotations

import difflib
import re

from clew.spec import ROLES as ROLES

# Words that people write first; each must lead to the right role, not to a function of that name.
MISTAKEN_ROLES = {
    "arg": "in", "args": "in", "input": "in", "inputs": "in",
    "output": "out", "outputs": "out", "result": "out",
    "grads": "grad", "gradient": "grad", "gradients": "grad",
    "grad_out": "grad", "grad_output": "grad", "grad_input": "grad_in",
    "params": "param", "parameter": "param", "parameters": "param",
    "buf": "buffer", "buffers": "buffer",
}  # fmt: skip

_WORD = re.compile(r"[^.\[:#@]*")


def word_at(text: str, pos: int) -> str:
    """Return the word that begins at a position, up to what could follow a role."""
    found = _WORD.match(text, pos)
    return found[0] if found else ""


def nearest_role(word: str) -> str | None:
    """Return the role that a word was probably meant to be, None if it is like none."""
    close = difflib.get_close_matches(word[:40].lower(), ROLES, 1, cutoff=0.75)
    return MISTAKEN_ROLES.get(word.lower()) or (close[0] if close else None)


def role_advice(word: str) -> str:
    """Return what to write instead of a word that is no role."""
    role = nearest_role(word)
    advice = f"write ':{role}'" if role else "the roles are :" + " :".join(ROLES)
    return f"{advice}; a local of a function is file.py:function.variable"
