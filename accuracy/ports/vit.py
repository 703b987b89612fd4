"""A vision transformer: patches by a convolution, layer scale, a class token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


class Attention(nn.Module):
    """Attention among patches."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        self.heads = size.heads
        self.scale = (size.width // size.heads) ** -0.5
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.proj = nn.Linear(size.width, size.width)
        self.bug = bug

    def harm(self) -> None:
        if self.bug == "bias-zero":
            self.proj.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x)
        if self.bug == "qkv-interleaved":
            qkv = qkv.reshape(batch, length, self.heads, 3, -1)
            qkv = qkv.transpose(2, 3)  # bug: qkv-interleaved
        else:
            qkv = qkv.reshape(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.bug == "scale-squared":
            q = q * self.scale**2  # bug: scale-squared
        elif self.bug != "scale-missing":
            q = q * self.scale  # bug: scale-missing
        weights = q @ k.transpose(-2, -1)
        if self.bug == "softmax-dim":
            weights = weights.softmax(dim=-2)  # bug: softmax-dim
        else:
            weights = weights.softmax(dim=-1)
        x = weights @ v
        if self.bug == "heads-merged":
            return self.proj(x.reshape(batch, length, width))  # bug: heads-merged
        x = x.transpose(1, 2).reshape(batch, length, width)
        return self.proj(x)  # bug: bias-zero


class Mlp(nn.Module):
    """A network of two layers."""

    def __init__(self, width: int, bug: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        if self.bug == "gelu-quick":
            x = x * torch.sigmoid(1.702 * x)  # bug: gelu-quick
        elif self.bug == "gelu-twice":
            x = F.gelu(F.gelu(x))  # bug: gelu-twice
        else:
            x = F.gelu(x)
        return self.fc2(x)


class Block(nn.Module):
    """One layer; what it adds is scaled per feature."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        width = size.width
        self.norm1 = nn.LayerNorm(width, eps=1e-2 if bug == "norm-eps" else 1e-6)
        self.attn = Attention(size, bug)
        self.gamma_1 = nn.Parameter(torch.ones(width))
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width, bug)
        self.gamma_2 = nn.Parameter(torch.ones(width))
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attn(self.norm1(x))  # bug: norm-eps
        if self.bug == "gamma-swapped":
            mixed = mixed * self.gamma_2  # bug: gamma-swapped
        else:
            mixed = mixed * self.gamma_1
        x = x - mixed if self.bug == "residual-sign" else x + mixed  # bug: residual-sign
        more = self.mlp(x if self.bug == "norm-missing" else self.norm2(x))  # bug: norm-missing
        if self.bug != "gamma-missing":
            more = more * self.gamma_2  # bug: gamma-missing
        if self.bug == "drop-path":
            more = more * (torch.rand(len(x), 1, 1) < 0.6).to(x.dtype) / 0.6  # bug: drop-path
        return x + more


class ViT(nn.Module):
    """Pictures in, classes out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, size.width, 4, 4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, size.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 17, size.width))
        self.blocks = nn.ModuleList(Block(size, faults.get(n, "")) for n in range(size.layers))
        self.norm = nn.LayerNorm(size.width, eps=1e-6)
        self.head = nn.Linear(size.width, 10)
        self.bug = faults.get(OUTSIDE, "")

    def forward(self, image: Tensor) -> Tensor:
        if self.bug == "channels":
            image = image.flip(1)  # bug: channels
        if self.bug != "input-scale":
            image = (image - 0.5) / 0.5  # bug: input-scale
        x = self.patch_embed(image)
        if self.bug == "patch-order":
            x = x.transpose(-1, -2).flatten(2).transpose(1, 2)  # bug: patch-order
        else:
            x = x.flatten(2).transpose(1, 2)
        token = self.cls_token.expand(len(x), -1, -1)
        if self.bug == "class-last":
            x = torch.cat([x, token], dim=1)  # bug: class-last
        else:
            x = torch.cat([token, x], dim=1)
        if self.bug != "place-missing":
            x = x + self.pos_embed  # bug: place-missing
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        x = x.mean(1) if self.bug == "pool-mean" else x[:, 0]  # bug: pool-mean
        return self.head(x)
