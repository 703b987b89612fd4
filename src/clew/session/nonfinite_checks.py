"""Check the tensors at hand for NaN and Inf, for `clew.guard`.

Input: tensors, and the native engine's recording if there is one. Output: whether they are finite.
The engine knows of most tensors without reading them, and how many values were not finite so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clew.session import on_first_use

if TYPE_CHECKING:
    from torch import Tensor

_NAN, _INF = 1, 2


class NonFiniteChecks:
    """Says what holds NaN or Inf, whichever is wanted; `native` is None with the python engine."""

    def __init__(self, nan: bool, inf: bool, native: Any) -> None:
        self._wanted = (_NAN if nan else 0) | (_INF if inf else 0)
        self._native = native
        # How many values were not finite when there was last nothing to raise for.
        self._clean_at = 0

    def has_new(self) -> bool:
        """Return whether a value may have become NaN or Inf since `set_clean`."""
        return self._native is None or self._count() != self._clean_at

    def set_clean(self) -> None:
        """Note that there is nothing to raise for in what was recorded so far."""
        self._clean_at = self._count()

    def may_overflow(self) -> bool:
        """Return whether a float16 value may have come near the end of its range."""
        return self._native is None or bool(self._native.near_overflow())

    def is_bad(self, tensor: Tensor) -> bool:
        """Return whether a tensor holds what is wanted."""
        return bool(self._bits(tensor) & self._wanted)

    def has_nan(self, tensor: Tensor) -> bool:
        """Return whether a tensor holds NaN."""
        return bool(self._bits(tensor) & _NAN)

    def is_any_bad(self, tensors: list[Tensor]) -> bool:
        """Return whether one of some tensors is not finite; wait for an accelerator once."""
        if any(self.is_bad(t) for t in tensors if t.is_cpu):
            return True
        elsewhere = [t for t in tensors if not t.is_cpu and not t.is_sparse]
        return bool(elsewhere) and not on_first_use.all_finite(elsewhere)

    def _count(self) -> int:
        """Return how many values were not finite, as far as the engine counts them."""
        return 0 if self._native is None else int(self._native.nonfinite())

    def _bits(self, tensor: Tensor) -> int:
        """Return whether a tensor holds NaN or Inf, from what is known of it if possible."""
        known = -1 if self._native is None else int(self._native.nonfinite_in(tensor))
        if known >= 0 or not (tensor.is_floating_point() or tensor.is_complex()):
            return max(known, 0)
        found = on_first_use.numbers(tensor, digest=False)
        if found is None:
            return 0
        return (_NAN if found["nan"] else 0) | (_INF if found["inf"] else 0)
