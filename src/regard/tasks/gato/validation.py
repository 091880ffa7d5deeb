"""The validation of a Gato: its loss on held-out sequences of each source, and games in each environment.

    score    minus the mean of the losses of all sources, weighted as they are mixed
    share    (r - r_random) / (r_expert - r_random)          r: the mean return; r_random: of random actions

Reed et al. 2022, "A generalist agent", section 4.1: scores as a part of the expert's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import torch

from regard.control import Episode, TokenSequence, collect_episodes, find_expert
from regard.devices import to_float64
from regard.errors import OptionError
from regard.models import Gato, GatoBatch
from regard.playing import play_episodes
from regard.tasks.gato.loss import token_losses
from regard.tasks.gato.sources import EpisodeSource, Mixture, PictureSource, Source, TextSource
from regard.train import Validation

_ROWS = 8
"""Held-out sequences in a batch."""
_REFERENCE_SEEDS = range(10)


@final
@dataclass(frozen=True)
class ReferenceReturns:
    """Mean returns of an environment: of its expert and of random actions."""

    expert: float
    random: float

    def share(self, value: float) -> float:
        """How much of the expert's skill a mean return is; NaN if the expert is not better than random actions."""
        return (value - self.random) / (self.expert - self.random) if self.expert > self.random else math.nan

    def fields(self) -> dict[str, float]:
        """The fields as JSON values."""
        return asdict(self)


def measure_references(name: str, recorded: Sequence[Episode]) -> ReferenceReturns:
    """Play the scripted expert and random actions; without a scripted expert take the recording's mean return."""
    try:
        find_expert(name)
    except OptionError:
        expert = mean_return(recorded)
    else:
        expert = mean_return(collect_episodes(name, _REFERENCE_SEEDS))
    return ReferenceReturns(expert, mean_return(collect_episodes(name, _REFERENCE_SEEDS, expert=_RandomAgent())))


def mean_return(episodes: Sequence[Episode]) -> float:
    """The mean of the sums of rewards."""
    return math.fsum(sum(episode.rewards) for episode in episodes) / len(episodes)


@final
class GatoValidation:
    """Measures a Gato on the held-out sequences of a ``mixture``, weighted as it is, and in ``games`` episodes."""

    def __init__(self, mixture: Mixture, references: Mapping[str, ReferenceReturns], *, games: int) -> None:
        self._mixture, self._references, self._games = mixture, references, games
        self._held_out = {source.name: source.held_out() for source in mixture.sources}

    def measure(self, model: Gato) -> Validation:
        """Measure losses and accuracies of all sources, and returns in environments."""
        metrics: dict[str, float] = {}
        samples: list[str] = []
        total = 0.0
        for source in self._mixture.sources:
            found = _measure_source(model, source, self._held_out[source.name])
            total += self._mixture.weights[source.name] * found["loss"]
            if isinstance(source, EpisodeSource) and self._games:
                found |= self._play(model, source.name)
                samples.append(f"{source.name}: return {found['return']:.1f}, {found['share']:.2f} of the expert's")
            metrics |= {f"{source.name}.{name}": value for name, value in found.items()}
        loss = total / sum(self._mixture.weights.values())
        return Validation(-loss, {"loss": loss, **metrics}, tuple(samples))

    def baseline(self) -> float:
        """The score of a model that gives all ids of a source, of which it chooses, the same probability."""
        weights = self._mixture.weights
        losses = (weights[source.name] * math.log(source.choices) for source in self._mixture.sources)
        return -sum(losses) / sum(weights.values())

    def _play(self, model: Gato, name: str) -> dict[str, float]:
        value = mean_return(play_episodes(model, name, range(self._games)))
        return {"return": value, "share": self._references[name].share(value)}


def _measure_source(model: Gato, source: Source, sequences: Sequence[TokenSequence]) -> dict[str, float]:
    """Loss and accuracy of the actions of episodes, of the tokens of texts, of the labels of pictures."""
    losses, hits, whole = [], [], []
    for batch in _batches(sequences, model):
        every, is_hit, rows, is_action = (part.cpu() for part in token_losses(model, batch))
        counted = is_action if isinstance(source, EpisodeSource) else torch.ones_like(is_action)
        losses.append(to_float64(every[counted]))
        hits.append(is_hit[counted])
        misses = torch.bincount(rows[~is_hit], minlength=len(batch.ids))
        whole.append(misses == 0)
    loss = float(torch.cat(losses).mean())
    if isinstance(source, TextSource):
        per_byte = loss / math.log(2.0) / source.bytes_per_token
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "bits_per_byte": per_byte}
    found = whole if isinstance(source, PictureSource) else hits
    return {"loss": loss, "accuracy": float(to_float64(torch.cat(found)).mean())}


def _batches(sequences: Sequence[TokenSequence], model: Gato) -> Iterable[GatoBatch]:
    for begin in range(0, len(sequences), _ROWS):
        yield GatoBatch.from_sequences(sequences[begin : begin + _ROWS], channels=model.config.channels)


@final
class _RandomAgent:
    """An expert that knows nothing. Its actions are the same in each run: the space is seeded once."""

    def __init__(self) -> None:
        self._is_seeded = False

    def __call__(self, environment: Any, observation: Any) -> Any:
        if not self._is_seeded:
            environment.action_space.seed(0)
            self._is_seeded = True
        return environment.action_space.sample()
