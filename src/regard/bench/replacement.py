"""The change of a trained model's vectors if its exact attention is replaced by another mechanism.

With the vectors x_i of the texts by the model, and x'_i by the model with the other mechanism:

    cosine             x_i . x'_i / (|x_i| |x'_i|)
    token error        |h'_t - h_t| / |h_t| of the hidden state of each token, after the last layer
    nearest            the share of texts whose nearest other text, by cosine, is the same
    neighbours         the share of the k nearest texts by x that are among the k nearest by x'; k is half of the other
                       texts, at most 10
    rank correlation   Spearman's, of the cosines of a text with all others; the mean over texts
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.bench.case_process import describe_failure
from regard.bench.choose_mechanisms import EXACT
from regard.bench.settings import BenchSettings
from regard.bench.text_errors import replace_in
from regard.bench.timing import Timing
from regard.comparison import MechanismChoice
from regard.devices import to_float64, wait_for
from regard.errors import RegardError
from regard.models.base import Encoder
from regard.text.pooling import Pooling

_MAX_NEIGHBOURS = 10
_MIN_TEXTS = 3
"""Minimum number of texts that have neighbours to compare."""


@final
@explain_arguments
@dataclass(frozen=True)
class VectorChange:
    """How the vectors of texts changed; the measures are defined in ``bench.replacement``.

    The measures of neighbours are None for fewer than three texts.
    """

    cosine_mean: float
    cosine_min: float
    token_error_mean: float
    token_error_max: float
    nearest: float | None
    neighbours: float | None
    rank_correlation: float | None


@final
@explain_arguments
@dataclass(frozen=True)
class Replacement:
    """A model with another mechanism: how its vectors changed, the time of a text, and what was not trained.

    ``change`` is None for the model itself, and ``missing`` is the reason if the mechanism cannot be used.
    """

    mechanism: str
    time: Timing | None = None
    change: VectorChange | None = None
    notes: tuple[str, ...] = ()
    missing: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Convert to values that JSON has."""
        return {
            "mechanism": self.mechanism,
            "seconds_per_text": None if self.time is None else asdict(self.time),
            "change": None if self.change is None else asdict(self.change),
            "notes": list(self.notes),
            "missing": self.missing,
        }


def measure_replacements(
    model: Encoder,
    choices: Sequence[MechanismChoice],
    ids: Int[Tensor, "texts length"],
    settings: BenchSettings,
    advance: Callable[[float], None],
) -> tuple[list[Replacement], float | None]:
    """Measure the model with each mechanism on the texts ``ids``, one at a time.

    The models take turns on each text, so that other load on the machine affects all alike. ``advance`` receives the
    finished part. Also returns the mean cosine between the vectors of different texts; None for a single text.
    """
    ids = ids.to(model.device)
    models, notes, missing = _replace_all(model, choices, ids, settings)
    pooling = model.pooling or Pooling()
    seconds: dict[str, list[float]] = {label: [] for label in models}
    vectors: dict[str, list[Tensor]] = {label: [] for label in models}
    errors: dict[str, list[Tensor]] = {label: [] for label in models}
    for number, text in enumerate(ids):
        labels = list(models)
        hidden = {}
        for label in labels if number % 2 == 0 else reversed(labels):
            hidden[label], took = _read(models[label], text[None])
            seconds[label].append(took)
        for label in labels:
            vectors[label].append(pooling.pool(hidden[label], torch.tensor([ids.shape[1]], device=ids.device))[0])
            errors[label].append(_token_errors(hidden[EXACT], hidden[label]))
        advance((number + 1) / len(ids))
    exact = torch.stack(vectors[EXACT]).cpu().double()
    found = []
    for choice in choices:
        if choice.label in missing:
            found.append(Replacement(choice.label, missing=missing[choice.label]))
            continue
        change = None
        if choice.label != EXACT:
            change = _compare_vectors(
                exact, torch.stack(vectors[choice.label]).cpu().double(), torch.cat(errors[choice.label])
            )
        found.append(Replacement(choice.label, Timing.of(seconds[choice.label]), change, notes[choice.label]))
    return found, _mean_cosine(exact)


def _replace_all(
    model: Encoder, choices: Sequence[MechanismChoice], ids: Tensor, settings: BenchSettings
) -> tuple[dict[str, Encoder], dict[str, tuple[str, ...]], dict[str, str]]:
    """Replace the mechanism, and read the first text once; return models, notes, and reasons for those that fail."""
    models: dict[str, Encoder] = {EXACT: model}
    notes: dict[str, tuple[str, ...]] = {EXACT: ()}
    missing: dict[str, str] = {}
    for choice in choices:
        try:
            if choice.label != EXACT:
                replaced = replace_in(model, choice, ids.shape[1], settings.seed)
                assert isinstance(replaced.model, Encoder)
                models[choice.label], notes[choice.label] = replaced.model, replaced.notes
            _, took = _read(models[choice.label], ids[:1])
        except (RegardError, MemoryError, RuntimeError) as error:
            missing[choice.label] = describe_failure(error)
            models.pop(choice.label, None)
            continue
        if took > settings.stop_seconds and choice.label != EXACT:
            missing[choice.label] = f"one text took longer than {settings.stop_seconds:g} s"
            del models[choice.label]
    return models, notes, missing


@torch.no_grad()
def _read(model: Encoder, ids: Int[Tensor, "1 length"]) -> tuple[Float[Tensor, "1 length width"], float]:
    """Return the hidden states of a text, and the seconds that it took."""
    start = time.perf_counter()
    hidden = model(ids).hidden
    wait_for(hidden.device)
    return hidden, time.perf_counter() - start


def _token_errors(
    exact: Float[Tensor, "1 length width"], other: Float[Tensor, "1 length width"]
) -> Float[Tensor, " length"]:
    exact, other = to_float64(exact[0]), to_float64(other[0])
    return (other - exact).norm(dim=-1) / exact.norm(dim=-1)


def _compare_vectors(
    exact: Float[Tensor, "texts width"], other: Float[Tensor, "texts width"], token_errors: Float[Tensor, " tokens"]
) -> VectorChange:
    cosine = torch.nn.functional.cosine_similarity(exact, other, dim=-1)
    return VectorChange(
        cosine_mean=float(cosine.mean()),
        cosine_min=float(cosine.min()),
        token_error_mean=float(token_errors.mean()),
        token_error_max=float(token_errors.max()),
        **_compare_neighbours(exact, other),
    )


def _compare_neighbours(
    exact: Float[Tensor, "texts width"], other: Float[Tensor, "texts width"]
) -> Mapping[str, float | None]:
    texts = len(exact)
    if texts < _MIN_TEXTS:
        return {"nearest": None, "neighbours": None, "rank_correlation": None}
    ours, theirs = _other_cosines(exact), _other_cosines(other)
    count = neighbour_count(texts)
    found = [_mark_largest(vectors, count) for vectors in (ours, theirs)]
    ranks = [vectors.argsort(dim=-1).argsort(dim=-1).double() for vectors in (ours, theirs)]
    centred = [rank - rank.mean(-1, keepdim=True) for rank in ranks]
    products = [
        (left * right).sum(-1)
        for left, right in ((centred[0], centred[1]), *((vectors, vectors) for vectors in centred))
    ]
    return {
        "nearest": float((ours.argmax(-1) == theirs.argmax(-1)).double().mean()),
        "neighbours": float((found[0] & found[1]).sum(-1).double().mean() / count),
        "rank_correlation": float((products[0] / (products[1] * products[2]).sqrt()).mean()),
    }


def neighbour_count(texts: int) -> int:
    """The number k of nearest texts that are compared: half of the others, at most 10."""
    return max(1, min(_MAX_NEIGHBOURS, (texts - 1) // 2))


def _other_cosines(vectors: Float[Tensor, "texts width"]) -> Float[Tensor, "texts others"]:
    """Compute the cosine of each text with all other texts."""
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    texts = len(vectors)
    others = ~torch.eye(texts, dtype=torch.bool, device=vectors.device)
    return (vectors @ vectors.mT)[others].view(texts, texts - 1)


def _mark_largest(values: Float[Tensor, "texts others"], count: int) -> Tensor:
    return torch.zeros_like(values, dtype=torch.bool).scatter_(-1, values.topk(count, dim=-1).indices, True)


def _mean_cosine(vectors: Float[Tensor, "texts width"]) -> float | None:
    return float(_other_cosines(vectors).mean()) if len(vectors) > 1 else None
