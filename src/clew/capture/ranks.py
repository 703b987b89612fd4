"""The ranks of a distributed program, as a gather sees them: all meet, give, part.

In come Python objects on every rank, out they come on rank 0. The group is Clew's own, so nothing
here mixes with the program's collectives, and every wait ends: with the others, or without them.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from clew.capture.torch_compat import own_group, unobserved, without_modes

# All ranks that gather come to their first gather within this time, however long the program lets
# them wait elsewhere: on a rank that does not trace, nobody would come.
_LONGEST_MEETING = timedelta(minutes=2)
_BETWEEN_LOOKS = 0.02

# Traces that gather, in the order in which every rank makes them.
_traces = itertools.count()


class RanksApart(Exception):
    """The ranks could not exchange anything; the text says why."""


@dataclass(frozen=True, slots=True)
class Round:
    """What came of one exchange: what each rank gave, on rank 0, and how many steps each has made.

    `is_over` tells that all ranks have given their last.
    """

    given: dict[int, list[Any]]
    steps: list[int]
    is_over: bool


class Ranks:
    """All ranks of the program, or this process alone where there is one.

    Once they have parted each goes on alone; `on_trouble` is told why, and what could not be sent.
    """

    def __init__(self, on_trouble: Callable[[str], Any]) -> None:
        self._on_trouble = on_trouble
        self._name = f"clew/{next(_traces)}"
        # How often the ranks have met: each time under another name.
        self._meetings = 0
        self._group: Any = None
        self._store: Any = None
        self._rounds = 0
        self.is_apart = False
        self.rank, self.size = _rank_and_size()

    def give(self, items: list[Any], steps: int = 0, is_last: bool = False) -> Round:
        """Hand a list to rank 0; returns when all ranks have, or when they are apart."""
        try:
            if not self.is_apart:
                return self._give(items, steps, is_last)
        except RanksApart as apart:
            self.part(str(apart))
        return Round({0: items} if self.rank == 0 else {}, [steps], is_over=True)

    def part(self, why: str) -> None:
        """Go on alone from here on; the others hear of it when they wait for this rank."""
        if self.size == 1 or self.is_apart:
            return
        self.is_apart = True
        with contextlib.suppress(Exception):  # the store may be gone with its rank
            if self._group is None:
                self._open_store()[0].set(f"gone/{self.rank}", "")
        self._group = None  # closed connections tell the others
        self._on_trouble(why)

    def _give(self, items: list[Any], steps: int, is_last: bool) -> Round:
        if self._group is None:
            self.rank, size = _rank_and_size()
            if size == 1 < self.size:
                raise RanksApart("torch.distributed was shut down before the values were gathered")
            self.size = size
        if self.size == 1:
            return Round({0: items}, [steps], is_last)
        message = b"" if self.rank == 0 else self._pickled(items)
        try:
            with unobserved(), torch.no_grad(), without_modes():
                if self._group is None:
                    self._group = self._meet()
                self._rounds += 1
                self._store.set(f"round/{self.rank}", str(self._rounds))
                facts, messages = self._exchange(is_last, steps, message)
                is_over = all(last for last, *_ in facts)
                if is_over:
                    self._leave()
        except RanksApart:
            raise
        except Exception as error:
            raise RanksApart(f"{self._missing()} in time, or ended ({_first(error)})") from error
        others = {rank: pickle.loads(m) for rank, m in enumerate(messages) if rank}
        given = {0: items, **others} if self.rank == 0 else {}
        return Round(given, [made for _, made, _ in facts], is_over)

    def _leave(self) -> None:
        """Part in peace: nobody closes a connection that another still uses."""
        group, self._group = self._group, None
        with contextlib.suppress(Exception):
            group.barrier().wait()

    def _pickled(self, items: list[Any]) -> bytes:
        try:
            return pickle.dumps(items)
        except Exception as error:  # the classes of some are known in this process alone
            left = [item for item in items if _is_pickled(item)]
            count = f"{len(items) - len(left)} of {len(items)} values"
            self._on_trouble(f"{count} cannot be sent to rank 0, and stay behind ({error})")
            return pickle.dumps(left)

    def _open_store(self) -> tuple[Any, Callable[[], Any], timedelta]:
        return own_group(self.rank, self.size, f"{self._name}/{self._meetings}")

    def _meet(self) -> Any:
        store, make, timeout = self._open_store()
        self._meetings += 1
        self._store, self._rounds = store, 0
        store.set(f"here/{self.rank}", "")
        longest = min(timeout, _LONGEST_MEETING).total_seconds()
        end = time.monotonic() + longest
        while missing := [n for n in range(self.size) if not store.check([f"here/{n}"])]:
            gone = [n for n in missing if store.check([f"gone/{n}"])]
            if gone:
                raise RanksApart(f"{_named(gone)} ended before values were gathered")
            if time.monotonic() > end:
                raise RanksApart(
                    f"{_named(missing)} did not come within {longest:g} seconds; "
                    "every rank has to trace with gather="
                )
            time.sleep(_BETWEEN_LOOKS)
        return make()

    def _missing(self) -> str:
        """Which ranks have not come to this round, as far as anybody knows."""
        missing = []
        with contextlib.suppress(Exception):  # the store may be gone with its rank
            for rank in range(self.size):
                key = f"round/{rank}"
                if not self._store.check([key]) or int(self._store.get(key)) < self._rounds:
                    missing.append(rank)
        return f"{_named(missing) if missing else 'another rank'} did not come"

    def _exchange(
        self, is_last: bool, steps: int, message: bytes
    ) -> tuple[list[list[int]], list[bytes]]:
        """Facts of all ranks (is it the last, steps, size), and on rank 0 their messages."""
        mine = torch.tensor([is_last, steps, len(message)], device="cpu")
        facts = [torch.empty_like(mine) for _ in range(self.size)]
        self._group.allgather([facts], [mine]).wait()
        listed: list[list[int]] = torch.stack(facts).tolist()
        # Every rank sends as much as the one that sends most: a gather knows one size only.
        received = self._gather(message, max(size for *_, size in listed))
        return listed, [m[:size] for m, (*_, size) in zip(received, listed, strict=False)]

    def _gather(self, message: bytes, longest: int) -> list[bytes]:
        mine = torch.zeros(longest, dtype=torch.uint8, device="cpu")
        if message:
            mine[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        options = distributed.GatherOptions()
        options.rootRank = 0
        if self.rank:
            self._group.gather([], [mine], options).wait()
            return []
        received: list[Tensor] = [torch.empty_like(mine) for _ in range(self.size)]
        self._group.gather([received], [mine], options).wait()
        return [bytes(part.numpy()) for part in received]


def _is_pickled(item: Any) -> bool:
    try:
        pickle.dumps(item)
    except Exception:
        return False
    return True


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _first(error: Exception) -> str:
    """What an error says first; gloo puts a place in its own source before it, advice after it."""
    text = re.sub(r"^\[[^\]]*\.cc:\d+\] ", "", str(error).partition("\n")[0])
    return text.partition(". ")[0] or type(error).__name__


def _rank_and_size() -> tuple[int, int]:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
