"""The page in a real browser: its contents, its controls, and that it makes no requests."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import networkx
import numpy as np
import pytest
from browser_page import BrowserPage, random_reading
from playwright.sync_api import Page

import regard.view.page
from regard.view import LayerReading, mass_of_marks, read, statistics_of, without_marks, write_page
from regard.view.reading import Reading
from regard.view.word_pairs import word_pairs

WORDS = ["The", "cat", "sat", "on", "the", "mat", "because", "it", "was", "warm", "."]
Show = Callable[..., BrowserPage]


def row_of(reading: Reading, layer: int, head: int, query: int) -> np.ndarray:
    return reading.layers[layer].weights()[head, query]


def numbered_words(count: int) -> list[str]:
    return [f"word{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("tokens", "scheme"),
    [
        (5, "light"),
        (256, "dark"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(5, "dark"), (64, "light"), (64, "dark"), (256, "light")]
        ),
    ],
)
def test_opens_at_every_length_in_both_themes(show: Show, tokens: int, scheme: str) -> None:
    opened = show(random_reading(numbered_words(tokens - 2), layers=2, heads=3), scheme=scheme)
    # Thumbnails are painted between frames: the page responds before all of them are painted.
    opened.page.locator("#row .token").nth(2).click()
    assert "word1" in opened.sentence()
    opened.wait_until_painted()
    assert opened.page.locator("#row .token").count() == tokens
    assert opened.page.locator("#grid canvas").count() == 2 * (3 + 2), (
        "the heads of a layer, their mean, and the rollout"
    )
    assert opened.page.evaluate("document.documentElement.dataset.theme") == scheme
    colours = opened.page.evaluate(
        """[...document.querySelectorAll("#grid canvas, #map, #lines canvas, #scale")].map((canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(data.buffer)).size;
        })"""
    )
    assert min(colours) > 5


def test_displayed_numbers_equal_the_reading(show: Show) -> None:
    reading = random_reading(WORDS)
    opened = show(reading)
    for layer, head, query in [(0, 0, 0), (1, 2, 5), (0, 1, 12)]:
        opened.page.evaluate(f"location.hash = 'text=0&layer={layer}&head={head}&token={query}'")
        opened.wait_until(f"location.hash.length && sentence.innerText.startsWith('In layer {layer}, head {head}')")
        row = row_of(reading, layer, head, query)
        shown = opened.shares()
        assert len(shown) == len(row)
        for got, expected in zip(shown, 100 * row, strict=True):
            assert got == pytest.approx(expected, abs=0.051) or (got == 0 and expected < 0.5)
        titles = [opened.page.locator("#row .token").nth(key).get_attribute("title") for key in range(len(row))]
        exact = [float(re.search(r": (\d\.\d{5}) ", title)[1]) for title in titles]
        np.testing.assert_allclose(exact, row, atol=6e-6)


@pytest.mark.parametrize(
    ("room", "storage_note", "error"),
    [
        (9000, "own float32", 0),
        pytest.param(5000, "19 bits", 2e-5, marks=pytest.mark.slow),  # the decoder of 13 bits, with a letter more
        (3000, "13 bits", 2e-3),
    ],
)
def test_step_view_ends_in_the_context_vector(
    show: Show, monkeypatch: pytest.MonkeyPatch, room: int, storage_note: str, error: float
) -> None:
    """Vectors are stored exactly if there is room, otherwise rounded, which two decimals do not show."""
    monkeypatch.setattr(regard.view.page, "MAX_VECTOR_CHARACTERS", room)
    reading = random_reading(WORDS, layers=3, heads=2)
    layer, head, query, key = 1, 1, 3, 2
    opened = show(reading, at=f"#text=0&layer={layer}&head={head}&token={query}&key={key}")
    layer_reading = reading.layers[layer]
    q, k = layer_reading.query[head, query].astype(np.float64), layer_reading.key[head, key].astype(np.float64)
    row = row_of(reading, layer, head, query)
    context = row @ layer_reading.value[head].double().numpy()

    def vector(number: int) -> list[float]:
        cells = opened.page.locator("#steps .vector").nth(number).locator("span").all_inner_texts()
        return [float(text.replace("−", "-")) for text in cells]

    expected = [q, k, q * k, layer_reading.value[head, key], context]
    for number, wanted in enumerate(expected):
        np.testing.assert_allclose(vector(number), wanted, atol=0.00501 + error)
    results = [float(text.replace("−", "-")) for text in opened.page.locator("#steps .result").all_inner_texts()]
    np.testing.assert_allclose(results, [q @ k, (q @ k) / 5**0.5, row[key]], atol=5.1e-5 + error)
    assert storage_note in opened.page.inner_text("#foot")
    assert opened.page.locator("#steps tbody tr").count() == len(row)


def test_a_number_of_the_query_and_of_the_key_comes_from_what_the_layer_reads(show: Show) -> None:
    reading = read(regard.load("minilm"), "I ate an apple.")
    opened = show(reading, at="#text=0&layer=3&head=5&token=4&key=2")
    layer = reading.layers[3]
    assert isinstance(layer, LayerReading)
    assert layer.projections is not None
    results = opened.page.locator("#steps .result").all_inner_texts()
    vectors = (layer.projections.query, layer.query[5, 4]), (layer.projections.key, layer.key[5, 2])
    for text, (side, numbers) in zip(results, vectors, strict=False):
        assert float(text.replace("−", "-")) == pytest.approx(numbers[side.components[5]], abs=3e-3)
    assert "W: 32 × 384" in opened.page.inner_text("#steps")
    opened = show(random_reading(WORDS))
    assert "was not recorded" in opened.page.inner_text("#steps")


def test_long_texts_show_the_strongest_keys_first(show: Show) -> None:
    reading = random_reading(numbered_words(59))
    opened = show(reading, at="#text=0&layer=1&head=2&token=7&key=0")
    row = row_of(reading, 1, 2, 7)
    shown = [float(text) for text in opened.page.locator("#steps tbody td:nth-child(5)").all_inner_texts()]
    strongest = sorted({*np.argsort(-row)[:16].tolist(), 0})
    np.testing.assert_allclose(shown, row[strongest], atol=5.1e-5)
    opened.page.get_by_role("button", name="Show all 61 tokens").click()
    assert opened.page.locator("#steps tbody tr").count() == 61


def test_clicks_select_token_head_and_key(show: Show) -> None:
    reading = random_reading(WORDS)
    opened = show(reading, at="#text=0&layer=0&head=0&token=1")
    opened.page.locator("#row .token").nth(8).click()
    assert re.match(r"In layer 0, head 0, it ", opened.sentence())
    opened.wait_until_painted()
    opened.page.locator("#grid [role=row]").nth(1).locator("[role=gridcell]").nth(1).click()
    assert opened.sentence().startswith("In layer 1, head 1, it ")
    assert opened.page.inner_text("#map-title") == "Layer 1, head 1"
    opened.page.locator("#lines .asks .end").nth(2).click()
    assert " cat attends most" in opened.sentence()
    opened.page.locator("#numbers tbody tr").nth(2).click()
    assert opened.sentence().startswith("In layer 0, head 2, cat")
    assert "layer=0&head=2&token=2" in opened.current_url()
    opened.page.locator("#steps tbody tr").nth(6).click()
    assert opened.current_url().endswith("&key=6")
    assert opened.page.eval_on_selector("#key", "select => select.value") == "6"


def test_map_responds_to_mouse_and_keyboard(show: Show) -> None:
    reading = random_reading(WORDS)
    opened = show(reading, at="#text=0&layer=1&head=0&token=1")
    # Elements that are painted later would move the map away from under the mouse.
    opened.wait_until_painted()
    opened.page.locator("#map").scroll_into_view_if_needed()
    box = opened.page.locator("#map").bounding_box()
    assert box is not None
    # The last cell is in the lower right corner.
    opened.page.mouse.click(box["x"] + box["width"] - 40, box["y"] + box["height"] - 12)
    assert "token=12" in opened.current_url()
    opened.page.locator("#map").focus()
    opened.page.keyboard.press("ArrowUp")
    assert "token=11" in opened.current_url()
    key = int(opened.current_url().rpartition("key=")[2])
    opened.page.keyboard.press("ArrowLeft")
    assert opened.current_url().endswith(f"key={key - 1}")
    share = row_of(reading, 1, 0, 11)[key - 1]
    assert opened.page.inner_text("#map-value").endswith(f"{100 * share:.1f}\u00a0%")


def test_all_controls_are_reachable_by_keyboard(show: Show) -> None:
    opened = show(random_reading(WORDS), at="#text=0&layer=0&head=0&token=1")
    opened.wait_until_painted()
    reached = []
    for _ in range(60):
        opened.page.keyboard.press("Tab")
        # The focus must be visible.
        focused = opened.page.evaluate(
            """(() => {
              const node = document.activeElement;
              const seen = getComputedStyle(node).outlineStyle !== "none";
              const named = Boolean(node.ariaLabel || node.innerText || node.labels?.length);
              return [node.closest("[id]")?.id ?? node.tagName, seen, named];
            })()"""
        )
        if focused[0] == "BODY":
            break
        reached.append(focused)
    assert {"theme", "row", "layer", "head", "query", "grid", "map", "all-lines", "lines", "numbers", "key"} <= {
        focused[0] for focused in reached
    }
    assert all(seen and named for _, seen, named in reached)

    opened.page.locator("#row .token[tabindex='0']").focus()
    opened.page.keyboard.press("ArrowRight")
    assert " cat attends" in opened.sentence()
    opened.page.keyboard.press("End")
    assert " [SEP] attends" in opened.sentence()
    opened.page.locator("#grid [tabindex='0']").focus()
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowRight")
    assert opened.sentence().startswith("In layer 1, head 1, [SEP]")


def test_heads_are_drawn_together_in_their_colours(show: Show) -> None:
    reading = random_reading(WORDS, layers=2, heads=4)
    opened = show(reading, at="#text=0&layer=0&head=1&token=3")
    opened.wait_until_painted()
    drawn = opened.page.locator("#overlaid button")
    assert drawn.all_inner_texts() == ["+ layer 0, head 1"]
    drawn.click()
    opened.page.locator("#grid [role=row]").nth(1).locator("[role=gridcell]").nth(2).click(modifiers=["Control"])
    assert opened.current_url().endswith("&overlaid=0.1,1.2&layer=0&head=1&token=3")
    assert drawn.all_inner_texts() == [" layer 0, head 1 ×", " layer 1, head 2 ×"]
    squares = opened.page.locator("#lines .gets .end").nth(5).locator(".square")
    for number, (layer, head) in enumerate([(0, 1), (1, 2)]):
        share = row_of(reading, layer, head, 3)[5]
        assert squares.nth(number).get_attribute("title") == f"layer {layer}, head {head}: {100 * share:.1f}\u00a0%"
    colours = opened.page.evaluate(
        """(() => {
          const canvas = document.querySelector("#lines canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const seen = (red, green, blue) => data.some((_, at) => at % 4 === 0 && data[at + 3] > 200
            && Math.abs(data[at] - red) + Math.abs(data[at + 1] - green) + Math.abs(data[at + 2] - blue) < 24);
          return [seen(0xe6, 0x9f, 0x00), seen(0x00, 0x72, 0xb2)];
        })()"""
    )
    assert colours == [True, True]
    drawn.first.click()
    assert "overlaid=1.2&" in opened.current_url()
    opened.page.evaluate("location.hash = 'overlaid=9.9,%3Cb%3E'")  # what no model has is not taken
    opened.page.wait_for_timeout(50)
    assert drawn.count() == 2


def mixed_with_themselves(reading: Reading) -> list[np.ndarray]:
    """M of each layer, in float64: half the mean of the heads, half the token itself (Abnar & Zuidema 2020)."""
    means = [layer.weights().astype(np.float64).mean(axis=0) for layer in reading.layers]
    mixed = [(mean + np.eye(len(mean))) / 2 for mean in means]
    return [layer / layer.sum(axis=1, keepdims=True) for layer in mixed]


def test_rollout_is_the_product_of_the_layers(show: Show) -> None:
    reading = random_reading(WORDS, layers=3, heads=2)
    opened = show(reading, at="#text=0&layer=2&head=rollout&token=4")
    first, second, third = mixed_with_themselves(reading)
    expected = 100 * (third @ second @ first)
    np.testing.assert_allclose(opened.shares(), np.where(expected[4] >= 0.5, expected[4], 0), atol=0.051)
    assert opened.sentence().startswith("Through layers 0 to 2, by rollout, ")
    assert ", then on " in opened.sentence()
    assert "Attention rollout" in opened.page.inner_text("#steps")
    opened.page.select_option("#layer", "0")
    np.testing.assert_allclose(opened.shares(), np.where(100 * first[4] >= 0.5, 100 * first[4], 0), atol=0.051)
    opened.wait_until_painted()
    opened.page.locator("#grid [role=row]").nth(1).locator("[role=gridcell]").last.click()
    assert opened.current_url().endswith("&layer=1&head=rollout&token=4")


def test_flow_is_the_maximum_flow_of_a_peer(show: Show) -> None:
    """Of networkx, on the same graph."""
    reading = random_reading(WORDS[:5], layers=3, heads=2)
    opened = show(reading, at="#text=0&layer=2&head=flow&token=3")
    graph = networkx.DiGraph()
    for layer, mixed in enumerate(mixed_with_themselves(reading)):
        for (query, key), capacity in np.ndenumerate(mixed):
            graph.add_edge((layer + 1, query), (layer, key), capacity=capacity)
    flows = [networkx.maximum_flow_value(graph, (3, 3), (0, key)) for key in range(7)]
    np.testing.assert_allclose(opened.shares(), 100 * np.array(flows), atol=0.051)
    assert "need not add up" in opened.page.inner_text("#steps")


def test_long_and_signed_texts_have_no_flow(show: Show) -> None:
    opened = show(random_reading(numbered_words(40)), at="#text=0&layer=1&head=flow&token=3")
    assert opened.sentence().startswith("In layer 1, all heads averaged, ")
    assert opened.page.locator("#head option").all_inner_texts()[-2:] == ["all", "rollout"]


def test_steps_are_played_paused_and_linked_to(browser_window: Page, tmp_path: Path) -> None:
    """In a window of its own, whose clock the test sets forward."""
    browser = browser_window.context.browser
    assert browser is not None
    opened = BrowserPage(browser.new_page(), write_page(random_reading(WORDS), tmp_path / "page.html"))
    opened.page.clock.install()
    opened.open("#text=0&layer=0&head=1&token=3&key=5&step=4")
    current = opened.page.locator("#steps > li[aria-current=step]")
    assert "Scaling" in current.locator("h3").inner_text()
    assert opened.page.locator("#steps > li.in-focus").count() == 1
    opened.page.get_by_role("link", name="Link to step 2").click()
    assert opened.current_url().endswith("&token=3&key=5&step=2")
    assert "Key:" in current.inner_text()
    play = opened.page.locator("#play")
    play.click()
    assert play.inner_text() == "Pause"
    assert "&step=3" in opened.current_url()
    opened.page.clock.run_for(6100)
    assert "&step=4" in opened.current_url()
    play.click()
    opened.page.clock.run_for(20_000)
    assert "&step=4" in opened.current_url()
    play.click()
    opened.page.clock.run_for(20_000)
    assert opened.current_url().endswith("&key=5&step=6"), "played to the last step, with the chosen key"
    assert play.inner_text() == "Play the steps"
    opened.close()
    opened.page.close()


def test_the_heat_map_has_a_table(show: Show) -> None:
    reading = random_reading(WORDS)
    opened = show(reading, at="#text=0&layer=1&head=2&token=5")
    opened.page.locator("#map-table summary").click()
    table = opened.page.get_by_role("table").filter(has=opened.page.locator("caption"))
    table.locator("tbody tr").first.wait_for()
    cells = [float(text) for text in table.locator("tbody td").all_inner_texts()]
    np.testing.assert_allclose(np.reshape(cells, (13, 13)), 100 * reading.layers[1].weights()[2], atol=0.051)
    assert table.locator("thead th").all_inner_texts() == ["[CLS]", *WORDS, "[SEP]"]
    assert table.locator("tr.chosen th").inner_text() == WORDS[4]
    long = random_reading(numbered_words(80))
    opened = show(long, at="#text=0&layer=1&head=2&token=5")
    opened.page.locator("#map-table summary").click()
    rows = opened.page.locator("#map-table tbody tr")
    rows.first.wait_for()
    shown = [float(text) for text in opened.page.locator("#map-table tbody td:last-child").all_inner_texts()]
    np.testing.assert_allclose(shown, 100 * np.sort(row_of(long, 1, 2, 5))[::-1][:50], atol=0.051)


def test_url_stores_the_view(show: Show) -> None:
    first, second = random_reading(WORDS), random_reading(["Warm", "mats", "please", "cats"], seed=11)
    opened = show(first, second, at="#text=1&layer=1&head=2&token=4&key=2")
    assert opened.sentence().startswith("In layer 1, head 2, cats")
    assert opened.page.eval_on_selector("#key", "select => select.value") == "2"
    opened.page.evaluate("location.hash = 'text=0&layer=99&head=99&token=2'")
    opened.wait_until("document.getElementById('sentence').innerText.includes(' cat ')")
    assert opened.sentence().startswith("In layer 1, head 2, cat"), "numbers out of range go to the last there is"
    opened.page.evaluate("location.hash = 'layer=%3Cscript%3E&head=-1&token=1e9'")
    opened.page.wait_for_timeout(50)
    assert opened.sentence().startswith("In layer 1, head 2, cat"), "what is no number changes nothing"


def test_sorting_marks_the_extreme_heads(show: Show) -> None:
    reading = random_reading(WORDS, layers=3, heads=5)
    opened = show(reading)
    opened.wait_until_painted()
    opened.page.get_by_role("button", name="entropy", exact=True).click()
    entropies = []
    for layer in reading.layers:
        weights = layer.weights()
        entropies.append(-(weights * np.log(weights)).sum(-1).mean(-1))
    flat = np.concatenate(entropies)
    shown = [float(text) for text in opened.page.locator("#numbers tbody td:nth-child(2)").all_inner_texts()]
    np.testing.assert_allclose(shown, np.sort(flat), atol=0.0051)
    marked = opened.page.eval_on_selector_all(
        "#grid [role=gridcell]:not(:nth-last-child(-n + 2))",
        "cells => cells.flatMap((cell, at) => cell.classList.contains('marked') ? [at] : [])",
    )
    assert set(marked) == set(np.argsort(flat)[:6].tolist())
    opened.page.get_by_role("button", name="entropy", exact=True).click()
    first = opened.page.locator("#numbers tbody td:nth-child(2)").first.inner_text()
    assert float(first) == pytest.approx(flat.max(), abs=0.0051)


MALICIOUS_TOKENS = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img/src=x/onerror=alert(3)>",
    '"><svg/onload=alert(4)>',
    "<!--<script>",
    "{{script}}",
    "javascript:alert(5)",
    "a\u2028b\u2029c",
    "\u202egnp.exe\u202c",
    "\u2066x\u2069",
    "nul\x00\x1b[31m",
    "&lt;b&gt;&amp;",
    "\ud800",
    "__proto__",
]


def test_html_in_tokens_is_escaped(show: Show) -> None:
    reading = random_reading(MALICIOUS_TOKENS)
    opened = show(reading, random_reading([*MALICIOUS_TOKENS[::-1]], seed=3))
    opened.wait_until_painted()
    shown = opened.page.locator("#row bdi").all_text_contents()
    assert shown[1:8] == MALICIOUS_TOKENS[:7]
    assert shown[8] == "a⟨U+2028⟩b⟨U+2029⟩c"
    assert shown[9] == "⟨U+202E⟩gnp.exe⟨U+202C⟩"
    assert shown[11] == "nul⟨U+0000⟩⟨U+001B⟩[31m"
    assert shown[12] == "&lt;b&gt;&amp;"
    opened.page.evaluate(  # another test clicks with the mouse
        """for (let at = 0; at < document.querySelectorAll("#row .token").length; at += 1)
          document.querySelectorAll("#row .token")[at].click()"""
    )
    assert f"token={len(MALICIOUS_TOKENS) + 1}" in opened.current_url()
    opened.page.locator("[role=tab]").nth(1).click()
    assert opened.page.evaluate("document.scripts.length") == 2
    assert (
        opened.page.evaluate("document.querySelectorAll('img, svg[onload], iframe, object, embed, link').length") == 0
    )
    for code in (0x202E, 0x2066, 0x2028, 0x0000, 0x001B):
        assert not opened.page.evaluate(f"document.body.innerText.includes(String.fromCodePoint({code}))")


def test_content_security_policy_blocks_scripts_and_requests(show: Show) -> None:
    opened = show(random_reading(WORDS))
    ran = opened.page.evaluate(
        """async () => {
          const made = document.createElement("script");
          let refused = 0;
          try { made.textContent = "window.ran = 1"; document.body.append(made); } catch { refused += 1; }
          try { document.body.innerHTML += "<img src=x onerror='window.ran = 1'>"; } catch { refused += 1; }
          try { await fetch("https://example.org"); } catch { refused += 1; }
          return [window.ran === undefined, refused];
        }"""
    )
    assert ran == [True, 3]
    opened.wait_until_painted()
    opened.errors.clear()  # errors of the refused requests


def test_right_to_left_text_is_laid_out_right_to_left(show: Show) -> None:
    opened = show(random_reading(["הילד", "אכל", "תפוח"]), at="#text=0&layer=0&head=0&token=1")
    places = [opened.page.locator("#row .token").nth(at).bounding_box()["x"] for at in range(5)]
    assert places == sorted(places, reverse=True)
    opened.page.locator("#row .token[tabindex='0']").focus()
    opened.page.keyboard.press("ArrowLeft")
    assert "token=2" in opened.current_url()
    query_side, key_side = (opened.page.locator(f"#lines .{side}").bounding_box()["x"] for side in ("asks", "gets"))
    assert query_side > key_side


def test_chinese_tokens_have_no_space_between_them(show: Show, minilm: Callable[[str], Reading]) -> None:
    opened = show(minilm("猫吃鱼。"))
    assert opened.page.locator("#row bdi").all_text_contents() == ["[CLS]", "猫", "吃", "鱼", "。", "[SEP]"]
    boxes = [opened.page.locator("#row .token").nth(at).bounding_box() for at in (1, 2, 3)]
    for left, right in pairwise(boxes):
        assert right["x"] - (left["x"] + left["width"]) < 1


def test_masked_tokens_have_no_weight(show: Show) -> None:
    n = len(WORDS) + 2
    causal = np.tril(np.ones((n, n), dtype=bool))
    causal[4] = False
    reading = random_reading(WORDS, allowed=causal)
    opened = show(reading, at="#text=0&layer=0&head=1&token=3")
    assert opened.shares()[4:] == [0.0] * (n - 4)
    assert sum(opened.shares()) == pytest.approx(100, abs=0.3)
    assert opened.page.locator("#steps tbody tr td:nth-child(4)").all_inner_texts()[4:] == ["masked"] * (n - 4)
    opened.page.evaluate("location.hash = 'layer=0&head=1&token=4'")
    opened.wait_until("document.getElementById('sentence').innerText.includes('attends to nothing')")
    assert opened.shares() == [0.0] * n


def test_queries_and_keys_of_different_texts(show: Show) -> None:
    reading = random_reading(["Eine", "Katze"], keys=["A", "small", "cat"])
    opened = show(reading, at="#text=0&layer=1&head=0&token=2")
    assert opened.page.locator("#asking .token").count() == 4
    assert opened.page.locator("#row .token").count() == 5
    np.testing.assert_allclose(opened.shares(), 100 * row_of(reading, 1, 0, 2), atol=0.51)
    opened.page.locator("#asking .token").nth(1).click()
    assert " Eine attends most to" in opened.sentence()
    assert opened.page.locator("#row [aria-selected]").count() == 0


def test_texts_have_tabs_and_shared_words(show: Show) -> None:
    first, second = random_reading(["apple", "pie"]), random_reading(["Apple", "phones", "ring"], seed=13)
    opened = show(first, second)
    a, b = first.hidden[:, 1].astype(np.float64), second.hidden[:, 1].astype(np.float64)
    expected = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    cells = opened.page.locator("#chart td").all_inner_texts()
    assert cells[0] == "texts 1 and 2"
    np.testing.assert_allclose([float(cell.replace("−", "-")) for cell in cells[1:]], expected, atol=0.0051)
    assert opened.page.locator("#word option").all_inner_texts() == ["apple"]
    opened.page.locator("[role=tab]").nth(1).click()
    assert opened.page.locator("#row bdi").all_text_contents()[1:-1] == ["Apple", "phones", "ring"]
    opened.page.keyboard.press("ArrowLeft")
    assert "text=0" in opened.current_url()


def test_many_texts_are_a_list_to_search_in(show: Show) -> None:
    readings = [random_reading(["text", f"number{seed}"], layers=1, heads=2, seed=seed) for seed in range(17)]
    opened = show(*readings, at="#text=16")
    summary, found = opened.page.locator(".texts summary"), opened.page.locator(".texts li button")
    assert summary.inner_text().startswith("17. text number16 of 17")
    assert opened.page.locator("#texts").bounding_box()["height"] <= 60
    summary.click()
    found.nth(16).wait_for()
    assert found.count() == 17
    assert found.nth(16).get_attribute("aria-current") == "true"
    assert opened.page.evaluate("document.activeElement.type") == "search"
    opened.page.keyboard.type("Number1")
    assert found.count() == 8
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("Enter")
    assert "text=10" in opened.current_url()
    assert summary.inner_text().startswith("11. text number10 of 17")
    assert not opened.page.locator(".found").is_visible()
    opened.page.keyboard.press("Enter")
    opened.wait_until("document.activeElement.type === 'search'")
    opened.page.keyboard.type("nowhere")
    assert opened.page.locator(".found [role=status]").inner_text() == "No text has these words."
    opened.page.keyboard.press("Escape")
    assert not opened.page.locator(".found").is_visible()
    opened.page.get_by_role("button", name="Previous text").click()
    assert "text=9" in opened.current_url()


def test_sentence_and_map_stay_in_view(show: Show) -> None:
    """At 1280 x 800 both are on the screen, with the first rows of heads; also at the end of the page."""
    opened = show(random_reading(WORDS, layers=6, heads=12), random_reading(WORDS, layers=6, heads=12, seed=3))
    opened.page.set_viewport_size({"width": 1280, "height": 800})
    opened.wait_until_painted()

    def is_seen(selector: str) -> bool:
        box = opened.page.locator(selector).bounding_box()
        return box is not None and box["y"] >= 0 and box["y"] + box["height"] <= 800

    seen = ["#sentence", "#row", "#map", "#map-value", ".legend", "#layer"]
    assert all(map(is_seen, [*seen, "#grid [role=row] >> nth=2"])), [name for name in seen if not is_seen(name)]
    opened.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    opened.page.wait_for_timeout(100)
    assert all(map(is_seen, seen)), [name for name in seen if not is_seen(name)]
    opened.page.locator("#numbers tbody tr").nth(30).click()
    assert opened.sentence().startswith("In layer 2, head 6, ")
    assert all(map(is_seen, seen))


def test_on_a_large_screen_a_title_stands_above_its_steps(show: Show) -> None:
    """Sections run through several columns at 3840 x 2160."""
    opened = show(random_reading(WORDS, layers=6, heads=12))
    opened.page.set_viewport_size({"width": 3840, "height": 2160})
    lefts = opened.page.locator("#steps-title, #key, #steps > li:first-child").evaluate_all(
        "nodes => nodes.map((node) => node.closest('section > *').getClientRects()[0].left)"
    )
    assert len(lefts) == 3
    assert max(lefts) - min(lefts) < 1
    broken = "nodes => nodes.filter((node) => node.getClientRects().length > 1).length"
    assert opened.page.locator("#steps > li").evaluate_all(broken) == 0


def test_what_has_the_focus_is_not_under_the_text(show: Show) -> None:
    opened = show(random_reading(numbered_words(60), layers=12, heads=12))
    opened.page.set_viewport_size({"width": 1280, "height": 800})
    opened.wait_until_painted()
    opened.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    for _ in range(25):
        opened.page.keyboard.press("Shift+Tab")
        covered = opened.page.evaluate(
            """(() => {
              const [focused, text] = [document.activeElement, document.querySelector(".first")];
              const [{ left, bottom }, over] = [focused.getBoundingClientRect(), text.getBoundingClientRect()];
              return !text.contains(focused) && left < over.right && bottom > 0 && bottom <= over.bottom;
            })()"""
        )
        assert not covered, opened.page.evaluate("document.activeElement.outerHTML")


def test_pointer_previews_and_click_keeps(show: Show) -> None:
    opened = show(random_reading(WORDS), at="#text=0&layer=0&head=0&token=1")
    opened.wait_until_painted()
    url, said = opened.current_url(), opened.sentence()
    head = opened.page.locator("#grid [role=row]").nth(1).locator("[role=gridcell]").nth(1)
    head.hover()
    opened.wait_until("document.getElementById('sentence').innerText.startsWith('In layer 1, head 1, ')")
    assert opened.page.inner_text("#map-title") == "Layer 1, head 1"
    assert opened.current_url() == url
    opened.page.locator("#row .token").nth(5).hover()
    opened.wait_until("document.getElementById('sentence').innerText.startsWith('In layer 0, head 0, the ')")
    opened.page.locator("header").hover()
    opened.wait_until(f"document.getElementById('sentence').innerText === {said!r}")
    assert opened.current_url() == url
    head.click()
    opened.page.locator("header").hover()
    opened.page.wait_for_timeout(150)
    assert opened.sentence().startswith("In layer 1, head 1, The ")
    assert "layer=1&head=1&token=1" in opened.current_url()


def test_selected_head_is_kept_when_the_text_changes(show: Show) -> None:
    texts = [["cat", "sat", "down"], ["the", "cat", "sat"], ["dogs", "ran"]]
    opened = show(*(random_reading(one, layers=3, heads=3, seed=seed) for seed, one in enumerate(texts)))
    tabs = opened.page.locator("[role=tab]")
    tabs.nth(2).click()  # without a choice, a text that lacks the token opens at its default
    default = opened.current_url().partition("#")[2]
    tabs.nth(0).click()
    opened.page.locator("#row .token").nth(1).click()
    tabs.nth(2).click()
    assert opened.current_url().endswith(default)  # choosing a token does not choose a head
    tabs.nth(0).click()
    opened.page.locator("#row .token").nth(1).click()
    place = re.search("layer=.&head=.", opened.current_url())[0]
    tabs.nth(1).click()
    assert opened.current_url().endswith(f"#text=1&{place}&token=2")  # "cat" occurs here: compared at the same head
    opened.page.select_option("#layer", "2")
    opened.page.select_option("#head", "1")
    opened.page.locator("#row .token").nth(3).click()
    assert opened.current_url().endswith("#text=1&layer=2&head=1&token=3")
    tabs.nth(0).click()
    assert opened.current_url().endswith("#text=0&layer=2&head=1&token=2")  # "sat" occurs here too
    assert opened.sentence().startswith("In layer 2, head 1, sat ")
    tabs.nth(2).click()
    assert "#text=2&layer=2&head=1&token=" in opened.current_url()
    opened.page.reload()
    opened.page.wait_for_selector("html[data-ready]")
    tabs.nth(1).click()
    assert "#text=1&layer=2&head=1&token=" in opened.current_url()


def test_theme_can_be_switched(show: Show) -> None:
    opened = show(random_reading(WORDS))

    def background() -> int:
        colour = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)))

    before = background()
    opened.page.get_by_role("button", name="Switch to dark colours").click()
    assert background() < before - 300
    opened.page.get_by_role("button", name="Switch to light colours").click()
    assert background() == before
    for scheme in ("dark", "light"):
        opened.page.emulate_media(color_scheme=scheme)
        opened.wait_until(f"document.documentElement.dataset.theme === '{scheme}'")
    assert background() == before


CONTRAST = """() => {
  const channel = (part) => { part /= 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; };
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const paper = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  let worst = 21;
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest("option, svg, tr.chosen")) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(paper(node))];
    worst = Math.min(worst, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return worst;
}"""


def test_text_contrast_meets_wcag_aa(show: Show) -> None:
    """WCAG 2.2, success criterion 1.4.3 (AA): at least 4.5 : 1."""
    opened = show(random_reading(WORDS))
    for scheme in ("light", "dark"):
        opened.emulate_theme(scheme)
        assert opened.page.evaluate(CONTRAST) >= 4.5


def test_shades_are_ordered_by_lightness(show: Show) -> None:
    opened = show(random_reading(WORDS))
    for scheme in ("light", "dark"):
        opened.emulate_theme(scheme)
        strip = np.array(
            opened.page.evaluate(
                """(() => { const from = document.getElementById("scale");
                const copy = new OffscreenCanvas(from.width, 1).getContext("2d");
                copy.drawImage(from, 0, 5, from.width, 1, 0, 0, from.width, 1);
                return [...copy.getImageData(0, 0, from.width, 1).data]; })()"""
            )
        ).reshape(-1, 4)[:, :3]
        linear = np.where(strip / 255 <= 0.04045, strip / 255 / 12.92, ((strip / 255 + 0.055) / 1.055) ** 2.4)
        luminance = linear @ [0.2126, 0.7152, 0.0722]
        steps = np.diff(luminance) * (1 if scheme == "dark" else -1)
        assert steps.min() > -0.002  # the eight bits of a channel
        assert abs(luminance[-1] - luminance[0]) > 0.6


@pytest.mark.parametrize("tokens", [pytest.param(13, marks=pytest.mark.slow), 61])
def test_fits_a_phone_screen(show: Show, tokens: int) -> None:
    opened = show(random_reading(numbered_words(tokens - 2), heads=12), width=400)
    opened.wait_until_painted()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 400


def test_truncation_is_reported(show: Show) -> None:
    whole = random_reading(WORDS)
    cut = Reading(whole.tokens, whole.layers, whole.hidden, dropped=17)
    assert "without the last 17 tokens" in show(cut).page.inner_text("#cut")


def test_print_layout(show: Show) -> None:
    opened = show(random_reading(WORDS))
    opened.wait_until_painted()
    opened.page.emulate_media(media="print")
    assert not opened.page.locator(".place").is_visible()
    assert opened.page.pdf()[:5] == b"%PDF-"


def test_unknown_words_are_reported(show: Show, minilm: Callable[[str], Reading]) -> None:
    opened = show(minilm("我今天吃了一个苹果"))
    assert opened.page.inner_text("#vocabulary").startswith("5 of 6 words are not in this model's vocabulary.")
    unknown = set(opened.page.locator("#row .token.unknown bdi").all_inner_texts())
    assert len(unknown) == 6  # tokens, of 5 words
    assert not unknown & set(opened.page.locator("#findings bdi").all_inner_texts())
    assert not show(random_reading(WORDS)).page.locator("#vocabulary").is_visible()


def test_finding_of_several_tokens_opens_at_the_strongest(show: Show, minilm: Callable[[str], Reading]) -> None:
    reading = minilm("Seafarers feared the hydroelectricity because unaffable seamstresses sang it.")
    opened = show(reading)
    for number in range(opened.page.locator("#findings button").count()):
        card = opened.page.locator("#findings button").nth(number)
        query_label, key_label = card.locator("bdi").all_inner_texts()
        card.click()
        layer, head, query = (
            int(re.search(rf"{name}=(\d+)", opened.current_url())[1]) for name in ("layer", "head", "token")
        )
        pairs = word_pairs(reading)
        query_word, key_word = (
            next(word for word in pairs.query_words if word.label == label) for label in (query_label, key_label)
        )
        shares = row_of(reading, layer, head, slice(None))[:, list(key_word.pieces)].sum(1)
        assert query in query_word.pieces
        assert shares[query] == max(shares[list(query_word.pieces)])
        if len(query_word.pieces) + len(key_word.pieces) > 2:
            assert re.search(r"As whole words: \w+ → \w+ \d+\.\d\u00a0%\.$", opened.sentence())


def test_long_text_scrolls_by_whole_lines(show: Show) -> None:
    opened = show(random_reading(numbered_words(254)))
    for top in (0, 300, 100_000):
        opened.page.evaluate(f"document.querySelector('.tokens.long').scrollTop = {top}")
        opened.page.wait_for_timeout(100)
        cut = opened.page.evaluate(
            """(() => {
              const box = document.querySelector(".tokens.long").getBoundingClientRect();
              const over = ({ top, bottom }, edge) => top < edge - 1 && bottom > edge + 1;
              return [...document.querySelectorAll(".tokens.long .token")]
                .map((token) => token.getBoundingClientRect())
                .filter((token) => over(token, box.top) || over(token, box.bottom)).length;
            })()"""
        )
        assert cut == 0
    assert "scroll to see them" in opened.explanation("#marks")


def test_without_marks_the_numbers_are_those_of_the_reading_without_them(show: Show) -> None:
    reading = random_reading(WORDS)
    unmarked, hidden = without_marks(reading), mass_of_marks(reading)
    opened = show(reading, at="#text=0&layer=1&head=2&token=5")
    opened.page.get_by_role("radio", name="Without [CLS], [SEP]").click()
    expected = [0, *100 * row_of(unmarked, 1, 2, 4), 0]  # [CLS] is no token of it
    np.testing.assert_allclose(opened.shares(), np.where(np.array(expected) >= 0.5, expected, 0), atol=0.051)
    said = f"Hidden: {100 * hidden[5]:.1f}\u00a0% of the attention in layer 1, head 2"
    assert said in opened.page.inner_text("#hidden-mass")
    assert opened.page.locator("#row .hidden-mark").all_inner_texts() == ["[CLS]\n·", "[SEP]\n·"]
    entropies = [cell.inner_text() for cell in opened.page.locator("#numbers tbody td:nth-child(2)").all()]
    assert entropies == [f"{head.entropy:.2f}" for head in statistics_of(unmarked)]
    opened.page.evaluate("location.hash = 'text=0&layer=1&head=mean&token=5&marks=none'")
    opened.wait_until("sentence.innerText.includes('all heads averaged')")
    mean = [0, *100 * unmarked.layers[1].mean_weights()[4], 0]
    np.testing.assert_allclose(opened.shares(), np.where(np.array(mean) >= 0.5, mean, 0), atol=0.051)
    opened.page.get_by_role("radio", name="With [CLS], [SEP]").click()
    assert "marks=none" not in opened.current_url()


def test_heads_with_a_named_pattern_say_it(show: Show, minilm: Callable[[str], Reading]) -> None:
    opened = show(minilm("The animal didn't cross the street because it was too tired."), at="#marks=none")
    row = opened.page.locator("#numbers tbody tr", has_text="0 · 2")
    assert row.locator("td").last.inner_text() == "previous token 100\u00a0%"
    opened.wait_until_painted()
    names = opened.page.locator("#grid [role=gridcell]").evaluate_all("cells => cells.map((one) => one.title)")
    assert "previous token 100" in names[2]
