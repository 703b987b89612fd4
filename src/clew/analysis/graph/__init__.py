"""The graph of a run: what fed what, as nested boxes and edges. Data, before any picture.

Input: a `Run` (or a plain list of calls) and `Options`. Output: a `Graph` of frozen dataclasses
with `to_dict()`. Pictures of it are made in `views/graph`.
"""

from __future__ import annotations

from clew.analysis.graph.call_list import read_calls
from clew.analysis.graph.graph_build import FlowModel, Options, build, build_flow, count_boxes
from clew.analysis.graph.graph_model import Edge, Graph, Node

__all__ = [
    "Edge",
    "FlowModel",
    "Graph",
    "Node",
    "Options",
    "build",
    "build_flow",
    "count_boxes",
    "read_calls",
]
