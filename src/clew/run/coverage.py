"""Coverage gaps found by reading a run: fused kernels that replace whole modules."""

from __future__ import annotations

from clew.address import matches_op
from clew.events.model import Gap

# Kernels that replace whole modules, whose submodules then never run.
_FUSED = (
    "aten._transformer_encoder_layer_fwd",
    "aten._native_multi_head_attention",
    "aten._transformer_decoder_only_layer_fwd",
)


def opaque_kernels(ops: list[str]) -> list[Gap]:
    """Return a gap for each fused kernel that hid modules."""
    return [
        Gap(
            "submodules",
            f"op:{name}",
            "a fused kernel ran in their place",
            "torch.backends.mha.set_fastpath_enabled(False) runs them one by one",
        )
        for name in dict.fromkeys(ops)
        if any(matches_op(fused, name) for fused in _FUSED)
    ]
