"""Two models are run and compared: noise is measured, the suspected module is run again."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clew
from clew.replay.calling import Call
from clew.replay.casting import cast_copy, precision_of
from clew.replay.derived_weights import derived
from clew.replay.grafting import arranged, graft
from clew.replay.model_state import is_same
from clew.replay.random_state import random_state

WIDTH = 16


class Mixer(nn.Module):
    """Attention, with a fault that can be switched on."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2)
        scores = scores * (0.5 if self.fault == "scale" else 0.25)  # the fault
        return self.out(scores.softmax(-1) @ v)


class Norm(nn.LayerNorm):
    """A norm that may lose what is small beside 64, which float32 does not."""

    lossy = False

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x + 64) - 64 if self.lossy else x)


class Block(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norm, self.mixer = Norm(WIDTH), Mixer(fault)
        self.norm.lossy = fault == "lossy"
        self.drop = nn.Dropout(0.2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # type: ignore[operator]
        return x + self.drop(self.mixer(self.norm(x)))


class Model(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList(Block(fault if n == 1 else "") for n in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return x


class Port(nn.Module):
    """The same in another way, by other names."""

    def __init__(self, model: Model, fault: str = "") -> None:
        super().__init__()
        parts = copy.deepcopy(model)
        self.words, self.layers = parts.embed, parts.blocks
        self.dtype = torch.float32
        self.fault = fault

    def forward(self, tokens: Tensor) -> Tensor:
        y = self.words(tokens)
        for n, layer in enumerate(self.layers):
            weight, bias = layer.mixer.qkv.weight, layer.mixer.qkv.bias  # type: ignore[union-attr]
            z = F.linear(layer.norm(y), weight, bias)  # type: ignore[operator, arg-type]
            q, k, v = z.to(self.dtype).view(*z.shape[:2], 3, WIDTH).unbind(2)
            scale = 0.5 if self.fault == "scale" and n == 1 else 0.25
            mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
            y = y + layer.drop(layer.mixer.out(mixed.to(y.dtype)))  # type: ignore[operator, union-attr]
        return y


TOKENS = torch.randint(0, 20, (2, 6), generator=torch.Generator().manual_seed(3))


def models(fault: str, dtype: torch.dtype = torch.float32) -> tuple[Model, Model]:
    """Make a reference, and a model with the same weights and a fault."""
    torch.manual_seed(0)
    ref, new = Model(), Model(fault)
    new.load_state_dict(ref.state_dict())
    return ref, new.to(dtype)


def state(model: nn.Module) -> list[Tensor]:
    return [one.detach().clone() for one in model.state_dict().values()]


def hooks(model: nn.Module) -> list[object]:
    return [
        hook
        for module in model.modules()
        for found in (module._forward_hooks, module._forward_pre_hooks)
        for hook in found.values()
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_fault_is_named_and_confirmed_and_nothing_is_left_behind(dtype: torch.dtype) -> None:
    ref, new = models("scale", dtype)
    new.blocks[0].eval()
    before, drawn = [*state(ref), *state(new)], torch.get_rng_state()
    found = clew.diff_models(ref, (TOKENS,), new, {"tokens": TOKENS})
    first = found.first
    # Dropout draws the same numbers in both, but for the block that is in eval mode.
    assert first is not None
    assert first.b is not None
    assert first.b.module in ("blocks.0", "blocks.0.drop")
    new.blocks[0].train()
    first = clew.diff_models(ref, (TOKENS,), new, {"tokens": TOKENS}).first
    assert first is not None
    assert first.b is not None
    assert first.b.source is not None
    assert (first.kind, first.b.module) == ("wrong", "blocks.1.mixer")
    assert "# the fault" in first.b.source.text
    assert first.evidence[-1].startswith("on a's inputs b's blocks.1.mixer still differs by ")
    assert first.evidence[-1].endswith(": confirmed")
    assert all(map(is_same, before, [*state(ref), *state(new)]))
    assert torch.equal(drawn, torch.get_rng_state())
    assert (hooks(ref), hooks(new)) == ([], [])
    assert all(p.grad is None for p in (*ref.parameters(), *new.parameters()))
    assert all(module.training for module in new.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_correct_port_is_the_same_in_any_precision(dtype: torch.dtype) -> None:
    ref, _ = models("")
    port = Port(ref).to(dtype)
    port.dtype = dtype
    found = clew.diff_models(ref, (TOKENS,), port, (TOKENS,))
    assert found.equal, str(found)
    assert str(found).startswith("no difference beyond noise\n")
    assert (dtype == torch.float32) != ("compared in float32, with weights of bfloat16" in
                                        found.notes)  # fmt: skip
    wrong = Port(ref, "scale").to(dtype)
    wrong.dtype = dtype
    first = clew.diff_models(ref, (TOKENS,), wrong, (TOKENS,)).first
    assert first is not None
    assert first.b is not None
    assert first.b.source is not None
    assert "F.scaled_dot_product_attention" in first.b.source.text


class Placed(nn.Module):
    """Adds angles of positions, from a table or computed each time."""

    def __init__(self, has_table: bool, speed: float = 1.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.speed = speed
        self.register_buffer("table", self.angles() if has_table else None)

    def angles(self) -> Tensor:
        return torch.outer(torch.arange(6.0), torch.arange(1.0, WIDTH + 1) * self.speed).sin()

    def forward(self, x: Tensor) -> Tensor:
        angles = self.angles() if self.table is None else self.table
        return self.last(torch.tanh(self.first(x) + angles.to(x.dtype)))  # places


@pytest.mark.parametrize(("speed", "equal"), [(1.0, True), (1.1, False)])
def test_a_table_in_bfloat16_of_what_the_reference_computes(speed: float, equal: bool) -> None:
    torch.manual_seed(0)
    ref, new = Placed(False), Placed(True, speed)
    new.load_state_dict({**ref.state_dict(), "table": new.table})
    x = torch.randn(2, 6, WIDTH)
    low = torch.bfloat16
    found = clew.diff_models(ref, (x,), new.to(low), (x.to(low),))
    assert found.equal == equal, str(found)
    if found.first is not None:
        assert found.first.b is not None
        assert found.first.b.source is not None
        assert "# places" in found.first.b.source.text


class Normed(nn.Module):
    """Batch norms between packed or separate layers, as they are or folded into a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(2 * WIDTH)
        self.last = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat((self.one(x), self.other(x)), -1)
        result: Tensor = self.last(torch.tanh(self.norm(both)))
        return result


class Folded(nn.Module):
    """The same with parameters of its own; `off` is added to its factor."""

    def __init__(self, model: Normed, off: float = 0.0) -> None:
        super().__init__()
        norm, parts = model.norm, (model.one, model.other)
        self.weight = nn.Parameter(torch.cat([part.weight for part in parts]))
        self.bias = nn.Parameter(torch.cat([part.bias for part in parts]))
        factor = norm.weight / (norm.running_var + norm.eps).sqrt()  # type: ignore[operator]
        self.factor, self.mean = nn.Parameter(factor + off), nn.Parameter(norm.running_mean.clone())  # type: ignore[union-attr]
        self.shift, self.last = nn.Parameter(norm.bias.detach().clone()), model.last

    def forward(self, x: Tensor) -> Tensor:
        both = F.linear(x, self.weight, self.bias)
        both = (both - self.mean) * self.factor + self.shift  # folded
        result: Tensor = self.last(torch.tanh(both))
        return result


@pytest.mark.parametrize(("off", "equal"), [(0.0, True), (0.5, False)])
def test_a_parameter_in_bfloat16_that_was_computed_from_others(off: float, equal: bool) -> None:
    torch.manual_seed(0)
    ref = Normed().eval()
    for one in (ref.norm.weight, ref.norm.running_var):
        nn.init.uniform_(one, 0.5, 2.0)  # type: ignore[arg-type]
    new = copy.deepcopy(Folded(ref, off)).to(torch.bfloat16)
    x = torch.randn(8, WIDTH)
    with torch.no_grad():
        found = clew.diff_models(ref, (x,), new, (x.to(torch.bfloat16),))
    assert found.equal == equal, str(found)
    if found.first is not None:
        assert found.first.b is not None
        assert found.first.b.source is not None
        assert "# folded" in found.first.b.source.text


def test_a_parameter_is_derived_if_it_is_not_put_together_of_others() -> None:
    torch.manual_seed(0)
    q, k, bias = torch.randn(4, 6), torch.randn(4, 6), torch.randn(4)
    packed = torch.cat((q, k))[torch.randperm(8)]
    theirs = [q, k, bias, torch.randn(4)]
    made_of_them = [packed, packed.T, q.reshape(4, 3, 2), bias[1:3], torch.cat((bias, theirs[3]))]
    own = [q * 1.01, bias + 0.5, torch.cat((bias, bias[:2]))]
    assert derived(made_of_them, theirs) == []
    assert list(map(id, derived([*made_of_them, *own], theirs))) == list(map(id, own))


def test_code_that_casts_by_itself_is_as_noisy_as_its_dtype() -> None:
    ref, _ = models("")
    port = Port(ref)
    port.to(torch.bfloat16)
    cast = nn.Sequential(port, _Rounded())
    found = clew.diff_models(ref, (TOKENS,), cast, (TOKENS,))
    assert found.equal, str(found)


class _Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.bfloat16).float()


def test_a_module_that_loses_precision_is_named() -> None:
    ref, new = models("lossy", torch.bfloat16)
    first = clew.diff_models(ref, (TOKENS,), new, (TOKENS,)).first
    assert first is not None
    assert first.b is not None
    assert (first.b.kind, first.b.module) == ("module", "blocks.1.norm")
    assert first.evidence[0].endswith(": it loses precision here")
    # The same in float32 loses nothing that counts.
    assert clew.diff_models(*_with_inputs(models("lossy"))).equal


def _with_inputs(pair: tuple[Model, Model]) -> tuple[object, ...]:
    return pair[0], (TOKENS,), pair[1], (TOKENS,)


class Amplified(nn.Module):
    """A sum in one order or the other, and a part that makes much of its rounding."""

    def __init__(self, halves: bool) -> None:
        super().__init__()
        self.halves = halves
        self.amplify = _Amplify()

    def forward(self, x: Tensor) -> Tensor:
        return self.amplify(x[:70].sum(0) + x[70:].sum(0) if self.halves else x.sum(0))


class _Amplify(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * 3e4)


def test_an_error_that_comes_from_before_is_no_fault_of_a_module() -> None:
    x = torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    with clew.trace(values="stats") as a:
        Amplified(False)(x)
    with clew.trace(values="stats") as b:
        Amplified(True)(x)
    assert not clew.diff(a, b).equal
    found = clew.diff_models(Amplified(False), (x,), Amplified(True), (x,))
    assert found.equal, str(found)
    assert any(said.startswith("on a's inputs b's amplify gives a's result to ")
               and said.endswith(": the error comes from before it")
               for said in found.notes)  # fmt: skip


class Shuffled(nn.Module):
    """Turns half of its channels around between two parts, or all."""

    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.first, self.norm, self.fault = nn.Linear(8, 8), nn.LayerNorm(8), fault

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        y = y.flip(-1) if self.fault else y  # turned around
        return self.norm(y)


def test_an_input_in_another_order_is_traced_to_what_ordered_it() -> None:
    torch.manual_seed(0)
    ref, new = Shuffled(False), Shuffled(True)
    new.load_state_dict(ref.state_dict())
    with torch.no_grad():
        for model in (ref, new):
            model.norm.weight.copy_(torch.arange(8.0))
    x = torch.randn(5, 8)
    first = clew.diff_models(ref, (x,), new, (x,)).first
    assert first is not None
    assert first.b is not None
    assert first.b.source is not None
    assert "# turned around" in first.b.source.text


def test_functions_are_compared_too_and_may_write_to_their_inputs() -> None:
    x = torch.arange(12.0).view(3, 4)

    def ref(x: Tensor, scale: float) -> Tensor:
        return x.mul_(scale).sin()

    def new(x: Tensor) -> Tensor:
        return x.mul_(2).cos()

    assert clew.diff_models(ref, (x, 2.0), ref, {"x": x, "scale": 2.0}).equal
    first = clew.diff_models(ref, (x, 2.0), new, (x,)).first
    assert first is not None
    assert first.b is not None
    assert first.b.name == "aten.cos.default"
    assert torch.equal(x, torch.arange(12.0).view(3, 4))


def test_methods_and_caches_are_run_from_the_same_state() -> None:
    torch.manual_seed(0)
    model = Model().eval()

    class Grown:
        """An object that each call changes."""

        def __init__(self) -> None:
            self.kept = [torch.ones(1, WIDTH)]

    def call(tokens: Tensor, grown: Grown) -> Tensor:
        grown.kept.append(model.embed(tokens)[0, :1] + len(grown.kept))
        return torch.cat(grown.kept)

    grown = Grown()
    assert clew.diff_models(call, (TOKENS, grown), call, (TOKENS, grown)).equal
    assert len(grown.kept) == 1
    before = state(model)
    assert clew.diff_models(model.forward, (TOKENS,), model, (TOKENS,)).equal
    assert all(map(is_same, before, state(model)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((1, ()), r"ref=\.\.\.\): int cannot be called"),
        ((torch.sin, TOKENS), r"takes a tuple of positional or a dict .*not Tensor; write \(ref"),
    ],
)
def test_wrong_questions_are_said_to_be(given: tuple[object, object], said: str) -> None:
    with pytest.raises(clew.ClewError, match=said):
        clew.diff_models(*given, torch.sin, (TOKENS,))


def test_the_exception_of_a_model_comes_out_and_nothing_is_left_behind() -> None:
    ref, new = models("")
    before = state(new)
    with pytest.raises(IndexError, match="out of range"):
        clew.diff_models(ref, (TOKENS,), new, (TOKENS + 100,))
    assert all(map(is_same, before, state(new)))
    assert hooks(new) == []


class Careful(nn.Module):
    """A model that catches what its parts raise."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Model().eval()

    def forward(self, tokens: Tensor) -> Tensor | None:
        try:
            return self.inner(tokens)
        except Exception:
            return None


def test_a_graft_gives_a_module_other_inputs_and_leaves_the_model() -> None:
    model = Careful()
    x, path = torch.randn(2, 6, WIDTH), "inner.blocks.1.mixer"
    call = Call(model, (TOKENS,), random_state())
    found = graft(call, path, 0, [x])
    assert found is not None
    assert torch.equal(found.results[0], model.get_submodule(path)(x))
    assert found.input_errors[0] > 0.5
    found = graft(call, path, 0, [None])
    assert found is not None
    assert found.input_errors == [0]
    assert graft(call, path, 1, [x]) is None
    assert graft(call, path, 0, [x, x]) is None
    assert hooks(model) == []


def test_a_tensor_is_laid_out_as_another() -> None:
    x = torch.randn(2, 3, 4)
    found = arranged(x, x.permute(2, 0, 1).reshape(8, 3) + 1e-3)
    assert found is not None
    assert torch.equal(found, x.permute(2, 0, 1).reshape(8, 3))
    assert arranged(x, torch.randn(4, 6)) is None
    assert arranged(x, torch.randn(5)) is None


def test_a_copy_in_another_precision_shares_nothing() -> None:
    model = Model().to(torch.bfloat16)
    model.head = model.embed  # tied
    model.table = torch.linspace(0, 1, 5, dtype=torch.bfloat16)  # type: ignore[assignment]
    model.kind = model.table.dtype  # type: ignore[assignment, union-attr]
    model.made = model.embed.weight * 2  # type: ignore[assignment]
    found = cast_copy(model, torch.float32)
    assert found is not None
    assert {p.dtype for p in found.parameters()} == {torch.float32}
    assert (found.table.dtype, found.kind, found.made.dtype) == (torch.float32,) * 3  # type: ignore[union-attr]
    assert found.head is found.embed
    assert model.embed.weight.dtype == torch.bfloat16
    assert torch.equal(found.embed.weight, model.embed.weight.float())  # type: ignore[union-attr]
    assert str(precision_of(model, found)) == "bfloat16"
    assert precision_of(found, found) is None
    assert precision_of(found, torch.sin) is None
