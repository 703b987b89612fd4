"""Stores keep a trace and hand out its columns. Knows `events`, never torch.

What other rooms ask for is listed here, and imported when it is: most of it loads Arrow, tensors
load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.store.format.manifest import MANIFEST, read_manifest
    from clew.store.format.payload_torch import save_tensors, to_tensor
    from clew.store.read.open_trace import open_trace
    from clew.store.remote_storage import RemoteStorage
    from clew.store.storage import storage_of
    from clew.store.write.claim import TRACE
    from clew.store.write.recovery import recover
    from clew.store.write.save import save

__all__ = [
    "MANIFEST",
    "TRACE",
    "RemoteStorage",
    "open_trace",
    "read_manifest",
    "recover",
    "save",
    "save_tensors",
    "storage_of",
    "to_tensor",
]

__getattr__ = lazy_names(
    globals(),
    {
        "MANIFEST": "clew.store.format.manifest",
        "RemoteStorage": "clew.store.remote_storage",
        "TRACE": "clew.store.write.claim",
        "open_trace": "clew.store.read.open_trace",
        "read_manifest": "clew.store.format.manifest",
        "recover": "clew.store.write.recovery",
        "save": "clew.store.write.save",
        "save_tensors": "clew.store.format.payload_torch",
        "storage_of": "clew.store.storage",
        "to_tensor": "clew.store.format.payload_torch",
    },
)
