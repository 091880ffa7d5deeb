"""The names of a Perceiver's weights in a file: as in ``transformers`` where it has the model, else its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from regard.models.perceiver_config import PerceiverConfig
from regard.models.perceiver_inputs import ConvolutionInput, FlowInput, JoinedInput, TextInput, TrainedPixelInput
from regard.models.perceiver_outputs import ClassOutput, FlowOutput, JoinedOutput, TextOutput
from regard.models.weight_names import Row, WeightNames, attention_rows

_COUNT = ".num_batches_tracked"
"""An integer of torch's batch norms that counts batches; it is no weight here."""
_OWN_NAMES = WeightNames((Row("{path}", "{path}"),))


def _cross_rows(stored: str, name: str) -> tuple[Row, ...]:
    return (*_self_rows(stored, name), Row(f"{stored}.attention.self.layernorm2", f"{name}.memory_norm"))


def _self_rows(stored: str, name: str) -> tuple[Row, ...]:
    return (
        Row(f"{stored}.attention.self.layernorm1", f"{name}.attention_residual.norm"),
        *attention_rows(f"{stored}.attention.self.{{side}}", f"{name}.attention"),
        Row(f"{stored}.attention.output.dense", f"{name}.attention.output_projection"),
        Row(f"{stored}.layernorm", f"{name}.feed_forward_residual.norm"),
        Row(f"{stored}.mlp.dense1", f"{name}.feed_forward.up"),
        Row(f"{stored}.mlp.dense2", f"{name}.feed_forward.down"),
    )


_LATENT_ROWS = (
    Row("embeddings", "latents"),
    *_cross_rows("encoder.cross_attention", "cross"),
    *_self_rows("encoder.self_attends.{n}", "layers.{n}"),
)
_INPUT_ROWS: Mapping[type, tuple[Row, ...]] = {
    TextInput: (
        Row("input_preprocessor.embeddings", "input.token_embedding"),
        Row("input_preprocessor.position_embeddings", "input.position_embedding"),
    ),
    TrainedPixelInput: (
        Row("input_preprocessor.convnet_1x1", "input.convolution"),
        Row("input_preprocessor.position_embeddings", "input.positions"),
        Row("input_preprocessor.positions_projection", "input.position_projection"),
    ),
    ConvolutionInput: (
        Row("input_preprocessor.convnet.conv", "input.convolution"),
        Row("input_preprocessor.convnet.batchnorm", "input.norm"),
    ),
    FlowInput: (Row("input_preprocessor.conv_after_patches", "input.projection"),),
    JoinedInput: (
        Row("input_preprocessor.padding", "input.padding"),
        Row("input_preprocessor.mask", "input.hidden_token"),
    ),
}
_OUTPUT_ROWS: Mapping[type, tuple[Row, ...]] = {
    ClassOutput: (
        Row("decoder.decoder.output_position_encodings", "output.queries"),
        *_cross_rows("decoder.decoder.decoding_cross_attention", "output.block"),
        Row("decoder.decoder.final_layer", "output.last"),
    ),
    TextOutput: (
        Row("decoder.output_position_encodings", "output.queries"),
        *_cross_rows("decoder.decoding_cross_attention", "output.block"),
        Row("embedding_decoder", "output.last"),
    ),
    FlowOutput: (
        *_cross_rows("decoder.decoder.decoding_cross_attention", "output.block"),
        Row("decoder.decoder.final_layer", "output.last"),
    ),
    JoinedOutput: (
        *_cross_rows("decoder.decoder.decoding_cross_attention", "output.block"),
        Row("decoder.decoder.final_layer", "output.last"),
        Row("decoder.padding", "output.padding"),
        Row("decoder.modalities.label.decoder.output_position_encodings", "output.parts.label.queries"),
        Row("output_postprocessor.modalities.{path}.classifier", "output.parts.{path}.last"),
    ),
}


def weight_names_of(config: PerceiverConfig) -> WeightNames:
    """The table of the weight names of a model in its file."""
    if config.architecture is None:
        return _OWN_NAMES
    return WeightNames(
        _LATENT_ROWS + _INPUT_ROWS.get(type(config.input), ()) + _OUTPUT_ROWS.get(type(config.output), ()),
        prefix="perceiver.",
        # The model without an output is written without the prefix.
        outer=() if config.output is None else ("embedding_decoder",),
        ignored_patterns=(r".*\.num_batches_tracked",),
    )


def stored_counts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The counts of batches that a file of ``transformers`` has beside the weights of batch norms."""
    ending = ".batchnorm.running_mean"
    return {
        name.removesuffix(".running_mean") + _COUNT: torch.zeros((), dtype=torch.long)
        for name in tensors
        if name.endswith(ending)
    }


def weight_names_inside(config: PerceiverConfig) -> WeightNames:
    """The table for a model that has the Perceiver as its part ``perceiver``."""
    table = weight_names_of(config)

    def inside(names: str | tuple[str, ...]) -> str | tuple[str, ...]:
        return f"perceiver.{names}" if isinstance(names, str) else tuple(f"perceiver.{name}" for name in names)

    return replace(table, rows=tuple(replace(row, names=inside(row.names)) for row in table.rows))
