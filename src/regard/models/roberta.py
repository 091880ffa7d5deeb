"""RoBERTa and XLM-R: text encoders of the form of BERT, with their masked-language head if there is one.

    p_t = pad + (number of tokens up to t that are no padding);  pad for padding
    h_0 = norm(tokens[ids] + positions[p] + segment)
    a   = norm(h + MultiHead(h, h)),   h' = norm(a + FFN(a))         for each layer
    pooled = tanh(W h_L[first token] + b)
    logits = head(h_L)                                               ``masked_language_model``, with GELU

Liu et al. 2019, "RoBERTa: a robustly optimized BERT pretraining approach", section 3; Conneau et al. 2020,
"Unsupervised cross-lingual representation learning at scale" (XLM-R), section 3; Martin et al. 2020, "CamemBERT",
section 3. The count of positions, which begins behind the padding id, and the one segment are from the published code.
ids (batch, length) -> hidden (batch, length, width), logits (batch, length, vocabulary).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import ShapeError, check_flag
from regard.masks import Mask
from regard.models.check_token_ids import check_token_positions
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import model_type_field
from regard.models.masked_language_model import MaskedLanguageOutput
from regard.models.post_norm_encoder import PostNormEncoder, PostNormEncoderConfig
from regard.models.weight_names import Row

ROBERTA_TYPES: Mapping[str, str] = {"camembert": "Camembert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta"}
"""The model types that ``Roberta`` reads and writes, and how the names of their classes in ``transformers`` begin."""


@final
@explain_arguments
@dataclass(frozen=True)
class RobertaConfig(PostNormEncoderConfig):
    """The hyperparameters of a RoBERTa: see ``PostNormEncoderConfig``. Defaults are RoBERTa base.

    The file has ``pad_id`` + 1 more rows of positions than ``max_length``. Of the ``segments`` in the file only the
    first is used. Raises OptionError for values out of range.
    """

    vocabulary: int = 50265
    segments: int = 1
    epsilon: float = 1e-5
    pad_id: int = 1
    model_type: str = model_type_field("roberta", ROBERTA_TYPES)

    model_name = "RoBERTa"

    @property
    def head_activation(self) -> str:
        """The activation of the masked-language head, which is fixed."""
        return "gelu"

    @property
    def position_rows(self) -> int:
        """The number of rows of the table of positions: counting begins behind the padding id."""
        return self.max_length + self.pad_id + 1

    @classmethod
    def from_hugging_face(cls, config: ConfigFile) -> RobertaConfig:
        """Read the config from a Hugging Face config.json. Raises CheckpointError for missing or unusable fields."""
        read = super().from_hugging_face(config)
        return config.build_again(read, max_length=read.max_length - read.pad_id - 1)

    def to_hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        written = self.write_fields(model_type=self.model_type, name=ROBERTA_TYPES[self.model_type])
        return written | {"max_position_embeddings": self.position_rows}


@final
@explain_arguments
class Roberta(PostNormEncoder):
    """A RoBERTa with random initial weights; ``regard.load`` loads a trained one."""

    config: RobertaConfig
    config_class = RobertaConfig
    model_types = tuple(ROBERTA_TYPES)
    positions: nn.Embedding
    file_prefix = "roberta."
    head_rows = (Row("lm_head.dense", "head.transform"), Row("lm_head.layer_norm", "head.norm"))
    head_name = "lm_head"

    def __init__(self, config: RobertaConfig) -> None:
        super().__init__(config)

    def make_positions(self) -> nn.Embedding:
        """Make the table of positions."""
        return nn.Embedding(self.config.position_rows, self.config.width)

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        logits_at: Tensor | None = None,
        keep_layers: bool = False,
    ) -> MaskedLanguageOutput:
        """Compute the hidden states of token ids.

        Args:
            ids: token ids (batch, length), 0 to vocabulary - 1. Positions are counted over those that are not
                ``pad_id``, so padding, on either side, is filled with it.
            mask: which tokens may attend to which, from ``regard.masks``; for padded ids ``masks.padding(lengths)``.
            positions: positions of the tokens in their texts, (batch, length), from 0, for texts that are packed behind
                one another; None counts the tokens of each row that are no padding.
            logits_at: the positions whose logits are computed, bool (batch, length): ``logits`` is then (number of
                positions, vocabulary); None is all.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError for more tokens than positions, OptionError for ids outside the vocabulary.
        """
        check_flag("keep_layers", keep_layers)
        tokens = self._embed(ids, positions)
        return self.encode_tokens(tokens, mask=mask, logits_at=logits_at, keep_layers=keep_layers)

    def _embed(self, ids: Tensor, positions: Tensor | None) -> Tensor:
        self.check_ids(ids)
        if positions is None:
            rows = self._count_positions(ids)
        else:
            check_token_positions(positions, ids, self.config.max_length)
            rows = positions + self.config.pad_id + 1
        words = self.token_embedding(ids) + self.segments.weight[0]
        embedded: Tensor = self.dropout(self.norm(words + self.positions(rows)))
        return embedded

    def _count_positions(self, ids: Tensor) -> Tensor:
        """The row of the position embedding of each token. Raises ShapeError for more tokens than positions."""
        is_token = ids != self.config.pad_id
        counts = is_token.cumsum(1) * is_token
        if ids.shape[1] > self.config.max_length and int(counts.max()) > self.config.max_length:
            raise ShapeError(
                "the sequence is longer than the model's positions",
                expected=f"at most {self.config.max_length} tokens",
                got=f"{int(counts.max())} tokens",
                do="split the text, or truncate it: model.tokenizer.encode(texts, truncate=True)",
            )
        return counts + self.config.pad_id


@explain_arguments
def roberta_base() -> Roberta:
    """RoBERTa base, untrained: 12 layers of width 768. Liu et al. 2019, section 3."""
    return Roberta(RobertaConfig())


@explain_arguments
def roberta_large() -> Roberta:
    """RoBERTa large, untrained: 24 layers of width 1,024. Liu et al. 2019, section 5."""
    return Roberta(RobertaConfig(width=1024, layers=24, heads=16, inner=4096))


@explain_arguments
def xlm_roberta_base() -> Roberta:
    """XLM-R base, untrained: 12 layers of width 768, for 100 languages. Conneau et al. 2020, section 3."""
    return Roberta(RobertaConfig(vocabulary=250002, model_type="xlm-roberta"))
