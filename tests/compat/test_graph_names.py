"""The tree of names that a list of calls makes."""

from __future__ import annotations

from clew.compat.engine.name_tree import Name, name_tree, without_leaves


def test_numbers_belong_to_the_name_before_them() -> None:
    tree = name_tree(["enc.layers.0.attn", "enc.layers.10.attn", "enc.layers.2", "0.head"])
    layers = tree.children["enc"].children["layers"]
    assert (layers.count, layers.first_seen, layers.indices) == (3, 0, {"0", "10", "2"})
    # Numbers that stood behind it are told apart, not calls counted.
    assert (layers.children["attn"].count, layers.children["attn"].indices) == (1, set())
    assert layers.parents == [tree.children["enc"]]
    # One at the beginning has no name before it, and is one.
    assert tree.children["0"].children["head"].first_seen == 3


def test_a_tree_is_plain_data_with_numbers_in_their_order() -> None:
    data = name_tree(f"layers.{n}.attn" for n in (10, 2, 0)).to_dict()
    assert data == {
        "name": "root", "count": 0, "indices": [],
        "children": [{
            "name": "layers", "count": 3, "indices": ["0", "2", "10"],
            "children": [{"name": "attn", "count": 0, "indices": [], "children": []}],
        }],
    }  # fmt: skip


def test_without_leaves_numbers_and_single_names_stay() -> None:
    tree = without_leaves(name_tree(["layers.0.attn.1", "layers.1", "head", "a.b.c"]))
    assert {name: list(child.children) for name, child in tree.children.items()} == {
        "layers": [], "head": [], "a": ["b"],
    }  # fmt: skip
    assert tree.children["layers"].indices == {"0", "1"}
    assert tree.children["a"].children["b"].parents == [tree.children["a"]]


def test_leaves_are_those_that_the_tree_has_whoever_made_it() -> None:
    tree = name_tree(["a.b.c", "a.d.e", "head"])
    del tree.children["a"].children["d"]
    assert list(without_leaves(tree).children["a"].children) == ["b"]
    below = without_leaves(tree.children["a"])
    assert (below.name, list(below.children), below.children["b"].children) == ("a", ["b"], {})
    by_hand = Name("root", {"a": Name("a", {"b": Name("b", {"c": Name("c")})})})
    assert list(without_leaves(by_hand).children["a"].children) == ["b"]
    assert without_leaves(by_hand).children["a"].children["b"].children == {}
    assert list(by_hand.children["a"].children["b"].children) == ["c"]
