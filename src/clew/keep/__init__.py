"""Describe values and keep their facts, statistics and data; each tensor version once.

What reads tensors is loaded when there is one: it needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.keep.keeper import numbers, small_elements, tensor_state

__all__ = ["numbers", "small_elements", "tensor_state"]

__getattr__ = lazy_names(globals(), dict.fromkeys(__all__, "clew.keep.keeper"))
