"""The address language: every form, every refusal, matching against a slow reference."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clew.address import (
    ROLES,
    Address,
    Key,
    Segment,
    compile_path,
    compile_pattern,
    has_wildcard,
    join,
    matches,
    matches_file,
    matches_op,
    nearest,
    parse,
    segment_matches,
    split,
    split_rank,
    with_rank,
    written,
)
from clew.errors import AddressSyntaxError, ClewError

# A loaded machine may take its time; what these tests look for is wrong answers and hanging.
unhurried = settings(deadline=None, max_examples=300)


def parts(address: Address) -> dict[str, Any]:
    """Return what an address says beyond its text, without what it leaves open."""
    names = ("kind", "path", "function", "line", "call", "role", "field", "segments", "rank")
    found = {name: getattr(address, name) for name in names}
    return {name: value for name, value in found.items() if value not in (None, ())}


# Each example of DESIGN §3, then the forms it implies.
PATHS: list[tuple[str, dict[str, Any]]] = [
    ("encoder.layers.0.self_attn", {"path": "encoder.layers.0.self_attn"}),
    ("encoder.layers.0.self_attn#2", {"path": "encoder.layers.0.self_attn", "call": 2}),
    ("encoder.layers.*.self_attn", {"path": "encoder.layers.*.self_attn"}),
    ("encoder.**", {"path": "encoder.**"}),
    ("blocks.[0-3].mlp", {"path": "blocks.[0-3].mlp"}),
    ("encoder.layers.0:in", {"path": "encoder.layers.0", "role": "in"}),
    (
        "encoder.layers.0:in.mask",
        {"path": "encoder.layers.0", "role": "in", "field": ("mask",)},
    ),
    ("encoder:out.logits", {"path": "encoder", "role": "out", "field": ("logits",)}),
    ("encoder.layers.0:grad", {"path": "encoder.layers.0", "role": "grad"}),
    ("encoder.layers.0:grad_in", {"path": "encoder.layers.0", "role": "grad_in"}),
    ("fc.weight:param", {"path": "fc.weight", "role": "param"}),
    ("fc.weight:grad", {"path": "fc.weight", "role": "grad"}),
    ("bn.running_var:buffer", {"path": "bn.running_var", "role": "buffer"}),
    (
        "encoder.layers.0.self_attn.forward.attn",
        {"path": "encoder.layers.0.self_attn.forward.attn"},
    ),
    ("forward.x", {"path": "forward.x"}),
    ("forward.cache.k.0", {"path": "forward.cache.k.0"}),
    (
        "forward.cache['k'][0]",
        {"path": "forward.cache.k.0", "segments": ("forward", "cache", "k", 0)},
    ),
    ("forward.self.*.running_var", {"path": "forward.self.*.running_var"}),
    # The root.
    ("", {"path": ""}),
    (":in", {"path": "", "role": "in"}),
    (":in.mask", {"path": "", "role": "in", "field": ("mask",)}),
    (":out[0]", {"path": "", "role": "out", "field": (0,)}),
    ("#1", {"path": "", "call": 1}),
    ("#1:grad_in.0", {"path": "", "call": 1, "role": "grad_in", "field": ("0",)}),
    # Call, role and field together; fields with keys.
    ("fc#0:out", {"path": "fc", "call": 0, "role": "out"}),
    (
        "fc:out.cache['k'][0]",
        {"path": "fc", "role": "out", "field": ("cache", "k", 0)},
    ),
    ("fc:out['a.b'].c", {"path": "fc", "role": "out", "field": ("a.b", "c")}),
    ("fc:out.*", {"path": "fc", "role": "out", "field": ("*",)}),
    (
        "forward.cache['k'][0]#3:grad",
        {
            "path": "forward.cache.k.0",
            "segments": ("forward", "cache", "k", 0),
            "call": 3,
            "role": "grad",
        },
    ),
    # '#' before a dot belongs to the name.
    ("MLP#2.fc", {"path": "MLP#2.fc"}),
    ("MLP#2.fc#1", {"path": "MLP#2.fc", "call": 1}),
    ("MLP#2", {"path": "MLP", "call": 2}),
    ("MLP#2#1:in", {"path": "MLP#2", "call": 1, "role": "in"}),
    ("MLP#*.fc", {"path": "MLP#*.fc"}),
    ("MLP#2[0].x", {"path": "MLP#2.0.x", "segments": ("MLP#2", 0, "x")}),
    # Quoted keys keep any letter.
    ("cache['a.b']", {"path": "cache['a.b']", "segments": ("cache", "a.b")}),
    ('cache["it\'s"]', {"path": "cache['it\\'s']", "segments": ("cache", "it's")}),
    ("convs['a:b#1'].lin:in", {"path": "convs['a:b#1'].lin", "segments": ("convs", "a:b#1", "lin"),
                               "role": "in"}),
    ("['op']:in", {"path": "op", "segments": ("op",), "role": "in"}),
    ("a.['k']", {"path": "a.k", "segments": ("a", "k")}),
    (r"a['\\\'']", {"path": r"a['\\\'']", "segments": ("a", "\\'")}),
    ("a['']", {"path": "a['']", "segments": ("a", "")}),
    ("a['x.py:f']", {"path": "a['x.py:f']", "segments": ("a", "x.py:f")}),
    # A rank comes last; '@' before a dot belongs to the name, in quotes to the key.
    ("layers.0@1", {"path": "layers.0", "rank": 1}),
    ("layers.0@*", {"path": "layers.0"}),
    ("layers.*@0", {"path": "layers.*", "rank": 0}),
    ("fc.weight:grad@*", {"path": "fc.weight", "role": "grad"}),
    ("fc#2@999999999", {"path": "fc", "call": 2, "rank": 999999999}),
    ("layers.0#2:in.mask@1", {"path": "layers.0", "call": 2, "role": "in", "field": ("mask",),
                              "rank": 1}),
    ("fc:out[0]@1", {"path": "fc", "role": "out", "field": (0,), "rank": 1}),
    ("forward.x@1", {"path": "forward.x", "rank": 1}),
    ("x[0]@3", {"path": "x.0", "segments": ("x", 0), "rank": 3}),
    ("@1", {"path": "", "rank": 1}),
    ("@*", {"path": ""}),
    ("#0@1", {"path": "", "call": 0, "rank": 1}),
    (":in@1", {"path": "", "role": "in", "rank": 1}),
    ("cache['a@1']", {"path": "cache['a@1']", "segments": ("cache", "a@1")}),
    ("cache['a@1']@1", {"path": "cache['a@1']", "segments": ("cache", "a@1"), "rank": 1}),
    ("['x@1']:in@2", {"path": "['x@1']", "segments": ("x@1",), "role": "in", "rank": 2}),
    ("user@host.fc", {"path": "user@host.fc"}),
    ("user@1.fc@1", {"path": "user@1.fc", "rank": 1}),
    ("fc:out.user@1.x", {"path": "fc", "role": "out", "field": ("user@1", "x")}),
    ("a@1[0].x", {"path": "a@1.0.x", "segments": ("a@1", 0, "x")}),
    ("x[@a]", {"path": "x[@a]", "segments": ("x[@a]",)}),
    # Index or class.
    ("x[12]", {"path": "x.12", "segments": ("x", 12)}),
    ("x.[12]", {"path": "x.[12]", "segments": ("x", "[12]")}),
    ("[12].x", {"path": "[12].x", "segments": ("[12]", "x")}),
    ("x[1-2]", {"path": "x[1-2]", "segments": ("x[1-2]",)}),
    ("x[ab]y", {"path": "x[ab]y", "segments": ("x[ab]y",)}),
    ("x[a]", {"path": "x[a]", "segments": ("x[a]",)}),
    ("x[!0]", {"path": "x[!0]", "segments": ("x[!0]",)}),
    ("x.*[0]", {"path": "x.*.0", "segments": ("x", "*", 0)}),
    ("x[]a]", {"path": "x[]a]", "segments": ("x[]a]",)}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PATHS)
def test_a_path(text: str, expected: dict[str, Any]) -> None:
    segments = tuple(expected["path"].split(".")) if expected["path"] else ()
    wanted = {"kind": "path", "segments": segments} | expected
    assert parts(parse(text)) == {k: v for k, v in wanted.items() if v != ()}
    assert parse(text).text == str(parse(text)) == text


OTHERS: list[tuple[str, dict[str, Any]]] = [
    (
        "dataset.py:get_item.video",
        {"kind": "function", "path": "dataset.py", "segments": ("get_item", "video")},
    ),
    (
        "mypkg.data:Dataset.get_item.video",
        {
            "kind": "function",
            "path": "mypkg.data",
            "segments": ("Dataset", "get_item", "video"),
        },
    ),
    (
        "src/../data set/d.py:f.cache['k'][0]#2:grad",
        {
            "kind": "function",
            "path": "src/../data set/d.py",
            "segments": ("f", "cache", "k", 0),
            "call": 2,
            "role": "grad",
        },
    ),
    (
        "*.py:forward.x",
        {"kind": "function", "path": "*.py", "segments": ("forward", "x")},
    ),
    (
        "data:outer.<locals>.inner.x",
        {"kind": "function", "path": "data", "segments": ("outer", "inner", "x")},
    ),
    (
        "dataset.py:get_item",
        {
            "kind": "function",
            "path": "dataset.py",
            "function": "get_item",
            "segments": ("get_item",),
        },
    ),
    (
        "dataset.py:output.x",
        {"kind": "function", "path": "dataset.py", "segments": ("output", "x")},
    ),
    # A role word after the colon is a role, whatever comes before it.
    (
        "dataset.py:out.x",
        {
            "kind": "path",
            "path": "dataset.py",
            "segments": ("dataset", "py"),
            "role": "out",
            "field": ("x",),
        },
    ),
    (
        "op:aten._softmax*",
        {"kind": "op", "path": "aten._softmax*", "segments": ("aten", "_softmax*")},
    ),
    (
        "op:aten.addmm.default#2:in[0]",
        {
            "kind": "op",
            "path": "aten.addmm.default",
            "segments": ("aten", "addmm", "default"),
            "call": 2,
            "role": "in",
            "field": (0,),
        },
    ),
    ("line:model.py:57", {"kind": "line", "path": "model.py", "line": 57}),
    ("line:/abs/dir/model.py:57", {"kind": "line", "path": "/abs/dir/model.py", "line": 57}),
    ("line:<ipython-input-1>:3", {"kind": "line", "path": "<ipython-input-1>", "line": 3}),
    # With ranks; a file may have an '@' anywhere.
    ("line:model.py:57@2", {"kind": "line", "path": "model.py", "line": 57, "rank": 2}),
    ("line:me@1/model.py:57@*", {"kind": "line", "path": "me@1/model.py", "line": 57}),
    (
        "me@1.py:get_item.video#2@1",
        {
            "kind": "function",
            "path": "me@1.py",
            "segments": ("get_item", "video"),
            "call": 2,
            "rank": 1,
        },
    ),
    (
        "dataset.py:get_item@1",
        {
            "kind": "function",
            "path": "dataset.py",
            "function": "get_item",
            "segments": ("get_item",),
            "rank": 1,
        },
    ),
    (
        "op:aten.mm.default#3@0",
        {
            "kind": "op",
            "path": "aten.mm.default",
            "segments": ("aten", "mm", "default"),
            "call": 3,
            "rank": 0,
        },
    ),
]


@pytest.mark.parametrize(("text", "expected"), OTHERS)
def test_a_function_an_op_a_line(text: str, expected: dict[str, Any]) -> None:
    assert parts(parse(text)) == expected
    assert parse(text).text == text


REFUSED = [
    # text, caret, what is said, what to write instead
    ("encoder:inn", 8, "'inn' is not a role", "write ':in'"),
    ("encoder.0:output.x", 10, "'output' is not a role", "write ':out'"),
    ("encoder:inputs.x", 8, "'inputs' is not a role", "write ':in'"),
    ("fc.weight:Gradient", 10, "'Gradient' is not a role", "write ':grad'"),
    ("layers.0:foo.x", 9, "'foo' is not a role", "the roles are :in :out :grad :grad_in"),
    (":foo", 1, "'foo' is not a role", "file.py:function.variable"),
    ("fc:", 3, "no role after ':'", "the roles are"),
    ("fc:out#2", 6, "the call index comes before the role", "fc#2:out"),
    ("fc:out.x#2", 8, "the call index comes before the role", "fc#2:out"),
    ("fc:in:out", 5, "a second role", "one role"),
    ("fc:out[0]x", 9, "text directly after ']'", "one role and its field"),
    ("fc:in[0-3]", 5, "a class directly after a subscript or role", "write '.[...]'"),
    ("fc:param.weight", 8, "':param' takes no field", "fc.weight:param"),
    ("a..b", 2, "a name is missing", "or '*' for any"),
    (".a", 0, "a name is missing", "write a name"),
    ("a.", 2, "a name is missing", "write a name"),
    ("a.#2", 2, "a name is missing", "write a name"),
    ("fc:out.", 7, "a name is missing", "write a name"),
    (" fc", 0, "space around it", "remove the space"),
    ("fc\n", 2, "space around it", "remove the space"),
    ("fc#", 2, "'#' is not followed by just a number", "'#2' for the third call"),
    ("fc#x:in", 2, "'#' is not followed by just a number", "nothing for every call"),
    ("fc#-1", 2, "'#' is not followed by just a number", "third call"),
    ("fc#*", 2, "'#' is not followed by just a number", "nothing for every call"),
    ("fc#2[0]", 2, "'#' is not followed by just a number", "'#2:out[0]'"),
    ("fc#" + "9" * 5000, 2, "the number is too large", "below 10**18"),
    ("x[" + "9" * 5000 + "]", 1, "the number is too large", "below 10**18"),
    ("a[", 1, "'[' is empty or never closed", "write [0], ['key'] or [0-3]"),
    ("a[]", 1, "'[' is empty or never closed", "write [0]"),
    ("a[0-3", 1, "'[' is empty or never closed", "write [0]"),
    ("a['k].b", 1, "the quoted key does not end", "['key']"),
    ("a['k'x]", 1, "the quoted key does not end", "['key']"),
    ("a]", 1, "stray ]", "['key']"),
    ("a.'b.c'", 2, "stray '", "['key']"),
    ("a['k']b", 6, "text directly after ']'", "write a '.' in between"),
    ("a[0][0-3]", 4, "a class directly after a subscript", "write '.[...]'"),
    ("layers[-1]", 6, "an index cannot be negative", "from the front"),
    ("blocks.[-1]", 7, "an index cannot be negative", "from the front"),
    ("layers[1:3]", 6, "a class cannot hold '.', ':' or '/'", "[0-3]"),
    ("cache[a.b]", 5, "a class cannot hold", "['a.b']"),
    ("layers[02]", 6, "an index has no leading zero", "[0-2] for a class"),
    ("blocks.[0-11].mlp", 7, "a class stands for one character", "1[0-5] is 10 to 15"),
    ("blocks.[3-0].mlp", 7, "the range 3-0 is empty", "write [0-3]"),
    ("blocks.[^0].mlp", 7, "'^' does not negate a class", "[!...]"),
    ("op:", 3, "a name is missing", "or '*' for any"),
    ("op:::add", 3, "'::' does not", "write op:.add"),
    ("op::add", 3, "a name is missing", "or '*' for any"),
    ("op:aten::add", 7, "'::' does not separate names", "write op:aten.add"),
    ("line:model.py", 5, "a file and a line number", "line:model.py:57"),
    ("line:out", 5, "a file and a line number", "a module called 'line' is ['line']"),
    ("line::57", 6, "a file and a line number", "line:model.py:57"),
    ("line:model.py:0", 14, "a file and a line number", "line:model.py:57"),
    ("line:model.py:5#2", 14, "a file and a line number", "line:model.py:57"),
    ("line:mod[el.py:5", 8, "'[' is empty or never closed", "write [0]"),
    ("model.py:57", 9, "a function cannot be a number", "write line:model.py:57"),
    ("model.py:", 9, "a name is missing", "write a name"),
    ("model.py:f.x:57", 13, "'57' is not a role", "the roles are"),
    ("fc@", 2, "no rank after '@'", "write '@1' for rank 1, nothing for every rank"),
    ("@", 0, "no rank after '@'", "write '@1' for rank 1"),
    ("fc@#2", 2, "no rank after '@'", "write '@1' for rank 1"),
    ("fc@-1", 2, "'-1' is not a rank", "write '@1' for rank 1, nothing for every rank"),
    ("fc@x", 2, "'x' is not a rank", "quote a name that has an '@': ['a@b']"),
    ("fc@x@1", 2, "'x' is not a rank", "['a@b']"),
    ("fc@**", 2, "'**' is not a rank", "nothing for every rank"),
    ("fc@１", 2, "'１' is not a rank", "write '@1'"),
    ("fc#2@x", 4, "'x' is not a rank", "write '@1'"),
    ("#2@x", 2, "'x' is not a rank", "write '@1'"),
    ("fc:in@x", 5, "'x' is not a rank", "write '@1'"),
    ("fc:out.a@b", 8, "'b' is not a rank", "['a@b']"),
    ("fc['k']@x", 7, "'x' is not a rank", "write '@1'"),
    ("line:a.py:5@x", 11, "'x' is not a rank", "write '@1'"),
    ("fc@1@2", 2, "a second rank", "write one rank, '@1', or nothing"),
    ("@*@1", 0, "a second rank", "write one rank"),
    ("fc@1@x", 2, "a second rank", "write one rank"),
    ("line:a.py:5@1@2", 11, "a second rank", "write one rank"),
    ("fc@1#2", 2, "the rank comes last", "write fc#2@1"),
    ("fc@1#2@3", 2, "the rank comes last", "write fc#2@1"),
    ("fc@1:in", 2, "the rank comes last", "write fc:in@1"),
    ("fc@*:in", 2, "the rank comes last", "write fc:in@*"),
    ("fc@1[0]", 2, "the rank comes last", "write fc[0]@1"),
    ("fc[0]@1.x", 5, "the rank comes last", "write fc[0].x@1"),
    ("fc:in@1.x", 5, "the rank comes last", "write fc:in.x@1"),
    ("model.py@1:f.x", 8, "the rank comes last", "write model.py:f.x@1"),
    ("fc@01", 2, "a rank has no leading zero", "write '@1'"),
    ("fc@00", 2, "a rank has no leading zero", "write '@0'"),
    ("fc@1234567890", 2, "the rank is too large", "write a number below 10**9"),
    # With a rank, the caret still points into the whole text.
    ("encoder:inn@1", 8, "'inn' is not a role", "write ':in'"),
    ("a.@1", 2, "a name is missing", "write a name"),
    ("fc:@1", 3, "no role after ':'", "the roles are"),
    ("fc @1", 2, "space around it", "remove the space"),
    ("a['k@1", 1, "the quoted key does not end", "['key']"),
    ("line:model.py@1", 5, "a file and a line number", "line:model.py:57"),
    ("model.py:57@1", 9, "a function cannot be a number", "write line:model.py:57"),
]


@pytest.mark.parametrize(("text", "caret", "what", "instead"), REFUSED)
def test_a_refusal_says_what_where_and_what_instead(
    text: str, caret: int, what: str, instead: str
) -> None:
    with pytest.raises(AddressSyntaxError) as caught:
        parse(text)
    assert what in caught.value.what
    assert instead in caught.value.instead
    assert (caught.value.text, caught.value.position) == (text, caret)


def test_the_message_as_it_is_read() -> None:
    with pytest.raises(AddressSyntaxError) as caught:
        parse("encoder.layers.0:inn")
    assert str(caught.value) == (
        "cannot read the address: 'inn' is not a role\n"
        "    encoder.layers.0:inn\n"
        "                     ^\n"
        "write ':in'; a local of a function is file.py:function.variable"
    )


def test_the_message_of_a_rank_as_it_is_read() -> None:
    with pytest.raises(AddressSyntaxError) as caught:
        parse("encoder.layers.0@1#2")
    assert str(caught.value) == (
        "cannot read the address: the rank comes last\n"
        "    encoder.layers.0@1#2\n"
        "                    ^\n"
        "write encoder.layers.0#2@1"
    )


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("#0", "#0@1"),
        ("fc#2:grad", "fc#2:grad@1"),
        ("", "@1"),
        ("op:aten.mm.default#3", "op:aten.mm.default#3@1"),
        ("line:model.py:57", "line:model.py:57@1"),
        ("cache['a@1']", "cache['a@1']@1"),
        ("fc@0", "fc@1"),
        ("fc@*", "fc@1"),
    ],
)
def test_with_rank(address: str, expected: str) -> None:
    assert with_rank(address, 1) == expected
    before, after = parse(address), parse(expected)
    assert parts(after) == {**parts(before), "rank": 1}
    assert split_rank(expected) == (split_rank(address)[0], 1)


@pytest.mark.parametrize("rank", [-1, 10**9])
def test_a_rank_that_cannot_be_written_is_refused(rank: int) -> None:
    with pytest.raises(ClewError, match=f"{rank} is not a rank; give a whole number"):
        with_rank("fc", rank)


def test_an_address_is_data() -> None:
    address = parse("forward.cache['a.b']#1:grad@1")
    assert address == parse(address.text)
    assert hash(address) == hash(parse(address.text))
    assert pickle.loads(pickle.dumps(address)) == copy.deepcopy(address) == address
    with pytest.raises(FrozenInstanceError):
        address.path = "x"  # type: ignore[misc]


def test_splits_offers_every_cut_longest_name_first() -> None:
    assert list(parse("mypkg.data:Dataset.get_item.x[0]").splits()) == [
        ("Dataset.get_item.x.0", ()),
        ("Dataset.get_item.x", (0,)),
        ("Dataset.get_item", ("x", 0)),
        ("Dataset", ("get_item", "x", 0)),
        ("", ("Dataset", "get_item", "x", 0)),
    ]


# Structured generation: an address built from parts parses to the parts it was made from.

names = st.from_regex(r"[A-Za-z_0-9][A-Za-z_0-9<>]{0,6}", fullmatch=True)
globs = st.sampled_from(["*", "**", "?", "[0-3]", "[!a]", "h*[ab]?", "[12]", "l[a-c]r*", "[-a]"])
indices = st.integers(0, 10**17)
keys = st.text(max_size=8) | st.text(alphabet="a@1*#:.", max_size=8)
ranks = st.none() | st.integers(0, 10**9 - 1)


def ranked(text: str, rank: int | None) -> str:
    return text if rank is None else with_rank(text, rank)


@st.composite
def segment_lists(draw: st.DrawFn, min_size: int = 1) -> tuple[str, tuple[Segment, ...]]:
    """Draw the text of some segments and what it stands for."""
    text, found = "", list[Segment]()
    for position in range(draw(st.integers(min_size, 5))):
        kind = draw(st.sampled_from(["name", "name", "glob", "index", "key"]))
        if kind == "index" and position:
            found.append(draw(indices))
            text += f"[{found[-1]}]"
        elif kind == "key":
            key, quote = draw(keys), draw(st.sampled_from("'\""))
            found.append(Key(key))
            escaped = key.replace("\\", "\\\\").replace(quote, "\\" + quote)
            text += f"[{quote}{escaped}{quote}]"
        else:
            found.append(draw(globs if kind == "glob" else names))
            text += ("." if position else "") + str(found[-1])
    return text, tuple(found)


@st.composite
def tails(draw: st.DrawFn) -> tuple[str, int | None, str | None, tuple[Segment, ...]]:
    """Draw the text and parts of call, role and field."""
    text, field = "", tuple[Segment, ...]()
    call = draw(st.none() | indices)
    role = draw(st.none() | st.sampled_from(ROLES))
    if call is not None:
        text += f"#{call}"
    if role is not None:
        text += f":{role}"
        if role not in ("param", "buffer", "update"):
            field_text, field = draw(segment_lists(min_size=0))
            text += field_text if field_text.startswith(("['", '["')) else f".{field_text}"
            text = text.removesuffix(".") if not field else text
    return text, call, role, field


@unhurried
@given(segment_lists(min_size=0), tails(), ranks)
def test_a_path_parses_to_its_parts(
    head: tuple[str, tuple[Segment, ...]],
    tail: tuple[str, int | None, str | None, tuple[Segment, ...]],
    rank: int | None,
) -> None:
    text = ranked(head[0] + tail[0], rank)
    found = parse(text)
    assert found.text == text
    assert (found.kind, found.segments, found.path) == ("path", head[1], join(head[1]))
    assert (found.call, found.role, found.field, found.rank) == (*tail[1:], rank)
    assert list(map(type, found.segments)) == list(map(type, head[1]))


@unhurried
@given(st.sampled_from(["d.py", "a/b c/d.py", "/x/*.py"]), names, segment_lists(), tails(), ranks)
def test_a_function_parses_to_its_parts(
    file: str,
    function: str,
    rest: tuple[str, tuple[Segment, ...]],
    tail: tuple[str, int | None, str | None, tuple[Segment, ...]],
    rank: int | None,
) -> None:
    function = "f" + function
    text = ranked(f"{file}:{function}.{rest[0]}{tail[0]}", rank)
    found = parse(text)
    assert found.text == text
    assert (found.kind, found.path, found.segments) == ("function", file, (function, *rest[1]))
    assert (found.call, found.role, found.field, found.rank) == (*tail[1:], rank)


@unhurried
@given(segment_lists(), tails(), ranks)
def test_an_op_parses_to_its_parts(
    head: tuple[str, tuple[Segment, ...]],
    tail: tuple[str, int | None, str | None, tuple[Segment, ...]],
    rank: int | None,
) -> None:
    text = ranked(f"op:aten.{head[0]}{tail[0]}", rank)
    if "::" in text:
        return
    found = parse(text)
    assert (found.text, found.kind, found.segments) == (text, "op", ("aten", *head[1]))
    assert (found.call, found.role, found.field, found.rank) == (*tail[1:], rank)


Answer = TypeVar("Answer")


def attempt(ask: Callable[[], Answer], text: str) -> Answer | None:
    """Return the answer, or None for a syntax error that points into `text`."""
    error = None
    try:
        return ask()
    except AddressSyntaxError as caught:
        error = caught
    assert error.text == text
    assert 0 <= error.position <= len(text)
    assert len(str(error).split("\n")) == 4
    return None


awkward = st.text(alphabet="ab01.#:@[]'\"*?!-\\/ py\n", max_size=30) | st.text(max_size=30)


@settings(deadline=None, max_examples=2000)
@given(awkward)
@example("line:" + "9" * 5000 + ":" + "9" * 5000)
@example("[" * 20000)
@example("['" * 20000)
@example("['\\" * 20000)
@example("#" * 20000)
@example("#1" * 20000 + ".")
@example(":" * 20000)
@example("@" * 20000)
@example("@1" * 20000)
@example("a@" + "9" * 20000)
@example("a" * 20000 + ".py:" + "*" * 20000)
def test_any_text_is_an_address_or_a_syntax_error(text: str) -> None:
    for start in ("", "op:", "line:", "a.py:", "fc:out"):
        address = attempt(partial(parse, start + text), start + text)
        if address is None:
            continue
        assert address.text == start + text
        assert address.kind in ("path", "op", "line", "function")
        if address.rank is not None:
            again = with_rank(split_rank(address.text)[0], address.rank)
            assert parse(again) == address
        if address.kind in ("path", "op"):
            # What parses can be matched with, and its canonical form says the same.
            matches(address.path, text)
            assert tuple(map(str, split(address.path))) == tuple(map(str, address.segments))


@settings(deadline=None, max_examples=1000)
@given(awkward, awkward)
def test_matching_any_text_answers_or_is_a_syntax_error(pattern: str, name: str) -> None:
    for test in (matches, matches_op, matches_file):
        assert attempt(partial(test, pattern, name), pattern) in (True, False, None)


# Matching.


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("", "", True),
        ("", "a", False),
        ("*", "", False),
        ("**", "", True),
        ("**", "a.b.c", True),
        ("*", "a", True),
        ("*", "a.b", False),
        ("encoder.layers.*.self_attn", "encoder.layers.11.self_attn", True),
        ("encoder.layers.*.self_attn", "encoder.layers.1.x.self_attn", False),
        ("encoder.**.self_attn", "encoder.self_attn", True),
        ("encoder.**.self_attn", "encoder.layers.0.self_attn", True),
        ("encoder.**.self_attn", "encoder.layers.0.self_attn.q", False),
        ("encoder.**", "encoder", True),
        ("encoder.**", "encoders", False),
        ("**.fc", "fc", True),
        ("**.fc", "xfc", False),
        ("**.a.**.a", "a", False),
        ("**.a.**.a", "x.a.a", True),
        ("blocks.[0-3].mlp", "blocks.3.mlp", True),
        ("blocks.[0-3].mlp", "blocks.4.mlp", False),
        ("blocks.[0-3].mlp", "blocks.13.mlp", False),
        ("blocks.1[0-5].mlp", "blocks.13.mlp", True),
        ("blocks.[!0].mlp", "blocks.1.mlp", True),
        ("a[!x]b", "a.b", False),
        ("a?b", "a.b", False),
        ("a[+-0]b", "a.b", False),
        ("a**b", "axxb", True),
        ("a**b", "a.b", False),
        ("***", "a", True),
        ("***", "a.b", False),
        ("self_*", "self_attn", True),
        ("fc1", "fc10", False),
        ("fc.1", "fcx1", False),
        ("MLP#2.fc", "MLP#2.fc", True),
        ("MLP#*.fc", "MLP#2.fc", True),
        ("a:b", "a:b", True),
        ("x\n", "x", False),
        # An index, a segment and a quoted key are one and the same to a name.
        ("cache['k'][0]", "cache.k.0", True),
        ("cache.k.0", "cache['k'][0]", True),
        ("cache.*.0", "cache['a.b'][0]", True),
        ("cache['a.b']", "cache['a.b']", True),
        ("cache['a.b']", "cache.a.b", False),
        ("cache.a.b", "cache['a.b']", False),
        ("cache['*']", "cache.x", False),
        ("cache['**'].*", "cache.a.b.c", False),
        ("cache['**'].*", "cache['**'].c", True),
        ("cache['*']", "cache['*']", True),
        ("cache.**", "cache['a.b'].c[3]", True),
        ("cache.a?b", "cache['a.b']", True),
        ("cache.a[+-0]b", "cache['a.b']", True),
        ("cache.*", "cache['']", True),
        ("['']", "", False),
        # A name's brackets that are no subscript are letters.
        ("['a[b']", "a[b", True),
        ("['a[0]b'].c", "a[0]b.c", True),
        ("[[]0[]]", "[0]", True),
    ],
)
def test_matches(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected
    assert compile_pattern(pattern)(name) is expected


@pytest.mark.parametrize("pattern", ["a[", "a..b", "a['k", "[3-0]"])
def test_a_bad_pattern_is_refused_wherever_it_is_used(pattern: str) -> None:
    for use in (compile_pattern, has_wildcard, split):
        with pytest.raises(AddressSyntaxError):
            use(pattern)


def test_compiled_patterns_are_kept() -> None:
    assert compile_pattern("a.*.b") is compile_pattern("a.*.b")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", False),
        ("a.b", False),
        ("cache['k'][0]", False),
        ("cache['*']", False),
        (Key("*"), False),
        ("a.*", True),
        ("**", True),
        ("a?", True),
        ("b.[0-3]", True),
        ("b.[0]", True),
    ],
)
def test_has_wildcard(pattern: str, expected: bool) -> None:
    assert has_wildcard(pattern) is expected


@pytest.mark.parametrize(
    ("segment", "name", "expected"),
    [
        ("0", 0, True),
        (0, "0", True),
        (0, 1, False),
        ("*", 12, True),
        ("[0-3]", 2, True),
        ("**", "x", True),
        ("a*", "a.b", True),
        ("[!a]", ".", True),
        (Key("a*"), "a*", True),
        (Key("a*"), "ab", False),
        ("x", "xy", False),
    ],
)
def test_segment_matches(segment: Segment, name: Segment, expected: bool) -> None:
    assert segment_matches(segment, name) is expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("aten._softmax*", True),
        ("aten._softmax.default", True),
        ("aten._softmax.*", True),
        ("aten._softmax", True),
        ("_softmax", True),
        ("*softmax*", True),
        ("*", True),
        ("aten", False),
        ("default", False),
        ("softmax", False),
        ("prims._softmax", False),
    ],
)
def test_matches_op(pattern: str, expected: bool) -> None:
    assert matches_op(pattern, "aten._softmax.default") is expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("model.py", True),
        ("./model.py", True),
        ("dir/model.py", True),
        ("/abs/dir/model.py", True),
        ("*.py", True),
        ("d?r/mod*", True),
        ("/abs/**/model.py", True),
        ("abs/model.py", False),
        ("/dir/model.py", False),
        ("odel.py", False),
        ("model_py", False),
        ("model?py", True),
        ("[l-n]odel.py", True),
    ],
)
def test_matches_file(pattern: str, expected: bool) -> None:
    assert matches_file(pattern, "/abs/dir/model.py") is expected


# The reference never sees a pattern as text: it walks the tokens the text was written from.

Token = tuple[str, str]
letters = "abc"
tokens = st.one_of(
    st.tuples(st.just("letter"), st.sampled_from(letters)),
    st.just(("run", "")),
    st.just(("one", "")),
    st.tuples(st.just("any of"), st.sampled_from(["ab", "c", "bc"])),
    st.tuples(st.just("none of"), st.sampled_from(["ab", "c", "bc"])),
)
DEEP = "deep"
pattern_tokens = st.lists(st.just(DEEP) | st.lists(tokens, min_size=1, max_size=5), max_size=5)
plain_names = st.lists(st.text(letters, min_size=1, max_size=5), max_size=6)


def write(pattern: list[Any]) -> str:
    forms = {"letter": "{}", "run": "*", "one": "?", "any of": "[{}]", "none of": "[!{}]"}
    texts = []
    for segment in pattern:
        text = "".join(forms[kind].format(x) for kind, x in segment) if segment != DEEP else "**"
        # Two runs and nothing else would read as `**`; three mean the same as one.
        texts.append("***" if text == "**" and segment != DEEP else text)
    return ".".join(texts)


def slow_segment(pattern: list[Token], text: str) -> bool:
    if not pattern:
        return not text
    (kind, x), rest = pattern[0], pattern[1:]
    if kind == "run":
        return any(slow_segment(rest, text[i:]) for i in range(len(text) + 1))
    accepts = {"letter": x == text[:1], "one": True, "any of": text[:1] in x}
    return bool(text) and accepts.get(kind, text[:1] not in x) and slow_segment(rest, text[1:])


def slow_match(pattern: list[Any], name: list[str]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == DEEP:
        return any(slow_match(pattern[1:], name[i:]) for i in range(len(name) + 1))
    return bool(name) and slow_segment(pattern[0], name[0]) and slow_match(pattern[1:], name[1:])


@settings(deadline=None, max_examples=2000)
@given(pattern_tokens, plain_names)
def test_matches_agrees_with_the_slow_reference(pattern: list[Any], name: list[str]) -> None:
    assert matches(write(pattern), ".".join(name)) is slow_match(pattern, name)


@unhurried
@given(pattern_tokens, st.randoms(use_true_random=False))
def test_a_name_made_from_a_pattern_matches_it(pattern: list[Any], choose: random.Random) -> None:
    def word() -> str:
        return "".join(choose.choices(letters, k=choose.randint(1, 3)))

    def letter_for(kind: str, x: str) -> str:
        if kind == "run":
            return choose.choice(["", word()])
        allowed = {"letter": x, "one": letters, "any of": x}
        return choose.choice(allowed.get(kind, "".join(set(letters) - set(x))))

    name: list[str] = []
    for segment in pattern:
        if segment == DEEP:
            name += [word() for _ in range(choose.randint(0, 3))]
        else:
            name.append("".join(letter_for(*token) for token in segment))
    # A lone run may have become an empty name, which only a key can be.
    assert matches(write(pattern), join(Key(part) for part in name))


@unhurried
@given(st.lists(st.text(max_size=6).map(Key) | st.integers(0, 99), max_size=5))
def test_joined_keys_split_and_match_again(segments: list[Segment]) -> None:
    name = join(segments)
    assert list(map(str, split(name))) == list(map(str, segments))
    assert not has_wildcard(name)
    assert matches(name, name)
    assert matches("**", name)
    assert matches(".".join("*" * len(segments)), name) or "\0" in name


@unhurried
@given(
    st.lists(st.text(alphabet="ab1_-:@[]*?'\"\\# !é", min_size=1), min_size=1, max_size=3),
    st.integers(0, 9),
    ranks,
    st.sampled_from(["", ":in"]),
)
@example(["a", "x@1"], 0, None, "")
@example(["x@*"], 0, 1, ":in")
@example(["1[1]"], 0, None, "")
def test_a_name_as_it_is_written_reads_back_as_itself(
    parts: list[str], call: int, rank: int | None, role: str
) -> None:
    name = ".".join(parts)
    address = parse(ranked(f"{written(name)}#{call}{role}", rank))
    assert (address.kind, address.call, address.rank) == ("path", call, rank)
    assert address.role == (role[1:] or None)
    assert compile_path(address.path)(name)
    assert not has_wildcard(address.path)


@pytest.mark.parametrize("name", ["x@1", "a.x@1", "x@*", "user@host", "@1", "a.@"])
def test_a_name_with_an_at_sign_is_quoted_and_reads_back(name: str) -> None:
    keys = tuple(Key(part) for part in name.split("."))
    for text in (written(name), join(keys)):
        assert parse(text).rank is None
        assert tuple(map(str, parse(text).segments)) == tuple(map(str, keys))
        assert parse(with_rank(text, 3)).segments == parse(text).segments
        assert matches(parse(text).path, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (".".join(["a", *["**"] * 500, "b"]), ".".join("a" * 2000)),
        (".".join(["**", "a"] * 200 + ["b"]), ".".join("a" * 2000)),
        (".".join(["**", "*"] * 100 + ["b"]), ".".join("a" * 1000)),
        ("*a" * 200 + "b", "a" * 3000),
        ("a*?" * 200 + "b", "a" * 3000),
        (".".join(["**", "*a" * 40] * 30 + ["b"]), ".".join(["a" * 60] * 100)),
    ],
)
def test_no_pattern_backtracks_without_end(pattern: str, name: str) -> None:
    # There is nothing to time: with plain backtracking none of these would end.
    assert not matches(pattern, name)
    assert not segment_matches("*a" * 100 + "b", name)
    assert not matches_file("/" + pattern.replace(".", "/"), "/" + name.replace(".", "/"))


# Near misses.

MODEL = [
    f"{part}.layers.{i}.{name}"
    for part in ("encoder", "decoder")
    for i in range(12)
    for name in ("self_attn", "self_attn.out_proj", "linear1", "linear2", "norm1", "norm2")
] + ["", "encoder", "decoder", "encoder.norm", "decoder.norm", "lm_head", "embed_tokens"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("encoder.layers.0.self_attn", ["encoder.layers.0.self_attn"]),
        ("encodr.layers.0.self_attn", ["encoder.layers.0.self_attn"]),
        ("encoder.layers.10.self_atn", ["encoder.layers.10.self_attn"]),
        ("Encoder.Layers.0.Linear1", ["encoder.layers.0.linear1"]),
        ("layers.3.norm2", ["decoder.layers.3.norm2", "encoder.layers.3.norm2"]),
        ("model.encoder.layers.3.norm2", ["encoder.layers.3.norm2"]),
        ("lmhead", ["lm_head"]),
        ("embed_token", ["embed_tokens"]),
        ("encoder.layers.0.selfattn.outproj", ["encoder.layers.0.self_attn.out_proj"]),
        ("self_atn", ["decoder.layers.0.self_attn", "decoder.layers.1.self_attn"]),
        ("encoder.layer.*.self_attn", ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"]),
        ("encoder.layers.12.norm1", ["encoder.layers.1.norm1", "encoder.layers.2.norm1"]),
    ],
)  # fmt: skip
def test_nearest_finds_what_was_meant(name: str, expected: list[str]) -> None:
    assert nearest(name, MODEL)[: len(expected)] == expected


def test_nearest_does_not_depend_on_the_order_of_the_candidates() -> None:
    shuffled = MODEL * 2
    random.Random(0).shuffle(shuffled)
    for name in ("self_atn", "layers.0", "zzz", "", "encoder.layers.*"):
        found = nearest(name, MODEL)
        assert len(found) == 5
        assert nearest(name, shuffled) == nearest(name, set(shuffled)) == found


def test_nearest_among_fifty_thousand() -> None:
    many = [f"model.layers.{i}.experts.{j}.up_proj" for i in range(500) for j in range(100)]
    assert nearest("model.layers.321.expert.77.up_proj", many, n=1) == [
        "model.layers.321.experts.77.up_proj"
    ]
    assert nearest("layers.499.experts.3.up_proj", iter(many), n=1) == [
        "model.layers.499.experts.3.up_proj"
    ]


@unhurried
@given(
    st.text(max_size=20) | st.text("aAbB.0*", max_size=8),
    st.lists(st.text(max_size=10) | st.text("aAbB.0", max_size=8), max_size=20),
    st.integers(-1, 8),
)
@example("x" * 20000, ["x" * 19999, "y" * 20000], 5)
@example("1" * 5000, ["1" * 4999], 5)
def test_nearest_returns_existing_names_and_the_exact_one_first(
    name: str, candidates: list[str], n: int
) -> None:
    found = nearest(name, candidates, n)
    assert len(found) == min(max(n, 0), len(set(candidates))) == len(set(found))
    assert set(found) <= set(candidates)
    if n > 0:
        assert nearest(name, [*candidates, name], n)[0] == name
