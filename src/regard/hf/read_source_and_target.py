"""Reading of a source and a target by an encoder-decoder of ``transformers``, such as a T5.

row t of the cross-attention     the step that read y_0 .. y_t-1 and wrote y_t, where y_0 is the start token
row t within the target          the token y_t-1 that this step read
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers
import torch
from torch import Tensor

from regard.errors import CheckpointError, DataError, RefusedError
from regard.hf.recorded_layers import number_calls
from regard.recording import LayerCall, record
from regard.recording.captured_inputs import capture_projections
from regard.text.tokenizer import TokenizedText
from regard.view.attention_layer import AttentionLayer
from regard.view.captured_projections import add_projections
from regard.view.from_recording import layers_of
from regard.view.read import spans_without_spaces, tokens_of
from regard.view.reading import PairReading, Reading, Tokens

if TYPE_CHECKING:
    from regard.hf.checkpoint import Checkpoint

MAX_NEW_TOKENS = 256
"""The longest target that the model writes; a given one may be longer."""


def read_source_and_target(
    checkpoint: Checkpoint,
    source: str,
    target: str | None,
    *,
    source_name: str,
    target_name: str,
) -> PairReading:
    """Capture every attention layer while ``target`` is written for ``source``; None lets the model write, greedily.

    Raises DataError for a text that is empty or too long, RefusedError for a model whose layers run code of their own.
    """
    if not checkpoint.uses_regard:
        raise RefusedError(
            f"{checkpoint.folder} has attention layers that cannot be shown",
            expected="an encoder-decoder that uses the attention interface of transformers",
            got=f"a {type(checkpoint.model).__name__}, whose layers run code of their own",
            do="regard.hf.check(model) tells which",
        )
    read = _tokenize(checkpoint, source, source_name)
    start = _start_id(checkpoint)
    ids = torch.tensor([read.ids])
    given = None if target is None else list(_tokenize(checkpoint, target, target_name).ids)
    with checkpoint.explain_errors(source_name):
        written = _write(checkpoint, ids) if given is None else given
        encoder, own, crossed = _record(checkpoint, ids, torch.tensor([[start, *written[:-1]]]))
    special = frozenset({start, *end_ids(checkpoint.model)})
    source_tokens = tokens_of(read)
    target_tokens = ids_to_tokens(checkpoint.decoder, written, special)
    read_tokens = ids_to_tokens(checkpoint.decoder, [start, *written[:-1]], special)
    return PairReading(
        alignment=Reading(target_tokens, crossed, keys=source_tokens),
        alignment_layer=max(0, len(crossed) - 2),
        source=Reading(source_tokens, encoder),
        target=Reading(read_tokens, own),
        forced=target is not None,
    )


def _tokenize(checkpoint: Checkpoint, text: str, name: str) -> TokenizedText:
    (tokenized,) = checkpoint.tokenizer.tokenize([text])
    checkpoint.tokenizer.check_length(tokenized, name)
    checkpoint.check_ids(tokenized.ids)
    if not tokenized.ids or not text.strip():
        raise DataError(f"{name} is empty", expected="some words", got="none", do="give a sentence in quotes")
    return tokenized


def _start_id(checkpoint: Checkpoint) -> int:
    """The token that the decoder starts with."""
    for config in (checkpoint.model.generation_config, checkpoint.model.config):
        start = getattr(config, "decoder_start_token_id", None)
        if isinstance(start, int):
            return start
    raise CheckpointError(
        f"{checkpoint.folder} does not say which token its decoder starts with",
        expected="decoder_start_token_id in generation_config.json or config.json",
        got="none",
        do="add it, as the model was trained",
    )


def end_ids(model: Any) -> Sequence[int]:
    """The tokens that end a text."""
    end = model.generation_config.eos_token_id
    return [] if end is None else [end] if isinstance(end, int) else list(end)


def _write(checkpoint: Checkpoint, ids: Tensor) -> list[int]:
    """Let the model write a target: the ids after the start token."""
    limit = checkpoint.tokenizer.limit
    max_tokens = MAX_NEW_TOKENS if limit is None else min(MAX_NEW_TOKENS, limit - 1)
    with torch.no_grad():
        (row,) = checkpoint.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=1,
            max_new_tokens=max_tokens,
            use_cache=True,
            return_dict_in_generate=False,
        ).tolist()
    return row[1:]


def _record(
    checkpoint: Checkpoint, source: Tensor, target: Tensor
) -> tuple[tuple[AttentionLayer, ...], tuple[AttentionLayer, ...], tuple[AttentionLayer, ...]]:
    """Record the encoder, then the decoder: its layers of self-attention, and its layers of cross-attention."""
    model: Any = checkpoint.model
    mask = torch.ones_like(source)
    encoder = model.get_encoder()
    with torch.no_grad(), capture_projections(model) as projections:
        with record(model) as calls:
            encoded = encoder(input_ids=source, attention_mask=mask, return_dict=True)
        with record(model) as seen_later:
            model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=target)
    own, crossed = split_decoder(number_calls(seen_later), source.shape[1], target.shape[1], checkpoint.folder)
    encoder_layers, own_layers, crossed_layers = (
        add_projections(layers_of(some), projections) for some in (number_calls(calls), own, crossed)
    )
    return encoder_layers, own_layers, crossed_layers


def split_decoder(
    calls: Sequence[LayerCall], source: int, target: int, folder: Path
) -> tuple[Sequence[LayerCall], Sequence[LayerCall]]:
    """Split the calls of a decoder: each layer attends to the target first, then to the source."""
    own, crossed = calls[::2], calls[1::2]
    fits = [call.key.shape[2] == target for call in own] + [call.key.shape[2] == source for call in crossed]
    if not calls or len(own) != len(crossed) or not all(fits):
        raise RefusedError(
            f"{folder} has a decoder of another form",
            expected="layers of self-attention and cross-attention in turns",
            got=", ".join(call.name for call in calls[:4]) or "no attention layers",
            do="record it from Python: with regard.record(model) as seen",
        )
    return own, crossed


def ids_to_tokens(decoder: tokenizers.Tokenizer, ids: Sequence[int], special_ids: frozenset[int]) -> Tokens:
    """Convert ids to tokens, whose spans are found by decoding longer and longer beginnings, with any tokenizer.

    Special tokens, of ``special_ids`` and of the tokenizer, have no characters.
    """
    special = special_ids | {
        token_id for token_id, token in decoder.get_added_tokens_decoder().items() if token.special
    }
    text = decoder.decode([token_id for token_id in ids if token_id not in special])
    spans, plain, start = [], [], 0
    for token_id in ids:
        stop = start
        if token_id not in special:
            plain.append(token_id)
            stop = max(start, _count_equal(decoder.decode(plain), text))
        spans.append((start, stop))
        start = stop
    return Tokens(
        text,
        tuple(decoder.id_to_token(token_id) or f"<{token_id}>" for token_id in ids),
        spans_without_spaces(text, spans),
        tuple(token_id in special for token_id in ids),
    )


def _count_equal(start: str, text: str) -> int:
    """Number of characters at the beginning that are the same."""
    return next(
        (at for at, (character, other) in enumerate(zip(start, text, strict=False)) if character != other), len(start)
    )
