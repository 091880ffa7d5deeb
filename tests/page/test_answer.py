"""A classifier's answer on the page, in a real browser."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from browser_page import BrowserPage, random_reading
from test_page import MALICIOUS_TOKENS

from regard.view import Answer, read
from regard.view.shares import answer_words
from small_classifiers import TEXTS, classifier

Show = Callable[..., BrowserPage]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_shares_of_labels_and_words(show: Show, pooling: str) -> None:
    reading = read(classifier(pooling=pooling), TEXTS[0])
    opened = show(reading)
    text = opened.page.inner_text("#answer")
    assert text.startswith("Label: ")
    for name, share in (*reading.answer.probabilities, *answer_words(reading)):
        assert f"{name} {100 * share:.1f}\u00a0%" in text
    assert ("the first token" in text) == (pooling == "cls")
    last = len(reading.layers) - 1
    assert opened.sentence().startswith(f"In layer {last}, all heads averaged") == (pooling == "cls")


def test_several_labels_and_texts_without_an_answer(show: Show) -> None:
    labels, unlikely = (("sport", 0.75), ("politics", 0.5)), (("sport", 0.25), ("politics", 0.125))
    plain = random_reading(["a", "small", "dog"])
    answers = [Answer(one, several=True, pooling="mean") for one in (labels, unlikely)]
    opened = show(plain, *(replace(plain, answer=one) for one in answers))
    assert opened.page.locator("#answer").is_hidden()
    opened.page.locator("[role=tab]").nth(1).click()
    assert opened.page.inner_text("#answer").startswith(
        "Labels, each with a probability of its own: sport 75.0\u00a0%, politics 50.0\u00a0%. They are computed from "
        "the mean"
    )
    opened.page.locator("[role=tab]").nth(2).click()
    said = opened.page.inner_text("#answer")
    assert "politics 12.5\u00a0%. None reaches 50\u00a0%, so the text has no label. They" in said


def test_html_in_labels_is_escaped(show: Show) -> None:
    labels = tuple((name, 0.5) for name in MALICIOUS_TOKENS[:6])
    opened = show(replace(random_reading(MALICIOUS_TOKENS), answer=Answer(labels, several=True, pooling="cls")))
    assert opened.page.locator("#answer bdi").all_text_contents()[:6] == MALICIOUS_TOKENS[:6]
    assert opened.page.evaluate("document.querySelectorAll('img, svg[onload], iframe, object, embed').length") == 0
    assert opened.page.evaluate("document.scripts.length") == 2
