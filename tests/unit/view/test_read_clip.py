"""A picture against texts by a CLIP: probabilities, similarities of patches and gradient rollouts, against oracles."""

import numpy as np
import pytest
import torch

from oracles.rollout import gradient_rollout
from picture_files import random_pixels
from regard.classification import ZeroShotClassifier
from regard.errors import CheckpointError, OptionError
from regard.mechanisms.base import Mechanism
from regard.recording import record
from regard.view import read, read_file
from regard.view.read_file import MAX_TEXTS
from small_clips import small_clip

PICTURE = random_pixels(13, 9, channels=1)
TEXTS = ["a cat", "a dog", "an owl"]


def test_probabilities_are_those_of_zero_shot_classification():
    model = small_clip()
    reading = read_file(model, PICTURE, labels=TEXTS)
    expected = ZeroShotClassifier(model, TEXTS).classify([PICTURE])[0].probabilities
    assert dict(reading.probabilities) == pytest.approx(expected, rel=1e-5)
    assert [share for _, share in reading.probabilities] == pytest.approx(
        sorted(expected.values(), reverse=True), rel=1e-5
    )


def test_similarities_are_cosines_and_that_of_the_class_token_is_the_logit():
    """The logit is the scaled cosine of the picture's embedding, which is computed from the class token."""
    model = small_clip()
    reading = read_file(model, PICTURE, labels=TEXTS)
    pixels = model.vision.processor([PICTURE])
    texts = ZeroShotClassifier(model, TEXTS).label_embeddings.detach().double().numpy()
    with torch.no_grad():
        output = model.vision(pixels)
        hidden = output.hidden[0].double().numpy()
    norm, projection = model.vision.norm, model.vision.projection.weight.detach().double().numpy()
    gain, shift = (one.detach().double().numpy() for one in (norm.weight, norm.bias))
    for token, vector in enumerate(hidden):
        centred = vector - vector.mean()
        projected = projection @ (centred / np.sqrt((centred**2).mean() + norm.eps) * gain + shift)
        for text, direction in zip(TEXTS, texts, strict=True):
            cosine = projected @ direction / np.sqrt(projected @ projected)
            assert reading.similarities[text][token] == pytest.approx(cosine, abs=1e-5)
    scaled = {text: float(model.logit_scale.detach().exp()) * reading.similarities[text][0] for text in TEXTS}
    shares = np.exp([scaled[text] - max(scaled.values()) for text in TEXTS])
    assert [dict(reading.probabilities)[text] for text in TEXTS] == pytest.approx(shares / shares.sum(), rel=1e-3)


def test_gradient_rollouts_are_those_of_the_logits_of_the_texts():
    """The gradient of the weights is that of numbers, all 0, which are added to them."""
    model = small_clip().double()
    reading = read_file(model, PICTURE, labels=TEXTS)
    pixels = model.vision.processor([PICTURE]).double()
    texts = ZeroShotClassifier(model, TEXTS).label_embeddings.double()
    with torch.no_grad(), record(model.vision) as seen:
        model.vision(pixels)
    calls = list(seen)
    weights = [call.weights()[0].double().clone() for call in calls]
    mechanisms = [module for module in model.vision.modules() if isinstance(module, Mechanism)]
    assert len(mechanisms) == len(weights) == 2
    added = [torch.zeros_like(one).requires_grad_() for one in weights]
    hooks = [
        mechanism.register_forward_hook(lambda _module, inputs, output, own=own: output + own[None] @ inputs[2])
        for mechanism, own in zip(mechanisms, added, strict=True)
    ]
    logits = model.compute_logits(texts, model.vision.embed(pixels))[0]
    for hook in hooks:
        hook.remove()
    for number, text in enumerate(TEXTS):
        slopes = [one.numpy() for one in torch.autograd.grad(logits[number], added, retain_graph=True)]
        expected = gradient_rollout([one.numpy() for one in weights], slopes)
        np.testing.assert_allclose(reading.gradient_rollouts[text], expected[:1], atol=1e-6)


def test_unusable_texts_and_models_are_refused():
    with pytest.raises(OptionError, match="too many texts"):
        read_file(small_clip(), PICTURE, labels=[str(number) for number in range(MAX_TEXTS + 1)])
    with pytest.raises(OptionError, match="not a list of texts"):
        read_file(small_clip(), PICTURE, labels="a cat")
    with pytest.raises(OptionError, match="more labels than the model takes"):
        read_file(small_clip().vision, PICTURE, labels=TEXTS)
    assert read_file(small_clip(), PICTURE).similarities == {}
    model = small_clip()
    model.vision.processor = None
    with pytest.raises(CheckpointError, match="how its pixels are made"):
        read_file(model, PICTURE, labels=TEXTS)


@pytest.mark.parametrize("part", ["clip", "text tower"])
def test_a_text_shows_the_attention_of_the_text_tower(part):
    """The weights are softmax(q . k / sqrt(d)) over the tokens before and at the query, computed in NumPy."""
    model = small_clip()
    reading = read(model if part == "clip" else model.text, "a cat")
    ids = model.tokenizer.encode(["a cat"]).ids
    with torch.no_grad(), record(model.text) as seen:
        hidden = model.text(ids, keep_layers=True).layers
    assert len(reading.tokens) == ids.shape[1] == 7
    assert [reading.tokens.surface(token) for token in range(1, 6)] == ["a", "␣", "c", "a", "t"]
    assert reading.tokens.special == (True, *[False] * 5, True)
    assert reading.sink == 0
    np.testing.assert_allclose(reading.hidden, torch.cat(hidden).numpy(), atol=1e-6)
    for layer, call in zip(reading.layers, seen, strict=True):
        scores = (call.query[0].double() @ call.key[0].double().mT).numpy() / np.sqrt(4)
        scores[:, np.triu(np.ones((7, 7), dtype=bool), 1)] = -np.inf
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        np.testing.assert_allclose(layer.weights(), powers / powers.sum(axis=-1, keepdims=True), atol=1e-6)
