"""Facts that answers are made of: memory and its end, random numbers, settings of modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clew

Recorded = Callable[..., clew.Trace]


@pytest.fixture(params=["memory", "disk", "saved"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[..., None]], Any]:
    """Record a program, and give its trace as it is kept in one of three ways."""

    def recorded(program: Callable[[clew.Trace], None], model: Any = None) -> clew.Trace:
        out = tmp_path / "run.clew"
        with clew.trace(model, out=out if request.param == "disk" else None) as t:
            program(t)
        if request.param == "saved":
            t.save(out)
        return t if request.param == "memory" else clew.load(out)

    return recorded


def test_memory_and_its_end(kept: Recorded) -> None:
    def program(t: clew.Trace) -> None:
        a = torch.ones(10, 10)
        b = a + 1
        view = b[2:]
        del b  # its view holds on to the memory
        c = a * 2
        del view
        a.mul_(3)
        t.step()
        del a
        c.neg()

    t = kept(program)
    ops = {op.name.split(".")[1]: op for op in t.ops}
    ones, add, cut = (ops[name].outputs[""] for name in ("ones", "add", "slice"))
    assert [ones.storage_bytes, add.storage_bytes, cut.storage_bytes] == [400, 400, 400]
    assert cut.storage == add.storage
    assert add.freed == cut.freed == ops["mul_"].id
    assert ones.freed is not None
    assert ops["mul_"].id < ones.freed <= ops["neg"].id
    assert (ops["mul"].outputs[""].freed or 0) > ops["neg"].id


def test_memory_that_autograd_holds_is_freed_when_its_gradient_is_there(kept: Recorded) -> None:
    def program(t: clew.Trace) -> None:
        x = torch.ones(3, requires_grad=True)
        y = x.exp()  # saves its result
        z = y.sum()
        del y
        torch.ones(2)
        z.backward()
        torch.ones(4)

    t = kept(program)
    freed = t["op:aten.exp.default"][0].outputs[""].freed
    (gradient,) = t["op:aten.mul.Tensor"]
    assert gradient.id < (freed or 0) <= t["op:aten.ones.default"][-1].id


def test_the_end_of_memory_that_no_op_made(kept: Recorded) -> None:
    def program(t: clew.Trace) -> None:
        data = [torch.from_numpy(np.ones(100, dtype=np.float32))]
        data[0].mul(2)
        del data[0]
        torch.ones(2)

    t = kept(program)
    (mul,) = t["op:aten.mul.Tensor"]
    (ones,) = t["op:aten.ones.default"]
    assert mul.inputs["0"].storage_bytes == 400
    assert mul.inputs["0"].freed == ones.id


def test_memory_met_from_outside(kept: Recorded) -> None:
    base = torch.ones(100)

    def program(t: clew.Trace) -> None:
        base[:10] + 1

    t = kept(program)
    [cut] = t["op:aten.slice.Tensor"]
    assert cut.inputs["0"].storage_bytes == cut.outputs[""].storage_bytes == 400
    assert cut.inputs["0"].freed is None


def test_random_numbers(kept: Recorded) -> None:
    mine = torch.Generator()

    def program(t: clew.Trace) -> None:
        torch.rand(2)
        torch.ones(2).normal_(generator=mine)
        t.step()
        torch.rand(2, generator=mine)
        nn.functional.dropout(torch.ones(3), 0.5)
        nn.functional.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 8)] * 3)
        torch.randint(5, (2,))
        nn.functional.rrelu(torch.ones(2), training=False)

    t = kept(program)
    drawn = [(op.name.split(".")[1], *op.draw) for op in t.ops if op.draw is not None]
    own = drawn[1][1]
    assert own not in ("cpu", None)
    assert drawn == [
        ("rand", "cpu", 0), ("normal_", own, 0), ("rand", own, 1), ("bernoulli_", "cpu", 1),
        ("randint", "cpu", 2),
    ]  # fmt: skip


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.5
        self.sizes = (2, 3)
        self.table = {"a": 1}
        self.note = "x" * 1000
        self.drop = nn.Dropout(0.25)
        self.norm = nn.LayerNorm(4, eps=1e-3)

    @property
    def costly(self) -> int:
        raise AssertionError("a property was called")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.norm(x * self.scale))
        return out


def test_what_modules_are_set_to(kept: Recorded) -> None:
    model = Scaled()

    def program(t: clew.Trace) -> None:
        model(torch.ones(4))
        model.scale = 2.0
        t.step()
        model(torch.ones(4))
        model.eval()
        model(torch.ones(4))
        del model.sizes

    t = kept(program, model)
    first, second, third = t[""]
    assert first.attributes == {"training": True, "scale": 0.5, "sizes": [2, 3]}
    assert second.attributes == {"training": True, "scale": 2.0, "sizes": [2, 3]}
    assert third.attributes == {"training": False, "scale": 2.0, "sizes": [2, 3]}
    assert t["drop"][0].attributes == {"training": True, "p": 0.25, "inplace": False}
    assert t["norm"][2].attributes["eps"] == 1e-3
    assert t["norm"][2].attributes["normalized_shape"] == [4]
    assert t.ops[0].attributes == {}


def test_what_optimizers_are_set_to(kept: Recorded) -> None:
    model = nn.Linear(2, 2)
    slow, fast = [model.bias], [model.weight]
    optimizer = torch.optim.Adam([{"params": slow, "lr": 0.1}, {"params": fast}], lr=1.0)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def program(t: clew.Trace) -> None:
        for _ in range(3):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
            rates.step()
            t.step()

    t = kept(program, model)
    noted = [one for one in t._current_run().parts[0][0].attributes if one.kind == "optimizer"]
    assert [(one.group, one.values["lr"]) for one in noted] == [
        (0, 0.1), (1, 1.0), (0, 0.05), (1, 0.5), (0, 0.025), (1, 0.25),
    ]  # fmt: skip
    assert noted[0].values["class"] == "Adam"
    assert noted[0].values["betas"] == [0.9, 0.999]
    assert [one.values["params"] for one in noted[:2]] == [["bias"], ["weight"]]
    assert noted[2].values == {"lr": 0.05}
    # It counts from the first op of the step on.
    updates = [op.id for op in t.ops if op.phase == "optimizer"]
    assert noted[0].event <= min(updates)


def test_nothing_of_it_is_kept_alive() -> None:
    import weakref

    model, generator = Scaled(), torch.Generator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with clew.trace(model) as t:
        model(torch.rand(4, generator=generator)).sum().backward()
        optimizer.step()
    held = [weakref.ref(thing) for thing in (model, generator, optimizer)]
    del model, generator, optimizer
    assert [thing() for thing in held] == [None, None, None]
    assert len(t.events)


class Cached(nn.Module):
    def __init__(self, cache: Any) -> None:
        super().__init__()
        self.scale, self.cache = 2.0, cache

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_an_attribute_that_is_plain_in_some_modules_of_a_class_only() -> None:
    """What is no plain attribute of one module may be one of another, or become one."""
    model = nn.Sequential(Cached(torch.ones(2)), Cached(3), Cached(torch.ones(2)))

    def caches() -> list[Any]:
        with clew.trace(model) as t:
            model(torch.ones(2))
        return [t[name][0].attributes.get("cache") for name in "012"]

    assert caches() == [None, 3, None]
    assert caches() == [None, 3, None]
    model[2].cache = 4
    assert caches() == [None, 3, 4]
    model[1].cache = torch.ones(1)
    assert caches() == [None, None, 4]
