"""Conformer: blocks of attention and convolution over the frames of a sound, with an optional head.

    tokens = dropout(subsampling(features))         layers.ConvolutionSubsampling: a token for 4 frames
    hidden = block_n(.. block_1(tokens))            layers.ConformerBlock
    pooled = mean of the visible hidden states
    logits = W pooled + b                           head "classification"
    logits_t = W hidden_t + b                       head "ctc": the blank first, then the labels

Gulati et al. 2020, "Conformer: convolution-augmented Transformer for speech recognition", sections 2 and 3.2, table 1.
features (batch, frames, bands) -> hidden (batch, tokens, width). The batch norm of the convolution module counts
visible tokens alone, so nothing depends on padding; in training the sounds of a batch share its statistics, as in the
paper. Even kernels, such as the paper's 32, see one more token on one side; here kernels are odd.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, OptionError, check_count, check_flag, check_weights
from regard.fields import check_fields
from regard.layers import ConformerBlock, ConvolutionSubsampling, MultiHeadAttention
from regard.layers.convolution_subsampling import STRIDE
from regard.layers.dropout import Dropout
from regard.masks import Mask
from regard.models.audio_encoder import AudioEncoder, AudioEncoderOutput, check_features, find_visible_frames
from regard.models.hyperparameters import depth_field, model_field, probability_field, size_field
from regard.models.label_names import labels_field, read_labels
from regard.models.layer_mechanism import mechanism_field, mechanism_options_field, options_at_depth, share_projections
from regard.models.model_folder import ModelFolder
from regard.models.weight_names import Origin, WeightNames, same_names
from regard.positions import RelativeSinusoidal, Rotary

HEADS = ("classification", "ctc")
"""The units that a head computes logits of: a sound, or each token for connectionist temporal classification."""
POSITIONS = ("relative", "rotary", "none")
"""Positions of the attention layers: relative as in Transformer-XL and the paper, rotary, or none."""


@final
@explain_arguments
@dataclass(frozen=True)
class ConformerConfig:
    """The hyperparameters of a Conformer. Defaults are the small one of the paper.

    Raises OptionError for values out of range.
    """

    bands: int = size_field(80, "number of features of a frame")
    width: int = size_field(144, "size of hidden states")
    layers: int = depth_field(16, "number of blocks")
    heads: int = size_field(4, "number of attention heads")
    inner: int = size_field(576, "hidden size of the feed-forward layers")
    kernel: int = size_field(31, "number of tokens that the depthwise convolution sees, odd")
    dropout: float = probability_field(
        0.1, "dropout of the embedding, of the output of each module and of the feed-forward layers' hidden units"
    )
    attention_dropout: float = probability_field(0.0, "dropout of attention weights")
    epsilon: float = model_field(1e-5, "epsilon of the layer norms", above=0.0)
    position: str = model_field("relative", '"relative", as in the paper; "rotary"; or "none"', choices=POSITIONS)
    mechanism: str = mechanism_field()
    mechanism_options: Mapping[str, Any] = mechanism_options_field()
    head: str = model_field(
        "classification",
        '"classification", logits of a sound; or "ctc", logits of each token, of the blank and of the labels',
        choices=HEADS,
    )
    labels: tuple[str, ...] = labels_field()

    model_name = "Conformer"

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(width=self.width, inner=max(self.inner, self.width * -(-self.bands // STRIDE)))
        if self.width % self.heads or (self.position != "none" and self.width % 2):
            raise OptionError(
                "width does not divide",
                expected="an even multiple of heads",
                got=f"width={self.width}, heads={self.heads}",
                do="choose another number of heads",
            )


@final
@explain_arguments
class Conformer(AudioEncoder):
    """A Conformer with random initial weights; ``regard.load`` loads a trained one."""

    model_type = "regard-conformer"
    model_types = (model_type,)

    config: ConformerConfig
    config_class = ConformerConfig

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__(config)
        self.subsampling = ConvolutionSubsampling(config.bands, config.width)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(_make_block(config, depth) for depth in range(config.layers))
        share_projections(self.layers)
        rows = len(config.labels) + (config.head == "ctc")
        self.head = nn.Linear(config.width, rows) if config.labels else None

    def forward(self, features: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> AudioEncoderOutput:
        """Compute the hidden states of sounds, and the logits if there is a head.

        Args:
            features: (batch, frames, bands), floating point (``processor``).
            mask: which frames are not padding: ``masks.padding(lengths)``, as ``processor`` returns it. A token is
                visible if the first of its 4 frames is.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError, DtypeError or DeviceError for features that do not fit, RefusedError for another mask.
        """
        check_flag("keep_layers", keep_layers)
        check_features(features, self.subsampling.first_weight, self.config.bands)
        tokens, visible = self.subsampling(features, find_visible_frames(mask, features))
        tokens = self.dropout(tokens)
        kept = [tokens]
        for layer in self.layers:
            tokens = layer(tokens, visible)
            kept.append(tokens)
        if visible is None:
            visible = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        tokens = tokens.masked_fill(~visible[..., None], 0.0)
        pooled = tokens.sum(dim=1) / visible.sum(dim=1, keepdim=True).clamp_min(1).to(tokens)
        logits = None
        if self.head is not None:
            logits = self.head(tokens if self.config.head == "ctc" else pooled)
        return AudioEncoderOutput(tokens, pooled, visible, logits, tuple(kept) if keep_layers else None)

    @property
    def bands(self) -> int:
        """The number of features of a frame."""
        return self.config.bands

    @property
    def classifies(self) -> bool:
        """Whether the head, if there is one, gives logits of a sound, and not of each token."""
        return self.config.head == "classification"

    def count_tokens(self, frames: int) -> int:
        """The number of tokens of a sound of so many frames: one for 4, rounded up."""
        check_count("frames", frames, minimum=0)
        return -(-frames // STRIDE)

    @classmethod
    def complete_config(
        cls, folder: ModelFolder, config: ConformerConfig, origins: Mapping[str, Origin]
    ) -> ConformerConfig:
        """Complete the hyperparameters by the labels, of which the head has a row each."""
        shape = origins["head.weight"].stored_shape() if "head.weight" in origins else None
        if not shape:
            return config
        labels = shape[0] - (config.head == "ctc")
        if labels < 1:
            raise CheckpointError(
                f"{folder.config.path} has a head without labels",
                expected="at least one label, and the blank of a ctc head",
                got=f"a head of {shape[0]} rows",
                do="check that config.json and the weights belong together",
            )
        return replace(config, labels=read_labels(folder.config, labels))

    @classmethod
    def make_weight_names(cls, config: ConformerConfig) -> WeightNames:
        """Make the table of the names of weights, the same in a file and in the model."""
        return WeightNames(same_names("subsampling.{path}", "layers.{n}.{path}", "head"))


def _make_block(config: ConformerConfig, depth: int) -> ConformerBlock:
    head_dim = config.width // config.heads
    position: RelativeSinusoidal | Rotary | None = None
    if config.position == "relative":
        position = RelativeSinusoidal(config.heads, head_dim, config.width)
    elif config.position == "rotary":
        position = Rotary(head_dim)
    attention = MultiHeadAttention(
        config.width,
        config.heads,
        mechanism=config.mechanism,
        mechanism_options=options_at_depth(config.mechanism, config.mechanism_options, depth),
        position=position,
        dropout=config.attention_dropout,
    )
    return ConformerBlock(attention, config.inner, config.kernel, dropout=config.dropout, epsilon=config.epsilon)


@explain_arguments
def conformer_small(labels: tuple[str, ...] = ()) -> Conformer:
    """Conformer S, untrained: 16 layers of width 144. Gulati et al. 2020, table 1."""
    return Conformer(ConformerConfig(labels=labels))


@explain_arguments
def conformer_medium(labels: tuple[str, ...] = ()) -> Conformer:
    """Conformer M, untrained: 16 layers of width 256. Gulati et al. 2020, table 1."""
    return Conformer(ConformerConfig(width=256, inner=1024, labels=labels))


@explain_arguments
def conformer_large(labels: tuple[str, ...] = ()) -> Conformer:
    """Conformer L, untrained: 17 layers of width 512. Gulati et al. 2020, table 1."""
    return Conformer(ConformerConfig(width=512, layers=17, heads=8, inner=2048, labels=labels))
