"""The options of `clew run` as data, whether they come from the command line or from a file.

Input: words, or the table `[tool.clew]`. Output: `RunOptions`, and the same as words again, which
is how they reach the process of the program. Must not know: torch, the program.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from clew.address import nearest
from clew.errors import ClewError
from clew.events.vocabulary import ENGINES, LEVELS, VALUES
from clew.request.limits import Limits, Schedule, schedule
from clew.request.request import Request, request_of

if TYPE_CHECKING:
    from clew.events.live_events import Listener

# About how many events are kept of a run of any length, unless all are asked for.
LAST = 200_000


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What was asked of `clew run`; the fields are named as the options are."""

    level: str = "ops"
    values: str = "meta"
    capture: tuple[str, ...] = ()
    watch: tuple[str, ...] = ()
    model: str | None = None
    schedule: str | None = None
    ranks: str | None = None
    out: str | None = None
    live: bool = False
    engine: str = "auto"
    guard: bool = False
    all: bool = False
    children: bool = False
    json: bool = False
    # Set by Clew itself: these have the defaults of pyproject.toml; they are for a child process.
    complete: bool = False
    child: bool = False

    def request(
        self, name: str | None = None, out: str | None = None, live: Listener | bool = False
    ) -> Request:
        """Return what `clew.trace` is asked for; ClewError if an option has no meaning."""
        self.records_rank(0)
        limits = None if self.all else Limits(last=LAST)
        return request_of(
            self.level, self.values, self.capture, self.watch, None, None, live, "opaque",
            out, "keep", schedule_of(self.schedule), limits, False, name, self.engine,
        )  # fmt: skip

    def records_rank(self, rank: int) -> bool:
        """Return whether a rank is among those that were asked for."""
        return self.ranks is None or rank in _ranks(self.ranks)

    def words(self) -> list[str]:
        """Return the options as words of a command line."""
        found: list[str] = []
        for field in fields(self):
            given = getattr(self, field.name)
            if given == field.default:
                continue
            flag = f"--{field.name}"
            if given is True:
                found.append(flag)
            else:
                texts = (given,) if isinstance(given, str) else given
                found += [f"{flag}={text}" for text in texts]
        return found


class _Option(NamedTuple):
    """One option: `kind` is "switch", "word", or "words" for one that may be repeated."""

    name: str
    kind: str
    metavar: str
    what: str
    choices: tuple[str, ...] = ()


# Those that users write; in a file they have the same names.
OPTIONS = (
    _Option("level", "word", "", "what is recorded (ops)", LEVELS),
    _Option("values", "word", "", "what is kept of every tensor (meta)", VALUES),
    _Option("capture", "words", "ADDRESS", "keep the data of these values; may be repeated"),
    _Option("watch", "words", "NAME", "follow variables of this name; may be repeated"),
    _Option(
        "model", "word", "NAME",
        "variable of the program that holds the model, or pkg.module:NAME; addresses begin there",
    ),
    _Option("schedule", "word", "SPEC", "record some steps: every=10, or wait=8,active=1"),
    _Option("ranks", "word", "RANKS", "record these ranks only: 0,2-3"),
    _Option("out", "word", "FOLDER", "folder or URL of the trace (./.clew/PROGRAM.clew)"),
    _Option("live", "switch", "", "print each event to the error stream as it happens"),
    _Option("engine", "word", "", "what records (auto)", ENGINES),
    _Option("guard", "switch", "", "end the program where an op's NaN or Inf matters"),
    _Option("all", "switch", "", f"keep every event, not about the last {LAST:,}"),
    _Option("children", "switch", "", "record Python processes that the program starts, too"),
)  # fmt: skip
_SHORT = {"-o": "--out"}
_SCHEDULE = ("skip_first", "wait", "active", "repeat", "every")
_INTERNAL = ("complete", "child")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser; what is not given is None."""
    for option in OPTIONS:
        names = [short for short, long in _SHORT.items() if long == f"--{option.name}"]
        names.append(f"--{option.name}")
        if option.kind == "switch":
            parser.add_argument(*names, action="store_true", default=None, help=option.what)
        elif option.choices:
            parser.add_argument(*names, choices=option.choices, help=option.what)
        else:
            action = "append" if option.kind == "words" else "store"
            parser.add_argument(*names, action=action, metavar=option.metavar, help=option.what)


def split_program(words: Sequence[str], more: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return the words that are options of `clew run`, and those that name the program.

    `more` lists options with a value that another command has besides.

    >>> split_program(["--values", "stats", "train.py", "--values", "3"])
    (['--values', 'stats'], ['train.py', '--values', '3'])
    >>> split_program(["-o", "x.clew", "-m", "pkg.train", "--all"])
    (['-o', 'x.clew'], ['-m', 'pkg.train', '--all'])
    """
    with_value = {f"--{option.name}" for option in OPTIONS if option.kind != "switch"}
    with_value |= {*_SHORT, *more}
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return list(words[:at]), list(words[at + 1 :])
        # A lone "-" is a program, read from standard input.
        if word == "-" or not word.startswith("-") or word.startswith("-m"):
            break
        at += 2 if word in with_value else 1
    return list(words[:at]), list(words[at:])


def options_of(given: Mapping[str, Any], defaults: RunOptions) -> RunOptions:
    """Return the options that were given, and for the others the defaults."""
    names = {field.name for field in fields(RunOptions)}
    found = {name: value for name, value in given.items() if name in names and value is not None}
    for name, value in found.items():
        if isinstance(value, list):
            found[name] = tuple(value)
    return replace(defaults, **found)


class _Words(argparse.ArgumentParser):
    """Parses options where no command line is there to complain on."""

    def error(self, message: str) -> NoReturn:
        raise ClewError(message)


def options_from_words(words: Sequence[str]) -> dict[str, Any]:
    """Parse the options of `clew run` alone; ClewError if there is anything else."""
    parser = _Words(prog="clew run", add_help=False, allow_abbrev=False)
    add_options(parser)
    for name in ("json", *_INTERNAL):
        parser.add_argument(f"--{name}", action="store_true", default=None)
    return vars(parser.parse_args(words))


def options_from_table(table: Mapping[str, Any], where: str) -> RunOptions:
    """Check the table of a file and return its options; errors name the file and the key."""
    known = {option.name: option for option in OPTIONS}
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"[tool.clew] {key}"
        if key not in known:
            near = ", ".join(nearest(key, known, 1))
            raise ClewError(f"{where}: {name} is not an option of clew run; the nearest is {near}")
        found[key] = _from_table(known[key], value, f"{where}: {name} = {value!r}")
    options = RunOptions(**found)
    for key in found:
        try:
            replace(RunOptions(), **{key: found[key]}).request()
        except ClewError as wrong:
            raise ClewError(f"{where}: [tool.clew] {key}: {wrong}") from None
    return options


def _from_table(option: _Option, value: Any, said: str) -> Any:
    """Return the value of a key, as the option of its name would have it."""
    if option.kind == "switch":
        if not isinstance(value, bool):
            raise ClewError(f"{said}: give true or false")
        return value
    if option.kind == "words":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ClewError(f"{said}: give a text, or a list of texts")
        return tuple(texts)
    if option.name == "ranks" and isinstance(value, list):
        value = ",".join(map(str, value))
    elif option.name == "ranks" and type(value) is int:
        value = str(value)
    elif option.name == "schedule" and isinstance(value, Mapping):
        value = ",".join(f"{key}={number}" for key, number in value.items())
    if not isinstance(value, str):
        raise ClewError(f"{said}: give a text")
    if option.choices and value not in option.choices:
        raise ClewError(f"{said} is not one of {', '.join(option.choices)}")
    return value


def schedule_of(text: str | None) -> Schedule | None:
    """Parse `every=10` or `skip_first=2,wait=8,active=1,repeat=3`.

    >>> schedule_of("wait=2,active=1")
    Schedule(skip_first=0, wait=2, active=1, repeat=0)
    """
    if text is None:
        return None
    numbers: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name not in _SCHEDULE or not number.isdecimal():
            raise ClewError(
                f"--schedule {text!r}: {part.strip()!r} is not understood; write every=10, or some "
                "of skip_first=N, wait=N, active=N and repeat=N with commas"
            )
        numbers[name] = int(number)
    return schedule(**numbers)


def _ranks(text: str) -> set[int]:
    """Parse `0,2-3`."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ClewError(f"--ranks {text!r}: write numbers and spans of ranks, such as 0,2-3")
        found.update(range(int(first), int(last or first) + 1))
    return found
