"""Lengths for property tests of kernels: beyond two ranges of key tiles, with far fewer or more queries than keys."""

from hypothesis import strategies as st

FEW = [1, 2, 3, 8, 17, 63, 64, 65, 67, 129]
EDGES = [511, 512, 513, 575, 577, 767, 769, 1023, 1025, 1279, 2047, 2049, 2500]
"""Of ranges of four to eight tiles of 64 keys, of groups of tiles, and of the parts of a decoding step."""

few = st.sampled_from(FEW)
many = st.one_of(st.sampled_from(EDGES), st.integers(500, 2500))
length_pairs = st.one_of(
    st.tuples(few, many), st.tuples(many, few), st.tuples(st.integers(130, 700), st.integers(130, 700))
)
"""Numbers of queries and keys."""
