"""The recurrent encoder-decoder of 2014 and 2015, without attention and with it.

    annotations = [forwards ; backwards](E_source[source])
    hidden_t    = decoder(E_target[y_t-1], annotations)               in three ways: models.recurrent_decoders
    logits_t    = W_o hidden_t

Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder": ``attention="none"``, the decoder knows
one vector. Bahdanau et al. 2015, "Neural machine translation by jointly learning to align and translate":
``"additive"``. Luong et al. 2015, "Effective approaches to attention-based neural machine translation":
``"luong_dot"``, ``"luong_general"``, ``"luong_concat"`` and ``"local_p"``. Annotations are as wide as the decoder's
state: half of their numbers read forwards, half backwards. ids (batch, length) -> logits (batch, target length,
vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.arguments import explain_arguments
from regard.catalogue import mechanism
from regard.errors import (
    DataError,
    OptionError,
    RefusedError,
    ShapeError,
    check_choice,
    check_count,
    check_flag,
    check_size,
)
from regard.layers import Dropout
from regard.layers.projection import linear_activation
from regard.masks import Mask
from regard.mechanisms import Mechanism
from regard.models.base import SequenceOutput
from regard.models.check_token_ids import check_step, check_token_ids
from regard.models.config_file import MAX_LAYERS
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
from regard.record import record
from regard.tensors import check_tensor
from regard.validation import check_dropout, check_mask

ATTENTIONS = ("additive", "luong_dot", "luong_general", "luong_concat", "local_p", "none")
"""How the decoder looks at the source: Bahdanau's way, Luong's, or not at all."""


@final
@explain_arguments
@dataclass(frozen=True)
class RecurrentConfig(TokenConfig):
    """The numbers of a recurrent model. Defaults are RNNsearch of 2015.

    ``vocabulary`` and ``target_vocabulary`` (None: the same) count tokens; ``width`` is the size of an embedded token,
    ``hidden`` that of a decoder's state, an even number. ``window`` is the D of local_p; ``input_feeding`` is of
    Luong's decoders. ``dropout`` is on embeddings, between layers, and before the vocabulary. Where the output is
    shared, a matrix leads from the decoder's size to ``width``, unless they are equal.
    """

    vocabulary: int = 30000
    width: int = 620
    hidden: int = 1000
    layers: int = 1
    cell: str = "gru"
    attention: str = "additive"
    window: int = 10
    input_feeding: bool = True
    dropout: float = 0.0
    shared: str = "none"

    def __post_init__(self) -> None:
        for name in ("hidden", "window"):
            check_size(name, getattr(self, name))
        check_count("layers", self.layers, most=MAX_LAYERS)
        check_dropout(self.dropout)
        check_flag("input_feeding", self.input_feeding)
        for kind, name, valid in (
            ("cell", self.cell, CELLS),
            ("attention of a recurrent model", self.attention, ATTENTIONS),
        ):
            check_choice(kind, name, valid)
        if self.hidden % 2:
            raise OptionError(
                "hidden is halved between two directions",
                expected="an even number",
                got=str(self.hidden),
                do=f"hidden={self.hidden + 1}",
            )
        super().__post_init__()


@final
@explain_arguments
class Recurrent(TokenModel):
    """A recurrent encoder-decoder from its numbers, with weights to be trained."""

    model_type = "regard-recurrent"
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
    def has_attention(self) -> bool:
        """Whether the decoder looks at the source; with attention "none" it has the last state alone."""
        return self.config.attention != "none"

    def forward(self, source: Tensor, target: Tensor, *, mask: Mask | None = None) -> SequenceOutput:
        """Logits for every place of a target that is known. See ``EncoderDecoder.forward``.

        ``mask`` is the same for all queries and shows the first tokens of a source, as ``masks.padding`` does; others
        are a RefusedError, since recurrent cells read every token up to the last.
        """
        hidden = self._project_hidden(self._decode(source, target, mask))
        return SequenceOutput(hidden, linear_activation(hidden, self.output))

    def start(self, source: Tensor, *, lengths: Tensor | None = None) -> RecurrentState:
        """The state after reading ``source``. See ``EncoderDecoder.start``."""
        check_token_ids("source ids", source, self.vocab_sizes[0])
        _check_not_empty("source ids", source)
        if lengths is not None:
            lengths = _check_lengths(lengths, source)
        tokens, last = self.encoder(self.dropout(self.source_words(source)), lengths)
        # Autocast leaves some of them in half precision, in which sums over many steps would lose digits.
        dtype = self.output.weight.dtype
        last = tuple(tuple(part.to(dtype) for part in layer) for layer in last)
        return self.decoder.start(tokens.to(dtype), last, lengths)

    def step(self, tokens: Tensor, state: RecurrentState) -> tuple[Float[Tensor, "rows vocabulary"], RecurrentState]:
        """The logits of what follows ``tokens`` (rows), and the next state."""
        check_step(tokens, state, RecurrentState, self.vocab_sizes[1])
        hidden, following = self.decoder.step(self.dropout(self.target_words(tokens)), state)
        return linear_activation(self._project_hidden(hidden), self.output), following

    def cross_attention_weights(
        self, source: Tensor, target: Tensor, *, mask: Mask | None = None
    ) -> Float[Tensor, "batch length source"]:
        """The weights of the decoder's attention. See ``EncoderDecoder.cross_attention_weights``."""
        self._check_attention()
        with torch.no_grad(), record(self.decoder) as seen:
            self._decode(source, target, mask)
            queries = torch.cat([call.query for call in seen], dim=2)
            return seen[0].mechanism.weights(queries, seen[0].key, seen[0].mask)[:, 0]

    def step_with_weights(
        self, tokens: Tensor, state: RecurrentState
    ) -> tuple[Float[Tensor, "rows vocabulary"], RecurrentState, Float[Tensor, "rows source"]]:
        """``step``, and how the source was weighed in it, as in ``cross_attention_weights``."""
        self._check_attention()
        with record(self.decoder) as seen:
            logits, following = self.step(tokens, state)
            return logits, following, state.groups.queries_to_rows(seen[-1].weights()[:, 0])[:, 0]

    def _decode(self, source: Tensor, target: Tensor, mask: Mask | None) -> Float[Tensor, "batch length size"]:
        """What the decoder makes of a target that is known."""
        check_token_ids("source ids", source, self.vocab_sizes[0])
        check_token_ids("target ids", target, self.vocab_sizes[1])
        _check_sizes(source, target)
        state = self.start(source, lengths=None if mask is None else _lengths_from_mask(mask, source))
        given: Tensor = self.decoder.forward_sequence(self.dropout(self.target_words(target)), state)
        return given

    def _project_hidden(self, given: Tensor) -> Tensor:
        """What the decoder gave, in the size that the output reads."""
        hidden: Tensor = self.fit(self.dropout(given))
        return hidden

    def _check_attention(self) -> None:
        if self.decoder.attention is None:
            raise RefusedError(
                "a model without attention weighs no source token",
                expected="a decoder that attends",
                got="attention='none'",
                do="train a model with attention='additive'",
            )


def _make_decoder(config: RecurrentConfig) -> RecurrentDecoder:
    """The decoder that belongs to an attention."""
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
    """One head as wide as the state."""
    if config.attention == "none":
        return None
    options = {"window": config.window} if config.attention == "local_p" else {}
    return mechanism(config.attention, heads=1, head_dim=config.hidden, **options)


def _check_not_empty(name: str, ids: Tensor) -> None:
    """Raise ShapeError where there is nothing to read: cells take at least one step."""
    if 0 in ids.shape:
        raise ShapeError(
            f"{name} are empty",
            expected="one sequence or more, each of one token or more",
            got=str(tuple(ids.shape)),
            do="end each source with the end id, begin each target with the start id",
        )


def _check_sizes(source: Tensor, target: Tensor) -> None:
    """Raise ShapeError unless there are as many targets as sources, and each has a token."""
    _check_not_empty("target ids", target)
    if len(source) != len(target):
        raise ShapeError(
            "source and target are batches of different sizes",
            expected=f"{len(source)} targets, one for each source",
            got=f"source {tuple(source.shape)}, target {tuple(target.shape)}",
            do="take both from the same pairs",
        )


def _lengths_from_mask(mask: Mask, source: Tensor) -> Int[Tensor, " batch"]:
    """How many tokens of each source the mask shows. Raises RefusedError unless they are its first ones."""
    check_mask(mask)
    batch, length = source.shape
    if not mask.depends_on_query and mask.heads in (None, 1):
        mask.check(batch, 1, 1, length)
        shown = mask.dense(1, length, device="cpu")[:, 0, 0].expand(batch, length)
        lengths = shown.sum(-1)
        if torch.equal(shown, torch.arange(length) < lengths[:, None]):
            return lengths
    raise RefusedError(
        "a recurrent model reads a source token by token up to its last",
        expected="a mask that shows the first tokens of each source: masks.padding(lengths)",
        got=repr(mask),
        do="pad sources on the right, and pass masks.padding(lengths)",
    )


def _check_lengths(lengths: Tensor, source: Tensor) -> Int[Tensor, " batch"]:
    """The lengths on the CPU, where torch wants them. Raises ShapeError or DataError for those that do not fit."""
    check_tensor("lengths", lengths, "a tensor of integers (batch,)", do="torch.tensor(lengths)")
    if lengths.shape != source.shape[:1]:
        raise ShapeError(
            "lengths do not fit the sources",
            expected=f"one length for each of {len(source)} sources",
            got=f"shape {tuple(lengths.shape)}",
            do="count the tokens of each source, its end included",
        )
    masks.padding(lengths).check(len(source), 1, 1, source.shape[1])
    if bool((lengths < 1).any()):
        raise DataError(
            "a source is empty",
            expected="one token or more, if only the end",
            got="a length of 0",
            do="leave empty sentences out",
        )
    return lengths.cpu()


def bahdanau(vocabulary: int = 30000) -> Recurrent:
    """RNNsearch: Bahdanau et al. 2015, appendix A.2.3; a direction of the encoder has 500 cells, and 1,000 there."""
    return Recurrent(RecurrentConfig(vocabulary=vocabulary))


def luong(vocabulary: int = 50000) -> Recurrent:
    """Luong et al. 2015, section 4.1: 4 layers of 1,000, local-p, input feeding; there the encoder reads one way."""
    return Recurrent(
        RecurrentConfig(vocabulary=vocabulary, width=1000, layers=4, cell="lstm", attention="local_p", dropout=0.2)
    )


def recurrent_small(vocabulary: int) -> Recurrent:
    """Bahdanau's model with 512 cells and one matrix for all embeddings, for some ten thousands of pairs."""
    return Recurrent(RecurrentConfig(vocabulary=vocabulary, width=256, hidden=512, dropout=0.3, shared="all"))
