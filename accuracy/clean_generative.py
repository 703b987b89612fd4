"""Clean architectures that make data, or learn without labels."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.clean import ClassBatches, Task, one_loss


def autoencoder() -> Task:
    """A picture made small and large again."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(8, 4, 3, 2, 1), nn.LeakyReLU(0.1),
        nn.ConvTranspose2d(4, 8, 2, 2), nn.LeakyReLU(0.1), nn.ConvTranspose2d(8, 1, 2, 2),
    )  # fmt: skip
    batches = ClassBatches(1, 16, 16)

    def loss() -> Tensor:
        x, _ = batches()
        return F.mse_loss(model(x), x)

    return one_loss(model, loss)


class _Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 32), nn.ReLU())
        self.mean, self.log_var = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 24))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.exp(0.5 * log_var) * torch.randn_like(mean)
        return self.decoder(z), mean, log_var


def variational_autoencoder() -> Task:
    """A latent with mean and log variance."""
    model = _Variational()
    batches = ClassBatches(24)

    def loss() -> Tensor:
        x, _ = batches()
        made, mean, log_var = model(x.sigmoid())
        apart = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(made, x.sigmoid()) + 0.1 * apart

    return one_loss(model, loss)


class _Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(24, 8), nn.Linear(8, 24)
        self.codes = nn.Embedding(16, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        nearest = torch.cdist(z.detach().float(), self.codes.weight.detach()).argmin(1)
        code = self.codes(nearest).to(z.dtype)
        apart = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        return self.decoder(z + (code - z).detach()), apart


def vector_quantized() -> Task:
    """The nearest code, with gradients passed straight through."""
    model = _Codebook()
    batches = ClassBatches(24)

    def loss() -> Tensor:
        x, _ = batches()
        made, apart = model(x)
        return F.mse_loss(made, x) + apart

    return one_loss(model, loss)


class _Adversaries(nn.Module):
    def __init__(self, normed: bool) -> None:
        super().__init__()
        spectral = nn.utils.parametrizations.spectral_norm
        first, last = nn.Linear(8, 32), nn.Linear(32, 1)
        self.generator = nn.Sequential(
            nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8)
        )
        self.critic = nn.Sequential(
            spectral(first) if normed else first, nn.LeakyReLU(0.2),
            spectral(last) if normed else last,
        )  # fmt: skip

    def made(self) -> Tensor:
        """Return what the generator makes of noise."""
        return self.generator(torch.randn(8, 4))


def adversarial() -> Task:
    """A generator against a critic with spectral norm."""
    model = _Adversaries(normed=True)
    batches = ClassBatches(8)
    one, zero = torch.ones(8, 1), torch.zeros(8, 1)

    def of_critic() -> Tensor:
        real, _ = batches()
        bce = F.binary_cross_entropy_with_logits
        return bce(model.critic(real), one) + bce(model.critic(model.made().detach()), zero)

    def of_generator() -> Tensor:
        return F.binary_cross_entropy_with_logits(model.critic(model.made()), one)

    return Task(
        model,
        [(of_critic, model.critic.parameters()), (of_generator, model.generator.parameters())],
    )


def gradient_penalty() -> Task:
    """A critic whose gradients are held near 1."""
    model = _Adversaries(normed=False)
    batches = ClassBatches(8)

    def of_critic() -> Tensor:
        real, _ = batches()
        fake = model.made().detach().float()
        between = torch.lerp(real, fake, torch.rand(8, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(model.critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return model.critic(fake).mean() - model.critic(real).mean() + 10 * penalty

    def of_generator() -> Tensor:
        return -model.critic(model.made()).mean()

    return Task(
        model,
        [(of_critic, model.critic.parameters()), (of_generator, model.generator.parameters())],
        differentiates=True,
    )


class _Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU())
        self.into, self.middle, self.out = nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-math.log(1e4) * torch.arange(8) / 8)
        h = self.into(x) + self.time(torch.cat([angles.sin(), angles.cos()], 1))
        return self.out(F.silu(self.middle(F.silu(h))))


def diffusion() -> Task:
    """Noise taken away, step by step."""
    model = _Denoiser()
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)

    def loss() -> Tensor:
        angle = 6.28 * torch.rand(32)
        x, noise = torch.stack([angle.cos(), angle.sin()], 1), torch.randn(32, 2)
        t = torch.randint(100, (32,))
        a = kept[t][:, None]
        return F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t.float()), noise)

    return one_loss(model, loss)


class _Coupling(nn.Module):
    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 4))
        self.flip = flip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, 1)
        a, b = (b, a) if self.flip else (a, b)
        scale, shift = self.net(a).float().chunk(2, 1)
        scale = scale.tanh()
        moved = b * scale.exp() + shift
        return torch.cat([a, moved], 1), scale.sum(1)


class _Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Coupling(i % 2 == 1) for i in range(4))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x))
        for layer in self.layers:
            x, change = layer(x)
            total = total + change
        return (0.5 * x.square().sum(1) - total).mean()


def normalizing_flow() -> Task:
    """Couplings that can be undone."""
    model = _Flow()

    def loss() -> Tensor:
        x = torch.randn(32, 4)
        return model(torch.stack([x[:, 0], x[:, 0] + x[:, 1], 3 * x[:, 2], x[:, 3]], 1))

    return one_loss(model, loss)


class _MaskedConv(nn.Conv2d):
    def __init__(self, width: int, wider: int, size: int, own: bool) -> None:
        super().__init__(width, wider, size, padding=size // 2)
        mask = torch.ones(size, size)
        mask[size // 2, size // 2 + own :] = 0
        mask[size // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


def pixel_cnn() -> Task:
    """Pixels one after the other, by masked convolutions."""
    model = nn.Sequential(
        _MaskedConv(1, 16, 5, False), nn.ReLU(), _MaskedConv(16, 16, 3, True), nn.ReLU(),
        nn.Conv2d(16, 1, 1),
    )  # fmt: skip
    batches = ClassBatches(1, 8, 8)

    def loss() -> Tensor:
        x, _ = batches()
        return F.binary_cross_entropy_with_logits(model(x), (x > 0).float())

    return one_loss(model, loss)


def radiance_field() -> Task:
    """Rays through a volume: densities, transmittance, a sum along each ray."""
    model = nn.Sequential(nn.Linear(18, 32), nn.ReLU(), nn.Linear(32, 4))
    powers = 2.0 ** torch.arange(3)

    def loss() -> Tensor:
        points = torch.rand(8, 16, 3)
        angles = (points[..., None] * powers).flatten(-2)
        said = model(torch.cat([angles.sin(), angles.cos()], -1)).float()
        opaque = 1 - torch.exp(-F.softplus(said[..., 3]) / 16)
        through = torch.cumprod(1 - opaque + 1e-10, 1)
        before = torch.cat([torch.ones(8, 1), through[:, :-1]], 1)
        colour = ((opaque * before)[..., None] * said[..., :3].sigmoid()).sum(1)
        return F.mse_loss(colour, points.mean(1))

    return one_loss(model, loss)


def score_matching() -> Task:
    """The gradient of a density, by denoising at several widths."""
    model = nn.Sequential(nn.Linear(3, 64), nn.Softplus(), nn.Linear(64, 2))

    def loss() -> Tensor:
        x, noise = torch.randint(2, (32, 2)).float() * 2 - 1, torch.randn(32, 2)
        width = torch.empty(32, 1).uniform_(0.1, 1)
        score = model(torch.cat([x + width * noise, width.log()], 1)) / width
        return (width * score + noise).square().sum(1).mean()

    return one_loss(model, loss)


class _SelfTaught(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(
            nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8)
        )
        self.predict = nn.Linear(8, 8)
        self.slow = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        said = F.normalize(self.predict(self.online(one)), dim=1)
        with torch.no_grad():
            wanted = F.normalize(self.slow(two), dim=1)
        return (2 - 2 * (said * wanted).sum(1)).mean()


def self_taught() -> Task:
    """A network that follows a slow copy of itself."""
    model = _SelfTaught()
    batches = ClassBatches(12)

    def loss() -> Tensor:
        x, _ = batches()
        return model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))

    def follow() -> None:
        with torch.no_grad():
            for slow, fast in zip(model.slow.parameters(), model.online.parameters(), strict=True):
                slow.lerp_(fast, 0.05)

    return Task(model, [(loss, None)], follow)


BUILDS = [
    autoencoder, variational_autoencoder, vector_quantized, adversarial, gradient_penalty,
    diffusion, normalizing_flow, pixel_cnn, radiance_field, score_matching, self_taught,
]  # fmt: skip
