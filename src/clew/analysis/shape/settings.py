"""Which setting of a module of torch.nn the size of a parameter is.

Input: a module's class, the name of its parameter and a dimension. Output: the name of the argument
of the class, such as `out_features`.
"""

from __future__ import annotations

_LINEAR = {("weight", 0): "out_features", ("weight", 1): "in_features", ("bias", 0): "out_features"}
_CONV = {("weight", 0): "out_channels", ("weight", 1): "in_channels / groups",
         ("bias", 0): "out_channels"}  # fmt: skip
_CONV_TRANSPOSE = {("weight", 0): "in_channels", ("weight", 1): "out_channels / groups",
                   ("bias", 0): "out_channels"}  # fmt: skip
_TABLE = {("weight", 0): "num_embeddings", ("weight", 1): "embedding_dim"}
_NORM = {(name, 0): "num_features" for name in ("weight", "bias", "running_mean", "running_var")}

_SETTINGS: dict[str, dict[tuple[str, int], str]] = {
    "Linear": _LINEAR,
    **{f"Conv{n}d": _CONV for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": _CONV_TRANSPOSE for n in (1, 2, 3)},
    "Embedding": _TABLE,
    "EmbeddingBag": _TABLE,
    **{f"BatchNorm{n}d": _NORM for n in (1, 2, 3)},
    "SyncBatchNorm": _NORM,
    "GroupNorm": {("weight", 0): "num_channels", ("bias", 0): "num_channels"},
    "MultiheadAttention": {("in_proj_weight", 0): "3 × embed_dim",
                           ("in_proj_weight", 1): "embed_dim"},
}  # fmt: skip
_RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}


def setting(cls: str, name: str, dim: int) -> str:
    """Return the argument of a class that a dimension of its parameter is, empty if not known.

    >>> setting("Linear", "weight", 0), setting("LSTM", "weight_hh_l0", 0), setting("Net", "w", 0)
    ('out_features', '4 × hidden_size', '')
    """
    gates = _RECURRENT.get(cls.removesuffix("Cell"))
    if gates and name.startswith(("weight_", "bias_")):
        if dim == 0:
            return "hidden_size" if gates == 1 else f"{gates} × hidden_size"
        return "hidden_size" if name.startswith("weight_hh") else "input_size" * name.endswith("l0")
    return _SETTINGS.get(cls, {}).get((name, dim), "")
