"""BERT: a text encoder, with its masked-language head if there is one.

    h_0 = norm(tokens[ids] + positions + segments)
    a   = norm(h + MultiHead(h, h)),   h' = norm(a + FFN(a))         for each layer
    pooled = tanh(W h_L[first token] + b)
    logits = head(h_L)                                               ``masked_language_model``

Devlin et al. 2019, "BERT: pre-training of deep bidirectional transformers", section 3 and figure 2; the pooler and the
layer norm epsilon of 1e-12 are from the published code. ids (batch, length) -> hidden (batch, length, width), logits
(batch, length, vocabulary).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import ShapeError, check_flag
from regard.masks import Mask
from regard.models.add_positions import add_positions
from regard.models.check_token_ids import check_token_ids
from regard.models.masked_language_model import MaskedLanguageOutput
from regard.models.post_norm_encoder import PostNormEncoder, PostNormEncoderConfig
from regard.models.weight_names import Row
from regard.positions import Learned


@final
@explain_arguments
@dataclass(frozen=True)
class BertConfig(PostNormEncoderConfig):
    """The hyperparameters of a BERT: see ``PostNormEncoderConfig``. Defaults are BERT base, uncased."""

    vocabulary: int = 30522

    model_name = "BERT"

    @property
    def head_activation(self) -> str:
        """The activation of the masked-language head: the same as in the feed-forward layers."""
        return self.activation

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        return self.write_fields(model_type="bert", name="Bert")


@final
@explain_arguments
class Bert(PostNormEncoder):
    """A BERT with random initial weights; ``regard.load`` loads a trained one.

    ``tokenizer`` and ``pooling`` come with a loaded model, else None. ``notes`` lists weights that loading skipped.
    """

    config: BertConfig
    config_class = BertConfig
    model_types = ("bert",)
    positions: Learned
    file_prefix = "bert."
    head_rows = (
        Row("cls.predictions.transform.dense", "head.transform"),
        Row("cls.predictions.transform.LayerNorm", "head.norm"),
    )
    head_name = "cls.predictions"

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        nn.init.normal_(self.positions.weight, std=float(config.deviation))

    def make_positions(self) -> Learned:
        """Make the table of positions."""
        return Learned(self.config.max_length, self.config.width)

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Mask | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        logits_at: Tensor | None = None,
        keep_layers: bool = False,
    ) -> MaskedLanguageOutput:
        """Compute the hidden states of token ids.

        Args:
            ids: token ids (batch, length), 0 to vocabulary - 1.
            mask: which tokens may attend to which, from ``regard.masks``; for padded ids ``masks.padding(lengths)``.
            segments: token types (batch, length): 0 for the first sentence, 1 for the second; None is all 0.
            positions: positions of the tokens in their texts, (batch, length), for texts that are packed behind one
                another; None counts from the first column.
            logits_at: the positions whose logits are computed, bool (batch, length): ``logits`` is then (number of
                positions, vocabulary); None is all.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError for more tokens than positions, OptionError for ids outside the vocabulary.
        """
        check_flag("keep_layers", keep_layers)
        tokens = self._embed(ids, segments, positions)
        return self.encode_tokens(tokens, mask=mask, logits_at=logits_at, keep_layers=keep_layers)

    def _embed(self, ids: Tensor, segments: Tensor | None, positions: Tensor | None) -> Tensor:
        self.check_ids(ids)
        words = add_positions(self.token_embedding(ids), self.positions, positions)
        if segments is None:
            segment = self.segments.weight[0]
        else:
            check_token_ids("segments", segments, self.config.segments)
            _check_same_shape(ids, segments)
            segment = self.segments(segments)
        embedded: Tensor = self.dropout(self.norm(words + segment))
        return embedded


def _check_same_shape(ids: Tensor, segments: Tensor) -> None:
    if ids.shape != segments.shape:
        raise ShapeError(
            "ids and segments have different shapes",
            expected=f"segments {tuple(ids.shape)}, like the ids",
            got=str(tuple(segments.shape)),
            do="pass a segment for each token, padding included",
        )


def bert_tiny() -> Bert:
    """BERT tiny, untrained: 2 layers of width 128. Turc et al. 2019, "Well-read students learn better", table 1."""
    return Bert(BertConfig(width=128, layers=2, heads=2, inner=512))


def bert_mini() -> Bert:
    """BERT mini, untrained: 4 layers of width 256. Turc et al. 2019, table 1."""
    return Bert(BertConfig(width=256, layers=4, heads=4, inner=1024))


def bert_small() -> Bert:
    """BERT small, untrained: 4 layers of width 512. Turc et al. 2019, table 1."""
    return Bert(BertConfig(width=512, layers=4, heads=8, inner=2048))


def bert_base() -> Bert:
    """BERT base, uncased, untrained: 12 layers of width 768. Devlin et al. 2019, section 3."""
    return Bert(BertConfig())


def bert_large() -> Bert:
    """BERT large, uncased, untrained: 24 layers of width 1,024. Devlin et al. 2019, section 3."""
    return Bert(BertConfig(width=1024, layers=24, heads=16, inner=4096))


def minilm() -> Bert:
    """MiniLM, untrained: 6 layers of width 384, as in ``regard.load("minilm")``. Wang et al. 2020, "MiniLM"."""
    return Bert(BertConfig(width=384, layers=6, heads=12, inner=1536))
