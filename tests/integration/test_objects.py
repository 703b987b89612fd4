"""Objects given to modules or returned by them: their classes, and the tensors in them."""

from __future__ import annotations

import gc
import weakref
from collections import deque, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import clew

Pair = namedtuple("Pair", "first second")


class Layer:
    def __init__(self) -> None:
        self.keys = torch.ones(2, 3)
        self.values = torch.zeros(2, 3)
        self.length = 2


class Cache:
    def __init__(self) -> None:
        self.config = {"heads": 4}
        self.layers = [Layer(), Layer()]


class Slotted:
    __slots__ = ("missing", "x")

    def __init__(self) -> None:
        self.x = torch.ones(4)


@dataclass
class Output:
    last: Any
    past: Any
    count: int = 3


class Block(nn.Module):
    def forward(self, x: torch.Tensor, *others: Any, cache: Any = None, **more: Any) -> Any:
        return Output(x + 1, cache)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.block(*args, **kwargs)


def shapes(values: Any) -> dict[str, tuple[int, ...]]:
    return {path: value.shape for path, value in values.items()}


def traced(*args: Any, **kwargs: Any) -> clew.Trace:
    model = Model()
    with clew.trace(model) as t:
        model(*args, **kwargs)
    return t


def test_an_object_shows_its_class_and_its_tensors(tmp_path: Any) -> None:
    t = traced(torch.ones(2), cache=Cache())
    t.save(tmp_path / "run.clew")
    for trace in (t, clew.load(tmp_path / "run.clew")):
        event = trace["block"].one
        assert shapes(event.inputs) == {
            "0": (2,),
            "cache.layers.0.keys": (2, 3), "cache.layers.0.values": (2, 3),
            "cache.layers.1.keys": (2, 3), "cache.layers.1.values": (2, 3),
        }  # fmt: skip
        assert event.inputs.classes == {
            "cache": "Cache", "cache.layers.0": "Layer", "cache.layers.1": "Layer"
        }  # fmt: skip
        assert event.outputs.classes["past"] == "Cache"
        assert event.outputs.classes[""] == "Output"
        assert event.outputs["last"].shape == (2,)
        assert event.outputs["past.layers.1.keys"].shape == (2, 3)
        assert event.to_dict()["classes"]["inputs"]["cache"] == "Cache"
    assert "'cache': Cache, 'cache.layers.0': Layer, 'cache.layers.0.keys': <Value f32[2,3]>" in (
        repr(t["block"].one.inputs)
    )


@pytest.mark.parametrize(
    ("given", "paths", "classes"),
    [
        (SimpleNamespace(a=torch.ones(1), b=2), {"1.a"}, {"1": "SimpleNamespace"}),
        (Slotted(), {"1.x"}, {"1": "Slotted"}),
        (Pair(torch.ones(1), 2), {"1.first"}, {"1": "Pair"}),
        (Output(torch.ones(1), None), {"1.last"}, {"1": "Output"}),
        ([SimpleNamespace(q=deque([torch.ones(1)]))], {"1.0.q.0"},
         {"1.0": "SimpleNamespace", "1.0.q": "deque"}),
        (SimpleNamespace(d={"k": (1, torch.ones(1))}), {"1.d.k.1"}, {"1": "SimpleNamespace"}),
        (SimpleNamespace(a=np.ones(3)), set(),
         {"1": "SimpleNamespace", "1.a": "ndarray float64[3]"}),
        (SimpleNamespace(b=2), set(), {"1": "SimpleNamespace"}),
        (nn.Linear(2, 2), set(), {"1": "Linear"}),
        (SimpleNamespace(module=nn.Linear(2, 2)), set(), {"1": "SimpleNamespace"}),
        ({"a": torch.ones(1)}, {"1.a"}, {}),
        (torch.float32, set(), {}),
        (torch.device("cpu"), set(), {}),
    ],
)  # fmt: skip
def test_many_kinds_of_objects(given: Any, paths: set[str], classes: dict[str, str]) -> None:
    inputs = traced(torch.ones(2), given)["block"].one.inputs
    assert set(inputs) == {"0", *paths}
    assert inputs.classes == classes


def test_a_data_frame_shows_its_shape() -> None:
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    columns = {"a": [1, 2, 3], "b": [4.0, 5.0, 6.0]}
    frames = pandas.DataFrame(columns), polars.DataFrame(columns), pandas.Series([1, 2])
    inputs = traced(torch.ones(2), *frames)["block"].one.inputs
    assert inputs.classes == {"1": "DataFrame [3, 2]", "2": "DataFrame [3, 2]", "3": "Series [2]"}


def test_an_address_names_a_tensor_in_an_object() -> None:
    t = traced(torch.ones(2), cache=Cache())
    assert len(t["block:in.cache.layers.0.keys"].values) == 1
    assert len(t["block:in.cache.layers.*.keys"].values) == 2
    assert len(t["block:in.cache"].values) == 4
    assert len(t["block:out.past.layers.1"].values) == 2
    with pytest.raises(clew.ClewError, match=r"'cache\.layers\.0\.keys'"):
        t["block:in.cache.layers.0.key"]


@pytest.mark.parametrize("level", ["ops", "modules", "values"])
def test_a_tensor_in_an_object_is_captured_by_its_address(level: str) -> None:
    model, cache = Model(), Cache()
    wanted = ["block:in.cache.layers.0.keys", "block:out.past.layers.1.values"]
    with clew.trace(model, level=level, capture=wanted) as t:
        model(torch.ones(2), cache=cache)
        cache.layers[0].keys.zero_()
    assert t.coverage == ()
    kept = [t.series(address).values[0].array() for address in wanted]
    assert kept[0].tolist() == [[1, 1, 1]] * 2
    assert kept[1].tolist() == [[0, 0, 0]] * 2


def test_a_pattern_captures_tensors_in_an_object() -> None:
    model = Model()
    with clew.trace(model, capture=["block:in.cache.layers.*.keys"]) as t:
        model(torch.ones(2), cache=Cache())
    assert [v.array().sum() for v in t["block:in.cache.layers.*.keys"].values] == [6, 6]
    with pytest.raises(clew.ClewError, match="capture"):
        t["block:in.cache.layers.1.values"].value


def test_a_callback_gets_a_tensor_in_an_object() -> None:
    model, got = Model(), []
    save = clew.Callbacks(save=lambda value: got.append(value.shape))
    with clew.trace(model, callbacks={"block:in.cache.layers.1.keys": save}) as t:
        model(torch.ones(2), cache=Cache())
    assert got == [(2, 3)]
    assert t.coverage == ()


class Watchful:
    """Notes whatever of its own code runs."""

    ran: list[str] = []  # noqa: RUF012 - one for all

    def __init__(self) -> None:
        object.__setattr__(self, "x", torch.ones(2))

    def __getattribute__(self, name: str) -> Any:
        Watchful.ran.append(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        Watchful.ran.append(name)
        raise AttributeError(name)

    def __iter__(self) -> Any:
        Watchful.ran.append("iter")
        return iter([1])

    def __len__(self) -> int:
        Watchful.ran.append("len")
        return 1

    def __eq__(self, other: object) -> bool:
        Watchful.ran.append("eq")
        return True

    def __hash__(self) -> int:
        Watchful.ran.append("hash")
        return 0

    @property
    def __class__(self) -> type:
        Watchful.ran.append("class")
        return dict

    @property
    def computed(self) -> Any:
        Watchful.ran.append("computed")
        return torch.ones(5)


class Forwarding(Watchful):
    def __init__(self) -> None:
        object.__setattr__(self, "_mapping", {"x": torch.ones(2)})


@pytest.mark.parametrize("cls", [Watchful, Forwarding])
def test_no_code_of_an_object_runs(cls: type) -> None:
    model, given = Model(), cls()
    with clew.trace(model, capture=["block:in.1.x"]) as t:
        Watchful.ran.clear()
        model(torch.ones(2), given)
        assert Watchful.ran == []
    assert t["block:in.1.x"].value.tolist() == [1, 1]
    assert t["block"].one.inputs.classes == {"1": cls.__name__}


def test_a_generator_in_an_object_is_not_consumed() -> None:
    held = SimpleNamespace(items=(torch.ones(1) for _ in range(3)), more=iter([torch.ones(1)]))
    assert traced(torch.ones(2), held)["block"].one.inputs.keys() == {"0"}
    assert len(list(held.items)) == 3
    assert len(list(held.more)) == 1


def test_an_object_that_holds_itself_is_opened_once() -> None:
    held = SimpleNamespace(x=torch.ones(1))
    held.me = [held, {"again": held}]
    assert traced(torch.ones(2), held)["block"].one.inputs.keys() == {"0", "1.x"}


def test_of_a_large_object_the_first_part_is_shown_and_said_to_be_one() -> None:
    many = [SimpleNamespace(x=torch.ones(1), y=torch.ones(1)) for _ in range(900)]
    inputs = traced(torch.ones(2), SimpleNamespace(many=many))["block"].one.inputs
    assert 600 < len(inputs) < 1000
    assert inputs.classes["1.many.…"] == "more"


def test_names_of_what_an_object_forwards_to_are_its_own() -> None:
    class Store:
        def __init__(self) -> None:
            self._mapping = {"x": torch.ones(2)}

        def __getattr__(self, name: str) -> Any:
            return self._mapping[name]

    class Batch:
        def __init__(self) -> None:
            self._store = Store()
            self.y = torch.ones(3)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    inputs = traced(torch.ones(2), Batch())["block"].one.inputs
    assert inputs.keys() == {"0", "1.y", "1.x"}
    assert inputs.classes == {"1": "Batch"}


def test_a_batch_of_graphs_shows_its_tensors() -> None:
    data = pytest.importorskip("torch_geometric.data")
    one = data.Data(x=torch.ones(3, 4), edge_index=torch.zeros(2, 5, dtype=torch.long))
    inputs = traced(torch.ones(2), data.Batch.from_data_list([one, one]))["block"].one.inputs
    assert inputs.keys() == {"0", "1.x", "1.edge_index", "1.batch", "1.ptr"}


def test_an_object_is_not_kept_alive() -> None:
    model, cache = Model(), Cache()
    gone = weakref.ref(cache)
    with clew.trace(model):
        model(torch.ones(2), cache=cache)
        del cache
        gc.collect()
        assert gone() is None


def test_views_say_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    model = Model()
    with clew.trace(model, values="stats") as t:
        model(torch.ones(2), cache=Cache())
    assert "cache Cache → last f32[2], past Cache" in str(t.tree())
    held = "Cache(layers=[Layer(keys=f32[2,3], values=f32[2,3]), "
    assert f"Output(last=f32[2], past={held}" in str(t.code())
    assert t.graph(depth=2).svg()


def test_the_tree_folds_layers_whose_cache_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=20,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    address = "model.layers.2:in.past_key_values.layers.0.keys"
    with torch.no_grad(), clew.trace(model, capture=[address]) as t:
        model(torch.zeros(1, 5, dtype=torch.long), use_cache=True)
    (keys,) = t[address].values
    assert keys.shape == (1, 2, 5, 8)
    assert keys.array().shape == (1, 2, 5, 8)
    assert t["model.layers.2"].one.inputs.classes["past_key_values"] == "DynamicCache"
    assert keys.producer is not None
    assert keys.producer.module == "model.layers.0.self_attn"
    assert "layers.0 … layers.2 ×3" in str(t)
    assert "past_key_values DynamicCache" in str(t.tree())


def test_redaction_keeps_classes_and_takes_texts() -> None:
    model = Model()
    with clew.trace(model, redact=True) as t:
        model(torch.ones(2), "secret", cache=Cache())
    assert t["block"].one.inputs.classes["cache"] == "Cache"
    assert "secret" not in str(t.code())
