"""A port of the decoder of `gpt2`: separate linear layers, einsum, the activation of torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import gpt2
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, tokens


class CausalMixer(nn.Module):
    """Attention written with einsum."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        self.n, self.d = size.heads, size.width // size.heads
        self.query = nn.Linear(size.width, size.width)
        self.key = nn.Linear(size.width, size.width)
        self.value = nn.Linear(size.width, size.width)
        self.merge = nn.Linear(size.width, size.width)
        self.fault = fault

    def harm(self) -> None:
        if self.fault == "weight-transposed":
            self.merge.weight.copy_(self.merge.weight.T.clone())

    def by_head(self, z: Tensor) -> Tensor:
        if self.fault == "head-order":
            return z.unflatten(-1, (self.d, self.n)).transpose(-1, -2)  # bug: head-order
        return z.unflatten(-1, (self.n, self.d))

    def forward(self, z: Tensor) -> Tensor:
        q, k, v = (
            self.by_head(self.query(z)),
            self.by_head(self.key(z)),
            self.by_head(self.value(z)),
        )
        if self.fault == "qkv-order":
            k, v = v, k
        root = (self.n * self.d if self.fault == "scale" else self.d) ** -0.5
        logits = torch.einsum("bqnd,bknd->bnqk", q * root, k)  # bug: scale, qkv-order
        t = z.shape[1]
        low = -2.0 if self.fault == "mask-value" else float("-inf")
        ahead = torch.ones(t, t, dtype=torch.bool).triu(1)
        logits = logits.masked_fill(ahead, low)  # bug: mask-value
        probs = logits.softmax(-2 if self.fault == "softmax-dim" else -1)  # bug: softmax-dim
        if self.fault == "dropout-on":
            probs = F.dropout(probs, 0.1)  # bug: dropout-on
        if self.fault == "value-key":
            y = torch.einsum("bnqk,bknd->bqnd", probs, k)  # bug: value-key
        else:
            y = torch.einsum("bnqk,bknd->bqnd", probs, v)
        if self.fault == "bias-dropped":
            return F.linear(y.flatten(-2), self.merge.weight)  # bug: bias-dropped
        return self.merge(y.flatten(-2))  # bug: weight-transposed


class Stage(nn.Module):
    """One layer; the network inside is written out."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        self.before_mixer = nn.LayerNorm(size.width, eps=1e-2 if fault == "norm-eps" else 1e-5)
        self.before_mlp = nn.LayerNorm(size.width)
        self.mixer = CausalMixer(size, fault)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)
        self.fault = fault

    def forward(self, z: Tensor) -> Tensor:
        if self.fault == "norm-after":
            z = self.before_mixer(self.mixer(z) + z)  # bug: norm-after
        else:
            inner = self.before_mixer(z)  # bug: norm-eps
            z = self.mixer(inner) + z
        norm = self.before_mixer if self.fault == "norm-swapped" else self.before_mlp
        wide = self.up(norm(z))  # bug: norm-swapped
        if self.fault == "gelu-relu":
            wide = F.relu(wide)  # bug: gelu-relu
        else:
            how = "none" if self.fault == "gelu-exact" else "tanh"
            wide = F.gelu(wide, approximate=how)  # bug: gelu-exact
        out = self.down(wide)
        if self.fault == "residual-missing":
            return out
        if self.fault == "residual-twice":
            return out + 2 * z  # bug: residual-twice
        return out + z


class LanguageModel(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.words = nn.Embedding(60, size.width)
        self.places = nn.Parameter(torch.zeros(20, size.width))
        self.stages = nn.ModuleList(Stage(size, faults.get(n, "")) for n in range(size.layers))
        self.last_norm = nn.LayerNorm(size.width)
        self.fault = faults.get(OUTSIDE, "")

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        z = self.words(ids)
        if self.fault == "place-shift":
            z = z + self.places[1 : t + 1]  # bug: place-shift
        elif self.fault != "place-missing":
            z = z + self.places[:t]
        for stage in self.stages:
            z = stage(z)
        if self.fault != "final-norm":
            z = self.last_norm(z)
        return z @ self.words.weight.T


def transposed(new: nn.Linear, old: gpt2.Conv1D) -> None:
    """Copy a weight that is stored the other way round, and its bias."""
    new.weight.copy_(old.weight.T)
    new.bias.copy_(old.bias)


def convert(old: gpt2.GPT2, new: LanguageModel) -> None:
    """Copy the weights of the reference."""
    new.words.weight.copy_(old.wte.weight)
    new.places.copy_(old.wpe.weight)
    new.last_norm.load_state_dict(old.ln_f.state_dict())
    for mine, stage in zip(old.h, new.stages, strict=True):
        weights = mine.attn.c_attn.weight.T.chunk(3)
        biases = mine.attn.c_attn.bias.chunk(3)
        mixer = stage.mixer
        for part, w, b in zip((mixer.query, mixer.key, mixer.value), weights, biases, strict=True):
            part.weight.copy_(w)
            part.bias.copy_(b)
        transposed(mixer.merge, mine.attn.c_proj)
        transposed(stage.up, mine.mlp.c_fc)
        transposed(stage.down, mine.mlp.c_proj)
        stage.before_mixer.load_state_dict(mine.ln_1.state_dict())
        stage.before_mlp.load_state_dict(mine.ln_2.state_dict())


GPT2 = Architecture(
    "gpt2", gpt2.GPT2, LanguageModel, convert, lambda: (tokens(),), (("h.{}",), ("stages.{}",)),
    (
        *bugs("bias-dropped weight-transposed head-order qkv-order scale mask-value softmax-dim"),
        *bugs("dropout-on value-key gelu-exact gelu-relu norm-eps norm-after norm-swapped"),
        *bugs("residual-twice"),
        *bugs("residual-missing", omits=True),
        *bugs("place-shift", (OUTSIDE,)),
        *bugs("place-missing final-norm", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
