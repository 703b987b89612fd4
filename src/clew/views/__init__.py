"""Views: show a `Run` and analysis results as text, pictures, files. Never torch, never capture.

The names that `Trace` uses are listed here, and imported at first use: a tree needs no graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.views.export.formats import write_export
    from clew.views.graph.view import graph_view
    from clew.views.html.report import Side, write_report
    from clew.views.notebook import trace_bundle
    from clew.views.text.code import code_view
    from clew.views.text.style import Style
    from clew.views.text.table_view import table_view
    from clew.views.text.tree import tree_view

__all__ = [
    "Side",
    "Style",
    "code_view",
    "graph_view",
    "table_view",
    "trace_bundle",
    "tree_view",
    "write_export",
    "write_report",
]

__getattr__ = lazy_names(
    globals(),
    {
        "Side": "clew.views.html.report",
        "Style": "clew.views.text.style",
        "code_view": "clew.views.text.code",
        "graph_view": "clew.views.graph.view",
        "table_view": "clew.views.text.table_view",
        "trace_bundle": "clew.views.notebook",
        "tree_view": "clew.views.text.tree",
        "write_export": "clew.views.export.formats",
        "write_report": "clew.views.html.report",
    },
)
