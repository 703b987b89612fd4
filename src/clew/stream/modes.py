"""Modes of steps: train or eval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clew.events.vocabulary import EVAL, TRAIN


class Modes(Mapping[int, str]):
    """The modes of steps by their numbers: a byte for each, however long the run."""

    _NAMES = ("", TRAIN, EVAL)

    def __init__(self) -> None:
        self._modes = bytearray()
        self._count = 0

    def __getitem__(self, step: int) -> str:
        mode = self._modes[step] if 0 <= step < len(self._modes) else 0
        if not mode:
            raise KeyError(step)
        return self._NAMES[mode]

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and 0 <= step < len(self._modes) and self._modes[step] != 0

    def __iter__(self) -> Iterator[int]:
        return (step for step, mode in enumerate(self._modes) if mode)

    def __len__(self) -> int:
        return self._count

    def after(self, step: int) -> dict[int, str]:
        """Return the modes of the steps after one."""
        later = enumerate(self._modes[step + 1 :], step + 1)
        return {number: self._NAMES[mode] for number, mode in later if mode}

    def settle(self, step: int, mode: str) -> None:
        """Set the mode of a step that has none yet."""
        self._modes.extend(bytes(max(0, step + 1 - len(self._modes))))
        self._modes[step] = self._NAMES.index(mode)
        self._count += 1
