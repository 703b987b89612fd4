"""What addresses ask of ops, modules, parameters and labels, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass

from clew.address import parse
from clew.events.vocabulary import TAP, VARIABLE, Label
from clew.request.callbacks import Callbacks
from clew.request.interest import Asked, Interest
from clew.request.ledger import Ledger


@dataclass
class Entry:
    names: list[Name]

    @property
    def paths(self) -> list[str]:
        return [name.path for name in self.names]


@dataclass
class Name:
    index: int
    path: str
    entry: Entry


def module(*paths: str) -> Name:
    entry = Entry([])
    entry.names = [Name(number, path, entry) for number, path in enumerate(paths)]
    return entry.names[0]


def test_a_module_is_asked_about_by_each_of_its_names() -> None:
    interest = Interest(Asked(parse(text), keeps=True) for text in ("a.*:in", "b", "c:grad_in"))
    name = module("a.0")
    found = interest.of_module(name)
    assert [a.text for a in found.kept_inputs] == ["a.*:in"]
    assert found.kept_outputs == found.gradients == found.given == found.returned == ()
    assert interest.of_module(name) is found
    name.entry.names += module("b", "c").entry.names
    found = interest.of_module(name)
    assert [a.text for a in (*found.kept_outputs, *found.gradients)] == ["b", "c:grad_in"]


def test_callbacks_get_the_path_that_their_address_names() -> None:
    asked = Asked(parse("b:in.mask"), callbacks=Callbacks(save="mean"))
    interest = Interest([asked])
    assert interest.of_module(module("a", "b")).given == ((asked, "b"),)
    assert interest.takes_inputs
    assert not interest.keeps_calls


def test_an_op_is_asked_about_once() -> None:
    texts: list[str] = []

    class Op:
        def __str__(self) -> str:
            texts.append("asked")
            return "aten.relu.default"

    op = Op()
    interest = Interest([Asked(parse("op:relu:in"), keeps=True), Asked(parse("op:mm"), keeps=True)])
    for _ in range(3):
        assert [a.text for a in interest.of_op(op).kept_inputs] == ["op:relu:in"]
        assert interest.of_op(op).kept_outputs == ()
    assert texts == ["asked"]


def test_parameters_and_labels_by_address() -> None:
    texts = ("fc.*:grad", "fc.weight:param", "fc.h", "data.py:load.x")
    interest = Interest(Asked(parse(text)) for text in texts)
    assert [a.text for a in interest.of_tensor("fc.weight")] == ["fc.*:grad", "fc.weight:param"]
    assert [a.text for a in interest.of_tensor("fc.bias")] == ["fc.*:grad"]
    tap = Label(TAP, "fc.h", "h")
    variable = Label(VARIABLE, "data.py:load.x", "x", file="/home/data.py", package="data")
    for label, text in ((tap, "fc.h"), (variable, "data.py:load.x")):
        assert [a.address.text for a in interest.of_label(label)] == [text]


def test_what_became_of_addresses() -> None:
    ledger = Ledger(map(parse, ("a", "b", "b", "c", "d")))
    assert [a.text for a in ledger.unmatched()] == ["a", "b", "c", "d"]
    ledger.found |= {"b", "c"}
    ledger.came |= {"c", "d"}
    ledger.not_due |= {"c", "d"}
    ledger.due.add("d")
    assert [a.text for a in ledger.unmatched()] == ["a"]
    assert [a.text for a in ledger.awaited()] == ["b"]
    assert [a.text for a in ledger.never_due()] == ["c"]
