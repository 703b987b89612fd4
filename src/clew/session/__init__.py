"""`clew.trace`: start the sources, own ids and clock, close the sink.

The one room that joins capture and store. Names are imported when they are first asked for, so that
`clew.watch` can use files of this room where there is no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.session.tracer import Tracer, trace, unrecorded

__all__ = ["Tracer", "trace", "unrecorded"]

_TRACER = "clew.session.tracer"

__getattr__ = lazy_names(globals(), dict.fromkeys(__all__, _TRACER))
