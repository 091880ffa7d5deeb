"""Wrong scores: scale, bias, softcap and sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from regard.conformance.cases import Case
from regard.conformance.equations import attention_with
from regard.conformance.oracles.softmax import visible_keys

SCALES: Mapping[str, Callable[[int], float]] = {
    "the scores are not scaled: a factor of 1 / sqrt(head_dim) is missing": lambda head_dim: 1.0,
    "the scores are scaled twice": lambda head_dim: 1 / head_dim,
    "the scores are multiplied with the root of head_dim": lambda head_dim: head_dim**0.5,
}
"""Wrong scales, by the size of a head."""

ROUNDINGS: Mapping[str, int] = {"the scores are rounded to bfloat16": 8, "the scores are rounded to float16": 11}
"""Roundings of the products of queries and keys, by their binary digits."""


def wrong_scores(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Each fault of the scores in words, with the output that it gives."""
    arguments, head_dim = case.arguments, case.layout.head_dim
    scale = arguments.get("scale", 1 / np.sqrt(head_dim))
    if "scale" in arguments:
        yield "the argument of the scale is ignored", attention_with(case, scale=None)
        yield "the scale is multiplied with 1 / sqrt(head_dim)", attention_with(case, scale=scale / np.sqrt(head_dim))
    for sentence, wrong_scale in SCALES.items():
        yield sentence, attention_with(case, scale=wrong_scale(head_dim))
    yield (
        "the scores are divided by the root of value_dim, not of head_dim",
        attention_with(case, scale=1 / np.sqrt(case.layout.value_dim)),
    )
    if (bias := arguments.get("bias")) is not None:
        yield "the bias is ignored", attention_with(case, bias=None)
        yield "the bias is scaled, too", attention_with(case, bias=bias * scale)
        yield "the bias is subtracted", attention_with(case, bias=-bias)
        yield "the bias of the first head is used for all heads", attention_with(case, bias=bias[:, :1])
        yield "the bias of the first batch entry is used for all", attention_with(case, bias=bias[:1])
    if (cap := arguments.get("softcap")) is not None:
        yield "the softcap is ignored", attention_with(case, softcap=None)
        if bias is not None:
            yield (
                "the softcap is applied after the bias",
                _attention_with_scores(case, lambda s: cap * np.tanh((s + bias) / cap)),
            )
        yield (
            "the softcap is applied before the scale",
            _attention_with_scores(
                case, lambda s: scale * cap * np.tanh(s / scale / cap) + (0.0 if bias is None else bias)
            ),
        )
        yield (
            "the softcap lacks the factor after tanh",
            _attention_with_scores(case, lambda s: np.tanh(s / cap) + (0.0 if bias is None else bias)),
        )
        yield (
            "scores are not divided by the softcap before tanh",
            _attention_with_scores(case, lambda s: cap * np.tanh(s) + (0.0 if bias is None else bias)),
        )
        yield (
            "the softcap cuts scores off, instead of tanh",
            _attention_with_scores(case, lambda s: np.clip(s, -cap, cap) + (0.0 if bias is None else bias)),
        )
    if case.name.startswith("scores below"):
        allowed = case.expected.allowed
        sentence = "hidden scores get a number that is not low enough, such as -1e4, in place of minus infinity"
        yield (
            sentence,
            _attention_with_scores(case, lambda s: np.where(allowed, s, -1e4), allowed=np.ones_like(allowed)),
        )
        yield sentence, np.where(np.all(allowed, axis=-1, keepdims=True), case.expected.output, 0.0)
    if (sinks := arguments.get("sinks")) is not None:
        yield "the sinks are ignored", attention_with(case, sinks=None)
        yield (
            "the sink of the first head is used for all heads",
            attention_with(case, sinks=np.repeat(sinks[:1], len(sinks))),
        )
        yield (
            "the sinks are used in the order of key heads",
            attention_with(case, sinks=np.tile(sinks[: case.layout.key_heads], case.layout.group)),
        )
        yield "the sinks are scaled, too", attention_with(case, sinks=sinks * scale)
        for has_sinks in (False, True):
            yield (
                "the sinks are added without the exponential's maximum",
                _attention_with_scores(
                    case,
                    lambda s: _with_cap_and_bias(case, s),
                    sinks_are_shifted=False,
                    maximum_has_sinks=has_sinks,
                ),
            )
    for sentence, mantissa in ROUNDINGS.items():
        yield sentence, _attention_with_rounded_scores(case, scale, mantissa)


def _attention_with_rounded_scores(case: Case, scale: float, mantissa: int) -> np.ndarray:
    return _attention_with_scores(case, lambda s: _with_cap_and_bias(case, scale * _round(s / scale, mantissa)))


def _with_cap_and_bias(case: Case, scores: np.ndarray) -> np.ndarray:
    cap, bias = case.arguments.get("softcap"), case.arguments.get("bias")
    capped = scores if cap is None else cap * np.tanh(scores / cap)
    return capped if bias is None else capped + bias


def _round(numbers: np.ndarray, mantissa: int) -> np.ndarray:
    """Numbers rounded to so many binary digits, ties to the even one."""
    fractions, exponents = np.frexp(numbers)
    rounded: np.ndarray = np.ldexp(np.round(np.ldexp(fractions, mantissa)), exponents - mantissa)
    return rounded


def _attention_with_scores(
    case: Case,
    change: Callable[[np.ndarray], np.ndarray],
    *,
    allowed: np.ndarray | None = None,
    sinks_are_shifted: bool = True,
    maximum_has_sinks: bool = False,
) -> np.ndarray:
    """The output, with the scaled products changed by a function that also adds the bias."""
    arguments, layout = case.arguments, case.layout
    key, value = (np.repeat(arguments[name], layout.group, axis=1) for name in ("key", "value"))
    scale = arguments.get("scale", 1 / np.sqrt(layout.head_dim))
    scores = change(scale * arguments["query"] @ key.swapaxes(2, 3))
    scores = np.where(
        visible_keys(case.expected.allowed if allowed is None else allowed, scores.shape), scores, -np.inf
    )
    highest = np.maximum(scores.max(-1, keepdims=True), -1e300)
    sinks = None if arguments.get("sinks") is None else arguments["sinks"][None, :, None, None]
    if sinks is not None and maximum_has_sinks:
        highest = np.maximum(highest, sinks)
    exponentials = np.exp(scores - highest)
    total = exponentials.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - highest if sinks_are_shifted else sinks)
    weights: np.ndarray = exponentials / np.where(total == 0, 1.0, total)
    return weights @ value
