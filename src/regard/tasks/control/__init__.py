"""Control: environments of ``gymnasium``, scripted experts, files of episodes. Needs the extra ``control``."""

from regard.tasks.control.collect import collect_episodes
from regard.tasks.control.environments import flatten_observation, make_environment, step_tokenizer, to_space
from regard.tasks.control.episode_files import read_episodes, write_episodes
from regard.tasks.control.experts import EXPERTS, find_expert
from regard.tasks.control.play import play_episodes

__all__ = [
    "EXPERTS",
    "collect_episodes",
    "find_expert",
    "flatten_observation",
    "make_environment",
    "play_episodes",
    "read_episodes",
    "step_tokenizer",
    "to_space",
    "write_episodes",
]
