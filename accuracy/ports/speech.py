"""An encoder of sound: convolutions over the wave, then layers with norms after each part."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.ports.planting import OUTSIDE, Faults, Size


class Encoder(nn.Module):
    """Attention and a network, a norm after each."""

    def __init__(self, size: Size, bug: str) -> None:
        super().__init__()
        d = size.width
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.fc1, self.fc2 = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)
        self.heads, self.bug = size.heads, bug

    def attend(self, x: Tensor, padded: Tensor) -> Tensor:
        b, t, d = x.shape
        q = self.q(x)
        if self.bug != "scale-missing":
            q = q * (d // self.heads) ** -0.5  # bug: scale-missing
        key = self.q(x) if self.bug == "key-query" else self.k(x)  # bug: key-query
        q, k, v = (
            part.view(b, t, self.heads, -1).transpose(1, 2).reshape(b * self.heads, t, -1)
            for part in (q, key, self.v(x))
        )
        scores = torch.bmm(q, k.transpose(1, 2)).view(b, self.heads, t, t)
        if self.bug == "mask-queries":
            scores = scores.masked_fill(padded[:, None, :, None], -1e4)  # bug: mask-queries
        elif self.bug != "mask-missing":
            hidden = padded[:, None, None, :]
            scores = scores.masked_fill(hidden, float("-inf"))  # bug: mask-missing
        weights = F.softmax(scores.view(b * self.heads, t, t), dim=-1)
        seen = torch.bmm(weights, v).view(b, self.heads, t, -1)
        if self.bug == "heads-unturned":
            seen = seen.reshape(b, t, d)  # bug: heads-unturned
        else:
            seen = seen.transpose(1, 2).reshape(b, t, d)
        return self.o(seen)

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        if self.bug == "pre-norm":
            x = x + self.attend(self.norm1(x), padded)  # bug: pre-norm
        elif self.bug == "norm-twice":
            x = self.norm1(self.norm1(x + self.attend(x, padded)))  # bug: norm-twice
        else:
            x = self.norm1(x + self.attend(x, padded))
        y = self.fc1(x)
        if self.bug == "act-missing":
            y = self.fc2(y)
        else:
            y = self.fc2(F.gelu(y))  # bug: act-missing
        last = self.norm1 if self.bug == "norm-reused" else self.norm2
        return last(x + y)  # bug: norm-reused


class Speech(nn.Module):
    """Waves and their lengths in, logits of letters out."""

    def __init__(self, size: Size, faults: Faults) -> None:
        super().__init__()
        d, self.bug = size.width, faults.get(OUTSIDE, "")
        self.conv1 = nn.Conv1d(1, 32, 10, stride=5, bias=False)
        self.group = nn.GroupNorm(32, 32)
        self.conv2 = nn.Conv1d(32, 32, 3, stride=2, bias=False)
        self.norm, self.project = nn.LayerNorm(32), nn.Linear(32, d)
        self.places = nn.Conv1d(d, d, 4, padding=2, groups=4)
        self.norm_in = nn.LayerNorm(d)
        self.layers = nn.ModuleList(Encoder(size, faults.get(n, "")) for n in range(size.layers))
        self.letters = nn.Linear(d, 12)

    def forward(self, wave: Tensor, lengths: Tensor) -> Tensor:
        x = (wave - wave.mean(1, keepdim=True)) / wave.std(1, keepdim=True)
        x = F.gelu(self.group(self.conv1(x[:, None])))
        x = self.conv2(x)
        x = F.relu(x) if self.bug == "conv-relu" else F.gelu(x)  # bug: conv-relu
        x = self.project(self.norm(x.transpose(1, 2)))
        count = (((lengths - 10) // 5 + 1) - 3) // 2 + 1
        if self.bug == "length-late":
            count = count + 1  # bug: length-late
        padded = torch.arange(x.shape[1]) >= count[:, None]  # bug: length-late
        x = x.masked_fill(padded[:, :, None], 0.0)  # bug: length-late
        along = self.places(x.transpose(1, 2))
        late = self.bug == "places-late"
        along = along[:, :, 1:] if late else along[:, :, :-1]  # bug: places-late
        x = x + F.gelu(along).transpose(1, 2)
        x = x if self.bug == "norm-in" else self.norm_in(x)  # bug: norm-in
        for layer in self.layers:
            x = layer(x, padded)
        return self.letters(x)


def inputs() -> tuple[Tensor, ...]:
    """Return two waves and how long they are."""
    draw = torch.Generator().manual_seed(5)
    return torch.randn(2, 160, generator=draw) * 0.7 + 0.2, torch.tensor([160, 105])
