"""Reading of a text by a Perceiver: its layers through the latents, from a text to itself."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import regard
import small_perceivers
from regard.comparison import parse_choices
from regard.errors import OptionError, RefusedError
from regard.models import PerceiverTextEncoder, TextClassifier, TextClassifierConfig
from regard.view.read import read
from regard.view.read_side_by_side import read_side_by_side

TEXT = "Ça va, ok?"  # the first letter has two bytes


def make_classifier(pooling="cls"):
    encoder = PerceiverTextEncoder.around(small_perceivers.make("text"))
    return TextClassifier(encoder, TextClassifierConfig(("no", "yes"), pooling=pooling)).eval()


def weights_of_layers(model, text):
    """The recorded weights of each layer in float64, (heads, queries, keys)."""
    ids = model.tokenizer.tokenize([text])[0].ids
    with torch.no_grad(), regard.record(model) as seen:
        model(torch.tensor([ids]))
    return [call.weights()[0].double().numpy() for call in seen]


def roll_out(layers, cross_head=None, output_head=None):
    """Abnar and Zuidema's equation 1, one token of the input at a time; a head, or None for the mean over all."""
    first, *between, last = layers
    latents = first.shape[1]
    columns = []
    for token in range(first.shape[2]):
        flow = first[:, :, token].mean(0) if cross_head is None else first[cross_head, :, token]
        for weights in between:
            mean = weights.mean(0)
            flow = np.array([0.5 * mean[i] @ flow + 0.5 * flow[i] for i in range(latents)])
        columns.append((last.mean(0) if output_head is None else last[output_head]) @ flow)
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_layers_are_the_rollout_of_each_head(pooling):
    model = make_classifier(pooling)
    reading, layers = read(model, TEXT), weights_of_layers(model, TEXT)
    inputs, outputs = reading.layers
    assert len(reading.tokens) == len(TEXT.encode()) + 2
    assert (inputs.heads, outputs.heads) == (len(layers[0]), len(layers[-1]))
    for head in range(inputs.heads):
        assert_allclose(inputs.weights()[head], roll_out(layers, cross_head=head), rtol=0, atol=1e-6)
    for head in range(outputs.heads):
        assert_allclose(outputs.weights()[head], roll_out(layers, output_head=head), rtol=0, atol=1e-6)
    for layer in reading.layers:
        assert_allclose(layer.weights().sum(-1), 1, rtol=0, atol=1e-6)
    assert reading.hidden is None
    assert [label for label, _ in sorted(reading.answer.probabilities)] == ["no", "yes"]


def test_a_masked_language_model_is_read_as_its_encoder():
    model = small_perceivers.make("text")
    found, expected = read(model, TEXT), read(PerceiverTextEncoder.around(model), TEXT)
    for ours, theirs in zip(found.layers, expected.layers, strict=True):
        assert np.array_equal(ours.weights(), theirs.weights())
    assert found.answer is None


def test_bytes_of_white_space_are_visible():
    tokens = read(make_classifier(), "a b\n").tokens
    assert [tokens.surface(token) for token in range(len(tokens))] == ["[CLS]", "a", "␣", "b", "↵", "[SEP]"]


def test_a_perceiver_without_a_query_for_each_token_is_refused():
    with pytest.raises(OptionError, match="this Perceiver is no text encoder"):
        read(small_perceivers.make("text class"), TEXT)


@pytest.mark.parametrize("model", [make_classifier(), small_perceivers.make("text")], ids=["classifier", "Perceiver"])
def test_other_mechanisms_cannot_take_its_layers(model):
    with pytest.raises(RefusedError, match="between a text and its latents"):
        read_side_by_side(model, TEXT, parse_choices("performer"))
