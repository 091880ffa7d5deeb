"""Gato: one decoder that reads what agents of many tasks observe, and writes what they do.

    h_0 = dropout(embed(s_1 .. s_n)),    h_l = block_l(h_l-1),    logits = norm(h_L) table^T
    a   = h + MultiHead(norm(h)),    h' = a + GEGLU(norm(a))
    L   = - sum_t m(t) log p(s_t | s_1 .. s_t-1)          m(t) = 1 for tokens of texts and actions, else 0

Token t attends to itself and the ``max_length`` - 1 tokens before it; in a training sequence of that length, to all.
Reed et al. 2022, "A generalist agent", equations 1 and 2 and appendix C. The paper does not say how the decoder knows
the order of time steps; here by rotary positions, so that acting can go on for any time.
batch (``gato_batch.py``) -> hidden (batch, length, width), logits (batch, length, vocabulary) of the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard import masks
from regard.arguments import explain_arguments
from regard.copy_to_device import copy_to
from regard.errors import OptionError, ShapeError, check_kind, check_number, check_size, short_repr
from regard.layers import DecoderBlock, DecoderCache, Dropout, FeedForward, MultiHeadAttention, PreNorm
from regard.models.base import SequenceOutput
from regard.models.check_token_ids import check_token_ids
from regard.models.gato_batch import GatoBatch
from regard.models.gato_config import MODEL_TYPE, GatoConfig
from regard.models.gato_embedding import GatoEmbedding
from regard.models.initial_weights import init_from_normal
from regard.models.kinds import GATO
from regard.models.model import Model, tokenizer_text
from regard.models.model_folder import ModelFolder
from regard.models.select_tokens import select_tokens
from regard.models.weight_names import Row, WeightNames
from regard.positions import Rotary
from regard.text import Tokenizer

IGNORED = -100
_WEIGHT_NAMES = WeightNames((Row("{path}", "{path}"),))


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class GatoState:
    """The keys and values of the last tokens, between two steps of acting; ``rows`` agents act together."""

    caches: tuple[DecoderCache, ...]
    rows: int

    def reordered(self, entries: Int[Tensor, " rows"]) -> GatoState:
        """Select the rows ``entries``, in that order; a row may be selected more than once."""
        return GatoState(tuple(cache.reordered(entries) for cache in self.caches), len(entries))


@final
@explain_arguments
class Gato(Model):
    """A Gato with random initial weights; ``regard.load`` loads a trained one.

    ``tokenizer`` reads texts, None without texts; ``metadata`` describes the training.
    """

    config: GatoConfig
    config_class = GatoConfig
    model_types = (MODEL_TYPE,)
    kind = GATO
    tokenizer: Tokenizer | None = None

    def __init__(self, config: GatoConfig) -> None:
        super().__init__(config)
        self.embedding = GatoEmbedding(config)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(_make_layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        init_from_normal(self, float(config.deviation))

    def forward(self, batch: GatoBatch, *, where: Tensor | None = None) -> SequenceOutput:
        """Compute the logits of the token after each position.

        With ``where``, bool (batch, length), the output has only the positions where it is True, in row-major order and
        in one row, (1, positions, ..): most tokens of an observation predict nothing. A batch and ``where`` that are on
        the CPU are read there, and copied to the device of the model, for which nothing waits. Raises ShapeError,
        DtypeError or OptionError for a batch that does not fit.
        """
        self._check(batch)
        mask = self._mask & masks.padding(batch.lengths)
        tokens = self.dropout(self.embedding(batch))
        for block in self._blocks:
            tokens = block(tokens, mask=mask)
        return self._output(tokens, where)

    def loss(self, batch: GatoBatch) -> tuple[Float[Tensor, ""], int]:
        """The loss summed over the targets of the batch, in nats, and the number of targets.

        The first token of a sequence is not predicted.
        """
        labels = batch.labels(IGNORED)
        predicts = labels != IGNORED
        logits = self(batch, where=predicts).logits[0]
        total = functional.cross_entropy(logits, copy_to(labels[predicts], logits.device), reduction="sum")
        return total, int(predicts.sum())

    def empty_state(self, rows: int) -> GatoState:
        """Make the state of ``rows`` agents before their first observation."""
        check_size("rows", rows)
        window = self.config.max_length
        caches = (DecoderCache(block.attention.empty_cache(window=window)) for block in self._blocks)
        return GatoState(tuple(caches), rows)

    def extend(self, batch: GatoBatch, state: GatoState) -> tuple[SequenceOutput, GatoState]:
        """Read more tokens of each row; return the output for them, and the next state.

        All rows have the same number of tokens: agents of one task act together. Raises ShapeError for others.
        """
        self._check(batch)
        check_kind("state", state, GatoState, do="state = model.empty_state(rows)")
        if len(batch.ids) != state.rows or bool((batch.lengths != batch.ids.shape[1]).any()):
            raise ShapeError(
                "the batch does not fit the state",
                expected=f"{state.rows} rows of one length, without padding",
                got=f"{len(batch.ids)} rows of {sorted(set(batch.lengths.tolist()))} tokens",
                do="act with agents whose observations have as many tokens, or with one agent",
            )
        tokens, caches = self.dropout(self.embedding(batch)), []
        for block, known in zip(self._blocks, state.caches, strict=True):
            tokens, cache = block(tokens, mask=self._mask, cache=known)
            caches.append(cache)
        return self._output(tokens), GatoState(tuple(caches), state.rows)

    @torch.no_grad()
    def act(
        self,
        observation: GatoBatch,
        state: GatoState,
        action_ids: range,
        tokens: int,
        *,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> tuple[Int[Tensor, "rows tokens"], GatoState]:
        """Read an observation, write an action, and return its ids and the state after it.

        Args:
            observation: the tokens of ``StepTokenizer.tokenize_observation``, a row for each agent.
            state: from ``empty_state``, or from the last call.
            action_ids: ``StepTokenizer.action_ids``, the ids to choose among.
            tokens: ``StepTokenizer.action_tokens``.
            temperature: of sampling; 0 chooses the most probable id.
            generator: of sampling.

        Raises OptionError for ids outside the vocabulary, and as ``extend`` does.
        """
        check_size("tokens", tokens)
        check_number("temperature", temperature, minimum=0.0)
        if (
            not isinstance(action_ids, range)
            or not action_ids
            or not 0 <= min(action_ids) <= max(action_ids) < (self.config.vocabulary)
        ):
            raise OptionError(
                "wrong action_ids",
                expected=f"a range of ids from 0 to {self.config.vocabulary - 1}",
                got=short_repr(action_ids),
                do="pass StepTokenizer.action_ids of the same ranges",
            )
        output, state = self.extend(observation, state)
        written = []
        for _ in range(tokens):
            scores = output.logits[:, -1, action_ids.start : action_ids.stop : action_ids.step].float()
            chosen = choose_ids(scores, temperature, generator)
            written.append(action_ids.start + action_ids.step * chosen)
            batch = GatoBatch.of_actions(written[-1][:, None], channels=self.config.channels)
            output, state = self.extend(batch, state)
        return torch.stack(written, dim=1), state

    @classmethod
    def make_weight_names(cls, config: GatoConfig) -> WeightNames:
        """Make the table of the names of weights, the same in a file and in the model."""
        del config
        return _WEIGHT_NAMES

    @classmethod
    def build(cls, folder: ModelFolder, config: GatoConfig) -> Gato:
        """Build the model. Raises CheckpointError for hyperparameters that do not go together."""
        return folder.config.build(cls, config=config)

    def read_files(self, folder: ModelFolder) -> None:
        """Read the tokenizer of texts."""
        self.tokenizer = folder.read_tokenizer(pad_id=None, limit=None, vocabulary=self.config.text)

    def folder_texts(self) -> dict[str, str]:
        """The file of the tokenizer, as a text by file name."""
        return tokenizer_text(self.tokenizer)

    def _output(self, tokens: Tensor, where: Tensor | None = None) -> SequenceOutput:
        hidden = self.norm(tokens if where is None else select_tokens(tokens, where)[None])
        return SequenceOutput(hidden, functional.linear(hidden, self.embedding.table.weight))

    def _check(self, batch: object) -> None:
        check_kind("batch", batch, GatoBatch, do="make it with GatoBatch.from_sequences")
        assert isinstance(batch, GatoBatch)
        visible = batch.visible
        check_token_ids("ids", batch.ids.masked_fill(~visible, 0), self.config.vocabulary)
        if batch.ids.shape[1] == 0:
            raise ShapeError(
                "ids have no tokens",
                expected="ids (batch, length) with a length of 1 or more",
                got=str(tuple(batch.ids.shape)),
                do="leave out empty sequences",
            )
        longest = int(batch.local.masked_fill(~visible, 0).max()) + 1
        if longest > self.config.max_observation:
            raise ShapeError(
                "an observation has more tokens than the model has local positions",
                expected=f"at most {self.config.max_observation} tokens",
                got=str(longest),
                do="use smaller pictures, or a model with a larger max_observation",
            )

    @property
    def _mask(self) -> masks.Mask:
        return masks.window(self.config.max_length - 1, 0)

    @property
    def _blocks(self) -> Sequence[DecoderBlock]:
        return cast("Sequence[DecoderBlock]", self.layers)


def _make_layer(config: GatoConfig) -> DecoderBlock:
    return DecoderBlock(
        attention=MultiHeadAttention(config.width, config.heads, position=Rotary(config.width // config.heads)),
        feed_forward=FeedForward(config.width, config.inner, activation="geglu"),
        attention_residual=PreNorm(nn.LayerNorm(config.width, eps=config.epsilon), dropout=config.dropout),
        feed_forward_residual=PreNorm(nn.LayerNorm(config.width, eps=config.epsilon), dropout=config.dropout),
    )


def choose_ids(
    scores: Float[Tensor, "rows ids"], temperature: float, generator: torch.Generator | None
) -> Int[Tensor, " rows"]:
    """Choose an id of each row: the most probable with a temperature of 0, else a sample."""
    if temperature == 0:
        return scores.argmax(-1)
    probabilities = (scores / temperature).softmax(-1)
    if generator is None:
        return torch.multinomial(probabilities, 1)[:, 0]
    # On the generator's device, so that a seed draws the same wherever the model is.
    chosen = torch.multinomial(probabilities.to(generator.device), 1, generator=generator)[:, 0]
    return chosen.to(scores.device)


@explain_arguments
def gato_79m() -> Gato:
    """The smallest published Gato, untrained: 8 layers of width 768. Reed et al. 2022, table 5."""
    return Gato(GatoConfig())


@explain_arguments
def gato_364m() -> Gato:
    """The middle one, untrained: 12 layers of width 1,536. Reed et al. 2022, table 5."""
    return Gato(GatoConfig(width=1536, layers=12, heads=12, inner=6144))


@explain_arguments
def gato_1_2b() -> Gato:
    """The published Gato of 1.2 billion weights, untrained: 24 layers of width 2,048. Reed et al. 2022, table 5."""
    return Gato(GatoConfig(width=2048, layers=24, heads=16, inner=8192))
