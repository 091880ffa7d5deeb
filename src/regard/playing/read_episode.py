"""Reading of an episode: a Gato plays it, and each action is kept with its alternatives and its attention.

Weights come from ``regard.record``, one row for each layer and head: the row of the token at which the action's token
is predicted. The model acts as in ``play_episodes``, with the same cache and kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from regard.arguments import explain_arguments
from regard.control import ContinuousSpace, DiscreteSpace, PictureSpace, StepTokenizer, TextSpace, names
from regard.control.collect import run_episode
from regard.control.environments import flatten_observation, make_environment
from regard.control.rendering import make_rendered, render_frame
from regard.models import Gato, GatoBatch
from regard.models.gato import GatoState, choose_ids
from regard.playing.play import Player, tokenizer_of
from regard.recording import LayerCall, record
from regard.view.episode_reading import ChosenToken, EpisodeReading, ObservedPart, ReadStep

INTERVALS = 32
"""The bins of a real number are joined to so many alternatives."""
_TILE = 24
"""Pixels of a cell in the picture of what the agent of a MiniGrid sees."""


@explain_arguments
def read_episode(model: Gato, name: str, seed: int, *, temperature: float = 0.0, render: bool = True) -> EpisodeReading:
    """Let ``model`` play one episode, and keep what it saw, did and attended to.

    ``render`` keeps frames too. Raises as ``play_episodes``, and as ``make_rendered`` with ``render``.
    """
    tokenizer = tokenizer_of(model, name)
    environment = make_rendered(name) if render else make_environment(name)
    reader = _AttentionReader(model, name, tokenizer, temperature)
    watcher = _Watcher(
        Player(model, tokenizer, seed, temperature=temperature, act=reader.act), name, tokenizer, render=render
    )
    try:
        episode = run_episode(environment, seed, watcher)
        last = render_frame(environment) if render else None
    finally:
        environment.close()
    steps = zip(watcher.parts, reader.actions, episode.rewards, watcher.frames, strict=True)
    return EpisodeReading(name, seed, tuple(itertools.starmap(ReadStep, steps)), last)


@final
class _AttentionReader:
    """Acts as ``Gato.act`` does, and keeps each action in ``actions``."""

    def __init__(self, model: Gato, name: str, tokenizer: StepTokenizer, temperature: float) -> None:
        self.actions: list[tuple[ChosenToken, ...]] = []
        self._model, self._tokenizer = model, tokenizer
        self._sharpness = 1.0 / temperature if temperature else 1.0
        self._components = names.component_names(name, tokenizer.action)
        self._choices = _choice_names(name, tokenizer)
        self._step_of_token, self._is_action = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)

    @torch.no_grad()
    def act(
        self,
        observation: GatoBatch,
        state: GatoState,
        action_ids: range,
        tokens: int,
        *,
        temperature: float,
        generator: torch.Generator,
    ) -> tuple[Tensor, GatoState]:
        """Read an observation, and write an action. The batch is one agent."""
        batch, written, chosen = observation, [], []
        for component in range(tokens):
            scores, weights, state = self._extend(batch, state, is_action=component > 0)
            scores = scores[:, action_ids.start : action_ids.stop]
            choice = choose_ids(scores, temperature, generator)
            probabilities = (scores[0] * self._sharpness).cpu().double().softmax(-1).numpy()
            chosen.append(self._describe(component, int(choice), probabilities, weights))
            written.append(action_ids.start + choice)
            batch = GatoBatch.of_actions(written[-1][:, None], channels=self._model.config.channels)
        # The last token of the action predicts nothing that is kept: the next observation is read behind it.
        _, _, state = self._extend(batch, state, is_action=True)
        self.actions.append(tuple(chosen))
        return torch.stack(written, dim=1), state

    def _extend(self, batch: GatoBatch, state: GatoState, *, is_action: bool) -> tuple[Tensor, np.ndarray, GatoState]:
        """Read tokens: the scores of the token after them, the weights of the last one, and the next state."""
        new = batch.ids.shape[1]
        with record(self._model) as recording:
            output, state = self._model.extend(batch, state)
        self._step_of_token = np.append(self._step_of_token, np.full(new, len(self.actions)))
        self._is_action = np.append(self._is_action, np.full(new, is_action))
        return output.logits[:, -1].float(), np.stack([_last_row(call) for call in recording]), state

    def _describe(self, component: int, choice: int, probabilities: np.ndarray, weights: np.ndarray) -> ChosenToken:
        shares, choices = probabilities, self._choices
        place = choice
        if isinstance(self._tokenizer.action, ContinuousSpace):
            edges = _interval_edges(len(probabilities))
            shares = np.add.reduceat(probabilities, edges[:-1])
            place = int(np.searchsorted(edges, choice, side="right")) - 1
        first, sources = self._join_sources(weights)
        return ChosenToken(
            name=self._components[component],
            choice=self._name_choice(choice),
            probability=float(probabilities[choice]),
            alternatives=tuple(zip(choices, map(float, shares), strict=True)),
            chosen=place,
            first=first,
            weights=sources,
        )

    def _name_choice(self, choice: int) -> str:
        space = self._tokenizer.action
        if isinstance(space, DiscreteSpace):
            return self._choices[choice]
        low = (choice + 0.5) / len(self._tokenizer.action_ids)
        return _real((1 - low) * space.low + low * space.high)

    def _join_sources(self, weights: np.ndarray) -> tuple[int, Float32[np.ndarray, "layers heads sources"]]:
        """The earliest step in reach, and the weights, summed over each earlier step. See ``episode_reading``."""
        step, reach = len(self.actions), min(weights.shape[-1], self._model.config.max_length)
        weights = weights[..., -reach:]
        steps, acted = self._step_of_token[-reach:], self._is_action[-reach:]
        first, earlier = int(steps[0]), steps < step
        sums = np.zeros((2 * (step - first), *weights.shape[:2]))
        np.add.at(sums, 2 * (steps[earlier] - first) + acted[earlier], np.moveaxis(weights[..., earlier], -1, 0))
        joined = np.concatenate([weights[..., ~earlier], np.moveaxis(sums, 0, -1)], axis=-1)
        return first, joined.astype(np.float32)


@final
class _Watcher:
    """An expert that keeps what another one observes: parts of observations, and frames."""

    def __init__(self, act: Player, name: str, tokenizer: StepTokenizer, *, render: bool) -> None:
        self.parts: list[tuple[ObservedPart, ...]] = []
        self.frames: list[bytes | None] = []
        self._act, self._name, self._tokenizer, self._render = act, name, tokenizer, render

    def __call__(self, environment: Any, observation: Any) -> Any:
        """Keep the observation, and return the action of the other expert."""
        flat = flatten_observation(environment.observation_space, observation)
        self.frames.append(render_frame(environment) if self._render else None)
        self.parts.append(_describe_observation(self._name, self._tokenizer, flat, environment))
        return self._act(environment, observation)


def _describe_observation(
    name: str, tokenizer: StepTokenizer, observation: Mapping[str, Any], environment: Any
) -> tuple[ObservedPart, ...]:
    """The parts of an observation in the order of their tokens."""
    parts = []
    for key, space in tokenizer.observation.items():
        value = observation[key]
        if isinstance(space, TextSpace):
            assert tokenizer.tokenizer is not None
            parts.append(ObservedPart(key, (), _pieces(tokenizer, value)))
        elif isinstance(space, PictureSpace):
            rows, columns = space.grid
            places = tuple(f"row {row}, column {column}" for row in range(rows) for column in range(columns))
            cells = tuple(range(rows * columns))
            parts.append(ObservedPart(key, places, ("patch",) * len(places), space.grid, cells, np.array(value)))
        else:
            grid = names.cell_grid(name, key, space)
            texts = names.value_names(name, key, space), names.value_texts(name, key, space, value)
            if grid is None:
                parts.append(ObservedPart(key, *texts))
            else:
                picture = _agent_view(environment) if names.is_view(name, key, space) else None
                parts.append(ObservedPart(key, *texts, grid[:2], grid[2], picture))
    return tuple(parts)


def _agent_view(environment: Any) -> np.ndarray | None:
    """A picture of the view of a MiniGrid's agent; None if the environment does not draw it."""
    draw = getattr(environment.unwrapped, "get_pov_render", None)
    return None if draw is None else np.asarray(draw(_TILE), dtype=np.uint8)


def _pieces(tokenizer: StepTokenizer, text: str) -> tuple[str, ...]:
    """The piece of text of each token, as ``tokenize_observation`` makes them."""
    assert tokenizer.tokenizer is not None
    ids = tokenizer.tokenizer.plain_ids([text])[0]
    return tuple(tokenizer.tokenizer.decode([token]) for token in ids)


def _last_row(call: LayerCall) -> np.ndarray:
    """The weights (heads, keys) of the last query of a call."""
    rows = call.weights(rows=[call.query.shape[2] - 1])
    return rows[0, :, 0].cpu().double().numpy()


def _choice_names(name: str, tokenizer: StepTokenizer) -> tuple[str, ...]:
    """The names of the alternatives of each token of an action."""
    space = tokenizer.action
    if isinstance(space, DiscreteSpace):
        return names.action_names(name, space)
    bins = len(tokenizer.action_ids)
    bounds = space.low + (space.high - space.low) * _interval_edges(bins) / bins
    return tuple(f"{_real(low)} to {_real(high)}" for low, high in itertools.pairwise(bounds.tolist()))


def _interval_edges(bins: int) -> np.ndarray:
    """The first bin of each interval, and the number of bins."""
    return np.unique(np.linspace(0, bins, min(INTERVALS, bins) + 1).round().astype(np.int64))


def _real(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")
