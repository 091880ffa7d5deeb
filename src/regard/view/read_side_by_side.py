"""Reading of a text under several mechanisms: run the model once, and give its queries, keys and values to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from regard.arguments import explain_arguments
from regard.comparison import Comparison, ComparisonSummary, MechanismChoice, compare, count_operations
from regard.comparison.replace_mechanism import make_replacement
from regard.errors import DataError, RefusedError, check_kind
from regard.interleaved_timing import least_seconds
from regard.mechanism_catalogue import catalogue
from regard.mechanisms.base import Mechanism
from regard.models.model import Model
from regard.recording import LayerCall
from regard.validation import make_request
from regard.view.from_recording import to_float32
from regard.view.layer_weights import LayerWeights
from regard.view.read import make_reading, record_text
from regard.view.side_by_side import ComputedPanel, HeadMeasures, MechanismPanel, SideBySide

MAX_WEIGHTS = 2**23
"""Maximum number of weights in all panels of one text: about 17 MB of the page."""
TOP = 5
"""Number of keys whose agreement is measured: a sentence has few."""
_TRIES = 5
_SEED = 0


@explain_arguments
def read_side_by_side(
    model: Any,
    text: str,
    choices: Sequence[MechanismChoice],
    *,
    truncate: bool = False,
    name: str = "the text",
) -> SideBySide:
    """Compute the weights of every head of ``model`` for a text, exactly and under each of ``choices``.

    Random features and projections are drawn with a fixed seed. Raises the errors of ``read``; RefusedError for a model
    whose own attention is not exact or not from token to token, and DataError for more than ``MAX_WEIGHTS`` weights. A
    mechanism that refuses the model's layers has a panel with the reason.
    """
    check_kind("choices", choices, Sequence, do='regard.comparison.parse_choices("longformer,performer")')
    for choice in choices:
        check_kind("choice", choice, MechanismChoice, do='regard.comparison.MechanismChoice("longformer")')
    check_kind("model", model, Model, do='model = regard.load("minilm")')
    if model.attends_through_latents:
        raise RefusedError(
            "the layers of a Perceiver are between a text and its latents",
            expected="a model whose layers attend from token to token",
            got=type(model).__name__,
            do="view it without other mechanisms (`mechanism=...`), or choose another model",
        )
    tokenized, recording, output = record_text(model, text, truncate=truncate, name=name)
    calls = list(recording)
    _check_exact(calls)
    _check_size(calls, len(choices) + 1, name)
    length = len(tokenized)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        prepared = [_prepare(choice, calls, length) for choice in choices]
        runnable = [mechanism if isinstance(mechanism, list) else None for _, _, mechanism in prepared]
        times = _measure_times(calls, runnable)
        panels = [
            MechanismPanel(
                choice=fitted,
                fitted=reasons,
                notes=_notes_of(mechanisms),
                computed=_compute(fitted, calls, mechanisms, seconds, length) if isinstance(mechanisms, list) else None,
                refusal=mechanisms if isinstance(mechanisms, str) else None,
            )
            for (fitted, reasons, mechanisms), seconds in zip(prepared, times[1:], strict=True)
        ]
        layers = tuple(_to_layer(call, call.mechanism) for call in calls)
        exact = replace(make_reading(tokenized, layers, output.layers), sink=None)  # all panels show all tokens alike
    row = next((row for row in catalogue() if type(calls[0].mechanism) is row.mechanism), None)
    return SideBySide(
        exact=exact,
        exact_name=type(calls[0].mechanism).__name__ if row is None else row.name,
        exact_operations=None if row is None else _operations(row.cost, [call.mechanism for call in calls], length),
        exact_seconds=times[0],
        panels=tuple(panels),
        top=TOP,
        threads=torch.get_num_threads(),
    )


def _prepare(
    choice: MechanismChoice, calls: Sequence[LayerCall], length: int
) -> tuple[MechanismChoice, dict[str, str], list[Mechanism] | str]:
    """Make the mechanism of each layer for the text's length; or return why it refuses the model's layers."""
    fitted, reasons = choice.fitted(length)
    try:
        mechanisms = [
            make_replacement(call.mechanism, choice.name, fitted.options).to(call.query.device, call.query.dtype)
            for call in calls
        ]
    except RefusedError as error:
        return fitted, reasons, str(error.what)
    refusals = (_refusal_reason(call, mechanism) for call, mechanism in zip(calls, mechanisms, strict=True))
    return fitted, reasons, next((refusal for refusal in refusals if refusal is not None), mechanisms)


def _refusal_reason(call: LayerCall, mechanism: Mechanism) -> str | None:
    """Return why the mechanism refuses the inputs of a layer's call; None if it does not."""
    request = make_request(call.query, call.key, call.value, mask=call.mask, bias=call.bias, scale=mechanism.scale)
    return mechanism.refuses(request)


def _measure_times(calls: Sequence[LayerCall], runnable: Sequence[list[Mechanism] | None]) -> list[float]:
    """Measure the time of all layers for exact attention and each mechanism, in turn; NaN for one that refuses."""
    exact = [call.mechanism for call in calls]
    everything = [exact, *runnable]
    runs = [partial(_run, calls, mechanisms) for mechanisms in everything if mechanisms is not None]
    for run in runs:
        run()  # kernels choose their instructions and fill caches in a first call
    times = iter(least_seconds(runs, tries=_TRIES))
    return [float("nan") if mechanisms is None else next(times) for mechanisms in everything]


def _run(calls: Sequence[LayerCall], mechanisms: Sequence[Mechanism]) -> None:
    for call, mechanism in zip(calls, mechanisms, strict=True):
        mechanism(call.query, call.key, call.value, call.mask, bias=call.bias)


def _compute(
    choice: MechanismChoice, calls: Sequence[LayerCall], mechanisms: Sequence[Mechanism], seconds: float, length: int
) -> ComputedPanel:
    compared = [
        compare(call.mechanism, mechanism, call.query, call.key, call.value, call.mask, bias=call.bias, top=TOP)
        for call, mechanism in zip(calls, mechanisms, strict=True)
    ]
    return ComputedPanel(
        layers=tuple(_to_layer(call, mechanism) for call, mechanism in zip(calls, mechanisms, strict=True)),
        measures=_measures_of_heads(compared),
        summary=_summary_of(compared),
        operations=_operations(choice.row.cost, mechanisms, length),
        seconds=seconds,
    )


def _to_layer(call: LayerCall, mechanism: Mechanism) -> LayerWeights:
    weights = mechanism.weights(call.query, call.key, mask=call.mask, bias=call.bias)
    return LayerWeights(call.name, to_float32(weights[0]), mechanism.weights_are, "")


def _measures_of_heads(compared: Sequence[Comparison]) -> HeadMeasures:
    heads = [
        [comparison.summary(head=head) for head in range(comparison.mass_kept.shape[1])] for comparison in compared
    ]

    def table(name: str) -> np.ndarray:
        return np.array([[getattr(head, name) for head in layer] for layer in heads], dtype=np.float32)

    return HeadMeasures(
        mass_kept=table("mass_kept"),
        mass_covered=table("mass_covered"),
        top_agreement=table("top_agreement"),
        output_error=table("output_error"),
    )


def _summary_of(compared: Sequence[Comparison]) -> ComparisonSummary:
    """Summarise the layers of a model as one."""
    columns = ("mass_kept", "mass_covered", "top_agreement", "difference", "exact_norm")
    joined = [torch.cat([getattr(comparison, name) for comparison in compared], dim=1) for name in columns]
    return Comparison(compared[0].rows, *joined).summary()


def _operations(cost: str, mechanisms: Sequence[Mechanism], length: int) -> int | None:
    """Count the operations of all heads and layers."""
    counts = [count_operations(cost, mechanism, length) for mechanism in mechanisms]
    known = [count * timed.heads for count, timed in zip(counts, mechanisms, strict=True) if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _notes_of(mechanisms: list[Mechanism] | str) -> tuple[str, ...]:
    if isinstance(mechanisms, str):
        return ()
    mechanism = mechanisms[0]
    notes = [f"{name} has random weights, which were not trained" for name, _ in mechanism.named_parameters()]
    copied: list[str] = []
    for extra in mechanism.extra_inputs:
        if extra.projected and extra.copied_from is not None:
            copied.append(extra.name)
        elif extra.projected:
            notes.append(f"{extra.name} has no trained projection in this model, and is left out")
    if copied:
        notes.append(f"{', '.join(copied)}: projected as the ordinary query, key or value is, since none is trained")
    return tuple(notes)


def _check_exact(calls: Sequence[LayerCall]) -> None:
    """Raise RefusedError unless all layers have an exact mechanism, whose weights are a distribution."""
    for call in calls:
        mechanism = call.mechanism
        if mechanism.approximates is not None or mechanism.weights_are != "distribution":
            raise RefusedError(
                "this model does not use softmax over all visible tokens, so mechanisms cannot be compared",
                expected="a model whose attention is softmax over all visible tokens, such as dot_product",
                got=type(mechanism).__name__,
                do="choose another model, or view this one without other mechanisms (`mechanism=...`)",
            )


def _check_size(calls: Sequence[LayerCall], panels: int, name: str) -> None:
    sizes = [call.query.shape[1] * call.query.shape[2] * call.key.shape[2] for call in calls]
    if sum(sizes) * panels > MAX_WEIGHTS:
        raise DataError(
            f"{name} is too long to be shown side by side: every panel has a weight for each pair of tokens",
            expected=f"at most {MAX_WEIGHTS:,} weights",
            got=f"{sum(sizes):,} weights in each of {panels} panels",
            do="view a shorter text or fewer mechanisms; regard.comparison.compare measures long texts",
        )
