"""The tree of real models fits a screen, with the right shapes."""

from __future__ import annotations

import re

import pytest
import torch
import transformers as hf

import clew
from tests import models


def lines_of(t: clew.Trace) -> list[str]:
    return str(t).splitlines()


def line(lines: list[str], pattern: str) -> str:
    found = [line for line in lines if re.search(pattern, line)]
    assert len(found) == 1, (pattern, found)
    return found[0]


def test_a_training_step_of_a_twelve_layer_gpt2_prints_on_one_screen() -> None:
    model, inputs = models.gpt2(layers=12)
    optimizer = torch.optim.AdamW(model.parameters())
    with clew.trace(model) as t:
        model(**inputs).loss.backward()
        optimizer.step()
    lines = lines_of(t)
    assert len(lines) <= 60
    assert "f32[2,6,16], +1 → f32[2,6,16]" in line(lines, r"h\.0 … h\.11 ×12  GPT2Block")
    assert "f32[2,6,16] → f32[2,6,48]" in line(lines, r"c_attn  Conv1D")
    assert "f32[2,6,16] → f32[2,6,40]" in line(lines, r"lm_head  Linear")
    line(lines, r"^backward ")
    line(lines, r"─ transformer\.h\.11 … h\.0 ×12 ")
    line(lines, r"^optimizer ")


def test_a_thirty_two_layer_llama_prints_on_one_screen() -> None:
    config = hf.LlamaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=32, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=24, max_position_embeddings=32,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config)
    ids = torch.randint(3, 40, (2, 6))
    with clew.trace(model) as t:
        model(input_ids=ids, labels=ids).loss.backward()
    lines = lines_of(t)
    assert len(lines) <= 60
    assert "→ f32[2,6,16]" in line(lines, r"layers\.0 … layers\.31 ×32  LlamaDecoderLayer")
    assert "f32[2,6,16] → f32[2,6,8]" in line(lines, r"k_proj  Linear")


def test_generation_prints_on_one_screen() -> None:
    model, _ = models.gpt2(layers=4)
    model.eval()
    with torch.no_grad(), clew.trace(model) as t:
        model.generate(
            torch.tensor([[3, 4, 5]]),
            min_new_tokens=12,
            max_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
        )
    lines = lines_of(t)
    assert len(lines) <= 60
    assert any("(sizes vary)" in each for each in lines)


@pytest.mark.parametrize("build", [models.gpt2, models.bert, models.llama])
def test_the_code_of_a_model_is_folded_unless_in_full(build: object) -> None:
    model, inputs = build()  # type: ignore[operator]
    with clew.trace(model) as t:
        model(**inputs)
    short, full = str(t.code()), str(t.code(succinct=False))
    assert "more like this" in short
    assert len(full.splitlines()) > len(short.splitlines())
    for event in t.modules:
        assert f"[{event.module or event.name}" in full
