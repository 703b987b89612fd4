"""A cursor over the text of an address: reads segments, classes, call index, role and field.

In: text and a position. Out: the parts, or an AddressSyntaxError that points at the place.
Must not know: which kinds of addresses there are.
"""

from __future__ import annotations

import re
from typing import NoReturn

from clew.address.ranks import rank_fault
from clew.address.roles import ROLES, role_advice, word_at
from clew.address.segments import QUOTED_KEY, SUBSCRIPT, Segment, class_ranges, unquoted
from clew.errors import AddressSyntaxError

_CALL = re.compile(r"#([0-9]+)(?=:|\Z)")

# Brackets that parse as a class, but that people write with another meaning.
_MISREAD_CLASSES = (
    (
        r".*[.:/].*",
        "a class cannot hold '.', ':' or '/'",
        "write a key as ['a.b'], a range as [0-3]",
    ),
    (r"\^.*", "'^' does not negate a class", "write [!...]"),
    (r"-[0-9]+", "an index cannot be negative", "count from the front, [0]"),
    (
        r"[0-9]+-[0-9]{2,}|[0-9]{2,}-[0-9]+",
        "a class stands for one character, not for a number",
        "write [0-9] for one digit; 1[0-5] is 10 to 15",
    ),
)


def split(pattern: str) -> tuple[Segment, ...]:
    """Take a dotted pattern, without call or role, apart into segments.

    >>> split("cache['a.b'][0].*")
    ('cache', 'a.b', 0, '*')
    """
    return Cursor(pattern, in_address=False).segments() if pattern else ()


class Cursor:
    """A cursor over an address; each method reads from `pos` and moves it on."""

    def __init__(self, text: str, pos: int = 0, in_address: bool = True) -> None:
        self.text = text
        self.pos = pos
        # In a bare pattern ':', '#' and '@' are letters: there is no call, no role and no rank.
        self.in_address = in_address
        # Where the segment read last has its '#' and its first '@'.
        self.hash_at: int | None = None
        self.rank_at: int | None = None

    def fail(self, what: str, at: int, instead: str) -> NoReturn:
        raise AddressSyntaxError(what, self.text, at, instead)

    def at(self, character: str) -> bool:
        return self.text.startswith(character, self.pos)

    def at_end(self) -> bool:
        return self.pos >= len(self.text)

    def at_tail(self) -> bool:
        """Return whether the call index or the role begins here."""
        if not self.in_address:
            return False
        return self.at(":") or _CALL.match(self.text, self.pos) is not None

    def segments(self) -> tuple[Segment, ...]:
        """Read segments and subscripts up to the call index, the role or the end."""
        found: list[Segment] = [self.segment()]
        found += self.subscripts()
        while self.at("."):
            self.pos += 1
            found.append(self.segment())
            found += self.subscripts()
        if self.in_address:
            self.refuse_rank()
        if not self.at_end() and not self.at_tail():
            self.fail("text directly after ']'", self.pos, "write a '.' in between")
        if self.in_address and self.hash_at is not None and not self.at("#"):
            self.fail(
                "'#' is not followed by just a number",
                self.hash_at,
                "write '#2' for the third call, nothing for every call, '#2:out[0]' for an item "
                "of the third output, and quote a name that has a '#': ['a#b']",
            )
        return tuple(found)

    def refuse_rank(self) -> None:
        """Refuse an '@' here or in the segment before: a rank at the very end was read already."""
        at = self.pos if self.rank_at is None and self.at("@") else self.rank_at
        if at is not None:
            self.fail(*rank_fault(self.text, at))

    def segment(self) -> Segment:
        """Read one name, glob or quoted key."""
        start, self.hash_at, self.rank_at = self.pos, None, None
        if quoted := QUOTED_KEY.match(self.text, start):
            self.pos = quoted.end()
            return unquoted(quoted)
        while not (self.at_end() or self.at(".") or self.at_tail()):
            character = self.text[self.pos]
            if character == "[":
                if self.pos > start and SUBSCRIPT.match(self.text, self.pos):
                    break
                self.character_class(opens_segment=self.pos == start)
                continue
            if character in "]'\"":
                self.fail(f"stray {character}", self.pos, "write a quoted key as ['key']")
            if character == "#":
                self.hash_at = self.pos
            if character == "@" and self.rank_at is None:
                self.rank_at = self.pos
            self.pos += 1
        if self.pos == start:
            self.fail("a name is missing", start, "write a name, or '*' for any")
        return self.text[start : self.pos]

    def subscripts(self) -> list[Segment]:
        """Read `[0]` and `['key']` as often as they come."""
        found: list[Segment] = []
        while self.at("["):
            subscript = SUBSCRIPT.match(self.text, self.pos)
            if subscript is None:
                start = self.pos
                self.character_class(opens_segment=False)
                self.fail("a class directly after a subscript or role", start, "write '.[...]'")
            digits = subscript["index"]
            found.append(unquoted(subscript) if digits is None else self.number(digits))
            self.pos = subscript.end()
        return found

    def character_class(self, opens_segment: bool) -> None:
        """Read `[...]` as one character of a glob; refuse brackets that were probably meant
        otherwise.
        """
        start = self.pos
        if self.text.startswith(("'", '"'), start + 1):
            self.fail("the quoted key does not end", start, "write it as ['key']")
        first = start + 2 if self.text.startswith("!", start + 1) else start + 1
        # As in glob, a ']' in first position is a member of the class.
        end = self.text.find("]", first + 1)
        if end < 0:
            self.fail("'[' is empty or never closed", start, "write [0], ['key'] or [0-3]")
        body = self.text[start + 1 : end]
        for misread, what, instead in _MISREAD_CLASSES:
            if re.fullmatch(misread, body, re.DOTALL):
                self.fail(what, start, instead)
        if not opens_segment and re.fullmatch("[0-9]+", body):
            self.fail("an index has no leading zero", start, "write [2], or [0-2] for a class")
        for low, high in class_ranges(body.removeprefix("!")):
            if low > high:
                self.fail(f"the range {low}-{high} is empty", start, f"write [{high}-{low}]")
        self.pos = end + 1

    def number(self, digits: str) -> int:
        # Python refuses to parse numbers of some thousand digits.
        if len(digits) > 18:
            self.fail("the number is too large", self.pos, "write a number below 10**18")
        return int(digits)

    def call(self) -> int | None:
        """Read `#2` if it is there."""
        found = _CALL.match(self.text, self.pos)
        if found is None:
            return None
        number = self.number(found[1])
        self.pos = found.end()
        return number

    def role(self) -> str | None:
        """Read `:in` if it is there."""
        if not self.at(":"):
            return None
        self.pos += 1
        word = word_at(self.text, self.pos)
        if word not in ROLES:
            what = f"{word[:40]!r} is not a role" if word else "no role after ':'"
            self.fail(what, self.pos, role_advice(word))
        self.pos += len(word)
        return word

    def field(self, role: str | None) -> tuple[Segment, ...]:
        """Read the path inside the value that follows a role."""
        start = self.pos
        found = tuple(self.subscripts())
        if self.at("."):
            self.pos += 1
            found += self.segments()
        if found and role in ("param", "buffer", "update"):
            self.fail(f"':{role}' takes no field", start, f"put the name first, fc.weight:{role}")
        return found
