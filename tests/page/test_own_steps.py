"""Steps of a mechanism's own in a real browser: what they show is compared with oracles in float64."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from browser_page import BrowserPage, make_tokens
from test_weights_alone import weights_in_titles

import regard
from own_step_cases import causal_weights, make_case
from regard.conformance.mechanism_oracles import ORACLES
from regard.conformance.oracles import reformer as reformer_oracle
from regard.recording.captured_inputs import capture_projections
from regard.view import layers_of
from regard.view.captured_projections import add_projections
from regard.view.reading import Reading

WORDS = ["The", "cat", "sat", "on", "the", "mat", "since", "it", "was", "tired", "of", "the", "dog"]
WIDTH, HEADS = 20, 5
HEAD_DIM = WIDTH // HEADS
Show = Callable[..., BrowserPage]


def read_layer(mechanism: str, options: dict, mask: regard.masks.Mask | None = None) -> Reading:
    """One layer with random weights, over random tokens."""
    torch.manual_seed(2)
    attention = regard.MultiHeadAttention(WIDTH, HEADS, mechanism=mechanism, mechanism_options=options)
    tokens = make_tokens(WORDS)
    with torch.no_grad(), regard.record(attention) as seen:
        attention(torch.randn(1, len(tokens), WIDTH), mask=mask)
    return Reading(tokens, layers_of(seen))


def meetings(query: np.ndarray, rotations: np.ndarray, chunk: int | None) -> np.ndarray:
    """How often token i meets token j in each round (rounds, tokens, tokens), by Kitaev et al. 2020, section 2."""
    buckets = np.array([reformer_oracle.buckets(token, rotations) for token in query]).T
    rounds, tokens = buckets.shape
    met = np.zeros((rounds, tokens, tokens))
    if chunk is None:
        for number, i, j in np.ndindex(met.shape):
            same = [bool(buckets[one, i] == buckets[one, j]) for one in range(number + 1)]
            met[number, i, j] = same[-1] and not any(same[:-1])
    else:
        chunks = []
        for of_round in buckets:
            order = np.argsort(of_round, kind="stable")
            chunks += [order[at : at + chunk] for at in range(0, tokens, chunk)]
        for number, own in enumerate(chunks):
            for i in own:
                for j in [*own, *chunks[number - 1]]:
                    met[number // (len(chunks) // rounds), i, j] += 1
    for number in range(rounds):
        np.fill_diagonal(met[number], 0)
    return met


@pytest.mark.parametrize("chunk", [None, 4])
def test_buckets_and_rounds_of_reformer_are_those_of_the_paper(show: Show, chunk: int | None) -> None:
    reading = read_layer("reformer", {"buckets": 4, "rounds": 3, "chunk": chunk})
    head, token = 1, 3
    query = reading.layers[0].query[head].astype(np.float64)
    rotations = reformer_oracle.draw_rotations(0, HEADS, HEAD_DIM, 3, 2)[head]
    met = meetings(query, rotations, chunk)
    scores = np.array([query @ reformer_oracle.divide_by_rms(key) for key in query]).T / np.sqrt(HEAD_DIM)
    exponentials = met * np.exp(scores)
    weights = exponentials.sum(0) / exponentials.sum((0, 2))[:, None]
    np.testing.assert_allclose(reading.layers[0].weights()[head], weights, atol=1e-6)
    key = int(weights[token].argmax())
    opened = show(reading, at=f"#layer=0&head={head}&token={token}&key={key}")
    np.testing.assert_allclose(weights_in_titles(opened), weights[token], atol=6e-6)
    items = opened.page.locator("#steps > li")
    titles = items.locator("h3").all_inner_texts()
    at = next(number for number, title in enumerate(titles) if "Rounds" in title)
    rows = items.nth(at).locator("tbody tr").all_inner_texts()
    shown = np.array(
        [[float(cell.replace("−∞", "-inf").replace("−", "-")) for cell in row.split("\t")] for row in rows]
    )
    sums = exponentials[:, token].sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.nan_to_num(exponentials[:, token, key] / sums)
        expected = np.stack([np.arange(3), (met[:, token] > 0).sum(-1), np.log(sums), sums / sums.sum(), own], axis=1)
    np.testing.assert_allclose(shown, expected, atol=1e-4)
    hashed = items.nth(at - 5)
    assert "Hash" in titles[at - 5]
    buckets = [row.split("\t")[1] for row in hashed.locator("tbody tr").all_inner_texts()]
    assert list(map(int, buckets)) == reformer_oracle.buckets(query[token], rotations)
    assert "masked" not in opened.page.inner_text("#steps")


def test_keys_that_a_mechanism_leaves_out_are_not_said_to_be_masked(show: Show) -> None:
    reading = read_layer("top_k", {"keys": 4}, regard.masks.causal())
    opened = show(reading, at="#layer=0&head=2&token=9&key=3")
    cells = opened.page.locator("#steps table").last.locator("td:nth-child(4)").all_inner_texts()
    assert cells.count("not chosen") == 6
    assert cells.count("masked") == 5


def read_mechanism(name: str) -> tuple[Reading, dict[str, np.ndarray]]:
    """A causal mechanism with random inputs, and these with its parameters in float64."""
    torch.manual_seed(3)
    mechanism, tokens = regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM), make_tokens(WORDS)
    inputs = {side: torch.randn(1, HEADS, len(tokens), HEAD_DIM) for side in ("query", "key", "value")}
    inputs |= {one.name: torch.randn(1, HEADS, len(tokens), one.size) for one in mechanism.extra_inputs}
    with torch.no_grad(), regard.record(mechanism) as seen:
        mechanism(**inputs, mask=regard.masks.causal())
    arrays = {part: tensor.detach().double().numpy() for part, tensor in {**mechanism.state_dict(), **inputs}.items()}
    return Reading(tokens, layers_of(seen)), arrays


def vector_of(opened: BrowserPage, title: str) -> np.ndarray:
    """The numbers of the last vector of a step, with all digits."""
    item = opened.page.locator("#steps > li").filter(has_text=title)
    cells = item.locator(".vector").last.locator("span").evaluate_all("cells => cells.map((cell) => cell.title)")
    return np.array([float(cell.partition(": ")[2]) for cell in cells])


@pytest.mark.parametrize("name", ["kda", "linear"])
def test_states_and_what_is_read_are_those_of_the_equation(show: Show, name: str) -> None:
    reading, arrays = read_mechanism(name)
    head, token = 2, 9
    allowed = np.tril(np.ones((len(WORDS) + 2,) * 2, dtype=bool))[None, None]
    expected = ORACLES[name].forward(*(arrays[side] for side in ("query", "key", "value")), allowed, arrays)
    opened = show(reading, at=f"#layer=0&head={head}&token={token}&step=2")
    output = expected[0, head, token]
    np.testing.assert_allclose(vector_of(opened, "Read: query times state"), output, atol=2e-3 * np.abs(expected).max())
    maps = opened.page.locator("canvas.state")
    assert maps.count() == {"kda": 5, "linear": 3}[name]
    maps.last.hover(position={"x": 2, "y": 2})
    assert opened.page.locator(".readout").last.inner_text().startswith("row 0, column 0: ")
    opened.page.get_by_role("button", name="Play the tokens").click()
    opened.wait_until("location.hash.includes('token=10')")
    opened.page.locator(".play-tokens").click()
    assert "step=2" in opened.current_url()


def test_states_that_are_too_large_are_said_to_be_left_out(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.view.page_data.MAX_STATE_BYTES", 100)
    opened = show(read_mechanism("retention")[0], at="#layer=0&head=1&token=3")
    assert "The states are not on this page: it would be too large." in opened.page.inner_text("#steps")


def test_the_step_before_a_query_goes_through_the_norm_and_the_rotation(show: Show) -> None:
    torch.manual_seed(2)
    rotary, norm = regard.positions.Rotary(HEAD_DIM), regard.layers.RMSNorm(HEAD_DIM)
    layer = regard.MultiHeadAttention(WIDTH, HEADS, query_norm=norm, position=rotary)
    tokens, head, token = make_tokens(WORDS), 3, 5
    with torch.no_grad(), capture_projections(layer) as captured, regard.record(layer) as seen:
        layer(torch.randn(1, len(tokens), WIDTH))
    reading = Reading(tokens, add_projections(layers_of(seen), captured))
    opened = show(reading, at=f"#layer=0&head={head}&token={token}&key=2")
    before = opened.page.locator("#steps > li").filter(has_text="to the query")
    side = reading.layers[0].projections.query
    component = int(side.components[head])
    numbers = side.tokens[token].astype("f8") @ side.rows[head] + side.biases[head], side.normed[head, token]
    numbers = (*numbers, reading.layers[0].query[head, token, component])
    text = before.inner_text()
    said = [before.locator(".result").inner_text()]
    said += [re.search(pattern, text)[1] for pattern in (r"normalises.* becomes (\S+)\.", r"rotates.* (\S+)\.")]
    shown = [float(one.replace("−", "-")) for one in said]
    np.testing.assert_allclose(shown, numbers, atol=2e-3)


RESULTS_OF_STEPS = {
    "softcap": ("Softcap: no score", "Softmax: shares"),
    "sinks": ("Softmax: shares",),
    "sigmoid": ("Each key on its own",),
    "forgetting": ("Forget: the gates", "Softmax: shares"),
    "differential": ("First softmax", "Second softmax", "Difference of"),
    "talking_heads": ("Mix the scores", "Mix the weights"),
    "nsa": ("Compressed blocks", "Chosen blocks", "Window: the last", "Gates: how much"),
}
"""The titles of steps of each case that have a result."""


@pytest.mark.parametrize("name", RESULTS_OF_STEPS)
def test_steps_of_other_softmaxes_give_the_weights_of_the_equation(show: Show, name: str) -> None:
    tokens = make_tokens(WORDS)
    mechanism, inputs = make_case(name, heads=4, head_dim=6, tokens=len(tokens), dtype=torch.float32)
    with torch.no_grad(), regard.record(mechanism) as seen:
        mechanism(**inputs, mask=regard.masks.causal())
    weights = causal_weights(name, mechanism, inputs)
    head, token = 2, 12
    key = int(np.argsort(-np.abs(weights[head, token]))[1])
    opened = show(Reading(tokens, layers_of(seen)), at=f"#layer=0&head={head}&token={token}&key={key}&step=2")
    np.testing.assert_allclose(weights_in_titles(opened), weights[head, token], atol=2e-5)
    results = {}
    for title in RESULTS_OF_STEPS[name]:
        item = opened.page.locator("#steps > li").filter(has=opened.page.locator("h3", has_text=title))
        results[title] = float(item.locator(".result").inner_text().replace("−", "-"))
    np.testing.assert_allclose(list(results.values())[-1], weights[head, token, key], atol=1.1e-4)
    products = (inputs["query"] @ inputs["key"].mT * mechanism.scale)[0].double().numpy()
    if name == "softcap":
        np.testing.assert_allclose(
            results["Softcap: no score"], 1.5 * np.tanh(products[head, token, key] / 1.5), atol=1e-4
        )
    if name == "forgetting":
        gates = 1 / (1 + np.exp(-inputs["forget"][0, head, key + 1 : token + 1, 0].double().numpy()))
        np.testing.assert_allclose(
            results["Forget: the gates"], products[head, token, key] + np.log(gates).sum(), atol=1e-4
        )
    if name == "talking_heads":
        mixed = products[:, token, key] @ mechanism.score_mixing[:, head].detach().double().numpy()
        np.testing.assert_allclose(results["Mix the scores"], mixed, atol=1e-4)
    opened.page.locator("body").press("Tab")
    opened.page.get_by_role("button", name="Play the steps").click()
    opened.wait_until("location.hash.includes('step=3')")
    opened.page.locator("#play").click()
