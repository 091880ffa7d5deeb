"""A text classifier: an encoder, pooling, and a linear head with one logit for each label.

    hidden = encoder(ids)                             (batch, length, width)
    s = the mean of the tokens' vectors, or the first token's vector             (batch, width)
    logits = W dropout(s) + b                         (batch, labels)

One label per text: p = softmax(logits). Several labels per text: p_i = sigmoid(logits_i), independent of each other.
The first token: Devlin et al. 2019, "BERT", section 4.1; the mean: Reimers and Gurevych 2019, "Sentence-BERT",
section 3. The encoder is a BERT, a RoBERTa, a ModernBERT, a
``TransformerEncoder`` or a Perceiver of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.copy_to_device import copy_to
from regard.devices import to_float64
from regard.errors import CheckpointError, OptionError, RefusedError, check_flag, check_kind, short_repr
from regard.fields import check_fields, declare, repr_of_shapes
from regard.layers import Dropout
from regard.masks import Mask
from regard.masks.padding import Padding
from regard.models import checkpoint_reader
from regard.models.base import Encoder
from regard.models.bert import Bert
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import model_field, probability_field
from regard.models.kinds import CLASSIFIER
from regard.models.model import Model
from regard.models.model_folder import ModelFolder
from regard.models.modernbert import ModernBert
from regard.models.perceiver_text_encoder import PerceiverTextEncoder
from regard.models.roberta import Roberta
from regard.models.transformer_encoder import TransformerEncoder
from regard.models.weight_names import Origin, WeightNames, same_names
from regard.text.pooling import MODES, Pooling

WEIGHT_NAMES = WeightNames(same_names("encoder.{path}", "head"))
"""The names of the weights, the same in a file and in the model."""
_HEAD_DEVIATION = 0.02
"""Standard deviation of the head's initial weights, as in the published code of BERT."""


@final
@explain_arguments
@dataclass(frozen=True)
class TextClassifierConfig:
    """The hyperparameters that a classifier adds to its encoder.

    Raises OptionError for values out of range, and for labels that are empty or not different.
    """

    labels: tuple[str, ...] = field(metadata=declare("the names of the labels, in the order of the logits"))
    several: bool = model_field(
        False, "whether a text may have several labels, or none; each then has a probability of its own"
    )
    pooling: str = model_field("mean", '"mean", the mean over the tokens, or "cls", the first token', choices=MODES)
    dropout: float = probability_field(0.1, "dropout before the head")
    max_tokens: int | None = model_field(
        None, "the most tokens of a text, the limit of training; None is the limit of the encoder", minimum=1
    )

    def __post_init__(self) -> None:
        _check_labels(self.labels, several=self.several)
        check_fields(self)


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class ClassifierOutput:
    """The output of a classifier.

    hidden  (batch, length, width)           the encoder's hidden states after its last layer
    logits  (batch, labels)
    layers  layers + 1 of the shape of hidden: the embedding, then each layer's output; None without ``keep_layers``
    """

    __repr__ = repr_of_shapes

    hidden: Float[Tensor, "batch length width"]
    logits: Float[Tensor, "batch labels"]
    layers: tuple[Float[Tensor, "batch length width"], ...] | None = None


@final
@explain_arguments
class TextClassifier(Encoder):
    """A text classifier on ``encoder``, with a head of random weights; ``regard.load`` loads a trained one.

    The encoder becomes a part of the classifier, and a BERT loses its pooler and its masked-language head, which are
    not used. Its tokenizer is used, with the limit of ``config.max_tokens``. ``pooling`` is the classifier's pooling
    with length 1, for embedding texts. ``metadata`` describes the training, empty for a new model.
    """

    model_type = "regard-text-classifier"
    model_types = (model_type,)

    config: TextClassifierConfig
    config_class = TextClassifierConfig
    kind = CLASSIFIER

    def __init__(self, encoder: Encoder, config: TextClassifierConfig) -> None:
        super().__init__(config)
        check_kind("encoder", encoder, Encoder, do='for example regard.load("minilm")')
        if isinstance(encoder, TextClassifier):
            raise OptionError(
                "the encoder is a classifier itself",
                expected="an encoder without a head",
                got="a TextClassifier",
                do="pass classifier.encoder",
            )
        encoder.remove_parts()  # their weights would never be trained
        self.encoder = encoder
        self.attends_through_latents = encoder.attends_through_latents
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear(encoder.width, len(config.labels))
        self.pooling = Pooling((config.pooling,))
        nn.init.normal_(self.head.weight, std=_HEAD_DEVIATION)
        nn.init.zeros_(self.head.bias)
        if encoder.tokenizer is not None:
            self.tokenizer = encoder.tokenizer.with_limit(self.max_tokens)

    def forward(self, ids: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> ClassifierOutput:
        """Compute the logits of texts.

        Args:
            ids: token ids (batch, length); every text has at least one token.
            mask: for padded ids ``masks.padding(lengths)``; None if no text is padded.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises what the encoder raises, and RefusedError for another mask with the mean over the tokens.
        """
        check_flag("keep_layers", keep_layers)
        options = {"keep_layers": True} if keep_layers else {}
        output = self.encoder(ids, mask=mask, **options)
        pooling = Pooling((self.config.pooling,), normalise=False)
        pooled = pooling.pool(output.hidden, self._lengths(ids, mask))
        logits = self.head(self.dropout(pooled.to(self.head.weight.dtype)))
        return ClassifierOutput(output.hidden, logits, output.layers if keep_layers else None)

    def probabilities(self, logits: Float[Tensor, "batch labels"]) -> Float[Tensor, "batch labels"]:
        """Probabilities of the labels, in float64: they sum to 1 unless a text may have several labels."""
        wide = to_float64(logits)
        return wide.sigmoid() if self.config.several else wide.softmax(dim=-1)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the logits."""
        return self.config.labels

    @property
    def pad_id(self) -> int:
        """The id of the padding token."""
        return self.encoder.pad_id

    @property
    def width(self) -> int:
        """The number of components of a hidden state of the encoder."""
        return self.encoder.width

    @property
    def max_tokens(self) -> int | None:
        """The maximum length of a text, in tokens: the limit of training or of the encoder; None is no limit."""
        limits = [limit for limit in (self.config.max_tokens, self.encoder.max_tokens) if limit is not None]
        return min(limits, default=None)

    @property
    def configured(self) -> Model:
        """The encoder, whose config names its mechanism."""
        return self.encoder

    @classmethod
    def make_weight_names(cls, config: object) -> WeightNames:
        """Make the table of the names of weights, the same in a file and in the model."""
        del config
        return WEIGHT_NAMES

    @classmethod
    def read_config(cls, config: ConfigFile) -> TextClassifierConfig:
        """Read what the classifier adds to its encoder. Raises CheckpointError for missing or unusable fields."""
        return _read_config(config)

    def config_fields(self) -> dict[str, Any]:
        """The fields of config.json. Raises RefusedError as ``encoder_fields``."""
        return {"model_type": self.model_type, **asdict(self.config), "encoder": self.encoder_fields}

    @classmethod
    def check_layers(cls, folder: ModelFolder, config: object, origins: Mapping[str, Origin]) -> None:
        """Raise CheckpointError for an encoder of more layers than the folder has tensors."""
        del config, origins
        inner = _read_encoder_fields(folder.config)
        checkpoint_reader.check_depth(_find_encoder_class(inner).read_config(inner).layers, folder.stored)

    @classmethod
    def build(cls, folder: ModelFolder, config: TextClassifierConfig) -> TextClassifier:
        """Build a classifier on the encoder that config.json describes."""
        inner = _read_encoder_fields(folder.config)
        kind = _find_encoder_class(inner)
        return cls(kind.build(folder, kind.read_config(inner)), config)

    def read_files(self, folder: ModelFolder) -> None:
        """Read the tokenizer, with the limits of the encoder and of the classifier."""
        tokenizer = folder.read_tokenizer(
            pad_id=self.pad_id, limit=self.encoder.max_tokens, vocabulary=self.encoder.config.vocabulary
        )
        if tokenizer is not None:
            self.encoder.tokenizer, self.tokenizer = tokenizer, tokenizer.with_limit(self.max_tokens)

    @property
    def encoder_fields(self) -> dict[str, Any]:
        """The type and the hyperparameters of the encoder, as in config.json.

        Raises RefusedError for an encoder of another class than those that a classifier is loaded with.
        """
        if isinstance(self.encoder, tuple(_ENCODERS.values())):
            return self.encoder.config_fields()
        raise RefusedError(
            "a classifier with this encoder cannot be saved, since it could not be loaded",
            expected=" or ".join(dict.fromkeys(encoder.__name__ for encoder in _ENCODERS.values())),
            got=type(self.encoder).__name__,
            do="save its weights with safetensors",
        )

    def _lengths(self, ids: Tensor, mask: Mask | None) -> Int[Tensor, " batch"]:
        """The number of tokens of each text, from the padding mask."""
        if isinstance(mask, Padding) and mask.side == "right":
            lengths = copy_to(mask.lengths, ids.device)
            return lengths.expand(ids.shape[0]) if mask.batch is None else lengths
        if mask is not None and self.config.pooling != "cls":
            raise RefusedError(
                "the mean over the tokens needs to know which tokens are padding",
                expected="mask=masks.padding(lengths), or None",
                got=repr(mask),
                do="pad on the right: batch = model.tokenizer.encode(texts); model(batch.ids, mask=batch.mask)",
            )
        return torch.full((ids.shape[0],), ids.shape[1], device=ids.device)


_ENCODERS: Mapping[str, type[Encoder]] = {
    model_type: encoder
    for encoder in (Bert, ModernBert, Roberta, TransformerEncoder, PerceiverTextEncoder)
    for model_type in encoder.model_types
}
"""The encoders of classifiers, by their ``model_type``."""


def _check_labels(labels: object, *, several: bool) -> None:
    check_flag("several", several)
    listed = labels if isinstance(labels, tuple) else ()
    fits = all(isinstance(label, str) and label.strip() for label in listed) and len(set(listed)) == len(listed)
    minimum = 1 if several else 2
    if not fits or len(listed) < minimum:
        raise OptionError(
            "wrong labels",
            expected=f"a tuple of {minimum} or more different names",
            got=short_repr(labels),
            do='for example labels=("no", "yes")',
        )


def _read_config(config: ConfigFile) -> TextClassifierConfig:
    labels, several = config.fields.get("labels"), config.fields.get("several", False)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise config.field_error("labels", "a list of strings")
    return config.build(
        TextClassifierConfig,
        labels=tuple(labels),
        several=several,
        pooling=config.choice("pooling", MODES, default="mean"),
        dropout=config.number("dropout", default=0.1, below=1.0),
        max_tokens=config.optional_integer("max_tokens"),
    )


def _read_encoder_fields(config: ConfigFile) -> ConfigFile:
    fields = config.fields.get("encoder")
    if not isinstance(fields, dict):
        raise config.field_error("encoder", "an object that describes the encoder")
    return ConfigFile(fields, config.path)


def _find_encoder_class(config: ConfigFile) -> type[Encoder]:
    if config.model_type not in _ENCODERS:
        raise CheckpointError(
            f"{config.path} has an unsupported encoder",
            expected="one of " + ", ".join(sorted(_ENCODERS)),
            got=f"model_type {config.model_type!r}",
            do="check that the file belongs to this model",
        )
    return _ENCODERS[config.model_type]
