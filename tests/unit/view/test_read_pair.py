"""A sentence and its translation in one translator's attention: rows and columns, and their numbers in float64."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from regard.conformance.oracles.attention import attention
from regard.conformance.oracles.positions import alibi
from regard.errors import DataError, RefusedError
from regard.recording import record
from regard.text.placeholders import protect
from regard.translation import Translator
from regard.view.read_pair import read_pair
from regard.view.reading import PairReading, Reading
from regard.view.words_from_tokens import aggregate_by_word, words_of
from small_t5 import save_t5
from small_translators import ENGLISH, HEADS, JOINT_SUBWORDS, SOURCE, TARGET, WIDTH, recurrent, transformer

START, END = 2, 3


def surfaces(tokens) -> list[str]:
    return [tokens.surface(at) for at in range(len(tokens))]


def pieces(text: str) -> list[str]:
    """Return the pieces as they are written in the text."""
    return [piece.text.strip() for piece in JOINT_SUBWORDS.pieces(text)]


def capture_inputs(translator, source: str, target: str) -> dict[str, np.ndarray]:
    """Capture the input of each query and key projection: tokens (length, width) in float64."""
    inputs: dict[str, np.ndarray] = {}
    handles = []
    for name, module in translator.model.named_modules():
        if name.endswith(("query_projection", "key_projection")):

            def keep(module: nn.Module, args: tuple, name: str = name) -> None:
                inputs[name] = args[0][0].detach().double().numpy()

            handles.append(module.register_forward_pre_hook(keep))
    ids = [
        torch.tensor([[*JOINT_SUBWORDS.encode([source])[0], END]]),
        torch.tensor([[START, *JOINT_SUBWORDS.encode([target])[0]]]),
    ]
    with torch.no_grad():
        translator.model(*ids)
    for handle in handles:
        handle.remove()
    return inputs


def project(linear: nn.Linear, tokens: np.ndarray) -> np.ndarray:
    """Project tokens to (1, heads, length, head_dim)."""
    numbers = tokens @ linear.weight.detach().double().numpy().T + linear.bias.detach().double().numpy()
    return numbers.reshape(len(tokens), HEADS, WIDTH // HEADS).transpose(1, 0, 2)[None]


def check_weights(translator, reading: Reading, name: str, *, causal: bool = False, biased: bool = False) -> None:
    inputs = capture_inputs(translator, SOURCE, TARGET)
    for number, layer in enumerate(reading.layers):
        assert layer.name == name.format(number)
        module = translator.model.get_submodule(layer.name)
        looks, looked_at = inputs[f"{layer.name}.query_projection"], inputs[f"{layer.name}.key_projection"]
        query = project(module.query_projection, looks)
        key = project(module.key_projection, looked_at)
        allowed = np.tril(np.ones((len(looks), len(looked_at)), dtype=bool)) if causal else None
        bias = alibi(HEADS, len(looks), len(looked_at))[None] if biased else None
        _, expected = attention(query, key, key, allowed, bias)
        np.testing.assert_allclose(layer.weights(), expected[0], atol=5e-6)


def test_all_three_attentions_of_a_transformer() -> None:
    translator = transformer()
    pair = read_pair(translator, SOURCE, TARGET)
    assert list(pair.attentions) == ["alignment", "source", "target"]
    assert (len(pair.alignment.layers), len(pair.source.layers), len(pair.target.layers)) == (2, 3, 2)
    check_weights(translator, pair.alignment, "decoder.{}.cross_attention")
    check_weights(translator, pair.source, "encoder.{}.attention")
    check_weights(translator, pair.target, "decoder.{}.attention", causal=True)


def test_a_transformer_with_biased_heads() -> None:
    translator = transformer(position="alibi", norm="pre")
    pair = read_pair(translator, SOURCE, TARGET)
    check_weights(translator, pair.source, "encoder.{}.attention", biased=True)
    check_weights(translator, pair.target, "decoder.{}.attention", causal=True, biased=True)
    check_weights(translator, pair.alignment, "decoder.{}.cross_attention")


@pytest.mark.parametrize(
    "options", [{"position": "rotary"}, {"position": "t5"}, {"position": "shaw"}, {"mechanism": "additive"}], ids=str
)
def test_transformers_of_all_options_can_be_read(options: dict) -> None:
    translator = transformer(**options)
    pair = read_pair(translator, SOURCE, TARGET)
    aligned = translator.aligned_pair(SOURCE, TARGET)
    assert pair.alignment_layer == 0
    np.testing.assert_allclose(alignment_of_words(pair), aligned.weights.numpy(), atol=1e-5)


def t5(folder) -> Translator:
    return Translator.load(save_t5(folder / "t5"))


@pytest.mark.parametrize(
    "make",
    [
        lambda _: transformer(decoder_layers=3),
        lambda _: recurrent("additive"),
        lambda _: recurrent("luong_dot"),
        t5,
    ],
    ids=["transformer", "additive", "luong_dot", "t5"],
)
def test_models_say_what_each_layer_attends_to(make: Callable[[Path], Translator], tmp_path: Path) -> None:
    """Every recorded layer has a kind, and alignments are read from the layer that the model names."""
    translator = make(tmp_path)
    model, kinds = translator.model, translator.model.attention_layers
    names = {module: name for name, module in model.named_modules()}
    source, target = translator.source.encode(["A dog runs."])[0], translator.target.encode(["A cat."])[0]
    with record(model) as seen:
        model(torch.tensor([[*source, model.end_id]]), torch.tensor([[model.start_id, *target]]))
    assert {call.name for call in seen} == {names[module] for modules in kinds for module in modules}
    pair = read_pair(translator, "A dog runs.", "A cat.")
    aligning = pair.alignment.layers[pair.alignment_layer]
    assert aligning.name == names[kinds.alignment_layer]
    np.testing.assert_allclose(aligning.mean_weights(), translator.weights(source, target), atol=1e-5)
    assert not recurrent("none").model.attention_layers.cross


def test_rows_are_target_tokens_and_columns_source_tokens() -> None:
    pair = read_pair(transformer(), SOURCE, TARGET)
    assert surfaces(pair.alignment.tokens) == [*pieces(TARGET), "</s>"]
    assert surfaces(pair.alignment.key_tokens) == [*pieces(SOURCE), "</s>"]
    assert surfaces(pair.source.tokens) == [*pieces(SOURCE), "</s>"]
    assert surfaces(pair.target.tokens) == ["<s>", *pieces(TARGET)]
    assert pair.forced
    assert [at for at, special in enumerate(pair.target.tokens.special) if special] == [0]


def alignment_of_words(found: PairReading) -> np.ndarray:
    """Word-level weights of the alignment layer, averaged over heads, without the end tokens."""
    weights = found.alignment.layers[found.alignment_layer].weights().mean(axis=0, keepdims=True)
    return aggregate_by_word(weights, words_of(found.alignment.tokens), words_of(found.alignment.key_tokens))[0]


def test_word_weights_agree_with_the_translators_alignment() -> None:
    translator = transformer(decoder_layers=3)
    actual, aligned = read_pair(translator, SOURCE, TARGET), translator.aligned_pair(SOURCE, TARGET)
    assert actual.alignment_layer == 1, "the last layer but one"
    assert tuple(word.text for word in words_of(actual.alignment.tokens)) == aligned.target_words
    assert tuple(word.text for word in words_of(actual.alignment.key_tokens)) == aligned.source_words
    np.testing.assert_allclose(alignment_of_words(actual), aligned.weights.numpy(), atol=1e-6)


@pytest.mark.parametrize("attention", ["additive", "luong_dot", "luong_general", "luong_concat", "local_p"])
@pytest.mark.parametrize("feeding", [True, False])
def test_recurrent_model_has_only_an_alignment(attention: str, feeding: bool) -> None:
    translator = recurrent(attention, input_feeding=feeding)
    pair = read_pair(translator, SOURCE, TARGET)
    assert list(pair.attentions) == ["alignment"]
    (layer,) = pair.alignment.layers
    assert layer.heads == 1
    source, target = JOINT_SUBWORDS.encode([SOURCE, TARGET])
    np.testing.assert_allclose(layer.weights()[0], translator.weights(source, target).numpy(), atol=1e-5)


def test_translation_of_the_model() -> None:
    translator = transformer()
    pair = read_pair(translator, SOURCE)
    (translation,) = translator.translate([SOURCE])
    ids = translation.renderings[0].ids
    assert not pair.forced
    assert len(pair.alignment.tokens) == len(ids) + 1
    assert pair.alignment.tokens.text == translation.text


def test_placeholders_are_shared_by_both_sides() -> None:
    pair = read_pair(transformer(), "Zwei <b>Hunde</b>.", "Two <b>dogs</b>, %d.")
    assert {"<b>", "</b>"} <= set(surfaces(pair.alignment.tokens)) & set(surfaces(pair.alignment.key_tokens))
    assert "%d." in pair.alignment.tokens.text, "what is of the target alone is text"
    assert protect("Zwei <b>Hunde</b>.").kept == ("<b>", "</b>")


def test_invalid_texts_are_refused() -> None:
    translator = transformer(position="learned", length=7)
    with pytest.raises(DataError, match="the source is empty"):
        read_pair(translator, " ")
    with pytest.raises(DataError, match="the target is empty"):
        read_pair(translator, "Hund", "\n")
    with pytest.raises(DataError, match=r"sentence 3 is too long for the model\n.*at most 6 subwords"):
        read_pair(translator, " ".join(ENGLISH), source_name="sentence 3")
    with pytest.raises(DataError, match="the target is too long for the model"):
        read_pair(translator, "Hund", " ".join(ENGLISH))
    with pytest.raises(DataError, match="not Unicode"):
        read_pair(translator, "Hund", "\ud800")


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(
        RefusedError, match=r"without attention, so it has no attention weights\n(.|\n)*--attention additive"
    ):
        read_pair(recurrent("none"), SOURCE, TARGET)
