"""Labels of texts: characters and words, numbers and back, and what the labels lack."""

import pytest

from regard.errors import OptionError
from regard.transcription.text_labels import TextLabels


def test_characters():
    labels = TextLabels.find(["ab a", "b\u00e9"], "characters")
    assert labels.labels == (" ", "a", "b", "\u00e9")
    assert (labels.tokenizer, labels.encode("ba b")) == ("characters", [2, 1, 0, 2])
    assert labels.decode([2, 1, 0, 2]) == "ba b"
    assert labels.decode([0, 0, 1, 0, 0, 2, 0]) == "a b"
    assert labels.encode("abc") is None
    assert labels.find_unknown("xaxb?") == ["x", "?"]


def test_words():
    labels = TextLabels.find(["go left", "a go"], "words")
    assert labels.labels == (" a", " go", " left")
    assert (labels.tokenizer, labels.encode("left go a")) == ("words", [2, 1, 0])
    assert labels.decode([2, 1, 0]) == "left go a"
    assert labels.encode("go right") is None
    assert labels.find_unknown("go right right up") == ["right", "up"]


def test_labels_say_what_they_are():
    """A space alone is a character, and so are labels of a model of another origin."""
    assert TextLabels((" ",)).tokenizer == TextLabels(("a", " b")).tokenizer == TextLabels(()).tokenizer == "characters"
    assert TextLabels((" a",)).tokenizer == "words"


def test_other_tokenizers_are_refused():
    with pytest.raises(OptionError, match="unknown tokenizer"):
        TextLabels.find(["a"], "syllables")
