"""Models of one skeleton and size for the recall benchmark: a GRU, a convolution, and mechanisms of the catalogue.

    h_0 = s + conv(s), s = E[ids]                       a depthwise causal convolution over 3 tokens
    h_l = FFN(norm(m)) + m, m = h_l-1 + mixer(norm(h_l-1))      2 blocks; norms before the sublayers
    logits = W norm(h_L)[places]                        of the values, at the queries alone

The convolution at the input joins a value to the key before it, for every model alike, as H3's shift does (Fu et al.
2023, "Hungry hungry hippos", section 3): so the mixers differ in recall over a distance only. The feed-forward layers
are as wide as makes a model's number of weights that of dot-product attention with an inner size of twice the width.

    gru           torch.nn.GRU: one recurrent layer of the width in each block
    convolution   gated dilated causal convolutions (van den Oord et al. 2016, "WaveNet", equation 2), depthwise and
                  then pointwise, 3 in each block: over 3 tokens with dilations 1, 3, 9 and 27, 81, 243; together they
                  see 729 tokens
    others        causal ``MultiHeadAttention`` with that mechanism; dot_product with rotary positions, and the others
                  without, as in their papers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from benchmarks.learning.recall import VALUES, VOCABULARY
from regard import masks
from regard.errors import OptionError, unknown_name_error
from regard.layers import FeedForward, MultiHeadAttention, PreNorm
from regard.mechanism_catalogue import catalogue
from regard.positions import Rotary

GRU, CONVOLUTION = "gru", "convolution"
SCAN_FAMILY = ("linear", "retention", "gated_linear", "mamba2", "gated_delta", "kda")
"""Names in the catalogue of the mechanisms with a state of constant size; those of them that exist are trained."""
LAYERS = 2
_KERNEL, _CONVOLUTIONS = 3, 3
"""Tokens of a convolution, and convolutions in each block."""
_ROTARY = ("dot_product",)


def default_models() -> tuple[str, ...]:
    """The models that are trained by default: GRU, convolution, the scan family, dot-product attention."""
    known = {row.name for row in catalogue()}
    return (GRU, CONVOLUTION, *(name for name in SCAN_FAMILY if name in known), "dot_product")


def check_model(name: str) -> None:
    """Raise OptionError unless ``name`` is gru, convolution or a mechanism of the catalogue."""
    known = [GRU, CONVOLUTION, *(row.name for row in catalogue())]
    if name not in known:
        raise unknown_name_error("model", name, known)


def make_model(name: str, *, width: int, heads: int) -> RecallModel:
    """Build the model ``name`` with the number of weights of dot-product attention, within what 1 inner unit weighs.

    Raises OptionError for unknown names, and for a mixer that leaves no weights for the feed-forward layers.
    """
    check_model(name)
    target = count_weights(_build("dot_product", width, heads, 2 * width))
    fewest, more = (count_weights(_build(name, width, heads, inner)) for inner in (1, 2))
    inner = 1 + round((target - fewest) / (more - fewest))
    if inner < 1:
        raise OptionError(
            f"the mixers of {name} alone have more weights than the whole model with dot_product",
            expected=f"at most {target:,} weights",
            got=f"{fewest:,}",
            do="train it at another width (--width), where other parts weigh more",
        )
    return _build(name, width, heads, inner)


def count_weights(model: nn.Module) -> int:
    """The number of weights of a model."""
    return sum(weight.numel() for weight in model.parameters())


def _build(name: str, width: int, heads: int, inner: int) -> RecallModel:
    return RecallModel(lambda layer: _make_mixer(name, layer, width, heads), width=width, inner=inner)


def _make_mixer(name: str, layer: int, width: int, heads: int) -> nn.Module:
    if name == GRU:
        return RecurrentMixer(width)
    if name == CONVOLUTION:
        powers = range(layer * _CONVOLUTIONS, (layer + 1) * _CONVOLUTIONS)
        return nn.Sequential(*(GatedConvolution(width, _KERNEL**power) for power in powers))
    return CausalAttention(name, width, heads)


@final
class RecallModel(nn.Module):
    """Logits of the values (queries, values) at the places of queries in ids (batch, length).

    ``make_mixer`` makes the mixer of a layer, a causal module on (batch, length, width).
    """

    def __init__(self, make_mixer: Callable[[int], nn.Module], *, width: int, inner: int) -> None:
        super().__init__()
        self.inner = inner
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.join = CausalConvolution(width, 1)
        self.blocks = nn.ModuleList(MixerBlock(make_mixer(layer), width, inner) for layer in range(LAYERS))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VALUES)

    def forward(
        self, ids: Int[Tensor, "batch length"], rows: Int[Tensor, " queries"], places: Int[Tensor, " queries"]
    ) -> Float[Tensor, "queries values"]:
        """Compute the logits at ``places`` of ``rows``."""
        tokens = self.embedding(ids)
        tokens = tokens + self.join(tokens)
        for block in self.blocks:
            tokens = block(tokens)
        logits: Tensor = self.head(self.norm(tokens[rows, places]))
        return logits


@final
class MixerBlock(nn.Module):
    """A mixer and a feed-forward layer, each with a residual connection and its norm before it."""

    def __init__(self, mixer: nn.Module, width: int, inner: int) -> None:
        super().__init__()
        self.mixer, self.mixer_residual = mixer, PreNorm(nn.LayerNorm(width))
        self.feed_forward = FeedForward(width, inner, activation="gelu")
        self.feed_forward_residual = PreNorm(nn.LayerNorm(width))

    def forward(self, tokens: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        """Transform tokens to the same shape."""
        tokens = self.mixer_residual(tokens, self.mixer)
        output: Tensor = self.feed_forward_residual(tokens, self.feed_forward)
        return output


@final
class CausalAttention(nn.Module):
    """Causal self-attention with a mechanism of the catalogue."""

    def __init__(self, mechanism: str, width: int, heads: int) -> None:
        super().__init__()
        position = Rotary(width // heads) if mechanism in _ROTARY else None
        self.attention = MultiHeadAttention(width, heads, mechanism=mechanism, position=position)

    def forward(self, tokens: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        """Mix tokens with those before them."""
        output: Tensor = self.attention(tokens, mask=masks.causal())
        return output


@final
class RecurrentMixer(nn.Module):
    """A GRU of the width of the tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, tokens: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        """Compute the hidden states."""
        output: Tensor = self.gru(tokens)[0]
        return output


@final
class CausalConvolution(nn.Module):
    """A depthwise causal convolution: o_i = sum_m w_m * x_(i - m dilation) + b."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.padding = (_KERNEL - 1) * dilation
        self.convolution = nn.Conv1d(width, width, _KERNEL, groups=width, dilation=dilation)

    def forward(self, tokens: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        """Convolve tokens along the length; before the first token stand zeros."""
        padded = nn.functional.pad(tokens.transpose(1, 2), (self.padding, 0))
        output: Tensor = self.convolution(padded).transpose(1, 2)
        return output


@final
class GatedConvolution(nn.Module):
    """x + tanh(a) * sigmoid(b), where a and b are linear in a dilated causal convolution of x."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.convolution, self.pointwise = CausalConvolution(width, dilation), nn.Linear(width, 2 * width)

    def forward(self, tokens: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        """Transform tokens to the same shape."""
        values, gates = self.pointwise(self.convolution(tokens)).chunk(2, dim=-1)
        return tokens + torch.tanh(values) * torch.sigmoid(gates)
