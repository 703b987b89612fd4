"""Messages between ranks as bytes: samples as batches."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from clew.callbacks.rank_mailbox import Message
from clew.callbacks.samples import batch_of, samples_of
from clew.store.format.wire import read_message, to_bytes


class SampleMail:
    """Samples of a gather, as a batch: nothing of it is run on the other side."""

    def dump(self, message: Message, on_trouble: Callable[[str], Any]) -> bytes:
        """Return a message as bytes."""
        key, samples, steps = message
        ordinals = [_listed(sample.ordinal) for sample in samples]
        return to_bytes(batch_of(samples), {"key": key, "steps": steps, "ordinals": ordinals})

    def load(self, data: bytes) -> Message:
        """Return the message that some bytes hold."""
        found = read_message(io.BytesIO(data))
        if found is None:
            raise ValueError("a message of another rank is cut off")
        ordinals = [np.array(o) if isinstance(o, list) else o for o in found.facts["ordinals"]]
        return found.facts["key"], samples_of(found.batch, ordinals), found.facts["steps"]


def _listed(ordinal: Any) -> Any:
    """Return one number, or several as a list."""
    return np.asarray(ordinal).tolist()
