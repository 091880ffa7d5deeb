"""The base of encoders that are trained to fill in masked tokens: BERT, RoBERTa, ModernBERT.

    hidden = encoder(ids)               (batch, length, width)
    logits = head(hidden)               (batch, length, vocabulary), of the token at each position, with a head
    head(h) = W norm(act(V h + a)) + b

W is the matrix of the token embedding if the two are tied. Devlin et al. 2019, "BERT: pre-training of deep
bidirectional transformers", section 3.1, task 1; the layer V before the output is from the published code.

The masked-language head is a part of the file in some folders and not in others, and so is the pooler of a BERT: a
model has the parts whose weights its file holds.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import DtypeError, RefusedError, ShapeError
from regard.fields import repr_of_shapes
from regard.layers.projection import linear_activation
from regard.models import checkpoint_reader
from regard.models.base import Encoder
from regard.models.check_token_ids import check_texts_of_ids
from regard.models.kinds import MASKED_LANGUAGE_MODEL
from regard.models.model_folder import ModelFolder
from regard.models.select_tokens import select_tokens
from regard.models.weight_names import StoredTensor
from regard.tensors import check_tensor
from regard.text import Pooling
from regard.text.transformers_files import encoder_tokenizer_files


@final
class MaskedLanguageHead(nn.Module):
    """The head of a masked language model for hidden states of ``width``, with its ``activation`` and ``norm``.

    ``bias`` and ``output_bias`` say whether the first and the last linear layer have one.
    """

    def __init__(
        self,
        width: int,
        vocabulary: int,
        *,
        activation: str,
        norm: nn.Module,
        bias: bool = True,
        output_bias: bool = True,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.transform = nn.Linear(width, width, bias=bias)
        self.norm = norm
        self.output = nn.Linear(width, vocabulary, bias=output_bias)

    def forward(self, hidden: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows vocabulary"]:
        """Compute the logits of the token at each position from the hidden states after the last layer."""
        return linear_activation(self.norm(linear_activation(hidden, self.transform, self.activation)), self.output)


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class MaskedLanguageOutput:
    """The output of a masked language model.

    hidden  (batch, length, width)           hidden states after the last layer, and its norm if it has one
    layers  layers + 1 of the same shape     the embedding, then each layer's output, the last one equal to ``hidden``;
                                             None without ``keep_layers``
    pooled  (batch, width)                   the output of a BERT's pooler for the first token; None without a pooler
    logits  (batch, length, vocabulary)      of the token at each position, or (positions, vocabulary) with
                                             ``logits_at``; None if there is no masked-language head
    """

    __repr__ = repr_of_shapes

    hidden: Float[Tensor, "batch length width"]
    layers: tuple[Float[Tensor, "batch length width"], ...] | None = None
    pooled: Float[Tensor, "batch width"] | None = None
    logits: Float[Tensor, "*rows vocabulary"] | None = None


_OUTPUT, _EMBEDDING = "head.output.weight", "token_embedding.weight"
"""The weight that a tied head shares, and the name under which it is saved."""


class MaskedLanguageModel(Encoder, ABC):
    """An encoder with an optional masked-language ``head``; ``token_embedding`` is its embedding.

    ``tokenizer`` and ``pooling`` come with a loaded model, else None. ``notes`` lists weights that loading skipped.
    """

    kind = MASKED_LANGUAGE_MODEL
    """Configs of these models have ``vocabulary, width, layers, max_length, pad_id, head, tied``."""

    optional_parts: ClassVar[Mapping[str, str]] = MappingProxyType({"head": "head.transform.weight"})
    """The modules that a file may lack, and the tensor of each that tells. Each is also a flag of the config."""

    classifier_prefix: ClassVar[str | None] = None
    """The prefix of the tensors of a classifier, if its other layers are named as the layers of the head."""

    has_absolute_positions: ClassVar[bool] = False
    """Whether ``forward`` takes ``positions``, since positions are added to the embedding. Rotations by position depend
    on distances only, which are right in packed texts too."""

    token_embedding: nn.Embedding
    head: MaskedLanguageHead | None

    @property
    def max_tokens(self) -> int:
        """The maximum length of a sequence, in tokens."""
        return int(self.config.max_length)

    @property
    def commands(self) -> str:
        """The commands that use this model; without a head it is not evaluated."""
        return super().commands if self.config.head else super().commands.replace(", regard evaluate mlm", "")

    @final
    def compute_logits(self, hidden: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows vocabulary"]:
        """Compute the logits of the token at each position from hidden states, of some positions or all.

        Raises RefusedError for a model without a masked-language head.
        """
        if self.head is None:
            raise RefusedError(
                "this model has no masked-language head, so it has no logits",
                expected="a folder whose file holds the head, or a config with head=True",
                got=f"a {type(self).__name__} with head=False",
                do="load the folder of a masked language model",
            )
        logits: Tensor = self.head(hidden)
        return logits

    @final
    def select_logits(
        self, hidden: Float[Tensor, "batch length width"], at: Tensor | None
    ) -> Float[Tensor, "*rows vocabulary"] | None:
        """Compute the logits at the positions ``at``, in their order; at all, or None without a head, if it is None.

        Raises ShapeError or DtypeError unless ``at`` is a bool tensor (batch, length), and as ``compute_logits``.
        """
        if at is None:
            return None if self.head is None else self.compute_logits(hidden)
        check_tensor("logits_at", at, "a bool tensor (batch, length)", do="for example logits_at=ids == mask_id")
        if at.dtype is not torch.bool:
            raise DtypeError(
                "logits_at does not say which positions",
                expected="a bool tensor (batch, length)",
                got=str(at.dtype),
                do="for example logits_at=ids == mask_id",
            )
        if at.shape != hidden.shape[:2]:
            raise ShapeError(
                "ids and logits_at have different shapes",
                expected=f"logits_at {tuple(hidden.shape[:2])}, like the ids",
                got=str(tuple(at.shape)),
                do="pass True or False for each token",
            )
        return self.compute_logits(select_tokens(hidden, at))

    @final
    def remove_parts(self) -> None:
        """Remove the head, and the pooler of a BERT, from a model that is used for its hidden states alone."""
        for part in self.optional_parts:
            setattr(self, part, None)
        self.config = replace(self.config, **dict.fromkeys(self.optional_parts, False))

    @final
    def tie(self) -> None:
        """Let the head's output layer share the matrix of the embedding, if the config says so."""
        if self.head is not None and self.config.tied:
            self.head.output.weight = self.token_embedding.weight

    @final
    def check_ids(self, ids: object) -> None:
        """Raise DtypeError, ShapeError or OptionError unless ``ids`` are (batch, length) of 1 or more, and valid."""
        do = "every text has at least its special tokens after model.tokenizer.encode(texts)"
        check_texts_of_ids("ids", ids, self.config.vocabulary, do=do)

    @classmethod
    @final
    def read_stored_config(cls, folder: ModelFolder) -> Any:
        """Read the hyperparameters, and find out which optional parts the file holds weights of."""
        config = _with_stored_parts(cls, cls.read_config(folder.config), folder.stored)
        if not _has_own_output(cls, config, folder.stored):
            return config
        folder.note(checkpoint_reader.note_own_output(folder.path))
        return replace(config, tied=False)

    @final
    def read_files(self, folder: ModelFolder) -> None:
        """Read the tokenizer and the pooling."""
        self.tokenizer = folder.read_tokenizer(
            pad_id=folder.config.optional_integer("pad_token_id"),
            limit=self.max_tokens,
            vocabulary=self.config.vocabulary,
        )
        self.pooling = Pooling.read(folder.path)

    @final
    def folder_texts(self) -> dict[str, str]:
        """The files of the tokenizer and the pooling, as transformers and sentence-transformers read them."""
        files = {} if self.tokenizer is None else encoder_tokenizer_files(self.tokenizer, self.max_tokens)
        if self.pooling is not None and not self.pooling.others:
            files |= self.pooling.files(self.width, self.max_tokens)
        return files


def tied_head_weights(config: Any) -> dict[str, str]:
    """Maps the name of the head's tied weight to the name under which it is saved; empty without a tied head."""
    return {_OUTPUT: _EMBEDDING} if config.head and config.tied else {}


def _with_stored_parts(kind: type[MaskedLanguageModel], config: Any, stored: Mapping[str, StoredTensor]) -> Any:
    """Return the hyperparameters with the optional parts that the file holds weights of."""
    table = kind.make_weight_names(replace(config, **dict.fromkeys(kind.optional_parts, True)))
    origins, _ = table.origins(stored)
    parts = {part: tensor in origins for part, tensor in kind.optional_parts.items()}
    if kind.classifier_prefix is not None and any(name.startswith(kind.classifier_prefix) for name in stored):
        parts["head"] = False
    return replace(config, **parts)


def _has_own_output(kind: type[MaskedLanguageModel], config: Any, stored: Mapping[str, StoredTensor]) -> bool:
    """Whether the file holds an output layer of its own, though config.json says that it shares the embedding."""
    if not (config.head and config.tied):
        return False
    origins, _ = kind.make_weight_names(replace(config, tied=False)).origins(stored)
    return checkpoint_reader.hold_other_numbers(origins, _OUTPUT, _EMBEDDING)
