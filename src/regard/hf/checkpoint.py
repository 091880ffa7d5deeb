"""A checkpoint of ``transformers`` that texts are read with: its tokens, attention layers and hidden states.

A model whose layers run code of their own is read by "eager", which returns its weights; bands and blocks are recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import tokenizers
import torch
from torch import Tensor
from transformers.utils import logging

from regard.errors import CheckpointError, RefusedError, RegardError, class_and_line
from regard.hf.check import check
from regard.hf.read_source_and_target import read_source_and_target
from regard.hf.recorded_layers import number_calls
from regard.hf.sparse_layers import is_sparse_layer
from regard.recording import LayerCall, record
from regard.recording.captured_inputs import capture_projections
from regard.text.tokenizer import TokenizedText, Tokenizer
from regard.view.captured_projections import add_projections
from regard.view.from_recording import check_number_of_weights, layers_of, to_float32
from regard.view.layer_weights import LayerWeights
from regard.view.read import TextModel, make_reading
from regard.view.reading import PairReading, Reading

OWN_CODE = "This model computes its attention by code of its own."


@final
@dataclass(frozen=True, eq=False)
class Checkpoint(TextModel):
    """A loaded folder: the model, in eval mode and float32, and its tokenizer.

    ``decoder`` turns ids into text. ``uses_regard`` is False if layers of the model run code of their own; it then
    computes with "eager".
    """

    folder: Path
    model: Any
    tokenizer: Tokenizer
    decoder: tokenizers.Tokenizer
    uses_regard: bool

    @property
    def name(self) -> str:
        """The class of the model."""
        return type(self.model).__name__

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model reads a source and writes a target."""
        return bool(self.model.config.is_encoder_decoder)

    @property
    def vocab_size(self) -> int | None:
        """Number of token ids that the model knows; None if it takes any, as CANINE does, which hashes characters."""
        try:
            return int(self.model.get_input_embeddings().weight.shape[0])
        except NotImplementedError:
            return None

    @property
    def is_recorded(self) -> bool:
        """Whether all layers report their calls: they compute with regard, or have bands or blocks."""
        own_code = [self.model.get_submodule(name) for name in check(self.model).own_code]
        return self.uses_regard or (len(own_code) > 0 and all(map(is_sparse_layer, own_code)))

    @contextmanager
    def explain_errors(self, name: str) -> Iterator[None]:
        """Turn an error inside the model, while it reads the text ``name``, into a RefusedError."""
        try:
            yield
        except (RegardError, MemoryError):
            raise
        # Models raise errors of many kinds, mostly about shapes, for texts of a length that they do not support.
        except Exception as error:
            raise RefusedError(
                f"the model of {self.folder} cannot read {name}",
                expected="a text that the model supports: some types take multiples of a number, or a fixed length",
                got=f"{type(self.model).__name__} of transformers raised {class_and_line(error, 300)}",
                do="try a text of another length, or another model",
            ) from error

    def check_ids(self, ids: tuple[int, ...]) -> None:
        """Raise CheckpointError if the tokenizer made an id that the model does not know."""
        if ids and self.vocab_size is not None and max(ids) >= self.vocab_size:
            raise CheckpointError(
                f"tokenizer and model of {self.folder} do not belong together",
                expected=f"ids below {self.vocab_size}, the vocabulary of the model",
                got=f"id {max(ids)} from tokenizer.json",
                do="use tokenizer.json and weights from the same source",
            )

    def read_tokens(self, text: TokenizedText, name: str) -> Reading:
        """Capture every attention layer of an encoder or a decoder: see ``view.read``.

        Raises RefusedError for a model whose weights do not belong to pairs of tokens.
        """
        self.check_ids(text.ids)
        ids = torch.tensor([text.ids])
        options = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "output_hidden_states": True}
        quiet, explained, is_recorded = quiet_transformers(), self.explain_errors(name), self.is_recorded
        captured = capture_projections(self.model)
        with torch.no_grad(), quiet, explained, captured as sides, self._record() as calls:
            output = self.model(**options, **({} if is_recorded else {"output_attentions": True}))
        if is_recorded:
            layers = add_projections(layers_of(number_calls(calls)), sides)
        else:
            layers = _layers_of_weights(self, output.get("attentions"), len(text))
        hidden = _check_hidden(output.get("hidden_states"), layers=len(layers), tokens=len(text))
        return make_reading(text, layers, hidden)

    def read_pair(self, source: str, target: str | None, *, source_name: str, target_name: str) -> PairReading:
        """Capture every attention layer while ``target`` is written for ``source``: see ``view.read_pair``."""
        return read_source_and_target(self, source, target, source_name=source_name, target_name=target_name)

    def _record(self) -> AbstractContextManager[Sequence[LayerCall]]:
        """Record the layers of a model if all of them report their calls."""
        return record(self.model) if self.is_recorded else nullcontext(())


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep messages and progress bars of ``transformers`` off."""
    verbosity, has_progress_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_progress_bar:
            logging.enable_progress_bar()


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
    if not listed or any(
        weights is None or weights.dim() != 4 or tuple(weights.shape[2:]) != (length, length) for weights in listed
    ):
        raise RefusedError(
            f"{checkpoint.folder} has attention layers that cannot be shown",
            expected="a model that uses the attention interface of transformers, or returns weights of all pairs",
            got=f"a {type(checkpoint.model).__name__}",
            do="regard.hf.check(model) tells which layers run code of their own",
        )
    check_number_of_weights([(weights.shape[1], length, length) for weights in listed])
    return tuple(
        LayerWeights(
            f"layers.{number}",
            to_float32(weights[0]),
            "non-negative" if _has_sinks(weights) else "distribution",
            OWN_CODE,
        )
        for number, weights in enumerate(listed)
    )


def _has_sinks(weights: Tensor) -> bool:
    """Whether rows sum to less than 1."""
    return bool((weights.sum(-1) < 0.99).any())


def _check_hidden(states: Sequence[Tensor] | None, *, layers: int, tokens: int) -> Sequence[Tensor] | None:
    """Hidden states after the embedding and each layer; None if the model returns others.

    Gemma 3n has several of them for each token.
    """
    if states is None or len(states) != layers + 1 or len({state.shape for state in states}) != 1:
        return None
    return states if states[0].dim() == 3 and states[0].shape[:2] == (1, tokens) else None
