"""Estimate the width of a text without a font.

The widths are those of DejaVu Sans, one of the widest sans-serif fonts, so that the text also fits
in other fonts.
"""

from __future__ import annotations

# Hundredths of the font size, from the space to the tilde.
_PLAIN = (
    32, 40, 46, 84, 64, 95, 78, 27, 39, 39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64,
    64, 64, 34, 34, 84, 84, 84, 53, 100, 68, 69, 70, 77, 63, 58, 77, 75, 29, 29, 66, 56, 86, 75,
    79, 60, 79, 69, 63, 61, 73, 68, 99, 69, 61, 69, 39, 34, 39, 84, 50, 50, 61, 63, 55, 63, 62, 35,
    63, 63, 28, 28, 58, 28, 97, 63, 61, 63, 63, 41, 52, 39, 63, 59, 82, 59, 59, 52, 64, 34, 64, 84,
)  # fmt: skip
_BOLD = 1.11
_OTHERS = {"×": 84, "…": 100, "·": 32, "→": 84, "µ": 64, "–": 50}
_WIDE = 100


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return the width of a text in pixels, at a font size in pixels.

    >>> round(text_width("attn", 13)), round(text_width("attn", 13, bold=True))
    (26, 29)
    """
    total = 0
    for character in text:
        code = ord(character) - 32
        total += _PLAIN[code] if 0 <= code < len(_PLAIN) else _OTHERS.get(character, _WIDE)
    return total * size / 100 * (_BOLD if bold else 1.0)
