"""Export of a Transformer as a CTranslate2 model: model.bin, config.json, vocabularies.

CTranslate2 fuses the query, key and value projections of self-attention into one matrix, and the key and value
projections of cross-attention into another. Absolute positions are a table. Tokens that regard's searches never write
get an output bias of -infinity, so that CTranslate2 never writes them either. Alignments (``return_attention``) equal
``Transformer.cross_attention_weights``.

CTranslate2's ``specs`` define the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import MissingPackageError
from regard.layers import FeedForward, MultiHeadAttention
from regard.models.transformer import Transformer, TransformerConfig
from regard.search.base import banned_token_ids
from regard.text.subwords import Subwords
from regard.translation.export.check_exportable import check_mechanism, check_one_of

_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}
_GATED = {"glu": "Sigmoid", "reglu": "RELU", "geglu": "GELU", "geglu_tanh": "GELUTanh", "swiglu": "SWISH"}
_POSITIONS = ("sinusoidal", "learned", "rotary", "none")
_DTYPES = ("float32", "float16", "bfloat16")


def write(model: Transformer, subwords: Subwords, tokens: tuple[Sequence[str], Sequence[str]], folder: Path) -> None:
    """Write the files of ``model`` into an existing folder.

    ``tokens`` are the tokens of source and target by id, ``subwords`` the subwords of the target. Raises RefusedError
    for config values that CTranslate2 does not support, MissingPackageError without the package.
    """
    config = model.config
    check_mechanism(config, "CTranslate2")
    check_one_of("position", config.position, _POSITIONS, "CTranslate2")
    check_one_of("activation", config.activation, (*_ACTIVATIONS, *_GATED), "CTranslate2")
    dtype = str(model.output.weight.dtype).removeprefix("torch.")
    check_one_of("dtype", dtype, _DTYPES, "CTranslate2", do="model.float()")
    specification = _make_specification(config)
    _fill_specification(specification, model, subwords)
    specification.register_source_vocabulary(list(tokens[0]))
    specification.register_target_vocabulary(list(tokens[1]))
    settings, written = specification.config, tokens[1]
    special = subwords.unknown_id, model.target_start_id, model.end_id
    settings.unk_token, settings.bos_token, settings.eos_token = (written[number] for number in special)
    settings.decoder_start_token, settings.add_source_eos = written[model.target_start_id], True
    settings.layer_norm_epsilon = config.epsilon
    specification.validate()
    specification.optimize()
    specification.save(str(folder))


def _make_specification(config: TransformerConfig) -> Any:
    """Build CTranslate2's specification of the model: its layers, without weights."""
    try:
        from ctranslate2.specs import common_spec, transformer_spec
    except ImportError:
        raise MissingPackageError(
            "export to CTranslate2 needs a package",
            expected="ctranslate2",
            got="it is not installed",
            do="pip install 'regard[export]'",
        ) from None
    layers = config.decoder_layers or config.layers
    common = {
        "pre_norm": config.norm == "pre",
        "activation": common_spec.Activation[(_ACTIVATIONS | _GATED)[config.activation]],
        "ffn_glu": config.activation in _GATED,
        "rotary_dim": 0 if config.position == "rotary" else None,  # 0 rotates the whole head
        "rotary_interleave": False,
    }
    encoder = transformer_spec.TransformerEncoderSpec(config.layers, config.heads, **common)
    decoder = transformer_spec.TransformerDecoderSpec(
        layers, config.heads, alignment_layer=max(layers - 2, 0), alignment_heads=config.heads, **common
    )
    return transformer_spec.TransformerSpec(encoder, decoder)


def _fill_specification(specification: Any, model: Transformer, subwords: Subwords) -> None:
    """Copy the model's weights into the specification."""
    encoder, decoder = specification.encoder, specification.decoder
    encoder.embeddings[0].weight = _to_cpu(model.source_words.weight)
    decoder.embeddings.weight = _to_cpu(model.target_words.weight)
    decoder.projection.weight, decoder.projection.bias = _to_cpu(model.output.weight), _output_bias(model, subwords)
    for stack, blocks, last in (
        (encoder, model.encoder, model.encoder_norm),
        (decoder, model.decoder, model.decoder_norm),
    ):
        if model.config.position != "rotary":
            stack.position_encodings.encodings = _position_table(model)
        if isinstance(last, nn.LayerNorm):
            _fill_norm(stack.layer_norm, last)
        for theirs, ours in zip(stack.layer, blocks, strict=True):
            _fill_block(theirs, ours)


def _fill_block(theirs: Any, ours: Any) -> None:
    """Copy the weights of an encoder or decoder block."""
    _fill_attention(theirs.self_attention, ours.attention, (3, 1))
    _fill_norm(theirs.self_attention.layer_norm, ours.attention_residual.norm)
    if hasattr(theirs, "attention"):
        _fill_attention(theirs.attention, ours.cross_attention, (1, 2, 1))
        _fill_norm(theirs.attention.layer_norm, ours.cross_attention_residual.norm)
    _fill_feed_forward(theirs.ffn, ours.feed_forward)
    _fill_norm(theirs.ffn.layer_norm, ours.feed_forward_residual.norm)


def _fill_attention(theirs: Any, ours: MultiHeadAttention, joined: tuple[int, ...]) -> None:
    """Copy the query, key, value and output projections, fused in groups of the sizes ``joined``."""
    assert ours.key_projection is not None, "only dot_product is exported"
    parts = [ours.query_projection, ours.key_projection, ours.value_projection, ours.output_projection]
    for linear, count in zip(theirs.linear, joined, strict=True):
        some, parts = parts[:count], parts[count:]
        linear.weight = torch.cat([_to_cpu(part.weight) for part in some])
        linear.bias = torch.cat([_to_cpu(part.bias) for part in some])


def _fill_feed_forward(theirs: Any, ours: FeedForward) -> None:
    """Copy the linear layers; in a gated feed-forward, their first is the gate, and ``up`` has no activation."""
    pairs = [(theirs.linear_1, ours.down)]
    if ours.gate is None:
        pairs.append((theirs.linear_0, ours.up))
    else:
        pairs += [(theirs.linear_0, ours.gate), (theirs.linear_0_noact, ours.up)]
    for linear, part in pairs:
        linear.weight, linear.bias = _to_cpu(part.weight), _to_cpu(part.bias)


def _fill_norm(theirs: Any, ours: nn.LayerNorm) -> None:
    theirs.gamma, theirs.beta = _to_cpu(ours.weight), _to_cpu(ours.bias)


def _position_table(model: Transformer) -> Float[Tensor, "length width"]:
    """The position table; zeros if there are no absolute positions, else CTranslate2 would add its own sinusoids."""
    config = model.config
    if model.positions is None:
        return torch.zeros(config.max_length, config.width, dtype=model.output.weight.dtype)
    return _to_cpu(model.positions(config.max_length))


def _output_bias(model: Transformer, subwords: Subwords) -> Float[Tensor, " vocabulary"]:
    bias = torch.zeros(model.vocab_sizes[1], dtype=model.output.weight.dtype)
    bias[banned_token_ids(model, subwords).cpu()] = -torch.inf
    return bias


def _to_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()
