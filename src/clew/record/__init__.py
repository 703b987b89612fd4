"""Turn what observers record into batches of plain integers.

What reads rows of the native engine is loaded with the first of them: it needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.record.native_rows import NativeNumbers

__all__ = ["NativeNumbers"]

__getattr__ = lazy_names(globals(), dict.fromkeys(__all__, "clew.record.native_rows"))
