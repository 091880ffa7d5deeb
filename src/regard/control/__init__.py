"""Control: environments, experts and episodes, and what an agent observes and does as one sequence of tokens (Gato).

Environments need the extra ``control``.
"""

from typing import TYPE_CHECKING

from regard.control.episode import Episode, tokenize_episode
from regard.control.mu_law import compand, expand
from regard.control.spaces import ContinuousSpace, DiscreteSpace, PictureSpace, Space, TextSpace
from regard.control.step_tokens import StepTokenizer
from regard.control.token_ranges import TokenRanges
from regard.control.token_sequence import TokenSequence
from regard.import_when_used import import_when_used

if TYPE_CHECKING:
    from regard.control.collect import RandomAgent, collect_episodes
    from regard.control.environments import flatten_observation, make_environment, step_tokenizer, to_space
    from regard.control.episode_files import read_episodes, write_episodes
    from regard.control.experts import EXPERTS, find_expert
    from regard.control.returns import Returns, expert_share
else:
    __getattr__ = import_when_used(
        __name__,
        collect=("RandomAgent", "collect_episodes"),
        environments=("flatten_observation", "make_environment", "step_tokenizer", "to_space"),
        episode_files=("read_episodes", "write_episodes"),
        experts=("EXPERTS", "find_expert"),
        returns=("Returns", "expert_share"),
    )

__all__ = [
    "EXPERTS",
    "ContinuousSpace",
    "DiscreteSpace",
    "Episode",
    "PictureSpace",
    "RandomAgent",
    "Returns",
    "Space",
    "StepTokenizer",
    "TextSpace",
    "TokenRanges",
    "TokenSequence",
    "collect_episodes",
    "compand",
    "expand",
    "expert_share",
    "find_expert",
    "flatten_observation",
    "make_environment",
    "read_episodes",
    "step_tokenizer",
    "to_space",
    "tokenize_episode",
    "write_episodes",
]
