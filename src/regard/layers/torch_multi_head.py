"""``nn.MultiheadAttention`` of torch, as options and weights of ``MultiHeadAttention``.

Queries, keys and values are projected by one fused matrix there, ``in_proj_weight`` (3 width, width), unless their
sizes differ; here by three matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from regard.errors import OptionError, RefusedError, ShapeError, short_repr

_RENAMED = {
    "q_proj_weight": "query_projection.weight",
    "k_proj_weight": "key_projection.weight",
    "v_proj_weight": "value_projection.weight",
    "out_proj.weight": "output_projection.weight",
    "out_proj.bias": "output_projection.bias",
}


def read_options(module: object, batch_first: bool | None) -> dict[str, Any]:
    """Return the arguments of ``MultiHeadAttention`` for the same layer (``MultiHeadAttention.from_torch``).

    Raises OptionError for another object, and RefusedError for settings that are not supported.
    """
    if not isinstance(module, nn.MultiheadAttention):
        raise OptionError(
            "from_torch takes a layer of torch",
            expected="an nn.MultiheadAttention",
            got=type(module).__name__,
            do="pass the attention layer itself, not the model around it",
        )
    if module.bias_k is not None or module.add_zero_attn:
        raise RefusedError(
            "nn.MultiheadAttention with add_bias_kv or add_zero_attn is not supported",
            expected="a module without them",
            got=f"add_bias_kv={module.bias_k is not None}, add_zero_attn={module.add_zero_attn}",
            do="append the extra key and value to the tokens yourself",
        )
    if (module.batch_first if batch_first is None else batch_first) is not True:
        raise RefusedError(
            "this nn.MultiheadAttention takes tokens (length, batch, width): batch_first=False, torch's default",
            expected="tokens (batch, length, width), the only order supported here",
            got=f"batch_first={module.batch_first if batch_first is None else short_repr(batch_first)}",
            do="call from_torch(module, batch_first=True), and pass tokens.transpose(0, 1) to the layer",
        )
    return {
        "width": module.embed_dim,
        "heads": module.num_heads,
        "dropout": module.dropout,
        "bias": module.in_proj_bias is not None,
        "key_width": module.kdim,
        "value_width": module.vdim,
    }


def rename_weights(state: dict[str, Any], prefix: str, rows: Mapping[str, int]) -> None:
    """Rename the weights of an ``nn.MultiheadAttention`` in a state dict, and split the fused ones.

    ``rows`` are the rows of the projections, by name and in order. Raises ShapeError if they do not add up.
    """
    for kind in ("weight", "bias"):
        fused = state.pop(f"{prefix}in_proj_{kind}", None)
        if fused is None:
            continue
        if fused.shape[0] != sum(rows.values()):
            raise ShapeError(
                f"{prefix}in_proj_{kind} does not split into {', '.join(rows)}",
                expected=f"{sum(rows.values())} rows = " + " + ".join(str(size) for size in rows.values()),
                got=f"shape {tuple(fused.shape)}",
                do="build the layer with the width and heads of the checkpoint",
            )
        for name, part in zip(rows, fused.split(list(rows.values())), strict=True):
            state[f"{prefix}{name}_projection.{kind}"] = part
    for old, new in _RENAMED.items():
        if prefix + old in state:
            state[prefix + new] = state.pop(prefix + old)
