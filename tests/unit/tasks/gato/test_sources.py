"""Sequences of a mixture: whole time steps, tokens of texts, pictures with labels; and how they count in the loss."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from picture_files import write_folders
from regard.control import (
    ContinuousSpace,
    DiscreteSpace,
    Episode,
    PictureSpace,
    StepTokenizer,
    TextSpace,
    TokenRanges,
    collect_episodes,
    find_expert,
)
from regard.errors import DataError
from regard.models import Gato, GatoBatch, GatoConfig
from regard.tasks.gato.data import find_pictures, load_pictures, split_episodes
from regard.tasks.gato.loss import OBSERVED_TEXT_WEIGHT, batch_loss
from regard.tasks.gato.new_model import order_bins
from regard.tasks.gato.recipe import GatoRecipe
from regard.tasks.gato.sources import EpisodeSource, PictureSource, TextSource, TokenizedEpisode
from regard.text.language_tokenizer import train_language_tokenizer

MISSIONS = ("go left", "go to the door and wait")


@pytest.fixture(scope="module")
def tokenizer():
    return train_language_tokenizer(["go left or right to the door", *MISSIONS], kind="bpe", size=290)


def make_episode(steps, seed):
    """An episode with a text of changing length, a picture of 2 x 1 patches and three numbers."""
    generator = np.random.default_rng(seed)
    observations = [
        {
            "mission": MISSIONS[generator.integers(2)],
            "camera": generator.integers(0, 256, (32, 16, 3), dtype=np.uint8),
            "state": generator.normal(size=3),
        }
        for _ in range(steps)
    ]
    return Episode(observations, list(generator.integers(0, 5, steps)), [1.0] * steps)


def make_steps(tokenizer):
    spaces = {"mission": TextSpace(), "camera": PictureSpace(32, 16), "state": ContinuousSpace((3,))}
    ranges = TokenRanges(text=tokenizer.vocabulary, bins=101, discrete=7)
    return StepTokenizer(spaces, DiscreteSpace(5), ranges=ranges, tokenizer=tokenizer)


def joined_steps(episode, steps, first, last):
    """The ids and patches of some time steps, tokenized one by one."""
    parts = []
    for observation, action in list(zip(episode.observations, episode.actions, strict=True))[first:last]:
        parts += [steps.tokenize_observation(observation), steps.tokenize_action(action)]
    return np.concatenate([one.ids for one in parts]), np.concatenate([one.patches for one in parts if len(one.places)])


@pytest.mark.parametrize("length", [1, 23, 61, pytest.param(1009, marks=pytest.mark.slow)])
def test_sequences_of_episodes_are_whole_time_steps(tokenizer, length):
    steps = make_steps(tokenizer)
    episodes = [make_episode(count, seed) for seed, count in enumerate((11, 1, 7))]
    tokenized = [TokenizedEpisode(one, steps) for one in episodes]
    source = EpisodeSource("own", tokenized, tokenized[2:], action_ids=steps.action_ids, length=length)
    generator = np.random.default_rng(5)
    draws = {source.draw(generator) for _ in range(100)}
    assert {number for number, _, _ in draws} == {0, 1, 2}
    for number, first, seed in draws:
        made, episode = source.sequence((number, first, seed)), episodes[number]
        counts = [len(steps.tokenize_observation(one)) + 1 for one in episode.observations[first:]]
        fitting = max(1, sum(np.cumsum(counts) <= length))
        ids, patches = joined_steps(episode, steps, first, first + fitting)
        np.testing.assert_array_equal(made.ids, ids)
        np.testing.assert_array_equal(made.patches, patches)
        assert len(made.places) == 2 * fitting
        assert (made.local[-2:] == -1).all()
        read = source.inputs((number, first, seed), made)
        is_action = made.ids >= steps.ranges.discrete_ids.start
        is_action &= made.ids < steps.ranges.separator_id
        np.testing.assert_array_equal(read[~is_action], made.ids[~is_action])
        assert set(read[is_action].tolist()) <= set(steps.action_ids)
        np.testing.assert_array_equal(read, source.inputs((number, first, seed), made))
    drawn = np.bincount([number for number, *_ in (source.draw(generator) for _ in range(3000))]) / 3000
    np.testing.assert_allclose(drawn, np.array([11, 1, 7]) / 19, atol=0.04)
    held_out = np.concatenate([one.ids for one in source.held_out()])
    whole, _ = joined_steps(episodes[2], steps, 0, 7)
    np.testing.assert_array_equal(held_out, whole)


def test_sequences_of_texts_are_parts_of_the_joined_texts(tokenizer):
    texts = ["go left", "to the door, then right; and left again"]
    source = TextSource(texts, texts[:1], tokenizer, length=7)
    joined = [0, *tokenizer.plain_ids(texts[:1])[0], 0, *tokenizer.plain_ids(texts[1:])[0]]
    generator = np.random.default_rng(1)
    starts = {source.draw(generator) for _ in range(500)}
    assert starts == {(one,) for one in range(len(joined) - 6)}
    for (start,) in starts:
        made = source.sequence((start,))
        assert made.ids.tolist() == joined[start : start + 7]
        assert made.target.all()
        assert made.local.tolist() == list(range(7))
    assert source.held_out()[0].ids.tolist() == joined[: joined.index(0, 1)][:7]
    assert source.bytes_per_token == pytest.approx(len(texts[0]) / len(tokenizer.plain_ids(texts[:1])[0]))


def test_pictures_are_followed_by_their_labels(tokenizer, tmp_path):
    write_folders(tmp_path / "shapes", count=11, size=23)
    recipe = GatoRecipe(pictures=(tmp_path / "shapes",))
    found = find_pictures(recipe)
    training, validation = load_pictures(recipe, found, channels=3, seed=1)
    ranges = TokenRanges(text=tokenizer.vocabulary, bins=101, discrete=7)
    source = PictureSource(training, validation, tokenizer, ranges=ranges, length=37)
    draw = source.draw(np.random.default_rng(2))
    made = source.sequence(draw)
    longest = max(len(tokenizer.plain_ids([label])[0]) for label in ("rows", "columns", "plain"))
    assert len(draw) == 37 // (4 + longest + 1)
    ids = []
    for one in draw:
        label = training.files[one].label
        ids += [ranges.patch_id] * 4 + tokenizer.plain_ids([label])[0] + [0]
    assert made.ids.tolist() == ids
    assert (made.target == (made.ids != ranges.patch_id)).all()
    assert made.patches.shape == (4 * len(draw), 3, 16, 16)
    corner = training.take(np.array(draw[:1]))[0][:, :16, 16:]
    np.testing.assert_array_equal(made.patches[1], corner)
    assert source.size + len(source.held_out()) == 33


def test_every_sequence_counts_alike(tokenizer):
    """Against sums written out by hand: the mean of actions, a tenth of that of missions, the mean of a text."""
    steps = make_steps(tokenizer)
    torch.manual_seed(0)
    config = GatoConfig(text=tokenizer.vocabulary, bins=101, discrete=7, width=16, layers=1, heads=1, inner=23,
                        max_length=211, max_observation=211, patch_channels=2, groups=1, dropout=0.0)  # fmt: skip
    model = Gato(config).double().eval()
    acted = TokenizedEpisode(make_episode(3, 0), steps).steps(0, 1009)
    text = TextSource(["to the door"] * 2, ["go"], tokenizer, length=5).sequence((1,))
    batch = GatoBatch.from_sequences([acted, text])
    batch = GatoBatch(**{**vars(batch), "pixels": batch.pixels.double(), "places": batch.places.double()})
    logs = model(batch).logits.log_softmax(-1).detach().numpy()
    actions, missions = [], []
    for place in range(1, len(acted)):
        if acted.target[place]:
            found = actions if acted.ids[place] >= config.ranges.discrete_ids.start else missions
            found.append(-logs[0, place - 1, acted.ids[place]])
    words = [-logs[1, place - 1, text.ids[place]] for place in range(1, 5)]
    expected = np.mean(actions) + OBSERVED_TEXT_WEIGHT * np.mean(missions) + np.mean(words)
    assert len(actions) == 3
    assert float(batch_loss(model, batch).detach()) == pytest.approx(expected, rel=1e-5)


def test_near_bins_begin_with_near_vectors():
    torch.manual_seed(0)
    model = Gato(GatoConfig(text=3, bins=101, discrete=2, width=31 * 2, layers=1, heads=1, inner=8, patch_channels=2,
                            groups=1))  # fmt: skip
    others = model.embedding.table.weight[:3].clone()
    order_bins(model)
    table = model.embedding.table.weight.detach()
    assert torch.equal(table[:3], others)
    bins = table[3:104]
    distances = torch.cdist(bins, bins)
    for one, two in pairwise(range(1, 6)):
        assert distances.diagonal(one).mean() < distances.diagonal(two).mean()
    assert float(bins.square().mean().sqrt()) == pytest.approx(model.config.deviation, rel=1e-3)


def test_noise_changes_what_happens_and_not_what_is_recorded():
    clean, noisy, again = (collect_episodes("CartPole-v1", [3], noise=noise)[0] for noise in (0.0, 0.7, 0.7))
    expert = find_expert("CartPole-v1")
    for one in (clean, noisy):
        assert [int(action) for action in one.actions] == [
            expert(None, observation["observation"]) for observation in one.observations
        ]
    reached = [max(abs(float(one["observation"][2])) for one in played.observations) for played in (clean, noisy)]
    assert reached[1] > 1.5 * reached[0]  # the angle of the pole
    for first, second in zip(noisy.observations, again.observations, strict=True):
        np.testing.assert_array_equal(first["observation"], second["observation"])


def test_a_single_episode_cannot_be_split():
    assert [list(part) for part in split_episodes("own", [[1], [2], [3]])] == [[[1], [2]], [[3]]]
    with pytest.raises(DataError, match="too few episodes"):
        split_episodes("own", [[1]])
