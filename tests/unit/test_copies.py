"""Copies of values of any kind."""

from __future__ import annotations

import threading
from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clew.compat.engine.copies import copied

Pair = namedtuple("Pair", "left right")


def grown() -> Tensor:
    return torch.ones(2, requires_grad=True) * 2


def test_a_tensor_is_detached_and_on_its_own() -> None:
    tensor = torch.ones(2)
    copy = copied(tensor)
    tensor.zero_()
    assert copy.tolist() == [1, 1]
    assert not copied(grown()).requires_grad
    assert copied(torch.ones(4, dtype=torch.bfloat16)[::2]).dtype == torch.bfloat16


def test_containers_keep_their_types_and_share_nothing() -> None:
    @dataclass
    class Local:
        value: Any

    tensor, array = grown(), np.ones(2)
    whole = {
        "pair": Pair(tensor, [array]),
        "dict": UserDict(a=tensor),
        3: Local((tensor, {1, 2}, None)),
        "class": Local,
        "function": grown,
    }
    copy = copied(whole)
    with torch.no_grad():
        tensor.zero_()
    array[:] = 0
    assert type(copy["pair"]) is Pair
    assert copy["pair"].left.tolist() == [2, 2]
    assert copy["pair"].right[0].tolist() == [1, 1]
    assert type(copy["dict"]) is UserDict
    assert copy["dict"]["a"].tolist() == [2, 2]
    assert type(copy[3]) is Local
    assert copy[3].value[1:] == ({1, 2}, None)
    assert copy["class"] is Local
    assert copy["function"] is grown


def test_modules_inside_are_referred_to() -> None:
    layer = nn.Linear(2, 2)
    assert copied([layer])[0] is layer


def test_what_can_be_read_once_is_refused_and_not_touched() -> None:
    numbers = (n for n in range(3))
    with pytest.raises(TypeError, match="generator cannot be copied"):
        copied(numbers)
    assert list(numbers) == [0, 1, 2]
    with pytest.raises(TypeError, match="list cannot be copied: .*lock"):
        copied([threading.Lock()])


def test_under_torch_func_what_is_wrapped_is_copied() -> None:
    copies: list[Tensor] = []
    constant = torch.ones(2)

    def work(x: Tensor) -> Tensor:
        copies.extend(copied([x * 2, constant]))
        return x.sum()

    torch.func.vmap(torch.func.grad(work))(torch.ones(3, 2))
    torch.func.grad(work)(torch.ones(2))
    # Usable, now that the transformation is over; of vmap the whole batch.
    assert [(copy + 1).tolist() for copy in copies] == [
        [[3, 3]] * 3, [2, 2], [3, 3], [2, 2],
    ]  # fmt: skip
    assert [type(copy) for copy in copies] == [Tensor] * 4
