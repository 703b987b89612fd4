"""Kinds of files that views write, and how each begins.

A file is replaced only by one of the same kind.
"""

from __future__ import annotations

from clew.store.write.place import FileKind

KINDS = {
    "chrome": FileKind("a Chrome trace", (b"{", b"[")),
    "csv": FileKind("a CSV of events", (b"id,",)),
    "dot": FileKind("a graph in the DOT language", (b"digraph", b"strict digraph")),
    "hdf5": FileKind("an HDF5 file", (b"\x89hdf\r\n\x1a\n",)),
    "html": FileKind("an HTML page", (b"<!doctype html", b"<html")),
    "json": FileKind("JSON", (b"{", b"[")),
    "mermaid": FileKind("a Mermaid flowchart", (b"flowchart", b"---\ntitle:")),
    "model_explorer": FileKind("a graph for Model Explorer", (b"{",)),
    "parquet": FileKind("a Parquet file", (b"par1",)),
    "png": FileKind("a PNG picture", (b"\x89png\r\n\x1a\n",)),
    "pt": FileKind("a file of torch.save", (b"pk\x03\x04",)),
    "svg": FileKind("an SVG picture", (b"<svg", b"<?xml")),
}
