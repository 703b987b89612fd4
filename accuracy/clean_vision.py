"""Clean architectures that look at pictures."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.clean import ClassBatches, Task, one_loss

CLASSES = 4


def _classifier(model: nn.Module, *shape: int) -> Task:
    batches = ClassBatches(*(shape or (3, 16, 16)), classes=CLASSES)

    def loss() -> Tensor:
        x, y = batches()
        return F.cross_entropy(model(x), y)

    return one_loss(model, loss)


def mlp() -> Task:
    """A multilayer perceptron with batch norm and dropout."""
    return _classifier(
        nn.Sequential(
            nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(32, 32), nn.GELU(), nn.Linear(32, CLASSES),
        ),
        12,
    )  # fmt: skip


def lenet() -> Task:
    """Convolutions, tanh and pooling."""
    return _classifier(
        nn.Sequential(
            nn.Conv2d(3, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, CLASSES),
        )
    )  # fmt: skip


def vgg() -> Task:
    """Stacked convolutions with max pooling."""
    layers: list[nn.Module] = []
    width = 3
    for wider in (8, 16):
        layers += [nn.Conv2d(width, wider, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        width = wider
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5)]
    return _classifier(nn.Sequential(*layers, *head, nn.Linear(32, CLASSES)))


class _Residual(nn.Module):
    def __init__(self, width: int, wider: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, wider, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(wider)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width, wider, 1, stride, bias=False), nn.BatchNorm2d(wider)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet() -> Task:
    """Residual blocks."""
    return _classifier(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            _Residual(8, 8, 1), _Residual(8, 16, 2), _Residual(16, 16, 1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES),
        )
    )  # fmt: skip


class _SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class _Inverted(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1, bias=False), nn.BatchNorm2d(2 * width), nn.Hardswish(),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1, groups=2 * width, bias=False),
            nn.BatchNorm2d(2 * width), nn.Hardswish(), _SqueezeExcite(2 * width),
            nn.Conv2d(2 * width, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def mobilenet() -> Task:
    """Depthwise convolutions with squeeze and excite."""
    return _classifier(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), _Inverted(8), _Inverted(8),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES),
        )
    )  # fmt: skip


class _Dense(nn.Module):
    def __init__(self, width: int, grow: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width + i * grow), nn.ReLU(),
                nn.Conv2d(width + i * grow, grow, 3, 1, 1),
            )
            for i in range(layers)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for layer in self.layers:
            seen.append(layer(torch.cat(seen, 1)))
        return torch.cat(seen, 1)


def densenet() -> Task:
    """Every layer takes what all before it made."""
    return _classifier(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), _Dense(8, 4, 3), nn.Conv2d(20, 8, 1), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(128, CLASSES),
        )
    )  # fmt: skip


class _Branches(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(width, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1))
        self.five = nn.Conv2d(width, 4, 5, 1, 2)
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(width, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1))


def inception() -> Task:
    """Branches side by side; max pooling pads with -inf inside its kernel."""
    head = [nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(64, CLASSES)]
    return _classifier(nn.Sequential(_Branches(3), nn.GroupNorm(4, 16), _Branches(16), *head))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 1, 1)
        self.middle = nn.Conv2d(16, 16, 3, 1, 1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.merge, self.head = nn.Conv2d(16, 8, 3, 1, 1), nn.Conv2d(8, 1, 1)
        self.norm = nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        fine = F.silu(self.norm(self.down1(x)))
        coarse = F.silu(self.middle(F.silu(self.down2(F.max_pool2d(fine, 2)))))
        return self.head(F.silu(self.merge(torch.cat([fine, self.up(coarse)], 1))))


def unet() -> Task:
    """Segmentation by a U-Net, with a Dice loss that has a small number below."""
    model = _UNet()

    def loss() -> Tensor:
        mask = F.interpolate((torch.randn(4, 1, 4, 4) > 0).float(), scale_factor=4)
        x = mask + 0.3 * torch.randn_like(mask)
        y = model(x)
        p = y.float().sigmoid()
        dice = 1 - (2 * (p * mask).sum() + 1e-6) / (p.sum() + mask.sum() + 1e-6)
        return dice + F.binary_cross_entropy_with_logits(y, mask)

    return one_loss(model, loss)


class _ViT(nn.Module):
    def __init__(self, pool: Callable[[Tensor], Tensor] = lambda x: x[:, 0]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 32))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head, self.pool = nn.LayerNorm(32), nn.Linear(32, CLASSES), pool

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.pool(self.norm(self.encoder(x))))


def vision_transformer() -> Task:
    """Patches, a class token, encoder layers."""
    return _classifier(_ViT())


class _Mixer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class _MixerNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, 4)
        self.blocks = nn.Sequential(_Mixer(16, 24), _Mixer(16, 24), nn.LayerNorm(24))
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


def mlp_mixer() -> Task:
    """Perceptrons across patches and channels."""
    return _classifier(_MixerNet())


class _ConvNeXt(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, 1, 3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(1e-2 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


def convnext() -> Task:
    """Wide depthwise convolutions with layer norm and layer scale."""
    return _classifier(
        nn.Sequential(
            nn.Conv2d(3, 12, 2, 2), _ConvNeXt(12), _ConvNeXt(12),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, CLASSES),
        )
    )  # fmt: skip


class _ShiftedWindows(nn.Module):
    """Attention in windows, shifted by half a window; others are masked with -inf."""

    def __init__(self, width: int, size: int = 4) -> None:
        super().__init__()
        self.size = size
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        zones = torch.zeros(8, 8)
        for i, rows in enumerate((slice(0, -4), slice(-4, -2), slice(-2, None))):
            for j, cols in enumerate((slice(0, -4), slice(-4, -2), slice(-2, None))):
                zones[rows, cols] = 3 * i + j
        ids = self._windows(zones[None, ..., None])[..., 0]
        mask = torch.zeros(len(ids), size * size, size * size)
        self.register_buffer(
            "mask", mask.masked_fill(ids[:, :, None] != ids[:, None], float("-inf"))
        )

    def _windows(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        s = self.size
        x = x.view(b, h // s, s, w // s, s, c).transpose(2, 3)
        return x.reshape(-1, s * s, c)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        y = self._windows(torch.roll(self.norm(x), (-2, -2), (1, 2)))
        q, k, v = self.qkv(y).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / c**0.5
        scores = scores + self.mask.repeat(b, 1, 1)
        y = self.out(scores.softmax(-1) @ v).view(b, h // 4, w // 4, 4, 4, c)
        return x + torch.roll(y.transpose(2, 3).reshape(b, h, w, c), (2, 2), (1, 2))


class _Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 2, 2)
        self.windows = nn.Sequential(_ShiftedWindows(16), _ShiftedWindows(16))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.windows(self.patches(x).permute(0, 2, 3, 1)).mean((1, 2)))


def swin() -> Task:
    """Attention in shifted windows, with a mask of -inf in a buffer."""
    return _classifier(_Swin())


class _Capsules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 5, 3)
        self.routes = nn.Parameter(0.1 * torch.randn(64, CLASSES, 4, 8))

    @staticmethod
    def squash(x: Tensor) -> Tensor:
        square = x.square().sum(-1, keepdim=True)
        return square / (1 + square) * x / (square + 1e-8).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        primary = self.squash(x.flatten(2).transpose(1, 2).reshape(len(x), -1, 4)[:, :64])
        votes = torch.einsum("bid,icde->bice", primary, self.routes[: primary.shape[1]])
        agreement = torch.zeros(votes.shape[:3])
        for _ in range(2):
            weights = agreement.softmax(2)
            capsules = self.squash((weights[..., None] * votes).sum(1))
            agreement = agreement + (votes * capsules[:, None]).sum(-1)
        return 5 * (capsules.square().sum(-1) + 1e-8).sqrt()


def capsules() -> Task:
    """Capsules with routing by agreement; square roots have a small number below."""
    return _classifier(_Capsules())


def simclr() -> Task:
    """Contrastive learning: a sample does not compare with itself, by -inf on the diagonal."""
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
    batches = ClassBatches(12)

    def loss() -> Tensor:
        x, _ = batches()
        views = torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])
        z = F.normalize(model(views), dim=-1)
        near = z @ z.T / 0.5
        near = near.masked_fill(torch.eye(len(near), dtype=torch.bool), float("-inf"))
        return F.cross_entropy(near, torch.arange(len(near)).roll(len(x)))

    return one_loss(model, loss)


class _Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.fine, self.coarse = nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)
        self.boxes, self.scores = nn.Conv2d(8, 4, 3, 1, 1), nn.Conv2d(8, 1, 3, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        c1 = F.relu(self.stem(x))
        c2 = F.relu(self.deep(c1))
        p2 = self.coarse(c2)
        p1 = self.fine(c1) + F.interpolate(p2, scale_factor=2)
        levels = [p.relu() for p in (p1, p2)]
        boxes = torch.cat([self.boxes(p).flatten(2) for p in levels], 2)
        return boxes, torch.cat([self.scores(p).flatten(2) for p in levels], 2)


def detector() -> Task:
    """A pyramid of features with box and focal losses."""
    model = _Detector()

    def loss() -> Tensor:
        x = torch.randn(4, 3, 16, 16)
        boxes, scores = model(x)
        wanted = (torch.rand_like(scores.float()) < 0.2).float()
        ce = F.binary_cross_entropy_with_logits(scores.float(), wanted, reduction="none")
        focal = ((1 - torch.exp(-ce)) ** 2 * ce).mean()
        near = F.smooth_l1_loss(boxes, x.mean((1, 2, 3))[:, None, None].expand_as(boxes))
        return focal + near

    return one_loss(model, loss)


class _SpatialTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Sequential(nn.Flatten(), nn.Linear(3 * 256, 16), nn.Tanh())
        self.theta = nn.Linear(16, 6)
        nn.init.normal_(self.theta.weight, std=1e-3)
        self.theta.bias.data = torch.tensor([1.0, 0, 0, 0, 1, 0])
        self.what = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(8 * 49, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.theta(self.where(x)).float().view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return self.head(self.what(F.grid_sample(x, grid, align_corners=False)))


def spatial_transformer() -> Task:
    """A network that moves its picture first."""
    return _classifier(_SpatialTransformer())


BUILDS = [
    mlp, lenet, vgg, resnet, mobilenet, densenet, inception, unet, vision_transformer, mlp_mixer,
    convnext, swin, capsules, simclr, detector, spatial_transformer,
]  # fmt: skip
