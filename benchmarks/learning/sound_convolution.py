"""A convolutional classifier of sounds, the baseline of the Conformer: time-channel separable convolutions.

    x_0 = subsampling(features)                         that of the Conformer: a token for 4 frames
    x_n = swish(x_{n-1} + norm(pointwise(depthwise(x_{n-1}))))
    logits = W mean_t x_L + b

Each block is one repetition of those of QuartzNet and MatchboxNet: a depthwise convolution over time, a product over
channels, batch norm, with a residual. Kriman et al. 2020, "QuartzNet"; Majumdar and Ginsburg 2020, "MatchboxNet: 1D
time-channel separable convolutional neural network architecture for speech commands recognition". Hidden tokens are 0
before each convolution, so padding has no influence. features (batch, frames, bands) -> hidden (batch, tokens, width)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from regard.errors import check_flag
from regard.layers import ConvolutionSubsampling
from regard.layers.convolution_subsampling import STRIDE
from regard.layers.masked_batch_norm import MaskedBatchNorm
from regard.masks import Mask
from regard.models.audio_encoder import AudioEncoder, AudioEncoderOutput, check_features, find_visible_frames
from regard.models.label_names import read_labels
from regard.models.model_folder import ModelFolder
from regard.models.weight_names import Origin, WeightNames, same_names


@final
@dataclass(frozen=True)
class SoundConvolutionConfig:
    """The hyperparameters; ``kernel`` is the number of tokens that a convolution sees, odd."""

    bands: int = 80
    width: int = 96
    layers: int = 12
    kernel: int = 15
    dropout: float = 0.1
    labels: tuple[str, ...] = ()


@final
class SoundConvolution(AudioEncoder):
    """A convolutional classifier with random initial weights."""

    model_type = "regard-sound-convolution"
    model_types = (model_type,)
    config: SoundConvolutionConfig
    config_class = SoundConvolutionConfig

    def __init__(self, config: SoundConvolutionConfig) -> None:
        super().__init__(config)
        self.subsampling = ConvolutionSubsampling(config.bands, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.head = nn.Linear(config.width, len(config.labels))

    def forward(self, features: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> AudioEncoderOutput:
        """Compute the hidden states of sounds, and the logits."""
        check_flag("keep_layers", keep_layers)
        check_features(features, self.subsampling.projection.weight, self.config.bands)
        tokens, visible = self.subsampling(features, find_visible_frames(mask, features))
        if visible is None:
            visible = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        tokens = self.dropout(tokens).masked_fill(~visible[..., None], 0.0)
        kept = [tokens]
        for layer in self.layers:
            tokens = layer(tokens, visible)
            kept.append(tokens)
        pooled = tokens.sum(dim=1) / visible.sum(dim=1, keepdim=True).clamp_min(1).to(tokens)
        return AudioEncoderOutput(tokens, pooled, visible, self.head(pooled), tuple(kept) if keep_layers else None)

    @property
    def bands(self) -> int:
        """The number of features of a frame."""
        return self.config.bands

    @property
    def width(self) -> int:
        """The number of components of a hidden state."""
        return self.config.width

    @property
    def classifies(self) -> bool:
        """Whether the head gives logits of a sound."""
        return True

    def count_tokens(self, frames: int) -> int:
        """The number of tokens of a sound of so many frames."""
        return -(-frames // STRIDE)

    @classmethod
    def complete_config(
        cls, folder: ModelFolder, config: SoundConvolutionConfig, origins: Mapping[str, Origin]
    ) -> SoundConvolutionConfig:
        """Complete the hyperparameters by the labels, of which the head has a row each."""
        shape = origins["head.weight"].stored_shape() if "head.weight" in origins else None
        return replace(config, labels=read_labels(folder.config, shape[0] if shape else 0))

    @classmethod
    def make_weight_names(cls, config: SoundConvolutionConfig) -> WeightNames:
        """Make the table of the names of weights, the same in a file and in the model."""
        return WeightNames(same_names("subsampling.{path}", "layers.{n}.{path}", "head"))


@final
class _Block(nn.Module):
    def __init__(self, config: SoundConvolutionConfig) -> None:
        super().__init__()
        width = config.width
        self.depthwise = nn.Conv1d(width, width, config.kernel, padding=config.kernel // 2, groups=width, bias=False)
        self.pointwise = nn.Linear(width, width, bias=False)
        self.norm = MaskedBatchNorm(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, visible: Tensor) -> Tensor:
        mixed = self.pointwise(self.depthwise(tokens.mT).mT)
        changed = nn.functional.silu(tokens + self.norm(mixed, visible))
        return self.dropout(changed).masked_fill(~visible[..., None], 0.0)


def build_of_size(weights: int, *, bands: int, labels: tuple[str, ...], **options: Any) -> SoundConvolution:
    """Build the classifier whose number of weights is closest to ``weights``, by the number of layers."""

    def build(layers: int) -> SoundConvolution:
        return SoundConvolution(SoundConvolutionConfig(bands=bands, labels=labels, layers=layers, **options))

    with torch.device("meta"):
        first, second = (_count(build(layers)) for layers in (1, 2))
    return build(max(1, 1 + round((weights - first) / (second - first))))


def _count(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())
