"""``TextErrors``: compare mechanisms with exact attention on queries, keys and values of a model that reads a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.bench.error_source import ErrorSource, affordable_rows
from regard.bench.problem import Tokens
from regard.bench.settings import BenchSettings
from regard.bench.text_windows import TextWindows
from regard.comparison import (
    Comparison,
    ComparisonSummary,
    MechanismChoice,
    ReplacedModel,
    compare,
    replace_mechanism,
    sample_rows,
)
from regard.errors import RefusedError
from regard.mechanisms import Mechanism
from regard.models.base import Encoder
from regard.recording import LayerCall, record

_WINDOWS = 4
"""Maximum number of windows on which weights are compared."""


@final
@explain_arguments
@dataclass(frozen=True)
class HeadError:
    """The measures of one head of one layer, both counted from 0, on windows of ``length`` tokens."""

    mechanism: str
    length: int
    layer: int
    head: int
    measures: ComparisonSummary


@final
class TextErrors(ErrorSource):
    """Compares on windows of a text, in all layers of a model. ``heads`` collects the measures of each head."""

    def __init__(self, model: Encoder, windows: TextWindows, settings: BenchSettings, name: str) -> None:
        self.heads: list[HeadError] = []
        self.tokens_note = (
            f"Errors are those of {name} on the text: queries, keys and values of all its layers, in up to {_WINDOWS} "
            "windows. Times and memory were measured with random tokens of the same shape."
        )
        self._model, self._windows, self._settings = model, windows, settings
        self._recorded: tuple[int, Sequence[LayerCall]] = (0, ())

    def compare(self, choice: MechanismChoice, mechanism: Mechanism, tokens: Tokens) -> tuple[ComparisonSummary, int]:
        """Compare all layers and heads of the model."""
        length = tokens[0].shape[2]
        if self._model.max_tokens is not None and length > self._model.max_tokens:
            raise RefusedError(
                f"the model reads at most {self._model.max_tokens:,} tokens",
                expected="windows that the model can read",
                got=f"{length:,} tokens",
                do="use shorter windows (`length=...`)",
            )
        calls = self._record(length)
        replaced = replace_in(self._model, choice, length, self._settings.seed).model
        settings, first = self._settings, calls[0]
        heads = first.query.shape[0] * first.query.shape[1]
        rows = sample_rows(length, affordable_rows(settings, heads, length), seed=settings.seed)
        found = [self._compare_layer(call, replaced, rows) for call in calls]
        for layer, comparison in enumerate(found):
            for head in range(comparison.mass_kept.shape[1]):
                measures = comparison.summary(head=head)
                self.heads.append(HeadError(choice.label, length, layer, head, measures))
        return _join_layers(found).summary(), len(rows) * first.query.shape[0]

    def _record(self, length: int) -> Sequence[LayerCall]:
        """Record the calls of all layers; calls with the last length are kept for the next mechanism."""
        if self._recorded[0] != length:
            ids = self._windows.cut(length, _WINDOWS).to(self._model.device)
            with record(self._model) as recording, torch.no_grad():
                self._model(ids)
            self._recorded = length, tuple(recording)
        return self._recorded[1]

    def _compare_layer(self, call: LayerCall, replaced: nn.Module, rows: Tensor) -> Comparison:
        other = replaced.get_submodule(f"{call.name}.mechanism")
        assert isinstance(other, Mechanism)
        return compare(
            call.mechanism,
            other,
            call.query,
            call.key,
            call.value,
            call.mask,
            bias=call.bias,
            rows=rows,
            top=self._settings.top,
            inputs=call.inputs,
        )


def replace_in(model: Encoder, choice: MechanismChoice, length: int, seed: int) -> ReplacedModel:
    """Replace the mechanism of a model. Unchanged weights share the memory of the model's."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        replaced = replace_mechanism(model, choice.name, **choice.options_at(length))
    original = dict(model.named_parameters())
    for name, parameter in replaced.model.named_parameters():
        if name in original and torch.equal(parameter, original[name]):
            parameter.data = original[name].data
    return replaced


def _join_layers(layers: Sequence[Comparison]) -> Comparison:
    """Join the comparisons of all layers as further heads."""
    fields = ("mass_kept", "mass_covered", "top_agreement", "difference", "exact_norm")
    return Comparison(
        layers[0].rows, *(torch.cat([getattr(layer, name) for layer in layers], dim=1) for name in fields)
    )
