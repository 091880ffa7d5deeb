"""ModernBERT: a text encoder for long texts, with its masked-language head if there is one.

    h_0 = norm(tokens[ids])
    a   = h + MultiHead(norm(h)),   h' = a + FFN(norm(a))            for each layer
    FFN(x) = (gelu(x W_g) * x W_u) W_d
    hidden = norm(h_L),   logits = head(hidden)                      ``masked_language_model``

The first layer has no norm before attention. Queries and keys are rotated by their positions. Every third layer attends
to all tokens, the others to a window of 64 tokens on each side, with another base of the rotation. Linear layers and
norms have no biases, except for the output layer.
Warner et al. 2024, "Smarter, better, faster, longer: a modern bidirectional encoder", section 2.1 and table 4.
ids (batch, length) -> hidden (batch, length, width), logits (batch, length, vocabulary).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from torch import Tensor, nn

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import OptionError, check_flag, check_weights
from regard.fields import check_fields
from regard.layers import Dropout, EncoderBlock, FeedForward, MultiHeadAttention, PreNorm
from regard.masks import Mask
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import (
    ACTIVATIONS,
    depth_field,
    model_field,
    probability_field,
    read_published,
    size_field,
    write_published,
)
from regard.models.masked_language_model import (
    MaskedLanguageHead,
    MaskedLanguageModel,
    MaskedLanguageOutput,
    tied_head_weights,
)
from regard.models.rotary_config import RotaryConfig
from regard.models.run_layers import run_layers
from regard.models.weight_names import Row, WeightNames
from regard.positions import DynamicScaling, Rotary
from regard.positions.learned_grid import init_truncated_normal
from regard.validation import check_mask

_GATES = {"gelu": "geglu", "gelu_pytorch_tanh": "geglu_tanh", "silu": "swiglu", "relu": "reglu"}
"""Gated feed-forward layers, by Hugging Face's name of the activation of the gate."""
_ROTARY_EXAMPLE = "for example RotaryConfig(base=160_000.0)"
_WINDOW, _FULL = "sliding_attention", "full_attention"
"""Hugging Face's names of the types of layers."""
_GLOBAL_EVERY = 3
"""In the published models every third layer has no window, from the first on."""
_ROWS = (
    Row("embeddings.tok_embeddings", "token_embedding"),
    Row("embeddings.norm", "embedding_norm"),
    Row("layers.{n}.attn_norm", "layers.{n}.attention_residual.norm"),
    Row(
        "layers.{n}.attn.Wqkv",
        tuple(f"layers.{{n}}.attention.{side}_projection" for side in ("query", "key", "value")),
    ),
    Row("layers.{n}.attn.Wo", "layers.{n}.attention.output_projection"),
    Row("layers.{n}.mlp_norm", "layers.{n}.feed_forward_residual.norm"),
    Row("layers.{n}.mlp.Wi", ("layers.{n}.feed_forward.gate", "layers.{n}.feed_forward.up")),
    Row("layers.{n}.mlp.Wo", "layers.{n}.feed_forward.down"),
    Row("final_norm", "norm"),
)
_HEAD_ROWS = (Row("head.dense", "head.transform"), Row("head.norm", "head.norm"), Row("decoder", "head.output"))
"""Weight names in Hugging Face files, and in this model."""


@final
@explain_arguments
@dataclass(frozen=True)
class ModernBertConfig:
    """The hyperparameters of a ModernBERT. Defaults are ModernBERT base.

    Raises OptionError for values out of range.
    """

    vocabulary: int = size_field(50368, "number of tokens", "vocab_size", required=True)
    width: int = size_field(768, "size of hidden states", "hidden_size", required=True)
    layers: int = depth_field(22, "number of layers", "num_hidden_layers", required=True)
    heads: int = size_field(12, "number of heads", "num_attention_heads", required=True)
    inner: int = size_field(1152, "hidden size of the feed-forward layers", "intermediate_size", required=True)
    max_length: int = size_field(
        8192, "length of the longest text that the model was trained for", "max_position_embeddings"
    )
    window: int = size_field(
        64,
        "number of tokens on each side that a token attends to, in a layer with a window",
        "local_attention",
        read=lambda config, name: config.size(name, default=128) // 2,
        write=lambda window: 2 * window,
    )
    global_layers: tuple[int, ...] | None = model_field(
        None,
        "the numbers of the layers without a window; None is every third one, from 0 on",
        below="layers",
        example="for example global_layers=(0, 3, 6)",
    )
    activation: str = model_field("geglu", "the gated feed-forward", "hidden_activation", stored_names=_GATES)
    head_activation: str = model_field(
        "gelu", "activation of the masked-language head", "classifier_activation", stored_names=ACTIVATIONS
    )
    epsilon: float = model_field(1e-5, "epsilon of the layer norms", "norm_eps", minimum=0.0)
    rotary: RotaryConfig = model_field(
        RotaryConfig(base=160_000.0), "positions in layers without a window", example=_ROTARY_EXAMPLE
    )
    window_rotary: RotaryConfig = model_field(
        RotaryConfig(base=10_000.0), "positions in layers with a window", example=_ROTARY_EXAMPLE
    )
    norm_bias: bool = model_field(False, "whether layer norms have biases", "norm_bias")
    attention_bias: bool = model_field(False, "whether the projections of attention have biases", "attention_bias")
    feed_forward_bias: bool = model_field(False, "whether the feed-forward layers have biases", "mlp_bias")
    head_bias: bool = model_field(False, "whether the first layer of the head has a bias", "classifier_bias")
    output_bias: bool = model_field(True, "whether the output layer of the head has a bias", "decoder_bias")
    dropout: float = probability_field(0.0, "dropout of the embedding", "embedding_dropout")
    attention_dropout: float = probability_field(
        0.0, "dropout of attention weights, and of the output of attention", "attention_dropout"
    )
    inner_dropout: float = probability_field(0.0, "dropout inside the feed-forward layers", "mlp_dropout")
    deviation: float = model_field(0.02, "standard deviation of initial weights", "initializer_range", minimum=0.0)
    pad_id: int = model_field(50283, "the padding token", "pad_token_id", below="vocabulary")
    head: bool = model_field(False, "whether there is a masked-language head")
    tied: bool = model_field(
        True, "whether the output layer of the head shares the matrix of the embedding", "tie_word_embeddings"
    )

    model_name = "ModernBERT"

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(vocabulary=self.vocabulary, width=self.width)
        self._check_heads()

    def has_window(self, layer: int) -> bool:
        """Whether a layer has a window."""
        return layer % _GLOBAL_EVERY != 0 if self.global_layers is None else layer not in self.global_layers

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> ModernBertConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        layers = config.size("num_hidden_layers")
        heads = config.size("num_attention_heads", divides="hidden_size")
        rotary, window_rotary = _read_rotary(config, head_dim=config.size("hidden_size") // heads)
        global_layers = _read_global_layers(config, layers)
        return read_published(cls, config, global_layers=global_layers, rotary=rotary, window_rotary=window_rotary)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        head_dim = self.width // self.heads
        return {
            "architectures": ["ModernBertForMaskedLM" if self.head else "ModernBertModel"],
            "model_type": "modernbert",
            **write_published(self),
            "layer_types": [_WINDOW if self.has_window(layer) else _FULL for layer in range(self.layers)],
            "rope_parameters": {
                _FULL: self.rotary.to_hugging_face(head_dim),
                _WINDOW: self.window_rotary.to_hugging_face(head_dim),
            },
        }

    def _check_heads(self) -> None:
        if self.width % (2 * self.heads):
            raise OptionError(
                "width is not divisible by twice the heads",
                expected="heads of an even size, whose pairs are rotated",
                got=f"width={self.width}, heads={self.heads}",
                do="choose another number of heads",
            )
        for name in ("rotary", "window_rotary"):
            rotary: RotaryConfig = getattr(self, name)
            scaling = rotary.scaling
            dynamic = isinstance(scaling, DynamicScaling) and scaling.trained_length != self.max_length
            if rotary.rotated is not None or dynamic:
                raise OptionError(
                    f"a config.json of type 'modernbert' cannot store {name}",
                    expected="a rotation of the whole head, and DynamicScaling with trained_length=max_length",
                    got=repr(rotary),
                    do="change it",
                )


@final
@explain_arguments
class ModernBert(MaskedLanguageModel):
    """A ModernBERT with random initial weights; ``regard.load`` loads a trained one."""

    config: ModernBertConfig
    config_class = ModernBertConfig
    model_types = ("modernbert",)
    classifier_prefix = "classifier."

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__(config)
        head_dim = config.width // config.heads
        rotary, window_rotary = config.rotary.build(head_dim), config.window_rotary.build(head_dim)
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.embedding_norm = _make_norm(config)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(
            _make_layer(config, layer, window_rotary if config.has_window(layer) else rotary)
            for layer in range(config.layers)
        )
        self.norm = _make_norm(config)
        self.head = _make_head(config) if config.head else None
        self._init_weights()
        self.tie()

    def forward(
        self, ids: Tensor, *, mask: Mask | None = None, logits_at: Tensor | None = None, keep_layers: bool = False
    ) -> MaskedLanguageOutput:
        """Compute the hidden states of token ids.

        Args:
            ids: token ids (batch, length), 0 to vocabulary - 1.
            mask: which tokens may attend to which, from ``regard.masks``, in addition to the windows of layers; for
                padded ids ``masks.padding(lengths)``.
            logits_at: the positions whose logits are computed, bool (batch, length): ``logits`` is then (number of
                positions, vocabulary); None is all.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError, DtypeError or OptionError for ids that do not fit.
        """
        check_flag("keep_layers", keep_layers)
        check_mask(mask)
        self.check_ids(ids)
        tokens = self.dropout(self.embedding_norm(self.token_embedding(ids)))
        blocks = [partial(layer, mask=self._layer_mask(number, mask)) for number, layer in enumerate(self.layers)]
        hidden, layers = run_layers(tokens, blocks, keep=keep_layers, norm=self.norm)
        logits = self.select_logits(hidden, logits_at)
        return MaskedLanguageOutput(hidden, layers, logits=logits)

    @classmethod
    def make_weight_names(cls, config: ModernBertConfig) -> WeightNames:
        """Make the table of the names of weights in a file, where a tied matrix may have either name."""
        tied = config.head and config.tied
        return WeightNames(
            _ROWS + (_HEAD_ROWS if config.head else ()),
            prefix="model.",
            outer=tuple(str(row.stored) for row in _HEAD_ROWS) if config.head else (),
            copies={"decoder.weight": "embeddings.tok_embeddings.weight"} if tied else {},
            heads=("head.", "decoder.", "classifier."),
            tied_weights=tied_head_weights(config),
        )

    def _layer_mask(self, layer: int, mask: Mask | None) -> Mask | None:
        """The mask of a layer: the mask of the call, in a layer with a window joined with it."""
        if not self.config.has_window(layer):
            return mask
        window = masks.window(self.config.window, self.config.window)
        return window if mask is None else window & mask

    def _init_weights(self) -> None:
        """Initialise weights as in the published code: output layers of sublayers smaller, the deeper the model."""
        deviation, outer = float(self.config.deviation), ("output_projection", "down")
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                own = deviation / math.sqrt(2.0 * self.config.layers) if name.endswith(outer) else deviation
                init_truncated_normal(module.weight, own)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def _make_layer(config: ModernBertConfig, number: int, rotary: Rotary) -> EncoderBlock:
    """Build a layer; the first has no norm before attention, since the embedding is normalised already."""
    return EncoderBlock(
        attention=MultiHeadAttention(
            config.width,
            config.heads,
            position=rotary,
            dropout=config.attention_dropout,
            bias=config.attention_bias,
        ),
        feed_forward=FeedForward(
            config.width,
            config.inner,
            activation=config.activation,
            dropout=config.inner_dropout,
            bias=config.feed_forward_bias,
        ),
        attention_residual=PreNorm(
            nn.Identity() if number == 0 else _make_norm(config), dropout=config.attention_dropout
        ),
        feed_forward_residual=PreNorm(_make_norm(config)),
    )


def _make_norm(config: ModernBertConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=config.epsilon, bias=config.norm_bias)


def _make_head(config: ModernBertConfig) -> MaskedLanguageHead:
    return MaskedLanguageHead(
        config.width,
        config.vocabulary,
        activation=config.head_activation,
        norm=_make_norm(config),
        bias=config.head_bias,
        output_bias=config.output_bias,
    )


def _read_global_layers(config: ConfigFile, layers: int) -> tuple[int, ...] | None:
    """Read the numbers of the layers without a window; None if they are every third one."""
    listed = config.layer_types(layers, (_FULL, _WINDOW))
    every = config.size("global_attn_every_n_layers", default=_GLOBAL_EVERY)
    found = tuple(
        layer for layer in range(layers) if (layer % every == 0 if listed is None else listed[layer] == _FULL)
    )
    return None if found == tuple(range(0, layers, _GLOBAL_EVERY)) else found


def _read_rotary(config: ConfigFile, *, head_dim: int) -> tuple[RotaryConfig, RotaryConfig]:
    """Read the positions of layers without and with a window; old files have a field for the base of each."""
    bases = [config.number("global_rope_theta", default=160_000.0)]
    shared = config.fields.get("local_rope_theta", 0) is None
    bases.append(bases[0] if shared else config.number("local_rope_theta", default=10_000.0))
    rotary, window_rotary = (
        RotaryConfig.from_hugging_face(
            config, head_dim=head_dim, base=base, base_field=None, section=section, is_partial=False
        )
        for base, section in zip(bases, (_FULL, _WINDOW), strict=True)
    )
    return rotary, window_rotary


@explain_arguments
def modernbert_base() -> ModernBert:
    """ModernBERT base, untrained: 22 layers of width 768. Warner et al. 2024, table 4."""
    return ModernBert(ModernBertConfig())


@explain_arguments
def modernbert_large() -> ModernBert:
    """ModernBERT large, untrained: 28 layers of width 1,024. Warner et al. 2024, table 4."""
    return ModernBert(ModernBertConfig(width=1024, layers=28, heads=16, inner=2624))
