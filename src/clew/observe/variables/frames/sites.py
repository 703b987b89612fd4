"""What is followed inside a running function, and what is called when it happens.

A `Site` is one place in one function: a binding, a return, a line. A `Target` says what to follow
in a function, and a `Probe` is called at each site as it runs. Must not know: how it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Literal, Protocol, TypeAlias

Kind: TypeAlias = Literal[
    "enter", "param", "bind", "poll", "delete", "return", "yield", "raise", "leave", "line"
]


@dataclass(frozen=True, slots=True)
class Site:
    """One place in one function; `code` is that of the function as its author wrote it.

    Columns count characters' UTF-8 bytes from 0, as in `CodeType.co_positions`; they are 0 where
    Python does not report them. `name` is the variable, or "".
    """

    kind: Kind
    name: str
    code: CodeType
    file: str
    function: str
    line: int
    end_line: int
    col: int
    end_col: int


class Probe(Protocol):
    """Receives what happens in followed functions; no method may raise.

    `owner` is the object of the function's first parameter (`self`, whatever its name), None where
    there is none or the function binds that name to something else.
    """

    def entered(self, site: Site, owner: object) -> None:
        """Handle a call that began (a generator's: at its first resume).

        Its parameters follow as `bound`.
        """

    def bound(self, site: Site, value: object, owner: object) -> None:
        """Handle a name that was just bound; `site.kind` is "param" for a call's parameters."""

    def polled(self, site: Site, value: object, owner: object) -> None:
        """Handle a statement that may have changed the name's object in place, or its contents."""

    def deleted(self, site: Site, owner: object) -> None:
        """Handle a name that was deleted by `del`."""

    def returned(self, site: Site, value: object, owner: object) -> None:
        """Handle the value that the call will return; `finally` blocks may still run."""

    def yielded(self, site: Site, value: object, owner: object) -> None:
        """Handle the value that a generator yields; it stops until `resumed`."""

    def resumed(self, site: Site, owner: object) -> None:
        """Handle a generator that goes on after a yield, but not by an exception thrown in."""

    def raised(self, site: Site, error: BaseException, owner: object) -> None:
        """Handle an exception that leaves the call (GeneratorExit: closed); `left` follows."""

    def left(self, site: Site, owner: object) -> None:
        """Handle the end of the call, by a return or an exception."""

    def line(self, site: Site, owner: object) -> None:
        """Handle a line that is about to run; only for targets with `lines`."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to follow in one function.

    `wanted` is asked once per name as it is written in the source. `inner` names a function
    defined inside `function` ("inner", "Local.method", "inner.innermost"): that one is followed,
    in all the functions created from then on, and not `function` itself.
    """

    function: FunctionType
    wanted: Callable[[str], bool]
    returns: bool = False
    lines: bool = False
    polls: bool = False
    inner: str = ""
