"""Control: environments of ``gymnasium``, experts, episodes, and a Gato that plays. Needs the extra ``control``."""

from regard.tasks.control.collect import collect_episodes
from regard.tasks.control.environments import flatten_observation, make_environment, step_tokenizer, to_space
from regard.tasks.control.episode_files import read_episodes, write_episodes
from regard.tasks.control.experts import EXPERTS, find_expert
from regard.tasks.control.measure_play import PlayedEnvironment, measure_play
from regard.tasks.control.play import play_episodes
from regard.tasks.control.random_agent import RandomAgent
from regard.tasks.control.read_episode import read_episode
from regard.tasks.control.returns import Returns, expert_share

__all__ = [
    "EXPERTS",
    "PlayedEnvironment",
    "RandomAgent",
    "Returns",
    "collect_episodes",
    "expert_share",
    "find_expert",
    "flatten_observation",
    "make_environment",
    "measure_play",
    "play_episodes",
    "read_episode",
    "read_episodes",
    "step_tokenizer",
    "to_space",
    "write_episodes",
]
