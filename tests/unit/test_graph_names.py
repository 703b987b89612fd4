"""The tree of names that a list of calls makes."""

from __future__ import annotations

from clew.analysis.graph.names import name_tree, without_leaves


def test_numbers_belong_to_the_name_before_them() -> None:
    tree = name_tree(["enc.layers.0.attn", "enc.layers.10.attn", "enc.layers.2", "0.head"])
    layers = tree.children["enc"].children["layers"]
    assert (layers.count, layers.first_seen, layers.indices) == (3, 0, {"0", "10", "2"})
    assert layers.children["attn"].count == 2
    assert layers.parents == [tree.children["enc"]]
    # One at the beginning has no name before it, and is one.
    assert tree.children["0"].children["head"].first_seen == 3


def test_a_tree_is_plain_data_with_numbers_in_their_order() -> None:
    data = name_tree(f"layers.{n}.attn" for n in (10, 2, 0)).to_dict()
    assert data == {
        "name": "root", "count": 1, "indices": [],
        "children": [{
            "name": "layers", "count": 3, "indices": ["0", "2", "10"],
            "children": [{"name": "attn", "count": 3, "indices": [], "children": []}],
        }],
    }  # fmt: skip


def test_without_leaves_numbers_and_single_names_stay() -> None:
    tree = without_leaves(name_tree(["layers.0.attn.1", "layers.1", "head", "a.b.c"]))
    assert tree.paths == ["layers.0", "layers.1", "head", "a.b"]
    assert tree.children["layers"].children == {}
    assert tree.children["layers"].indices == {"0", "1"}
