"""Masking of tokens: how many, which, and what becomes of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import CheckpointError, OptionError
from regard.text.language_tokenizer import train_language_tokenizer
from regard.text.token_masking import TokenMasking

MASK, SPECIAL, VOCABULARY = 4, 5, 101
USABLE = np.arange(SPECIAL, VOCABULARY)


@given(
    rows=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=23, max_size=23), min_size=1, max_size=7),
    share=st.floats(0.01, 1.0),
    seed=st.integers(0, 99),
)
def test_the_share_of_the_usable_tokens_is_chosen(rows, share, seed):
    ids = np.array(rows)
    masking = TokenMasking(share, MASK, USABLE)
    chosen = masking.choose(ids, np.random.default_rng(seed))
    assert (chosen == masking.choose(ids, np.random.default_rng(seed))).all()
    for row, own in zip(rows, chosen, strict=True):
        usable = sum(one >= SPECIAL for one in row)
        assert own.sum() == (0 if usable == 0 else max(1, round(share * usable)))
        assert all(row[place] >= SPECIAL for place in np.flatnonzero(own))
    masked = masking.replace(ids, chosen, np.random.default_rng(seed + 1))
    assert (masked[~chosen] == ids[~chosen]).all()
    assert ((masked[chosen] == MASK) | (masked[chosen] >= SPECIAL)).all()


def test_of_the_chosen_tokens_80_percent_are_masked_and_10_are_other_tokens():
    ids = np.full((211, 503), 7)
    masking = TokenMasking(0.15, MASK, USABLE)
    chosen = masking.choose(ids, np.random.default_rng(1))
    masked = masking.replace(ids, chosen, np.random.default_rng(2))[chosen]
    assert len(masked) == 211 * 75
    assert np.mean(masked == MASK) == pytest.approx(0.8, abs=0.02)
    others = masked[(masked != MASK) & (masked != 7)]
    assert len(others) / len(masked) == pytest.approx(0.1 * 95 / 96, abs=0.01)
    assert set(others) == set(USABLE) - {7}
    counts = chosen.sum(axis=0)  # every position alike: 211 * 75 / 503 = 31.5 on average
    assert 10 < counts.min() < counts.max() < 60


def test_a_share_out_of_range_and_a_tokenizer_without_mask_are_refused():
    tokenizer = train_language_tokenizer(["abc"], kind="bytes", size=300)
    for share in (0.0, 1.5, float("nan"), "0.3"):
        with pytest.raises(OptionError, match="wrong mask_share"):
            TokenMasking.of(tokenizer, share=share)
    with pytest.raises(CheckpointError, match="no mask token"):
        TokenMasking.of(tokenizer)
