"""What an episode's reading says of weights and probabilities: those of one pass over the whole episode, in float64."""

import importlib
import io

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.control import DiscreteSpace, make_environment, rendering, step_tokenizer, tokenize_episode
from regard.control.names import cell_grid, value_names, value_texts
from regard.control.rendering import encode_png, make_rendered, render_frame
from regard.errors import MissingPackageError, RefusedError
from regard.models import GatoBatch
from regard.playing import play_episodes, read_episode
from small_gatos import DRAWN_TOY, TOY, TOY_STEPS, register_toys, small_gato


@pytest.fixture(autouse=True, scope="module")
def toys():
    register_toys()


def whole_pass(model, name, episode):
    """The tokens of an episode, and the weights (layers, heads, tokens, tokens) and probabilities of one pass."""
    tokenizer = step_tokenizer(make_environment(name), ranges=model.config.ranges, tokenizer=model.tokenizer)
    sequence = tokenize_episode(episode, tokenizer)
    batch = GatoBatch.from_sequences([sequence], channels=model.config.channels)
    with torch.no_grad(), regard.record(model) as seen:
        logits = model(batch).logits[0]
    weights = np.stack([call.weights()[0].double().numpy() for call in seen])
    ids = tokenizer.action_ids
    return sequence, weights, logits[:, ids.start : ids.stop].double().softmax(-1).numpy(), ids


@pytest.mark.parametrize(
    ("name", "options"),
    [("CartPole-v1", {"discrete": 2}), (TOY, {"texts": True, "channels": 1, "max_length": 61})],
)
def test_weights_and_probabilities_are_those_of_one_pass(name, options):
    model = small_gato(**options)
    reading = read_episode(model, name, 3, temperature=1.0, render=False)
    (episode,) = play_episodes(model, name, [3], temperature=1.0)
    assert [one.reward for one in reading.steps] == list(episode.rewards)
    sequence, weights, probabilities, ids = whole_pass(model, name, episode)
    per_step = len(sequence) // len(episode)
    components = len(reading.steps[0].action)
    for number, step in enumerate(reading.steps):
        assert sum(len(part.values) for part in step.parts) == per_step - 1 - components
        for component, token in enumerate(step.action):
            at = (number + 1) * per_step - components - 1 + component
            start = number * per_step
            row = weights[:, :, at]
            expected = [row[:, :, start : at + 1]]
            for earlier in range(token.first, number):
                begin, acted = earlier * per_step, (earlier + 1) * per_step - components
                expected += [row[:, :, begin:acted].sum(-1, keepdims=True)]
                expected += [row[:, :, acted : begin + per_step].sum(-1, keepdims=True)]
            np.testing.assert_allclose(token.weights, np.concatenate(expected, -1), atol=2e-6)
            assert token.first == max(0, at - model.config.max_length + 1) // per_step
            chosen = int(sequence.ids[at + 1]) - ids.start
            assert token.probability == pytest.approx(probabilities[at, chosen], abs=2e-6)
            assert sum(share for _, share in token.alternatives) == pytest.approx(1, abs=1e-9)
    assert reading.steps[-1].action[0].first > 0, "the window is to be shorter than the episode"


def test_observations_are_described_by_name():
    reading = read_episode(small_gato(texts=True, channels=1), DRAWN_TOY, 0)
    words, camera, board, speed = reading.steps[1].parts
    assert (words.key, words.names, "".join(words.values)) == ("words", (), "<b>hi")
    assert (camera.key, camera.grid, camera.names[4]) == ("camera", (2, 3), "row 1, column 1")
    assert camera.picture.shape == (32, 48, 1)
    assert (board.grid, board.names[5], board.picture) == ((2, 3), "row 1, column 2", None)
    assert (speed.names, speed.values) == (("speed",), ("0.500",))
    assert [one.name for one in reading.steps[0].action] == ["action 0", "action 1"]
    assert len(reading.frames) == TOY_STEPS + 1
    assert Image.open(io.BytesIO(reading.frames[2])).convert("RGB").getpixel((3, 3)) == (80, 80, 80)
    cart = read_episode(small_gato(), "CartPole-v1", 0, render=False).steps[0].parts[0]
    assert cart.names[2] == "pole angle"


def test_what_the_agent_of_a_minigrid_sees_lies_as_it_is_drawn():
    model = small_gato(texts=True, discrete=256, max_observation=256)
    environment = make_environment("MiniGrid-DoorKey-5x5-v0")
    environment.reset(seed=5)
    tokenizer = step_tokenizer(environment, ranges=model.config.ranges, tokenizer=model.tokenizer)
    space, image = tokenizer.observation["image"], environment.unwrapped.gen_obs()["image"]
    arguments = "MiniGrid-DoorKey-5x5-v0", "image", space
    rows, columns, cells = cell_grid(*arguments)
    names, texts = value_names(*arguments), value_texts(*arguments, image)
    grid, _ = environment.unwrapped.gen_obs_grid()
    seen = 0
    for token in range(0, 147, 3):
        row, column = divmod(cells[token], columns)
        assert names[token] == f"row {row}, column {column}: object"
        thing = grid.get(column, row)
        if texts[token] != "unseen" and (row, column) != (6, 3):
            assert texts[token] == ("empty" if thing is None else thing.type)
            if thing is not None:
                assert texts[token + 1] == thing.color
            seen += thing is not None and thing.type in ("door", "key", "goal")
    assert (rows, columns) == (7, 7)
    assert seen


def test_environments_that_are_not_drawn_are_refused(monkeypatch):
    with pytest.raises(RefusedError, match="cannot be rendered to pixels"):
        make_rendered(TOY)

    class Broken:
        def render(self):
            raise ModuleNotFoundError("No module named 'pygame'")

    with pytest.raises(MissingPackageError, match="pygame-ce"):
        render_frame(Broken())
    Broken.render = lambda self: "text"
    with pytest.raises(RefusedError, match="something else than a picture"):
        render_frame(Broken())


def test_frames_are_reduced_to_a_size():
    pixels = np.zeros((970, 13, 3), np.uint8)
    assert Image.open(io.BytesIO(encode_png(pixels))).size == (6, rendering.MAX_SIDE)


def test_directions_are_named_in_the_order_of_minigrid():
    """Facing the right, down, left and up; a number of another environment stays a number."""
    vectors = importlib.import_module("minigrid.core.constants").DIR_TO_VEC  # (columns, rows), rows from the top
    steps = {"right": (1, 0), "down": (0, 1), "left": (-1, 0), "up": (0, -1)}
    for number, vector in enumerate(vectors):
        (text,) = value_texts("MiniGrid-Empty-5x5-v0", "direction", DiscreteSpace(4), number)
        assert steps[text] == tuple(vector)
        assert value_texts("Other-v0", "direction", DiscreteSpace(4), number) == (str(number),)
