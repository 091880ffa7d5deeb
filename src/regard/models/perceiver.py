"""Perceiver IO: a model whose cost grows linearly with any input and any output.

    z_0 = latents
    z   = Cross(z_0, input)                       a block of cross-attention from latents to all tokens of the input
    z   = Self_L(.. Self_1(z))                    blocks of self-attention, ``repeats`` times with the same weights
    out = Cross(queries, z)                       a block of cross-attention from output queries to latents
    Cross(x, y) = a + FFN(norm(a)),   a = [x +] MultiHead(norm(x), norm(y))        Self(x) = Cross(x, x)

Jaegle et al. 2021, "Perceiver: general perception with iterative attention", section 3 and figure 1; Jaegle et al.
2021, "Perceiver IO: a general architecture for structured inputs and outputs", section 3 and figure 2. With M tokens of
input, N latents, L blocks and O outputs a pass takes O(MN + LN^2 + ON) operations, and no matrix of M x M or O x O.

The inputs and the outputs are parts of the config: ``perceiver_inputs``, ``perceiver_outputs``.
inputs -> hidden (batch, latents, width), and the logits of the output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.arguments import explain_arguments
from regard.devices import to_float64
from regard.errors import RefusedError, check_flag
from regard.fields import repr_of_shapes
from regard.layers import NoResidual, PreNorm
from regard.masks import Mask
from regard.media.processor_file import PROCESSOR_FILE
from regard.models.config_file import ConfigFile
from regard.models.kinds import IMAGE_ENCODER, PERCEIVER, ModelKind
from regard.models.model import Model, processor_text
from regard.models.model_folder import ModelFolder
from regard.models.perceiver_blocks import BlockOptions, make_cross_block, make_self_block
from regard.models.perceiver_config import MODEL_TYPE, OWN_MODEL_TYPE, PerceiverConfig
from regard.models.perceiver_inputs import (
    AudioInput,
    ConvolutionInput,
    FlowInput,
    InputTokens,
    JoinedInput,
    LabelInput,
    PerceiverInput,
    PixelInput,
    TextInput,
    TrainedPixelInput,
    VideoInput,
)
from regard.models.perceiver_outputs import (
    AudioOutput,
    ClassOutput,
    Decoded,
    FlowOutput,
    JoinedOutput,
    LabelOutput,
    PositionOutput,
    TextOutput,
    VideoOutput,
)
from regard.models.perceiver_weights import stored_counts, weight_names_of
from regard.models.weight_names import WeightNames
from regard.text.byte_tokenizer import VOCABULARY, byte_tokenizer
from regard.text.tokenizer import Tokenizer
from regard.vision import ImageProcessor


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class PerceiverOutput:
    """The output of a Perceiver.

    hidden  (batch, latents, width)    the latents after the last block
    logits  what the output returns: a tensor, or a mapping of them by the names of its parts; None without an output
    pooled  (batch, width)             the vector that the last layer of a ``ClassOutput`` reads; None for others
    layers  the latents after cross-attention, and after each block of each repeat, the last one equal to ``hidden``;
            None without ``keep_layers``
    """

    __repr__ = repr_of_shapes

    hidden: Float[Tensor, "batch latents width"]
    logits: Tensor | dict[str, Tensor] | None = None
    pooled: Float[Tensor, "batch width"] | None = None
    layers: tuple[Float[Tensor, "batch latents width"], ...] | None = None


@final
@explain_arguments
class Perceiver(Model):
    """A Perceiver IO with random initial weights; ``regard.load`` loads a trained one.

    ``tokenizer`` reads bytes for a ``TextInput`` with its vocabulary, else None. ``processor`` makes pixels from
    pictures; None if the model folder does not say how. ``metadata`` describes the training, empty for a new model.
    """

    tokenizer: Tokenizer | None = None
    processor: ImageProcessor | None = None
    config: PerceiverConfig
    config_class = PerceiverConfig
    model_types = (MODEL_TYPE, OWN_MODEL_TYPE)
    kind = PERCEIVER
    attends_through_latents = True

    def __init__(self, config: PerceiverConfig) -> None:
        super().__init__(config)
        options = BlockOptions(
            config.width, config.activation, config.dropout, config.cross_width, float(config.deviation)
        )
        self.input = config.input.build(float(config.deviation))
        self.latents = _Latents(config.latents, config.width)
        self.cross = make_cross_block(
            options,
            width=config.width,
            memory_width=self.input.width,
            heads=config.cross_heads,
            residual=PreNorm if config.query_residual else NoResidual,
            query_key_width=config.query_key_width,
            value_width=config.value_width,
            widening=config.cross_widening,
        )
        self.layers = nn.ModuleList(
            make_self_block(
                options,
                heads=config.heads,
                query_key_width=config.query_key_width,
                value_width=config.value_width,
                widening=config.widening,
            )
            for _ in range(config.layers)
        )
        self.output = None if config.output is None else config.output.build(options, self.input)
        self._init_weights()
        if isinstance(config.input, TextInput) and config.input.vocabulary == VOCABULARY:
            self.tokenizer = byte_tokenizer(limit=config.input.max_length if config.input.max_length > 2 else None)

    @classmethod
    def classifier(
        cls,
        inputs: PerceiverInput,
        labels: tuple[str, ...],
        *,
        latents: int = 64,
        width: int = 128,
        layers: int = 4,
        repeats: int = 1,
        heads: int = 4,
        cross_heads: int = 1,
        dropout: float = 0.0,
    ) -> Perceiver:
        """Make a classifier of what ``inputs`` reads: pictures, bytes, sound or several of them.

        Args:
            inputs: for example ``PixelInput(size=(28, 28), channels=1, bands=16)``,
                ``TextInput(max_length=512, width=64)`` or ``AudioInput(samples=8000, patch=16, bands=64)``.
            labels: the names of the labels, in the order of the logits.
            latents: number of latents.
            width: size of a latent.
            layers: number of self-attention blocks.
            repeats: how often they are applied.
            heads: number of heads of self-attention.
            cross_heads: number of heads that read the input, a divisor of the width of its tokens.
            dropout: dropout of attention weights.

        Raises OptionError for values out of range.
        """
        return cls(
            PerceiverConfig(
                inputs,
                ClassOutput(labels),
                latents=latents,
                width=width,
                layers=layers,
                repeats=repeats,
                heads=heads,
                cross_heads=cross_heads,
                dropout=dropout,
            )
        )

    def forward(self, inputs: Any, *, mask: Any = None, at: Any = None, keep_layers: bool = False) -> PerceiverOutput:
        """Read an input, and answer the output queries.

        Args:
            inputs: raw data, as the config's input describes: pixels (batch, channels, height, width), ids (batch,
                length), samples (batch, samples) ..; for a ``JoinedInput`` a mapping by the names of its parts.
            mask: which tokens of the input are visible: ``masks.padding(lengths)`` for padded texts; for a
                ``JoinedInput`` a mapping with the masks of some parts.
            at: which outputs are computed, as the config's output describes; None is all.
            keep_layers: return the latents after each block too, in ``.layers``.

        Raises ShapeError, DtypeError or OptionError for data or outputs that do not fit, RefusedError for a mask that
        hides a token from some latents only, or from a convolution.
        """
        check_flag("keep_layers", keep_layers)
        if at is not None and self.output is None:
            raise RefusedError(
                "this Perceiver has no output, so there is nothing to choose",
                expected="at=None, or a config with an output",
                got="at=...",
                do="leave at out",
            )
        tokens: InputTokens = self.input(inputs, mask=mask)
        visible = tokens.visible
        latent_mask: Mask | None = None if visible is None else masks.keep(visible[:, None, None, :])
        hidden = self.latents.latents.expand(tokens.tokens.shape[0], -1, -1)
        hidden = self.cross(hidden, tokens.tokens, mask=latent_mask)
        kept = [hidden]
        for _ in range(self.config.repeats):
            for layer in self.layers:
                hidden = layer(hidden)
                kept.append(hidden)
        layers = tuple(kept) if keep_layers else None
        if self.output is None:
            return PerceiverOutput(hidden, layers=layers)
        decoded: Decoded = self.output(hidden, self.input, tokens, at)
        return PerceiverOutput(hidden, decoded.logits, decoded.pooled, layers)

    def probabilities(self, logits: Float[Tensor, "batch labels"]) -> Float[Tensor, "batch labels"]:
        """Probabilities of the labels, in float64, which sum to 1."""
        return to_float64(logits).softmax(dim=-1)

    def _init_weights(self) -> None:
        """Draw linear layers by the number of their inputs, whatever the widths: LeCun et al. 1998, section 4.6.

        Latents and embeddings have the deviation of the config, and so have trained positions and queries.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=float(self.config.deviation))
        nn.init.normal_(self.latents.latents, std=float(self.config.deviation))

    @property
    def parts(self) -> tuple[Model, ...]:
        """The model with the interface of image or text encoders, if it classifies pictures or reads texts."""
        from regard.models.perceiver_image_encoder import PerceiverImageEncoder, classifies_pictures
        from regard.models.perceiver_text_encoder import PerceiverTextEncoder

        if classifies_pictures(self.config):
            return (PerceiverImageEncoder(self).train(self.training),)
        if isinstance(self.config.input, TextInput) and isinstance(self.config.output, TextOutput | PositionOutput):
            return (PerceiverTextEncoder.around(self),)
        return ()

    @classmethod
    def kind_of(cls, folder: ModelFolder) -> ModelKind:
        """The kind of model of a folder: an image encoder if it classifies pictures."""
        from regard.models.perceiver_image_encoder import classifies_pictures

        return IMAGE_ENCODER if classifies_pictures(cls.read_config(folder.config)) else cls.kind

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the logits; empty for a model without labels."""
        return self.config.labels

    @property
    def width(self) -> int:
        """The number of components of a latent."""
        return self.config.width

    @property
    def pad_id(self) -> int | None:
        """The id of the padding token; None for inputs that are not text."""
        return self.config.input.pad_id if isinstance(self.config.input, TextInput) else None

    @property
    def max_tokens(self) -> int | None:
        """The maximum length of a text, in tokens; None for inputs that are not text."""
        return self.config.input.max_length if isinstance(self.config.input, TextInput) else None

    @classmethod
    def make_weight_names(cls, config: PerceiverConfig) -> WeightNames:
        """Make the table of the names of weights in a file."""
        return weight_names_of(config)

    def stored_weights(self) -> dict[str, Tensor]:
        """The weights under their names in a file, with the counts of batches that ``transformers`` expects."""
        tensors = super().stored_weights()
        return tensors | stored_counts(tensors)

    def config_fields(self) -> dict[str, Any]:
        """The fields of config.json: for ``transformers`` if it has a class with this input and output."""
        return self.config.to_fields() if self.config.architecture is None else self.config.to_hugging_face()

    @classmethod
    def read_config(cls, config: ConfigFile) -> PerceiverConfig:
        """Read the hyperparameters from config.json. Raises CheckpointError for missing or unusable fields."""
        own = config.model_type == OWN_MODEL_TYPE
        return PerceiverConfig.from_fields(config) if own else PerceiverConfig.from_hugging_face(config)

    @classmethod
    def build(cls, folder: ModelFolder, config: PerceiverConfig) -> Perceiver:
        """Build the model. Raises CheckpointError for hyperparameters that do not go together."""
        return folder.config.build(cls, config=config)

    def read_files(self, folder: ModelFolder) -> None:
        """Read how pixels are made from pictures, or note why that was not read.

        The processor of the published Perceivers cuts out the centre and then resizes it, an order that
        ``ImageProcessor`` has not: reading it would make other pixels.
        """
        named = folder.read_json(PROCESSOR_FILE) or {}
        kinds = [str(named.get(field, "")) for field in ("image_processor_type", "feature_extractor_type")]
        if any(kind.startswith("Perceiver") for kind in kinds):
            skipped = "skipped, since a PerceiverImageProcessor crops pictures before it resizes them"
            folder.note(f"{folder.path / PROCESSOR_FILE}: {skipped}")
            return
        self.processor = ImageProcessor.from_folder(folder.path)

    def folder_texts(self) -> dict[str, str]:
        """The files of the processor and, if ``transformers`` has the model, of the tokenizer of bytes."""
        files = processor_text(self.processor)
        if self.config.architecture is not None and self.tokenizer is not None:
            named = {"tokenizer_class": "PerceiverTokenizer", "model_max_length": self.max_tokens}
            files["tokenizer_config.json"] = json.dumps(named, indent=2) + "\n"
        return files


@final
class _Latents(nn.Module):
    """The trained latents (latents, width); the parameter has its name in files of ``transformers``."""

    def __init__(self, latents: int, width: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.empty(latents, width))


_PICTURES: Mapping[str, Any] = MappingProxyType(
    {"latents": 512, "width": 1024, "layers": 6, "repeats": 8, "heads": 8, "cross_heads": 1}
)
"""The sizes of the published classifiers of pictures: "Perceiver IO", appendix H and table 5."""


@explain_arguments
def perceiver_language() -> PerceiverConfig:
    """The published masked language model of bytes, 201 million weights: "Perceiver IO", section 4.1."""
    return PerceiverConfig(TextInput(), TextOutput(), query_key_width=256, value_width=1280)


@explain_arguments
def perceiver_pictures_fourier(labels: tuple[str, ...]) -> PerceiverConfig:
    """The published classifier of pixels with Fourier features, for pictures of 224x224."""
    return PerceiverConfig(PixelInput(), ClassOutput(labels), **_PICTURES)


@explain_arguments
def perceiver_pictures_trained(labels: tuple[str, ...]) -> PerceiverConfig:
    """The published classifier of pixels with trained positions, for pictures of 224x224."""
    return PerceiverConfig(TrainedPixelInput(), ClassOutput(labels), **_PICTURES)


@explain_arguments
def perceiver_pictures_convolution(labels: tuple[str, ...]) -> PerceiverConfig:
    """The published classifier with a convolution, for pictures of 224x224."""
    return PerceiverConfig(ConvolutionInput(), ClassOutput(labels), **_PICTURES)


@explain_arguments
def perceiver_flow() -> PerceiverConfig:
    """The published model of optical flow, for pictures of 368x496: "Perceiver IO", section 4.2 and appendix H."""
    return PerceiverConfig(FlowInput(), FlowOutput(), latents=2048, width=512, layers=24, heads=16, cross_heads=1)


@explain_arguments
def perceiver_multimodal(labels: tuple[str, ...]) -> PerceiverConfig:
    """The published autoencoder of videos with sound and a label: "Perceiver IO", section 4.3 and appendix G."""
    resolution = (16, 56, 56)
    return PerceiverConfig(
        JoinedInput(
            {"audio": AudioInput(), "image": VideoInput(resolution), "label": LabelInput(len(labels))},
            hidden=("label",),
        ),
        JoinedOutput(
            {"audio": AudioOutput(), "image": VideoOutput(resolution=resolution), "label": LabelOutput(labels)}
        ),
        latents=784,
        width=512,
        layers=8,
        heads=8,
        cross_heads=1,
    )
