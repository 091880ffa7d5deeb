"""Reading of a text by a checkpoint of ``transformers``: its tokens, attention layers and hidden states.

A model whose layers run code of their own is read by "eager", which returns its weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from regard.errors import DataError, RefusedError
from regard.hf.check import check
from regard.hf.checkpoint import Checkpoint, quiet_transformers
from regard.recording import LayerCall, record
from regard.view.attention_layer import AttentionLayer
from regard.view.from_recording import check_number_of_weights, layers_of, to_numpy
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights
from regard.view.read import spans_without_spaces
from regard.view.reading import Reading, Tokens

OWN_CODE = "This model computes its attention by code of its own."


def read_text(checkpoint: Checkpoint, text: str, *, truncate: bool = False, name: str = "the text") -> Reading:
    """Capture every attention layer of an encoder or a decoder for a text.

    Raises DataError for a text without tokens, for one longer than the model's limit unless ``truncate`` is set, and
    for one with too many weights; ``name`` is the text's name in messages. Raises RefusedError for a model whose
    weights are not those of pairs of tokens.
    """
    (tokenized,) = checkpoint.tokenizer.tokenize([text], truncate=truncate)
    checkpoint.tokenizer.check_length(tokenized, name)
    checkpoint.check_ids(tokenized.ids)
    if not tokenized.ids:
        raise DataError(f"{name} has no tokens", expected="a text", got=repr(text), do="give a text in quotes")
    ids = torch.tensor([tokenized.ids])
    options = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "output_hidden_states": True}
    if checkpoint.uses_regard:
        with torch.no_grad(), quiet_transformers(), checkpoint.explain_errors(name), record(checkpoint.model) as seen:
            output = checkpoint.model(**options)
        layers = layers_of(number_calls(seen))
    else:
        with torch.no_grad(), quiet_transformers(), checkpoint.explain_errors(name):
            output = checkpoint.model(**options, output_attentions=True)
        layers = _layers_of_weights(checkpoint, output.get("attentions"), len(tokenized))
    return Reading(
        tokens=Tokens(text, tokenized.tokens, spans_without_spaces(text, tokenized.spans), tokenized.special),
        layers=layers,
        hidden=_stack_hidden(output.get("hidden_states"), layers=len(layers), tokens=len(tokenized)),
        dropped=tokenized.dropped,
        sink=0 if _are_causal(layers) else None,
    )


def number_calls(calls: Iterable[LayerCall]) -> list[LayerCall]:
    """Give the calls of a layer that is called several times names of their own: ALBERT's layers share one module."""
    counted: Counter[str] = Counter()
    named = []
    for call in calls:
        counted[call.name] += 1
        count = counted[call.name]
        named.append(call if count == 1 else replace(call, name=f"{call.name}, call {count}"))
    return named


def _layers_of_weights(
    checkpoint: Checkpoint, weights: Sequence[Tensor] | None, length: int
) -> tuple[LayerWeights, ...]:
    """Layers from the weights that "eager" returned. Raises RefusedError unless they are weights of all pairs."""
    listed = list(weights or ())
    report = None if listed else check(checkpoint.model)
    if report is not None and not report.through_interface and not report.own_code:
        raise RefusedError(
            f"{checkpoint.folder} has no attention layer that can be shown",
            expected="a model with attention",
            got=f"a {type(checkpoint.model).__name__}",
            do="choose another model",
        )
    if not listed or any(one is None or one.dim() != 4 or tuple(one.shape[2:]) != (length, length) for one in listed):
        raise RefusedError(
            f"{checkpoint.folder} has attention layers that cannot be shown",
            expected="a model that uses the attention interface of transformers, or returns weights of all pairs",
            got=f"a {type(checkpoint.model).__name__}",
            do=_find_way_out(checkpoint),
        )
    check_number_of_weights([(one.shape[1], length, length) for one in listed])
    return tuple(
        LayerWeights(
            f"layers.{number}", to_numpy(one[0]), "non-negative" if _has_sinks(one) else "distribution", OWN_CODE
        )
        for number, one in enumerate(listed)
    )


def _find_way_out(checkpoint: Checkpoint) -> str:
    """The advice for a model whose weights cannot be shown: BigBird has a setting by which it returns them."""
    if getattr(checkpoint.model.config, "attention_type", None) == "block_sparse":
        file = checkpoint.folder / "config.json"
        return f'write "attention_type": "original_full" into {file}, which is exact attention'
    return "regard.hf.check(model) tells which layers run code of their own"


def _has_sinks(weights: Tensor) -> bool:
    """Whether rows sum to less than 1."""
    return bool((weights.sum(-1) < 0.99).any())


def _are_causal(layers: Sequence[AttentionLayer]) -> bool:
    """Whether no layer has a query that attends to a later token, as in a decoder."""
    return bool(layers) and layers[0].queries > 1 and all(map(_is_causal, layers))


def _is_causal(layer: AttentionLayer) -> bool:
    if isinstance(layer, LayerReading):
        return layer.allowed is not None and not np.triu(layer.allowed, 1).any()
    return not any(np.triu(weights, 1).any() for weights in layer.by_head())


def _stack_hidden(
    states: Sequence[Tensor] | None, *, layers: int, tokens: int
) -> Float32[np.ndarray, "layers tokens width"] | None:
    """Hidden states after the embedding and each layer; None if the model returns others.

    Gemma 3n has several of them for each token.
    """
    if states is None or len(states) != layers + 1 or len({one.shape for one in states}) != 1:
        return None
    if states[0].dim() != 3 or states[0].shape[:2] != (1, tokens):
        return None
    return np.asarray(to_numpy(torch.cat(tuple(states))), dtype=np.float32)
