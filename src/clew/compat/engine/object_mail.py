"""Objects of any kind as what ranks send each other: pickled, without those that cannot be."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from clew.callbacks.rank_mailbox import Message


class ObjectMail:
    """Objects of any kind, for those who collect such; a rank trusts the others with them."""

    def dump(self, message: Message, on_trouble: Callable[[str], Any]) -> bytes:
        """Return a message as bytes, without what cannot be sent."""
        key, items, steps = message
        try:
            return pickle.dumps(message)
        except Exception as error:  # the classes of some are known in this process alone
            left = [item for item in items if _is_pickled(item)]
            count = f"{len(items) - len(left)} of {len(items)} values"
            on_trouble(f"{count} cannot be sent to rank 0, and stay behind ({error})")
            return pickle.dumps((key, left, steps))

    def load(self, data: bytes) -> Message:
        """Return the message that some bytes hold."""
        message: Message = pickle.loads(data)
        return message


def _is_pickled(item: Any) -> bool:
    try:
        pickle.dumps(item)
    except Exception:
        return False
    return True
