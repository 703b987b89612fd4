"""Clean architectures that read sequences; many of them mask with -inf."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from accuracy.clean import ClassBatches, Task, one_loss, token_batch

WORDS = 20
WIDTH = 32


def _next_word(model: nn.Module) -> Task:
    def loss() -> Tensor:
        tokens, following = token_batch(words=WORDS)
        return F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())

    return one_loss(model, loss)


def _in_float32(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """Run an LSTM without autocast: many processors have no LSTM in bfloat16."""
    with torch.autocast("cpu", enabled=False):
        return lstm(x.float())[0]


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(_in_float32(self.lstm, self.words(tokens)))


def lstm_language_model() -> Task:
    """Two layers of LSTM."""
    return _next_word(_Recurrent())


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.gru = nn.GRU(WIDTH, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.words(tokens), lengths, True, enforce_sorted=False)
        _, last = self.gru(packed)
        return self.head(torch.cat([last[0], last[1]], -1))


def gru_packed() -> Task:
    """A bidirectional GRU over sequences of different lengths."""
    model = _Packed()

    def loss() -> Tensor:
        tokens, _ = token_batch(batch=8)
        lengths = torch.randint(3, 11, (8,))
        tokens = tokens.masked_fill(torch.arange(10) >= lengths[:, None], 0)
        return F.cross_entropy(model(tokens, lengths), (tokens[:, 0] > 9).long())

    return one_loss(model, loss)


class _Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNNCell(6, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), WIDTH)
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state)[:, 0]


def rnn_cell() -> Task:
    """A recurrent cell in a loop."""
    model = _Cell()

    def loss() -> Tensor:
        x = torch.randn(8, 7, 6)
        return F.huber_loss(model(x), x[:, -1].mean(-1))

    return one_loss(model, loss)


class _Tagger(nn.Module):
    """An LSTM with a conditional random field on top."""

    def __init__(self, tags: int = 5) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, 16, batch_first=True, bidirectional=True)
        self.emit = nn.Linear(32, tags)
        self.moves = nn.Parameter(0.1 * torch.randn(tags, tags))

    def forward(self, tokens: Tensor, tags: Tensor) -> Tensor:
        scores = self.emit(_in_float32(self.lstm, self.words(tokens))).float()
        alpha = scores[:, 0]
        for t in range(1, scores.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.moves, 1) + scores[:, t]
        path = scores.gather(2, tags[..., None])[..., 0].sum(1)
        path = path + self.moves[tags[:, :-1], tags[:, 1:]].sum(1)
        return (torch.logsumexp(alpha, 1) - path).mean()


def lstm_crf() -> Task:
    """Tags by a conditional random field."""
    model = _Tagger()

    def loss() -> Tensor:
        tokens, _ = token_batch(words=WORDS)
        return model(tokens, tokens % 5)

    return one_loss(model, loss)


class _Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        h = self.encoder(self.words(tokens), src_key_padding_mask=padding)
        kept = (~padding)[..., None].to(h.dtype)
        return self.head((h * kept).sum(1) / kept.sum(1).clamp(min=1))


def encoder_padded() -> Task:
    """nn.TransformerEncoder with a padding mask."""
    model = _Padded()

    def loss() -> Tensor:
        tokens, _ = token_batch(batch=8)
        lengths = torch.randint(4, 11, (8,))
        lengths[0] = 10
        padding = torch.arange(10) >= lengths[:, None]
        return F.cross_entropy(model(tokens, padding), (tokens[:, 0] > 9).long())

    return one_loss(model, loss)


class _Attention(nn.Module):
    """Attention as people write it: `mask` is how the future is hidden."""

    def __init__(self, width: int, heads: int, mask: str) -> None:
        super().__init__()
        self.heads, self.mask = heads, mask
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        if self.mask == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(b, t, c))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        if self.mask == "inf":
            scores = scores.masked_fill(future, float("-inf"))
        elif self.mask == "triu":
            scores = scores + torch.full((t, t), float("-inf")).triu(1)
        elif self.mask == "min":
            scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
        elif self.mask == "alibi":
            distance = torch.arange(t)[None] - torch.arange(t)[:, None]
            slopes = 2.0 ** -torch.arange(1, self.heads + 1)
            bias = distance * slopes[:, None, None]
            scores = scores + torch.where(future, torch.tensor(float("-inf")), bias)
        elif self.mask == "topk":
            scores = scores.masked_fill(future, float("-inf"))
            least = scores.topk(min(4, t), -1).values[..., -1:]
            scores = torch.where(scores < least, float("-inf"), scores)
        y = self.drop(F.softmax(scores.float(), -1).to(v.dtype)) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class _Block(nn.Module):
    def __init__(self, mask: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = _Attention(WIDTH, 4, mask)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class _GPT(nn.Module):
    def __init__(self, mask: str) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(10, WIDTH)
        self.blocks = nn.ModuleList(_Block(mask) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if mask == "sdpa":
            self.head.weight = self.words.weight
            nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt() -> Task:
    """The future is masked_fill-ed with -inf."""
    return _next_word(_GPT("inf"))


def gpt_triu() -> Task:
    """The mask is a matrix of -inf, added."""
    return _next_word(_GPT("triu"))


def gpt_min() -> Task:
    """The future is masked with the smallest number of the dtype."""
    return _next_word(_GPT("min"))


def gpt_sdpa() -> Task:
    """torch's own attention; the head has the weights of the embedding."""
    return _next_word(_GPT("sdpa"))


def alibi() -> Task:
    """Positions as a bias, with where and -inf."""
    return _next_word(_GPT("alibi"))


def sparse_attention() -> Task:
    """Only the largest scores stay; others become -inf."""
    return _next_word(_GPT("topk"))


class _RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)


class _Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH, False), nn.Linear(WIDTH, WIDTH, False)
        self.out = nn.Linear(WIDTH, WIDTH, False)

    @staticmethod
    def turn(x: Tensor) -> Tensor:
        t, d = x.shape[-2:]
        angle = torch.arange(t)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        even, odd = x[..., ::2], x[..., 1::2]
        cos, sin = angle.cos(), angle.sin()
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q = self.q(x).view(b, t, 4, 8).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 2, 2, 8).permute(3, 0, 2, 1, 4)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = self.turn(q) @ self.turn(k).transpose(-1, -2) / math.sqrt(8)
        mask = torch.full((t, t), float("-inf")).triu(1)
        weights = (scores + mask).softmax(-1, dtype=torch.float32).to(v.dtype)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, c))


class _Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 48, False), nn.Linear(WIDTH, 48, False)
        self.down = nn.Linear(48, WIDTH, False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class _Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norms = nn.ModuleList(_RMSNorm(WIDTH) for _ in range(5))
        self.attention = nn.ModuleList(_Rotary() for _ in range(2))
        self.mlp = nn.ModuleList(_Gated() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for i in range(2):
            x = x + self.attention[i](self.norms[2 * i](x))
            x = x + self.mlp[i](self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x))


def llama() -> Task:
    """RMS norm, rotary positions, grouped queries, gated perceptrons."""
    return _next_word(_Llama())


class _Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 4, 1, 1, 64, 0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        h = self.transformer(self.words(source), self.words(target), tgt_mask=mask)
        return self.head(h)


def encoder_decoder() -> Task:
    """nn.Transformer with torch's own causal mask."""
    model = _Translator()

    def loss() -> Tensor:
        tokens, following = token_batch()
        source = tokens.flip(1)
        return F.cross_entropy(
            model(source, tokens).flatten(0, 1), following.flatten(), label_smoothing=0.1
        )

    return one_loss(model, loss)


class _Relative(nn.Module):
    """T5's buckets: positions as a bias by the log of their distance."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bias = nn.Embedding(WORDS, WIDTH), nn.Embedding(8, 4)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH, False), nn.Linear(WIDTH, WORDS, False)

    def forward(self, tokens: Tensor) -> Tensor:
        b, t = tokens.shape
        distance = (torch.arange(t)[:, None] - torch.arange(t)).clamp(min=0)
        # log(0) is -inf where the distance is small, and where takes the other branch there.
        far = 4 + (torch.log(distance.float() / 4) / math.log(4) * 4).long().clamp(0, 3)
        bucket = torch.where(distance < 4, distance, far)
        q, k, v = self.qkv(self.words(tokens)).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) + self.bias(bucket).permute(2, 0, 1)
        scores = scores + torch.full((t, t), float("-inf")).triu(1)
        return self.head((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, WIDTH))


def relative_bias() -> Task:
    """Attention with a learned bias by distance; log(0) is left out by where."""
    return _next_word(_Relative())


class _Bahdanau(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.encoder = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH)
        self.cell = nn.GRUCell(2 * WIDTH, WIDTH)
        self.key, self.query = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.score, self.head = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WORDS)

    def forward(self, source: Tensor, target: Tensor, padding: Tensor) -> Tensor:
        memory, state = self.encoder(self.words(source).transpose(0, 1))
        memory, state = memory.transpose(0, 1), state[0]
        said = []
        for t in range(target.shape[1]):
            scores = self.score(torch.tanh(self.key(memory) + self.query(state)[:, None]))[..., 0]
            weights = scores.masked_fill(padding, -torch.inf).softmax(-1)
            context = (weights[..., None] * memory).sum(1)
            state = self.cell(torch.cat([self.words(target[:, t]), context], -1), state)
            said.append(self.head(state))
        return torch.stack(said, 1)


def bahdanau() -> Task:
    """Attention in a decoder's loop, with a padding mask of -inf."""
    model = _Bahdanau()

    def loss() -> Tensor:
        tokens, following = token_batch(length=5)
        padding = torch.arange(5) >= torch.randint(2, 6, (4, 1))
        return F.cross_entropy(model(tokens, tokens, padding).flatten(0, 1), following.flatten())

    return one_loss(model, loss)


def masked_language_model() -> Task:
    """Words that are not masked are ignored by the loss."""
    model = _GPT("none")

    def loss() -> Tensor:
        tokens, _ = token_batch()
        hidden = torch.rand(tokens.shape) < 0.3
        hidden[:, 0] = True
        wanted = tokens.masked_fill(~hidden, -100)
        return F.cross_entropy(
            model(tokens.masked_fill(hidden, 0)).flatten(0, 1), wanted.flatten(), ignore_index=-100
        )

    return one_loss(model, loss)


class _Experts(nn.Module):
    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 48), nn.SiLU(), nn.Linear(48, WIDTH))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        best, which = logits.topk(2, -1)
        weights = torch.full_like(logits, float("-inf")).scatter(-1, which, best).softmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + weights[..., i : i + 1].to(x.dtype) * expert(x).to(x.dtype)
        return x + out


class _MoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.experts = nn.Embedding(WORDS, WIDTH), _Experts()
        self.block, self.head = _Block("sdpa"), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.experts(self.block(self.words(tokens))))


def mixture_of_experts() -> Task:
    """A router that gives -inf to experts it did not choose."""
    return _next_word(_MoE())


class _StateSpace(nn.Module):
    """A selective state space, scanned step by step."""

    def __init__(self, states: int = 4) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=2, groups=WIDTH)
        self.choose = nn.Linear(WIDTH, 2 * states + 1)
        self.delta = nn.Parameter(torch.zeros(WIDTH))
        self.log_a = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(WIDTH, 1))
        self.skip = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        t = x.shape[1]
        u, gate = self.into(x).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :t].transpose(1, 2))
        b, c, step = self.choose(u).split([4, 4, 1], -1)
        step = F.softplus(step + self.delta).float()
        a = -self.log_a.exp()
        state = torch.zeros(len(x), WIDTH, 4)
        said = []
        for i in range(t):
            keep = torch.exp(step[:, i, :, None] * a)
            state = keep * state + (step[:, i] * u[:, i])[..., None] * b[:, i, None]
            said.append((state * c[:, i, None]).sum(-1))
        y = torch.stack(said, 1) + u * self.skip
        return x + self.out((y * F.silu(gate)).to(x.dtype))


class _Mamba(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(WORDS, WIDTH), _StateSpace()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.layer(self.words(tokens))))


def state_space() -> Task:
    """A selective state space model."""
    return _next_word(_Mamba())


class _Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            norm(nn.Conv1d(WIDTH, WIDTH, 2, dilation=2**i)) for i in range(3)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens).transpose(1, 2)
        for i, layer in enumerate(self.layers):
            x = x + F.relu(layer(F.pad(x, (2**i, 0))))
        return self.head(x.transpose(1, 2))


def temporal_convolutions() -> Task:
    """Dilated causal convolutions with weight norm."""
    return _next_word(_Convolutions())


class _Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(6, WIDTH, 3, padding=1), nn.GroupNorm(4, WIDTH))
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv(x)).transpose(1, 2)
        return F.log_softmax(self.head(self.gru(h)[0]).float(), -1)


def ctc_speech() -> Task:
    """Sounds to letters by the CTC loss, which works with -inf inside."""
    model = _Speech()

    def loss() -> Tensor:
        letters = torch.randint(1, 6, (4, 5))
        sounds = F.one_hot(letters.repeat_interleave(4, 1), 6).float().transpose(1, 2)
        said = model(sounds + 0.1 * torch.randn_like(sounds)).transpose(0, 1)
        return F.ctc_loss(said, letters, torch.full((4,), 20), torch.full((4,), 5))

    return one_loss(model, loss)


class _LinearAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        memory = torch.einsum("btd,bte->btde", k, v).cumsum(1)
        below = torch.einsum("btd,btd->bt", q, k.cumsum(1)).clamp(min=1e-6)
        return self.head(x + torch.einsum("btd,btde->bte", q, memory) / below[..., None])


def linear_attention() -> Task:
    """Attention without softmax, divided by a clamped sum."""
    return _next_word(_LinearAttention())


class _TextCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 8, mode="max")
        self.letters = nn.Embedding(WORDS, WIDTH)
        self.convs = nn.ModuleList(nn.Conv1d(WIDTH, 8, k) for k in (2, 3, 4))
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.letters(tokens).transpose(1, 2)
        found = [F.relu(conv(x)).amax(-1) for conv in self.convs]
        return self.head(torch.cat([*found, self.words(tokens).to(found[0].dtype)], 1))


def text_cnn() -> Task:
    """Convolutions of several widths, their maximum over time."""
    model = _TextCNN()

    def loss() -> Tensor:
        tokens, _ = token_batch(batch=8)
        return F.cross_entropy(model(tokens), (tokens[:, 0] > 9).long())

    return one_loss(model, loss)


def audio_groups() -> Task:
    """Raw sound through strided convolutions and group norm."""
    model = nn.Sequential(
        nn.Conv1d(1, 8, 5, 2), nn.GroupNorm(2, 8), nn.GELU(),
        nn.Conv1d(8, 16, 3, 2), nn.GroupNorm(4, 16), nn.GELU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    batches = ClassBatches(1, 64)

    def loss() -> Tensor:
        x, y = batches()
        return F.cross_entropy(model(x), y)

    return one_loss(model, loss)


class _TimeMix(nn.Module):
    """Weights that decay with time, kept in logs so that nothing overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kvr = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.decay, self.bonus = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        k, v, r = self.kvr(x).float().chunk(3, -1)
        above = below = torch.zeros(len(x), WIDTH)
        largest = torch.full((len(x), WIDTH), -1e38)
        said = []
        for t in range(x.shape[1]):
            top = torch.maximum(largest, self.bonus + k[:, t])
            a, b = torch.exp(largest - top), torch.exp(self.bonus + k[:, t] - top)
            said.append((a * above + b * v[:, t]) / (a * below + b))
            top = torch.maximum(largest - self.decay.exp(), k[:, t])
            a, b = torch.exp(largest - self.decay.exp() - top), torch.exp(k[:, t] - top)
            above, below, largest = a * above + b * v[:, t], a * below + b, top
        return self.head(r.sigmoid() * torch.stack(said, 1))


def time_mix() -> Task:
    """A recurrence with decaying weights (RWKV)."""
    return _next_word(_TimeMix())


BUILDS = [
    lstm_language_model, gru_packed, rnn_cell, lstm_crf, encoder_padded, gpt, gpt_triu, gpt_min,
    gpt_sdpa, alibi, sparse_attention, llama, encoder_decoder, relative_bias, bahdanau,
    masked_language_model, mixture_of_experts, state_space, temporal_convolutions, ctc_speech,
    linear_attention, text_cnn, audio_groups, time_mix,
]  # fmt: skip
