"""The layout keeps its promises whatever the graph: nothing overlaps, frames contain what is in
them, lines lead down and miss the boxes."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from clew.views.graph.layout.nested import lay_out
from clew.views.graph.layout.shapes import Box, Link, Picture, Point, Rect, Spacing

SIZES = st.tuples(st.floats(20, 160), st.floats(10, 60))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Box], list[Link]]:
    """Boxes nested at random, and links that lead from earlier to later ones."""
    count = draw(st.integers(1, 14))
    names = iter(f"f{number}" for number in range(100))
    boxes: list[Box] = [Box(f"b{n}", *draw(SIZES)) for n in range(count)]
    leaves = [box.id for box in boxes]
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(boxes) - 1))
        end = draw(st.integers(start + 1, len(boxes)))
        title = draw(st.floats(20, 200))
        boxes[start:end] = [Box(next(names), title, 20.0, tuple(boxes[start:end]))]
    pairs = [(a, b) for a, b in combinations(range(count), 2)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=20, unique=True)) if pairs else []
    labels = st.none() | st.tuples(st.floats(10, 120), st.just(12.0))
    links = [Link(leaves[a], leaves[b], draw(labels)) for a, b in chosen]
    return boxes, links


def flat(boxes: list[Box] | tuple[Box, ...]) -> list[Box]:
    return [inner for box in boxes for inner in (box, *flat(box.inside))]


def on_the_way(points: list[Point]) -> list[Point]:
    """Points along a line as it is drawn: straight down, or a curve that leaves straight down."""
    found = []
    for (x0, y0), (x1, y1) in pairwise(points):
        for step in range(9):
            t = step / 8
            a, b, c, d = (1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t * t, t**3
            found.append(((a + b) * x0 + (c + d) * x1, a * y0 + (b + c) * (y0 + y1) / 2 + d * y1))
    return found


def is_inside(rect: Rect, point: Point) -> bool:
    x, y = point
    return rect.x + 0.01 < x < rect.right - 0.01 and rect.y + 0.01 < y < rect.bottom - 0.01


def check_boxes(boxes: list[Box], picture: Picture) -> None:
    for box in flat(boxes):
        rect = picture.boxes[box.id]
        assert picture.width + 1e-6 >= rect.right
        assert picture.height + 1e-6 >= rect.bottom
        for one, two in combinations(box.inside, 2):
            assert not picture.boxes[one.id].overlaps(picture.boxes[two.id])
        assert all(rect.contains(picture.boxes[inner.id]) for inner in box.inside)
    for one, two in combinations(boxes, 2):
        assert not picture.boxes[one.id].overlaps(picture.boxes[two.id])


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_nothing_overlaps_and_frames_contain_what_is_in_them(
    graph: tuple[list[Box], list[Link]],
) -> None:
    boxes, links = graph
    check_boxes(boxes, lay_out(boxes, links))
    check_boxes(boxes, lay_out(boxes, links, right=True))


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_lines_lead_down_from_source_to_target_and_miss_other_boxes(
    graph: tuple[list[Box], list[Link]],
) -> None:
    boxes, links = graph
    picture = lay_out(boxes, links)
    leaves = {box.id for box in flat(boxes) if not box.inside}
    for link, route in zip(links, picture.routes, strict=True):
        assert route is not None
        source, target = picture.boxes[link.source], picture.boxes[link.target]
        (x, y), (end_x, end_y) = route.points[0], route.points[-1]
        assert source.x <= x <= source.right
        assert abs(y - source.bottom) < 1e-6
        assert target.x <= end_x <= target.right
        assert abs(end_y - target.y) < 1e-6
        assert all(b[1] >= a[1] - 1e-6 for a, b in pairwise(route.points))
        others = [picture.boxes[name] for name in leaves - {link.source, link.target}]
        for point in on_the_way(route.points):
            assert not any(is_inside(rect, point) for rect in others)


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_labels_cover_neither_boxes_nor_each_other(graph: tuple[list[Box], list[Link]]) -> None:
    boxes, links = graph
    picture = lay_out(boxes, links)
    labels = {route.label for route in picture.routes if route is not None and route.label}
    leaves = [picture.boxes[box.id] for box in flat(boxes) if not box.inside]
    assert not any(label.overlaps(rect) for label in labels for rect in leaves)
    assert not any(one.overlaps(two) for one, two in combinations(labels, 2))


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_to_the_right_is_down_turned(graph: tuple[list[Box], list[Link]]) -> None:
    boxes, links = graph
    picture = lay_out(boxes, links, right=True)
    for route in picture.routes:
        assert route is not None
        assert all(b[0] >= a[0] - 1e-6 for a, b in pairwise(route.points))


def test_a_link_that_leads_back_is_drawn_upwards() -> None:
    picture = lay_out([Box("a", 40, 20), Box("b", 40, 20)], [Link("a", "b"), Link("b", "a")])
    down, up = picture.routes
    assert down is not None
    assert up is not None
    assert down.points[0][1] < down.points[-1][1]
    assert up.points[0][1] > up.points[-1][1]
    assert up.points[0][1] == picture.boxes["b"].y


def test_a_chain_is_straight_and_a_skip_goes_around() -> None:
    boxes = [Box(name, 60, 20) for name in "abcd"]
    links = [*(Link(a, b, (40, 12)) for a, b in pairwise("abcd")), Link("a", "d")]
    picture = lay_out(boxes, links)
    middles = {name: rect.x + rect.width / 2 for name, rect in picture.boxes.items()}
    assert len({round(x, 6) for x in middles.values()}) == 1
    for route in picture.routes[:-1]:
        assert route is not None
        assert len({round(x, 6) for x, _ in route.points}) == 1


def test_links_of_one_box_into_one_frame_share_their_line_until_they_are_in() -> None:
    frame = Box("f", 50, 20, (Box("b", 40, 20), Box("c", 40, 20)))
    picture = lay_out([Box("a", 40, 20), frame], [Link("a", "b"), Link("a", "c")])
    into = [
        [p for p in route.points if p[1] <= picture.boxes["f"].y]
        for route in picture.routes
        if route
    ]
    assert into[0] == into[1]


def test_a_link_too_long_to_follow_is_named_beside_its_target() -> None:
    boxes = [Box(f"b{n}", 40, 20) for n in range(12)]
    links = [*(Link(a.id, b.id) for a, b in pairwise(boxes)), Link("b0", "b11")]
    picture = lay_out(boxes, links, space=Spacing(longest=5), stub_size=lambda name: (33.0, 11.0))
    route = picture.routes[-1]
    assert route is not None
    assert route.stub is not None
    assert (route.stub.width, route.stub.height) == (33.0, 11.0)
    assert route.points[0][1] == route.stub.bottom
    assert not any(route.stub.overlaps(rect) for rect in picture.boxes.values())
    assert all(r is not None and r.stub is None for r in picture.routes[:-1])


def test_a_link_from_a_frame_to_what_is_in_it_is_left_out() -> None:
    frame = Box("f", 50, 20, (Box("b", 40, 20),))
    assert lay_out([frame], [Link("f", "b"), Link("b", "nowhere")]).routes == [None, None]


def test_boxes_without_links_stand_in_several_rows() -> None:
    picture = lay_out([Box(f"b{n}", 40, 20) for n in range(25)], [])
    assert len({rect.y for rect in picture.boxes.values()}) == 5
    assert lay_out([], []).boxes == {}


def test_boxes_of_a_row_keep_their_distance() -> None:
    boxes = [Box(name, 60, 20) for name in "abcd"]
    space = Spacing(boxes=31)
    picture = lay_out(boxes, [Link("a", other) for other in "bcd"], space=space)
    b, c, d = sorted((picture.boxes[name] for name in "bcd"), key=lambda rect: rect.x)
    assert c.x - b.right >= 31
    assert d.x - c.right >= 31
