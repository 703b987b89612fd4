"""Read the arguments and results of an op from the words that the native engine wrote.

Comes in: words, as `native/sources/arguments.h` has them. Goes out: arguments as the program gave
them: without those that have their defaults, dtypes and the like as torch's objects.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import clew.native.loading
from clew.events.vocabulary import Opaque
from clew.torch_compat import op_overload, schema_of

(
    _NONE, _TENSOR, _INT, _LONG, _DOUBLE, _COMPLEX, _BOOL, _TEXT, _INTS, _LIST, _DEVICE, _GENERATOR,
    _STORAGE, _OTHER, _RESULTS, _WRITTEN, _DICT, _KEYWORD, _OBJECT,
) = range(19)  # fmt: skip
# Stands for the op in the words of a module call.
_NO_OP = 0xFFFFFFFF
# Stands for a tensor.
_HOLE = ()
_OBJECTS = {_GENERATOR: "Generator", _STORAGE: "UntypedStorage"}


class _Undefined:
    """A tensor that is none, which is not the same as no tensor where that is the default."""


UNDEFINED = _Undefined()
# Stands for the default of an argument that has none.
_NO_DEFAULT = object()

_LAYOUTS = (
    torch.strided, torch.sparse_coo, torch.sparse_csr, "torch.mkldnn", torch.sparse_csc,
    torch.sparse_bsr, torch.sparse_bsc, torch.jagged,
)  # fmt: skip
_FORMATS = (
    torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d,
)  # fmt: skip
_NUMBERED: dict[str, tuple[Any, ...]] = {"Layout": _LAYOUTS, "MemoryFormat": _FORMATS}


@functools.cache
def numbered() -> tuple[list[torch.dtype], list[str]]:
    """Return the dtypes and the names of device types, in the order of their numbers in C++."""
    native: Any = clew.native.loading.load()
    dtypes, devices = native.numbered()
    return dtypes, devices


@dataclass(frozen=True, slots=True)
class _Argument:
    """What the schema of an op says of one argument."""

    name: str
    # Numbers stand for dtypes, layouts and memory formats.
    kind: str
    is_keyword: bool
    default: Any


class EngineOps:
    """The ops that the native engine has numbered."""

    def __init__(self) -> None:
        self._ops: list[Any] = []
        # Their arguments, of those asked for: asking torch takes longer than to read a call.
        self._signatures: dict[int, list[_Argument]] = {}

    def __getitem__(self, number: int) -> Any:
        if number >= len(self._ops):
            native: Any = clew.native.loading.load()
            self._ops += [op_overload(*names) for names in native.ops(len(self._ops))]
        return self._ops[number]

    def signature(self, number: int) -> list[_Argument]:
        """Return the arguments of an op."""
        known = self._signatures.get(number)
        if known is None:
            known = [
                _Argument(
                    argument.name,
                    _kind(argument),
                    argument.kwarg_only,
                    argument.default_value if argument.has_default_value() else _NO_DEFAULT,
                )
                for argument in schema_of(self[number]).arguments
            ]
            self._signatures[number] = known
        return known


def call_of(
    words: bytes, texts: list[str], objects: list[Any], ops: EngineOps
) -> tuple[list[Any], dict[str, Any], Any]:
    """Return the arguments, keyword arguments and result of a call, a tuple for each tensor.

    `texts` and `objects` are what the words refer to by number.
    """
    reader = _WordReader(words, texts, objects)
    if reader.last == _NO_OP:
        return _module_call(reader)
    signature = ops.signature(reader.last)
    args, kwargs, results = _op_call(reader, signature)
    written: dict[str, Any] = {}
    while reader.is_at(_WRITTEN):
        name = signature[reader.payload()].name
        written[name] = reader.value()
    return args, kwargs, _result(results, written)


def op_call_of(
    words: bytes, texts: list[str], tensors: Iterable[Any], ops: EngineOps
) -> tuple[list[Any], dict[str, Any], Any]:
    """Return the arguments, keyword arguments and result of an op, with its `tensors` in them."""
    reader = _WordReader(words, texts, [])
    args, kwargs, results = _op_call(reader, ops.signature(reader.last))
    rest = iter(tensors)
    args, kwargs, results = (_filled(part, rest) for part in (args, kwargs, results))
    return args, kwargs, _result(results, {})


def _op_call(
    reader: _WordReader, signature: list[_Argument]
) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """Read the arguments, keyword arguments and results of an op."""
    given = []
    while not reader.is_at(_RESULTS):
        given.append(reader.value())
    args, kwargs = _as_given(signature, given)
    count = reader.payload()
    return args, kwargs, [_object(reader.value(), "") for _ in range(count - 1)]


def _filled(described: Any, tensors: Iterator[Any]) -> Any:
    """Return what was read with the next of the tensors in each hole."""
    if described == _HOLE and type(described) is tuple:
        return next(tensors)
    if type(described) is list:
        return [_filled(item, tensors) for item in described]
    if type(described) is dict:
        return {name: _filled(item, tensors) for name, item in described.items()}
    return described


def _module_call(reader: _WordReader) -> tuple[list[Any], dict[str, Any], Any]:
    args = []
    while not reader.is_at(_RESULTS) and not reader.is_at(_KEYWORD):
        args.append(reader.value())
    named = {}
    while reader.is_at(_KEYWORD):
        name = reader.text()
        named[name] = reader.value()
    return args, named, reader.value() if reader.payload() else None


def _result(results: list[Any], written: dict[str, Any]) -> Any:
    """Return the results with the arguments that were written to and not returned."""
    result: Any = None if not results else results[0] if len(results) == 1 else results
    if not written:
        return result
    if isinstance(result, list):
        return {**{str(i): v for i, v in enumerate(result)}, **written}
    return written if result is None else {"": result, **written}


def _as_given(signature: list[_Argument], values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments as torch hands them to Python: without defaults at the end."""
    args: list[Any] = []
    named: dict[str, Any] = {}
    given = 0
    for argument, value in zip(signature, values, strict=True):
        is_default = _equal(argument.default, value)
        if not argument.is_keyword:
            args.append(_object(value, argument.kind))
            given = given if is_default else len(args)
        elif not is_default:
            named[argument.name] = _object(value, argument.kind)
    return args[:given], named


def _equal(default: Any, value: Any) -> bool:
    """Return whether an argument has its default value: 2.0 is not 2, as torch sees it."""
    return type(default) is type(value) and bool(default == value)


def _kind(argument: Any) -> str:
    """Return what an argument is: numbers stand for dtypes, layouts and memory formats."""
    text = str(getattr(argument, "real_type", argument.type))
    return text.removeprefix("Optional[").removesuffix("]").removesuffix("?")


def _object(value: Any, kind: str) -> Any:
    if value is UNDEFINED:
        return None
    if type(value) is list:
        return [None if item is UNDEFINED else item for item in value]
    objects = numbered()[0] if kind == "ScalarType" else _NUMBERED.get(kind)
    if objects is None or type(value) is not int:
        return value
    return objects[value] if 0 <= value < len(objects) else Opaque(f"{kind} {value}")


class _WordReader:
    """Reads values from words, one after the other."""

    def __init__(self, words: bytes, texts: list[str], objects: list[Any]) -> None:
        self._bytes = words
        *self._words, self.last = struct.unpack(f"<{len(words) // 8}Q", words)
        self._texts = texts
        self._objects = objects
        self._at = 0

    def is_at(self, tag: int) -> bool:
        """Return whether the next word has a tag."""
        return self._at < len(self._words) and self._words[self._at] >> 56 == tag

    def payload(self) -> int:
        """Read a word, and return what it holds besides its tag."""
        self._at += 1
        return int(self._words[self._at - 1] & 0x00FFFFFFFFFFFFFF)

    def text(self) -> str:
        """Read a word that holds the number of a text."""
        return self._texts[self.payload()]

    def value(self) -> Any:
        """Read a value."""
        tag = self._words[self._at] >> 56
        payload = self.payload()
        if tag == _NONE:
            return UNDEFINED if payload else None
        if tag == _TENSOR:
            return _HOLE
        if tag == _INT:
            return payload - (1 << 56) if payload >> 55 else payload
        if tag == _BOOL:
            return bool(payload)
        if tag == _INTS:
            return [self._read("<q") for _ in range(payload)]
        if tag == _LIST:
            return [self.value() for _ in range(payload)]
        if tag == _DICT:
            return {self.text(): self.value() for _ in range(payload)}
        if tag == _OBJECT:
            return self._objects[payload]
        if tag in (_LONG, _DOUBLE):
            return self._read("<q" if tag == _LONG else "<d")
        if tag == _COMPLEX:
            real = self._read("<d")
            return complex(real, self._read("<d"))
        if tag == _TEXT:
            return self._texts[payload]
        if tag == _DEVICE:
            return torch.device(self._texts[payload])
        return Opaque(_OBJECTS.get(tag, "object"))

    def _read(self, form: str) -> Any:
        self._at += 1
        return struct.unpack_from(form, self._bytes, 8 * (self._at - 1))[0]
