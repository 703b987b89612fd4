"""What is seen inside a running function, and who is told.

A `Site` is one place in one function: a binding, a return, a line. A `Target` says what to follow
in a function, and a `Probe` is told at each site as it runs. Must not know: how it is done.
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
    Python does not tell them. `name` is the variable, or "".
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
    """Is told what happens; no method may raise.

    `owner` is the object of the function's first parameter (`self`, whatever its name), None where
    there is none or the function gives that name to something else.
    """

    def entered(self, site: Site, owner: object) -> None:
        """A call began (a generator's: at its first resume); its parameters follow as `bound`."""

    def bound(self, site: Site, value: object, owner: object) -> None:
        """A name was just bound; `site.kind` is "param" for a parameter at the beginning."""

    def polled(self, site: Site, value: object, owner: object) -> None:
        """A statement ran that may have changed the name's object in place, or what it holds."""

    def deleted(self, site: Site, owner: object) -> None:
        """A name was deleted by `del`."""

    def returned(self, site: Site, value: object, owner: object) -> None:
        """The call evaluated what it returns; `finally` blocks may still run."""

    def yielded(self, site: Site, value: object, owner: object) -> None:
        """A generator hands out a value and stops until `resumed`."""

    def resumed(self, site: Site, owner: object) -> None:
        """A generator goes on after a yield; not told where an exception is thrown in."""

    def raised(self, site: Site, error: BaseException, owner: object) -> None:
        """An exception leaves the call (GeneratorExit: a generator was closed); `left` follows."""

    def left(self, site: Site, owner: object) -> None:
        """The call is over, in whichever way."""

    def line(self, site: Site, owner: object) -> None:
        """A line is about to run; only for targets with `lines`."""


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
