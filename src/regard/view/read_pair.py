"""Reading of a translation: attention of the target to the source, and of each side to itself.

row t of the alignment      the step that read y_1 .. y_t-1 and wrote y_t; the last row wrote </s>
row t within the target     the token y_t-1 that this step read; the first is <s>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from regard.arguments import explain_arguments
from regard.errors import DataError, check_kind
from regard.layers.eval_mode import eval_mode
from regard.models import EncoderDecoder
from regard.recording import record
from regard.recording.captured_inputs import capture_projections
from regard.text.sentence_tokenizer import SentenceTokenizer
from regard.translation import Translator
from regard.view.attention_layer import AttentionLayer
from regard.view.captured_projections import add_projections
from regard.view.from_recording import layers_of
from regard.view.read import TextModel
from regard.view.reading import ALIGNMENT, SOURCE, TARGET, PairReading, Reading, Tokens
from regard.view.subword_tokens import ids_to_tokens


@explain_arguments
def read_pair(
    translator: Translator | TextModel,
    source: str,
    target: str | None = None,
    *,
    source_name: str = "the source",
    target_name: str = "the target",
) -> PairReading:
    """Capture every attention layer while ``source`` is translated to ``target``; None is the model's own translation.

    Raises DataError for a text that is empty or too long for the model, and for texts with too many weights;
    ``source_name`` and ``target_name`` are their names in messages. Raises RefusedError for a model without attention.
    """
    for name, text in (("source", source), ("target", target)):
        if text is not None:
            check_kind(name, text, str, do="one text on each side")
    if isinstance(translator, TextModel):
        return translator.read_pair(source, target, source_name=source_name, target_name=target_name)
    check_kind("translator", translator, Translator, do="Translator(regard.load(folder))")
    translator.check_attention()
    translator.check(source, source_name)
    found = _translate(translator, source) if target is None else _encode_target(translator, source, target)
    _check_not_empty(found.source, source_name)
    if target is not None:
        _check_not_empty(found.target, target_name)
        translator.check_length(found.target, target_name)
    return _build_reading(translator, found, _record_layers(translator.model, found), forced=target is not None)


@final
@dataclass(frozen=True)
class _TokenizedPair:
    """Ids without start and end, and the codes that their placeholders replace."""

    source: list[int]
    target: list[int]
    kept: tuple[str, ...]


def _translate(translator: Translator, source: str) -> _TokenizedPair:
    protected, ids = translator.encode_source(source)
    (translation,) = translator.translate([source])
    return _TokenizedPair(ids, list(translation.renderings[0].ids), protected.kept)


def _encode_target(translator: Translator, source: str, target: str) -> _TokenizedPair:
    pair, read, written = translator.encode_pair(source, target)
    return _TokenizedPair(read, written, pair.kept)


def _check_not_empty(ids: Sequence[int], name: str) -> None:
    if not ids:
        raise DataError(f"{name} is empty", expected="some words", got="none", do="give a sentence in quotes")


def _record_layers(model: EncoderDecoder, pair: _TokenizedPair) -> dict[str, tuple[AttentionLayer, ...]]:
    """Record all layers while the model reads both sides; by their kind."""
    source, target = ([*pair.source, model.end_id], [model.target_start_id, *pair.target])
    captured = capture_projections(model)
    with torch.no_grad(), eval_mode(model), captured as projections, record(model) as recording:
        model(*(torch.tensor([ids], device=model.device) for ids in (source, target)))
    names = {module: name for name, module in model.named_modules()}
    layers, kinds = add_projections(layers_of(recording), projections), model.attention_layers
    named = {ALIGNMENT: kinds.cross, SOURCE: kinds.source, TARGET: kinds.target}
    of_kind = {kind: {names[module] for module in modules} for kind, modules in named.items()}
    return {kind: tuple(layer for layer in layers if layer.name in own) for kind, own in of_kind.items()}


def _build_reading(
    translator: Translator,
    pair: _TokenizedPair,
    layers: dict[str, tuple[AttentionLayer, ...]],
    *,
    forced: bool,
) -> PairReading:
    start_id, end_id = translator.model.target_start_id, translator.model.end_id
    source = ids_to_tokens(translator.source, pair.source, pair.kept, end=_token_name(translator.source, end_id))
    written = ids_to_tokens(translator.target, pair.target, pair.kept, end=_token_name(translator.target, end_id))
    read = ids_to_tokens(translator.target, pair.target, pair.kept, start=_token_name(translator.target, start_id))
    return PairReading(
        alignment=Reading(written, layers[ALIGNMENT], keys=source),
        alignment_layer=translator.model.attention_layers.alignment,
        source=_self_reading(source, layers[SOURCE]),
        target=_self_reading(read, layers[TARGET]),
        forced=forced,
    )


def _token_name(subwords: SentenceTokenizer, number: int) -> str:
    """The text of a token."""
    return subwords.pieces_of([number])[0].text


def _self_reading(tokens: Tokens, layers: tuple[AttentionLayer, ...]) -> Reading | None:
    return Reading(tokens, layers) if layers else None
