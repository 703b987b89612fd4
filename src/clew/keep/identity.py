"""Identify tensors and record the facts of each, without keeping any of them alive.

Comes in: a live tensor. Goes out: a token, one per tensor version, whose facts are appended to
`values` (`stream.records`). A weak reference beside each token tells a tensor from one that lived
at the same address before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from clew.keep import nesting
from clew.keep.generators import Generators
from clew.program_errors import pass_on
from clew.stream.records import SAME, WRITTEN, Extra, UnknownShape
from clew.torch_compat import function_mode_count, is_view, shard_of, unobserved

if TYPE_CHECKING:
    from clew.record.module_registry import ModuleTable

Token = tuple[int, ...]

PLAIN = frozenset({Tensor, torch.nn.Parameter})
# The `__torch_function__` of classes that cannot observe reads of their attributes.
_UNSEEING = torch.nn.Parameter.__torch_function__

_CONSTANTS = {torch.dtype, torch.device, torch.layout, torch.memory_format}
nesting.learn(Tensor, torch.nn.Module, _CONSTANTS)


class TensorTable:
    """The tokens of all tensors seen, by the tensor's id while it lives."""

    def __init__(self, modules: ModuleTable) -> None:
        self.values: list[Any] = []
        # Weak references of memory that is gone.
        self.gone: list[Any] = []
        # id of a storage -> the reference that goes into `gone` with it. Torch keeps the Python
        # object of a storage for as long as the storage lives, whoever holds it.
        self.memories: dict[int, Callable[[], Any]] = {}
        self.generators = Generators()
        # number of a storage that no recorded op made -> its bytes, and the id of the reference
        # that is told when it is freed
        self.sizes: dict[int, tuple[int, int]] = {}
        # id(tensor) -> a function that returns the tensor while its token is valid, the token of
        # its newest version, the recorded `requires_grad`, or None if it need not be compared
        self.live: dict[int, tuple[Callable[[], Tensor | None], Token, bool | None]] = {}
        # Called with each new token and its tensor when more than facts is to be kept.
        self.keep: Callable[[Token, Tensor, Any], None] | None = None
        self._name_of = modules.tensor_name
        name_tensors(modules, self.forget)
        # id(tensor) -> (its token, the version the token stands for), for tensors met outside ops;
        # the token tells it from one that lived at the same address before
        self._versions: dict[int, tuple[Token, int]] = {}
        # address of a storage that no recorded op made -> (a reference to it, its number)
        self._storages: dict[int, tuple[Callable[[], Any], int]] = {}
        self._numbers = itertools.count()
        # id(tensor) -> (a reference to it, its token, the event), for those still being written to
        self._unread: dict[int, tuple[Callable[[], Any], Token, int]] = {}

    @property
    def generator_names(self) -> list[str]:
        """Return the names of the generators that ops drew from, by number."""
        return self.generators.names

    def known(self, tensor: Tensor) -> Token:
        """Return the token of a tensor that is used; make one if there is none."""
        return self.credited(tensor, -1)

    def adopted(self, tensor: Tensor) -> Token:
        """Make a token for a tensor that is used and has none."""
        with unobserved():
            return self._adopt(tensor, -1)

    def credited(self, tensor: Tensor, producer: int) -> Token:
        """Return the token of a tensor; a new one names the call `producer` as its producer."""
        token = self._held(tensor)
        if token is not None:
            return token
        with unobserved():
            return self._adopt(tensor, producer)

    def _held(self, tensor: Tensor) -> Token | None:
        """Return the token of a known tensor; a new one if its `requires_grad` was set since."""
        held = self.live.get(id(tensor))
        if held is None or held[0]() is not tensor:
            return None
        told = held[2]
        if told is None or function_mode_count() or told is tensor.requires_grad:
            return held[1]
        token = self.add(tensor, held[1], None, SAME, not told)
        known = self._versions.get(id(tensor))
        if known is not None and known[0] is held[1]:
            self._versions[id(tensor)] = (token, known[1])
        return token

    def current(self, tensor: Tensor, producer: int = -1) -> Token:
        """Return the token of a tensor, a new one if its version has moved.

        For places where no op reports writes. `producer` is the call that a new token names.
        """
        held = self.live.get(id(tensor))
        if held is not None and type(tensor) in PLAIN and not function_mode_count():
            known = self._versions.get(id(tensor))
            if (
                known is not None
                and held[1] is known[0]
                and held[0]() is tensor
                and (held[2] is None or held[2] is tensor.requires_grad)
                and version_of(tensor) == known[1]
            ):
                return held[1]
        with unobserved():
            return self._current(tensor, producer, held is None)

    def _current(self, tensor: Tensor, producer: int, is_new: bool) -> Token:
        held = None if is_new else self._held(tensor)
        if held is None:
            token = self._adopt(tensor, producer)
        else:
            version = version_of(tensor)
            if version is None or version == self._known_version(tensor, held, version):
                return held
            token = self.add(tensor, held, version, producer, tensor.requires_grad)
        version = version_of(tensor)
        if version is not None:
            self._versions[id(tensor)] = (token, version)
        return token

    def _known_version(self, tensor: Tensor, token: Token, now: int) -> int:
        """Return the tensor version that a token stands for."""
        known = self._versions.get(id(tensor))
        if known is not None and known[0] is token:
            return known[1]
        # Straight from an op: a view has the version its memory had then, which nobody wrote down.
        return now if is_view(tensor) else 0

    def _adopt(self, tensor: Tensor, producer: int) -> Token:
        """Make a token for a tensor that no recorded op made. Flat: runs for every parameter."""
        if self._unread:
            unread = self._unread.pop(id(tensor), None)
            if unread is not None and unread[0]() is tensor:
                return self.add(tensor, unread[1], WRITTEN, unread[2], tensor.requires_grad)
        try:
            if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
                raise TypeError
            memory = tensor.untyped_storage()
            address = memory._cdata
            reference = ref(tensor)
            holder = self._storages.get(address)
            if holder is None or holder[0]() is None:
                holder = self._outside(memory)
            token: Token = tensor.shape
            requires_grad = tensor.requires_grad
            self.values.extend(
                (token, tensor._version, holder[1], tensor.stride(), tensor.dtype, tensor.device,
                 None, requires_grad, producer, self._name_of(tensor), None)
            )  # fmt: skip
            self.live[id(tensor)] = (_while_same(reference, address, requires_grad), token, None)
        except Exception as odd:
            # A subclass, an inference tensor, another layout, no storage.
            pass_on(odd)
            storage = self._storage(tensor)
            version = version_of(tensor)
            return self.add(tensor, storage, version, producer, tensor.requires_grad)
        if self.keep is not None:
            self.keep(token, tensor, None)
        return token

    def produced(
        self,
        tensor: Tensor,
        producer: int,
        grad: bool,
        base: Any,
        hands_on: bool,
        like: Any = None,
    ) -> Token:
        """Return the token of an op's result; `base` is the argument whose memory it may share.

        With `hands_on`, a view requires grad if its base does, also where autograd makes no node.
        `like` is an argument whose memory the result may share although it is no view of it.
        """
        held = self._held(tensor)
        if held is not None:
            return held  # the op returned an argument
        with unobserved():
            shared = _shared(tensor, base, self.known)
            # torch gives the view the version counter of its base only after the op.
            version = 0 if shared is None else version_of(base)
            grad = grad or (hands_on and shared is not None and base.requires_grad)
        token = self.add(tensor, shared, 0 if shared is None else None, producer, grad, like)
        self._versions[id(tensor)] = (token, version or 0)
        return token

    def written(self, tensor: Tensor, producer: int, grad: bool, counted: bool) -> Token:
        """Make a token for a tensor that an op wrote to; `counted` if its version has moved."""
        with unobserved():
            version = version_of(tensor)
            grad = grad or tensor.requires_grad
        # torch raises the version of most writes only after the op.
        version = WRITTEN if version is None else version + (not counted)
        token = self.add(tensor, self.known(tensor), version, producer, grad)
        if version != WRITTEN:
            self._versions[id(tensor)] = (token, version)
        return token

    def written_later(self, tensor: Tensor, producer: int) -> Token:
        """Make a token for a tensor that an op still writes to after it has returned.

        Nothing is kept of it: the next use, by when the program has waited, makes another token.
        """
        grad = tensor.requires_grad
        token = self.add(tensor, self.known(tensor), WRITTEN, producer, grad, keeps=False)
        if self.keep is not None:
            self._unread[id(tensor)] = (self.live.pop(id(tensor))[0], token, producer)
        return token

    def aliased(self, alias: Tensor, token: Token) -> Token:
        """Make a token for a tensor that shows the same elements as a known one, made by no op."""
        return self.add(alias, token, None, SAME, False)

    def renewed(self, tensor: Tensor) -> Token:
        """Make a token for a tensor that was written to without a new version."""
        return self.add(tensor, self.known(tensor), WRITTEN, -1, tensor.requires_grad)

    def add(
        self,
        tensor: Tensor,
        storage: Any,
        version: int | None,
        producer: int,
        grad: bool,
        like: Any = None,
        keeps: bool = True,
    ) -> Token:
        """Make a token for `tensor` as it is now; `like` may have the same elements."""
        with unobserved():
            token: Token
            if type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_nested:
                token, stride, device, extra = tensor.shape, tensor.stride(), tensor.device, None
            else:
                token, stride, device, extra = odd_facts(tensor)
            name = self._name_of(tensor)
            held = self.live.get(id(tensor))
            memory_end = None
            if held is not None and held[0]() is tensor:
                reference = held[0]
            elif storage is None:
                reference, memory_end = self._follow(tensor)
            else:
                reference = ref(tensor)
            self.values.extend(
                (token, version, storage, stride, tensor.dtype, device, extra, grad, producer, name,
                 memory_end)
            )  # fmt: skip
            # None if autograd has yet to set it, or if the tensor's class could observe the read.
            unseen = type(tensor) is Tensor or type(tensor).__torch_function__ is _UNSEEING
            told = grad if unseen and tensor.requires_grad is grad else None
            if extra is not None and is_lazy(tensor):
                reference = _while_lazy(reference)
            self.live[id(tensor)] = (reference, token, told)
            if self.keep is not None and keeps:
                self._versions[id(tensor)] = (token, version_of(tensor) or 0)
                is_view = isinstance(storage, tuple) and version is None
                held = None if is_view or like is None else self.live.get(id(like))
                if held is not None and held[0]() is like:
                    self.keep(token, tensor, held[1])
                else:
                    self.keep(token, tensor, storage if is_view else None)
            return token

    def _follow(self, tensor: Tensor) -> tuple[Any, int]:
        """Have the end of new memory told; return a reference to the tensor, and the id told."""
        try:
            memory = tensor.untyped_storage()
        except Exception as odd:  # sparse, or a wrapper: it has no other memory than itself
            pass_on(odd)
            reference = ref(tensor, self.gone.append)
            return reference, id(reference)
        end = self.memories[id(memory)] = ref(memory, self.gone.append)
        return ref(tensor), id(end)

    def _outside(self, memory: Any) -> tuple[Callable[[], Any], int]:
        """Number a storage that no recorded op is known to have made, and have its end told."""
        number = next(self._numbers)
        known = self.memories.get(id(memory))
        if known is not None and known() is memory:
            # The memory of another value, met through a tensor that was made without an op, as
            # `tensor.data` is: its bytes are counted there.
            end = known
            self.sizes[number] = (0, -1)
        else:
            end = self.memories[id(memory)] = ref(memory, self.gone.append)
            self.sizes[number] = (memory.nbytes(), id(end))
        holder = self._storages[memory._cdata] = (end, number)
        return holder

    def forget(self, tensor: Tensor) -> None:
        """Drop the weak reference to a tensor."""
        self.live.pop(id(tensor), None)

    def release(self) -> None:
        """Drop every weak reference."""
        self.live.clear()
        self.memories.clear()
        self._storages.clear()
        self._versions.clear()
        self._unread.clear()

    def sweep(self) -> list[Token]:
        """Drop the entries of tensors that are gone; return the tokens that remain."""
        # A list of keys is made atomically; a list of pairs is not, and other threads add some.
        for key in list(self.live):
            held = self.live.get(key)
            if held is not None and held[0]() is None and self.live.get(key) is held:
                del self.live[key]
                self._versions.pop(key, None)
        for key in list(self.memories):
            end = self.memories.get(key)
            if end is not None and end() is None and self.memories.get(key) is end:
                del self.memories[key]
        for address in list(self._storages):
            holder = self._storages.get(address)
            if holder is not None and holder[0]() is None:
                self._storages.pop(address, None)
        for key in list(self._unread):
            unread = self._unread.get(key)
            if unread is not None and unread[0]() is None:
                self._unread.pop(key, None)
        held_tokens = [held[1] for held in list(self.live.values())]
        return held_tokens + [unread[1] for unread in list(self._unread.values())]

    def take_memory(self) -> tuple[list[Any], dict[int, tuple[int, int]]]:
        """Return `gone` and `sizes` since the last call; what other threads add meanwhile stays."""
        gone = self.gone[:]
        del self.gone[: len(gone)]
        sizes, self.sizes = self.sizes, {}
        return gone, sizes

    def _storage(self, tensor: Tensor) -> int:
        """Return a number shared by all tensors on the memory of a tensor that no op made."""
        try:
            memory = tensor.untyped_storage()
            holder = self._storages.get(memory._cdata)
            return (self._outside(memory) if holder is None or holder[0]() is None else holder)[1]
        except Exception as odd:
            pass_on(odd)
            return next(self._numbers)


def name_tensors(modules: ModuleTable, forget: Callable[[Tensor], None]) -> None:
    """Have modules measure tensors, and `forget` those that get a name late."""
    modules.owned.on_late = forget
    modules.owned.sizes_of = _sizes


def _sizes(tensors: list[Tensor]) -> list[int | None]:
    with unobserved():
        return [t.numel() if type(t) in PLAIN or not is_lazy(t) else None for t in tensors]


def _while_same(
    reference: Callable[[], Tensor | None], storage: int, requires_grad: bool
) -> Callable[[], Tensor | None]:
    """Return a reference that ends when the tensor's data or `requires_grad` is replaced.

    `tensor.data = ...`, by which models are moved and cast, and `requires_grad` cause no event.
    Only for tensors that no recorded op made: parameters, buffers, inputs.
    """

    def same() -> Tensor | None:
        tensor = reference()
        if tensor is None or function_mode_count():
            return tensor
        if tensor.requires_grad != requires_grad or tensor.untyped_storage()._cdata != storage:
            return None
        return tensor

    return same


def _while_lazy(reference: Callable[[], Tensor | None]) -> Callable[[], Tensor | None]:
    """Return a reference that ends when a lazy module's parameter gets its shape."""

    def lazy() -> Tensor | None:
        tensor = reference()
        return tensor if tensor is not None and is_lazy(tensor) else None

    return lazy


def _shared(tensor: Tensor, base: Any, known: Callable[[Tensor], Token]) -> Token | None:
    """Return the token of `base` if `tensor` really lies on its memory."""
    if not isinstance(base, Tensor):
        return None
    try:
        same = tensor.untyped_storage()._cdata == base.untyped_storage()._cdata
    except Exception as odd:
        pass_on(odd)
        same = True  # a wrapper without storage: trust the op's schema
    return known(base) if same else None


def version_of(tensor: Tensor) -> int | None:
    try:
        return tensor._version
    except Exception as odd:  # inference tensors have none
        pass_on(odd)
        return None


def odd_facts(tensor: Any) -> tuple[Any, ...]:
    """Facts of subclasses, sparse, nested, quantised, wrapped tensors: each one guarded."""
    local = _try(lambda: shard_of(tensor), None)
    return (
        shape_of(tensor),
        _try(lambda: tuple(_dim(d) for d in tensor.stride()), None),
        _try(lambda: tensor.device, None),
        Extra(
            layout=str(_try(lambda: tensor.layout, "")).replace("torch.", ""),
            cls=type(tensor).__name__,
            placements=_try(lambda: ",".join(map(str, tensor.placements)), None),
            local_shape=None if local is None else tuple(local.shape),
        ),
    )


def shape_of(tensor: Any) -> Token:
    """Return the shape of any tensor; nested ones have none."""
    dims = _try(lambda: [_dim(d) for d in tensor.shape], None)
    # An object that no other value has: Python would share one empty plain tuple.
    return torch.Size(dims) if dims is not None else UnknownShape([-1])


def _dim(size: Any) -> int:
    return size if type(size) is int else _try(lambda: int(size.node.hint), -1)


def _try(read: Callable[[], Any], default: Any) -> Any:
    try:
        return read()
    except Exception as odd:
        pass_on(odd)
        return default
