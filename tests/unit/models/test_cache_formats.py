"""Keys and values of decoders in int8: what is stored is what is attended, in every way of decoding; and refusals."""

import pytest
import torch

import regard
from regard import masks
from regard.errors import OptionError, RefusedError
from regard.generation import Generator, score_texts
from regard.layers import KeyValueCache, PagedCache, PagePool, WindowCache
from regard.models.cache_formats import set_cache_format
from regard.search import Beam, Greedy
from small_decoders import MODELS, draw_ids, make_gpt2, make_llama
from small_language_models import language_model
from small_translators import transformer


def rounded(model):
    set_cache_format(model, "int8")
    return model


@torch.no_grad()
def read_in_steps(model, ids, prompt, lengths=None):
    """The logits of the tokens after a prompt, read one by one."""
    _, state = model.prefill(ids[:, : prompt + 1], lengths=lengths)  # it does not read the last one
    logits = []
    for place in range(prompt, ids.shape[1]):
        output, state = model.extend(ids[:, place : place + 1], state)
        logits.append(output.logits)
    return torch.cat(logits, dim=1), state


@pytest.mark.parametrize("name", MODELS)
def test_steps_and_a_whole_text_attend_to_the_same_rounded_keys(name):
    """Whatever is stored is what is attended: in one call with a cache, and in steps of the native kernels."""
    model, ids = MODELS[name](), draw_ids(2, 24)
    exact, _ = read_in_steps(model, ids, 12)
    found, state = read_in_steps(rounded(model), ids, 12)
    with torch.no_grad():
        output, whole = model.extend(ids[:, :-1], model.empty_state(2))
        output, _ = model.extend(ids[:, -1:], whole)
    change = (found - exact).abs().max()
    assert change > 0
    assert (found[:, -1] - output.logits[:, -1]).abs().max() <= 0.2 * change
    for cache in state.caches:
        assert cache.own.cache_format == "int8"
        assert cache.own.stored[0].dtype is torch.int8


def test_blocks_compute_the_steps_of_the_whole_stack(monkeypatch):
    model, ids = rounded(MODELS["windows and softcaps"]()), draw_ids(2, 30)
    expected, _ = read_in_steps(model, ids, 13, lengths=torch.tensor([14, 9]))
    for path in ("regard.models.causal_stack.stack_step", "regard.layers.decoder.attention_step"):
        monkeypatch.setattr(path, lambda *given: None)
        found, _ = read_in_steps(model, ids, 13, lengths=torch.tensor([14, 9]))
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))


def test_several_tokens_of_a_step_are_read_together():
    """Up to a number that is rounded the other way, since layers compute it in another order."""
    model, ids = make_llama(), draw_ids(2, 40)
    exact, _ = read_in_steps(model, ids, 8)
    expected, _ = read_in_steps(rounded(model), ids, 8)
    with torch.no_grad():
        _, state = model.prefill(ids[:, :9])
        output, _ = model.extend(ids[:, 8:], state)
    assert (output.logits - expected).abs().max() <= 0.02 * (exact - expected).abs().max()


def test_the_memory_of_a_token_is_a_byte_for_a_number_and_four_for_a_row():
    model = make_llama()
    before = model.state_bytes()
    after = rounded(model).state_bytes()
    assert before.per_token == 3 * 2 * 3 * 10 * 4
    assert after.per_token == 3 * 2 * 3 * (10 + 4)
    assert model.page_pool(page_size=16).bytes_per_token == after.per_token


def test_texts_in_pages_are_those_of_one_text_at_a_time():
    """A pool of the earlier format is not used again."""
    model = language_model(max_length=97)
    generator = Generator(model, cache_bytes=2**20)
    prompts = ["No. 1", "the cat sees the dog, and a train waits"]
    options = {"max_tokens": 20, "search": Greedy()}
    list(generator.generate_each(prompts, **options))
    size = generator._memory.pool.bytes_per_token
    rounded(model)
    texts = [found.text for (found,) in generator.generate_each(prompts, **options)]
    assert generator._memory.pool.bytes_per_token < size
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([generator.prompt_ids(prompt, "prompt")])
        ((found, *_),) = Greedy().search(model, ids, torch.tensor([ids.shape[1]]), max_tokens=20)
        assert generator.tokenizer.decode(found.ids) == text


@torch.no_grad()
def test_beams_reorder_and_share_rounded_keys():
    model = transformer().model
    source, lengths = torch.randint(4, 90, (2, 7), generator=torch.Generator().manual_seed(1)), torch.tensor([7, 5])
    exact = Beam(3).search(model, source, lengths, max_tokens=12)
    for row, (best, *_) in enumerate(Beam(3).search(rounded(model), source, lengths, max_tokens=12)):
        token, state = model.prefill(source[row : row + 1, : lengths[row]])
        total = 0.0
        for following in [*best.ids, *([model.end_ids[0]] if best.finished else [])]:
            logits, state = model.step(token, state)
            total += float(logits.log_softmax(-1)[0, following])
            token = torch.tensor([following])
        assert abs(total - best.log_probability) < 1e-4
        assert best.log_probability != exact[row][0].log_probability


@pytest.mark.parametrize("queries", [1, 5, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@torch.no_grad()
def test_layers_attend_to_what_caches_hold(queries, dtype):
    layer = regard.MultiHeadAttention(32, 4, key_value_heads=2).eval().to(dtype)
    tokens = torch.randn(2, 80 + queries, 32, generator=torch.Generator().manual_seed(2)).to(dtype)
    cache = KeyValueCache.empty("int8")
    pages = PagedCache.empty(PagePool(2, 8, dtype=dtype, cache_format="int8"), batch=2)
    window = WindowCache.empty(30, "int8")
    sides = (layer.key_projection, layer.value_projection)

    def read(state):
        if isinstance(state, PagedCache):
            return [torch.cat(rows) for rows in zip(*map(state.tokens, range(state.batch)), strict=True)]
        return state.key, state.value

    key = layer.key_projection(tokens).unflatten(-1, (2, 8)).transpose(1, 2).double()
    query = layer.query_projection(tokens[:, 80:]).unflatten(-1, (4, 8)).transpose(1, 2).double()
    tolerance = 16 * torch.finfo(torch.bfloat16 if dtype is torch.bfloat16 else torch.float32).eps
    for state, mask in ((cache, masks.causal()), (pages, masks.causal()), (window, masks.window(29, 0))):
        _, state = layer(tokens[:, :80], mask=mask, cache=state)
        full = state.extended(*(side(tokens[:, 80:]).unflatten(-1, (2, 8)).transpose(1, 2) for side in sides))
        output, state = layer(tokens[:, 80:], mask=mask, cache=state)
        held, value = (side.double() for side in read(full))
        exact = key[:, :, -held.shape[2] :]
        assert ((held - exact).abs() <= (1 / 254 + tolerance) * exact.abs().amax(-1, keepdim=True)).all()
        mixed = regard.attention(query, held, value, mask=mask, impl="reference").transpose(1, 2).flatten(2)
        expected = mixed @ layer.output_projection.weight.double().T + layer.output_projection.bias.double()
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=tolerance)
        assert torch.equal(read(state)[0], read(full)[0][:, :, -read(state)[0].shape[2] :])


@torch.no_grad()
def test_caches_are_reordered_and_branch_without_a_change():
    key = torch.randn(3, 2, 9, 8, generator=torch.Generator().manual_seed(3))
    first = KeyValueCache.empty("int8").extended(key, key)
    one, other = (first.extended(part, part) for part in (key[:, :, :1], key[:, :, 1:2]))
    assert torch.equal(one.key[:, :, :9], other.key[:, :, :9])
    assert not torch.equal(one.key[:, :, 9], other.key[:, :, 9])
    assert torch.equal(one.reordered(torch.tensor([2, 0])).key, one.key[[2, 0]])
    with pytest.raises(regard.errors.ShapeError, match="do not fit the cache"):
        first.extended(key.double(), key.double())


def test_perplexity_is_that_of_reading_through_the_cache():
    model = language_model()
    texts = ["a b a b b a", "b b a"]
    exact = score_texts(model, texts).loss
    measured = score_texts(rounded(model), texts).loss
    assert measured != exact
    assert abs(measured - exact) < 0.02


def test_what_has_no_rounded_keys_is_refused():
    with pytest.raises(RefusedError, match="no decoder layers"):
        regard.load("minilm", cache_format="int8")
    with pytest.raises(OptionError, match="cache format"):
        regard.load("minilm", cache_format="int3")
    model = make_gpt2()
    model.layers[1].attention.mechanism = regard.mechanism("linear", heads=6, head_dim=6)
    with pytest.raises(RefusedError, match="does not read rounded keys"):
        set_cache_format(model, "int8")
    key = torch.randn(1, 2, 3, 8, requires_grad=True)
    with pytest.raises(RefusedError, match="have no gradients"):
        KeyValueCache.empty("int8").extended(key, key)
