"""Times of what a speech model with cross-attention wrote, from the weights of its heads.

    W        weights of a head, steps x frames: those of the step that wrote a token; each row here has the sum 1
    place_i  = sum_j j W_ij
    order    = (pairs i < k with place_i < place_k, less those with place_i > place_k) / all pairs, or 0 if below 0
    reach    = (max_i place_i - min_i place_i) / (frames - 1)
    focus    = 1 - mean_i H(W_i) / ln frames                                H: entropy
    score    = order * reach * focus, from 0 to 1                           how well a head follows the sound
    heads    those with the best scores: at least half of the highest, and at most ``MAX_HEADS``
    M        = mean over these heads of median_7(z), z_ij = (W_ij - mean_i W_ij) / std_i W_ij
    path     from the first step and frame to the last ones, one forward in steps, frames or both, with the largest
             sum of M: dynamic time warping (Sakoe and Chiba 1978)
    token i  from the first frame of its step on the path to the first one of the next step

The times of words by such a path are those of openai/whisper (Radford et al. 2022, "Robust speech recognition via
large-scale weak supervision"), whose models list their heads. The score is ours, for models that list none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Float64, Int

from regard.errors import DataError, short_repr

MAX_HEADS = 10
"""The most heads whose weights give the times."""
_MEDIAN = 7
"""Frames of the median filter."""


@final
class FollowingHead(NamedTuple):
    """A head of cross-attention, and how well it follows the sound: ``score``, from 0 to 1."""

    layer: int
    head: int
    score: float


@final
class AttentionTimes(NamedTuple):
    """The frames (steps, 2) from which to before which each step's token was heard, and the heads that say so."""

    frames: Int[np.ndarray, "steps 2"]
    heads: tuple[FollowingHead, ...]


def find_attention_times(
    layers: Sequence[Float64[np.ndarray, "_heads steps frames"]], heads: Sequence[tuple[int, int]] | None = None
) -> AttentionTimes:
    """Align steps with frames by the weights of the layers of cross-attention.

    ``heads`` are pairs of a layer and a head; None chooses those that follow the sound best. They are returned with the
    best first. Raises DataError for a head that the layers lack.
    """
    rows = [_with_sum_one(layer) for layer in layers]
    for layer, head in heads or ():
        if not (0 <= layer < len(rows) and 0 <= head < len(rows[layer])):
            raise DataError(
                "the model names a head of alignment that it does not have",
                expected=f"pairs of a layer below {len(rows)} and one of its heads",
                got=short_repr((layer, head)),
                do="correct alignment_heads in generation_config.json, or leave it out",
            )
    every = [(layer, head) for layer, weights in enumerate(rows) for head in range(len(weights))]
    scored = [FollowingHead(layer, head, score_head(rows[layer][head])) for layer, head in (heads or every)]
    scored.sort(key=lambda head: -head.score)
    if not heads:
        scored = [head for head in scored[:MAX_HEADS] if head.score >= scored[0].score / 2]
    return AttentionTimes(align_steps(np.stack([rows[head.layer][head.head] for head in scored])), tuple(scored))


def score_head(weights: Float64[np.ndarray, "steps frames"]) -> float:
    """How well a head follows the sound, from 0 to 1: its weights, whose rows sum to 1, move on and are concentrated.

    A head of a single step, or over a single frame, has no order and no reach: its focus alone counts.
    """
    steps, frames = weights.shape
    if frames == 1:
        return 1.0
    logarithms = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    focus = 1 + float((weights * logarithms).sum(axis=1).mean()) / np.log(frames)
    if steps == 1:
        return float(focus)
    places = weights @ np.arange(frames)
    later = np.sign(places[None, :] - places[:, None])[np.triu_indices(steps, 1)]
    reach = float(places.max() - places.min()) / (frames - 1)
    return float(max(0.0, float(later.mean())) * reach * focus)


def align_steps(weights: Float64[np.ndarray, "heads steps frames"]) -> Int[np.ndarray, "steps 2"]:
    """The frames from which to before which each step's token was heard: at least one for each."""
    deviation = weights.std(axis=1, keepdims=True)
    standard = (weights - weights.mean(axis=1, keepdims=True)) / np.where(deviation > 0, deviation, 1.0)
    gain = _median_over_frames(standard).mean(axis=0)
    starts = _find_path(gain)
    ends = np.maximum(np.append(starts[1:], gain.shape[1]), starts + 1)
    return np.stack([starts, ends], axis=1)


def _find_path(gain: Float64[np.ndarray, "steps frames"]) -> Int[np.ndarray, " steps"]:
    """The first frame of each step on the path with the largest sum."""
    steps, frames = gain.shape
    best = np.empty((steps, frames))
    best[0] = np.cumsum(gain[0])
    for step in range(1, steps):
        # best[j] = gain[j] + max(entered[j], best[j - 1]): with sums S of the row, best[j] - S[j] is a running maximum.
        entered = best[step - 1].copy()
        entered[1:] = np.maximum(entered[1:], best[step - 1, :-1])
        sums = np.cumsum(gain[step])
        best[step] = sums + np.maximum.accumulate(entered - np.append(0.0, sums[:-1]))
    starts = np.zeros(steps, dtype=np.int64)
    frame = frames - 1
    for step in range(steps - 1, 0, -1):
        while frame > 0 and best[step, frame - 1] > max(best[step - 1, frame], best[step - 1, frame - 1]):
            frame -= 1
        starts[step] = frame
        if frame > 0 and best[step - 1, frame - 1] >= best[step - 1, frame]:
            frame -= 1
    return starts


def _median_over_frames(
    weights: Float64[np.ndarray, "heads steps frames"],
) -> Float64[np.ndarray, "heads steps frames"]:
    padded = np.pad(weights, ((0, 0), (0, 0), (_MEDIAN // 2, _MEDIAN // 2)), mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, _MEDIAN, axis=2), axis=-1))


def _with_sum_one(layer: Float64[np.ndarray, "heads steps frames"]) -> Float64[np.ndarray, "heads steps frames"]:
    """Weights over the shown frames, as shares of what these get; uniform where they get nothing."""
    sums = layer.sum(axis=2, keepdims=True)
    return np.where(sums > 0, layer / np.where(sums > 0, sums, 1.0), 1 / layer.shape[2])
