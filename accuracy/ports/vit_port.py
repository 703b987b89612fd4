"""A port of the vision transformer of `vit`: unfolded patches, separate projections."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports import vit
from accuracy.ports.planting import OUTSIDE, Architecture, Faults, Size, bugs, picture


class PatchAttention(nn.Module):
    """Attention by the fused kernel."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        self.n = size.heads
        self.to_q, self.to_k, self.to_v, self.to_out = (
            nn.Linear(size.width, size.width) for _ in range(4)
        )
        self.fault = fault

    def forward(self, z: Tensor) -> Tensor:
        q, k, v = self.to_q(z), self.to_k(z), self.to_v(z)  # bug: qkv-interleaved
        q, k, v = (t.unflatten(2, (self.n, -1)).transpose(1, 2) for t in (q, k, v))
        d = q.shape[-1]
        sdpa = F.scaled_dot_product_attention
        if self.fault == "softmax-dim":
            out = torch.softmax(q @ k.mT / d**0.5, dim=-2) @ v  # bug: softmax-dim
        elif self.fault in ("scale-squared", "scale-missing"):
            scale = 1.0 if self.fault == "scale-missing" else 1 / d
            out = sdpa(q, k, v, scale=scale)  # bug: scale-squared, scale-missing
        else:
            out = sdpa(q, k, v)
        if self.fault == "heads-merged":
            out = out.reshape(z.shape)  # bug: heads-merged
        else:
            out = out.transpose(1, 2).flatten(2)
        return self.to_out(out)  # bug: bias-zero


class VisionLayer(nn.Module):
    """One layer, its scales as a dictionary."""

    def __init__(self, size: Size, fault: str) -> None:
        super().__init__()
        d = size.width
        eps = 1e-2 if fault == "norm-eps" else 1e-6
        self.ln_a, self.ln_b = nn.LayerNorm(d, eps=eps), nn.LayerNorm(d, eps=1e-6)
        self.attention = PatchAttention(size, fault)
        self.widen, self.narrow = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.scales = nn.ParameterDict({"a": torch.ones(d), "b": torch.ones(d)})
        self.fault = fault

    def harm(self) -> None:
        if self.fault == "bias-zero":
            self.attention.to_out.bias.zero_()

    def forward(self, z: Tensor) -> Tensor:
        inner = self.ln_a(z)  # bug: norm-eps
        delta = self.attention(inner)
        which = "b" if self.fault == "gamma-swapped" else "a"
        scale = self.scales[which]
        if self.fault == "residual-sign":
            z = torch.addcmul(z, delta, scale, value=-1)  # bug: residual-sign
        else:
            z = torch.addcmul(z, delta, scale)  # bug: gamma-swapped
        normed = z if self.fault == "norm-missing" else self.ln_b(z)
        wide = self.widen(normed)
        if self.fault == "gelu-quick":
            wide = wide * (wide * 1.702).sigmoid()  # bug: gelu-quick
        else:
            wide = F.gelu(wide)
            if self.fault == "gelu-twice":
                wide = F.gelu(wide)  # bug: gelu-twice
        delta = self.narrow(wide)
        if self.fault == "drop-path":
            keep = torch.rand(z.shape[0], 1, 1).lt(0.6).to(z.dtype)
            delta = delta * keep / 0.6  # bug: drop-path
        if self.fault == "gamma-missing":
            return z + delta
        return torch.addcmul(z, delta, self.scales["b"])


class Classifier(nn.Module):
    """The whole model."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.project = nn.Linear(48, size.width)
        self.first = nn.Parameter(torch.zeros(size.width))
        self.where = nn.Parameter(torch.zeros(17, size.width))
        self.trunk = nn.ModuleList(VisionLayer(size, faults.get(n, "")) for n in range(size.layers))
        self.ln = nn.LayerNorm(size.width, eps=1e-6)
        self.classes = nn.Linear(size.width, 10)
        self.fault = faults.get(OUTSIDE, "")

    def patches(self, image: Tensor) -> Tensor:
        if self.fault == "channels":
            image = image[:, [2, 1, 0]]  # bug: channels
        if self.fault != "input-scale":
            image = 2 * image - 1
        if self.fault == "patch-order":
            grid = image.unfold(3, 4, 4).unfold(2, 4, 4)
            pieces = grid.permute(0, 3, 2, 1, 5, 4).flatten(3).flatten(1, 2)  # bug: patch-order
        else:
            pieces = F.unfold(image, 4, stride=4).transpose(1, 2)
        return self.project(pieces)

    def forward(self, image: Tensor) -> Tensor:
        z = self.patches(image)
        first = self.first.repeat(z.shape[0], 1, 1)
        if self.fault == "class-last":
            z = torch.cat((z, first), 1)  # bug: class-last
        else:
            z = torch.cat((first, z), 1)
        if self.fault != "place-missing":
            z = z + self.where
        for layer in self.trunk:
            z = layer(z)
        if self.fault == "pool-mean":
            return self.classes(self.ln(z).mean(dim=1))  # bug: pool-mean
        return self.classes(self.ln(z[:, 0]))


def convert(old: vit.ViT, new: Classifier) -> None:
    """Copy the weights of the reference."""
    new.project.weight.copy_(old.patch_embed.weight.flatten(1))
    new.project.bias.copy_(old.patch_embed.bias)
    new.first.copy_(old.cls_token.view(-1))
    new.where.copy_(old.pos_embed[0])
    new.ln.load_state_dict(old.norm.state_dict())
    new.classes.load_state_dict(old.head.state_dict())
    for mine, layer in zip(old.blocks, new.trunk, strict=True):
        mixer = layer.attention
        parts = mixer.to_q, mixer.to_k, mixer.to_v
        weight, bias = mine.attn.qkv.weight, mine.attn.qkv.bias
        if layer.fault == "qkv-interleaved":
            heads = mine.attn.heads
            weight = weight.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
            bias = bias.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten()
        for part, w, b in zip(parts, weight.chunk(3), bias.chunk(3), strict=True):
            part.weight.copy_(w)
            part.bias.copy_(b)
        mixer.to_out.load_state_dict(mine.attn.proj.state_dict())
        layer.ln_a.load_state_dict(mine.norm1.state_dict())
        layer.ln_b.load_state_dict(mine.norm2.state_dict())
        layer.widen.load_state_dict(mine.mlp.fc1.state_dict())
        layer.narrow.load_state_dict(mine.mlp.fc2.state_dict())
        layer.scales["a"].copy_(mine.gamma_1)
        layer.scales["b"].copy_(mine.gamma_2)


VIT = Architecture(
    "vit", vit.ViT, Classifier, convert, lambda: (picture(),), (("blocks.{}",), ("trunk.{}",)),
    (
        *bugs("qkv-interleaved scale-squared softmax-dim heads-merged gelu-quick gelu-twice"),
        *bugs("bias-zero norm-eps gamma-swapped residual-sign drop-path"),
        *bugs("scale-missing norm-missing gamma-missing", omits=True),
        *bugs("channels patch-order class-last pool-mean", (OUTSIDE,)),
        *bugs("input-scale place-missing", (OUTSIDE,), omits=True),
    ),
)  # fmt: skip
