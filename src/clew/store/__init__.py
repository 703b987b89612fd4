"""Stores keep a trace and hand out its columns. Knows `events`, never torch.

What `Trace` and the commands ask for is listed here, and imported when it is: it loads Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.store.format.manifest import read_manifest
    from clew.store.read.open_trace import open_trace
    from clew.store.storage import storage_of
    from clew.store.write.recovery import recover
    from clew.store.write.save import save

__all__ = [
    "open_trace",
    "read_manifest",
    "recover",
    "save",
    "storage_of",
]

__getattr__ = lazy_names(
    globals(),
    {
        "open_trace": "clew.store.read.open_trace",
        "read_manifest": "clew.store.format.manifest",
        "recover": "clew.store.write.recovery",
        "save": "clew.store.write.save",
        "storage_of": "clew.store.storage",
    },
)
