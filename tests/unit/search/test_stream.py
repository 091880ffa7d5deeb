"""Searches read token by token; several end tokens; the repetition penalty; min_p and top_p without a sort."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import OptionError, RefusedError
from regard.search import Greedy, Sampling
from small_language_models import language_model

PROMPTS, LENGTHS = torch.tensor([[0, 5, 6, 40], [0, 7, 0, 0], [0, 8, 9, 0]]), torch.tensor([4, 2, 3])


def run_stream(steps, stop=None):
    """Read a stream; ``stop`` maps a step to the rows to stop after it. Returns the steps and the hypotheses."""
    seen, sent = [], None
    try:
        while True:
            seen.append(steps.send(sent))
            sent = (stop or {}).get(len(seen) - 1, set())
    except StopIteration as ended:
        return seen, ended.value


@pytest.mark.parametrize("search", [Greedy(), Sampling(seed=3, best=2), Sampling(seed=1, top_p=0.7, min_p=0.01)])
def test_a_stream_is_the_search_step_by_step(search):
    model = language_model()
    expected = search.search(model, PROMPTS, LENGTHS, max_tokens=11)
    steps, hypotheses = run_stream(search.stream(model, PROMPTS, LENGTHS, max_tokens=11))
    assert hypotheses == expected
    written = {row: [] for row in range(3 * search.rows)}
    for step in steps:
        for row, token in zip(step.rows, step.tokens, strict=True):
            written[row].append(token)
    ids = {row: tuple(one for one in tokens if one != model.end_id) for row, tokens in written.items()}
    by_source = [
        sorted(ids[row] for row in range(first, first + search.rows)) for first in range(0, len(ids), search.rows)
    ]
    assert by_source == [sorted(one.ids for one in source) for source in expected]


def test_rows_can_be_stopped():
    model = language_model()
    whole = Greedy().search(model, PROMPTS, LENGTHS, max_tokens=11)
    steps, cut = run_stream(Greedy().stream(model, PROMPTS, LENGTHS, max_tokens=11), {2: {1}})
    assert cut[1][0].ids == whole[1][0].ids[:3]
    assert not cut[1][0].finished
    assert [cut[row][0].ids for row in (0, 2)] == [whole[row][0].ids for row in (0, 2)]
    assert all(1 not in step.rows for step in steps[3:])


def test_gradients_and_mode_are_untouched_between_steps():
    model = language_model().train()
    steps = Greedy().stream(model, PROMPTS, LENGTHS, max_tokens=5)
    next(steps)
    assert torch.is_grad_enabled()
    steps.close()
    assert all(module.training for module in model.modules())


def test_every_end_token_ends_a_text():
    model = language_model()
    ((free,), *_) = Greedy().search(model, PROMPTS, LENGTHS, max_tokens=11)
    other = free.ids[4]
    model.config = model.config.__class__(**{**vars(model.config), "end_ids": (0, other)})
    ((ended,), *_) = Greedy().search(model, PROMPTS, LENGTHS, max_tokens=11)
    assert ended.ids == free.ids[: free.ids.index(other)]
    assert ended.finished


def greedy_by_hand(model, prompt, penalty, most):
    ids, found = list(prompt), []
    for _ in range(most):
        logits = model(torch.tensor([ids])).logits[0, -1].detach().double().numpy()
        for token in set(ids):
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        token = int(np.argmax(logits))
        if token == model.end_id:
            break
        ids.append(token)
        found.append(token)
    return tuple(found)


@pytest.mark.parametrize("penalty", [1.3, *(pytest.param(one, marks=pytest.mark.slow) for one in (1.0, 3.0))])
@torch.no_grad()
def test_repetition_penalty(penalty):
    model = language_model("llama")
    found = Greedy(repetition_penalty=penalty).search(model, PROMPTS, LENGTHS, max_tokens=13)
    for (one,), ids, length in zip(found, PROMPTS.tolist(), LENGTHS.tolist(), strict=True):
        assert one.ids == greedy_by_hand(model, ids[:length], penalty, 13)
        total = 0.0
        written = list(ids[:length])
        for token in [*one.ids, *([model.end_id] if one.finished else [])]:
            total += float(model(torch.tensor([written])).logits[0, -1].double().log_softmax(0)[token])
            written.append(token)
        assert one.log_probability == pytest.approx(total, rel=1e-4)  # the model's, without the penalty


def draw_by_sorting(logits, number, temperature, top_p, min_p):
    """The token of a uniform number, from a sort of the whole vocabulary in float64."""
    shares = np.exp((logits - logits.max()) / temperature)
    shares /= shares.sum()
    order = np.argsort(-shares, kind="stable")
    ranked = shares[order]
    kept = (np.cumsum(ranked) - ranked < top_p) & (ranked >= min_p * ranked[0])
    ranked = np.where(kept, ranked, 0.0)
    return order[np.searchsorted(np.cumsum(ranked) / ranked.sum(), number)], kept.sum()


@given(
    seed=st.integers(0, 2**20),
    size=st.sampled_from([7, 61, 509, 4099]),
    spread=st.floats(0.01, 8.0),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.003, 0.1, 0.5]),
    temperature=st.sampled_from([0.7, 1.0, 1.9]),
)
def test_draws_equal_those_of_a_sorted_vocabulary(seed, size, spread, top_p, min_p, temperature):
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(generator.normal(scale=spread, size=(3, size)))
    numbers = torch.from_numpy(generator.uniform(0.01, 0.99, size=3))
    sampling = Sampling(seed=1, temperature=temperature, top_p=top_p, min_p=min_p)
    tokens = sampling.choose(logits.log_softmax(1), numbers)
    for row in range(3):
        expected, kept = draw_by_sorting(logits[row].numpy(), float(numbers[row]), temperature, top_p, min_p)
        if top_p < 1 or min_p:
            assert int(tokens[row]) == expected
        assert 1 <= kept <= size
        alone = sampling.choose(logits[row : row + 1].log_softmax(1), numbers[row : row + 1])
        assert int(alone) == int(tokens[row])


def test_min_p_1_is_greedy():
    model = language_model()
    greedy, sampled = (
        [one[0].ids for one in search.search(model, PROMPTS, LENGTHS, max_tokens=7)]
        for search in (Greedy(), Sampling(seed=5, min_p=1.0))
    )
    assert greedy == sampled


def test_options_out_of_range_are_refused():
    with pytest.raises(OptionError, match="min_p"):
        Sampling(seed=1, min_p=1.1)
    for penalty in (0, -1.0, float("nan")):
        with pytest.raises(OptionError, match="repetition_penalty"):
            Greedy(repetition_penalty=penalty)


@pytest.mark.parametrize("search", [Greedy(), Sampling(seed=1), Sampling(seed=3, best=2)])
def test_no_token_of_a_model_with_nan_is_shown(search):
    model = language_model()
    with torch.no_grad():
        model.token_embedding.weight[7] = torch.nan
    steps = search.stream(model, PROMPTS[1:2], LENGTHS[1:2], max_tokens=11)
    with pytest.raises(RefusedError, match="no token a finite log-probability"):
        next(steps)
