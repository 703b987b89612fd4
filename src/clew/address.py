"""The address language: one way to name a module, value, local, operation or source line.

In: an address as text, and names as text. Out: an `Address` (data), yes or no, near misses.
Must not know: what a name stands for. Where a module path ends and a method or variable
begins is for the resolver, which knows the names that exist.
"""

from __future__ import annotations

import difflib
import functools
import heapq
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from clew.errors import AddressSyntaxError, ClewError

Segment: TypeAlias = str | int

ROLES = ("in", "out", "grad", "grad_in", "param", "buffer", "update", "state")

# What people write first; each must lead to the right word, not to a function of that name.
_MISTAKEN_ROLES = {
    "arg": "in", "args": "in", "input": "in", "inputs": "in",
    "output": "out", "outputs": "out", "result": "out",
    "grads": "grad", "gradient": "grad", "gradients": "grad",
    "grad_out": "grad", "grad_output": "grad", "grad_input": "grad_in",
    "params": "param", "parameter": "param", "parameters": "param",
    "buf": "buffer", "buffers": "buffer",
}  # fmt: skip

_QUOTED = r"\['(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'\]|\[\"(?P<double>[^\"\\]*(?:\\.[^\"\\]*)*)\"\]"
_SUBSCRIPT = re.compile(rf"\[(?P<index>0|[1-9][0-9]*)\]|{_QUOTED}", re.DOTALL)
_KEY = re.compile(_QUOTED, re.DOTALL)
_CALL = re.compile(r"#([0-9]+)(?=:|\Z)")
_WORD = re.compile(r"[^.\[:#]*")
# What has a meaning of its own in an address; `#` has one only at its end.
_SIGN = re.compile(r"[:\[\]*?'\"]|^\s|\s$")
_PLAIN_KEY = re.compile(r"[^.\[\]*?'\"#:\s]+")

# Brackets that read as a class but, to whoever writes them, mean something else.
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


class Key(str):
    """A quoted segment: taken letter by letter, never as a pattern."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Address:
    """An address taken apart; `text` is what was written.

    kind      path                                segments
    path      dotted pattern, "" is the root      its parts: module, method, variable, keys
    op        op-name pattern                     its parts
    line      file pattern                        ()
    function  file or module before the colon     what follows: class, function, variable, keys
    """

    text: str
    kind: str
    path: str
    function: str | None = None
    line: int | None = None
    call: int | None = None
    role: str | None = None
    field: tuple[Segment, ...] = ()
    segments: tuple[Segment, ...] = ()

    def __str__(self) -> str:
        return self.text

    def splits(self) -> Iterator[tuple[str, tuple[Segment, ...]]]:
        """Yield every cut of the segments into a dotted name and the rest, longest name first."""
        for cut in range(len(self.segments), -1, -1):
            yield join(self.segments[:cut]), self.segments[cut:]


def parse(text: str) -> Address:
    """Take an address apart, or raise AddressSyntaxError.

    path[#call][:role[.field]]                  encoder.layers.*.self_attn#2:in.mask
    file.py:name[#call][:role[.field]]          dataset.py:get_item.video (or a dotted module)
    op:pattern[#call][:role[.field]]            op:aten._softmax*
    line:file:number                            line:model.py:57

    Brackets have three meanings. A quoted string is always a key: `cache['a.b']`. Digits
    directly after a name or another subscript are an index: `cache[0]`. Everything else is a
    class, one character as in glob: `[0-3]`, `[ab]`, `[!x]`, and, after a dot, `.[12].`.
    `#2` at the end or before a role is the third call; before a dot it belongs to the name,
    as in `MLP#2.fc`. A module that is called `op` or `line` is written `['op']:in`.

    >>> address = parse("encoder.layers.0:in.mask")
    >>> address.path, address.role, address.field
    ('encoder.layers.0', 'in', ('mask',))
    """
    if not isinstance(text, str):
        raise ClewError(
            f"an address is text such as 'encoder.layers.0', not {text!r}; "
            "events by their number are in .events, .modules and .ops"
        )
    if text != text.strip():
        at = 0 if text[0].isspace() else len(text.rstrip())
        raise AddressSyntaxError("space around it", text, at, "remove the space")
    if text.startswith("line:"):
        return _parse_line(text)
    if text.startswith("op:"):
        return _parse_op(text)
    colon = text.find(":")
    if colon > 0 and _names_function(text, colon):
        return _parse_function(text, colon)
    reader = _Reader(text)
    segments = () if reader.at_tail() or not text else reader.segments()
    return _finish(reader, "path", join(segments), segments)


def split(pattern: str) -> tuple[Segment, ...]:
    """Take a dotted pattern, without call or role, apart into segments.

    >>> split("cache['a.b'][0].*")
    ('cache', 'a.b', 0, '*')
    """
    return _Reader(pattern, in_address=False).segments() if pattern else ()


def join(segments: Iterable[Segment]) -> str:
    """Write segments as one dotted name; a `Key` is quoted where it needs to be.

    Indices become plain segments, as `matches` treats `cache[0]` and `cache.0` alike.

    >>> join(["cache", Key("a.b"), 0])
    "cache['a.b'].0"
    """
    text = ""
    for segment in segments:
        if isinstance(segment, Key) and not _PLAIN_KEY.fullmatch(segment):
            escaped = segment.replace("\\", "\\\\").replace("'", "\\'")
            text += f"['{escaped}']"
        else:
            text += f".{segment}" if text else str(segment)
    return text


@functools.lru_cache(maxsize=4096)
def written(name: str) -> str:
    """Write a dotted name so that it reads back as itself: segments with signs in them quoted.

    >>> written("convs.paper:cites.lin")
    "convs['paper:cites'].lin"
    """
    if not _SIGN.search(name):
        return name
    return join(Key(part) if _SIGN.search(part) else part for part in name.split("."))


def has_wildcard(pattern: str) -> bool:
    """Tell whether a pattern, or one segment of an address, can match more than one name."""
    return not isinstance(pattern, Key) and any(map(_is_glob, split(pattern)))


def matches(pattern: str, name: str) -> bool:
    """Tell whether a dotted name matches a dotted pattern.

    `*` and `?` stay within one segment, `**` as a segment is any number of segments, also none.

    >>> matches("encoder.**.self_*", "encoder.layers.0.self_attn")
    True
    """
    return compile_pattern(pattern)(name)


@functools.lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return the test `matches` makes, for use on many names."""
    segments = split(pattern)
    if not any(map(_is_glob, segments)):
        wanted = _subject(segments)
        return lambda name: _subject_of_name(name) == wanted
    fullmatch = re.compile(_regex(segments), re.DOTALL).fullmatch
    return lambda name: fullmatch(_subject_of_name(name)) is not None


def segment_matches(segment: Segment, name: Segment) -> bool:
    """Tell whether one segment of an address names this attribute, key or index."""
    if isinstance(segment, str) and _is_glob(segment):
        compiled = _compile_segment(segment)
        return compiled.fullmatch(_subject([Key(name)])) is not None
    return str(segment) == str(name)


def matches_op(pattern: str, name: str) -> bool:
    """Tell whether a pattern names an op: in full, without its overload, or by bare name.

    >>> [matches_op(p, "aten._softmax.default") for p in ("aten._softmax*", "_softmax", "aten")]
    [True, True, False]
    """
    test = compile_pattern(pattern)
    if test(name):
        return True
    parts = name.split(".")
    return len(parts) > 1 and (test(".".join(parts[:2])) or test(parts[1]))


def matches_file(pattern: str, file: str) -> bool:
    """Tell whether a file pattern names a file; a relative pattern matches from the end.

    >>> matches_file("models/*.py", "/home/me/models/vit.py")
    True
    """
    subject = file.replace(".", "\0").replace("/", ".") + "."
    return _compile_file(pattern).fullmatch(subject) is not None


class _Reader:
    """A cursor over an address; each method reads from `pos` and moves it on."""

    def __init__(self, text: str, pos: int = 0, in_address: bool = True) -> None:
        self.text = text
        self.pos = pos
        # In a bare pattern ':' and '#' are letters of the name: there is no call and no role.
        self.in_address = in_address
        self.hash_at: int | None = None

    def fail(self, what: str, at: int, instead: str) -> NoReturn:
        raise AddressSyntaxError(what, self.text, at, instead)

    def at(self, character: str) -> bool:
        return self.text.startswith(character, self.pos)

    def at_end(self) -> bool:
        return self.pos >= len(self.text)

    def at_tail(self) -> bool:
        """Tell whether the call index or the role begins here."""
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

    def segment(self) -> Segment:
        """Read one name, glob or quoted key."""
        start, self.hash_at = self.pos, None
        if quoted := _KEY.match(self.text, start):
            self.pos = quoted.end()
            return _key(quoted)
        while not (self.at_end() or self.at(".") or self.at_tail()):
            character = self.text[self.pos]
            if character == "[":
                if self.pos > start and _SUBSCRIPT.match(self.text, self.pos):
                    break
                self.character_class(opens_segment=self.pos == start)
                continue
            if character in "]'\"":
                self.fail(f"stray {character}", self.pos, "write a quoted key as ['key']")
            if character == "#":
                self.hash_at = self.pos
            self.pos += 1
        if self.pos == start:
            self.fail("a name is missing", start, "write a name, or '*' for any")
        return self.text[start : self.pos]

    def subscripts(self) -> list[Segment]:
        """Read `[0]` and `['key']` as often as they come."""
        found: list[Segment] = []
        while self.at("["):
            subscript = _SUBSCRIPT.match(self.text, self.pos)
            if subscript is None:
                start = self.pos
                self.character_class(opens_segment=False)
                self.fail("a class directly after a subscript or role", start, "write '.[...]'")
            digits = subscript["index"]
            found.append(_key(subscript) if digits is None else self.number(digits))
            self.pos = subscript.end()
        return found

    def character_class(self, opens_segment: bool) -> None:
        """Read `[...]` as one character of a glob; refuse what was hardly meant so."""
        start = self.pos
        if self.text.startswith(("'", '"'), start + 1):
            self.fail("the quoted key does not end", start, "write it as ['key']")
        first = start + 2 if self.text.startswith("!", start + 1) else start + 1
        # As in glob, a ']' in first place is a member of the class.
        end = self.text.find("]", first + 1)
        if end < 0:
            self.fail("'[' is empty or never closed", start, "write [0], ['key'] or [0-3]")
        body = self.text[start + 1 : end]
        for misread, what, instead in _MISREAD_CLASSES:
            if re.fullmatch(misread, body, re.DOTALL):
                self.fail(what, start, instead)
        if not opens_segment and re.fullmatch("[0-9]+", body):
            self.fail("an index has no leading zero", start, "write [2], or [0-2] for a class")
        for low, high in _ranges(body.removeprefix("!")):
            if low > high:
                self.fail(f"the range {low}-{high} is empty", start, f"write [{high}-{low}]")
        self.pos = end + 1

    def number(self, digits: str) -> int:
        # Python itself refuses to read numbers of some thousand digits.
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
        word = _word(self.text, self.pos)
        if word not in ROLES:
            what = f"{word[:40]!r} is not a role" if word else "no role after ':'"
            self.fail(what, self.pos, _role_advice(word))
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


def _finish(reader: _Reader, kind: str, path: str, segments: tuple[Segment, ...]) -> Address:
    """Read what may follow any path: call index, role, field."""
    # `Dataset.get_item` may be a method, or a function and its variable; a lone name cannot.
    function = join(segments) if kind == "function" and len(segments) == 1 else None
    call = reader.call()
    role = reader.role()
    field = reader.field(role) if role else ()
    if reader.at("#"):
        reader.fail("the call index comes before the role", reader.pos, "write fc#2:out")
    if not reader.at_end():
        what = "a second role" if reader.at(":") else "text directly after ']'"
        reader.fail(what, reader.pos, "write one role and its field, :in.mask")
    return Address(reader.text, kind, path, function, None, call, role, field, segments)


def _parse_op(text: str) -> Address:
    reader = _Reader(text, len("op:"))
    name = text.removeprefix("op:")
    if "::" in name:
        dotted = name.replace("::", ".")
        reader.fail("'::' does not separate names", text.index("::", 3), f"write op:{dotted}")
    segments = reader.segments()
    return _finish(reader, "op", join(segments), segments)


def _parse_line(text: str) -> Address:
    file, colon, digits = text.removeprefix("line:").rpartition(":")
    if not (colon and file and re.fullmatch("[1-9][0-9]{0,17}", digits)):
        raise AddressSyntaxError(
            "a line address is a file and a line number",
            text,
            len(text) - len(digits),
            "write line:model.py:57; a module called 'line' is ['line']",
        )
    _check_file(text, file, len("line:"))
    return Address(text, "line", file, line=int(digits))


def _parse_function(text: str, colon: int) -> Address:
    _check_file(text, text[:colon], 0)
    reader = _Reader(text, colon + 1)
    if re.fullmatch("[0-9]+", text[colon + 1 :]):
        reader.fail("a function cannot be a number", colon + 1, f"for the line, write line:{text}")
    segments = reader.segments()
    return _finish(reader, "function", text[:colon], segments)


def _check_file(text: str, file: str, offset: int) -> None:
    """Compile a file pattern early, so that an error shows the whole address."""
    try:
        _compile_file(file)
    except AddressSyntaxError as error:
        at = offset + error.position
        raise AddressSyntaxError(error.what, text, at, error.instead) from None


def _names_function(text: str, colon: int) -> bool:
    """Tell whether the colon separates a file or module from a function in it."""
    where, word = text[:colon], _word(text, colon + 1)
    if word in ROLES or "'" in where or '"' in where:
        return False
    if where.endswith(".py"):
        return True
    if word in _MISTAKEN_ROLES or not all(part.isidentifier() for part in where.split(".")):
        return False
    alone = colon + 1 + len(word) == len(text)
    return bool(word) and not (alone and _nearest_role(word))


def _nearest_role(word: str) -> str | None:
    close = difflib.get_close_matches(word[:40].lower(), ROLES, 1, cutoff=0.75)
    return _MISTAKEN_ROLES.get(word.lower()) or (close[0] if close else None)


def _role_advice(word: str) -> str:
    role = _nearest_role(word)
    advice = f"write ':{role}'" if role else "the roles are :" + " :".join(ROLES)
    return f"{advice}; a local of a function is file.py:function.variable"


def _word(text: str, pos: int) -> str:
    found = _WORD.match(text, pos)
    return found[0] if found else ""


def _key(subscript: re.Match[str]) -> Key:
    quoted = subscript["double"] if subscript["single"] is None else subscript["single"]
    return Key(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))


# Matching works on one string per name in which every segment ends with a dot; a dot inside a
# key is written \0. So a dot is always a boundary, and the root, "", has no segment.

_ANY_SEGMENTS = r"(?:[^.]*\.)*?"
_GLOB_TOKEN = re.compile(r"(?P<run>\*+)|(?P<one>\?)|\[(?P<members>!?.[^\]]*)\]|[^*?\[]+", re.DOTALL)
_NAME_TOKEN = re.compile(rf"(?:{_SUBSCRIPT.pattern})(?=[.\[]|\Z)|\.|[^.\[]+|\[", re.DOTALL)


def _is_glob(segment: Segment) -> bool:
    return (
        isinstance(segment, str)
        and not isinstance(segment, Key)
        and ("*" in segment or "?" in segment or "[" in segment)
    )


def _subject(segments: Iterable[Segment]) -> str:
    return "".join(str(segment).replace(".", "\0") + "." for segment in segments)


def _subject_of_name(name: str) -> str:
    if "[" not in name:
        return name + "." if name else ""
    return _subject(_name_segments(name))


def _name_segments(name: str) -> list[str]:
    """Split a name that exists: brackets that are no subscript are letters, nothing is refused."""
    found: list[str] = []
    open_segment: str | None = ""
    for token in _NAME_TOKEN.finditer(name):
        is_key = token["single"] is not None or token["double"] is not None
        if is_key or (token["index"] is not None and open_segment != ""):
            if open_segment:
                found.append(open_segment)
            found.append(_key(token) if is_key else token["index"])
            open_segment = None
        elif token[0] == ".":
            if open_segment is not None:
                found.append(open_segment)
            open_segment = ""
        else:
            open_segment = (open_segment or "") + token[0]
    return found if open_segment is None else [*found, open_segment]


def _regex(segments: Sequence[Segment]) -> str:
    """Write segments as a regular expression that needs no exponential backtracking.

    What stands between two `**` has a fixed number of segments, so its first place is as good
    as any: once found there, it is not tried again (see `_atomic`).
    """
    groups = itertools.count()
    blocks = [""]
    for segment in segments:
        if segment == "**" and not isinstance(segment, Key):
            blocks.append("")
        else:
            blocks[-1] += _segment_regex(segment, groups)
    first, *rest = blocks
    if not rest:
        return first
    *middle, last = rest
    found = "".join(_atomic(_ANY_SEGMENTS + block, groups) for block in middle if block)
    return first + found + (_ANY_SEGMENTS + last if last else ".*")


def _segment_regex(segment: Segment, groups: Iterator[int]) -> str:
    if not _is_glob(segment):
        return re.escape(_subject([segment]))
    pieces = [""]
    for token in _GLOB_TOKEN.finditer(str(segment)):
        if token["run"]:
            pieces.append("")
        elif token["one"]:
            pieces[-1] += "[^.]"
        elif token["members"]:
            pieces[-1] += _class_regex(token["members"])
        else:
            pieces[-1] += re.escape(token[0].replace(".", "\0"))
    first, *rest = pieces
    if not rest:
        return first + r"\."
    *middle, last = rest
    found = "".join(_atomic("[^.]*?" + piece, groups) for piece in middle if piece)
    return first + found + "[^.]*" + last + r"\."


def _atomic(regex: str, groups: Iterator[int]) -> str:
    # Python 3.10 has no (?>...); a lookahead is never re-entered, which does the same.
    name = f"g{next(groups)}"
    return f"(?=(?P<{name}>{regex}))(?P={name})"


def _class_regex(members: str) -> str:
    ranges = _ranges(members.removeprefix("!"))
    inside = "".join(f"{re.escape(low)}-{re.escape(high)}" for low, high in ranges)
    if any(low <= "." <= high for low, high in ranges):
        inside += r"\0"
    return rf"(?!\.)[{'^' if members.startswith('!') else ''}{inside}]"


def _ranges(members: str) -> list[tuple[str, str]]:
    """List what a class holds as ranges; a '-' in first or last place stands for itself."""
    found = re.findall(r"(.)-(.)|(.)", members, re.DOTALL)
    return [(low or one, high or one) for low, high, one in found]


@functools.lru_cache(maxsize=1024)
def _compile_segment(segment: str) -> re.Pattern[str]:
    return re.compile(_segment_regex(segment, itertools.count()), re.DOTALL)


@functools.lru_cache(maxsize=256)
def _compile_file(pattern: str) -> re.Pattern[str]:
    reader = _Reader(pattern)
    while (bracket := pattern.find("[", reader.pos)) >= 0:
        reader.pos = bracket
        reader.character_class(opens_segment=True)
    parts = pattern.removeprefix("./").split("/")
    segments = parts if pattern.startswith("/") else ["**", *parts]
    return re.compile(_regex(segments), re.DOTALL)


# `nearest` compares closely only this many names; a cheap count chooses them.
_SHORTLIST = 128
_LONGEST_COMPARED = 200
_SPELLING = 3


def nearest(name: str, candidates: Iterable[str], n: int = 5) -> list[str]:
    """Return the `n` names closest to `name`, best first: what the user most likely meant.

    First the name itself, then the name in another case, then names that end with it (a
    forgotten prefix), then similar spelling. Ties are settled by the names alone.

    >>> nearest("layers.0", ["encoder.layers.0", "encoder.layers.1", "head"], n=2)
    ['encoder.layers.0', 'encoder.layers.1']
    """
    wanted = name.casefold()
    compared = wanted[-_LONGEST_COMPARED:]
    pairs = {compared[i : i + 2] for i in range(len(compared) - 1)} or {compared}
    scored: list[tuple[int, int, int, str]] = []
    for candidate in set(candidates):
        folded = candidate.casefold()
        rank = _rank(name, wanted, candidate, folded)
        shared = sum([pair in folded for pair in pairs]) if rank == _SPELLING else 0
        scored.append((rank, -shared, abs(len(folded) - len(wanted)), candidate))
    short = heapq.nsmallest(max(n, _SHORTLIST), scored)
    closeness = _closeness_to(compared)
    order = sorted(
        (rank, closeness(found) if rank == _SPELLING else (), length, _natural(found), found)
        for rank, _, length, found in short
    )
    return [found for *_, found in order[: max(n, 0)]]


def _rank(name: str, wanted: str, candidate: str, folded: str) -> int:
    if candidate == name:
        return 0
    if folded == wanted:
        return 1
    return 2 if folded.endswith("." + wanted) else _SPELLING


def _closeness_to(wanted: str) -> Callable[[str], tuple[float, ...]]:
    """Return a sort key: small for names spelled like `wanted`, as a whole or at their end."""
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    depth = wanted.count(".") + 1

    def likeness(text: str) -> float:
        matcher.set_seq1(text[-_LONGEST_COMPARED:])
        # Letters found in one stretch say more than the same letters scattered.
        return matcher.ratio() - 0.01 * len(matcher.get_matching_blocks())

    def closeness(candidate: str) -> tuple[float, ...]:
        folded = candidate.casefold()
        parts = folded.split(".")
        whole = likeness(folded)
        # A forgotten prefix counts little, so that the misspelt end still leads to its name.
        end = 0.9 * likeness(".".join(parts[-depth:])) if len(parts) > depth else whole
        return (-max(whole, end), -whole)

    return closeness


def _natural(name: str) -> list[tuple[int, str]]:
    """Order `layers.2` before `layers.10`."""
    runs = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(len(run) if run[0] in "0123456789" else 0, run) for run in runs]
