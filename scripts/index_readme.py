"""README.md as a package index shows it, for hatchling: the description of the built packages.

An index has none of the files beside README.md, and leaves out pictures that are not on the web. So
pictures go, and a link to a file becomes its text and the file's name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^(?:!\[[^\]]*\]\([^)]*\)|<img [^>]*>)\n\n", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#]*)[^)]*\)")


class IndexReadme(MetadataHookInterface):
    """The metadata's `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put in the text."""
        text = index_text(Path(self.root, "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def index_text(text: str) -> str:
    """README.md without what only works beside its files."""
    return _LINK.sub(_named, _PICTURE.sub("", text))


def _named(link: re.Match[str]) -> str:
    text, file = link.groups()
    return f"`{file}`" if text in (file, file.rpartition("/")[2]) else f"{text} (`{file}`)"
