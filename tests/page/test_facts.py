"""The facts that the page must show a newcomer, from the real weights read by another implementation."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from browser_page import BrowserPage

from regard.models import load
from regard.view.findings import findings, weight_of_pair, word_pairs
from regard.view.page import write_page
from regard.view.read import read
from regard.view.reading import Reading
from regard.view.shared_words import shared_words

TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
Read = Callable[[str], Reading]


def test_it_looks_at_the_animal_first_of_all(minilm: Read) -> None:
    pairs = word_pairs(minilm(TIRED))
    first = findings(pairs)[0]
    assert pairs.query_words[first.query_word].text == "it"
    assert pairs.key_words[first.key_word].text == "animal"
    looks = {(look.layer, look.head): look.weight for look in first.looks}
    assert looks == {(3, 1): pytest.approx(0.677, abs=5e-4), (5, 11): pytest.approx(0.673, abs=5e-4)}


def test_our_model_reads_as_the_other_implementation_does(minilm: Read) -> None:
    ours, theirs = read(load("minilm"), TIRED), minilm(TIRED)
    assert ours.tokens == theirs.tokens
    np.testing.assert_allclose(ours.hidden, theirs.hidden, atol=1e-5)
    for our, their in zip(ours.layers, theirs.layers, strict=True):
        assert our.scale == pytest.approx(their.scale)
        np.testing.assert_allclose(our.weights(), their.weights(), atol=1e-5)


def test_with_another_word_it_looks_there_less(minilm: Read) -> None:
    wide = minilm(WIDE)
    words = {word.text: word for word in word_pairs(wide).query_words}
    assert weight_of_pair(wide, words["it"], words["animal"], 3, 1) == pytest.approx(0.281, abs=5e-4)
    assert weight_of_pair(wide, words["it"], words["animal"], 5, 11) == pytest.approx(0.558, abs=5e-4)


@pytest.mark.parametrize(
    ("text", "asks", "gets"),
    [
        ("The scientist who discovered the new planet named it after her daughter.", "it", "planet"),
        ("Ada gave Grace her book because she had finished it.", "it", "book"),
    ],
)
def test_other_texts_lead_to_what_a_pronoun_stands_for(minilm: Read, text: str, asks: str, gets: str) -> None:
    pairs = word_pairs(minilm(text))
    found = [(pairs.query_words[one.query_word].text, pairs.key_words[one.key_word].text) for one in findings(pairs)]
    assert (asks, gets) in found[:3]


def test_apple_is_moved_by_its_context(minilm: Read) -> None:
    fruit, company, other_fruit = map(minilm, ("I ate an apple.", "Apple released a new phone.", "She ate an apple."))
    shared = shared_words([fruit, company, other_fruit])
    by_texts = {(one.first, one.second): one.cosines for one in shared if one.word == "apple"}
    assert by_texts[0, 1] == pytest.approx((0.95, 0.81, 0.76, 0.73, 0.77, 0.79, 0.70), abs=0.0051)
    assert min(by_texts[0, 2]) >= 0.87


def test_page_opens_at_the_finding(show: Callable[..., BrowserPage], minilm: Read) -> None:
    opened = show(minilm(TIRED), minilm(WIDE))
    assert opened.sentence() == "In layer 3, head 1, it looks most at animal: 67.7 %, then at [CLS]: 10.2 %."
    card = opened.page.locator("#findings button").first
    assert card.inner_text().splitlines()[0].replace(" ", "").startswith("it→animal")
    assert "also 67.3 % in layer 5 head 11" in card.inner_text()
    assert "the same head in text 2: 28.1 %" in card.inner_text()
    opened.page.locator("#findings button").nth(2).click()
    assert opened.sentence().startswith("In layer 2, head 1, it looks most at tired: 71.5 %")
    assert "layer=2&head=1&token=10&key=13" in opened.current_url()
    assert opened.page.locator("#findings button").nth(2).get_attribute("aria-current") == "true"


def test_size_and_stated_error_at_64_tokens(minilm: Read, tmp_path: Path) -> None:
    reading = minilm(" ".join(["猫", "fish"] * 31))
    assert len(reading.tokens) == 64
    path = write_page([reading], tmp_path / "page.html", model="minilm")
    assert path.stat().st_size < 1_000_000
    data = json.loads(re.search(r'id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)[1])
    assert data["letters"] == 2
    assert 0 < data["largest_error"] < 0.002
