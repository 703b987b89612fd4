"""Send lists from every rank of a distributed program to rank 0, for `gather`.

Input: a list on every rank. Output: on rank 0, the lists of all ranks, round by round. Nothing
here is a collective: no rank waits for another while the program runs, so the ranks need not post
equally often. Rank 0 waits once, at its end, and gives up on ranks that send no sign of life.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

import torch
from torch import distributed

from clew.program_errors import pass_on
from clew.torch_compat import own_store, unobserved, without_modes

# Seconds that rank 0 waits, at its end, after the last sign of life of ranks that still run; and
# for ranks that never began: a rank that does not trace never will.
_PATIENCE = 30.0
_PATIENCE_TO_BEGIN = 5.0
_BETWEEN_LOOKS = 0.02
_BETWEEN_PULSES = 1.0
# Bytes in one entry of the store, which drops connections at 8 MiB.
_CHUNK = 1 << 22

# Numbers the traces that gather; every rank makes them in the same order.
_traces = itertools.count()

# The key, the items, and in the last message the number of steps.
Message: TypeAlias = tuple[Any, list[Any], int | None]


class Mail(Protocol):
    """How messages are written as bytes."""

    def dump(self, message: Message, on_trouble: Callable[[str], Any]) -> bytes:
        """Write a message as bytes; call `on_trouble` with what cannot be sent."""

    def load(self, data: bytes) -> Message:
        """Read a message from bytes."""


# The items that each rank sent under one key, by rank.
Round: TypeAlias = dict[int, list[Any]]


class RankInbox:
    """What rank 0 has, round by round: its own lists and those that the other ranks sent."""

    def __init__(self, others: Iterable[int] = ()) -> None:
        # Rounds of rank 0 that wait for other ranks.
        self._mine: deque[tuple[Hashable, list[Any]]] = deque()
        self._others: dict[int, deque[tuple[Hashable, list[Any]]]] = {r: deque() for r in others}
        # How many messages of each rank were read, and the steps of ranks that have ended.
        self.read = dict.fromkeys(self._others, 0)
        self.ended: dict[int, int] = {}

    def add_own(self, key: Hashable, items: list[Any]) -> None:
        """Add a list of rank 0 itself."""
        self._mine.append((key, items))

    def add(self, rank: int, message: Message) -> None:
        """Add a message of another rank."""
        key, items, steps = message
        self.read[rank] += 1
        if steps is None:
            self._others[rank].append((key, items))
        else:
            self.ended[rank] = steps

    def missing(self) -> list[int]:
        """Return the ranks that have not ended."""
        return [rank for rank in self._others if rank not in self.ended]

    def complete(self, to_the_end: bool = False) -> list[Round]:
        """Return the rounds that all other ranks have reached or passed; at the end, all rounds."""
        rounds: list[Round] = []
        while self._mine and (to_the_end or all(map(self._has_come, self._others))):
            key, items = self._mine.popleft()
            rounds.append({0: items} | self._of_others(key))
        if to_the_end:
            left = dict.fromkeys(key for sent in self._others.values() for key, _ in sent)
            rounds += [self._of_others(key) for key in left]
        return rounds

    def _has_come(self, rank: int) -> bool:
        """Return whether a rank has reached any of the rounds that wait, or has ended."""
        waiting = {key for key, _ in self._mine}
        return rank in self.ended or any(key in waiting for key, _ in self._others[rank])

    def _of_others(self, key: Hashable) -> Round:
        """Return what other ranks sent under a key, and before it under keys only they have."""
        found: Round = {}
        for rank, sent in self._others.items():
            count = next((n for n, (of, _) in enumerate(sent, 1) if of == key), 0)
            found[rank] = [item for _ in range(count) for item in sent.popleft()[1]]
        return found


class Ranks:
    """All ranks of the program, or this process alone where there is one.

    From `begin` to `end`, `give` sends lists to rank 0 under keys that mean the same on all ranks.
    `on_trouble` is called with the reason when something is lost. `mail` writes and reads messages.
    """

    def __init__(self, mail: Mail, on_trouble: Callable[[str], Any]) -> None:
        self._written = mail
        self._on_trouble = on_trouble
        self._name = ""
        # Counts the times from begin to end; each has its own keys in the store.
        self._times = 0
        self.rank, self.size = _rank_and_size()
        self._timeout = 0.0
        self._start_anew()

    def _start_anew(self) -> None:
        self._store: Any = None
        self.is_apart = False
        self._posted = 0
        self._pulse = 0.0
        # On rank 0: what has arrived, and how many signs of life.
        self._inbox = RankInbox()
        self._heard = 0

    def begin(self) -> None:
        """Tell rank 0 that this rank will send something."""
        self._join()
        if self._store is not None and self.rank:
            with self._on_failure():
                self._store.set(f"here/{self.rank}", "")

    def alive(self) -> None:
        """Tell rank 0, about once a second, that this rank is still running."""
        now = time.monotonic()
        if self._store is not None and self.rank and now - self._pulse > _BETWEEN_PULSES:
            self._pulse = now
            with self._on_failure():
                self._store.add("news", 1)

    def give(self, key: Hashable, items: list[Any]) -> list[Round]:
        """Send a list to rank 0; on rank 0, return all rounds that are complete by now."""
        self._join()
        if self.size == 1:
            return [{0: items}]
        if self.rank:
            self._post((key, items, None))
            return []
        self._inbox.add_own(key, items)
        if self._store is not None:
            with self._on_failure():
                self._read_news()
        return self._inbox.complete()

    def end(self, steps: int = 0, wait: bool = True) -> tuple[list[Round], dict[int, int]]:
        """Stop sending; on rank 0, return the remaining rounds and the steps of each rank.

        Rank 0 waits for ranks that still run, unless `wait` is false.
        """
        self._join()
        if self._store is not None and self.rank:
            self._post((None, [], steps))
        elif self._store is not None:
            with self._on_failure():
                self._await(wait)
        rounds = self._inbox.complete(to_the_end=True)
        made = {self.rank: steps, **self._inbox.ended}
        self._start_anew()
        self._times += 1
        return rounds, made

    def _join(self) -> None:
        """Find the other ranks, which may have started since, and keep their store."""
        if self._store is not None or self.is_apart:
            return
        rank, size = _rank_and_size()
        if size == 1 < self.size:
            self._part("torch.distributed was shut down before the values were gathered")
            return
        self.rank, self.size = rank, size
        if size > 1:
            self._name = self._name or f"clew/{next(_traces)}"
            with self._on_failure():
                self._store, self._timeout = own_store(f"{self._name}/{self._times}")
                self._inbox = RankInbox(range(1, self.size))

    def _post(self, message: Message) -> None:
        if self._store is None:
            return
        with self._on_failure():
            with unobserved(), torch.no_grad(), without_modes():
                data = self._written.dump(message, self._on_trouble)
            key = f"{self.rank}/{self._posted}"
            self._posted += 1
            for start in range(0, len(data), _CHUNK):
                self._store.set(f"{key}/{start}", data[start : start + _CHUNK])
            # The head last, when all that it announces is there.
            self._store.set(key, str(len(data)))
            self._store.add("news", 1)

    def _read_news(self) -> bool:
        """Read new messages; return whether there was any sign of life."""
        heard = self._store.add("news", 0)
        if heard == self._heard:
            return False
        self._heard = heard
        read = self._inbox.read
        for rank in read:
            while self._store.check([f"{rank}/{read[rank]}"]):
                self._inbox.add(rank, self._fetched(f"{rank}/{read[rank]}"))
        return True

    def _fetched(self, head: str) -> Message:
        size = int(self._store.get(head))
        keys = [f"{head}/{start}" for start in range(0, size, _CHUNK)]
        data = b"".join(self._store.get(key) for key in keys)
        for key in (head, *keys):
            self._store.delete_key(key)
        with unobserved(), torch.no_grad(), without_modes():
            return self._written.load(data)

    def _await(self, wait: bool) -> None:
        """Read messages until all other ranks have ended, or give no sign of life."""
        last = time.monotonic()
        while True:
            is_alive = self._read_news()
            missing = self._inbox.missing()
            if not missing:
                return
            if not wait:
                self._on_trouble(
                    f"the block ended with an exception on rank 0, before {_named(missing)}"
                )
                return
            now = time.monotonic()
            last = now if is_alive else last
            absent = [rank for rank in missing if not self._store.check([f"here/{rank}"])]
            longest = min(self._timeout, _PATIENCE_TO_BEGIN if absent else _PATIENCE)
            if now - last > longest:
                self._on_trouble(
                    f"{_named(absent)} did not come within {longest:g} seconds; "
                    "every rank has to trace as this one does"
                    if absent
                    else f"nothing was heard of {_named(missing)} for {longest:g} seconds"
                )
                return
            time.sleep(_BETWEEN_LOOKS)

    @contextlib.contextmanager
    def _on_failure(self) -> Iterator[None]:
        """Run a block that needs the store, which may be gone with the rank that hosts it."""
        try:
            yield
        except Exception as error:
            pass_on(error)
            self._part(f"the ranks have lost each other ({_first(error)})")

    def _part(self, why: str) -> None:
        self.is_apart, self._store = True, None
        self._on_trouble(why)


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _first(error: Exception) -> str:
    """Return the first sentence of an error without the C++ file that torch puts before it."""
    text = re.sub(r"^\[[^\]]*\.cc:\d+\] ", "", str(error).partition("\n")[0])
    return text.partition(". ")[0] or type(error).__name__


def _rank_and_size() -> tuple[int, int]:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
