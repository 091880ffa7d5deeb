"""Reading of a text: run a model on it and capture its attention layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, OptionError, check_kind
from regard.models import Encoder, TextClassifier
from regard.recording import Recording, record
from regard.view.from_recording import layers_of, to_numpy
from regard.view.perceiver_layers import make_perceiver_layers
from regard.view.reading import Answer, Reading, Tokens


@final
@dataclass(frozen=True)
class RecordedText:
    """A text as the model read it: its tokens, the calls of its attention layers, and the model's output.

    ``dropped`` counts the tokens that truncation removed.
    """

    tokens: Tokens
    calls: Recording
    output: Any
    dropped: int


@explain_arguments
def read(model: Any, text: str, *, truncate: bool = False, name: str = "the text") -> Reading:
    """Capture every attention layer of ``model``, from ``regard.load``, for a text; of a classifier also its answer.

    Of a CLIP, the layers are those of its text tower, whose first token is kept apart as that of a decoder. A Perceiver
    has a layer of the heads that read the text and one of those of its queries, both through the latents.
    Raises DataError for a text longer than the model's limit unless ``truncate`` is set, and for one with too many
    weights; ``name`` is the text's name in messages. Raises CheckpointError for a model without tokenizer, and
    OptionError for a Perceiver that does not answer for each token of a text.
    """
    model = Encoder.part_of(model) or model
    through_latents = reads_through_latents(model)
    if through_latents and not isinstance(model, Encoder):
        raise OptionError(
            "this Perceiver is no text encoder",
            expected="a Perceiver with a TextInput, and a TextOutput or a PositionOutput",
            got=type(model).__name__,
            do="record its layers in Python: with regard.record(model) as seen",
        )
    seen = record_text(model, text, truncate=truncate, name=name)
    return Reading(
        tokens=seen.tokens,
        layers=make_perceiver_layers(list(seen.calls)) if through_latents else layers_of(seen.calls),
        hidden=None if through_latents else to_numpy(torch.cat(seen.output.layers)),
        dropped=seen.dropped,
        answer=_read_answer(model, seen.output.logits) if isinstance(model, TextClassifier) else None,
        sink=0 if getattr(model, "is_causal", False) else None,
    )


def record_text(model: Any, text: str, *, truncate: bool, name: str) -> RecordedText:
    """Run a model, or the text tower of a CLIP, on a text, and record its attention layers. Raises as ``read`` does."""
    check_kind("model", model, nn.Module, do='model = regard.load("minilm")')
    model = Encoder.part_of(model) or model
    if getattr(model, "tokenizer", None) is None:
        raise CheckpointError(
            "this model has no tokenizer, so it cannot read text",
            expected="a model folder with tokenizer.json",
            got="none",
            do="put tokenizer.json beside config.json",
        )
    (tokenized,) = model.tokenizer.tokenize([text], truncate=truncate)
    model.tokenizer.check_length(tokenized, name)
    batch = model.tokenizer.pad([tokenized])
    with torch.no_grad(), record(model) as seen:
        output = model(batch.ids.to(model.device), mask=batch.mask, keep_layers=not reads_through_latents(model))
    tokens = Tokens(text, tokenized.tokens, spans_without_spaces(text, tokenized.spans), tokenized.special)
    return RecordedText(tokens, seen, output, tokenized.dropped)


def reads_through_latents(model: Any) -> bool:
    """Whether the model's layers are those of a Perceiver, which have no hidden state for each token."""
    return bool(getattr(model, "attends_through_latents", False))


def spans_without_spaces(text: str, spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Spans without the white space before a token, which some tokenizers count as a part of it."""
    trimmed = []
    for start, end in spans:
        lead = len(text[start:end]) - len(text[start:end].lstrip())
        trimmed.append((start + lead, end) if start + lead < end else (start, end))
    return tuple(trimmed)


def _read_answer(model: TextClassifier, logits: Tensor) -> Answer:
    """The probabilities of a classifier's labels for one text."""
    probabilities = zip(model.labels, model.probabilities(logits)[0].tolist(), strict=True)
    ranked = tuple(sorted(probabilities, key=lambda one: -one[1]))
    return Answer(ranked, model.config.several, model.config.pooling)
