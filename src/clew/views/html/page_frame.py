"""The frame of a page: a built viewer, packed data, and a policy that forbids loading anything.

Input: a title and the texts of `Packer`s. Output: the text of an HTML file.
"""

from __future__ import annotations

import base64
import hashlib
import html
from functools import lru_cache
from pathlib import Path

from clew.errors import ClewError
from clew.plain_text import plain

_ASSETS = Path(__file__).parent / "assets"


@lru_cache(maxsize=2)
def _assets(viewer: str) -> tuple[str, str]:
    """Read a built viewer: its script and its style sheet."""
    found = []
    for name in (f"{viewer}.js", f"{viewer}.css"):
        try:
            found.append((_ASSETS / name).read_text(encoding="utf-8").rstrip("\n"))
        except OSError as missing:
            raise ClewError(
                f"the viewer is not built: {_ASSETS / name} is missing; "
                "run `make viewer` in the repository, or install Clew again"
            ) from missing
    return found[0], found[1]


def page_text(title: str, data: str, values: str, viewer: str = "viewer", later: str = "") -> str:
    """Return a page with packed data and one of the built viewers.

    `data` is unpacked before the page is shown, `later` right after, `values` when asked for. So
    the viewer begins before the browser has read the last two.
    """
    script, style = _assets(viewer)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    )
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{html.escape(plain(title))} · clew</title>\n"
        f"<style>{style}</style></head>\n"
        '<body><div id="app"><p class="opening">Opening …</p>'
        "<noscript>This report needs JavaScript, which runs in this file alone: it loads nothing "
        "from anywhere.</noscript></div>\n"
        f'<script type="text/plain" id="clew-data">{data}</script>\n'
        f"<script>{script}</script>\n"
        f"{_late(later)}"
        f'<script type="text/plain" id="clew-values">{values}</script>\n'
        "</body></html>\n"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")


def _late(data: str) -> str:
    return f'<script type="text/plain" id="clew-later">{data}</script>\n' if data else ""
