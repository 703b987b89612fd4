"""Where the dimensions of results come from, op by op.

Most tests run real ops on tensors whose sizes are different primes, so that a size says which
dimension it is: the chain of each dimension of the result must end at the dimensions of the inputs
whose sizes divide it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import clew
from clew.analysis.shape.call import OpCall, Part, Step
from clew.analysis.shape.rules import ELEMENTWISE, explain
from clew.analysis.shape_chain import trace_dimension

x = torch.randn(2, 3, 5)
img = torch.randn(2, 3, 11, 13)


def primes_of(number: int, primes: set[int]) -> set[int]:
    return {p for p in primes if number % p == 0}


def sources(run: Callable[..., Any], *inputs: torch.Tensor) -> list[set[int]]:
    """For each dimension of the result, the sizes of the dimensions of the inputs it comes from."""
    with clew.trace() as t:
        result = run(*inputs)
    event = next(e for e in reversed(t.ops) if e.outputs and _is(e, result))
    value = next(iter(event.outputs.values()))
    found = []
    for dim in range(result.dim()):
        chain = trace_dimension(t._current_run(), value.number, dim)
        assert chain.size == result.shape[dim]
        ends = [link for link in chain.origins if link.how == "outside"]
        found.append({link.after.size for link in ends})
    return found


def _is(event: Any, result: torch.Tensor) -> bool:
    return next(iter(event.outputs.values())).shape == tuple(result.shape)


CARRYING: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "add": (lambda a: a + 1, (x,)),
    "add of two": (lambda a, b: a + b, (torch.randn(2, 1, 5), torch.randn(3, 1))),
    "outer by none": (lambda a, b: a[:, None] * b[None], (torch.randn(2), torch.randn(3))),
    "where": (torch.where, (torch.ones(2, 1, dtype=torch.bool), torch.randn(3), torch.randn(()))),
    "clamp": (lambda a: a.clamp_(0), (x.clone(),)),
    "gelu": (F.gelu, (x,)),
    "maximum": (torch.max, (torch.randn(2, 1), torch.randn(3))),
    "view": (lambda a: a.view(6, 5), (x,)),
    "flatten": (lambda a: a.flatten(1), (x,)),
    "unflatten": (lambda a: a.view(30).view(2, 3, 5), (x,)),
    "reshape of a transpose": (lambda a: a.transpose(0, 2).reshape(15, 2), (x,)),
    "regroup": (lambda a: a.reshape(6, 35), (torch.randn(2, 3, 5, 7),)),
    "permute": (lambda a: a.permute(2, 0, 1), (x,)),
    "movedim": (lambda a: a.movedim(0, -1), (x,)),
    "t": (lambda a: a.t(), (torch.randn(2, 3),)),
    "mT": (lambda a: a.mT * 1, (x,)),
    "swapaxes": (lambda a: a.swapaxes(0, 2), (x,)),
    "expand": (lambda a: a.expand(2, 3, 5), (torch.randn(2, 3, 5),)),
    "squeeze": (lambda a: a.squeeze(), (torch.randn(1, 2, 1, 3),)),
    "squeeze a dim": (lambda a: a.squeeze(1), (torch.randn(2, 1, 3),)),
    "select": (lambda a: a[:, 1], (x,)),
    "slice": (lambda a: a[:, 1:] * 1, (torch.randn(2, 5, 3),)),
    "narrow": (lambda a: a.narrow(1, 0, 4), (torch.randn(3, 5, 7),)),
    "index": (lambda a, i: a[:, i], (torch.randn(2, 3, 5), torch.zeros(7, dtype=torch.long))),
    "gather": (lambda a, i: a.gather(1, i), (torch.randn(2, 3), torch.zeros(2, 7).long())),
    "index_select": (lambda a, i: a.index_select(1, i), (x, torch.zeros(7, dtype=torch.long))),
    "embedding": (lambda w, i: F.embedding(i, w), (torch.randn(7, 5), torch.zeros(2, 3).long())),
    "unbind": (lambda a: a.unbind(1)[0], (x,)),
    "chunk": (lambda a: a.chunk(3, 1)[2], (torch.randn(2, 3, 5),)),
    "cat": (lambda a, b: torch.cat([a, b], 1), (torch.randn(2, 3), torch.randn(2, 4))),
    "stack": (lambda a: torch.stack([a, a], 1)[:, 0], (x,)),
    "repeat": (lambda a: a.repeat(1, 1, 7), (x,)),
    "mm": (torch.mm, (torch.randn(2, 7), torch.randn(7, 3))),
    "bmm": (torch.bmm, (torch.randn(5, 2, 7), torch.randn(5, 7, 3))),
    "addmm": (torch.addmm, (torch.randn(3), torch.randn(2, 7), torch.randn(7, 3))),
    "baddbmm": (
        torch.baddbmm, (torch.randn(1, 1, 3), torch.randn(5, 2, 7), torch.randn(5, 7, 3))
    ),
    "matmul of many": (torch.matmul, (torch.randn(5, 2, 7), torch.randn(7, 3))),
    "matmul with a batch": (torch.matmul, (torch.randn(11, 5, 2, 7), torch.randn(11, 1, 7, 3))),
    "matmul of a vector": (torch.matmul, (torch.randn(5, 2, 7), torch.randn(7))),
    "linear": (F.linear, (torch.randn(2, 3, 7), torch.randn(5, 7), torch.randn(5))),
    "einsum": (
        lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b),
        (torch.randn(2, 3, 5, 11), torch.randn(2, 3, 7, 11)),
    ),
    "einsum outer": (lambda a, b: torch.einsum("i,j->ij", a, b), (torch.ones(3), torch.ones(5))),
    "conv channels": (F.conv2d, (torch.randn(2, 3, 11, 13), torch.randn(5, 3, 1, 1))),
    "conv size": (lambda a, w: F.conv2d(a, w, padding=1), (img, torch.randn(5, 3, 3, 3))),
    "conv transpose": (F.conv_transpose2d, (img, torch.randn(3, 5, 1, 1))),
    "softmax": (lambda a: a.softmax(1), (x,)),
    "layer_norm": (lambda a: F.layer_norm(a, (5,)), (x,)),
    "batch_norm": (lambda a: F.batch_norm(a, None, None, training=True), (x,)),
    "group_norm": (lambda a: F.group_norm(a, 3), (x,)),
    "dropout": (lambda a: F.dropout(a, 0.5), (x,)),
    "cumsum": (lambda a: a.cumsum(1), (x,)),
    "sort": (lambda a: a.sort(1)[0], (x,)),
    "sum": (lambda a: a.sum(1), (x,)),
    "mean of two": (lambda a: a.mean((0, 2)), (x,)),
    "max of a dim": (lambda a: a.max(1)[0], (x,)),
    "argmax": (lambda a: a.argmax(-1), (x,)),
    "var": (lambda a: a.var(1), (x,)),
    "norm": (lambda a: a.norm(dim=1), (x,)),
    "logsumexp": (lambda a: a.logsumexp(1), (x,)),
    "attention": (
        F.scaled_dot_product_attention,
        (torch.randn(2, 3, 5, 7), torch.randn(2, 3, 11, 7), torch.randn(2, 3, 11, 13)),
    ),
    "attention of one size": (
        F.scaled_dot_product_attention,
        (torch.randn(2, 3, 5, 7), torch.randn(2, 3, 11, 7), torch.randn(2, 3, 11, 7)),
    ),
    "bilinear": (F.bilinear, (torch.randn(2, 3), torch.randn(2, 5), torch.randn(7, 3, 5))),
    "tensordot": (
        lambda a, b: torch.tensordot(a, b, dims=([2], [0])), (x, torch.randn(5, 7, 11))
    ),
    "cdist": (torch.cdist, (torch.randn(3, 2), torch.randn(5, 2))),
    "outer": (torch.outer, (torch.randn(3), torch.randn(5))),
    "to": (lambda a: a.double().clone().detach(), (x,)),
    "zeros_like": (lambda a: torch.zeros_like(a), (x,)),
    "masked_fill": (lambda a, m: a.masked_fill(m, 0), (x, torch.ones(3, 5).bool())),
    "index_put": (lambda a: a.index_put_((torch.tensor([0]),), torch.tensor(1.0)), (x.clone(),)),
    "pixel_shuffle": (lambda a: F.pixel_shuffle(a, 1), (img,)),
    "grid_sample": (
        lambda a, g: F.grid_sample(a, g, align_corners=False),
        (torch.randn(2, 3, 17, 19), torch.randn(2, 5, 7, 2)),
    ),
    "fft": (lambda a: torch.fft.fft(a, dim=1).abs(), (x,)),
    "in place through a view": (
        lambda a: (a[:, 0].zero_(), a * 1)[1], (torch.randn(2, 3, 5),)
    ),
}  # fmt: skip


# Sizes that are no product of sizes of the inputs, and where they come from.
OTHER = {
    ("slice", 4): {5},
    ("narrow", 4): {5},
    ("chunk", 1): {3},
    ("cat", 7): {3, 4},
}


@pytest.mark.parametrize("name", CARRYING)
def test_a_dimension_comes_from_the_one_of_its_size(name: str) -> None:
    run, inputs = CARRYING[name]
    primes = {size for tensor in inputs for size in tensor.shape if size > 1}
    result = run(*inputs)
    found = sources(run, *inputs)
    for size, ends in zip(result.shape, found, strict=True):
        assert ends == OTHER.get((name, size), primes_of(size, primes)), (name, size, found)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_views_lead_to_the_primes_they_are_made_of(data: st.DataObject) -> None:
    """Any regrouping of primes, and any regrouping of that, is followed to the same primes."""
    shape = tuple(data.draw(st.permutations([2, 3, 5, 7])))
    ones = data.draw(st.lists(st.integers(0, 4), max_size=2))
    for at in ones:
        shape = (*shape[:at], 1, *shape[at:])
    tensor = torch.empty(shape)
    grouped = grouping(data, [size for size in shape if size > 1])
    again = tensor.view(grouped).view(grouping(data, [size for size in shape if size > 1]))
    found = sources(lambda a: a.view(grouped).view(again.shape), tensor)
    for size, ends in zip(again.shape, found, strict=True):
        assert {p for p in ends if p > 1} == primes_of(size, {2, 3, 5, 7})


def grouping(data: st.DataObject, sizes: list[int]) -> list[int]:
    """Neighbouring sizes multiplied, and dimensions of 1 put between them."""
    groups = [1]
    for size in sizes:
        if data.draw(st.booleans()):
            groups.append(1)
        groups[-1] *= size
    return groups


@pytest.mark.parametrize(
    ("call", "dim", "how", "text", "source"),
    [
        (OpCall("view", {"0": (2, 64)}, {}, (2, 4, 16)), 1, "split", "split: 64 = 4 × 16", "dim 1"),
        (OpCall("view", {"0": (8, 2, 3)}, {}, (8, 6)), 1, "merged",
         "merged from dims 1 and 2: 2 × 3", "dims 1 2"),
        (OpCall("view", {"0": (6, 35)}, {}, (10, 21)), 0, "merged",
         "regrouped with other dimensions: dims 0 and 1 held 6 × 35", "dims 0 1"),
        (OpCall("view", {"0": (6, 35)}, {}, (10, 21)), 1, "merged",
         "regrouped with other dimensions: dim 1 held 35", "dim 1"),
        (OpCall("view", {"0": (8,)}, {}, (8, 1)), 1, "created", "added with size 1", "dim 0"),
        (OpCall("view", {"0": (0, 3)}, {}, (3, 0)), 1, "unknown", "not known how", ""),
        (OpCall("expand", {"0": (1, 5)}, {"1": [8, 5]}, (8, 5)), 0, "broadcast",
         "broadcast from 1 to 8, the size given to expand", ""),
        (OpCall("expand", {"0": (5,)}, {"1": [8, 5]}, (8, 5)), 0, "broadcast",
         "broadcast: a new dim of 8, the size given to expand", ""),
        (OpCall("sub", {"0": (8,), "1": (8, 1)}, {}, (8, 8)), 1, "broadcast",
         "broadcast: 8 here, while in another operand it is 1", "dim 0"),
        (OpCall("sub", {"0": (8,), "1": (8, 1)}, {}, (8, 8)), 0, "broadcast",
         "broadcast: 8 here, while in another operand it is not there", "dim 0"),
        (OpCall("cat", {"0.0": (2, 3), "0.1": (2, 5)}, {"1": -1}, (2, 8)), 1, "concatenated",
         "concatenated: 3 + 5", "dims 1 1"),
        (OpCall("cat", {"0.0": (0,), "0.1": (2, 5)}, {"1": 1}, (2, 5)), 1, "carried", "", "dim 1"),
        (OpCall("stack", {"0.0": (2,), "0.1": (2,)}, {"1": 1}, (2, 2)), 1, "created",
         "created by stacking 2 tensors", ""),
        (OpCall("slice", {"0": (2, 9)}, {"1": 1, "2": 1, "3": 4}, (2, 3)), 1, "sliced",
         "sliced: 3 of 9", "dim 1"),
        (OpCall("split", {"0": (2, 9)}, {"1": 3, "2": -1}, (2, 3)), 1, "sliced",
         "sliced: 3 of 9", "dim 1"),
        (OpCall("convolution", {"0": (2, 3, 28, 28), "1": (8, 3, 5, 5)},
                {"3": [2, 2], "4": [1, 1], "5": [1, 1], "6": False}, (2, 8, 13, 13)), 2, "resized",
         "resized: 28 → 13 (kernel 5, stride 2, padding 1)", "dim 2"),
        (OpCall("max_pool2d_with_indices", {"0": (2, 3, 8, 8)}, {"1": [2, 2], "2": [2, 2]},
                (2, 3, 4, 4)), 3, "resized", "resized: 8 → 4 (kernel 2, stride 2)", "dim 3"),
        (OpCall("_adaptive_avg_pool2d", {"0": (2, 3, 8, 8)}, {"1": [7, 7]}, (2, 3, 7, 7)), 3,
         "created", "created: resized to 7 from 8, the size given", ""),
        (OpCall("upsample_nearest2d", {"0": (2, 3, 8, 8)}, {"1": [16, 16]}, (2, 3, 16, 16)), 2,
         "resized", "resized: 8 → 16", "dim 2"),
        (OpCall("constant_pad_nd", {"0": (2, 8)}, {"1": [1, 2]}, (2, 11)), 1, "resized",
         "padded: 1 + 8 + 2", "dim 1"),
        (OpCall("repeat", {"0": (5,)}, {"1": [2, 3]}, (2, 15)), 1, "repeated",
         "repeated: 15 = 3 × 5", "dim 0"),
        (OpCall("repeat", {"0": (5,)}, {"1": [2, 3]}, (2, 15)), 0, "created",
         "a new dim, repeated 2 times", ""),
        (OpCall("sum", {"0": (2, 5)}, {"1": [1], "2": True}, (2, 1)), 1, "reduced",
         "reduced: sum over 5, kept as 1", ""),
        (OpCall("arange", {}, {"0": 5}, (5,)), 0, "created", "created by arange with size 5", ""),
        (OpCall("index", {"0": (9, 4), "1.0": (9,)}, {}, (3, 4), masks=frozenset({"1.0"})), 0,
         "counted", "as many as the mask selects", ""),
        (OpCall("nonzero", {"0": (9, 4)}, {}, (3, 2)), 0, "counted",
         "as many as nonzero found in the data", ""),
        (OpCall("topk", {"0": (2, 9)}, {"1": 4}, (2, 4)), 1, "created",
         "created by topk with k = 4", ""),
        (OpCall("unfold", {"0": (2, 9)}, {"1": 1, "2": 3, "3": 2}, (2, 4, 3)), 1, "resized",
         "windows of 3, every 2: 9 → 4", "dim 1"),
        (OpCall("unfold", {"0": (2, 9)}, {"1": 1, "2": 3, "3": 2}, (2, 4, 3)), 2, "created",
         "created: windows of 3", ""),
        (OpCall("im2col", {"0": (2, 3, 8, 9)}, {"1": [3, 3]}, (2, 27, 42)), 1, "repeated",
         "repeated: 27 = 3 × 3 × 3, a window per channel", "dim 1"),
        (OpCall("im2col", {"0": (2, 3, 8, 9)}, {"1": [3, 3]}, (2, 27, 42)), 2, "merged",
         "merged from dims 2 and 3: 42 windows", "dims 2 3"),
        (OpCall("select_backward", {"0": (2, 5)}, {"1": [2, 9, 5], "2": 1, "3": 0}, (2, 9, 5)), 1,
         "created", "created: the size of the tensor that select was called on", ""),
        (OpCall("select_backward", {"0": (2, 5)}, {"1": [2, 9, 5], "2": 1, "3": 0}, (2, 9, 5)), 2,
         "carried", "", "dim 1"),
        (OpCall("slice_backward", {"0": (2, 5)}, {"1": [2, 9], "2": 1}, (2, 9)), 1, "created",
         "created: the size of the tensor that slice was called on", ""),
        (OpCall("embedding_dense_backward", {"0": (2, 3, 7), "1": (2, 3)}, {"2": 9}, (9, 7)), 1,
         "carried", "", "dim 2"),
        (OpCall("new_zeros", {"0": (2, 3)}, {"1": [2, 3]}, (2, 3)), 1, "assumed",
         "assumed: new_zeros was given the shape of its tensor", "dim 1"),
        (OpCall("new_zeros", {"0": (2, 3)}, {"1": [2, 4]}, (2, 4)), 1, "created",
         "created by new_zeros with size 4", ""),
        (OpCall("mkldnn_rnn_layer", {"0": (9, 2, 3), "2": (20, 5)}, {}, (2, 5), "1"), 0, "carried",
         "", "dim 1"),
        (OpCall("glu", {"0": (2, 8)}, {}, (2, 4)), 1, "resized", "halved: 8 → 4", "dim 1"),
        (OpCall("ours", {"0": (2, 5), "1": (5, 3)}, {}, (2, 3)), 0, "assumed",
         "assumed: the only input with this size here", "dim 0"),
        (OpCall("ours", {"0": (2, 5), "1": (2, 5)}, {}, (2, 5)), 0, "unknown", "not known how", ""),
        (OpCall("ours", {"0": (2, 5)}, {}, (7, 5)), 0, "unknown", "not known how", ""),
    ],
)  # fmt: skip
def test_what_happened_in_words(call: OpCall, dim: int, how: str, text: str, source: str) -> None:
    step = explain(call, Part(dim, call.result[dim]))
    assert (step.how, step.text) == (how, text)
    dims = [str(part.dim) for _, part in step.sources]
    assert " ".join(["dims" if len(dims) > 1 else "dim", *dims] if dims else []) == source


def test_a_part_of_a_dimension_stays_one_through_ops_that_keep_its_size() -> None:
    call = OpCall("relu", {"0": (2, 64)}, {}, (2, 64))
    assert explain(call, Part(1, 4, 16)) == Step("carried", "", (("0", Part(1, 4, 16)),))
    merge = OpCall("view", {"0": (2, 4, 16)}, {}, (2, 64))
    assert explain(merge, Part(1, 4, 16)).sources == (("0", Part(1, 4)),)
    assert explain(merge, Part(1, 16, 1)).sources == (("0", Part(2, 16)),)


def test_every_op_that_torch_calls_pointwise_is_elementwise() -> None:
    tagged = set()
    # Not `dir(torch.ops.aten)`, which has those alone that something has called.
    every = torch._C._dispatch_get_all_op_names()
    for name in {each[6:].partition(".")[0] for each in every if each.startswith("aten::")}:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            if torch.Tag.pointwise in getattr(packet, overload).tags:
                tagged.add(name if name.startswith("__") else name.rstrip("_"))
    lists = {name for name in tagged if name.startswith("_foreach_")}
    # Without a second tensor they are reductions; `explain` looks at the overload. `equal` returns
    # no tensor.
    assert tagged - lists - ELEMENTWISE == {"max", "min", "equal"}
