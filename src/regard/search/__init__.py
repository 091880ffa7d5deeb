"""The search for what a model would write: one strategy a file, which know no model."""

from regard.search.base import Hypothesis, Search
from regard.search.beam import Beam
from regard.search.greedy import Greedy
from regard.search.sampling import Sampling

__all__ = ["Beam", "Greedy", "Hypothesis", "Sampling", "Search"]
