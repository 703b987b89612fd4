"""How much to record, and when: `Limits` and `schedule`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from clew.errors import ClewError


@dataclass(frozen=True, slots=True)
class Limits:
    """Where recording holds back; what was left out is listed once in `coverage`.

    Past `bytes` of data, or `seconds` after the start, values keep only their metadata. A value
    of more than `elements` elements keeps only its statistics. Only every `sample`-th value keeps
    its data. After `events` events nothing more is recorded, but the end of calls that are open
    then, and an exception that ends the block. At most `queue` bytes wait to be
    written to `out=`, which is what a kill may lose of what nobody has flushed; the program waits
    while there are more. With `last` about so many events are there, the newest: whole steps fall
    out, the oldest first, and their bytes make room for others.

    >>> Limits(bytes=1_000_000, last=10_000).last
    10000
    """

    bytes: int | None = 16 << 30
    events: int | None = None
    elements: int | None = None
    seconds: float | None = None
    sample: int = 1
    queue: int = 64 << 20
    last: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            never_none = field.name in ("sample", "queue")
            if (value is None and never_none) or (
                value is not None and (isinstance(value, bool) or not value > 0)
            ):
                wanted = "a positive number" + ("" if never_none else ", or None")
                raise ClewError(f"Limits({field.name}={value!r}): give {wanted}")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which steps are recorded; made by `schedule`."""

    skip_first: int
    wait: int
    active: int
    repeat: int

    def __call__(self, step: int) -> bool:
        """Return whether a step is recorded."""
        step -= self.skip_first
        if step < 0:
            return False
        cycle, position = divmod(step, self.wait + self.active)
        return position >= self.wait and (not self.repeat or cycle < self.repeat)


def schedule(
    skip_first: int = 0, wait: int = 0, active: int = 1, repeat: int = 0, every: int | None = None
) -> Schedule:
    """Record only some steps: skip some, then wait and record in turn, `repeat` times or for good.

    `every=N` is short for one recorded step in N. Steps begin with `Trace.step()`, or by
    themselves in a program that never calls it; what runs before the first one is step 0.

    >>> steps = schedule(skip_first=1, wait=2, active=1)
    >>> [step for step in range(9) if steps(step)]
    [3, 6]
    >>> [step for step in range(9) if schedule(every=4)(step)]
    [3, 7]
    """
    if every is not None:
        if (wait, active) != (0, 1):
            raise ClewError(f"schedule(every={every}) says what wait and active say: give only one")
        wait = every - 1
    given = {"skip_first": skip_first, "wait": wait, "active": active, "repeat": repeat}
    for name, value in given.items():
        least = 1 if name == "active" else 0
        if type(value) is not int or value < least:
            raise ClewError(f"schedule({name}={value!r}): give a whole number, {least} or more")
    return Schedule(skip_first, wait, active, repeat)
