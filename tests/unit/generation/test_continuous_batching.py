"""Requests in pages write what the model writes by hand, forward over the whole text at each step, in any company."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hypothesis_examples import examples
from regard import masks, positions
from regard.errors import DataError, OptionError, RefusedError
from regard.generation import Generator, paged_memory
from regard.generation.continuous_batching import ContinuousBatching, GenerationRequest
from regard.generation.prefix_cache import PrefixCache
from regard.layers import MultiHeadAttention, PagePool
from regard.mechanisms.page_layout import PageLayout
from regard.mechanisms.ragged_pages import PagedSequence, RaggedStep
from regard.models.llama_config import RotaryConfig
from regard.search import Greedy, Sampling
from regard.search.base import banned_token_ids
from regard.search.blockwise_topk import log_probabilities
from slow_parameters import slow_except
from small_language_models import language_model

SEARCHES = [Greedy(), Greedy(repetition_penalty=1.7), Sampling(seed=3, best=3), Sampling(seed=5, top_p=0.8)]
GEMMA2 = {"model_type": "gemma2", "softcap": 2.0, "logit_softcap": 5.0, "windows": (5, None), "tied": True,
          "activation": "geglu_tanh", "sandwich_norms": True, "norm_offset": 1.0, "scale_embedding": True}  # fmt: skip
GPT_OSS = {"model_type": "gpt_oss", "sinks": True, "windows": (3, None), "experts": 3, "chosen_experts": 2,
           "attention_bias": True, "output_bias": True, "heads": 10, "key_value_heads": 5, "head_dim": 4}  # fmt: skip
MODELS = {
    kind: language_model(kind, max_length=47, end_ids=(0, 5), **options).double()
    for kind, options in {"gpt2": {}, "llama": {}, "gemma2": GEMMA2, "gpt_oss": GPT_OSS}.items()
}
EVERY_WAY = [(kind, search) for search in SEARCHES for kind in MODELS]
EACH_ONCE = list(zip(MODELS, SEARCHES, strict=True))
HEADS = ([7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19], [7, 8, 9, 10, 11, 21, 22, 23])
prompts = st.lists(
    st.builds(
        lambda head, size, tail: HEADS[head][:size] + tail,
        st.integers(0, 1),
        st.integers(0, 13),
        st.lists(st.integers(6, 40), min_size=1, max_size=9),
    ),
    min_size=1,
    max_size=7,
)


@torch.no_grad()
def write_by_hand(model, search, ids, limit):
    """Continue a prompt without any cache; the hypotheses, the most probable first."""
    numbers, found = search.draw_numbers(ids, limit), []
    for row in range(search.rows):
        written, total, ended = [], 0.0, False
        while not ended and len(written) < limit:
            logits = model(torch.tensor([ids + written])).logits[:, -1]
            known = log_probabilities(logits.clone(), banned_token_ids(model))
            for token in set(ids + written):
                logits[0, token] *= search.repetition_penalty ** (-1 if logits[0, token] > 0 else 1)
            ranked = log_probabilities(logits, banned_token_ids(model))
            token = int(search.choose(ranked, numbers[row : row + 1, len(written)]))
            total, ended = total + float(known[0, token]), token in model.end_ids
            written += [] if ended else [token]
        found.append((tuple(written), ended, total))
    return sorted(found, key=lambda one: -one[2])


def run(batching, requests):
    for request in requests:
        batching.add(request)
    with torch.no_grad():
        while not batching.is_done:
            batching.step()
            batching.remove_ended()


def make_batching(model, search, *, page_size=5, limit=None, tokens=200, max_pages=30):
    pool = model.page_pool(page_size=page_size, limit=limit)
    return ContinuousBatching(model, search, pool, PrefixCache(page_size, max_pages), tokens=tokens)


def check_no_page_is_lost(batching):
    kept = batching.prefixes.num_pages
    assert kept == batching.prefixes.num_idle <= batching.prefixes.max_pages
    assert batching.pool.pages - batching.pool.free == kept * batching.model.page_layout.num_groups


def written(found):
    """The texts and their ends: with prompts that are reused, log-probabilities are equal up to rounding."""
    return [[(one.text, one.tokens, one.ended_by) for one in texts] for texts in found]


@pytest.mark.parametrize(("kind", "search"), slow_except(EACH_ONCE, EVERY_WAY, rows=True), ids=repr)
@examples(8, without_slow=2)
@given(
    ids=prompts,
    new=st.integers(1, 11),
    page_size=st.sampled_from([1, 2, 3, 5, 16, 64]),
    spare=st.sampled_from([0, 1, 7, None]),
    tokens=st.sampled_from([1, 60, 2000]),
    max_pages=st.sampled_from([0, 2, 40]),
)
def test_texts_are_those_by_hand(kind, search, ids, new, page_size, spare, tokens, max_pages):
    """With pages of any size, and pools in which some requests must wait; twice, so that prompts are found again."""
    model = MODELS[kind]
    batching = make_batching(model, search, page_size=page_size, tokens=tokens, max_pages=max_pages)
    needed = max(batching.count_pages(GenerationRequest(one, new)) for one in ids)
    batching.pool.limit = None if spare is None else needed + spare
    expected = [write_by_hand(model, search, one, new) for one in ids]
    for _ in range(2):
        requests = [GenerationRequest(one, new) for one in ids]
        run(batching, requests)
        check_no_page_is_lost(batching)
        for request, texts in zip(requests, expected, strict=True):
            found = request.hypotheses()
            assert [(one.ids, one.finished) for one in found] == [text[:2] for text in texts]
            assert [one.score for one in found] == pytest.approx([text[2] for text in texts], abs=1e-10)


def test_parts_of_prompts_are_read_in_several_steps(monkeypatch):
    model, ids = MODELS["llama"], [[*range(7, 38)], [*range(7, 38)], [*range(7, 30), 6], [9]]
    monkeypatch.setattr("regard.generation.continuous_batching._PROMPT_TOKENS", 7)
    requests = [GenerationRequest(one, 9) for one in ids]
    run(make_batching(model, Greedy(), page_size=3), requests)
    for request in requests:
        ((written, _, _),) = write_by_hand(model, Greedy(), request.ids, 9)
        assert request.hypotheses()[0].ids == written


def test_memory_that_was_never_written_has_no_influence(monkeypatch):
    allocate = PagePool._allocate
    monkeypatch.setattr(PagePool, "_allocate", lambda *call: allocate(*call).fill_(torch.nan))
    requests = [GenerationRequest(one, 7) for one in ([7, 8, 9], [7, 8, 9, 10, 11, 12], [20])]
    run(make_batching(MODELS["gpt2"], Sampling(seed=1, best=2), page_size=4), requests)
    for request in requests:
        texts = write_by_hand(MODELS["gpt2"], Sampling(seed=1, best=2), request.ids, 7)
        assert [one.ids for one in request.hypotheses()] == [text[0] for text in texts]


def test_prompts_that_begin_alike_are_computed_once():
    model, head = language_model(max_length=97), "the cat sees the dog and a horse eats here. "
    generator = Generator(model)
    length = len(generator.prompt_ids(head, "head"))
    assert length >= 16
    texts = generator.generate([head + "a", head + "the car", "no"], max_tokens=5)
    first = generator.num_reused_tokens
    assert first == 16 * (length // 16)
    assert generator.num_prompt_tokens > 2 * length
    assert written(generator.generate([head + "a"], max_tokens=5)) == written(texts[:1])
    assert generator.num_reused_tokens >= first + 16 * (length // 16)
    forgetful = Generator(model, prefix_cache_bytes=0)
    for _ in range(2):
        assert written(forgetful.generate([head + "a"], max_tokens=5)) == written(texts[:1])
    assert forgetful.num_reused_tokens == 0
    with pytest.raises(OptionError, match="wrong prefix_cache_bytes"):
        Generator(model, prefix_cache_bytes=-1)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
def test_a_prompt_may_begin_with_a_text_that_was_written(kind):
    """As in a chat, both samples of a prompt; behind the windows of mistral nothing is kept of them."""
    windowed = language_model("llama", windows=(5, 5), model_type="mistral").double()
    model, search = MODELS.get(kind, windowed), Sampling(seed=3, best=2)
    batching = make_batching(model, search, page_size=3, max_pages=40)
    first = GenerationRequest([7, 8, 9, 10], 17)
    run(batching, [first])
    check_no_page_is_lost(batching)
    for text in first.hypotheses():
        known = [*first.ids, *text.ids]
        following = GenerationRequest([*known, 5, 6], 4)
        run(batching, [following])
        check_no_page_is_lost(batching)
        if kind != "mistral":
            assert following.num_reused >= (len(known) - 1) // 3 * 3
        expected = write_by_hand(model, search, following.ids, 4)
        assert [one.ids for one in following.hypotheses()] == [written[0] for written in expected]


def test_pages_of_other_weights_are_not_used():
    model = language_model(max_length=97)
    generator, prompt = Generator(model), "the cat sees the dog and a horse eats here"
    generator.generate([prompt], max_tokens=5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    model(torch.tensor([[5, 6, 7]])).logits.square().sum().backward()
    optimizer.step()
    found = generator.generate([prompt], max_tokens=9)
    assert generator.num_reused_tokens == 0
    assert found == Generator(copy.deepcopy(model)).generate([prompt], max_tokens=9)


def test_a_stream_that_is_left_early_leaves_nothing_half_written():
    generator, prompt = Generator(language_model(max_length=97)), "the cat sees the dog and a horse eats here"
    parts = generator.stream(prompt, max_tokens=20)
    next(parts)
    inner = generator.generate([prompt], max_tokens=5)
    parts.close()
    assert written(generator.generate([prompt], max_tokens=5)) == written(inner)
    *parts, last = generator.stream(prompt, max_tokens=5)
    assert written([[last]]) == written(inner)
    assert "".join(parts) == last.text


def test_a_request_that_the_cache_cannot_hold_is_refused_with_numbers():
    model = language_model()
    page = paged_memory.PagedMemory(model, limit_bytes=None, prefix_bytes=0).page_bytes
    generator = Generator(model, cache_bytes=2 * page)
    with pytest.raises(DataError, match=r"prompt 2 needs more memory") as caught:
        generator.generate(["a", "b" * 25], max_tokens=17)
    assert f"{2 * page:,} bytes, the bound of the cache: 32 tokens" in str(caught.value)
    assert f"{3 * page:,} bytes, for 1 text of 26 tokens and 17 new ones" in str(caught.value)
    with pytest.raises(DataError, match="line 7 needs more"):
        generator.check_prompt("a", "line 7", search=Sampling(seed=1, best=3), max_tokens=3)
    assert len(generator.generate(["a"] * 5, max_tokens=17)) == 5
    assert generator._memory.pool.pages <= 2
    with pytest.raises(OptionError, match="no room for a page"):
        Generator(model, cache_bytes=page - 1).generate(["a"])


def test_models_that_do_not_read_pages_decode_in_batches():
    """A rotation that depends on the length of the text: keys that texts share would differ between them."""
    scaled = language_model("llama", rotary=RotaryConfig(scaling=positions.DynamicScaling(2.0, 43)))
    with pytest.raises(RefusedError, match=r"(?s)cannot decode in pages: .*depends on the length of the text"):
        scaled.page_pool(page_size=3)
    with pytest.raises(OptionError, match="depends on the length of the text"):
        Generator(scaled, cache_bytes=2**20)
    assert Generator(scaled).generate(["a", "the cat"], max_tokens=9)


def test_the_length_of_other_prompts_does_not_decide_the_rotation():
    """LongRoPE has other factors for texts of more than 11 tokens, which the longest of these prompts has."""
    half = 2 * (1.0,)
    factors = positions.LongRopeScaling(half, (3.0, 7.0), 2.0, 11)
    model = language_model("llama", heads=2, head_dim=4, rotary=RotaryConfig(scaling=factors))
    prompts = ["a", "the cat", "the cat sat on the mat", "b", "the dog"]
    together = Generator(model).generate(prompts, max_tokens=9)
    alone = [Generator(model).generate([one], max_tokens=9)[0] for one in prompts]
    assert [[one.text for one in each] for each in together] == [[one.text for one in each] for each in alone]


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gpt_oss"])
def test_pages_give_the_texts_of_the_ordinary_cache(kind):
    """Each prompt alone, by ``model.step``; in pages all together, with texts that are longer than the windows."""
    model = MODELS[kind] if kind in MODELS else language_model("llama", windows=(5, 5), model_type=kind).double()
    model.tokenizer = language_model().tokenizer
    prompts = ["the cat sees", "", "a horse eats here"]
    generator = Generator(model)
    for prompt, (one,) in zip(prompts, generator.generate(prompts, max_tokens=14), strict=True):
        ids = torch.tensor([generator.prompt_ids(prompt, "")])
        ((found,),) = Greedy().search(model, ids, torch.tensor([ids.shape[1]]), max_tokens=14)
        assert one.text == model.tokenizer.decode(list(found.ids))
        assert one.log_probability == pytest.approx(found.log_probability, abs=1e-9)
    assert generator._memory is not None


@pytest.mark.parametrize(("kind", "full"), [("mistral", 0), ("gemma2", 1), ("gpt_oss", 1)])
def test_pages_behind_the_windows_are_freed(kind, full, monkeypatch):
    """A text of 43 tokens in pages of 2: layers with a window hold the pages of the window, in prompts too."""
    model = MODELS[kind] if kind in MODELS else language_model("llama", windows=(5, 5), model_type=kind).double()
    monkeypatch.setattr("regard.generation.continuous_batching._PROMPT_TOKENS", 4)
    batching = make_batching(model, Greedy(), page_size=2, max_pages=0)
    request = GenerationRequest([*range(7, 33)], 17)
    batching.add(request)
    window, used = model.layer_masks[0].left + 1, []
    with torch.no_grad():
        while not batching.is_done:
            batching.step()
            used.append(batching.pool.pages - batching.pool.free)
            length = request.sequence.length
            spanned = -(-length // 2) - max(length - window + 1, 0) // 2
            assert used[-1] == full * -(-length // 2) + spanned
            batching.remove_ended()
    assert len(used) > 10
    ((written, _, _),) = write_by_hand(model, Greedy(), request.ids, 17)
    assert request.hypotheses()[0].ids == written
    assert batching.count_pages(request) >= max(used) + 1
    assert batching.count_pages(request) < 22 * (full + 1)  # that of a model without windows
    assert batching.pool.free == batching.pool.pages


def test_a_layout_divides_layers_into_groups_of_equal_numbers():
    alternating = PageLayout.of([8, None, 8, None])
    assert (alternating.windows, alternating.layers_per_page) == ((8, None), 2)
    assert (alternating.group, alternating.slot) == ((0, 1, 0, 1), (0, 0, 1, 1))
    gemma3 = PageLayout.of([8, 8, 8, 8, 8, None, 8, 8, 8, 8, 8, None])
    assert (gemma3.num_groups, gemma3.layers_per_page, gemma3.windows.count(8)) == (6, 2, 5)
    assert len(set(zip(gemma3.group, gemma3.slot, strict=True))) == 12
    assert not PageLayout.of([None] * 5).has_windows
    assert PageLayout.of([None] * 5).slot == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"key_value_heads": 2},
        {"position": positions.Rotary(4), "head_dim": 4},
        {"position": positions.Rotary(4, scaling=positions.LinearScaling(2.0)), "head_dim": 4},
        {"position": positions.ALiBi(4)},
        {"mechanism": "additive"},
        {"mechanism": "dot_product", "mechanism_options": {"softcap": 2.0, "sinks": True}},
    ],
    ids=["plain", "grouped", "rotary", "scaled rotary", "alibi", "additive", "softcap and sinks"],
)
@pytest.mark.parametrize("mask", [masks.causal(), masks.window(3, 0)], ids=repr)
@examples(8, without_slow=4)
@given(
    counts=st.lists(st.lists(st.sampled_from([0, 1, 1, 1, 2, 5]), min_size=3, max_size=3), min_size=1, max_size=5),
    page_size=st.sampled_from([1, 2, 3, 7]),
)
@torch.no_grad()
def test_layers_decode_several_sequences_behind_one_another(options, mask, counts, page_size):
    torch.manual_seed(3)
    layer = MultiHeadAttention(20, 4, **options).double().eval()
    pool = PagePool(layer.key_value_heads, layer.head_dim, page_size=page_size, dtype=torch.float64)
    layout = PageLayout.of([None])
    sequences, outputs = [PagedSequence(pool, layout) for _ in range(3)], [[], [], []]
    totals = [sum(step[number] for step in counts) for number in range(3)]
    texts, read = [torch.randn(1, total, 20, dtype=torch.float64) for total in totals], [0, 0, 0]
    for step in counts:
        new = [text[:, start : start + count] for text, start, count in zip(texts, read, step, strict=True)]
        read = [start + count for start, count in zip(read, step, strict=True)]
        chosen = [number for number in range(3) if step[number]]
        if not chosen:
            continue
        for number in chosen:
            sequences[number].extend(step[number])
        ragged = RaggedStep(pool, layout, [sequences[number] for number in chosen], [step[n] for n in chosen])
        output, _ = layer(torch.cat([new[n] for n in chosen], dim=1), mask=mask, cache=ragged.layer(0))
        for number, part in zip(chosen, output.split([step[n] for n in chosen], dim=1), strict=True):
            outputs[number].append(part)
    for text, parts in zip(texts, outputs, strict=True):
        if parts:
            assert_close(torch.cat(parts, dim=1), layer(text, mask=mask), rtol=0, atol=1e-12)


def test_a_step_has_its_own_order():
    pool, layout = PagePool(1, 4, page_size=2), PageLayout.of([None])
    sequence = PagedSequence(pool, layout)
    sequence.extend(1)
    with pytest.raises(RefusedError, match="cannot be reordered"):
        RaggedStep(pool, layout, [sequence], [1]).layer(0).reordered(torch.tensor([0]))


@examples(60)
@given(
    texts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=12),
    max_pages=st.integers(0, 6),
    ends=st.lists(st.integers(0, 11), max_size=12),
)
def test_the_tree_of_prompts_finds_what_was_added_and_keeps_its_bound(texts, max_pages, ends):
    """Against a plain dict of all beginnings; requests end in any order."""
    pool, cache = PagePool(1, 1, page_size=2), PrefixCache(2, max_pages)
    running, owned = {}, {}
    for number, text in enumerate(texts):
        path = cache.find(text)
        assert [list(node.tokens) for node in path] == [text[at : at + 2] for at in range(0, 2 * len(path), 2)]
        following = tuple(text[: 2 * len(path) + 2])
        assert len(following) < 2 * len(path) + 2 or following not in {key for keys in owned.values() for key in keys}
        cache.use(path)
        found = len(path)
        for at in range(2 * found, len(text) - 1, 2):
            assert cache.add(path, text[at : at + 2], tuple(pool.take(1)))
        running[number], owned[number] = (path, found), {tuple(text[:at]) for at in range(2, len(text) + 1, 2)}
        for end in [one for one in sorted({*ends}) if one in running and one % 3 == number % 3]:
            path, found = running.pop(end)
            cache.release(path, len(path) - found)
            owned.pop(end)
    for path, found in running.values():
        cache.release(path, len(path) - found)
    del path
    assert cache.num_pages == cache.num_idle <= max_pages
    assert pool.pages - pool.free == cache.num_pages
    cache.drop(100)
    assert pool.free == pool.pages
