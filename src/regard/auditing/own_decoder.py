"""Decoders and layers of regard as functions that pass on a state, as models of ``transformers`` pass on a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class StepOutput:
    """Logits, or outputs of a layer, for each token that was read, and the state behind them."""

    logits: Tensor
    state: Any


def step_function(model: Any) -> Callable[..., Any]:
    """The model as a function of its own arguments, ``state``, ``lengths`` of padded prompts, and ``use_cache``.

    ``use_cache=True``, or a state, reads tokens behind those of the state; with ``lengths`` the logits are of the last
    token of each prompt. Without them the model is called.
    """

    def call(*, state: Any = None, use_cache: bool = False, lengths: Tensor | None = None, **arguments: Any) -> Any:
        if state is None and not use_cache:
            return model(**arguments)
        if "target" in arguments:
            state = model.start(arguments["source"]) if state is None else state
            logits = []
            for tokens in arguments["target"].T:
                each, state = model.step(tokens, state)
                logits.append(each)
            return StepOutput(torch.stack(logits, 1), state)
        ids = arguments["ids"]
        if lengths is not None:
            tokens, state = model.prefill(ids, lengths=lengths)
            ids = tokens[:, None]
        output, state = model.extend(ids, model.empty_state(len(ids)) if state is None else state)
        return StepOutput(output.logits, state)

    return call


def layer_function(layer: Any) -> Callable[..., Any]:
    """A layer as a function of its own arguments, ``state`` and ``use_cache``, as in ``step_function``."""

    def call(*, state: Any = None, use_cache: bool = False, **arguments: Any) -> Any:
        if state is None and not use_cache:
            return layer(**arguments)
        return StepOutput(*layer(**arguments, cache=layer.empty_cache() if state is None else state))

    return call
