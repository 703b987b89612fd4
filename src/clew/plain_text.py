r"""Escape text of a traced program, so that it can be shown anywhere.

Names, messages and source lines of a program may hold anything: codes that move a cursor, set a
window's title, reverse the direction of reading or show nothing at all. Input: such a text. Output:
the same text with each of these characters as its escape, `\x1b`. Data (`event.name`, `to_dict()`,
data files) keeps the program's text; everything that shows it to people calls this. Must not know:
anything else of Clew.
"""

from __future__ import annotations

import unicodedata

# Control codes; invisible characters that change how others are shown: marks of direction, joiners,
# tags; surrogates; separators of lines and paragraphs.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# The last two of each plane are not characters, and the first such pair is not allowed in XML.
_NONCHARACTER = 0xFFFE


class _Escapes(dict[int, int | str]):
    """Maps each character to its escape for `str.translate`, computed once."""

    def __missing__(self, code: int) -> int | str:
        unseen = unicodedata.category(chr(code)) in _UNSEEN
        is_character = code & _NONCHARACTER != _NONCHARACTER
        shown = code if is_character and not unseen else escape(chr(code))
        self[code] = shown
        return shown


def escape(character: str) -> str:
    r"""Write a character as Python does in a string.

    >>> print(escape("\x1b"), escape("\u202e"), escape("\n"))
    \x1b \u202e \n
    """
    return character.encode("unicode_escape").decode("ascii")


_ESCAPES = _Escapes()


def plain(text: str) -> str:
    r"""Return a text in one line, with characters that cannot be seen escaped.

    >>> print(plain("fc\x1b[31m\r\n"), plain("Größe × 中文 🧵"))
    fc\x1b[31m\r\n Größe × 中文 🧵
    """
    # Nearly every text is printable, and a text that is has nothing to escape.
    return text if text.isprintable() else text.translate(_ESCAPES)


def plain_lines(text: str) -> str:
    r"""Return a text with its line breaks, and other characters that cannot be seen escaped.

    >>> print(plain_lines("one\x07\r\ntwo"))
    one\x07
    two
    """
    if "\n" not in text:
        return plain(text)
    if text.replace("\n", "").isprintable():
        return text
    return "\n".join(map(plain, text.replace("\r\n", "\n").split("\n")))


def first_line(text: str) -> str:
    r"""Return the first line of a text, as the view of a single line shows a message.

    >>> print(first_line("ValueError: no\x1b\r\nmore"))
    ValueError: no\x1b
    """
    return plain(text.partition("\n")[0].removesuffix("\r"))


def plain_code(line: str) -> str:
    r"""Return a line of source code; white space of any kind, such as tabs, becomes a space.

    >>> print(plain_code("x = 1\t# \x1b[2J"))
    x = 1 # \x1b[2J
    """
    return line if line.isprintable() else plain(line.translate(_SPACES))


_SPACES = dict.fromkeys(map(ord, "\t\v\f"), " ")
