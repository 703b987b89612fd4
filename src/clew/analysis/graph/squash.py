"""Calls that the user wants as one box: those of one class, or of one name except for the index."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from clew.analysis.graph.graph_model import CALL, Edge, Node

_INDEX = re.compile(r"\.?\d+")


def bare(name: str) -> str:
    """Return a name without its indices.

    >>> bare("layers.0 … 11"), bare("linear1"), bare("0")
    ('layers', 'linear', '0')
    """
    return _INDEX.sub("", name.partition(" …")[0]) or name


def squash(nodes: dict[str, Node], by: str, everywhere: bool) -> dict[str, str]:
    """Return for each node the one it is merged into: within one frame, or everywhere."""
    frames = {node.parent for node in nodes.values()}
    first: dict[object, str] = {}
    becomes: dict[str, str] = {}
    for node in nodes.values():
        where = None if everywhere or node.parent is None else becomes[node.parent]
        what = node.cls if by == "class" else bare(node.name)
        key = (where, what, node.id in frames) if node.kind == CALL else node.id
        becomes[node.id] = first.setdefault(key, node.id)
    return becomes


def merged(
    nodes: dict[str, Node], rows: dict[str, list[int]], becomes: dict[str, str], by: str
) -> tuple[dict[str, Node], dict[str, list[int]]]:
    """Return the nodes that are left, with the rows of those merged into them."""
    left: dict[str, Node] = {}
    for node in nodes.values():
        name = becomes[node.id]
        if name == node.id:
            parent = None if node.parent is None else becomes[node.parent]
            left[name] = replace(node, parent=parent)
        else:
            before = left[name]
            title = before.cls if by == "class" else bare(before.name)
            exact = before.exact and node.exact
            left[name] = replace(before, name=title, count=before.count + node.count, exact=exact)
            rows[name] += rows.pop(node.id)
    return left, rows


def merged_edges(edges: list[Edge], becomes: dict[str, str]) -> list[Edge]:
    """Return edges between the nodes that are left, joining those of one kind between two nodes."""
    labels: dict[tuple[str, str, str], dict[str, None]] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for edge in edges:
        source, target = (
            becomes.get(edge.source, edge.source),
            becomes.get(edge.target, edge.target),
        )
        if source == target:
            continue
        key = source, target, edge.kind
        labels.setdefault(key, {}).update(dict.fromkeys(edge.labels))
        counts[key] += edge.count
    return [Edge(*key, tuple(said), counts[key]) for key, said in labels.items()]
