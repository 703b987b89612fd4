"""SVG to PNG, by `resvg` (the extra `clew[png]`)."""

from __future__ import annotations

from clew.optional_packages import optional_package

# Pixels per inch in SVG.
_PER_INCH = 96.0


def png_bytes(
    svg: str, size: tuple[float, float], dpi: float, width: float | None, height: float | None
) -> bytes:
    """Return the picture at a resolution, or as large as fits a width and height in inches."""
    resvg_py = optional_package("resvg_py", "a PNG of a graph")
    limits = [
        inches * dpi / pixels
        for inches, pixels in zip((width, height), size, strict=True)
        if inches is not None
    ]
    zoom = min(limits) if limits else dpi / _PER_INCH
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=zoom))
