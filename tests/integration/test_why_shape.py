"""`t.why_shape` and `clew why-shape`: where a dimension of a tensor comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clew
from accuracy.shapes import questions
from clew.analysis.shape_links import ShapeChain
from clew.cli.main import main


class Attention(nn.Module):
    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 24)
        self.register_buffer("position", torch.zeros(1, 13, 24))
        self.attention = Attention()
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position[:, : tokens.shape[1]]
        x = self.norm(x + self.attention(x))
        return self.head(x.mean(1))


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.fc = nn.Linear(5 * 6 * 7, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv(image)), 2)
        return self.fc(x.flatten(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(7, 5, batch_first=True, bidirectional=True)
        self.extra = nn.Linear(3, 4)
        self.fc = nn.Linear(14, 2)

    def forward(self, series: Tensor, facts: Tensor) -> Tensor:
        out, _ = self.rnn(series)
        return self.fc(torch.cat([out[:, -1], self.extra(facts)], dim=1))


@pytest.fixture(scope="module")
def text() -> clew.Trace:
    model, tokens = Text(), torch.zeros(2, 6, dtype=torch.long)
    with clew.trace(model) as t:
        model(tokens)
    return t


@pytest.fixture(scope="module")
def image() -> clew.Trace:
    model, pixels = Image(), torch.randn(2, 3, 14, 16)
    with clew.trace(model) as t:
        model(pixels)
    return t


def words(chain: ShapeChain) -> list[str]:
    """What happened, without what only carried the dimension."""
    return [link.how for link in chain.links if link.how != "carried"]


def ends(chain: ShapeChain) -> list[tuple[str, int]]:
    return [(link.name, link.after.dim) for link in chain.origins]


def test_a_sequence_through_heads_leads_to_the_input(text: clew.Trace) -> None:
    chain = text.why_shape("attention.out:in", 1)
    assert (chain.dim, chain.size, chain.shape) == (1, 6, (2, 6, 24))
    assert words(chain) == ["permuted", "permuted", "input"]
    assert ends(chain) == [(":in.0", 1)]
    first, second = (link for link in chain.links if link.how == "permuted")
    assert [first.text, second.text] == ["permuted from dim 2", "permuted from dim 1"]
    assert first.source is not None
    assert "mixed.transpose(1, 2).reshape" in first.source.text
    assert (first.after.dim, first.before[0].dim) == (1, 2)
    assert first.before[0].shape == (2, 3, 6, 8)


def test_heads_are_split_from_a_weight_and_merged_again(text: clew.Trace) -> None:
    chain = text.why_shape("attention.out:in", -1)
    assert chain.links[0].text == "merged from dims 2 and 3: 3 × 8"
    assert "split: 24 = 3 × 8" in [link.text for link in chain.links]
    assert "sliced: 24 of 72" in [link.text for link in chain.links]
    assert ends(chain) == [("attention.qkv.weight", 0)]
    last = next(link for link in chain.links if link.how == "parameter")
    assert last.text == "parameter attention.qkv.weight: out_features of attention.qkv"
    # The second of the merged dimensions comes from where the first does.
    assert chain.links[-1].how == "seen"
    assert max(link.depth for link in chain.links) == 1


def test_batch_and_width_of_a_transformer(text: clew.Trace) -> None:
    assert words(text.why_shape("norm", 0)) == ["input"]
    assert words(text.why_shape("norm", 1)) == ["input"]
    assert ends(text.why_shape("norm", 2)) == [("embed.weight", 1)]
    assert ends(text.why_shape("head", 1)) == [("head.weight", 0)]
    assert ends(text.why_shape("embed:in", 1)) == [(":in.0", 1)]


def test_data_made_inside_the_block_passes_the_input_of_the_model() -> None:
    model = Image()
    with clew.trace(model) as t:
        pixels = torch.zeros(2, 3, 14, 16)
        model(pixels / 255)
    chain = t.why_shape("conv", 2)
    assert words(chain) == ["resized", "input", "created"]
    given = next(link for link in chain.links if link.how == "input")
    assert (given.text, given.name, given.is_end) == ("input 0 of Image", ":in.0", False)
    assert [link.text for link in chain.origins] == ["created by zeros with size 14"]


def test_a_flattened_image(image: clew.Trace) -> None:
    chain = image.why_shape("fc:in", 1)
    assert chain.links[0].text == "merged from dims 1, 2 and 3: 5 × 6 × 7"
    assert ends(chain) == [("conv.weight", 0), (":in.0", 2), (":in.0", 3)]
    resized = [link.text for link in chain.links if link.how == "resized"]
    assert resized[:2] == ["resized: 12 → 6 (kernel 2, stride 2)", "resized: 14 → 12 (kernel 3)"]


def test_a_batch_of_one_is_not_lost_where_linear_flattens_it() -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))
    x = torch.randn(1, 4, 7)
    with clew.trace(model) as t:
        model(x)
    assert words(t.why_shape("2", 0)) == ["input"]
    assert ends(t.why_shape("2", 0)) == [(":in.0", 0)]


class LastStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x[:, -1:])


@pytest.mark.parametrize("batch", [1, 2])
def test_a_slice_of_one_is_not_added_where_linear_flattens_it(batch: int) -> None:
    model, x = LastStep(), torch.randn(batch, 4, 7)
    with clew.trace(model) as t:
        model(x)
    assert words(t.why_shape("fc", 0)) == ["input"]
    assert words(t.why_shape("fc", 1)) == ["sliced", "input"]
    assert ends(t.why_shape("fc", 1)) == [(":in.0", 1)]


def test_a_dimension_of_one_that_a_view_adds_begins_there() -> None:
    x = torch.randn(1, 7)
    with clew.trace() as t:
        (x * 2).view(1, 1, 7)
    assert [link.how for link in t.why_shape("op:view", 1).links] == ["created"]


class Started(nn.Module):
    """A recurrent layer whose first state another layer makes."""

    def __init__(self, cls: type[nn.RNNBase], batch_first: bool, both: bool = False) -> None:
        super().__init__()
        self.start = nn.Linear(3, 5)
        self.rnn = cls(7, 5, batch_first=batch_first, bidirectional=both)  # type: ignore[call-arg]

    def forward(self, x: Tensor, facts: Tensor) -> Tensor:
        state = self.start(facts).expand(2 if self.rnn.bidirectional else 1, -1, -1).contiguous()
        given = (state, state) if isinstance(self.rnn, nn.LSTM) else state
        return self.rnn(x, given)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("cls", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_given_state_is_not_where_a_recurrent_layer_has_its_sizes_from(
    cls: type[nn.RNNBase], batch_first: bool
) -> None:
    model = Started(cls, batch_first)
    x, facts = torch.randn((2, 9, 7) if batch_first else (9, 2, 7)), torch.randn(2, 3)
    with clew.trace(model) as t:
        model(x, facts)
    for dim in (0, 1):
        assert ends(t.why_shape("rnn:out.0", dim))[0][0] == ":in.0"
    assert ends(t.why_shape("rnn:out.0", 2)) == [("rnn.weight_hh_l0", 1)]
    state = "rnn:out.1.0" if cls is nn.LSTM else "rnn:out.1"
    assert t.why_shape(state, 0).links[-1].text == "one for each layer and direction"
    assert ends(t.why_shape(state, 1))[0][0] == ":in.0"


def test_both_directions_of_a_recurrent_layer_with_a_given_state() -> None:
    model = Started(nn.GRU, True, both=True)
    with clew.trace(model) as t:
        model(torch.randn(2, 9, 7), torch.randn(2, 3))
    assert {name for name, _ in ends(t.why_shape("rnn:out.0", 2))} == {
        "rnn.weight_hh_l0", "rnn.weight_hh_l0_reverse",
    }  # fmt: skip


def test_a_recurrent_cell_with_a_given_state() -> None:
    start, cell = nn.Linear(3, 5), nn.GRUCell(7, 5)
    model = nn.ModuleDict({"start": start, "cell": cell})
    with clew.trace(model) as t:
        cell(torch.ones(2, 7) * 2, start(torch.ones(2, 3)))
    assert t.why_shape("cell:out", 0).links[0].text == "carried by GRUCell"
    assert t.why_shape("cell:out", 0).links[1].name == "cell:in.0"
    assert ends(t.why_shape("cell:out", 1)) == [("cell.weight_hh", 1)]


def test_what_is_flattened_and_restored_was_only_carried() -> None:
    """`nn.MultiheadAttention` merges length and batch, and splits them after a product."""
    attention, x = nn.MultiheadAttention(12, 3, batch_first=True), torch.randn(2, 4, 12)
    with clew.trace(attention) as t:
        attention(x, x, x, need_weights=True)
    chain = t.why_shape(":out.0", 0)
    assert set(words(chain)) == {"permuted", "input"}
    assert ends(chain) == [(":in.0", 0)]


def test_recurrent_and_concatenated_features() -> None:
    model, series, facts = Recurrent(), torch.randn(2, 9, 7), torch.randn(2, 3)
    with clew.trace(model) as t:
        model(series, facts)
    chain = t.why_shape("fc:in", 1)
    assert chain.links[0].text == "concatenated: 10 + 4"
    assert {name for name, _ in ends(chain)} >= {"extra.weight"}
    assert any("hh" in name for name, _ in ends(chain)), ends(chain)
    assert ends(t.why_shape("fc:in", 0)) == [(":in.0", 0)]
    assert ends(t.why_shape("rnn:out.0", 1)) == [(":in.0", 1)]


def test_patches_made_by_reshape_and_permute() -> None:
    """What einops' `b c (h p) (w q) -> b (h w) (p q c)` does."""
    images = torch.randn(2, 3, 8, 15)
    with clew.trace() as t:
        x = images.reshape(2, 3, 4, 2, 5, 3).permute(0, 2, 4, 3, 5, 1).reshape(2, 20, 18)
        clew.tap("patches", x)
    rows = t.why_shape("patches", 1)
    assert rows.links[0].text == "merged from dims 1 and 2: 4 × 5"
    assert [link.text for link in rows.links if link.how == "split"] == [
        "split: 8 = 4 × 2", "split: 15 = 5 × 3",
    ]  # fmt: skip
    assert [link.after.dim for link in rows.origins] == [2, 3]
    assert [link.after.dim for link in t.why_shape("patches", 2).origins] == [2, 3, 1]


def test_in_place_writes_and_created_tensors() -> None:
    x = torch.randn(4, 7)
    with clew.trace() as t:
        buffer = torch.zeros(9, 4, 7)
        buffer[0] = x
        buffer[1] = x
        clew.tap("filled", buffer * 2)
    chain = t.why_shape("filled", 0)
    assert [link.text for link in chain.origins] == ["created by zeros with size 9"]
    assert chain.origins[0].source is not None
    assert "torch.zeros(9, 4, 7)" in chain.origins[0].source.text


def test_an_input_says_more_than_a_size_that_was_given() -> None:
    """A token expanded to the batch, and a state of zeros, have their size from Python."""
    x, token = torch.randn(2, 5, 3), torch.zeros(1, 1, 3)
    with clew.trace() as t:
        joined = torch.cat([token.expand(2, -1, -1), x], dim=1)
        state = torch.zeros(2, 6, 3)
        clew.tap("state", state + joined)
        clew.tap("alone", state * 2)
    for dim in (0, 2):
        assert [link.how for link in t.why_shape("state", dim).origins] == ["outside"]
    assert [link.how for link in t.why_shape("alone", 0).origins] == ["created"]


def test_a_kernel_that_calls_no_other_op() -> None:
    """Of `max_pool1d` without gradients the native engine sees the call and empty memory."""
    x = torch.randn(2, 3, 35)
    with clew.trace() as t:
        clew.tap("pooled", F.max_pool1d(x, 2))
    chain = t.why_shape("pooled", 2)
    assert words(chain) == ["resized", "outside"]
    assert chain.origins[0].after.shape == (2, 3, 35)


def test_a_broadcast_of_both_operands_shows() -> None:
    a, b = torch.randn(8), torch.randn(8, 1)
    with clew.trace() as t:
        clew.tap("difference", a - b)
    for dim, missing in ((0, "is not there"), (1, "is 1")):
        (link, _) = t.why_shape("difference", dim).links
        assert link.how == "broadcast"
        assert link.text == f"broadcast: 8 here, while in another operand it {missing}"


@pytest.mark.parametrize("name", ["ours", "add"])
def test_an_op_of_another_library_has_no_rule_and_says_so(name: str) -> None:
    library = torch.library.Library("clew_shapes", "FRAGMENT")
    library.define(f"{name}(Tensor a, Tensor b) -> Tensor")
    kept = torch.zeros(5, 4)
    library.impl(name, lambda a, b: kept.clone(), "CompositeExplicitAutograd")
    a, b = torch.randn(4, 5), torch.randn(5, 4)
    with clew.trace() as t:
        clew.tap("result", getattr(torch.ops.clew_shapes, name)(a, b))
    event = next(event for event in t.ops if event.name == f"clew_shapes.{name}.default")
    (link, _) = t.why_shape(event.address, 0).links
    library._destroy()
    # The native engine sees the op inside, which the kernel of the library runs.
    assert link.how in ("assumed", "carried")
    if link.event == event:
        assert link.text == "assumed: the only input with this size here"


def test_long_chains_are_folded_to_a_screen() -> None:
    model = nn.Sequential(*[m for _ in range(40) for m in (nn.Linear(8, 8), nn.ReLU())])
    x = torch.randn(2, 8)
    with clew.trace(model) as t:
        model(x)
    chain = t.why_shape("79", 0)
    assert [link.count for link in chain.links] == [80, 1]
    assert chain.links[0].text == "carried by 80 ops: relu, addmm"
    assert len(str(chain).splitlines()) == 3


def test_of_several_calls_the_first_is_taken() -> None:
    model = nn.Linear(3, 3)
    with clew.trace(model) as t:
        model(torch.randn(2, 3))
        model(torch.randn(5, 3))
    chain = t.why_shape("", 0)
    assert chain.shape == (2, 3)
    assert chain.notes == ("of 2 matches, #0 to #1, this is the first: #0",)
    assert t.why_shape("#1", 0).shape == (5, 3)
    assert t.why_shape("#1", 0).notes == ()


def test_parameters_ops_taps_and_variables() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.fc(x)
            return hidden.t()

    model, x = Net(), torch.randn(2, 3)
    with clew.trace(model, capture=["forward.hidden"]) as t:
        model(x)
    assert ends(t.why_shape("fc.weight:param", 1)) == [("fc.weight", 1)]
    assert ends(t.why_shape("op:aten.addmm.default#0", 1)) == [("fc.weight", 0)]
    assert ends(t.why_shape("forward.hidden", 0)) == [(":in.0", 0)]
    assert words(t.why_shape("", 1)) == ["permuted", "input"]


def test_module_calls_alone_lead_as_far_as_they_can() -> None:
    model, pixels = Image(), torch.randn(2, 3, 14, 16)
    with clew.trace(model, level="modules") as t:
        model(pixels)
    assert words(t.why_shape("conv", 0)) == ["input"]
    assert [link.text for link in t.why_shape("conv", 1).links] == ["created: out_channels of conv"]
    assert words(t.why_shape("conv", 2)) == ["resized", "input"]
    chain = t.why_shape("fc:in", 1)
    assert [link.how for link in chain.links] == ["unknown"]
    assert "made between module calls, before fc#0; level='ops' shows how" in str(chain)
    assert chain.notes == (
        "the trace has module calls only; clew.trace(level='ops') shows every op",
    )


def test_questions_with_known_answers(engine: str) -> None:
    asked = list(questions((engine,)))
    assert len(asked) >= 20
    assert [question for question in asked if not question.is_right] == []


def test_module_calls_through_flatten() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(60, 2))
    x = torch.randn(2, 3, 5, 6)
    with clew.trace(model, level="modules") as t:
        model(x)
    chain = t.why_shape("3:in", 1)
    assert chain.links[0].text == "merged from dims 1, 2 and 3: 5 × 3 × 4"
    assert [link.text for link in chain.origins] == [
        "created: out_channels of 0", "input 0 of Sequential", "input 0 of Sequential",
    ]  # fmt: skip


def test_what_a_failing_op_was_given() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(10, 2))
    x = torch.randn(2, 3, 4)
    with pytest.raises(RuntimeError), clew.trace(model) as t:
        model(x)
    assert t.crash is not None
    assert t.crash.event is not None
    (path,) = [p for p, value in t.crash.event.inputs.items() if value.shape == (2, 12)]
    chain = t.why_shape(f"{t.crash.event.address}:in.{path}", 1)
    assert chain.links[0].text == "merged from dims 1 and 2: 3 × 4"
    assert ends(chain) == [(":in.0", 1), (":in.0", 2)]


# Bad input


def test_a_dimension_that_is_not_there(text: clew.Trace) -> None:
    for dim in (3, -4):
        with pytest.raises(clew.ClewError) as raised:
            text.why_shape("norm", dim)
        assert str(raised.value) == f"there is no dim {dim}: f32[2,6,24] has 3, from 0 to 2"
    with clew.trace() as t:
        clew.tap("number", torch.ones(()))
    with pytest.raises(clew.ClewError, match=r"no dim 0: f32\[\] has no dimensions"):
        t.why_shape("number", 0)


def test_a_dimension_that_is_no_number(text: clew.Trace) -> None:
    dim: Any = "1"
    with pytest.raises(clew.ClewError, match="dim='1': it must be a whole number"):
        text.why_shape("norm", dim)


def test_an_address_that_names_nothing_or_too_much(text: clew.Trace) -> None:
    with pytest.raises(clew.ClewError, match=r"nothing matches 'nrm'.*'norm'"):
        text.why_shape("nrm", 0)
    model, a, b = nn.Bilinear(3, 4, 5), torch.randn(2, 3), torch.randn(2, 4)
    with clew.trace(model) as t:
        model(a, b)
    with pytest.raises(clew.ClewError) as raised:
        t.why_shape(":in", 1)
    assert str(raised.value) == (
        "':in' stands for 2 tensors; pick one of: :in.0 f32[2,3], :in.1 f32[2,4]"
    )
    assert t.why_shape(":in.1", 1).size == 4


def test_results_are_plain_data(text: clew.Trace) -> None:
    chain = text.why_shape("head", 1)
    data = chain.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["address"], data["dim"], data["size"]) == ("head", 1, 11)
    assert [link["how"] for link in data["origins"]] == ["parameter"]
    assert "\n" not in repr(chain)
    assert repr(chain) == "<ShapeChain dim 1 of [2,11] of head from head.weight>"
    with pytest.raises(AttributeError):
        chain.links = ()  # type: ignore[misc]


def test_the_command(image: clew.Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "run.clew")
    image.save(folder)
    assert main(["why-shape", folder, "fc:in", "--dim", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed == str(image.why_shape("fc:in", 1)) + "\n"
    assert printed.startswith("dim 1 of fc:in [2,210] is 210:\n")
    assert main(["why-shape", folder, "fc:in", "--dim", "-1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["origins"][0]["name"] == "conv.weight"
    assert main(["why-shape", folder, "fc:in", "--dim", "1", "--rows", "2"]) == 0
    assert "more links left out; --rows " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fc:in", "--dim", "2"], "there is no dim 2: f32[2,210] has 2, from 0 to 1"),
        (["cf:in", "--dim", "0"], "nothing matches 'cf:in'"),
        (["fc:in:", "--dim", "0"], "cannot read the address"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str],
    said: str,
    image: clew.Trace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    image.save(tmp_path / "run.clew")
    assert main(["why-shape", str(tmp_path / "run.clew"), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_command_needs_a_whole_number(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--dim", "one"], []):
        with pytest.raises(SystemExit) as ended:
            main(["why-shape", "run.clew", "fc", *wrong])
        assert ended.value.code == 2
        assert "--dim" in capsys.readouterr().err
