"""Reading of a text: run a model on it and capture its attention layers.

A model of regard is read as it is. Models of another library are ``TextModel`` too: ``regard.hf`` has the models of
``transformers``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import DataError, OptionError, check_kind
from regard.models import Encoder, TextClassifier
from regard.models.model import Model
from regard.recording import LayerCall, Recording, record
from regard.recording.captured_inputs import capture_projections
from regard.text.tokenizer import TokenizedText, Tokenizer
from regard.view.attention_layer import AttentionLayer
from regard.view.captured_projections import add_projections
from regard.view.from_recording import check_number_of_weights, layers_of, to_float32
from regard.view.layer_weights import LayerWeights
from regard.view.reading import Answer, PairReading, Reading, Tokens
from regard.view.rollout import latent_rollouts_by_head

_THROUGH_LATENTS = (
    "The queries of a Perceiver read the text through its latents: these are the weights of its layers, multiplied as "
    "attention rollout does."
)


class TextModel(ABC):
    """A model of another library that texts are read with."""

    tokenizer: Tokenizer

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the model in messages."""

    @abstractmethod
    def read_tokens(self, text: TokenizedText, name: str) -> Reading:
        """Capture every attention layer for the tokens of a text, which messages call ``name``."""

    @property
    @abstractmethod
    def is_encoder_decoder(self) -> bool:
        """Whether the model reads a source and writes a target."""

    @abstractmethod
    def read_pair(self, source: str, target: str | None, *, source_name: str, target_name: str) -> PairReading:
        """Capture every attention layer while a source is translated to ``target``: see ``view.read_pair``."""


@explain_arguments
def read(model: Any, text: str, *, truncate: bool = False, name: str = "the text") -> Reading:
    """Capture every attention layer of ``model``, from ``regard.load``, for a text; of a classifier also its answer.

    Of a CLIP, the layers of its text tower are read. The first token of a decoder, where no token attends to a later
    one, is kept apart (``Reading.sink``). A Perceiver has a layer of the heads that read the text and a layer of the
    heads of its queries, both through the latents. Raises DataError for a text without tokens, for one longer than the
    model's limit unless ``truncate`` is set, and for one with too many weights; ``name`` is the text's name in
    messages. Raises CheckpointError for a model without tokenizer, and OptionError for a Perceiver that does not answer
    for each token of a text.
    """
    if isinstance(model, TextModel):
        return model.read_tokens(_tokenize(model.tokenizer, text, truncate=truncate, name=name), name)
    check_kind("model", model, Model, do='model = regard.load("minilm")')
    model = Encoder.part_of(model) or model
    if model.attends_through_latents and not isinstance(model, Encoder):
        raise OptionError(
            "this Perceiver is no text encoder",
            expected="a Perceiver with a TextInput, and a TextOutput or a PositionOutput",
            got=type(model).__name__,
            do="record its layers in Python: with regard.record(model) as seen",
        )
    with capture_projections(model) as captured:
        tokenized, calls, output = record_text(model, text, truncate=truncate, name=name)
    if model.attends_through_latents:
        layers: tuple[AttentionLayer, ...] = _perceiver_layers(calls)
    else:
        layers = add_projections(layers_of(calls), captured)
    answer = _read_answer(model, output.logits) if isinstance(model, TextClassifier) else None
    return make_reading(tokenized, layers, output.layers, answer)


def record_text(model: Model, text: str, *, truncate: bool, name: str) -> tuple[TokenizedText, Recording, Any]:
    """Run a model of regard, or the text tower of a CLIP, on a text: its tokens, attention layers and output.

    Raises as ``read`` does.
    """
    model = Encoder.part_of(model) or model
    tokenized = _tokenize(model.require_tokenizer(), text, truncate=truncate, name=name)
    with torch.no_grad(), record(model) as recording:
        ids = torch.tensor([tokenized.ids], device=model.device)
        output = model(ids, keep_layers=not model.attends_through_latents)
    return tokenized, recording, output


def make_reading(
    text: TokenizedText,
    layers: tuple[AttentionLayer, ...],
    hidden: Sequence[Tensor] | None,
    answer: Answer | None = None,
) -> Reading:
    """Make the reading of a text from its layers, and the hidden states (1, tokens, width) before and after each."""
    return Reading(
        tokens=tokens_of(text),
        layers=layers,
        hidden=None if hidden is None else np.asarray(to_float32(torch.cat(tuple(hidden)))),
        dropped=text.dropped,
        answer=answer,
        sink=find_sink(layers, len(text)),
    )


def find_sink(layers: Sequence[AttentionLayer], tokens: int) -> int | None:
    """The token that views of a text with these layers keep apart: the first one of a decoder."""
    return 0 if layers and tokens > 1 and all(layer.is_causal for layer in layers) else None


def tokens_of(text: TokenizedText) -> Tokens:
    """The tokens of a text, as the views show them."""
    return Tokens(text.text, text.tokens, spans_without_spaces(text.text, text.spans), text.special)


def spans_without_spaces(text: str, spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Spans without the white space before a token, which some tokenizers count as a part of it."""
    trimmed = []
    for start, end in spans:
        lead = len(text[start:end]) - len(text[start:end].lstrip())
        trimmed.append((start + lead, end) if start + lead < end else (start, end))
    return tuple(trimmed)


def _tokenize(tokenizer: Tokenizer, text: str, *, truncate: bool, name: str) -> TokenizedText:
    """Tokenize a text. Raises DataError for one that is too long, or that has no tokens."""
    (tokenized,) = tokenizer.tokenize([text], truncate=truncate)
    tokenizer.check_length(tokenized, name)
    if not tokenized.ids:
        raise DataError(f"{name} has no tokens", expected="a text", got=repr(text), do="give a text in quotes")
    return tokenized


def _read_answer(model: TextClassifier, logits: Tensor) -> Answer:
    """The probabilities of a classifier's labels for one text."""
    probabilities = zip(model.labels, model.probabilities(logits)[0].tolist(), strict=True)
    ranked = tuple(sorted(probabilities, key=lambda pair: -pair[1]))
    return Answer(ranked, model.config.several, model.config.pooling)


def _perceiver_layers(calls: Sequence[LayerCall]) -> tuple[LayerWeights, LayerWeights]:
    """Layers of a Perceiver of texts: the attention of its queries, one for each token, through the latents.

    layer 0    each head that reads the text, and the mean over the heads of all later layers
    layer 1    each head of the queries, and the mean over the heads of all earlier layers

    No layer of it has a weight for two tokens: the first is from latents to tokens, the last from queries to latents.
    Their product by rollout has (``rollout.py``, "of latents, by head"), and its rows sum to 1. Raises DataError for
    too many weights and for non-finite ones.
    """
    first, last = calls[0], calls[-1]
    queries, tokens = last.query.shape[2], first.key.shape[2]
    check_number_of_weights([(layer.query.shape[1], queries, tokens) for layer in (first, last)])
    by_head = latent_rollouts_by_head(call.weights()[0].cpu().double().numpy() for call in calls)
    read, answered = (torch.from_numpy(weights.astype(np.float32)) for weights in by_head)
    return (
        LayerWeights(first.name, read, "distribution", _THROUGH_LATENTS),
        LayerWeights(last.name, answered, "distribution", _THROUGH_LATENTS),
    )
