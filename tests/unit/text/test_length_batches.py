"""Batches by length: every sequence once, within the limits, and no batch could take one more."""

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from regard.text.length_batches import cut_batches

LENGTHS = st.lists(st.integers(1, 40), max_size=40)
LIMIT = st.none() | st.integers(0, 60)


def fits(lengths, tokens, size, padding):
    padded = max(lengths) * len(lengths)
    return (
        padded <= tokens
        and (size is None or len(lengths) <= size)
        and (padding is None or padded - sum(lengths) <= padding)
    )


@given(LENGTHS, st.integers(1, 100), st.none() | st.integers(1, 7), LIMIT)
def test_batches_have_each_sequence_once_and_are_full(lengths, tokens, size, padding):
    batches = list(cut_batches(lengths, tokens=tokens, size=size, padding=padding))
    assert [length for batch in batches for length in lengths[batch]] == lengths
    for batch in batches:
        assert len(lengths[batch]) == 1 or fits(lengths[batch], tokens, size, padding)
    for batch, following in pairwise(batches):
        assert not fits(lengths[batch.start : following.start + 1], tokens, size, padding)
