"""The answer of a classifier in the views: labels with probabilities, and the words that it was computed from."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import regard
from regard.classification import Classifier
from regard.view import print_readings, read
from regard.view.page_data import build_page_data
from regard.view.shares import answer_words
from regard.view.terminal import answer_line
from small_classifiers import classifier

TEXT = "the small dog"


def print_to_text(readings):
    console = Console(file=io.StringIO(), width=100, highlight=False, markup=False)
    print_readings(readings, console)
    return console.file.getvalue()


def test_probabilities_equal_those_of_the_classifier():
    model = classifier()
    reading = read(model, TEXT)
    (actual,) = Classifier(model).classify([TEXT])
    assert dict(reading.answer.probabilities) == pytest.approx(dict(actual.probabilities), abs=1e-6)
    assert reading.answer.probabilities[0][0] == actual.label
    assert reading.hidden.shape[0] == len(reading.layers) + 1


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("mechanism", ["dot_product", "linear", "linformer"])
def test_word_shares_are_the_weights_of_the_pooled_tokens(pooling, mechanism):
    model = classifier(pooling=pooling, mechanism=mechanism)
    reading = read(model, TEXT)
    batch = model.tokenizer.encode([TEXT])
    with regard.record(model) as recording:
        model(batch.ids)
    weights = np.abs(recording[-1].weights()[0].detach().double().numpy())
    weights = (weights / weights.sum(-1, keepdims=True)).mean(0)
    row = weights[0] if pooling == "cls" else weights.mean(0)
    words = dict(answer_words(reading))
    assert set(words) == {"<s>", "the", "small", "dog"}
    assert sum(words.values()) == pytest.approx(1, abs=1e-5)
    assert words["<s>"] == pytest.approx(row[0], abs=1e-5)
    assert list(words.values()) == sorted(words.values(), reverse=True)


def test_terminal_and_page_show_the_answer():
    model = classifier(pooling="cls")
    reading = read(model, TEXT)
    text = print_to_text([reading])
    label, probability = reading.answer.probabilities[0]
    assert f"{100 * probability:.1f} %" in text
    assert "The label is computed from the first token" in text
    (page,) = build_page_data([reading], "m", 10**6)["texts"]
    assert page["answer"]["pooling"] == "cls"
    assert page["answer"]["labels"][0] == [label, round(probability, 6)]
    assert {word for word, _ in page["answer"]["words"]} == {"<s>", "the", "small", "dog"}
    assert f"{100 * probability:.1f} %" in answer_line(reading)
    assert answer_line(reading).split()[0].strip("\u2068\u2069") in text
    assert f"{100 * probability:.1f} %" in print_to_text([reading] * 11)


def test_several_labels_have_separate_probabilities():
    reading = read(classifier(several=True), TEXT)
    assert sum(probability for _, probability in reading.answer.probabilities) != pytest.approx(1, abs=0.01)
    assert "Each label has a probability of its own." in print_to_text([reading])


@pytest.mark.parametrize(("largest", "labelled"), [(0.5, True), (0.49, False)])
def test_several_labels_none_of_which_reaches_the_threshold(largest, labelled):
    reading = read(classifier(several=True), TEXT)
    reading = replace(reading, answer=replace(reading.answer, probabilities=(("a", largest), ("b", 0.25))))
    assert ("No label reaches 50 %" in print_to_text([reading])) == (not labelled)
    (page,) = build_page_data([reading], "m", 10**6)["texts"]
    assert page["answer"]["has_label"] == labelled


def test_a_reading_without_a_classifier_has_no_answer():
    reading = read(regard.load("minilm"), TEXT)
    assert reading.answer is None
    assert answer_words(reading) == ()
    assert answer_line(reading) == ""
    assert "label" not in print_to_text([reading])
