"""Inputs and outputs of the ONNX graph of a model: names, dynamic axes, and example inputs of several sizes.

texts      input_ids (batch, length), attention_mask (batch, length), 1 for tokens and 0 for padding on the right
           -> logits (batch, labels); of an encoder last_hidden_state (batch, length, width), and with a pooling
              sentence_embedding (batch, vector), with a masked-language head logits (batch, length, vocabulary)
pictures   pixel_values (batch, channels, height, width), of the size of training
           -> logits (batch, labels); without a head last_hidden_state and pooler_output (batch, width)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from regard.errors import RefusedError
from regard.masks import padding
from regard.models.base import Encoder
from regard.models.image_encoder import ImageEncoder
from regard.models.model import Model
from regard.models.text_classifier import TextClassifier

_EXAMPLE_LENGTHS = (5, 1, 2, 17, 67)
"""Lengths of the texts that the graph is checked with: the first is traced."""


class OnnxGraph(nn.Module, ABC):
    """A model as a function of tensors by position, with names for its inputs and outputs."""

    input_names: ClassVar[tuple[str, ...]]
    """The names of the inputs, in the order of ``forward``."""

    dynamic_axes: ClassVar[tuple[Mapping[int, str], ...]]
    """For each input the axes of free length, with their names."""

    output_names: tuple[str, ...]
    """The names of the outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @abstractmethod
    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs, in the order of ``output_names``."""

    @abstractmethod
    def make_examples(self) -> list[tuple[Tensor, ...]]:
        """Make inputs of several sizes, to trace the model with the first and to compare results for all."""


@final
class TextGraph(OnnxGraph):
    """An encoder or a classifier of texts."""

    input_names = ("input_ids", "attention_mask")
    dynamic_axes = ({0: "batch", 1: "length"}, {0: "batch", 1: "length"})

    def __init__(self, model: Encoder) -> None:
        super().__init__(model)
        self.output_names = ("logits",) if isinstance(model, TextClassifier) else _encoder_outputs(model)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs of texts that are padded on the right."""
        ids, tokens = inputs
        model: Any = self.model
        lengths = tokens.sum(dim=1)
        mask = padding(lengths)
        output = model(ids, mask=mask)
        computed = {"last_hidden_state": output.hidden, "logits": getattr(output, "logits", None)}
        if "sentence_embedding" in self.output_names:
            own = model.pooling.is_own
            computed["sentence_embedding"] = (
                model.embed(ids, mask=mask) if own else model.pooling.pool(output.hidden, lengths)
            )
        return tuple(computed[name] for name in self.output_names)

    def make_examples(self) -> list[tuple[Tensor, ...]]:
        """Make texts of random ids, padded: three rows, then one or two."""
        model: Any = self.model
        generator = torch.Generator().manual_seed(7)
        limit = model.max_tokens or max(_EXAMPLE_LENGTHS)
        examples: list[tuple[Tensor, ...]] = []
        for number, length in enumerate(dict.fromkeys(min(tokens, limit) for tokens in _EXAMPLE_LENGTHS)):
            rows = 3 if number == 0 else 1 + number % 2
            lengths = torch.tensor([length, *([max(1, length // 2)] * (rows - 1))])
            tokens = torch.arange(length) < lengths[:, None]
            ids = torch.randint(_count_tokens(model), (rows, length), generator=generator)
            end_id = getattr(model.config, "end_id", None)
            if end_id is not None:
                ids[torch.arange(rows), lengths - 1] = end_id  # which it reads the vector of
            examples.append((ids.where(tokens, model.pad_id), tokens.long()))
        return examples


@final
class PictureGraph(OnnxGraph):
    """An encoder or a classifier of pictures of one size."""

    input_names = ("pixel_values",)
    dynamic_axes = ({0: "batch"},)

    def __init__(self, model: ImageEncoder) -> None:
        super().__init__(model)
        self.output_names = ("logits",) if model.labels else ("last_hidden_state", "pooler_output")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs of pictures."""
        output: Any = self.model(inputs[0])
        computed = {"last_hidden_state": output.hidden, "pooler_output": output.pooled, "logits": output.logits}
        return tuple(computed[name] for name in self.output_names)

    def make_examples(self) -> list[tuple[Tensor, ...]]:
        """Make pictures of random pixels: two, one and three."""
        model: Any = self.model
        generator = torch.Generator().manual_seed(7)
        shape = model.channels, *model.picture_size
        return [(torch.randn(rows, *shape, generator=generator),) for rows in (2, 1, 3)]


def make_graph(model: Model) -> OnnxGraph:
    """Make the graph of a model. Raises RefusedError for a model that is neither encoder nor classifier."""
    if model.attends_through_latents:
        model = ImageEncoder.part_of(model) or model
    if isinstance(model, ImageEncoder):
        return PictureGraph(model)
    if isinstance(model, Encoder):
        return TextGraph(model)
    raise RefusedError(
        f"a {type(model).__name__} is not exported to ONNX",
        expected="an encoder or a classifier of texts or pictures: one call computes all that it returns",
        got=f"a {type(model).__name__}",
        do="export one part of it that is such a model, if it has one; or use another form (`form=...`)",
    )


def _count_tokens(model: nn.Module) -> int:
    """The number of rows of a model's embedding of tokens, its first."""
    return next(module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding))


def _encoder_outputs(model: Encoder) -> tuple[str, ...]:
    """The outputs of an encoder: hidden states, and what it has beside them."""
    names = ["last_hidden_state"]
    if model.pooling is not None:
        model.pooling.check()
        names.append("sentence_embedding")
    if getattr(model, "head", None) is not None:
        names.append("logits")
    return tuple(names)
