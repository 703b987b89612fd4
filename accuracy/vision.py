"""Crashes planted in models of images: CNN, residual network, U-Net, VAE, mixer, ViT."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.planted import Planted, run_of


class Cnn(nn.Module):
    """Two convolutions and a classifier."""

    def __init__(self, fault: str = "", channels: int = 3, features: int = 16 * 4 * 4) -> None:
        super().__init__()
        self.fault = fault
        self.first = nn.Conv2d(channels, 8, 3, padding=1)
        self.second = nn.Conv2d(4 if fault == "second" else 8, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(8 if fault == "norm" else 16)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(features, 10)

    def forward(self, image: Tensor) -> Tensor:
        h = self.pool(F.relu(self.first(image)))  # crash: cnn-last, cnn-f64, cnn-grey
        h = self.second(h)  # crash: cnn-second
        h = self.norm(h)  # crash: cnn-norm, cnn-unbatched
        h = self.pool(F.relu(h))
        if self.fault == "view":
            h = h.view(8, 16 * 4 * 4)  # crash: cnn-view
        elif self.fault != "flatten":
            h = torch.flatten(h, 1)
        return self.fc(h)  # crash: cnn-flatten, cnn-features


class Residual(nn.Module):
    """A block with a shortcut."""

    def __init__(self, width: int, stride: int = 1, fault: str = "") -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, stride, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width // 2 if fault == "body" else width, width, 3, 1, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)  # crash: resnet-body
        return F.relu(out + x)  # crash: resnet-shortcut


class ResNet(nn.Module):
    """A stem, blocks and a head."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(
            [Residual(16), Residual(16, 2 if fault == "stride" else 1, fault)]
        )
        self.head = nn.Linear(32 if fault == "head" else 16, 5)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        pooled = F.adaptive_avg_pool2d(x, 1)
        if self.fault != "pooled":
            pooled = pooled.flatten(1)
        return self.head(pooled)  # crash: resnet-head, resnet-pooled


class UNet(nn.Module):
    """One level down and up, with a connection across."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, padding=1)
        self.bottom = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.join = nn.Conv2d(8 if fault == "join" else 16, 8, 3, padding=1)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.down(x))  # crash: unet-no-channel
        deep = F.relu(self.bottom(F.max_pool2d(skip, 2)))
        up = self.up(deep)
        if self.fault == "dim":
            both = torch.cat([skip, up[:, :4]], 2)  # crash: unet-dim
        else:
            both = torch.cat([skip, up], dim=1)  # crash: unet-odd
        return self.join(both)  # crash: unet-join


class Vae(nn.Module):
    """An encoder to mean and variance, and a decoder."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(36, 24), nn.ReLU())
        self.mean = nn.Linear(24, 6)
        self.log_variance = nn.Linear(24, 8 if fault == "sample" else 6)
        self.decoder = nn.Sequential(
            nn.Linear(6, 24), nn.ReLU(), nn.Linear(20 if fault == "decoder" else 24, 36)
        )
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "image":
            return self.encoder(x)  # crash: vae-image
        h = self.encoder(x.flatten(1))  # crash: vae-meta
        mean, log_variance = self.mean(h), self.log_variance(h)
        noise = torch.randn_like(mean)
        z = mean + noise * torch.exp(0.5 * log_variance)  # crash: vae-sample
        out = self.decoder(z)  # crash: vae-decoder
        if self.fault == "target":
            return F.binary_cross_entropy_with_logits(out, x)  # crash: vae-target
        return out


class Mixer(nn.Module):
    """A block that mixes tokens, then channels."""

    def __init__(self, tokens: int, channels: int, fault: str = "") -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels + 1 if fault == "norm" else channels)
        self.tokens = nn.Linear(tokens, tokens)
        self.channels = nn.Linear(channels, channels)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.norm(x)  # crash: mixer-norm
        if self.fault != "tokens":
            mixed = mixed.transpose(1, 2)
        mixed = self.tokens(mixed)  # crash: mixer-tokens
        if self.fault == "add":
            return x + mixed  # crash: mixer-add
        return x + self.channels(mixed.transpose(1, 2))


class Vit(nn.Module):
    """Patches, a class token, positions."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 12, 4, 4)
        self.cls = nn.Parameter(torch.zeros(12) if fault == "token" else torch.zeros(1, 1, 12))
        self.positions = nn.Parameter(torch.zeros(1, 4 if fault == "positions" else 5, 12))
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2)
        if self.fault != "order":
            h = h.transpose(1, 2)
        if self.fault == "token":
            return torch.cat([self.cls.expand(2, 12), h], dim=1)  # crash: vit-token
        h = torch.cat([self.cls.expand(2, 1, 12), h], dim=1)  # crash: vit-order
        return h + self.positions  # crash: vit-positions


def _image(*shape: int, **options: Any) -> Tensor:
    return torch.ones(*shape, **options)


CRASHES = [
    Planted("cnn-flatten", "missing flatten", lambda: run_of(Cnn("flatten"), _image(2, 3, 16, 16)),
            "fc", ("h", "fc.weight"), ("[2,16,4,4]", "256"), r"\.flatten\(1\)"),
    Planted("cnn-features", "linear size", lambda: run_of(Cnn(features=100), _image(2, 3, 16, 16)),
            "fc", ("h", "fc.weight"), ("[2,256]", "100"), "in_features=256"),
    Planted("cnn-last", "conv channels", lambda: run_of(Cnn(), _image(2, 16, 16, 3)),
            "first", ("image", "first.weight"), ("[2,16,16,3]", "in_channels=3"),
            r"image\.permute\(0, 3, 1, 2\)"),
    Planted("cnn-grey", "conv channels", lambda: run_of(Cnn(), _image(2, 1, 16, 16)),
            "first", ("image", "first.weight"), ("[2,1,16,16]", "in_channels=3")),
    Planted("cnn-second", "conv channels", lambda: run_of(Cnn("second"), _image(2, 3, 16, 16)),
            "second", ("h", "second.weight"), ("[2,8,8,8]", "in_channels=4"), "in_channels=8"),
    Planted("cnn-norm", "norm size", lambda: run_of(Cnn("norm"), _image(2, 3, 16, 16)),
            "norm", ("h", "norm.weight"), ("[2,16,8,8]", "num_features=8"), "num_features=16"),
    Planted("cnn-view", "view size", lambda: run_of(Cnn("view"), _image(2, 3, 16, 16)),
            "", ("h",), ("[2,16,4,4]", "2048", "512"), "2, or -1, in place of 8"),
    Planted("cnn-unbatched", "missing batch", lambda: run_of(Cnn().eval(), _image(3, 16, 16)),
            "norm", ("h",), ("[16,8,8]",), r"unsqueeze\(0\)"),
    Planted("cnn-f64", "dtype", lambda: run_of(Cnn(), _image(2, 3, 16, 16).double()),
            "first", ("image", "first.weight"), ("f64[2,3,16,16]",), r"image\.float\(\)"),
    Planted("vae-meta", "device", lambda: run_of(Vae(), _image(2, 6, 6, device="meta")),
            "encoder.0", ("x.flatten(1)", "encoder.0.weight"), ("on meta", "on cpu"),
            None),
    Planted("resnet-shortcut", "broadcast",
            lambda: run_of(ResNet("stride"), _image(2, 3, 8, 8)),
            "blocks.1", ("out", "x"), ("[2,16,4,4]", "[2,16,8,8]")),
    Planted("resnet-body", "conv channels", lambda: run_of(ResNet("body"), _image(2, 3, 8, 8)),
            "blocks.1.body.3", ("x", "blocks.1.body.3.weight"), ("in_channels=8", "[2,16,8,8]"),
            "in_channels=16"),
    Planted("resnet-head", "linear size", lambda: run_of(ResNet("head"), _image(2, 3, 8, 8)),
            "head", ("pooled", "head.weight"), ("[2,16]", "32"), "in_features=16"),
    Planted("resnet-pooled", "missing flatten",
            lambda: run_of(ResNet("pooled"), _image(2, 3, 8, 8)),
            "head", ("pooled", "head.weight"), ("[2,16,1,1]", "in_features=16"), r"\.flatten\(1\)"),
    Planted("unet-odd", "cat", lambda: run_of(UNet(), _image(2, 1, 9, 9)),
            "", ("skip", "up"), ("[2,8,9,9]", "[2,8,8,8]")),
    Planted("unet-dim", "cat", lambda: run_of(UNet("dim"), _image(2, 1, 8, 8)),
            "", ("skip", "up[:, :4]"), ("[2,8,8,8]", "[2,4,8,8]"), "dim=1"),
    Planted("unet-join", "conv channels", lambda: run_of(UNet("join"), _image(2, 1, 8, 8)),
            "join", ("both", "join.weight"), ("[2,16,8,8]", "in_channels=8"), "in_channels=16"),
    Planted("unet-no-channel", "missing channel", lambda: run_of(UNet(), _image(5, 8, 8)),
            "down", ("x", "down.weight"), ("[5,8,8]", "in_channels=1"), r"x\.unsqueeze\(1\)"),
    Planted("vae-image", "missing flatten", lambda: run_of(Vae("image"), _image(2, 6, 6)),
            "encoder.0", ("x", "encoder.0.weight"), ("[2,6,6]", "36"), "[Ff]latten"),
    Planted("vae-sample", "broadcast", lambda: run_of(Vae("sample"), _image(2, 6, 6)),
            "", ("noise", "torch.exp(0.5 * log_variance)"), ("[2,6]", "[2,8]")),
    Planted("vae-decoder", "linear size", lambda: run_of(Vae("decoder"), _image(2, 6, 6)),
            "decoder.2", ("z", "decoder.2.weight"), ("[2,24]", "20"), "in_features=24"),
    Planted("vae-target", "loss size", lambda: run_of(Vae("target"), _image(2, 6, 6)),
            "", ("out", "x"), ("[2,36]", "[2,6,6]")),
    Planted("mixer-norm", "norm size", lambda: run_of(Mixer(9, 8, "norm"), _image(2, 9, 8)),
            "norm", ("x", "norm.weight"), ("[2,9,8]", "9")),
    Planted("mixer-tokens", "transposed", lambda: run_of(Mixer(9, 8, "tokens"), _image(2, 9, 8)),
            "tokens", ("mixed", "tokens.weight"), ("[2,9,8]", "in_features=9"),
            r"mixed\.transpose\(1, 2\)"),
    Planted("mixer-add", "transposed", lambda: run_of(Mixer(9, 8, "add"), _image(2, 9, 8)),
            "", ("x", "mixed"), ("[2,9,8]", "[2,8,9]"), r"mixed\.transpose\(1, 2\)"),
    Planted("vit-order", "transposed", lambda: run_of(Vit("order"), _image(2, 3, 8, 8)),
            "", ("self.cls.expand(2, 1, 12)", "h"), ("[2,1,12]", "[2,12,4]"),
            r"h\.transpose\(1, 2\)"),
    Planted("vit-positions", "broadcast", lambda: run_of(Vit("positions"), _image(2, 3, 8, 8)),
            "", ("h", "self.positions"), ("[2,5,12]", "[1,4,12]")),
    Planted("vit-token", "cat", lambda: run_of(Vit("token"), _image(2, 3, 8, 8)),
            "", ("self.cls.expand(2, 12)", "h"), ("[2,12]", "[2,4,12]"), r"unsqueeze\(1\)"),
]  # fmt: skip
