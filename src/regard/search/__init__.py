"""Decoding strategies: greedy search, beam search and sampling, for any ``Decoder``. One file each."""

from regard.search.base import Hypothesis, Search
from regard.search.beam import Beam
from regard.search.greedy import Greedy
from regard.search.sampling import Sampling
from regard.search.token_by_token import TokenSearch, TokenStep

__all__ = ["Beam", "Greedy", "Hypothesis", "Sampling", "Search", "TokenSearch", "TokenStep"]
