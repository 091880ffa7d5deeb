"""Gato: embeddings and loss against an oracle, padding without influence, acting with a cache, folders, bad input."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import regard
from oracles import gato as oracle
from regard.control import (
    ContinuousSpace,
    DiscreteSpace,
    Episode,
    PictureSpace,
    StepTokenizer,
    TextSpace,
    TokenSequence,
    tokenize_episode,
)
from regard.control.patches import scale_pixels
from regard.errors import CheckpointError, OptionError, OutputExistsError, ShapeError
from regard.models import Gato, GatoBatch, GatoConfig, GatoState
from regard.models.gato_embedding import PatchPlaces
from regard.text import byte_tokenizer

CONFIG = GatoConfig(
    text=307,
    bins=101,
    discrete=13,
    width=24,
    layers=2,
    heads=3,
    inner=29,
    max_length=41,
    max_observation=11,
    places=19,
    channels=3,
    patch_channels=6,
    groups=3,
    dropout=0.0,
    deviation=0.3,
)


def picture_task():
    """Text, two patches, a discrete action."""
    spaces = {"image": PictureSpace(16, 32), "mission": TextSpace()}
    return StepTokenizer(spaces, DiscreteSpace(7), ranges=CONFIG.ranges, tokenizer=byte_tokenizer())


def number_task():
    """Three numbers, an action of two numbers."""
    return StepTokenizer({"state": ContinuousSpace((3,))}, ContinuousSpace((2,)), ranges=CONFIG.ranges)


def observe(tokenizer, rng):
    values = {
        "image": rng.integers(0, 256, (16, 32, 3)).astype(np.uint8),
        "mission": "go",
        "state": rng.normal(size=3),
    }
    return {key: values[key] for key in tokenizer.observation}


def episode(tokenizer, steps, seed=0):
    rng = np.random.default_rng(seed)
    observations = [observe(tokenizer, rng) for _ in range(steps)]
    discrete = isinstance(tokenizer.action, DiscreteSpace)
    actions = [int(rng.integers(7)) if discrete else rng.uniform(-1, 1, 2) for _ in range(steps)]
    return tokenize_episode(Episode(observations, actions, [0.0] * steps), tokenizer)


def mixed():
    return [episode(picture_task(), 3), episode(number_task(), 2, 1), episode(picture_task(), 1, 2)]


def make(config=CONFIG, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return Gato(config).to(dtype).eval()


def batch_of(sequences, dtype=torch.float64):
    batch = GatoBatch.from_sequences(sequences)
    return replace(batch, pixels=batch.pixels.to(dtype))


def test_embeddings_are_those_of_the_oracle():
    model, sequences = make(), mixed()
    weights = {name: one.detach().numpy() for name, one in model.embedding.named_parameters()}
    embedded = model.embedding(batch_of(sequences)).detach().numpy()
    for row, one in enumerate(sequences):
        expected = oracle.embed(
            (one.ids, one.local, scale_pixels(one.patches).astype(np.float64), one.places),
            weights,
            patch_id=CONFIG.ranges.patch_id,
            groups=3,
            epsilon=1e-5,
            places=19,
            max_observation=11,
        )
        np.testing.assert_allclose(embedded[row, : len(one)], expected, rtol=1e-9, atol=1e-11)


def test_loss_is_that_of_texts_and_actions():
    model, sequences = make(), mixed()
    batch = batch_of(sequences)
    total, count = model.loss(batch)
    logits = model(batch).logits.detach().numpy()
    expected = [oracle.loss(logits[row], one.ids, one.target) for row, one in enumerate(sequences)]
    assert count == sum(number for _, number in expected)
    np.testing.assert_allclose(float(total.detach()), sum(one for one, _ in expected), rtol=1e-12)
    # "go" and its action in 3 + 1 steps, but for the first token of each sequence; 2 numbers of the action in 2 steps
    text = len(byte_tokenizer().plain_ids(["go"])[0])
    assert count == 4 * (text + 1) - 2 + 2 * 2


def test_places_are_the_middle_in_evaluation_and_all_of_the_interval_in_training():
    """The example of appendix C.2: from 0.2 to 0.4 of 128 places are 25 to 51, whose middle is 38."""
    places = PatchPlaces(128, 4).eval()
    intervals = torch.tensor([[0.2, 0.4], [0.75, 1.0], [0.0, 1.0]])
    assert places.choose_places(intervals).tolist() == [38, 112, 64]
    few = PatchPlaces(5, 4).train()
    torch.manual_seed(0)
    drawn = few.choose_places(torch.tensor([[0.4, 1.0]]).expand(500, 2))
    assert sorted(set(drawn.tolist())) == [2, 3, 4]
    narrow = few.choose_places(torch.tensor([[0.0, 0.01], [0.99, 1.0]]).repeat(50, 1))
    assert narrow.tolist() == [0, 4] * 50


def test_a_sequence_alone_equals_itself_in_a_batch():
    model, sequences = make(), mixed()
    logits = model(batch_of(sequences)).logits
    for row, one in enumerate(sequences):
        assert_close(logits[row, : len(one)], model(batch_of([one])).logits[0], rtol=1e-11, atol=1e-11)


def poisoned(batch, sequences):
    """Padding of ids out of range, and of patches of NaN."""
    hidden = ~batch.visible
    ids = batch.ids.masked_fill(hidden, 10**9)
    rows, columns = hidden.nonzero(as_tuple=True)
    ids[rows[0], columns[0]] = CONFIG.ranges.patch_id
    before = int((ids == CONFIG.ranges.patch_id)[: rows[0]].sum())
    before += int((ids[rows[0], : columns[0]] == CONFIG.ranges.patch_id).sum())
    nan = torch.full((1, 3, 16, 16), torch.nan, dtype=batch.pixels.dtype)
    return replace(
        batch,
        ids=ids,
        local=batch.local.masked_fill(hidden, 10**9),
        target=batch.target | hidden,
        pixels=torch.cat([batch.pixels[:before], nan, batch.pixels[before:]]),
        places=torch.cat([batch.places[:before], torch.full((1, 4), torch.nan), batch.places[before:]]),
    )


def padded_with_patch_ids(batch, sequences):
    """Padding of ids of patches, which have no pixels."""
    return replace(batch, ids=batch.ids.masked_fill(~batch.visible, CONFIG.ranges.patch_id))


@pytest.mark.parametrize("training", [False, True])
def test_padding_has_no_influence(training):
    model, sequences = make(dtype=torch.float32), mixed()
    results = []
    for poison in (lambda batch, _: batch, poisoned, padded_with_patch_ids):
        batch = poison(batch_of(sequences, torch.float32), sequences)
        model.zero_grad()
        model.train(training)
        torch.manual_seed(3)
        total, count = model.loss(batch)
        total.backward()
        results.append((total.detach(), count, [one.grad.clone() for one in model.parameters()]))
    for total, count, gradients in results[1:]:
        assert torch.equal(total, results[0][0])
        assert count == results[0][1]
        assert all(torch.equal(*pair) for pair in zip(gradients, results[0][2], strict=True))


def test_a_token_has_no_influence_on_those_before_it():
    model, sequence = make(), episode(picture_task(), 3)
    clean = model(batch_of([sequence])).logits
    batch = batch_of([sequence])
    pixels = batch.pixels.clone()
    pixels[-1] += 1.0
    last = int((batch.ids[0] == CONFIG.ranges.patch_id).nonzero()[-1])
    changed = model(replace(batch, pixels=pixels)).logits
    assert torch.equal(changed[:, :last], clean[:, :last])
    assert not torch.equal(changed[:, last], clean[:, last])


@pytest.mark.parametrize("window", [7, 41])
def test_steps_with_a_cache_equal_the_whole_sequence(window):
    """Also where the sequence is longer than what a token attends to, and the cache drops the oldest."""
    model, tokenizer = make(replace(CONFIG, max_length=window)), number_task()
    rng = np.random.default_rng(0)
    state, parts, logits = model.empty_state(1), [], []
    for _ in range(4):
        observed = tokenizer.tokenize_observation({"state": rng.normal(size=3)})
        action = tokenizer.tokenize_action(rng.uniform(-1, 1, 2))
        for one in (observed, action):
            output, state = model.extend(batch_of([one]), state)
            logits.append(output.logits)
            parts.append(one)
    whole = model(batch_of([TokenSequence.joined(parts)])).logits
    assert_close(torch.cat(logits, dim=1), whole, rtol=1e-10, atol=1e-10)


def test_actions_are_the_most_probable_valid_ids():
    model, tokenizer = make(), number_task()
    observed = [tokenizer.tokenize_observation({"state": np.array([seed, 1.0, -2.0])}) for seed in range(3)]
    ids, state = model.act(batch_of(observed), model.empty_state(3), tokenizer.action_ids, tokenizer.action_tokens)
    assert ids.shape == (3, 2)
    assert isinstance(state, GatoState)
    valid = tokenizer.action_ids
    for row, one in enumerate(observed):
        sequence = one
        for chosen in ids[row].tolist():
            logits = model(batch_of([sequence])).logits[0, -1]
            assert chosen == valid.start + int(logits[valid.start : valid.stop].argmax())
            sequence = TokenSequence.joined([sequence, TokenSequence.of_values(np.array([chosen]), local=-1)])
        assert tokenizer.ids_to_action(ids[row].numpy()).shape == (2,)


def test_sampled_actions_depend_on_the_generator_alone():
    model, tokenizer = make(), number_task()
    observed = batch_of([tokenizer.tokenize_observation({"state": np.zeros(3)})] * 17)
    drawn = [
        model.act(
            observed,
            model.empty_state(17),
            tokenizer.action_ids,
            2,
            temperature=1.0,
            generator=torch.Generator().manual_seed(seed),
        )[0]
        for seed in (5, 5, 6)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert len(set(drawn[0][:, 0].tolist())) > 1
    assert all(int(one) in tokenizer.action_ids for one in drawn[0].flatten())


def test_rows_of_a_state_can_be_reordered():
    model, tokenizer = make(), number_task()
    rng = np.random.default_rng(2)
    first, second = (tokenizer.tokenize_observation({"state": rng.normal(size=3)}) for _ in range(2))
    _, state = model.extend(batch_of([first, second]), model.empty_state(2))
    output, _ = model.extend(batch_of([first, second]), state.reordered(torch.tensor([1, 0])))
    joined = [TokenSequence.joined(pair) for pair in ([second, first], [first, second])]
    assert_close(output.logits, model(batch_of(joined)).logits[:, len(first) :], rtol=1e-10, atol=1e-10)


def test_folder_keeps_weights_config_tokenizer_and_metadata(tmp_path):
    model = make(dtype=torch.float32)
    model.tokenizer, model.metadata = byte_tokenizer(), {"tasks": ["CartPole-v1"]}
    model.save(tmp_path / "gato")
    loaded = regard.load(tmp_path / "gato")
    assert isinstance(loaded, Gato)
    assert not loaded.training
    assert loaded.config == CONFIG
    assert loaded.metadata == {"tasks": ["CartPole-v1"]}
    assert loaded.tokenizer.plain_ids(["go"]) == byte_tokenizer().plain_ids(["go"])
    for (name, one), (other_name, other) in zip(model.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert name == other_name
        assert torch.equal(one, other)
    batch = batch_of(mixed(), torch.float32)
    assert torch.equal(model(batch).logits, loaded(batch).logits)
    with pytest.raises(OutputExistsError):
        model.save(tmp_path / "gato")
    (tmp_path / "gato" / "config.json").write_text('{"model_type": "regard-gato", "width": 25}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot be built"):
        regard.load(tmp_path / "gato")


def test_a_few_steps_of_training_lower_the_loss():
    model = make(dtype=torch.float32).train()
    batch = batch_of(mixed(), torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        total, count = model.loss(batch)
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        losses.append(float(total.detach()) / count)
    assert losses[-1] < losses[0] / 3


def test_bad_input_is_refused():
    model, tokenizer = make(), number_task()
    with pytest.raises(OptionError, match="no sequences"):
        GatoBatch.from_sequences([])
    with pytest.raises(ShapeError, match="other channels"):
        GatoBatch.from_sequences([episode(picture_task(), 1)], channels=1)
    with pytest.raises(OptionError, match="wrong batch"):
        model(torch.zeros(1, 2, dtype=torch.long))
    batch = batch_of(mixed())
    with pytest.raises(OptionError, match="out of range"):
        model(replace(batch, ids=batch.ids + CONFIG.vocabulary))
    with pytest.raises(ShapeError, match="local positions"):
        model(replace(batch, local=batch.local + 11))
    with pytest.raises(ShapeError, match="ids and pixels"):
        model(replace(batch, pixels=batch.pixels[1:], places=batch.places[1:]))
    with pytest.raises(ShapeError, match="does not fit the state"):
        model.extend(batch, model.empty_state(3))
    observed = batch_of([tokenizer.tokenize_observation({"state": np.zeros(3)})])
    with pytest.raises(OptionError, match="wrong action_ids"):
        model.act(observed, model.empty_state(1), range(400, 500), 1)
    for field, value in {"width": 23, "groups": 4, "heads": 8}.items():
        with pytest.raises(OptionError):
            replace(CONFIG, **{field: value})
