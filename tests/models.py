"""Models the tests trace: tiny, with random weights, of every kind people build.

Each builder gives a model and its keyword inputs. Nothing is downloaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

Built = tuple[nn.Module, dict[str, Any]]

_VOCABULARY = 40
_COMMON = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
_IMAGES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
}


class Call(nn.Module):
    """Runs a function of itself: a forward written where the test can see it."""

    def __init__(self, function: Any, **children: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def _text() -> dict[str, Tensor]:
    ids = torch.randint(3, _VOCABULARY, (2, 6))
    return {"input_ids": ids, "labels": ids.clone()}


def _images(size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.tensor([0, 1])}


def _decoder(model: Any, config: Any, **options: Any) -> Built:
    return model(config(**_COMMON | {"attention_dropout": 0.1} | options)), _text()


def gpt2(layers: int = 2) -> Built:
    config = hf.GPT2Config(
        vocab_size=_VOCABULARY, n_embd=16, n_layer=layers, n_head=2, n_positions=32,
        bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM",
    )  # fmt: skip
    return hf.GPT2LMHeadModel(config), _text()


def bert() -> Built:
    return hf.BertForMaskedLM(hf.BertConfig(**_COMMON)), _text() | {
        "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    }


def llama() -> Built:
    return _decoder(hf.LlamaForCausalLM, hf.LlamaConfig, num_key_value_heads=1)


def mistral() -> Built:
    return _decoder(
        hf.MistralForCausalLM, hf.MistralConfig, num_key_value_heads=1, sliding_window=4
    )


def qwen2() -> Built:
    return _decoder(hf.Qwen2ForCausalLM, hf.Qwen2Config, num_key_value_heads=1)


def gemma2() -> Built:
    return _decoder(
        hf.Gemma2ForCausalLM,
        hf.Gemma2Config,
        num_key_value_heads=1,
        head_dim=8,
        sliding_window=4,
        attn_implementation="eager",
    )


def mixtral() -> Built:
    return _decoder(
        hf.MixtralForCausalLM, hf.MixtralConfig, num_key_value_heads=1, num_local_experts=3
    )


def falcon() -> Built:
    return _decoder(hf.FalconForCausalLM, hf.FalconConfig, hidden_dropout=0.1)


def opt() -> Built:
    return _decoder(hf.OPTForCausalLM, hf.OPTConfig, ffn_dim=24, word_embed_proj_dim=16)


def bloom() -> Built:
    config = hf.BloomConfig(
        vocab_size=_VOCABULARY, hidden_size=16, n_layer=2, n_head=2, hidden_dropout=0.1,
        attention_dropout=0.1, loss_type="ForCausalLM",
    )  # fmt: skip
    return hf.BloomForCausalLM(config), _text()


def t5() -> Built:
    config = hf.T5Config(
        vocab_size=_VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config), _text()


def bart() -> Built:
    config = hf.BartConfig(
        vocab_size=_VOCABULARY, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, max_position_embeddings=32, encoder_layerdrop=0.3,
        decoder_layerdrop=0.3, forced_eos_token_id=None,
    )  # fmt: skip
    return hf.BartForConditionalGeneration(config), _text()


def vit() -> Built:
    config = hf.ViTConfig(**_IMAGES, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    return hf.ViTForImageClassification(config), _images(8)


def clip() -> Built:
    config = hf.CLIPConfig(
        text_config=_COMMON | {"attention_dropout": 0.1},
        vision_config=_IMAGES | {"attention_dropout": 0.1},
        projection_dim=8,
    )
    inputs = {"input_ids": _text()["input_ids"], "pixel_values": _images(8)["pixel_values"]}
    return hf.CLIPModel(config), inputs | {"return_loss": True}


def whisper() -> Built:
    config = hf.WhisperConfig(
        vocab_size=_VOCABULARY, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, num_mel_bins=8, max_source_positions=10, max_target_positions=16,
        decoder_start_token_id=1, pad_token_id=0, bos_token_id=0, eos_token_id=0, dropout=0.1,
    )  # fmt: skip
    features = torch.randn(2, 8, 20)
    return hf.WhisperForConditionalGeneration(config), {
        "input_features": features,
        "labels": _text()["labels"],
    }


def mamba() -> Built:
    config = hf.MambaConfig(
        vocab_size=_VOCABULARY, hidden_size=16, num_hidden_layers=2, state_size=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return hf.MambaForCausalLM(config), _text()


def deberta() -> Built:
    config = hf.DebertaV2Config(
        **_COMMON, relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=4
    )
    return hf.DebertaV2ForMaskedLM(config), _text()


def wav2vec2() -> Built:
    config = hf.Wav2Vec2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, conv_dim=(8, 8), conv_stride=(4, 2), conv_kernel=(4, 2),
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        layerdrop=0.3, mask_time_prob=0.3, mask_time_length=2, mask_time_min_masks=1,
    )  # fmt: skip
    inputs = {"input_values": torch.randn(2, 160), "labels": torch.randint(1, 12, (2, 4))}
    return hf.Wav2Vec2ForCTC(config), inputs


def distilbert() -> Built:
    config = hf.DistilBertConfig(
        vocab_size=_VOCABULARY, dim=16, n_layers=2, n_heads=2, hidden_dim=24,
        max_position_embeddings=32,
    )  # fmt: skip
    inputs = {"input_ids": _text()["input_ids"], "labels": torch.tensor([0, 1])}
    return hf.DistilBertForSequenceClassification(config), inputs


def albert() -> Built:
    """One layer object called three times."""
    config = hf.AlbertConfig(
        **_COMMON | {"num_hidden_layers": 3, "pad_token_id": 0},
        embedding_size=8,
        hidden_dropout_prob=0.1,
    )
    return hf.AlbertForMaskedLM(config), _text()


def resnet() -> Built:
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    return hf.ResNetForImageClassification(config), _images(16)


def convnext() -> Built:
    config = hf.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, drop_path_rate=0.2
    )
    return hf.ConvNextForImageClassification(config), _images(16)


def swin() -> Built:
    config = hf.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2],
        window_size=2, drop_path_rate=0.2,
    )  # fmt: skip
    return hf.SwinForImageClassification(config), _images(16)


TRANSFORMERS: dict[str, Callable[[], Built]] = {
    build.__name__: build
    for build in (
        gpt2, bert, llama, mistral, qwen2, gemma2, mixtral, falcon, opt, bloom, t5, bart, vit,
        clip, whisper, mamba, deberta, wav2vec2, distilbert, albert, resnet, convnext, swin,
    )
}  # fmt: skip


class Net(nn.Module):
    """Runs `body` on its keyword inputs and returns a loss and what it came from."""

    def __init__(self, body: nn.Module, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.body = body
        self.run = run

    def forward(self, **inputs: Any) -> dict[str, Any]:
        out = self.run(self.body, **inputs) if self.run else self.body(*inputs.values())
        return {"loss": sum(t.float().pow(2).mean() for t in floats(out)), "out": out}


def floats(value: Any) -> list[Tensor]:
    """Every floating point tensor in nested tuples, lists and mappings."""
    return [tensor for tensor in leaves(value).values() if tensor.is_floating_point()]


def leaves(value: Any, path: str = "") -> dict[str, Tensor]:
    """Every tensor in nested tuples, lists, mappings and objects with attributes, by its path."""
    if isinstance(value, Tensor):
        return {path: value}
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, (tuple, list)):
        items = enumerate(value)
    elif hasattr(value, "__dict__"):
        items = vars(value).items()
    else:
        return {}
    found: dict[str, Tensor] = {}
    for key, item in items:
        found |= leaves(item, f"{path}.{key}" if path else str(key))
    return found


def mlp() -> Built:
    body = nn.Sequential(
        nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 4)
    )
    return Net(body), {"x": torch.randn(3, 8)}


def transformer() -> Built:
    body = nn.Transformer(16, 2, 2, 2, 32, dropout=0.1, batch_first=True)
    return Net(body), {"source": torch.randn(2, 5, 16), "target": torch.randn(2, 4, 16)}


def encoder() -> Built:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    return Net(nn.TransformerEncoder(layer, 2)), {"x": torch.randn(2, 5, 16)}


def lstm() -> Built:
    return Net(nn.LSTM(6, 8, num_layers=2, dropout=0.2, bidirectional=True)), {
        "x": torch.randn(5, 2, 6)
    }


def gru() -> Built:
    return Net(nn.GRU(6, 8, num_layers=2, dropout=0.2)), {"x": torch.randn(5, 2, 6)}


class Residual(nn.Module):
    """A block of a ResNet, with the in-place ReLU that such blocks have."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolve = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.convolve(x))
        y += x
        return self.act(y)


def convolutions() -> Built:
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), Residual(8), nn.MaxPool2d(2), nn.Dropout2d(0.2),
        Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    return Net(body), {"x": torch.randn(2, 3, 8, 8)}


def embedding() -> Built:
    body = nn.Sequential(nn.Embedding(20, 8, padding_idx=0), nn.Dropout(0.2), nn.Linear(8, 4))
    return Net(body), {"ids": torch.randint(0, 20, (2, 7))}


def attention() -> Built:
    def run(body: nn.Module, x: Tensor) -> Any:
        return body(x, x, x, need_weights=True, attn_mask=torch.zeros(5, 5))

    return Net(nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True), run), {
        "x": torch.randn(2, 5, 16)
    }


def functional() -> Built:
    """Ops without modules, in place and on views, with random numbers of all three kinds."""

    def run(body: nn.Module, x: Tensor) -> Any:
        y = body(x)
        y = F.dropout(y, 0.3, body.training)
        half = y[:, :4]
        half.mul_(2)
        y[:, 4:] = torch.rand_like(half)
        z = torch.cat([y, torch.randn(3, 2)], dim=1)
        return z.softmax(-1), torch.einsum("ij,kj->ik", z, z), z.unbind(0)

    return Net(nn.Linear(8, 8), run), {"x": torch.randn(3, 8)}


PLAIN: dict[str, Callable[[], Built]] = {
    build.__name__: build
    for build in (
        mlp, transformer, encoder, lstm, gru, convolutions, embedding, attention, functional,
    )
}  # fmt: skip

ALL = TRANSFORMERS | PLAIN


@functools.cache
def quiet() -> None:
    """Keep transformers from logging advice about missing kernels."""
    hf.logging.set_verbosity_error()


def build(name: str, seed: int = 0) -> Built:
    """A model by its name, the same weights and inputs each time."""
    quiet()
    torch.manual_seed(seed)
    return ALL[name]()
