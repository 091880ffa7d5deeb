"""A model plays an environment from many seeds, beside the scripted expert and a random agent on the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from regard.arguments import explain_arguments
from regard.control.collect import RandomAgent, collect_episodes
from regard.control.environments import make_environment
from regard.control.experts import Expert, find_expert
from regard.control.rendering import make_rendered, render_frame, run_with_frames
from regard.control.returns import Returns, expert_share
from regard.errors import OptionError, RefusedError
from regard.models import Gato
from regard.playing.play import Player, check_spaces, play_episodes, tokenizer_of
from regard.playing.read_episode import read_episode
from regard.view.episode_reading import EpisodeReading

DEFAULT_FRAME_RATE = 10.0


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class PlayedEnvironment:
    """The results of the episodes in one environment.

    Args:
        environment: its name.
        seeds: one for each episode.
        model: the returns of the model.
        expert: the returns of the scripted expert; None without one, or if it was not asked for.
        random: the returns of random actions; None if they were not asked for.
        frames: PNG files of the first episode; () if it was not rendered.
        frame_rate: the frames per second of the environment.
        reading: the first episode with its attention; None if it was not read.
    """

    environment: str
    seeds: tuple[int, ...]
    model: Returns
    expert: Returns | None = None
    random: Returns | None = None
    frames: tuple[bytes, ...] = ()
    frame_rate: float = DEFAULT_FRAME_RATE
    reading: EpisodeReading | None = None

    @property
    def share(self) -> float | None:
        """How much of the expert's skill the model has; None if it is not known."""
        if self.expert is None or self.random is None:
            return None
        return expert_share(self.model.mean, expert=self.expert.mean, random=self.random.mean)

    def to_json(self) -> dict[str, Any]:
        """All numbers."""
        agents = {"model": self.model, "expert": self.expert, "random": self.random}
        return {
            "environment": self.environment,
            "seeds": list(self.seeds),
            **{name: None if agent is None else _statistics(agent) for name, agent in agents.items()},
            "share_of_expert": self.share,
        }


def check_playable(model: Gato, name: str) -> None:
    """Check that ``model`` can play an environment, before it does.

    Raises OptionError or RefusedError for spaces that do not fit the model, and as ``make_environment``.
    """
    check_spaces(model, name, tokenizer_of(model, name))


def can_render(name: str, *, required: bool) -> bool:
    """Whether an environment can be rendered. With ``required``, RefusedError says that it cannot.

    Raises MissingPackageError without the packages that draw it.
    """
    try:
        environment = make_rendered(name)
    except RefusedError:
        if required:
            raise
        return False
    try:
        environment.reset(seed=0)
        render_frame(environment)
    finally:
        environment.close()
    return True


@explain_arguments
def measure_play(
    model: Gato,
    name: str,
    seeds: Sequence[int],
    *,
    temperature: float = 0.0,
    compare: bool = True,
    read: bool = False,
    render: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> PlayedEnvironment:
    """Play one episode for each seed. Raises as ``play_episodes``, and as ``make_rendered`` with ``render``.

    Args:
        model: the Gato that plays.
        name: the name of the environment.
        seeds: of the episodes, 1 or more.
        temperature: of sampling; 0 chooses the most probable action.
        compare: play the same seeds with the scripted expert, if there is one, and with random actions.
        read: keep the attention of the first episode.
        render: keep the frames of the first episode.
        advance: is called after each episode of any agent.
    """
    values: list[float] = []
    frames: tuple[bytes, ...] = ()
    reading = None
    for at, seed in enumerate(seeds):
        if at == 0 and read:
            reading = read_episode(model, name, seed, temperature=temperature, render=render)
            frames = reading.frames
            values.append(reading.total)
        elif at == 0 and render:
            total, frames = _play_with_frames(model, name, seed, temperature)
            values.append(total)
        else:
            values += Returns.of(play_episodes(model, name, [seed], temperature=temperature)).values
        advance()
    expert, random = None, None
    if compare:
        expert, random = (_measure(name, seeds, agent_of, advance) for agent_of in (_expert_of(name), RandomAgent))
    return PlayedEnvironment(
        name, tuple(seeds), Returns(tuple(values)), expert, random, frames, frame_rate(name), reading
    )


def frame_rate(name: str) -> float:
    """The frames per second of an environment, as it tells them."""
    environment = make_environment(name)
    environment.close()
    return float(environment.metadata.get("render_fps") or DEFAULT_FRAME_RATE)


def _play_with_frames(model: Gato, name: str, seed: int, temperature: float) -> tuple[float, tuple[bytes, ...]]:
    environment = make_rendered(name)
    try:
        player = Player(model, tokenizer_of(model, name), seed, temperature=temperature)
        episode, frames = run_with_frames(environment, seed, player)
    finally:
        environment.close()
    return Returns.of([episode]).mean, tuple(frames)


def _expert_of(name: str) -> Callable[[int], Expert] | None:
    """A function of the seed that returns the scripted expert; None for an environment without one."""
    try:
        expert = find_expert(name)
    except OptionError:
        return None
    return lambda seed: expert


def _measure(
    name: str, seeds: Sequence[int], agent_of: Callable[[int], Expert] | None, advance: Callable[[], None]
) -> Returns | None:
    """The returns of another agent; None without one."""
    if agent_of is None:
        return None
    values: list[float] = []
    for seed in seeds:
        values += Returns.of(collect_episodes(name, [seed], expert=agent_of(seed))).values
        advance()
    return Returns(tuple(values))


def _statistics(returns: Returns) -> dict[str, Any]:
    return {
        "mean": returns.mean,
        "standard_deviation": returns.deviation,
        "least": min(returns.values),
        "largest": max(returns.values),
        "returns": list(returns.values),
    }
