"""The ranks of a distributed program, as a gather sees them: all meet, exchange, part.

In come bytes on every rank, out they come on rank 0. The group is Clew's own, so nothing here
mixes with the program's collectives, and every wait ends: with the others, or with `RanksApart`.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from clew.capture.torch_compat import own_group, unobserved, without_modes

# All ranks that gather come to their first gather within this time, however long the program lets
# them wait elsewhere: on a rank that does not trace, nobody would come.
_LONGEST_MEETING = timedelta(minutes=2)

# Traces that gather, in the order in which every rank makes them.
_traces = itertools.count()


class RanksApart(Exception):
    """The ranks could not exchange anything; the text says why."""


@dataclass(frozen=True, slots=True)
class Round:
    """What came of one exchange: steps and whether it was the last, of each rank.

    `messages` are what each rank sent, on rank 0; empty elsewhere.
    """

    steps: list[int]
    is_last: list[bool]
    messages: list[tuple[bytes, bytes]]


class Ranks:
    """All ranks of the program, or this process alone where there is one."""

    def __init__(self) -> None:
        self._name = f"clew/{next(_traces)}"
        # How often the ranks have met: each time under another name.
        self._meetings = 0
        self._group: Any = None
        self._store: Any = None
        self._rounds = 0
        self.rank, self.size = _rank_and_size()

    def exchange(self, is_last: bool, steps: int, head: bytes, data: bytes) -> Round:
        """Hand bytes to rank 0; returns when all ranks have. RanksApart if one does not come."""
        if self._group is None:
            self.rank, size = _rank_and_size()
            if size == 1 < self.size:
                raise RanksApart("torch.distributed was shut down before the values were gathered")
            self.size = size
        if self.size == 1:
            return Round([steps], [is_last], [(head, data)])
        try:
            with unobserved(), torch.no_grad(), without_modes():
                if self._group is None:
                    self._group = self._meet()
                self._rounds += 1
                self._store.set(f"round/{self.rank}", str(self._rounds))
                return self._exchange(is_last, steps, head, data)
        except RanksApart:
            raise
        except Exception as error:
            raise RanksApart(f"{self._missing()} in time, or ended ({_first(error)})") from error

    def part(self, in_peace: bool) -> None:
        """Leave the group, in peace when all do; else closed connections tell the others."""
        group, self._group = self._group, None
        if group is not None and in_peace:
            with contextlib.suppress(Exception), unobserved(), without_modes():
                group.barrier().wait()

    def _meet(self) -> Any:
        name = f"{self._name}/{self._meetings}"
        self._meetings += 1
        store, make, timeout = own_group(self.rank, self.size, name)
        self._store, self._rounds = store, 0
        store.set(f"here/{self.rank}", "")
        keys = [f"here/{rank}" for rank in range(self.size)]
        longest = min(timeout, _LONGEST_MEETING)
        try:
            store.wait(keys, longest)
        except Exception as error:
            missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
            raise RanksApart(
                f"rank{'s' * (len(missing) > 1)} {', '.join(missing)} did not come within "
                f"{longest.total_seconds():g} seconds; every rank has to trace with gather="
            ) from error
        return make()

    def _missing(self) -> str:
        """Which ranks have not come to this round, as far as anybody knows."""
        missing = []
        with contextlib.suppress(Exception):  # the store may be gone with its rank
            for rank in range(self.size):
                key = f"round/{rank}"
                if not self._store.check([key]) or int(self._store.get(key)) < self._rounds:
                    missing.append(str(rank))
        if not missing:
            return "another rank did not come"
        return f"rank{'s' * (len(missing) > 1)} {', '.join(missing)} did not come"

    def _exchange(self, is_last: bool, steps: int, head: bytes, data: bytes) -> Round:
        mine = torch.tensor([is_last, steps, len(head), len(data)], device="cpu")
        facts = [torch.empty_like(mine) for _ in range(self.size)]
        self._group.allgather([facts], [mine]).wait()
        listed = torch.stack(facts).tolist()
        # Every rank sends as much as the one that sends most: a gather knows one size only.
        longest = max(row[2] + row[3] for row in listed)
        messages = []
        if longest:
            received = self._gather(head + data, longest)
            messages = [
                (content[: row[2]], content[row[2] : row[2] + row[3]])
                for content, row in zip(received, listed, strict=False)
            ]
        return Round([row[1] for row in listed], [bool(row[0]) for row in listed], messages)

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


def _first(error: Exception) -> str:
    """What an error says first; gloo puts a place in its own source before it, advice after it."""
    text = re.sub(r"^\[[^\]]*\.cc:\d+\] ", "", str(error).partition("\n")[0])
    return text.partition(". ")[0] or type(error).__name__


def _rank_and_size() -> tuple[int, int]:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
