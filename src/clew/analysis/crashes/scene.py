"""The scene of a crash: what failed, the tensors it was given by their names, and the layer.

Input: a `Run`, the event that failed, the exception's text and what was noted live. Output: a
`Scene`, from which `causes` tells what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from clew.analysis.crashes.facts import GIVEN, CrashFacts, IndexFacts, TensorFacts
from clew.analysis.crashes.failed_expression import (
    FailedExpression,
    Span,
    WrittenExpression,
    failed_expression,
    is_primary,
)
from clew.events.model import Source
from clew.events.op_names import bare_op
from clew.events.tensor_text import short_dtype
from clew.events.vocabulary import COMPOSITE, MODULE, OP
from clew.run.event import Event
from clew.run.run import Run
from clew.run.value import Value

# Settings that say which sizes a layer takes, and what else to show of such a layer.
_SIZED = {
    "in_features": ("in_features", "out_features"),
    "in1_features": ("in1_features", "in2_features", "out_features"),
    "in_channels": ("in_channels", "out_channels", "kernel_size"),
    "num_embeddings": ("num_embeddings", "embedding_dim"),
    "normalized_shape": ("normalized_shape",),
    "num_features": ("num_features",),
    "num_channels": ("num_groups", "num_channels"),
    "input_size": ("input_size", "hidden_size", "batch_first"),
    "embed_dim": ("embed_dim", "num_heads", "batch_first"),
    "kernel_size": ("kernel_size", "stride", "padding"),
}


_LAST_CAST = re.compile(r"\.(to\([^()]*\)|(float|double|half|bfloat16|long|int|cpu|cuda)\(\))$")


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """One tensor that failing code was given.

    `is_written` says whether `name` stands in the source so; `number` is its value in the run.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    requires_grad: bool = False
    number: int | None = None
    is_written: bool = False

    @property
    def look(self) -> str:
        """Return `f32[2,3]`."""
        return f"{short_dtype(self.dtype)}[{','.join(map(str, self.shape))}]"

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Return whether the elements are floating point numbers."""
        return "float" in self.dtype

    @property
    def is_integer(self) -> bool:
        """Return whether the elements are integers."""
        return self.dtype.startswith(("int", "uint"))

    def changed(self, suffix: str) -> str:
        """Write a change of this tensor: `x.flatten(1)`."""
        if not self.is_written:
            return f"{suffix} on {self.name}"
        if self.name.endswith(suffix) and suffix.startswith((".transpose", ".permute", ".T")):
            return f"{self.name.removesuffix(suffix)}, without {suffix}"
        last = _LAST_CAST.search(self.name)
        if last is not None and _LAST_CAST.search(suffix):
            return f"{self.name[: last.start()]}{suffix} in place of {last[0]}"
        return f"{self.name}{suffix}" if is_primary(self.name) else f"({self.name}){suffix}"


@dataclass(frozen=True, slots=True)
class Layer:
    """The module that failed, if its settings say what sizes it takes.

    `given` is the first tensor it was called with.
    """

    path: str
    cls: str
    settings: dict[str, Any]
    parameters: tuple[GivenTensor, ...]
    given: GivenTensor | None

    @property
    def said(self) -> str:
        """Write the layer as it was made: `Linear(in_features=10, out_features=4)`."""
        keys = next(keys for key, keys in _SIZED.items() if key in self.settings)
        shown = [f"{key}={_setting(self.settings[key])}" for key in keys if key in self.settings]
        return f"{self.cls}({', '.join(shown)})"

    @property
    def name(self) -> str:
        """Return the path, or what the root is called."""
        return self.path or "the root module"

    def size(self, setting: str) -> int | None:
        """Return a setting that is a size, None if there is none."""
        value = self.settings.get(setting)
        return value if type(value) is int else None


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a cause may be told from.

    `near` are tensors that the failing statement names, if it is not known what it was given.
    `is_named` is false where arguments are those of an op, which may be others than the program's.
    """

    run: Run
    event: Event | None
    text: str
    facts: CrashFacts
    failed: FailedExpression | None
    arguments: tuple[GivenTensor, ...]
    layer: Layer | None
    near: tuple[GivenTensor, ...] = ()
    is_named: bool = True

    def like(self, *shape: int) -> GivenTensor | None:
        """Return the argument that has a shape, None if none or several have."""
        found = [one for one in self.arguments if one.shape == shape]
        return found[0] if len(found) == 1 else None

    def index_facts(self, argument: GivenTensor) -> IndexFacts | None:
        """Return the smallest and largest number of an index, if it was at hand."""
        found = self.facts.indices.get(argument.name)
        is_given = self.layer is not None and self.layer.given == argument
        return self.facts.indices.get(GIVEN) if found is None and is_given else found


def scene_of(run: Run, event: Event | None, text: str, facts: CrashFacts) -> Scene:
    """Gather what failed, its arguments by name and the layer."""
    if event is None:
        return Scene(run, event, text, facts, None, (), None)
    source = event.source
    text_of_file = "" if source is None else run.columns.sources.get(source.file, "")
    failed = None if source is None else failed_expression(text_of_file, source)
    call = _module_call(run, event)
    caller = None if source is None else _called_at(run, call, source)
    written = _written(run, event, failed, facts, caller)
    layer = None if call is None else _layer(call, facts, written)
    arguments = [*written]
    if layer is not None:
        if layer.given is not None and not layer.given.is_written:
            arguments.append(layer.given)
        arguments += layer.parameters
    near: tuple[GivenTensor, ...] = ()
    is_named = bool(written) or layer is not None
    if not is_named:
        arguments = list(_inputs(event, failed))
        near = () if arguments else tuple(_near(failed, facts))
    known = tuple(_numbered(event, call, arguments))
    layer = _with_numbers(layer, known)
    return Scene(run, event, text, facts, failed, known, layer, near, is_named or not arguments)


def _module_call(run: Run, event: Event) -> Event | None:
    row = int(run.owner_row[event.row])
    return run.event(row) if row >= 0 else None


def _called_at(run: Run, call: Event | None, source: Source) -> Event | None:
    """Return the module call that a line itself makes: this one, or a container that it ran in."""
    while call is not None:
        place = run.columns.places[int(run.columns.place[call.row])]
        is_here = not place.library and place.file == source.file
        if is_here and _span_of(place) == _span_of(source):
            return call
        row = int(run.parent_row[call.row])
        call = run.event(row) if row >= 0 else None
    return None


def _span_of(place: Any) -> Span:
    return place.line, place.end_line, place.col, place.end_col


def _written(
    run: Run, event: Event, failed: FailedExpression | None, facts: CrashFacts, call: Event | None
) -> list[GivenTensor]:
    """Return the tensors of the failing expression that are known, by their text in the source."""
    if failed is None:
        return []
    if call is not None:
        given = call.inputs
        pairs = [
            *((one, str(at)) for at, one in enumerate(failed.positional)),
            *((one, str(one.keyword)) for one in failed.keywords),
        ]
        return [tensor for one, path in pairs for tensor in _given_as(one, path, given)]
    operands = [_operand(run, event, one, facts) for one in failed.operands]
    if failed.is_operator and all(len(one) < 2 for one in operands):
        firsts = [one[0] if one else None for one in operands]
        found = _by_position(event, [one.text for one in failed.operands], firsts)
        return [one for one in found if one is not None]
    return [tensor for one in operands for tensor in one]


def _given_as(
    one: WrittenExpression, path: str, given: Mapping[str, Value]
) -> Iterator[GivenTensor]:
    """Yield the tensors that a call was given as one argument, those of a tuple by their index."""
    if path in given:
        yield _argument(one.text, given[path], True)
    elif one.elements:
        for at, element in enumerate(one.elements):
            yield from _given_as(element, f"{path}.{at}", given)
    else:
        for inner, value in given.items():
            if inner.startswith(f"{path}."):
                yield _argument(_item(one.text, inner[len(path) + 1 :]), value, True)


def _item(text: str, path: str) -> str:
    """Write an item of an expression by its path, such as `h[1][0]` for `1.0`."""
    keys = [key if key.isdecimal() else repr(key) for key in path.split(".")]
    return (text if is_primary(text) else f"({text})") + "".join(f"[{key}]" for key in keys)


def _operand(
    run: Run, event: Event, one: WrittenExpression, facts: CrashFacts
) -> list[GivenTensor]:
    """Return the tensor that an operand is, those in it if it is a tuple or list."""
    if one.text in facts.tensors:
        return [_noted(one.text, facts.tensors[one.text], True)]
    if one.text in facts.containers:
        inside = [(name, f) for name, f in facts.tensors.items() if name.startswith(one.text + "[")]
        if inside:
            return [_noted(name, noted, True) for name, noted in inside]
    results = _results_at(run, event, one.span)
    if list(results) in ([""], ["0"]):
        return [_argument(one.text, value, True) for value in results.values()]
    return [_argument(_item(one.text, path), value, True) for path, value in results.items()]


def _by_position(
    event: Event, texts: list[str], found: list[GivenTensor | None]
) -> list[GivenTensor | None]:
    """Fill in operands of an operator that are not known from the op, which takes just these.

    A cast that changes nothing, for example, has no event to tell what it returned.
    """
    values = list(event.inputs.values())
    if None not in found or not any(found) or len(values) != len(texts):
        return found
    pairs = list(zip(found, values, strict=True))
    if any(one is not None and (one.dtype, one.shape) != (v.dtype, v.shape) for one, v in pairs):
        return found
    filled = zip(texts, pairs, strict=True)
    return [_argument(text, value, True) if one is None else one for text, (one, value) in filled]


def _near(failed: FailedExpression | None, facts: CrashFacts) -> Iterator[GivenTensor]:
    """Yield the tensors that the failing statement names, whatever it does with them."""
    for name in () if failed is None else failed.names:
        if name in facts.tensors:
            yield _noted(name, facts.tensors[name], True)


def _results_at(run: Run, event: Event, span: Span) -> dict[str, Value]:
    """Return what the expression at a span of the failing statement gave, by the events it ran."""
    source = event.source
    if source is None or not span[3]:
        return {}
    places = run.columns.places
    here = [
        number
        for number, place in enumerate(places)
        if _span_of(place) == span and place.file == source.file
    ]
    c = run.columns
    calls = np.isin(c.place, here) & (c.kind == MODULE)
    ops = np.isin(run.derived.source, here) & np.isin(c.kind, (OP, COMPOSITE))
    rows = np.flatnonzero((calls | ops) & (c.error < 0))
    # Ops of a backward pass have the line of their forward op.
    rows = rows[(rows < event.row) & (run.forward_row[rows] < 0)]
    for found in (rows[calls[rows]], rows):
        if len(found):
            return dict(run.event(int(found[-1])).outputs)
    return {}


def _layer(call: Event, facts: CrashFacts, written: Iterable[GivenTensor]) -> Layer | None:
    settings = call.attributes
    if not any(key in settings for key in _SIZED):
        return None
    path = call.module or ""
    parameters = [
        _noted(f"{path}.{name}" if path else name, one, False)
        for name, one in facts.parameters.items()
    ]
    at, first = next(iter(call.inputs.items()), ("", None))
    given: GivenTensor | None = None
    if first is not None:
        # A container passes on what it was called with, which has a name.
        same = (one for one in written if one.number == first.number)
        inside = f".{at}" if "." in at else ""
        given = next(same, _argument(f"{path or 'model'}:in{inside}", first, False))
    return Layer(path, call.name, settings, tuple(parameters), given)


def _inputs(event: Event, failed: FailedExpression | None) -> Iterator[GivenTensor]:
    """Yield the tensors of the failing op by their positions, or by the parameters' names.

    The tensors in a list are its items, where the op is what the line calls.
    """
    first = failed.positional[0].text if failed is not None and failed.positional else None
    function = "" if failed is None else failed.function.rpartition(".")[2]
    for path, value in event.inputs.items():
        at, _, inner = path.partition(".")
        name = f"argument {at}"
        if inner:
            is_called = at == "0" and function == bare_op(event.name)
            is_plain = is_called and first is not None and is_primary(first)
            name = _item(str(first), inner) if is_plain else f"tensor {inner} of the list"
        yield _argument(value.name or name, value, False)


def _argument(name: str, value: Value, is_written: bool) -> GivenTensor:
    shape = () if value.shape is None else value.shape
    return GivenTensor(
        name, value.dtype, shape, value.device, value.requires_grad, value.number, is_written
    )


def _noted(name: str, noted: TensorFacts, is_written: bool) -> GivenTensor:
    return GivenTensor(
        name, noted.dtype, noted.shape, noted.device, noted.requires_grad, None, is_written
    )


def _numbered(
    event: Event, call: Event | None, arguments: Iterable[GivenTensor]
) -> Iterator[GivenTensor]:
    """Yield arguments with the number of the one value of the event that looks like them."""
    values = [*event.inputs.values(), *(() if call is None else call.inputs.values())]
    for one in arguments:
        if one.number is None:
            alike = {v.number for v in values if (v.dtype, v.shape) == (one.dtype, one.shape)}
            one = replace(one, number=alike.pop()) if len(alike) == 1 else one
        yield one


def _with_numbers(layer: Layer | None, arguments: Iterable[GivenTensor]) -> Layer | None:
    if layer is None or layer.given is None:
        return layer
    given = next((one for one in arguments if one.name == layer.given.name), layer.given)
    return replace(layer, given=given)


def _setting(value: Any) -> str:
    """Write a setting as people do: a kernel of (3, 3) as 3."""
    if isinstance(value, list) and len(set(map(str, value))) == 1:
        return str(value[0])
    return str(value)
