"""What became of everything that was asked for by address or name.

Observers mark in a `Ledger` what they found and what came; it says what nothing matched, at the end
of a step or of a recording. `session.unmatched` puts that into words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clew.address import Address


class Ledger:
    """Addresses that were asked for, and what became of each, by its text."""

    def __init__(self, addresses: Iterable[Address]) -> None:
        self.addresses = tuple({address.text: address for address in addresses}.values())
        # There is something of this name that may give a value: a function, a parameter.
        self.found: set[str] = set()
        # A value was there.
        self.came: set[str] = set()
        # A value was there in a step that its callbacks are for; in one that they are not for.
        self.due: set[str] = set()
        self.not_due: set[str] = set()
        # The places of tensors in the calls that an address names, where it names another place.
        self.elsewhere: dict[str, set[str]] = {}

    def unmatched(self) -> Iterator[Address]:
        """Return the addresses that nothing has."""
        return (a for a in self.addresses if a.text not in self.came and a.text not in self.found)

    def awaited(self) -> Iterator[Address]:
        """Return the addresses of something that gave no value."""
        return (a for a in self.addresses if a.text in self.found and a.text not in self.came)

    def never_due(self) -> Iterator[Address]:
        """Return the addresses whose values came only in steps that callbacks leave out."""
        return (a for a in self.addresses if a.text in self.not_due and a.text not in self.due)
