"""Views: show a `Run` and analysis results as text, pictures, files. Never torch, never capture.

What `Trace` and the commands show is listed here, and imported when it is first shown: a tree needs
no graph, `clew --help` no NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.events.number_text import bytes_text
    from clew.views.export.formats import write_export
    from clew.views.graph.view import graph_view
    from clew.views.html.diff_page import write_diff_page
    from clew.views.html.report import Side, write_report
    from clew.views.notebook import trace_bundle
    from clew.views.text.code_view import code_view
    from clew.views.text.finding_lines import signed
    from clew.views.text.style import Style, counted, guarded, style_for
    from clew.views.text.table_view import table_view
    from clew.views.text.tree import tree_view

__all__ = [
    "Side",
    "Style",
    "bytes_text",
    "code_view",
    "counted",
    "graph_view",
    "guarded",
    "signed",
    "style_for",
    "table_view",
    "trace_bundle",
    "tree_view",
    "write_diff_page",
    "write_export",
    "write_report",
]

__getattr__ = lazy_names(
    globals(),
    {
        "Side": "clew.views.html.report",
        "Style": "clew.views.text.style",
        "bytes_text": "clew.events.number_text",
        "code_view": "clew.views.text.code_view",
        "counted": "clew.views.text.style",
        "graph_view": "clew.views.graph.view",
        "guarded": "clew.views.text.style",
        "signed": "clew.views.text.finding_lines",
        "style_for": "clew.views.text.style",
        "table_view": "clew.views.text.table_view",
        "trace_bundle": "clew.views.notebook",
        "tree_view": "clew.views.text.tree",
        "write_diff_page": "clew.views.html.diff_page",
        "write_export": "clew.views.export.formats",
        "write_report": "clew.views.html.report",
    },
)
