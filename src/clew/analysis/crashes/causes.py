"""Kinds of faults: what an exception's text looks like, and the function that explains it.

Input: a `Scene`. Output: a `Cause`, None if no kind fits. To add a kind: a pattern and a function
from a scene and the match to a `Cause`, or to None where it cannot tell; the next kind then may.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from clew.analysis.crashes.autograd_faults import (
    inplace_cause,
    leaf_cause,
    no_gradient_cause,
    no_scalar_cause,
)
from clew.analysis.crashes.cause import Cause
from clew.analysis.crashes.containers import container_cause, unpacking_cause
from clew.analysis.crashes.einsum_letters import einsum_cause
from clew.analysis.crashes.elsewhere import batch_cause, compiler_cause, region_cause, worker_cause
from clew.analysis.crashes.indices import (
    bounds_cause,
    embedding_cause,
    index_count_cause,
    target_range_cause,
    topk_cause,
)
from clew.analysis.crashes.layer_sizes import kernel_cause, layer_cause
from clew.analysis.crashes.memory_held import memory_cause
from clew.analysis.crashes.scene import Scene
from clew.analysis.crashes.second_backward import second_backward_cause
from clew.analysis.crashes.tensor_sizes import (
    broadcast_cause,
    cat_cause,
    count_cause,
    hidden_cause,
    product_cause,
    same_size_cause,
    stack_cause,
    stride_cause,
    target_cause,
    view_cause,
)
from clew.analysis.crashes.types_and_devices import (
    device_cause,
    index_dtype_cause,
    mask_cause,
    mixed_dtypes_cause,
    probabilities_cause,
)

Explain: TypeAlias = Callable[[Scene, re.Match[str]], Cause | None]

_KINDS: tuple[tuple[str, Explain], ...] = (
    (r"^(?P<cls>\w+): Caught \w+ in DataLoader worker process (?P<worker>\d+)", worker_cause),
    (r"(?s).", batch_cause),
    (r"from user code:\s*\n", compiler_cause),
    (r"not enough memory|can't allocate memory|out of memory", memory_cause),
    # containers
    (r"must be Tensor, not (?P<kind>tuple|list|dict)\b", container_cause),
    (r"AttributeError: '(?P<kind>tuple|list|dict)' object has no attribute", container_cause),
    (r"unsupported operand [^\n]*'(?P<kind>tuple|list|dict)'", container_cause),
    (r"can only concatenate (?P<kind>tuple|list) ", container_cause),
    (r"TypeError: (?P<kind>tuple|list) indices must be integers or slices, not", container_cause),
    (r"expected Tensor as element \d+ [^\n]*but got (?P<kind>tuple|list|dict)", container_cause),
    (r"ValueError: (too many|not enough) values to unpack", unpacking_cause),
    # devices and dtypes
    (r"floating point type for target with class probabilities", probabilities_cause),
    (r"same device|is not on the expected device|Expected all tensors to be on", device_cause),
    (r"device type|different device|on device meta|Unhandled FakeTensor Device", device_cause),
    (r"(scalar types?|dtype)[^\n]*\b(Long|Int|int64)\b[^\n]*", index_dtype_cause),
    (r"'weight' must be 2-D|must be long, int|dtype int64 for index|LongTensor", index_dtype_cause),
    (r"not implemented for '(Float|Double|Half|BFloat16|Long|Int|Bool)'", index_dtype_cause),
    (r"same (scalar )?d?type", mixed_dtypes_cause),
    (r"d?types?[^\n]*(same|match|equal|but found|but got|expected)", mixed_dtypes_cause),
    (r"expected [^\n]*scalar type|Found dtype", mixed_dtypes_cause),
    (r"not implemented for '(Float|Double|Half|BFloat16|Long|Int|Bool)'", mixed_dtypes_cause),
    (r"boolean masks|to be a boolean tensor", mask_cause),
    (r"a floating point or complex dtype|can't be cast to", mixed_dtypes_cause),
    # indices
    (r"index out of range in self|not in the valid range \[0, \d+\)", embedding_cause),
    (
        r"index (?P<index>-?\d+) is out of bounds for dimension (?P<dim>\d+) "
        r"with size (?P<size>\d+)",
        bounds_cause,
    ),
    (r"Index tensor must have the same number of dimensions as", index_count_cause),
    (r"Target (?P<index>-?\d+) is out of bounds", target_range_cause),
    (r"selected (index|number) k out of range", topk_cause),
    # losses
    (r"batch_size \(\d+\) to match target|Expected target size|multi-target", target_cause),
    (r"Target size \(.*must be the same as input size|Using a target size", same_size_cause),
    # layers: sizes that their settings say
    (
        r"Expected hidden\S* size [\(\[](?P<expected>[\d, ]+)[\)\]], got [\(\[](?P<got>[\d, ]+)",
        hidden_cause,
    ),
    (r"(?s).", layer_cause),
    (r"Kernel size can't be greater than|Output size is too small", kernel_cause),
    (r"Padding size should be less than the corresponding input dimension", kernel_cause),
    # tensors
    (r"einsum\(\):", einsum_cause),
    (r"cannot be multiplied|size mismatch|batch2 tensor|mat1 and mat2", product_cause),
    (
        r"size of tensor a \((?P<one>\d+)\) must match the size of tensor b \((?P<two>\d+)\) "
        r"at non-singleton dimension (?P<dim>\d+)",
        broadcast_cause,
    ),
    (r"Sizes of tensors must match except in dimension (?P<dim>\d+)", cat_cause),
    (r"same number of dimensions: got", count_cause),
    (r"stack expects each tensor to be equal size", stack_cause),
    (r"shape '(?P<shape>\[[^']*\])' is invalid for input of size (?P<count>\d+)", view_cause),
    (r"view size is not compatible", stride_cause),
    # autograd
    (r"modified by an inplace operation", inplace_cause),
    (r"leaf Variable that requires grad is being used in an in-place", leaf_cause),
    (r"implicitly created only for scalar outputs", no_scalar_cause),
    (r"does not require grad and does not have a grad_fn", no_gradient_cause),
    (r"backward through the graph a second time", second_backward_cause),
    (r"(?s).", region_cause),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), explain) for pattern, explain in _KINDS)
# A message that repeats a whole traceback of a worker or the compiler is longer than any other.
_LONGEST = 20_000


def cause_of(scene: Scene) -> Cause | None:
    """Return what the first kind that fits tells of the cause."""
    text = scene.text[:_LONGEST]
    for pattern, explain in _COMPILED:
        match = pattern.search(text)
        cause = None if match is None else explain(scene, match)
        if cause is not None:
            return cause
    return None
