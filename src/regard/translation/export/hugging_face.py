"""A Transformer in the layout of a ``transformers`` model: config.json, generation_config.json, model.safetensors.

    Marian    norms after the sublayers, as in 2017
    Pegasus   norms before them, and one more at the end of each stack

Both have sinusoidal positions with the sines in the first half of the width and the cosines in the second:

    theirs: (sin a_0, sin a_1, .., cos a_0, cos a_1, ..)        ours: (sin a_0, cos a_0, sin a_1, cos a_1, ..)

A Transformer is invariant to a permutation of the width: norms do not depend on the order, and heads split a projection
of it. So all weights that read or write the width are permuted to their order, and the model's output is the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models.transformer import Transformer, TransformerConfig
from regard.models.weight_names import Row, WeightNames
from regard.search.base import banned_token_ids
from regard.text.subwords import Subwords
from regard.translation.export.check_exportable import check_mechanism, check_one_of

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "silu": "silu",
    "relu_squared": "relu2",
}
_EPSILON = 1e-5
"""The epsilon of layer norm in both families; their configs have no field for it."""


@final
@dataclass(frozen=True)
class Family:
    """A model of ``transformers``: its names, the place of its norms, the ways of sharing embeddings it supports."""

    name: str
    architecture: str
    norm: str
    shared: tuple[str, ...]


MARIAN = Family("marian", "MarianMTModel", "post", ("all", "target", "none"))
PEGASUS = Family("pegasus", "PegasusForConditionalGeneration", "pre", ("all",))

_ATTENTION = {
    "q_proj": "query_projection",
    "k_proj": "key_projection",
    "v_proj": "value_projection",
    "out_proj": "output_projection",
}
_BLOCK = {
    **{f"self_attn.{theirs}": f"attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "self_attn_layer_norm": "attention_residual.norm",
    "fc1": "feed_forward.up",
    "fc2": "feed_forward.down",
    "final_layer_norm": "feed_forward_residual.norm",
}
_CROSS = {
    **{f"encoder_attn.{theirs}": f"cross_attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "encoder_attn_layer_norm": "cross_attention_residual.norm",
}
_SIDES = {"encoder": _BLOCK, "decoder": _BLOCK | _CROSS}
_WEIGHT_NAMES = WeightNames(
    (
        *(
            Row(f"model.{side}.layers.{{n}}.{theirs}", f"{side}.{{n}}.{ours}")
            for side, names in _SIDES.items()
            for theirs, ours in names.items()
        ),
        Row("model.encoder.layer_norm", "encoder_norm"),
        Row("model.decoder.layer_norm", "decoder_norm"),
        Row("model.encoder.embed_tokens", "source_words"),
        Row("model.decoder.embed_tokens", "target_words"),
        Row("lm_head", "output"),
    )
)
_WIDTH_WRITERS = ("output_projection.", "down.", "norm.")
"""Modules that write the width, the first dimension of their tensors. In all other matrices it is the second."""


def check_config(config: TransformerConfig, family: Family) -> None:
    """Raise RefusedError for config values that the family does not support."""
    other = PEGASUS if family is MARIAN else MARIAN
    check_one_of("norm", config.norm, (family.norm,), family.name, do=f"export it as {other.name!r} or 'ctranslate2'")
    check_mechanism(config, family.name)
    for field, value, valid in (
        ("position", config.position, ("sinusoidal",)),
        ("activation", config.activation, tuple(_ACTIVATIONS)),
        ("epsilon", config.epsilon, (_EPSILON,)),
        ("shared", config.shared, family.shared),
    ):
        check_one_of(field, value, valid, family.name, do="export it as 'ctranslate2', if that supports it")


def config_files(model: Transformer, family: Family, subwords: Subwords | None = None) -> dict[str, str]:
    """config.json and generation_config.json as texts by file name. ``subwords`` are the target's subwords."""
    config, ids = model.config, {"pad_token_id": model.pad_id, "eos_token_id": model.end_id}
    ids |= {"bos_token_id": model.target_start_id, "decoder_start_token_id": model.target_start_id}
    sizes = {
        f"{side}_{name}": number
        for side, layers in (("encoder", config.layers), ("decoder", config.decoder_layers or config.layers))
        for name, number in (("layers", layers), ("attention_heads", config.heads), ("ffn_dim", config.inner))
    }
    fields = {
        "model_type": family.name,
        "architectures": [family.architecture],
        "vocab_size": model.vocab_sizes[0],
        "d_model": config.width,
        **sizes,
        "activation_function": _ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.inner_dropout,
        "max_position_embeddings": config.max_length,
        "scale_embedding": True,
        "is_encoder_decoder": True,
        "tie_word_embeddings": config.shared != "none",
        "forced_eos_token_id": None,
        **ids,
        "dtype": str(model.output.weight.dtype).removeprefix("torch."),
    }
    if family is MARIAN:
        fields |= {
            "decoder_vocab_size": model.vocab_sizes[1],
            "share_encoder_decoder_embeddings": config.shared == "all",
        }
    writing = {**ids, "max_length": config.max_length, "suppress_tokens": banned_token_ids(model, subwords).tolist()}
    return {"config.json": _to_json(fields), "generation_config.json": _to_json(writing)}


def tensors(model: Transformer) -> dict[str, Tensor]:
    """The weights in the names and width order of ``transformers``; a shared matrix is written once."""
    order = _width_order(model.config.width)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in model.tied_weights}
    named = _WEIGHT_NAMES.to_file({name: _reorder_width(name, tensor, order) for name, tensor in state.items()})
    if model.config.shared == "all":
        named["model.shared.weight"] = named.pop("model.encoder.embed_tokens.weight")
    if model.config.norm == "pre":  # Marian computes the position table itself, Pegasus reads it
        table = _position_table(model)
        named |= {f"model.{side}.embed_positions.weight": table.clone() for side in ("encoder", "decoder")}
    named["final_logits_bias"] = torch.zeros(1, model.vocab_sizes[1], dtype=model.output.weight.dtype)
    return named


def _position_table(model: Transformer) -> Float[Tensor, "length width"]:
    assert model.positions is not None
    return model.positions(model.config.max_length)[:, _width_order(model.config.width)]


def _width_order(width: int) -> Int[Tensor, " width"]:
    """The permutation from our order of the width to theirs: all sines, then all cosines."""
    return torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])


def _reorder_width(name: str, tensor: Tensor, order: Int[Tensor, " width"]) -> Tensor:
    if any(module in name for module in _WIDTH_WRITERS):
        return tensor[order.to(tensor.device)]
    return tensor if tensor.dim() == 1 else tensor[:, order.to(tensor.device)]


def _to_json(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, indent=2) + "\n"
