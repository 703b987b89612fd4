"""Report kernels that torch would not use without a dispatch mode, from the ops that show it.

Input: ops as a mode sees them. Output: gaps. While a mode is on, torch has to expect tensors
of any class: some functions that only run other ops then run different ones, and a result may
differ in its last bits. The list was found by running all of torch's sample inputs with and without
a mode, on 2.13. Where only the names of ops differ (`view` for `_reshape_alias`, `add` for `add_`
in sums of gradients), nothing is reported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeAlias
from weakref import ref

from torch import Tensor, is_grad_enabled, is_inference_mode_enabled

from clew.events.model import Gap
from clew.record.recorder import Recorder
from clew.stream.records import EVENT_FIELDS
from clew.torch_compat import is_composite, unobserved

# Inspects a call of an op: its arguments, its result, whether autograd made a node for it. Adds a
# gap to the recording, and returns whether there is nothing more to look for.
Watch: TypeAlias = Callable[[Recorder, tuple[Any, ...], Any, bool], bool]

_WHAT = "the kernels of an untraced run"
_REMEDY = 'level="modules" runs the same kernels as no trace'

_INFERENCE = Gap(
    _WHAT,
    "torch.inference_mode",
    "below a dispatch mode, composite ops such as linear may choose other kernels there, and "
    "results may differ in the last bits",
    f"torch.no_grad() runs the same kernels with all ops recorded; {_REMEDY}",
)
_VALUES_ALONE = Gap(
    _WHAT,
    "linalg.svdvals, eigvalsh, eigvals and what uses them",
    "while a dispatch mode is on, they compute vectors as well, and results may differ in the "
    "last bits",
    _REMEDY,
)
_PRODUCTS = Gap(
    _WHAT,
    "backward of prod",
    "while a dispatch mode is on, it takes the way that is safe for zeros, and gradients may "
    "differ in the last bits",
    _REMEDY,
)


def watch_of(func: Any, name: str) -> Watch | None:
    """Return the function that inspects the calls of an op, None for an op that shows nothing."""
    if name in ("aten::_linalg_svd", "aten::_linalg_eigh", "aten::linalg_eig"):
        return _values_alone
    if name == "aten::prod":
        return _product
    return _whole if is_composite(func) else None


def _whole(recorder: Recorder, args: tuple[Any, ...], out: Any, grad: bool) -> bool:
    """Report a composite op that was not taken apart; for some layouts torch has kernels of it."""
    if is_inference_mode_enabled():
        recorder.gaps.add(_INFERENCE)
        return True
    return False


def _product(recorder: Recorder, args: tuple[Any, ...], out: Any, grad: bool) -> bool:
    if grad:
        recorder.gaps.add(_PRODUCTS)
    return grad


def _values_alone(recorder: Recorder, args: tuple[Any, ...], out: Any, grad: bool) -> bool:
    """Watch a decomposition: without a mode, functions of the values alone compute no vectors.

    Those functions drop the vectors at once: before another op runs, and before the program goes
    on.
    """
    with unobserved():
        if is_grad_enabled() and args[0].requires_grad:
            return False  # vectors are computed in any case
    frame = sys._getframe(2)
    caller = (id(frame), id(frame.f_code), frame.f_lasti)
    after, known = len(recorder.buffer.events) + EVENT_FIELDS, ref(recorder)
    del frame

    def dropped(reference: Any) -> None:
        now, alive = sys._getframe().f_back, known()
        if now is None or (id(now), id(now.f_code), now.f_lasti) != caller:
            return
        # 0, if this op's event was the last of a batch.
        if alive is not None and len(alive.buffer.events) in (0, after):
            alive.gaps.add(_VALUES_ALONE)

    vectors = next(item for item in reversed(out) if isinstance(item, Tensor))
    _latest[get_ident()] = ref(vectors, dropped)
    return False


# The vectors that each thread computed last: only when they are deleted is it known.
_latest: dict[int, Any] = {}
