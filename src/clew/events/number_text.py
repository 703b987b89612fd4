"""Numbers, counts, sizes and times as short text.

Input: numbers. Output: text, in the formats of `clew.spec`; `viewer/src/format.ts` writes the same.
"""

from __future__ import annotations

from math import isinf, isnan

from clew.spec import DIGITS, MINUTES_FROM, UNITS


def number_text(number: int) -> str:
    """Write a count, exact and readable.

    >>> number_text(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Write a count of things.

    >>> counted(1, "op"), counted(1200, "op")
    ('1 op', '1,200 ops')
    """
    return f"{number_text(number)} {noun}{'' if number == 1 else 's'}"


def short_number(number: float) -> str:
    """Write a count with three digits.

    >>> [short_number(n) for n in (0, 999, 1234, 45_678, 124_439_808, 7e9)]
    ['0', '999', '1.23k', '45.7k', '124M', '7.00B']
    """
    return _scaled(number, "count")


def bytes_text(size: float) -> str:
    """Write a size in bytes.

    >>> bytes_text(512), bytes_text(1536), bytes_text(3 << 20)
    ('512 B', '1.50 KiB', '3.00 MiB')
    """
    return _scaled(size, "bytes")


def time_text(seconds: float) -> str:
    """Write a duration: with three digits, from a minute on as minutes and seconds.

    >>> time_text(0.0000123), time_text(0.0034), time_text(1.5), time_text(90), time_text(5400)
    ('12.3 µs', '3.40 ms', '1.50 s', '1:30 min', '1:30:00 h')
    """
    if abs(seconds) < MINUTES_FROM:
        return _scaled(seconds * 1e9, "time")
    minutes, rest = divmod(round(abs(seconds)), 60)
    hours, left = divmod(minutes, 60)
    sign = "-" if seconds < 0 else ""
    if not hours:
        return f"{sign}{minutes}:{rest:02} min"
    return f"{sign}{hours}:{left:02}:{rest:02} h"


def measured(number: float, digits: int = DIGITS) -> str:
    """Write a measured number with so many significant digits.

    >>> measured(-1e-13), measured(0.33333), measured(12345.0), measured(float("nan"))
    ('-1e-13', '0.333', '1.23e+04', 'NaN')
    """
    if isnan(number):
        return "NaN"
    if isinf(number):
        return "Inf" if number > 0 else "-Inf"
    return f"{number:.{digits}g}"


def _scaled(number: float, what: str) -> str:
    """Write a number in the unit that suits it, with three digits."""
    base, names = UNITS[what]
    power = 0
    # A number that rounds up to the next unit is written in that unit: 999.6 is 1.00k.
    while abs(number) >= base - 0.5 and power < len(names) - 1:
        number /= base
        power += 1
    if power == 0 or abs(number) >= 99.95:
        return f"{number:.0f}{names[power]}"
    return f"{number:.{1 if abs(number) >= 9.995 else 2}f}{names[power]}"
