"""Faults of training and data, planted in architectures as people write them.

Each fault is a function that runs a program for a few steps inside a trace. It is listed with the
rule of `Trace.health` that must find it, the address that the finding must name, and what to
record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Runs the steps of a program.
Run = Callable[[], Any]
Batches = Callable[[int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Fault:
    """One planted fault: a function that makes a model and its run, and what must be said."""

    name: str
    rule: str
    address: str
    build: Callable[[], tuple[nn.Module, Run]]
    values: str = "stats"
    level: str = "ops"


FAULTS: list[Fault] = []


def fault(rule: str, address: str = "", **recording: str) -> Callable[[Any], Any]:
    """List a function as a fault that a rule must find, at an address if one is given."""

    def listed(build: Any) -> Any:
        name = build.__name__.replace("_", "-")
        FAULTS.append(Fault(name, rule, address, build, **recording))
        return build

    return listed


# Architectures


class Cnn(nn.Module):
    """Two convolutions with batch norm, dropout and a linear head."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(images)))
        hidden = F.relu(self.conv2(hidden))
        return self.head(self.drop(hidden.mean((2, 3))))


class Residual(nn.Module):
    """Blocks with a residual connection and layer norm."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width)
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.stem(rows)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)


class Tagger(nn.Module):
    """An embedding, an LSTM and a linear head for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 12)
        self.lstm = nn.LSTM(12, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(words))[0][:, -1])


class Encoder(nn.Module):
    """A transformer encoder with a mean over the words and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layers(self.words(words)).mean(1))


def mlp(activation: Callable[[], nn.Module] = nn.ReLU, depth: int = 2) -> nn.Sequential:
    """Return linear layers with an activation after each but the last."""
    layers: list[nn.Module] = [nn.Linear(8, 16), activation()]
    for _ in range(depth - 1):
        layers += [nn.Linear(16, 16), activation()]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def images(step: int) -> tuple[Tensor, Tensor]:
    return torch.randn(8, 3, 16, 16), torch.randint(4, (8,))


def rows(step: int) -> tuple[Tensor, Tensor]:
    return torch.randn(32, 8), torch.randint(4, (32,))


def words(step: int) -> tuple[Tensor, Tensor]:
    return torch.randint(30, (8, 6)), torch.randint(4, (8,))


def trained(
    model: nn.Module,
    batches: Batches,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 6,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    after: Callable[[int], Any] = lambda step: None,
) -> tuple[nn.Module, Run]:
    """Return a model and a function that trains it."""
    used = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        for step in range(steps):
            given, wanted = batches(step)
            used.zero_grad()
            loss(model(given), wanted).backward()
            used.step()
            after(step)

    return model, run


def sgd(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate)


# Gradients


@fault("exploding gradients")
def loss_scaled_up_in_one_step() -> tuple[nn.Module, Run]:
    counted = iter(range(100))

    def loss(given: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(given, wanted) * (1e4 if next(counted) == 5 else 1)

    return trained(Encoder(), words, loss=loss)


@fault("exploding gradients")
def cnn_with_huge_weights() -> tuple[nn.Module, Run]:
    model = Cnn()
    with torch.no_grad():
        model.conv2.weight.mul_(1e6)
    return trained(model, images)


@fault("exploding gradients")
def diverging_sgd() -> tuple[nn.Module, Run]:
    model = Residual()
    return trained(model, rows, sgd(model, 1e4))


@fault("exploding gradients", level="modules")
def captured_gradients_that_explode() -> tuple[nn.Module, Run]:
    model = mlp()
    with torch.no_grad():
        model[2].weight.mul_(1e6)
    return trained(model, rows)


@fault("vanishing gradients", "0.weight:grad")
def deep_sigmoid_mlp() -> tuple[nn.Module, Run]:
    return trained(mlp(nn.Sigmoid, depth=10), rows)


@fault("vanishing gradients", "0.weight:grad")
def deep_cnn_with_small_weights() -> tuple[nn.Module, Run]:
    layers: list[nn.Module] = []
    for depth in range(9):
        layers += [nn.Conv2d(3 if depth == 0 else 8, 8, 3, padding=1), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 256, 4))
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Conv2d):
                layer.weight.mul_(0.05)
    return trained(model, images)


@fault("vanishing gradients", "stem.weight:grad")
def residual_without_its_sum() -> tuple[nn.Module, Run]:
    class Plain(Residual):
        def forward(self, rows: Tensor) -> Tensor:
            hidden = self.stem(rows)
            for block in self.blocks:
                hidden = torch.sigmoid(block(hidden) * 0.01)
            return self.head(hidden)

    return trained(Plain(depth=4), rows)


# Activations


@fault("dead units", "1")
def mlp_with_a_dead_layer() -> tuple[nn.Module, Run]:
    model = mlp()
    with torch.no_grad():
        model[0].bias.fill_(-100)
    return trained(model, rows)


@fault("dead units")
def cnn_with_a_dead_convolution() -> tuple[nn.Module, Run]:
    model = Cnn()
    with torch.no_grad():
        model.conv2.bias.fill_(-100)
    return trained(model, images)


@fault("dead units", "blocks.1.2", level="modules")
def residual_with_a_dead_block() -> tuple[nn.Module, Run]:
    model = Residual()
    with torch.no_grad():
        model.blocks[1][1].bias.fill_(-100)
    return trained(model, rows)


@fault("dead units", values="full")
def cnn_with_many_dead_channels() -> tuple[nn.Module, Run]:
    model = Cnn()
    with torch.no_grad():
        model.conv2.bias[:12].fill_(-100)
    return trained(model, images)


@fault("dead units", "1", values="full")
def mlp_with_many_dead_units() -> tuple[nn.Module, Run]:
    model = mlp()
    with torch.no_grad():
        model[0].bias[4:].fill_(-100)
    return trained(model, rows)


@fault("saturated activations", "1")
def tanh_mlp_with_large_weights() -> tuple[nn.Module, Run]:
    model = mlp(nn.Tanh)
    with torch.no_grad():
        model[0].weight.mul_(1000)
    return trained(model, rows)


@fault("saturated activations")
def gate_with_large_inputs() -> tuple[nn.Module, Run]:
    class Gated(Cnn):
        def forward(self, images: Tensor) -> Tensor:
            hidden = F.relu(self.norm1(self.conv1(images)))
            hidden = self.conv2(hidden)
            gate = torch.sigmoid(hidden.mean((2, 3), keepdim=True) * 1e4)
            return self.head((hidden * gate).mean((2, 3)))

    return trained(Gated(), images)


@fault("saturated activations", "1", level="modules")
def sigmoid_of_unscaled_features() -> tuple[nn.Module, Run]:
    def large(step: int) -> tuple[Tensor, Tensor]:
        given, wanted = rows(step)
        return given * 1e3, wanted

    return trained(mlp(nn.Sigmoid), large)


# Parameters


@fault("unchanged parameters", "words.weight")
def embedding_with_rate_zero() -> tuple[nn.Module, Run]:
    model = Encoder()
    rest = [p for name, p in model.named_parameters() if not name.startswith("words")]
    groups = [{"params": model.words.parameters(), "lr": 0.0}, {"params": rest}]
    return trained(model, words, torch.optim.AdamW(groups, lr=1e-3))


@fault("unchanged parameters", "stem.weight")
def updates_lost_in_bfloat16() -> tuple[nn.Module, Run]:
    model = Residual().bfloat16()

    def narrow(step: int) -> tuple[Tensor, Tensor]:
        given, wanted = rows(step)
        return given.bfloat16(), wanted

    return trained(model, narrow, sgd(model, 1e-6))


@fault("unchanged parameters", "head.weight")
def weights_written_back() -> tuple[nn.Module, Run]:
    model = Cnn()
    before = model.head.weight.detach().clone()

    def restore(step: int) -> None:
        with torch.no_grad():
            model.head.weight.copy_(before)

    return trained(model, images, after=restore)


@fault("parameters without gradient", "conv1.weight")
def detached_features() -> tuple[nn.Module, Run]:
    class Detached(Cnn):
        def forward(self, images: Tensor) -> Tensor:
            hidden = F.relu(self.norm1(self.conv1(images))).detach()
            return self.head(self.drop(F.relu(self.conv2(hidden)).mean((2, 3))))

    return trained(Detached(), images)


@fault("parameters without gradient", "words.weight")
def embedding_under_no_grad() -> tuple[nn.Module, Run]:
    class NoGrad(Tagger):
        def forward(self, words: Tensor) -> Tensor:
            with torch.no_grad():
                found = self.words(words)
            return self.head(self.lstm(found)[0][:, -1])

    return trained(NoGrad(), words)


@fault("parameters without gradient", "scale")
def parameter_that_nothing_uses() -> tuple[nn.Module, Run]:
    class Unused(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(16))

    return trained(Unused(), rows)


@fault("parameters in no optimizer", "head.weight")
def head_replaced_after_the_optimizer() -> tuple[nn.Module, Run]:
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.head = nn.Linear(16, 4)
    return trained(model, words, optimizer)


@fault("parameters in no optimizer", "conv1.weight")
def optimizer_of_the_head_alone() -> tuple[nn.Module, Run]:
    model = Cnn()
    return trained(model, images, torch.optim.SGD(model.head.parameters(), lr=0.1))


@fault("parameters in no optimizer", "head.weight")
def optimizer_of_another_model() -> tuple[nn.Module, Run]:
    return trained(Residual(), rows, sgd(Residual(), 0.1))


# Updates and loss


@fault("update size", "head.weight")
def adam_with_rate_one() -> tuple[nn.Module, Run]:
    model = Encoder()
    return trained(model, words, torch.optim.Adam(model.parameters(), lr=1.0))


@fault("update size", "head.weight")
def sgd_with_large_rate() -> tuple[nn.Module, Run]:
    model = Tagger()
    return trained(model, words, sgd(model, 100.0))


@fault("update size", "conv2.weight")
def sgd_with_tiny_rate() -> tuple[nn.Module, Run]:
    model = Cnn()
    return trained(model, images, sgd(model, 1e-9))


@fault("loss spikes")
def one_batch_far_out() -> tuple[nn.Module, Run]:
    def spiky(step: int) -> tuple[Tensor, Tensor]:
        given, wanted = rows(step)
        return given * (300 if step == 8 else 1), wanted

    return trained(Residual(), spiky, steps=10)


@fault("loss spikes")
def labels_of_one_step_wrong() -> tuple[nn.Module, Run]:
    def spiky(step: int) -> tuple[Tensor, Tensor]:
        given = torch.randn(16, 8)
        return given, torch.full((16, 4), 30.0 if step == 7 else 1.0)

    return trained(mlp(), spiky, steps=10, loss=F.mse_loss)


@fault("loss spikes", level="modules")
def spike_of_a_model_that_returns_its_loss() -> tuple[nn.Module, Run]:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Encoder()

        def forward(self, words: Tensor) -> Tensor:
            return self.model(words).square().mean()

    model = WithLoss()

    def after(step: int) -> None:
        if step == 7:
            with torch.no_grad():
                model.model.head.weight.mul_(30)

    return trained(model, words, steps=10, loss=lambda loss, wanted: loss, after=after)


# Modes


@fault("wrong mode")
def cnn_trained_in_eval_mode() -> tuple[nn.Module, Run]:
    return trained(Cnn().eval(), images)


@fault("wrong mode", level="modules")
def evaluated_in_train_mode() -> tuple[nn.Module, Run]:
    return _evaluated(Encoder(), words)


@fault("wrong mode")
def batch_norm_evaluated_in_train_mode() -> tuple[nn.Module, Run]:
    return _evaluated(Cnn(), images)


def _evaluated(model: nn.Module, batches: Batches) -> tuple[nn.Module, Run]:
    _, train = trained(model, batches, steps=3)

    def run() -> None:
        train()
        with torch.no_grad():
            for step in range(3):
                given, wanted = batches(step)
                (model(given).argmax(1) == wanted).float().mean().item()

    return model, run


@fault("wrong mode")
def dropout_as_a_function() -> tuple[nn.Module, Run]:
    class Functional(Residual):
        def forward(self, rows: Tensor) -> Tensor:
            return self.head(F.dropout(self.stem(rows), 0.3))

    return _only_evaluated(Functional(), rows)


@fault("wrong mode")
def attention_dropout_in_eval_mode() -> tuple[nn.Module, Run]:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(30, 16)

        def forward(self, words: Tensor) -> Tensor:
            heads = self.words(words).view(8, 6, 4, 4).transpose(1, 2)
            return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1)

    return _only_evaluated(Attention(), words)


@fault("wrong mode", "norm1")
def batch_norm_left_in_train_mode() -> tuple[nn.Module, Run]:
    model = Cnn().eval()
    model.norm1.train()
    return _only_evaluated(model, images, False)


def _only_evaluated(
    model: nn.Module, batches: Batches, set_mode: bool = True
) -> tuple[nn.Module, Run]:
    if set_mode:
        model.eval()

    def run() -> None:
        with torch.no_grad():
            for step in range(2):
                model(batches(step)[0]).sum().item()

    return model, run


# Batches


@fault("repeated batches")
def first_batch_again_and_again() -> tuple[nn.Module, Run]:
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(*images(0)), batch_size=4)
    return trained(Cnn(), lambda step: next(iter(loader)))


@fault("repeated batches", level="modules")
def dataset_that_ignores_its_index() -> tuple[nn.Module, Run]:
    kept = words(0)
    return trained(Encoder(), lambda step: (kept[0].clone(), kept[1]))


@fault("repeated batches")
def generator_seeded_in_the_loop() -> tuple[nn.Module, Run]:
    def seeded(step: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return rows(step)

    return trained(Residual(), seeded)


def _twice(model: nn.Module, batches: Batches) -> tuple[nn.Module, Run]:
    kept = [batches(step) for step in range(2)]
    return trained(model, lambda step: kept[step % 2], steps=4)


@fault("inputs edited in place")
def relu_in_place_on_the_input() -> tuple[nn.Module, Run]:
    return _twice(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 4)), rows)


@fault("inputs edited in place")
def input_normalised_in_place() -> tuple[nn.Module, Run]:
    class InPlace(Cnn):
        def forward(self, images: Tensor) -> Tensor:
            images.sub_(0.5).div_(0.25)
            return super().forward(images)

    return _twice(InPlace(), images)


@fault("inputs edited in place")
def words_masked_in_place() -> tuple[nn.Module, Run]:
    class Masking(Encoder):
        def forward(self, words: Tensor) -> Tensor:
            words[:, 0] = 0
            return super().forward(words)

    return _twice(Masking(), words)


# Data


@fault("NaN in the data")
def nan_in_a_batch() -> tuple[nn.Module, Run]:
    def broken(step: int) -> tuple[Tensor, Tensor]:
        given, wanted = rows(step)
        if step == 2:
            array = given.numpy()
            array[3, 5] = float("nan")
            given = torch.from_numpy(array.copy())
        return given, wanted

    return trained(Residual(), broken)


@fault("NaN in the data", level="modules")
def infinity_in_an_image() -> tuple[nn.Module, Run]:
    def broken(step: int) -> tuple[Tensor, Tensor]:
        given, wanted = images(step)
        given[0, 0, 0, 0] = float("inf")
        return given, wanted

    return trained(Cnn(), broken, steps=2)


def _pixels(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@fault("unscaled images", "conv1:in")
def bytes_into_a_convolution() -> tuple[nn.Module, Run]:
    def unscaled(step: int) -> tuple[Tensor, Tensor]:
        return _pixels(8, 16, 16, 3).permute(0, 3, 1, 2).float(), torch.randint(4, (8,))

    return trained(Cnn(), unscaled)


@fault("unscaled images", "1:in")
def bytes_into_a_linear_layer() -> tuple[nn.Module, Run]:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 4))

    def unscaled(step: int) -> tuple[Tensor, Tensor]:
        return torch.stack([_pixels(28, 28) for _ in range(4)]).float(), torch.randint(4, (4,))

    return trained(model, unscaled)


@fault("unscaled images", "conv1:in", level="modules")
def unscaled_images_of_an_array() -> tuple[nn.Module, Run]:
    def unscaled(step: int) -> tuple[Tensor, Tensor]:
        pixels = _pixels(8, 3, 32, 32).numpy().astype("float32")
        return torch.from_numpy(pixels), torch.randint(4, (8,))

    return trained(Cnn(), unscaled)


@fault("reshaped instead of permuted")
def image_viewed_to_channels_first() -> tuple[nn.Module, Run]:
    def mixed(step: int) -> tuple[Tensor, Tensor]:
        return torch.rand(8, 16, 16, 3).view(8, 3, 16, 16), torch.randint(4, (8,))

    return trained(Cnn(), mixed)


@fault("reshaped instead of permuted", values="meta")
def batch_first_by_reshape() -> tuple[nn.Module, Run]:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(8, 16)
            self.head = nn.Linear(16, 4)

        def forward(self, series: Tensor) -> Tensor:
            series = series.reshape(series.shape[1], series.shape[0], -1)
            return self.head(self.gru(series)[0][-1])

    return trained(Mixed(), lambda step: (torch.randn(5, 12, 8), torch.randint(4, (5,))))


@fault("reshaped instead of permuted", values="meta")
def heads_by_view() -> tuple[nn.Module, Run]:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(30, 16)
            self.head = nn.Linear(16, 4)

        def forward(self, words: Tensor) -> Tensor:
            split = self.words(words).view(8, 6, 2, 8)
            heads = split.view(8, 2, 6, 8)
            found = F.scaled_dot_product_attention(heads, heads, heads)
            return self.head(found.transpose(1, 2).reshape(8, 6, 16).mean(1))

    return trained(Mixed(), words)


@fault("channels in the last dimension", "conv1:in")
def rows_taken_for_channels() -> tuple[nn.Module, Run]:
    def turned(step: int) -> tuple[Tensor, Tensor]:
        return torch.randn(4, 32, 32, 3), torch.randint(4, (4,))

    return trained(Cnn(channels=32), turned)


def named(name: str) -> Fault:
    """Return the fault with a name."""
    return {one.name: one for one in FAULTS}[name]
