"""Calls as text: `addmm(f32[8], f32[2,4], f32[4,8]) -> f32[2,8]`.

Input: rows of a `Run`. Output: arguments and results as Python would write them, each tensor as its
dtype and shape. Calls that look the same share one text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clew.events.columns import IN, OUT, Leaf, Symbol, Tensor
from clew.events.tensor_text import short_dtype
from clew.events.vocabulary import Unseen
from clew.plain_text import plain
from clew.run.run import Run
from clew.views.text.style import meta_text, short_op

_MOST_ITEMS = 8
_SHOWN_ITEMS = 4
_LONGEST_STRING = 40

# The key for the class of an object, among what the object holds.
_OWN = ""

# A text with holes for tensors: strings, and the positions of tensors among an event's values.
_Parts = list[str | int]


class CallTexts:
    """Texts of the calls of one trace."""

    def __init__(self, run: Run) -> None:
        self._run = run
        c = run.columns
        self._metas = c.meta.tolist()
        self._templates: list[int] = c.template.tolist()
        self._first: list[int] = c.first_ref.tolist()
        self._refs: list[int] = c.refs.tolist()
        self._parts: dict[int, tuple[_Parts, _Parts, int]] = {}
        self._made: dict[tuple[int, tuple[int, ...]], tuple[str, str]] = {}
        self._ops: dict[str, str] = {}

    def inputs(self, row: int) -> str:
        """Return the arguments of an event."""
        return self._texts(row)[0]

    def outputs(self, row: int) -> str:
        """Return the result of an event, empty if there is none."""
        return self._texts(row)[1]

    def op(self, row: int) -> str:
        """Return an op with its arguments and result."""
        inputs, outputs = self._texts(row)
        name = self.short_op(row)
        return f"{name}({inputs}) -> {outputs}" if outputs else f"{name}({inputs})"

    def short_op(self, row: int) -> str:
        """Return the short name of an op."""
        name = self._run.name(row)
        short = self._ops.get(name)
        if short is None:
            short = self._ops[name] = short_op(plain(name))
        return short

    def looks(self, row: int) -> tuple[int, tuple[int, ...]]:
        """Return what an event's text depends on, besides its name."""
        template = self._templates[row]
        tensors = self._of_template(template)[2]
        first = self._first[row]
        metas = self._metas
        return template, tuple([metas[v] for v in self._refs[first : first + tensors]])

    def _texts(self, row: int) -> tuple[str, str]:
        looks = self.looks(row)
        texts = self._made.get(looks)
        if texts is None:
            inputs, outputs, _ = self._of_template(looks[0])
            table = self._run.columns.metas
            names = [meta_text(table[meta]) for meta in looks[1]]
            texts = self._made[looks] = _filled(inputs, names), _filled(outputs, names)
        return texts

    def _of_template(self, template: int) -> tuple[_Parts, _Parts, int]:
        parts = self._parts.get(template)
        if parts is None:
            leaves = self._run.columns.templates[template].leaves
            holes = _holes(leaves)
            inputs = _parts_of_inputs([h for h in holes if h[0].role == IN])
            outputs = _parts_of_result([h for h in holes if h[0].role == OUT])
            tensors = sum(leaf.constant is Tensor for leaf in leaves)
            parts = self._parts[template] = _plain(inputs), _plain(outputs), tensors
        return parts


def _plain(parts: _Parts) -> _Parts:
    return [part if isinstance(part, int) else plain(part) for part in parts]


def _filled(parts: _Parts, names: list[str]) -> str:
    return "".join(names[part] if isinstance(part, int) else part for part in parts)


# A leaf with the position of its tensor, None for a constant.
_Hole = tuple[Leaf, int | None]


def _holes(leaves: tuple[Leaf, ...]) -> list[_Hole]:
    position = 0
    found: list[_Hole] = []
    for leaf in leaves:
        if leaf.constant is Tensor:
            found.append((leaf, position))
            position += 1
        elif leaf.constant is not Unseen:
            found.append((leaf, None))
    return found


def _parts_of_inputs(holes: list[_Hole]) -> _Parts:
    nested = _nested(holes)
    spread = nested.pop("", None)
    items: list[_Parts] = []
    if isinstance(spread, tuple) and type(spread[0].constant) is list:
        # Arguments that are all integers come as one leaf.
        items += [[constant_text(number)] for number in spread[0].constant]
    elif spread is not None:
        items.append(_parts(spread))
    for name, inner in nested.items():
        items.append(_parts(inner) if name.isdigit() else [f"{name}=", *_parts(inner)])
    return _joined(items)


def _parts_of_result(holes: list[_Hole]) -> _Parts:
    nested = _nested(holes)
    if _OWN in nested:
        return _parts(nested[_OWN] if len(nested) == 1 else nested)
    items = [
        _parts(inner) if name.isdigit() else [f"{name}=", *_parts(inner)]
        for name, inner in nested.items()
    ]
    return ["(", *_joined(items), ")"] if items else []


def _nested(holes: list[_Hole]) -> dict[str, object]:
    """Return leaves by the segments of their paths: nested dicts, with holes at the ends."""
    root: dict[str, Any] = {}
    for hole in holes:
        *above, last = hole[0].path.split(".")
        inner = root
        for segment in above:
            deeper = inner.setdefault(segment, {})
            if not isinstance(deeper, dict):  # its leaf names the class of the holder
                deeper = inner[segment] = {_OWN: deeper}
            inner = deeper
        inner[last] = hole
    return root


def _parts(inner: Any) -> _Parts:
    if isinstance(inner, tuple):
        leaf, position = inner
        return [constant_text(leaf.constant) if position is None else position]
    if _OWN in inner:
        named = [[f"{name}=", *_parts(item)] for name, item in inner.items() if name != _OWN]
        return [*_parts(inner[_OWN]), "(", *_joined(named), ")"]
    if all(name.isdigit() for name in inner):
        return ["[", *_joined([_parts(item) for item in inner.values()]), "]"]
    named = [[f"{name}: ", *_parts(item)] for name, item in inner.items()]
    return ["{", *_joined(named), "}"]


def _joined(items: list[_Parts]) -> _Parts:
    left_out = 0
    if len(items) > _MOST_ITEMS:
        left_out = len(items) - _SHOWN_ITEMS
        items = [*items[:_SHOWN_ITEMS], [f"… {left_out} more"]]
    return list(_separated(items))


def _separated(items: list[_Parts]) -> Iterator[str | int]:
    for number, item in enumerate(items):
        if number:
            yield ", "
        yield from item


def constant_text(constant: object) -> str:
    """Write a constant argument as Python does, dtypes in their short form."""
    if isinstance(constant, Symbol):
        name = str(constant).removeprefix("torch.")
        return short_dtype(name) if name != str(constant) else name
    if isinstance(constant, str) and len(constant) > _LONGEST_STRING:
        return repr(constant[:_LONGEST_STRING] + "…")
    if isinstance(constant, list) and len(constant) > 2 * _MOST_ITEMS:
        head = ", ".join(map(str, constant[:_SHOWN_ITEMS]))
        return f"[{head}, … {len(constant) - _SHOWN_ITEMS} more]"
    return repr(constant)
