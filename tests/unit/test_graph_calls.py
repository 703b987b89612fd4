"""A plain list of calls becomes the same graph as a trace: nested, folded, linked by order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.analysis.graph import Graph, Options, build, read_calls
from clew.errors import ClewError
from clew.views.graph.view import graph_view

ENCODER = """
encoder.layer.0.linear1
encoder.layer.0.linear2
encoder.layer.1.linear1
encoder.layer.1.linear2
head
"""


def graph(text: str, **options: object) -> Graph:
    return build(read_calls(text.splitlines()), Options(**{"edges": "calls", **options}))  # type: ignore[arg-type]


def shape(found: Graph) -> list[str]:
    """The nodes as an indented list."""
    depth: dict[str, int] = {}
    lines = []
    for node in found.nodes:
        depth[node.id] = 0 if node.parent is None else depth[node.parent] + 1
        lines.append(
            "  " * depth[node.id] + node.name + (f" ×{node.count}" if node.count > 1 else "")
        )
    return lines


def links(found: Graph) -> list[tuple[str, str, str]]:
    return [(found[e.source].name, found[e.target].name, e.kind) for e in found.edges]


def test_containers_that_are_not_listed_are_put_around_what_is_in_them() -> None:
    found = graph(ENCODER)
    assert shape(found) == [
        "encoder", "  layer.0 … 1 ×2", "    linear1", "    linear2", "head",
    ]  # fmt: skip
    assert links(found) == [
        ("linear1", "linear2", "order"),
        ("linear2", "linear1", "next"),
        ("linear2", "head", "order"),
    ]


def test_calls_are_read_whether_listed_as_they_end_or_as_they_begin() -> None:
    ending = "a.x\na.y\na\nb.x\nb\nroot"
    beginning = "root\na\na.x\na.y\nb\nb.x"
    assert shape(graph(ending)) == shape(graph(beginning)) == [
        "(root)", "  a", "    x", "    y", "  b", "    x",
    ]  # fmt: skip


def test_layers_that_differ_are_kept_apart() -> None:
    text = "layers.0.conv\nlayers.1.attn\nlayers.2.attn\nlayers.3.attn"
    assert shape(graph(text)) == ["layers.0", "  conv", "layers.1 … 3 ×3", "  attn"]


def test_a_sequential_is_folded_too() -> None:
    text = "\n".join(f"{n}.lin\n{n}.act\n{n}" for n in range(4))
    assert shape(graph(text)) == ["0 … 3 ×4", "  lin", "  act"]


def test_a_tree_of_names_squashed() -> None:
    found = graph(ENCODER, edges="tree", squash="name")
    assert shape(found) == ["encoder", "layer.0 … 1 ×2", "linear ×2", "head"]
    assert links(found) == [
        ("encoder", "layer.0 … 1", "inside"), ("layer.0 … 1", "linear", "inside"),
    ]  # fmt: skip


def test_pruned_leaves() -> None:
    text = ENCODER + "\nencoder.norm"
    assert "linear1" not in " ".join(shape(graph(text, prune=True)))


def test_a_module_called_again_is_a_call_of_its_own() -> None:
    found = graph("a\nb\na", fold=False)
    assert [(n.name, n.address) for n in found.nodes] == [("a", "a#0"), ("b", "b#0"), ("a", "a#1")]


def test_what_is_no_list_of_calls_is_refused() -> None:
    with pytest.raises(ClewError, match="trace.txt lists no calls"):
        read_calls(["", "  "], "trace.txt")
    with pytest.raises(ClewError, match="call 2: 'not a path' is not the path of a module"):
        read_calls(["a.b", "not a path"], "trace.txt")
    with pytest.raises(ClewError, match="'a..b' is not the path"):
        read_calls(["a..b"])


paths = st.lists(st.sampled_from(["a", "b", "layers", "0", "1", "2"]), min_size=1, max_size=4)


@given(st.lists(paths.map(".".join), min_size=1, max_size=25))
def test_every_call_is_there_whatever_the_list(lines: list[str]) -> None:
    reader = read_calls(lines)
    called = [reader.columns.modules[int(s)].path for s in reader.columns.subject]
    for path in set(lines) - {"root"}:
        assert called.count(path) >= lines.count(path)
    parents = reader.parent_row.tolist()
    for row, parent in enumerate(parents):
        assert parent < row
        above = "" if parent < 0 else called[parent]
        assert not above or called[row].startswith(above + ".")
    view = graph_view(reader, edges="calls")
    assert view.svg().count("data-node") == len(view.model.nodes)


def test_in_a_tree_a_loop_is_no_box_but_a_count() -> None:
    lines = [line for n in range(3) for line in (f"left.{n}.fc", f"left.{n}", f"right.{n}")]
    found = graph("\n".join([*lines, "root"]), edges="tree")
    assert shape(found) == ["(root)", "left.0 … 2 ×3", "fc", "right.0 … 2 ×3"]
    assert links(found) == [
        ("(root)", "left.0 … 2", "inside"), ("left.0 … 2", "fc", "inside"),
        ("(root)", "right.0 … 2", "inside"),
    ]  # fmt: skip
    svg = graph_view(read_calls([*lines, "root"]), edges="tree").svg()
    assert svg.count("data-node") == 4
