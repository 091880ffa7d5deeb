"""The tokens of an agent: round trips, order, ranges, and formulas of the paper computed by loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from regard.control import (
    ContinuousSpace,
    DiscreteSpace,
    Episode,
    PictureSpace,
    StepTokenizer,
    TextSpace,
    TokenRanges,
    compand,
    expand,
    tokenize_episode,
)
from regard.control.mu_law import bin_centres, to_bins
from regard.control.patches import cut_patches, join_patches, patch_places, scale_pixels
from regard.errors import DataError, OptionError, RefusedError
from regard.text import byte_tokenizer

RANGES = TokenRanges(text=307, bins=101, discrete=13)


def mu_law(x):
    """Equation 3 of appendix B, for one number."""
    return math.copysign(math.log(abs(x) * 100 + 1) / math.log(256 * 100 + 1), x)


@given(arrays.arrays(np.float64, st.integers(0, 7), elements=st.floats(-1e6, 1e6)))
def test_mu_law_is_the_equation_and_expand_its_inverse(values):
    np.testing.assert_allclose(compand(values), [mu_law(x) for x in values], rtol=1e-13, atol=1e-16)
    np.testing.assert_allclose(expand(compand(values)), values, rtol=1e-11, atol=1e-16)


def test_mu_law_maps_256_to_1():
    np.testing.assert_allclose(compand([256.0, -256.0, 0.0]), [1.0, -1.0, 0.0], rtol=1e-15)


@given(st.floats(-1, 1), st.integers(1, 2000))
def test_bins_round_trip_within_half_a_bin(value, bins):
    number = to_bins(value, bins)
    assert 0 <= number < bins
    assert abs(bin_centres(number, bins) - value) <= 1 / bins + 1e-15


@given(st.integers(1, 3000), st.data())
def test_centre_of_a_bin_is_in_the_bin(bins, data):
    number = data.draw(st.integers(0, bins - 1))
    assert to_bins(bin_centres(np.array(number), bins), bins) == number


def test_bins_cut_what_is_beyond_and_keep_order():
    numbers = to_bins([-np.inf, -1.0, -0.5, 0.0, 1.0, 7.0], 4)
    assert numbers.tolist() == [0, 0, 1, 2, 3, 3]


@given(st.integers(0, 50), st.integers(1, 50), st.integers(1, 50))
def test_ranges_are_disjoint_and_cover_the_vocabulary(text, bins, discrete):
    ranges = TokenRanges(text=text, bins=bins, discrete=discrete)
    every = [*ranges.text_ids, *ranges.continuous_ids, *ranges.discrete_ids, ranges.separator_id, ranges.patch_id]
    assert sorted(every) == list(range(ranges.vocabulary))


def test_ranges_of_the_paper():
    ranges = TokenRanges()
    assert ranges.continuous_ids == range(32000, 33024)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.data())
def test_patches_are_in_raster_order_and_join_again(rows, columns, channels, data):
    space = PictureSpace(16 * rows, 16 * columns, channels)
    seed = data.draw(st.integers(0, 2**32 - 1))
    picture = np.random.default_rng(seed).integers(0, 256, (16 * rows, 16 * columns, channels)).astype(np.uint8)
    patches, places = cut_patches(picture), patch_places(rows, columns)
    for row in range(rows):
        for column in range(columns):
            number = row * columns + column
            cut = picture[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            np.testing.assert_array_equal(patches[number].transpose(1, 2, 0), cut)
            place = [row / rows, (row + 1) / rows, column / columns, (column + 1) / columns]
            np.testing.assert_array_equal(places[number], np.float32(place))
    np.testing.assert_array_equal(join_patches(patches, space), picture)


def test_pixels_are_scaled_to_a_quarter():
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    expected = [(2 * x / 255 - 1) / 4 for x in range(256)]
    np.testing.assert_allclose(scale_pixels(pixels).reshape(-1), expected, atol=2**-26)


def full_tokenizer():
    observation = {
        "z": ContinuousSpace((3,)),
        "picture": PictureSpace(32, 16),
        "a": DiscreteSpace(7, (2, 1)),
        "mission": TextSpace(),
        "B": ContinuousSpace(()),
    }
    return StepTokenizer(observation, ContinuousSpace((2,), -3.0, 5.0), ranges=RANGES, tokenizer=byte_tokenizer())


def full_observation(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "z": rng.normal(size=3),
        "picture": rng.integers(0, 256, (32, 16, 3)).astype(np.uint8),
        "a": np.array([[5], [6]]),
        "mission": "go",
        "B": np.array(-1e9),
    }


def test_order_is_text_patches_numbers_by_key_separator():
    tokenizer, observation = full_tokenizer(), full_observation()
    sequence = tokenizer.tokenize_observation(observation)
    text = byte_tokenizer().plain_ids(["go"])[0]
    continuous, discrete = 307, 307 + 101
    bins = [min(100, int((max(-1, mu_law(x)) + 1) / 2 * 101)) for x in observation["z"]]
    expected = [*text, RANGES.patch_id, RANGES.patch_id, continuous, discrete + 5, discrete + 6]
    expected += [continuous + one for one in bins] + [RANGES.separator_id]
    assert sequence.ids.tolist() == expected
    assert sequence.local.tolist() == [*range(len(expected) - 1), -1]
    assert sequence.target.tolist() == [True] * len(text) + [False] * (len(expected) - len(text))
    np.testing.assert_array_equal(sequence.patches, cut_patches(observation["picture"]))
    np.testing.assert_array_equal(sequence.places, patch_places(2, 1))


def test_episode_joins_the_steps_in_their_order():
    tokenizer = full_tokenizer()
    observations, actions = [full_observation(seed) for seed in range(3)], [[-3.0, 5.0], [0.0, 1.0], [2.0, -1.0]]
    sequence = tokenize_episode(Episode(observations, actions, [0.0] * 3), tokenizer)
    expected = []
    for observation, action in zip(observations, actions, strict=True):
        expected += [*tokenizer.tokenize_observation(observation).ids, *tokenizer.action_to_ids(action)]
    assert sequence.ids.tolist() == expected
    step = len(sequence) // 3
    assert sequence.target.reshape(3, step)[:, -2:].all()
    assert (sequence.local.reshape(3, step)[:, -3:] == -1).all()
    assert len(sequence.patches) == (sequence.ids == RANGES.patch_id).sum() == 6


def test_observed_numbers_are_read_again_within_their_bin():
    tokenizer, observation = full_tokenizer(), full_observation(7)
    ids = tokenizer.tokenize_observation(observation).ids
    np.testing.assert_array_equal(tokenizer.ids_to_values("a", ids[-6:-4]), [[5], [6]])
    read = tokenizer.ids_to_values("z", ids[-4:-1])
    assert np.abs(compand(read) - compand(observation["z"])).max() <= 1 / 101 + 1e-12


@given(arrays.arrays(np.float64, (2, 3), elements=st.floats(-3, 5)))
def test_continuous_actions_round_trip_within_half_a_bin(action):
    tokenizer = StepTokenizer({}, ContinuousSpace((2, 3), -3.0, 5.0), ranges=RANGES)
    ids = tokenizer.action_to_ids(action)
    assert set(ids) <= set(RANGES.continuous_ids)
    read = tokenizer.ids_to_action(ids)
    assert read.shape == (2, 3)
    assert np.abs(read - action).max() <= 8 / 101 / 2 + 1e-12
    assert tokenizer.action_to_ids(read).tolist() == ids.tolist()


@given(arrays.arrays(np.int64, (3, 1), elements=st.integers(0, 12)))
def test_discrete_actions_round_trip_exactly(action):
    tokenizer = StepTokenizer({}, DiscreteSpace(13, (3, 1)), ranges=RANGES)
    ids = tokenizer.action_to_ids(action)
    assert set(ids) <= set(tokenizer.action_ids) <= set(RANGES.discrete_ids)
    np.testing.assert_array_equal(tokenizer.ids_to_action(ids), action)


def test_what_cannot_be_tokenized_is_refused():
    with pytest.raises(RefusedError, match="actions of this kind"):
        StepTokenizer({}, TextSpace())
    for wrong in ({"observation": [DiscreteSpace(2)]}, {"tokenizer": "gpt2"}):
        (name,) = wrong
        with pytest.raises(OptionError, match=f"wrong {name}"):
            StepTokenizer(**{"observation": {}, "action": DiscreteSpace(2), **wrong})
    with pytest.raises(OptionError, match="tokenizer does not fit"):
        StepTokenizer({"text": TextSpace()}, DiscreteSpace(2))
    with pytest.raises(OptionError, match="more values than there are ids"):
        StepTokenizer({}, DiscreteSpace(14), ranges=RANGES)
    with pytest.raises(OptionError, match="patches do not fill"):
        PictureSpace(17, 16)
    tokenizer = full_tokenizer()
    with pytest.raises(DataError, match="other parts"):
        tokenizer.tokenize_observation({"z": [1, 2, 3]})
    for key, wrong in {"z": [1.0, np.nan, 0.0], "a": [[7], [0]], "mission": 3, "picture": np.zeros((32, 16))}.items():
        with pytest.raises(DataError, match=r"cannot be tokenized|does not fit its space"):
            tokenizer.tokenize_observation({**full_observation(), key: wrong})
    with pytest.raises(DataError, match="out of its bounds"):
        tokenizer.action_to_ids([0.0, 5.1])
    with pytest.raises(DataError, match="these ids are no action"):
        tokenizer.ids_to_action([RANGES.separator_id, 307])
    with pytest.raises(DataError, match="one observation, action and reward"):
        Episode([{}], [], [])
