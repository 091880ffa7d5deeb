"""A Gato acts in an environment: one episode for each seed, as of an expert.

In every time step the model reads the new observation, and writes an action; keys and values of earlier steps are
cached. An action is among the actions of the environment, whatever the model's probabilities of other ids are.

The environments that a model was trained on, as its metadata tells: a list of names, or a mapping from them.

    {"environments": {"CartPole-v1": {"spaces": {"observation observation": "..", "action": ".."}, ..}}}

The spaces, made by ``describe_spaces``, are optional; where they are known they must equal the environment's spaces.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import torch

from regard.arguments import explain_arguments
from regard.control import Episode, StepTokenizer
from regard.control.collect import collect_episodes
from regard.control.environments import describe_spaces, flatten_observation, make_environment, step_tokenizer
from regard.errors import OptionError, check_kind, short_repr
from regard.models import Gato, GatoBatch
from regard.models.gato import GatoState


def trained_environments(model: Gato) -> tuple[str, ...]:
    """The names of the environments that ``model`` was trained on; () if it does not tell."""
    return tuple(_entries(model))


def check_spaces(model: Gato, name: str, tokenizer: StepTokenizer) -> None:
    """Raise OptionError if the environment has other spaces than in the training of the model."""
    entry = _entries(model).get(name)
    trained = entry.get("spaces") if isinstance(entry, Mapping) else None
    if not isinstance(trained, Mapping):
        return
    present = describe_spaces(tokenizer)
    changed = [key for key in sorted({*trained, *present}) if trained.get(key) != present.get(key)]
    if changed:
        raise OptionError(
            f"the environment {name} has other spaces than in the training of the model",
            expected="; ".join(f"{key} {trained.get(key, 'none')}" for key in changed),
            got="; ".join(f"{key} {present.get(key, 'none')}" for key in changed),
            do="use the versions of gymnasium and of the environment that the model was trained with",
        )


def _entries(model: Gato) -> Mapping[str, Any]:
    found = model.metadata.get("environments")
    if isinstance(found, Mapping):
        return {str(name): value for name, value in found.items()}
    is_list = isinstance(found, Sequence) and not isinstance(found, str)
    return {str(name): None for name in found} if is_list and found is not None else {}


@explain_arguments
def play_episodes(model: Gato, name: str, seeds: Iterable[int], *, temperature: float = 0.0) -> list[Episode]:
    """Let ``model`` act in the environment ``name``, once for each seed, until the episode ends.

    With a ``temperature`` above 0 actions are sampled, with the seed of the episode. The model is set to eval mode.
    Raises RefusedError for spaces without tokens, OptionError for spaces that do not fit the ranges of the model.
    """
    tokenizer = tokenizer_of(model, name)
    episodes = []
    for seed in seeds:
        episodes += collect_episodes(name, [seed], expert=Player(model, tokenizer, seed, temperature=temperature))
    return episodes


def tokenizer_of(model: Gato, name: str) -> StepTokenizer:
    """The tokenizer of the time steps of an environment with the ids of ``model``. Raises as ``play_episodes``."""
    check_kind("model", model, Gato, do="load one with regard.load(folder)")
    environment = make_environment(name)
    try:
        return step_tokenizer(environment, ranges=model.config.ranges, tokenizer=model.tokenizer)
    except OptionError as error:  # its advice is for those who choose the ranges of ids
        raise OptionError(
            f"the model cannot play {short_repr(name)}: {error.what}",
            expected=error.expected,
            got=error.got,
            do=f"play what it was trained on{_describe_environments(model)}, or train a model on this environment: "
            f"regard train gato --task {shlex.quote(name)} --out model/",
        ) from error
    finally:
        environment.close()


def _describe_environments(model: Gato) -> str:
    names = trained_environments(model)
    return f" ({', '.join(names)})" if names else ""


@final
class Player:
    """Acts in one episode: an expert whose state are the keys and values of the model, which is set to eval mode.

    ``act`` is a function with the arguments and results of ``Gato.act``; None takes the model's ``act``.
    """

    def __init__(
        self,
        model: Gato,
        tokenizer: StepTokenizer,
        seed: int,
        *,
        temperature: float = 0.0,
        act: Callable[..., tuple[torch.Tensor, GatoState]] | None = None,
    ) -> None:
        self._model, self._tokenizer, self._temperature = model.eval(), tokenizer, temperature
        self._act = model.act if act is None else act
        self._state = model.empty_state(1)
        self._generator = torch.Generator().manual_seed(int(seed))

    def __call__(self, environment: Any, observation: Any) -> Any:
        """Read the observation, and return the action."""
        flat = flatten_observation(environment.observation_space, observation)
        sequence = self._tokenizer.tokenize_observation(flat)
        batch = GatoBatch.from_sequences([sequence], channels=self._model.config.channels).to(self._model.device)
        ids, self._state = self._act(
            batch,
            self._state,
            self._tokenizer.action_ids,
            self._tokenizer.action_tokens,
            temperature=self._temperature,
            generator=self._generator,
        )
        return self._tokenizer.ids_to_action(ids[0].cpu().numpy()).astype(environment.action_space.dtype)
