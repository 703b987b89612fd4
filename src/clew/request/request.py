"""What `clew.trace` was asked for: its arguments, checked and parsed.

Input: the arguments as users write them. Output: a `Request`, or a ClewError that says what to
write instead.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from clew.address import Address, parse, split_rank
from clew.errors import ClewError
from clew.events.outputs import Hdf5, check_out
from clew.events.vocabulary import ENGINES, LEVELS, VALUES
from clew.request.callbacks import Callbacks
from clew.request.exist import checked_exist
from clew.request.limits import Limits, Schedule

if TYPE_CHECKING:
    from clew.events.live_events import Listener

COMPILED = ("opaque", "eager")
_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Request:
    """What `clew.trace` was asked for.

    `followed` has the addresses with callbacks, by their texts. `live` is True for the log that is
    printed. `last_steps` says how many steps are kept at least, None for all.
    """

    level: str
    values: str
    capture: list[Address]
    followed: dict[str, tuple[Address, Callbacks]]
    gather: int | None
    live: Listener | bool
    compiled: str
    out: str | os.PathLike[str] | Literal[False] | None
    exist: str
    schedule: Schedule | None
    limits: Limits
    redact: bool
    name: str | None
    watch: tuple[str, ...] = ()
    engine: str = "auto"
    last_steps: int | None = None

    @property
    def addresses(self) -> list[Address]:
        """Return every address asked for, once."""
        found = {address.text: address for address in self.capture}
        return list((found | {text: a for text, (a, _) in self.followed.items()}).values())

    def on_rank(self, rank_of_process: Callable[[], int]) -> Request:
        """Leave out the addresses of other ranks, which have nothing to match in this process."""
        if not (self.capture or self.followed or self.watch):
            return self
        here = (None, rank_of_process())
        return replace(
            self,
            capture=[address for address in self.capture if address.rank in here],
            followed={t: found for t, found in self.followed.items() if found[0].rank in here},
            watch=tuple(name for name, of in map(split_rank, self.watch) if of in here),
        )


def request_of(
    level: str,
    values: str,
    capture: Any,
    watch: Any,
    callbacks: Any,
    gather: Any,
    live: Any,
    compiled: str,
    out: Any,
    exist: str,
    schedule: Any,
    limits: Any,
    redact: bool,
    name: str | None,
    engine: str,
) -> Request:
    """Check the arguments of `clew.trace`."""
    asks_for_more = (
        capture != () or watch != () or live is not False or exist != "keep"
        or not (callbacks is gather is out is schedule is limits is None)
    )  # fmt: skip
    if not asks_for_more:
        try:
            return _plain_request(level, values, compiled, redact, name, engine)
        except TypeError:  # one has no hash, and is none of the texts below
            pass
    _check_choices(level, values, compiled, engine)
    if out is not False and out is not None:
        _check("out", out, (str, os.PathLike, Hdf5), "a path or a URL, False to keep nothing")
        check_out(out)
    if limits is not None:
        _check("limits", limits, (Limits,), "clew.Limits(...)")
    if schedule is not None and not callable(schedule):
        raise ClewError(f"schedule={schedule!r}: give clew.schedule(...), or None")
    request = Request(
        level, values,
        [parse(text) for text in _texts("capture", capture, "addresses such as 'layers.0:in'")],
        followed_addresses(callbacks, gather), gather, _checked_live(live), compiled,
        out, checked_exist(exist), schedule, limits or _LIMITS, redact, name,
        _texts("watch", watch, "names of variables"), engine,
    )  # fmt: skip
    if gather is not None:
        _check_gathered(request.addresses)
    return request


@functools.lru_cache(maxsize=64)
def _plain_request(
    level: str, values: str, compiled: str, redact: bool, name: str | None, engine: str
) -> Request:
    """Check the arguments of a trace that asks for nothing more than most, once for all of them."""
    _check_choices(level, values, compiled, engine)
    return Request(
        level, values, [], {}, None, False, compiled, None, "keep", None, _LIMITS, redact, name,
        engine=engine,
    )  # fmt: skip


def _check_choices(level: str, values: str, compiled: str, engine: str) -> None:
    for what, given, allowed in (
        ("level", level, LEVELS),
        ("values", values, VALUES),
        ("compiled", compiled, COMPILED),
        ("engine", engine, ENGINES),
    ):
        if given not in allowed:
            options = ", ".join(repr(option) for option in allowed)
            raise ClewError(f"{what}={given!r} is not one of {options}")


def _check_gathered(addresses: Iterable[Address]) -> None:
    """Refuse a rank where values are gathered: rank 0 puts together those of every rank."""
    for address in addresses:
        if address.rank is not None:
            raise ClewError(
                f"{address.text!r} names rank {address.rank}, and gather= brings the values of "
                f"every rank to rank 0; write {split_rank(address.text)[0]!r}"
            )


def _check(what: str, given: Any, classes: tuple[type, ...], wanted: str) -> None:
    if not isinstance(given, classes):
        raise ClewError(f"{what}={given!r}: give {wanted}, or None")


def _texts(what: str, given: Any, wanted: str) -> tuple[str, ...]:
    """Return one text or several as a tuple."""
    if given == ():
        return ()
    texts = (given,) if isinstance(given, str) else given
    if isinstance(texts, Iterable):
        texts = tuple(texts)
        if all(isinstance(text, str) for text in texts):
            return texts
    raise ClewError(f"{what}={given!r}: give {wanted}, one or a list of them")


def _checked_live(live: Any) -> Listener | bool:
    if isinstance(live, bool):
        return live
    if not (hasattr(live, "begins") and hasattr(live, "ends")):
        raise ClewError(f"live={live!r}: give True, False, or a listener with begins and ends")
    listener: Listener = live
    return listener


def followed_addresses(callbacks: Any, gather: Any) -> dict[str, tuple[Address, Callbacks]]:
    """Check the addresses with callbacks, and parse them."""
    if gather is not None and (type(gather) is not int or gather < 1):
        raise ClewError(f"gather={gather!r}: give the number of steps between two gathers, or None")
    if callbacks is None:
        return {}
    if not isinstance(callbacks, Mapping):
        raise ClewError(
            f"callbacks is of type {type(callbacks).__name__}; "
            "give a dict of address to clew.Callbacks"
        )
    found = {}
    for text, given in callbacks.items():
        if not isinstance(given, Callbacks):
            raise ClewError(
                f"callbacks[{text!r}] is of type {type(given).__name__}; "
                "give clew.Callbacks(save=...)"
            )
        address = parse(text)
        if address.kind == "line":
            raise ClewError(f"callbacks[{text!r}]: a line has no value; name a variable of it")
        if gather is None and given.is_for_gather:
            raise ClewError(
                f"callbacks[{text!r}] has before_gather or after_gather, and nothing is gathered; "
                "say every how many steps: clew.trace(gather=N)"
            )
        found[text] = (address, given)
    return found


def models_of(model: Any, module_class: type) -> dict[str, Any]:
    """Return the models that give the names, by the path of each."""
    if model is None:
        return {}
    if isinstance(model, module_class):
        return {"": model}
    if isinstance(model, Mapping) and all(
        isinstance(name, str) and isinstance(m, module_class) for name, m in model.items()
    ):
        return dict(model)
    decorator = "; a decorator needs parentheses: @clew.trace()" if inspect.isroutine(model) else ""
    raise ClewError(
        f"model is of type {type(model).__name__}; give an nn.Module, a dict of name to nn.Module, "
        f"or None to name modules by their class{decorator}"
    )
