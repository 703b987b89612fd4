"""Sizes in bytes as short text."""

from __future__ import annotations


def bytes_text(size: float) -> str:
    """Write a size in bytes, short.

    >>> bytes_text(512), bytes_text(1536), bytes_text(3 << 20)
    ('512 B', '1.50 KiB', '3.00 MiB')
    """
    return scaled(size, (" B", " KiB", " MiB", " GiB", " TiB"), 1024)


def scaled(number: float, units: tuple[str, ...], base: int) -> str:
    """Write a number in the unit that suits it, with three digits."""
    power = 0
    # A number that rounds up to the next unit is written in that unit: 999.6 is 1.00k.
    while abs(number) >= base - 0.5 and power < len(units) - 1:
        number /= base
        power += 1
    if power == 0 or abs(number) >= 99.95:
        return f"{number:.0f}{units[power]}"
    return f"{number:.{1 if abs(number) >= 9.995 else 2}f}{units[power]}"
