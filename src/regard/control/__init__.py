"""Control: what an agent observes and does, as one sequence of tokens (Gato)."""

from regard.control.episode import Episode, tokenize_episode
from regard.control.mu_law import compand, expand
from regard.control.spaces import ContinuousSpace, DiscreteSpace, PictureSpace, Space, TextSpace
from regard.control.step_tokenizer import StepTokenizer
from regard.control.token_ranges import TokenRanges
from regard.control.token_sequence import TokenSequence

__all__ = [
    "ContinuousSpace",
    "DiscreteSpace",
    "Episode",
    "PictureSpace",
    "Space",
    "StepTokenizer",
    "TextSpace",
    "TokenRanges",
    "TokenSequence",
    "compand",
    "expand",
    "tokenize_episode",
]
