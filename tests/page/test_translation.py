"""A translation on the page, in a real browser: three attentions, words and tokens, and their numbers in float64."""

import re
from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from browser_page import BrowserPage, make_tokens, random_reading
from test_page import CONTRAST, MALICIOUS_TOKENS

from layer_readings import layer_reading, relative_vectors
from regard.text.alignments import word_weights
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights
from regard.view.read_pair import read_pair
from regard.view.reading import PairReading, Reading, Tokens
from small_translators import SOURCE, TARGET, recurrent, transformer

GERMAN, ENGLISH = ["Ein", "Hund", "bellt", "laut", "."], ["A", "dog", "barks", "."]
KINDS = {"alignment": "Cross-attention", "source": "Source self-attention", "target": "Target self-attention"}
Show = Callable[..., BrowserPage]


def add_end_token(words: list[str], *, start: bool = False, groups: list[int] | None = None) -> Tokens:
    """Return the words and </s>, or <s> and the words; ``groups`` counts the tokens of each word."""
    plain = make_tokens(words)
    spans = plain.spans[1:-1]
    names = tuple(words)
    words_of_tokens = None
    if groups is not None:
        bounds = np.cumsum([start, *groups])
        words_of_tokens = tuple(
            ("".join(words[one - start : other - start]), tuple(range(one, other))) for one, other in pairwise(bounds)
        )
    if start:
        return Tokens(plain.text, ("<s>", *names), ((0, 0), *spans), (True, *[False] * len(words)), words_of_tokens)
    return Tokens(plain.text, (*names, "</s>"), (*spans, (0, 0)), (*[False] * len(words), True), words_of_tokens)


def random_pair(
    source: list[str] = GERMAN,
    target: list[str] = ENGLISH,
    *,
    heads: int = 3,
    source_words: list[int] | None = None,
    target_words: list[int] | None = None,
) -> PairReading:
    """Two layers of ``heads`` random heads in each attention; the target's self-attention is causal.

    ``source_words`` and ``target_words`` are the numbers of tokens of each word.
    """
    generator = np.random.default_rng(23)
    source_tokens = add_end_token(source, groups=source_words)
    output_tokens = add_end_token(target, groups=target_words)
    input_tokens = add_end_token(target, start=True, groups=target_words)

    def normal(length: int, size: int) -> np.ndarray:
        return generator.standard_normal((heads, length, size)).astype(np.float32)

    def layers(name: str, queries: int, keys: int, allowed: np.ndarray | None = None) -> tuple[LayerReading, ...]:
        vectors = [(2 * normal(queries, 5), 2 * normal(keys, 5), normal(keys, 7)) for _ in range(2)]
        return tuple(layer_reading(f"{name}.{at}", *one, 5**-0.5, allowed) for at, one in enumerate(vectors))

    n, m = len(output_tokens), len(source_tokens)
    return PairReading(
        alignment=Reading(output_tokens, layers("cross", n, m), keys=source_tokens),
        alignment_layer=0,
        source=Reading(source_tokens, layers("encoder", m, m)),
        target=Reading(input_tokens, layers("decoder", n, n, np.tril(np.ones((n, n), dtype=bool)))),
        forced=False,
    )


def row_of(reading: Reading, layer: int, head: int | None, query: int) -> np.ndarray:
    weights = reading.layers[layer].weights()
    return (weights.mean(axis=0) if head is None else weights[head])[query]


def weights_in_titles(opened: BrowserPage) -> list[float]:
    """The shares in the titles of the chips, to five places."""
    titles = opened.page.locator("#row .token").evaluate_all("chips => chips.map((chip) => chip.title)")
    return [float(re.search(r": (\d\.\d{5}) \(", title)[1]) for title in titles]


def surface_texts(opened: BrowserPage, place: str) -> list[str]:
    return opened.page.locator(f"#{place} bdi").all_text_contents()


def test_alignment_is_shown_first(show: Show) -> None:
    pair = random_pair()
    opened = show(pair)
    assert surface_texts(opened, "asking") == [*ENGLISH, "</s>"]
    assert surface_texts(opened, "row") == [*GERMAN, "</s>"]
    weights = pair.alignment.layers[0].weights().mean(axis=0)
    cards = opened.page.locator("#links button")
    assert cards.count() == len(ENGLISH) + 1
    for row, row_weights in enumerate(weights):
        name, *links = cards.nth(row).locator("bdi").all_text_contents()
        order = np.argsort(-row_weights)
        assert name == [*ENGLISH, "</s>"][row]
        assert links == [[*GERMAN, "</s>"][at] for at in order[:3] if row_weights[at] >= 0.05]
        shares = [float(text) for text in re.findall(r"(\d+\.\d)\u00a0%", cards.nth(row).inner_text())]
        np.testing.assert_allclose(shares, 100 * row_weights[order[: len(links)]], atol=0.051)
    assert opened.sentence().startswith("In layer 0, all heads averaged, the step that wrote A attends most to ")
    cards.nth(2).click()
    assert "the step that wrote barks attends most to" in opened.sentence()
    np.testing.assert_allclose(weights_in_titles(opened), weights[2], atol=6e-6)
    assert not opened.page.locator("#outstanding").is_visible()


def test_switching_between_the_three_attentions(show: Show) -> None:
    pair = random_pair()
    opened = show(pair)
    kinds = opened.page.locator("#kinds [role=radio]")
    assert kinds.all_inner_texts() == list(KINDS.values())
    kinds.nth(1).click()
    assert surface_texts(opened, "row") == [*GERMAN, "</s>"]
    assert not opened.page.locator("#asking").is_visible()
    assert not opened.page.locator("#alignment").is_visible()
    assert opened.page.locator("#outstanding").is_visible()
    opened.page.keyboard.press("ArrowRight")
    assert surface_texts(opened, "row") == ["<s>", *ENGLISH]
    assert "kind=target" in opened.current_url()
    assert kinds.nth(2).get_attribute("aria-checked") == "true"
    opened.open_explanations()
    assert opened.page.locator(".causal").is_visible()
    kinds.nth(0).click()
    assert opened.sentence().startswith("In layer 0, all heads averaged, the step that wrote A attends")


def test_displayed_numbers_equal_the_softmax_in_float64(show: Show) -> None:
    pair = random_pair()
    opened = show(pair)
    for kind, head, (layer, query) in product(KINDS, [1, None], [(1, 2), (0, 3)]):
        name = "mean" if head is None else head
        opened.page.evaluate(f"location.hash = 'kind={kind}&layer={layer}&head={name}&token={query}'")
        opened.wait_until(f"document.querySelector('#kinds [aria-checked=true]').innerText === '{KINDS[kind]}'")
        opened.wait_until(f"document.getElementById('map-title').innerText.startsWith('Layer {layer}, ')")
        opened.wait_until(f"document.getElementById('query').value === '{query}'")
        np.testing.assert_allclose(
            weights_in_titles(opened), row_of(pair.attentions[kind], layer, head, query), atol=6e-6
        )


def test_url_stores_kind_level_and_mean(show: Show) -> None:
    pair = random_pair(["Hun", "de", "bell", "en"], source_words=[2, 2])
    opened = show(pair, at="#text=0&kind=alignment&level=tokens&layer=1&head=mean&token=2&key=3")
    assert opened.sentence().startswith("In layer 1, all heads averaged, the step that wrote barks")
    assert surface_texts(opened, "row") == ["Hun", "de", "bell", "en", "</s>"]
    opened.page.get_by_role("radio", name="words").click()
    assert surface_texts(opened, "row") == ["Hunde", "bellen", "</s>"]
    assert opened.current_url().endswith("#text=0&kind=alignment&level=words&layer=1&head=mean&token=2")


def test_word_weights_average_rows_and_sum_columns(show: Show) -> None:
    pair = random_pair(["Hun", "de", "bell", "en", "."], ["Dog", "s", "bark"], source_words=[2, 3], target_words=[2, 1])
    opened = show(pair, at="#kind=alignment&level=words&layer=1&head=2&token=1")
    weights = pair.alignment.layers[1].weights()[2]
    expected = np.array([weights[:2].mean(axis=0), weights[2], weights[3]])
    expected = np.stack([expected[:, :2].sum(1), expected[:, 2:5].sum(1), expected[:, 5]], axis=1)
    assert surface_texts(opened, "asking") == ["Dogs", "bark", "</s>"]
    assert surface_texts(opened, "row") == ["Hunde", "bellen.", "</s>"]
    np.testing.assert_allclose(weights_in_titles(opened), expected[0], atol=6e-6)
    assert opened.page.locator("#asking [aria-selected=true]").inner_text() == "Dogs"
    opened.page.locator("#asking .token").nth(1).click()
    np.testing.assert_allclose(weights_in_titles(opened), expected[1], atol=6e-6)
    assert opened.page.locator("#lines .asks .end").all_inner_texts() == ["Dogs", "bark", "</s>"]
    opened.page.locator("#asking [tabindex='0']").focus()
    opened.page.keyboard.press("ArrowRight")
    np.testing.assert_allclose(weights_in_titles(opened), expected[2], atol=6e-6)


def share_of(text: str) -> float:
    """The first number in percent."""
    return float(re.search(r"(\d+\.\d)\u00a0%", text)[1])


def test_steps_open_at_the_words_of_the_sentence_with_its_number(show: Show) -> None:
    """The largest weight of a token is another word's: of Dogs, Hunde gets 60 % in two tokens, bellt 40 % in one."""
    source = add_end_token(["Hun", "de", "bellt"], groups=[2, 1])
    target = add_end_token(["Dog", "s", "bark"], groups=[2, 1])
    rows = np.array([[0.3, 0.3, 0.4, 0], [0.5, 0.1, 0.4, 0], [0, 0.25, 0.75, 0], [0, 0, 0.5, 0.5]], dtype=np.float32)
    flatter = np.full((4, 4), 0.25, dtype=np.float32)
    layer = LayerWeights("one", torch.from_numpy(np.stack([rows, flatter])), "distribution", "No scores.")
    opened = show(PairReading(Reading(target, (layer,), keys=source), 0, None, None, forced=True))
    assert opened.sentence().startswith(
        "In layer 0, all heads averaged, the step that wrote Dogs attends most to Hunde: "
    )
    # The mean of two heads: ((0.6 + 0.6) / 2 + 0.5) / 2.
    assert share_of(opened.sentence()) == 55.0
    assert share_of(opened.page.locator("#links button").first.inner_text()) == 55.0
    assert share_of(opened.page.inner_text("#map-value")) == 55.0
    assert "The weight of Dogs on Hunde in each:" in opened.page.inner_text("#steps")
    shown = [float(text) for text in opened.page.locator("#steps td:nth-child(2)").all_inner_texts()]
    assert shown == [0.6, 0.5, 0.55]
    assert step_results(opened) == [0.55]
    assert opened.page.locator("#key option").all_inner_texts() == [
        "0 \u2068Hunde\u2069",
        "1 \u2068bellt\u2069",
        "2 \u2068</s>\u2069",
    ]
    opened.page.get_by_role("button", name="head 0", exact=True).click()
    assert share_of(opened.sentence()) == 60.0
    token_step, word_step = opened.page.locator("#steps > li").all()
    assert "w of Dog on Hun = 0.3000" in token_step.inner_text()
    assert word_step.locator("td").all_inner_texts()[:8] == [
        "Dog",
        "0.3000",
        "0.3000",
        "0.6000",
        "",
        "s",
        "0.5000",
        "0.1000",
    ]
    assert word_step.locator(".result").inner_text() == "0.6000"
    assert share_of(word_step.inner_text()) == 60.0
    opened.page.get_by_role("radio", name="tokens").click()
    assert opened.sentence().startswith("In layer 0, head 0, the step that wrote Dog attends most to bellt: ")
    assert opened.page.locator("#steps > li").count() == 1
    assert step_results(opened) == [0.4]


def test_another_key_word_is_chosen_in_the_steps_of_the_mean(show: Show) -> None:
    pair = random_pair(["Hun", "de", "bell", "en", "."], ["Dog", "s", "bark"], source_words=[2, 3], target_words=[2, 1])
    opened = show(pair)
    opened.page.locator("#key").select_option("1")
    weights = pair.alignment.layers[0].weights()[:, :2, 2:5].sum(axis=2).mean(axis=1)
    shown = [float(text) for text in opened.page.locator("#steps td:nth-child(2)").all_inner_texts()]
    np.testing.assert_allclose(shown, [*weights, weights.mean()], atol=5.1e-5)
    assert opened.current_url().endswith("head=mean&token=0&key=2")


def test_word_weights_equal_the_translators_alignment(show: Show) -> None:
    translator = transformer()
    opened = show(read_pair(translator, SOURCE, TARGET))
    aligned = translator.aligned_pair(SOURCE, TARGET)
    assert surface_texts(opened, "asking") == [*aligned.target_words, "</s>"]
    assert surface_texts(opened, "row") == [*aligned.source_words, "</s>"]
    for row, weights in enumerate(aligned.weights.numpy()):
        opened.page.locator("#asking .token").nth(row).click()
        np.testing.assert_allclose(weights_in_titles(opened)[:-1], weights, atol=2e-5)


@pytest.mark.parametrize(
    "attention", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("additive", "luong_general")), "local_p"]
)
def test_recurrent_model_has_one_head_and_no_switch(show: Show, attention: str) -> None:
    translator = recurrent(attention)
    opened = show(read_pair(translator, SOURCE, TARGET), at="#level=tokens")
    source, target = (translator.source.encode([text])[0] for text in (SOURCE, TARGET))
    weights = translator.weights(source, target).numpy()
    assert not opened.page.locator("#kinds").is_visible()
    assert not opened.page.locator("#glance").is_visible()
    assert opened.sentence().startswith("The step that wrote ")
    for row in (0, len(weights) - 1):
        opened.page.locator("#asking .token").nth(row).click()
        np.testing.assert_allclose(weights_in_titles(opened), weights[row], atol=3e-5)
    assert ("Gaussian window" in opened.explanation("#marks")) == (attention == "local_p")


def step_results(opened: BrowserPage) -> list[float]:
    return [float(text.replace("−", "-")) for text in opened.page.locator("#steps .result").all_inner_texts()]


def single_layer_pair(**parts) -> PairReading:
    """A pair whose alignment is one layer of two heads with a hidden layer, a bias or a Gaussian window."""
    pair = random_pair(heads=2)
    first = pair.alignment.layers[0]
    layer = layer_reading("one", first.query, first.key, first.value, **{"scale": 1.0, **parts})
    return PairReading(Reading(pair.alignment.tokens, (layer,), keys=pair.alignment.keys), 0, None, None, True)


def test_steps_of_a_hidden_layer_score(show: Show) -> None:
    vector = np.random.default_rng(3).standard_normal((2, 5)).astype(np.float32)
    pair = single_layer_pair(vector=vector)
    opened = show(pair, at="#layer=0&head=1&token=2&key=3")
    (layer,) = pair.alignment.layers
    hidden = np.tanh(layer.query[1, 2].astype(np.float64) + layer.key[1, 3])
    np.testing.assert_allclose(step_results(opened), [hidden @ vector[1], layer.weights()[1, 2, 3]], atol=5.1e-5)
    shown = opened.page.locator("#steps .vector").nth(2).locator("span").all_inner_texts()
    np.testing.assert_allclose([float(text.replace("−", "-")) for text in shown], hidden, atol=0.00501)
    np.testing.assert_allclose(weights_in_titles(opened), layer.weights()[1, 2], atol=6e-6)


def test_steps_with_a_distance_bias(show: Show) -> None:
    bias = np.random.default_rng(4).standard_normal((2, len(ENGLISH) + len(GERMAN) + 1)).astype(np.float32)
    pair = single_layer_pair(bias=bias, scale=0.5)
    opened = show(pair, at="#layer=0&head=1&token=2&key=3")
    (layer,) = pair.alignment.layers
    product = layer.query[1, 2].astype(np.float64) @ layer.key[1, 3]
    distance = 3 - (2 + len(GERMAN) - len(ENGLISH))
    biased = 0.5 * product + bias[1, distance + len(GERMAN)]
    np.testing.assert_allclose(step_results(opened), [product, biased, layer.weights()[1, 2, 3]], atol=5.1e-5)
    np.testing.assert_allclose(weights_in_titles(opened), layer.weights()[1, 2], atol=6e-6)


@pytest.mark.parametrize("kinds", [1, 2], ids=["for all heads", "by head"])
def test_steps_with_relative_position_vectors(show: Show, kinds: int) -> None:
    rng = np.random.default_rng(6)
    own = rng.standard_normal((kinds, 5, 5)).astype(np.float32)
    of_values = rng.standard_normal((5, 7)).astype(np.float32)
    pair = single_layer_pair(relative_vectors=relative_vectors(own, of_values), scale=0.5)
    opened = show(pair, at="#layer=0&head=1&token=2&key=3")
    (layer,) = pair.alignment.layers
    query, keys = layer.query[1, 2].astype(np.float64), layer.key.shape[1]
    distance = np.arange(keys) - 2 + layer.query.shape[1] - keys
    row = distance.clip(-2, 2) + 2
    scores = (layer.key[1] + own[kinds - 1, row]) @ query
    weights = np.exp(0.5 * scores) / np.exp(0.5 * scores).sum()
    np.testing.assert_allclose(step_results(opened), [scores[3], 0.5 * scores[3], weights[3]], atol=5.1e-5)
    np.testing.assert_allclose(weights_in_titles(opened), weights, atol=6e-6)
    shown = opened.page.locator("#steps .vector").last.locator("span").all_inner_texts()
    context = weights @ (layer.value[1].numpy() + of_values[row])
    np.testing.assert_allclose([float(text.replace("−", "-")) for text in shown], context, atol=0.00501)


def test_steps_with_a_gaussian_window(show: Show) -> None:
    centre = np.array([[0.5, 1.5, 2.5, 3.5, 4.5], [4.25, 3.25, 2.25, 1.25, 0.25]], dtype=np.float32)
    pair = single_layer_pair(centre=centre, deviation=1.5)
    opened = show(pair, at="#layer=0&head=1&token=2&key=3")
    (layer,) = pair.alignment.layers
    scores = layer.key[1].astype(np.float64) @ layer.query[1, 2]
    share = np.exp(scores[3] - scores.max()) / np.exp(scores - scores.max()).sum()
    height = np.exp(-((3 - 2.25) ** 2) / (2 * 1.5**2))
    np.testing.assert_allclose(step_results(opened), [scores[3], share, share * height], atol=5.1e-5)
    np.testing.assert_allclose(weights_in_titles(opened), layer.weights()[1, 2], atol=6e-6)
    assert sum(weights_in_titles(opened)) < 1


def test_mean_view_lists_the_heads(show: Show) -> None:
    pair = random_pair()
    opened = show(pair, at="#kind=alignment&layer=1&head=mean&token=1&key=2")
    shares = pair.alignment.layers[1].weights()[:, 1, 2]
    shown = [float(text) for text in opened.page.locator("#steps td:nth-child(2)").all_inner_texts()]
    np.testing.assert_allclose(shown, [*shares, shares.mean()], atol=5.1e-5)
    opened.page.get_by_role("button", name="head 2", exact=True).click()
    assert opened.sentence().startswith("In layer 1, head 2, the step that wrote dog")
    assert opened.current_url().endswith("head=2&token=1&key=2")


def test_selected_attention_is_kept_when_the_tab_changes(show: Show) -> None:
    opened = show(random_pair(), random_pair(["Katze", "miaut"], ["Cat", "meows"]))
    opened.page.locator("#kinds [role=radio]").nth(2).click()
    tabs = opened.page.locator("[role=tab]")
    assert tabs.all_inner_texts() == ["1. Ein Hund bellt laut . → A dog barks .", "2. Katze miaut → Cat meows"]
    tabs.nth(1).click()
    assert surface_texts(opened, "row") == ["<s>", "Cat", "meows"]
    assert "text=1&kind=target" in opened.current_url()


def test_left_to_right_target_with_a_right_to_left_source(show: Show) -> None:
    opened = show(random_pair(["הילד", "אכל", "תפוח"], ["我", "吃", "苹果"]))

    def places(part: str, count: int) -> list[float]:
        return [opened.page.locator(f"#{part} .token").nth(at).bounding_box()["x"] for at in range(count)]

    assert places("row", 4) == sorted(places("row", 4), reverse=True)
    assert places("asking", 4) == sorted(places("asking", 4))
    # The map's columns follow the reading direction of the source: later tokens are on the left.
    opened.page.evaluate("location.hash = 'layer=0&head=1&token=1&key=1'")
    opened.wait_until("document.getElementById('key').value === '1'")
    opened.page.locator("#map").focus()
    opened.page.keyboard.press("ArrowLeft")
    assert opened.current_url().endswith("&key=2")


def test_html_is_escaped_on_both_sides(show: Show) -> None:
    opened = show(random_pair(MALICIOUS_TOKENS, MALICIOUS_TOKENS[::-1]))
    assert surface_texts(opened, "row")[:7] == MALICIOUS_TOKENS[:7]
    for kind in range(3):
        opened.page.locator("#kinds [role=radio]").nth(kind).click()
        opened.wait_until_painted()
    assert opened.page.evaluate("document.scripts.length") == 2
    assert opened.page.evaluate("document.querySelectorAll('img, svg, iframe, object, embed, link').length") == 0
    for code in (0x202E, 0x2066, 0x2028, 0x0000, 0x001B):
        assert not opened.page.evaluate(f"document.body.innerText.includes(String.fromCodePoint({code}))")


@pytest.mark.slow  # test_page.py scrolls through a text of 256 tokens
@pytest.mark.parametrize("heads", [1, 8])
def test_source_of_500_tokens_stays_usable(show: Show, heads: int) -> None:
    """Also with as many heads as real models have, all of which are painted."""
    source, target = ([f"{letter}{at}" for at in range(499)] for letter in "st")
    pair = random_pair(source, target, heads=heads)
    opened = show(pair)
    assert opened.page.locator("#links button").count() == 500
    assert opened.page.locator("#links").bounding_box()["height"] < 450
    opened.page.locator("#links button").nth(250).scroll_into_view_if_needed()
    opened.page.locator("#links button").nth(250).click()
    assert "wrote t250 attends" in opened.sentence()
    opened.wait_until_painted()
    weights = row_of(pair.alignment, 0, None, 250)
    np.testing.assert_allclose(weights_in_titles(opened), weights, atol=2e-3)
    # Both boxes have scrolled to the words that the sentence names.
    for box, chip in (("asking", 250), ("row", int(weights.argmax()))):
        edges = opened.page.locator(f"#{box} .tokens").bounding_box()
        place = opened.page.locator(f"#{box} .token").nth(chip).bounding_box()
        assert edges["y"] <= place["y"] + 1
        assert place["y"] + place["height"] <= edges["y"] + edges["height"] + 1


def test_text_contrast_meets_wcag_aa(show: Show) -> None:
    opened = show(random_pair(), at="#kind=alignment")
    for scheme, kinds in (("light", (0, 2)), ("dark", (2, 0))):  # 0 cross-attention, 2 the target's self-attention
        opened.emulate_theme(scheme)
        for number in kinds:
            if number != kinds[0]:
                opened.page.locator("#kinds [role=radio]").nth(number).click()
                opened.page.wait_for_timeout(200)  # until colours have changed
            assert opened.page.evaluate(CONTRAST) >= 4.5


def test_fits_a_phone_screen(show: Show) -> None:
    opened = show(
        random_pair([f"Wort{at}" for at in range(41)], [f"word{at}" for at in range(37)], heads=12), width=400
    )
    opened.wait_until_painted()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 400


def test_single_text_has_a_word_level(show: Show) -> None:
    plain = random_reading(["un", "affable", "dogs"])
    words = (("unaffable", (1, 2)), ("dogs", (3,)))
    tokens = Tokens(plain.tokens.text, plain.tokens.pieces, plain.tokens.spans, plain.tokens.special, words)
    opened = show(Reading(tokens, plain.layers, plain.hidden), at="#layer=1&head=2&token=1")
    assert not opened.page.locator("#kinds").is_visible()
    assert surface_texts(opened, "row") == ["[CLS]", "un", "affable", "dogs", "[SEP]"]
    opened.page.get_by_role("radio", name="words").click()
    assert surface_texts(opened, "row") == ["[CLS]", "unaffable", "dogs", "[SEP]"]
    import torch

    expected = word_weights(torch.from_numpy(plain.layers[1].weights()[2]), [0, 1, 1, 2, 3], [0, 1, 1, 2, 3])
    np.testing.assert_allclose(weights_in_titles(opened), expected[1].numpy(), atol=6e-6)
