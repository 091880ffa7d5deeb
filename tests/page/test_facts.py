"""Known findings in the packaged model's attention, with its weights read by transformers."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from browser_page import BrowserPage

from regard.models import load
from regard.view.findings import findings, weight_of_pair
from regard.view.page import write_page
from regard.view.read import read
from regard.view.reading import Reading
from regard.view.shared_words import shared_words
from regard.view.word_pairs import word_pairs

TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
Read = Callable[[str], Reading]


def test_strongest_finding_is_it_attending_to_animal(minilm: Read) -> None:
    pairs = word_pairs(minilm(TIRED))
    first = findings(pairs)[0]
    assert pairs.query_words[first.query_word].text == "it"
    assert pairs.key_words[first.key_word].text == "animal"
    looks = {(look.layer, look.head): look.weight for look in first.looks}
    assert looks == {(3, 1): pytest.approx(0.677, abs=5e-4), (5, 11): pytest.approx(0.673, abs=5e-4)}


def test_reading_agrees_with_transformers(minilm: Read) -> None:
    ours, theirs = read(load("minilm"), TIRED), minilm(TIRED)
    assert ours.tokens == theirs.tokens
    np.testing.assert_allclose(ours.hidden, theirs.hidden, atol=1e-5)
    for our, their in zip(ours.layers, theirs.layers, strict=True):
        assert our.steps.scale == pytest.approx(their.steps.scale)
        np.testing.assert_allclose(our.weights(), their.weights(), atol=1e-5)


def test_it_attends_less_to_animal_if_the_street_is_wide(minilm: Read) -> None:
    wide = minilm(WIDE)
    words = {word.text: word for word in word_pairs(wide).query_words}
    assert weight_of_pair(wide, words["it"], words["animal"], 3, 1) == pytest.approx(0.281, abs=5e-4)
    assert weight_of_pair(wide, words["it"], words["animal"], 5, 11) == pytest.approx(0.558, abs=5e-4)


@pytest.mark.parametrize(
    ("text", "pronoun", "antecedent"),
    [
        ("The scientist who discovered the new planet named it after her daughter.", "it", "planet"),
        ("Ada gave Grace her book because she had finished it.", "it", "book"),
    ],
)
def test_pronouns_attend_to_their_antecedents(minilm: Read, text: str, pronoun: str, antecedent: str) -> None:
    pairs = word_pairs(minilm(text))
    actual = [(pairs.query_words[one.query_word].text, pairs.key_words[one.key_word].text) for one in findings(pairs)]
    assert (pronoun, antecedent) in actual[:3]


def test_vectors_of_apple_depend_on_the_context(minilm: Read) -> None:
    fruit, company, other_fruit = map(minilm, ("I ate an apple.", "Apple released a new phone.", "She ate an apple."))
    shared = shared_words([fruit, company, other_fruit])
    by_texts = {(one.first, one.second): one.cosines for one in shared if one.word == "apple"}
    assert by_texts[0, 1] == pytest.approx((0.95, 0.81, 0.76, 0.73, 0.77, 0.79, 0.70), abs=0.0051)
    assert min(by_texts[0, 2]) >= 0.87


def test_page_opens_at_the_strongest_finding(show: Callable[..., BrowserPage], minilm: Read) -> None:
    opened = show(minilm(TIRED), minilm(WIDE))
    said = opened.sentence()
    assert said == "In layer 3, head 1, it attends most to animal: 67.7\u00a0%, then to [CLS]: 10.2\u00a0%."
    card = opened.page.locator("#findings button").first
    assert card.inner_text().splitlines()[0].replace(" ", "").startswith("it→animal")
    about = opened.page.inner_text("#finding")
    assert "also 67.3\u00a0% in layer 5, head 11" in about
    assert "the same head in text 2: 28.1\u00a0%" in about
    opened.page.locator("#findings button").nth(2).click()
    assert opened.sentence().startswith("In layer 2, head 1, it attends most to tired: 71.5\u00a0%")
    assert "layer=2&head=1&token=10&key=13" in opened.current_url()
    assert opened.page.locator("#findings button").nth(2).get_attribute("aria-current") == "true"


def test_size_and_stated_error_at_64_tokens(minilm: Read, tmp_path: Path) -> None:
    reading = minilm(" ".join(["猫", "fish"] * 31))
    assert len(reading.tokens) == 64
    path = write_page([reading], tmp_path / "page.html", model="minilm")
    stored = re.search(r'id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)[1]
    assert len(stored) < 2**20
    data = json.loads(stored)
    assert data["letters"] == 2
    assert 0 < data["largest_error"] < 0.002
