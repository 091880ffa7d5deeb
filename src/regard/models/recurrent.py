"""The recurrent encoder-decoder of 2014 and 2015, with and without attention.

    annotations = [forwards ; backwards](E_source[source])
    hidden_t    = decoder(E_target[y_t-1], annotations)               three variants: models.recurrent_decoders
    logits_t    = W_o hidden_t

Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder": ``attention="none"``, the decoder reads
one vector of the source. Bahdanau et al. 2015, "Neural machine translation by jointly learning to align and translate":
``"additive"``. Luong et al. 2015, "Effective approaches to attention-based neural machine translation":
``"luong_dot"``, ``"luong_general"``, ``"luong_concat"`` and ``"local_p"``. Annotations have the width of the decoder's
state: one half from the forward cells, one from the backward cells. ids (batch, length) -> logits (batch, target
length, vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import DataError, OptionError, RefusedError, ShapeError
from regard.layers import Dropout
from regard.layers.projection import linear_activation
from regard.masks import Mask
from regard.mechanism_catalogue import mechanism
from regard.mechanisms import Mechanism
from regard.models.base import AttentionLayers, SequenceOutput
from regard.models.check_token_ids import check_step, check_token_ids
from regard.models.hyperparameters import depth_field, model_field, probability_field, size_field
from regard.models.recurrent_cells import CELLS, BidirectionalLayers, RecurrentLayers
from regard.models.recurrent_decoders import (
    BahdanauDecoder,
    FixedContextDecoder,
    LuongDecoder,
    RecurrentDecoder,
    RecurrentState,
)
from regard.models.token_model import TokenConfig, TokenModel
from regard.models.weight_names import same_names
from regard.recording import record
from regard.tensors import check_tensor
from regard.validation import check_mask

ATTENTIONS = ("additive", "luong_dot", "luong_general", "luong_concat", "local_p", "none")
"""The decoder's attention: Bahdanau's, one of Luong's, or none."""


@final
@explain_arguments
@dataclass(frozen=True)
class RecurrentConfig(TokenConfig):
    """The hyperparameters of a recurrent model. Defaults are RNNsearch of 2015.

    If the output matrix is shared with embeddings, a linear layer maps the decoder's output to ``width``, unless they
    are equal. Raises OptionError for values out of range.
    """

    vocabulary: int = 30000
    width: int = 620
    hidden: int = size_field(1000, "size of the decoder's state, an even number")
    layers: int = depth_field(1, "number of layers")
    cell: str = model_field("gru", "the recurrent cell", choices=CELLS, noun="cell")
    attention: str = model_field(
        "additive",
        "the decoder's attention: Bahdanau's (additive), one of Luong's, or none",
        choices=ATTENTIONS,
    )
    window: int = size_field(10, "the D of local_p")
    input_feeding: bool = model_field(True, "whether Luong's decoders read their last output")
    dropout: float = probability_field(0.0, "dropout of embeddings, between layers, and before the output layer")
    shared: str = "none"

    model_name = "recurrent model"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % 2:
            raise OptionError(
                "hidden is divided between two directions, so it must be even",
                expected="an even number",
                got=str(self.hidden),
                do=f"hidden={self.hidden + 1}",
            )


@final
@explain_arguments
class Recurrent(TokenModel):
    """A recurrent encoder-decoder with random initial weights."""

    model_type = "regard-recurrent"
    model_types = (model_type,)
    config_class = RecurrentConfig
    rows = same_names("source_words", "target_words", "encoder.{path}", "decoder.{path}", "fit", "output")

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.encoder = BidirectionalLayers(
            config.cell, int(config.width), int(config.hidden), layers=config.layers, dropout=config.dropout
        )
        self.decoder = _make_decoder(config)
        self.dropout = Dropout(config.dropout)
        size = self.decoder.size if config.shared == "none" else config.width
        self.fit = nn.Identity() if size == self.decoder.size else nn.Linear(self.decoder.size, size, bias=False)
        self.output = nn.Linear(size, self.vocab_sizes[1], bias=False)
        self.tie()
        self._init_embeddings()

    @property
    def attention_layers(self) -> AttentionLayers:
        """The decoder's attention to the source; recurrent layers have none of their own."""
        return AttentionLayers((), (), () if self.decoder.attention is None else (self.decoder.attention,))

    @property
    def has_attention(self) -> bool:
        """Whether the decoder has attention; with attention "none" it reads only the encoder's last state."""
        return self.config.attention != "none"

    def forward(self, source: Tensor, target: Tensor, *, mask: Mask | None = None) -> SequenceOutput:
        """Compute the logits of every position of known targets. See ``EncoderDecoder.forward``.

        ``mask`` must be the same for all queries and hide only the end of a source, as ``masks.padding`` does. Raises
        RefusedError for other masks, since recurrent cells read every token up to the last.
        """
        hidden = self._project_hidden(self._decode(source, target, mask))
        return SequenceOutput(hidden, linear_activation(hidden, self.output))

    def start(self, source: Tensor, *, lengths: Tensor | None = None) -> RecurrentState:
        """Read ``source``, and return the decoder's initial state. See ``EncoderDecoder.start``."""
        check_token_ids("source ids", source, self.vocab_sizes[0])
        _check_not_empty("source ids", source)
        if lengths is not None:
            lengths = _check_lengths(lengths, source)
        tokens, last = self.encoder(self.dropout(self.source_words(source)), lengths)
        # Autocast leaves some of them in half precision, which would lose digits in sums over many steps.
        dtype = self.source_words.weight.dtype
        last = tuple(tuple(part.to(dtype) for part in layer) for layer in last)
        return self.decoder.start(tokens.to(dtype), last, lengths)

    def step(self, tokens: Tensor, state: RecurrentState) -> tuple[Float[Tensor, "rows vocabulary"], RecurrentState]:
        """Read ``tokens`` (rows,), and return the logits of the next token and the next state."""
        check_step(tokens, state, RecurrentState, self.vocab_sizes[1])
        hidden, following = self.decoder.step(self.dropout(self.target_words(tokens)), state)
        return linear_activation(self._project_hidden(hidden), self.output), following

    def cross_attention_weights(
        self, source: Tensor, target: Tensor, *, mask: Mask | None = None
    ) -> Float[Tensor, "batch length source"]:
        """The weights of the decoder's attention, one head. See ``EncoderDecoder.cross_attention_weights``."""
        self._check_attention()
        with torch.no_grad(), record(self.decoder) as calls:
            self._decode(source, target, mask)
            queries = torch.cat([call.query for call in calls], dim=2)
            return calls[0].mechanism.weights(queries, calls[0].key, mask=calls[0].mask)[:, 0]

    def step_with_weights(
        self, tokens: Tensor, state: RecurrentState
    ) -> tuple[Float[Tensor, "rows vocabulary"], RecurrentState, Float[Tensor, "rows source"]]:
        """Like ``step``, and also return the attention weights. See ``EncoderDecoder.step_with_weights``."""
        self._check_attention()
        with record(self.decoder) as calls:
            logits, following = self.step(tokens, state)
            return logits, following, state.groups.queries_to_rows(calls[-1].weights()[:, 0])[:, 0]

    def _decode(self, source: Tensor, target: Tensor, mask: Mask | None) -> Float[Tensor, "batch length size"]:
        """The decoder's output for a known target."""
        check_token_ids("source ids", source, self.vocab_sizes[0])
        check_token_ids("target ids", target, self.vocab_sizes[1])
        _check_sizes(source, target)
        state = self.start(source, lengths=None if mask is None else _lengths_from_mask(mask, source))
        decoded: Tensor = self.decoder.forward_sequence(self.dropout(self.target_words(target)), state)
        return decoded

    def _project_hidden(self, decoded: Tensor) -> Tensor:
        """Project the decoder's output to the size that the output layer reads."""
        hidden: Tensor = self.fit(self.dropout(decoded))
        return hidden

    def _check_attention(self) -> None:
        if self.decoder.attention is None:
            raise RefusedError(
                "a model without attention has no attention weights",
                expected="a decoder with attention",
                got="attention='none'",
                do="train a model with attention='additive'",
            )


def _make_decoder(config: RecurrentConfig) -> RecurrentDecoder:
    """Build the decoder for the config's attention."""
    attention = _make_attention(config)
    late = attention is not None and config.attention != "additive"
    fed = config.hidden if not late or config.input_feeding else 0
    layers = RecurrentLayers(
        config.cell, int(config.width + fed), int(config.hidden), layers=config.layers, dropout=config.dropout
    )
    if attention is None:
        return FixedContextDecoder(layers, config.width)
    if late:
        return LuongDecoder(attention, layers, input_feeding=config.input_feeding)
    return BahdanauDecoder(attention, layers, config.width)


def _make_attention(config: RecurrentConfig) -> Mechanism | None:
    """Build the attention: one head with the width of the state; None for attention "none"."""
    if config.attention == "none":
        return None
    options = {"window": config.window} if config.attention == "local_p" else {}
    return mechanism(config.attention, heads=1, head_dim=config.hidden, **options)


def _check_not_empty(name: str, ids: Tensor) -> None:
    """Raise ShapeError for empty ids: recurrent cells need at least one step."""
    if 0 in ids.shape:
        raise ShapeError(
            f"{name} are empty",
            expected="at least one sequence of at least one token",
            got=str(tuple(ids.shape)),
            do="end each source with end_id, and start each target with start_id",
        )


def _check_sizes(source: Tensor, target: Tensor) -> None:
    """Raise ShapeError unless there is one target for each source, and targets have tokens."""
    _check_not_empty("target ids", target)
    if len(source) != len(target):
        raise ShapeError(
            "source and target have different batch sizes",
            expected=f"{len(source)} targets, one for each source",
            got=f"source {tuple(source.shape)}, target {tuple(target.shape)}",
            do="pass sources and targets of the same pairs",
        )


def _lengths_from_mask(mask: Mask, source: Tensor) -> Int[Tensor, " batch"]:
    """The length of each source, from its mask. Raises RefusedError unless the mask shows just the first tokens."""
    check_mask(mask)
    batch, length = source.shape
    if not mask.depends_on_query and mask.heads in (None, 1):
        mask.check(batch, 1, 1, length)
        visible = mask.dense(1, length, device="cpu")[:, 0, 0].expand(batch, length)
        lengths = visible.sum(-1)
        if torch.equal(visible, torch.arange(length) < lengths[:, None]):
            return lengths
    raise RefusedError(
        "a recurrent model cannot skip tokens inside a source",
        expected="a mask that hides only padding on the right: masks.padding(lengths)",
        got=repr(mask),
        do="pad sources on the right, and pass masks.padding(lengths)",
    )


def _check_lengths(lengths: Tensor, source: Tensor) -> Int[Tensor, " batch"]:
    """Check the lengths, and move them to the CPU as torch requires. Raises ShapeError or DataError for wrong ones."""
    check_tensor("lengths", lengths, "a tensor of integers (batch,)", do="torch.tensor(lengths)")
    if lengths.shape != source.shape[:1]:
        raise ShapeError(
            "lengths do not fit the sources",
            expected=f"one length for each of {len(source)} sources",
            got=f"shape {tuple(lengths.shape)}",
            do="count the tokens of each source, end token included",
        )
    masks.padding(lengths).check(len(source), 1, 1, source.shape[1])
    if bool((lengths < 1).any()):
        raise DataError(
            "a source is empty",
            expected="lengths of 1 or more, since each source has an end token",
            got="a length of 0",
            do="leave out empty sentences",
        )
    return lengths.cpu()


@explain_arguments
def bahdanau(vocabulary: int = 30000) -> Recurrent:
    """RNNsearch: Bahdanau et al. 2015, appendix A.2.3; with 500 encoder cells per direction in place of 1,000."""
    return Recurrent(RecurrentConfig(vocabulary=vocabulary))


@explain_arguments
def luong(vocabulary: int = 50000) -> Recurrent:
    """4 LSTM layers of 1,000 cells, local-p, input feeding: Luong et al. 2015, section 4.1.

    The encoder is bidirectional, while the paper's encoder is unidirectional.
    """
    return Recurrent(
        RecurrentConfig(vocabulary=vocabulary, width=1000, layers=4, cell="lstm", attention="local_p", dropout=0.2)
    )


@explain_arguments
def recurrent_small(vocabulary: int) -> Recurrent:
    """Bahdanau's model with 512 cells and one matrix for all embeddings, for tens of thousands of pairs."""
    return Recurrent(RecurrentConfig(vocabulary=vocabulary, width=256, hidden=512, dropout=0.3, shared="all"))
