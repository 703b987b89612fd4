"""Programs made of modules: layers of every family, in training and evaluation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, rnn

from tests.conformance.programs.registry import Prepared, program


@program
def mlp_in_training() -> Prepared:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    x = torch.randn(5, 4)

    def run() -> Any:
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss

    return Prepared(run, model)


@program
def convolutions_in_training() -> Prepared:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.ConvTranspose2d(4, 2, 2), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(50, 3),
    )  # fmt: skip
    x, target = torch.randn(2, 3, 8, 8), torch.tensor([0, 2])

    def run() -> Any:
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        return loss

    return Prepared(run, model)


@program
def convolutions_in_evaluation() -> Prepared:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.AvgPool1d(2))
    model.eval()
    x = torch.randn(2, 2, 9)

    def run() -> Any:
        with torch.no_grad():
            return model(x)

    return Prepared(run, model)


@program
def batch_norm_updates_its_buffers() -> Prepared:
    model = nn.BatchNorm1d(3, momentum=None)
    x = torch.randn(4, 3)

    def run() -> Any:
        first = model(x)
        model.eval()
        return first, model(x), model.running_var * 2

    return Prepared(run, model)


@program
def encoder_in_training() -> Prepared:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    x = torch.randn(2, 3, 8)

    def run() -> Any:
        loss = model(x).square().sum()
        loss.backward()
        return loss

    return Prepared(run, model)


@program
def encoder_by_the_fast_path() -> Prepared:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 3, 8)

    def run() -> Any:
        with torch.no_grad():
            return model(x)

    return Prepared(run, model)


@program
def decoder_with_masks() -> Prepared:
    model = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    memory, x = torch.randn(2, 4, 8), torch.randn(2, 3, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(3)

    def run() -> Any:
        return model(x, memory, tgt_mask=mask, tgt_is_causal=True)

    return Prepared(run, model)


@program
def attention_with_weights() -> Prepared:
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 3, 8)

    def run() -> Any:
        out, weights = model(x, x, x, need_weights=True)
        out.sum().backward()
        return out, weights

    return Prepared(run, model)


@program
def attention_of_torch() -> Prepared:
    q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))

    def run() -> Any:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.sum().backward()
        return out, q.grad, k.grad, v.grad

    return Prepared(run)


@program
def lstm_of_two_layers() -> Prepared:
    model = nn.LSTM(3, 4, num_layers=2, batch_first=True, dropout=0.2, bidirectional=True)
    x = torch.randn(2, 3, 3)

    def run() -> Any:
        out, (h, c) = model(x)
        out.sum().backward()
        return out, h, c

    return Prepared(run, model)


@program
def gru_on_packed_sequences() -> Prepared:
    model = nn.GRU(3, 4)
    x = torch.randn(4, 2, 3)

    def run() -> Any:
        packed = rnn.pack_padded_sequence(x, torch.tensor([4, 2]))
        out, h = model(packed)
        padded, lengths = rnn.pad_packed_sequence(out)
        return padded, lengths, h

    return Prepared(run, model)


@program
def cell_in_a_loop() -> Prepared:
    model = nn.RNNCell(3, 4)
    x = torch.randn(3, 2, 3)

    def run() -> Any:
        h = torch.zeros(2, 4)
        for step in x:
            h = model(step, h)
        h.sum().backward()
        return h

    return Prepared(run, model)


@program
def embeddings_and_bags() -> Prepared:
    model = nn.ModuleDict(
        {
            "words": nn.Embedding(10, 4, padding_idx=0),
            "bag": nn.EmbeddingBag(10, 4, mode="mean"),
            "sparse": nn.Embedding(10, 4, sparse=True),
        }
    )
    ids = torch.tensor([[1, 2, 0], [4, 4, 9]])

    def run() -> Any:
        out = model["words"](ids).sum(1) + model["bag"](ids) + model["sparse"](ids).sum(1)
        out.sum().backward()
        return out

    return Prepared(run, model)


class Tied(nn.Module):
    """Reads words and writes them with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Embedding(6, 4)
        self.body = nn.Linear(4, 4)
        self.write = nn.Linear(4, 6, bias=False)
        self.write.weight = self.read.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.write(torch.tanh(self.body(self.read(ids))))


@program
def tied_weights() -> Prepared:
    model = Tied()
    ids = torch.tensor([0, 3, 5])

    def run() -> Any:
        loss = F.cross_entropy(model(ids), ids)
        loss.backward()
        return loss

    return Prepared(run, model)


class Twice(nn.Module):
    """Calls one child twice, and the forward of another by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.direct = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(self.shared(x))
        return self.direct.forward(x).relu()


@program
def shared_modules_and_direct_forwards() -> Prepared:
    model = Twice()
    x = torch.randn(2, 4)

    def run() -> Any:
        out = model(x)
        out.sum().backward()
        return out

    return Prepared(run, model)


@program
def lazy_modules() -> Prepared:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyBatchNorm1d())
    x = torch.randn(4, 5)

    def run() -> Any:
        return model(x)

    return Prepared(run, model)


@program
def hooks_of_modules_and_tensors() -> Prepared:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda module, args, out: out + 1)
    model[0].register_full_backward_hook(lambda module, given, got: None)
    x = torch.randn(2, 3, requires_grad=True)

    def run() -> Any:
        out = model(x)
        out.register_hook(lambda gradient: gradient * 3)
        out.sum().backward()
        return out, x.grad

    return Prepared(run, model)


class Symmetric(nn.Module):
    """Makes a weight symmetric."""

    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


@program
def parametrizations_of_weights() -> Prepared:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(3, 3)),
        parametrizations.spectral_norm(nn.Linear(3, 3)),
        nn.Linear(3, 3),
    )
    parametrize.register_parametrization(model[2], "weight", Symmetric())
    x = torch.randn(2, 3)

    def run() -> Any:
        out = model(x)
        out.sum().backward()
        return out

    return Prepared(run, model)


@program
def every_activation() -> Prepared:
    model = nn.ModuleList(
        [
            nn.ELU(), nn.Hardswish(), nn.LeakyReLU(inplace=False), nn.PReLU(), nn.SELU(),
            nn.SiLU(), nn.Mish(), nn.Softplus(), nn.Softmax(-1), nn.LogSoftmax(-1), nn.GLU(),
            nn.Threshold(0.1, 20.0), nn.Hardtanh(), nn.Sigmoid(),
        ]
    )  # fmt: skip
    x = torch.randn(2, 4, requires_grad=True)

    def run() -> Any:
        outs = [layer(x) for layer in model]
        sum(out.sum() for out in outs).backward()
        return outs, x.grad

    return Prepared(run, model)


@program
def losses() -> Prepared:
    scores, target = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 3])
    other = torch.rand(3, 4)

    def run() -> Any:
        found = [
            F.cross_entropy(scores, target, label_smoothing=0.1),
            F.nll_loss(scores.log_softmax(-1), target),
            F.mse_loss(scores, other),
            F.smooth_l1_loss(scores, other),
            F.huber_loss(scores, other),
            F.binary_cross_entropy_with_logits(scores, other),
            F.kl_div(scores.log_softmax(-1), other, reduction="batchmean"),
            F.cosine_embedding_loss(scores, other, torch.ones(3)),
            F.multi_margin_loss(scores, target),
        ]
        torch.stack(found).sum().backward()
        return found, scores.grad

    return Prepared(run)


@program
def ctc_loss() -> Prepared:
    scores = torch.randn(6, 2, 5, requires_grad=True)
    target, given, wanted = (
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([6, 5]),
        torch.tensor([2, 1]),
    )

    def run() -> Any:
        loss = F.ctc_loss(scores.log_softmax(-1), target, given, wanted)
        loss.backward()
        return loss, scores.grad

    return Prepared(run)


@program
def resampling_and_padding() -> Prepared:
    x = torch.randn(1, 2, 4, 4, requires_grad=True)
    grid = torch.rand(1, 3, 3, 2) * 2 - 1

    def run() -> Any:
        outs = [
            F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
            F.pad(x, (1, 1, 1, 1), mode="reflect"),
            F.grid_sample(x, grid, align_corners=True),
            F.unfold(x, 2),
            F.pixel_shuffle(torch.cat([x, x], 1), 2),
            F.adaptive_avg_pool2d(x, 2),
        ]
        sum(out.sum() for out in outs).backward()
        return outs, x.grad

    return Prepared(run)


@program
def modules_without_a_model() -> Prepared:
    first, second = nn.Linear(3, 3), nn.Linear(3, 2)
    x = torch.randn(2, 3)

    def run() -> Any:
        out = second(first(x).relu())
        out.sum().backward()
        return out, first.weight.grad

    return Prepared(run)


@program
def quantised_modules() -> Prepared:
    x = torch.randn(2, 4)

    def run() -> Any:
        q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
        return (
            q.int_repr(),
            q.dequantize(),
            torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255),
        )

    return Prepared(run)
