"""Steps of several texts in pages, in one native call for all layers: what modules compute, and when it is used."""

import pytest
import torch
from torch import nn

from regard.kernels.extension import native
from regard.kernels.support import is_portable
from regard.layers import stack_step
from regard.mechanisms.ragged_pages import PagedSequence, RaggedStep
from regard.models.weight_formats import convert_weights
from small_decoders import LAYERS, MODELS, draw_ids, make_gpt2, make_llama

pytestmark = pytest.mark.skipif(native is None or is_portable(), reason="modules are used without vector instructions")

PROMPTS = (1, 5, 17, 8, 23)
PAGE_SIZE = 4
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 4e-2}
"""Modules are called one after the other, and torch computes their projections where it is faster, in another order."""


@pytest.fixture
def calls(monkeypatch):
    """The number of layers of each call."""
    found = []
    compute = stack_step.compute_stack_in_pages

    def count(stack, tokens, steps, logits):
        found.append(len(steps))
        return compute(stack, tokens, steps, logits)

    monkeypatch.setattr(stack_step, "compute_stack_in_pages", count)
    return found


@torch.no_grad()
def run(model, *, steps=6, prompts=PROMPTS, change=None, several=None):
    """Read prompts, then ``steps`` tokens of each; return the logits of each step, and the pool.

    In step ``several`` the texts get as many tokens as they have places, counted from 0, but at least one.
    """
    pool = model.page_pool(page_size=PAGE_SIZE)
    pool.take(128)  # they are free again at once, and in memory
    for side in (pool.key, pool.value):
        side.fill_(torch.nan)
    texts = [draw_ids(1, length + steps + len(prompts), seed=length)[0] for length in prompts]
    sequences = [PagedSequence(pool, model.page_layout) for _ in texts]

    def read(counts):
        starts = [one.length for one in sequences]
        for sequence, count in zip(sequences, counts, strict=True):
            sequence.extend(count)
        ids = [text[start : start + count] for text, start, count in zip(texts, starts, counts, strict=True)]
        logits = model.read_pages(torch.cat(ids), RaggedStep(pool, model.page_layout, sequences, counts))
        for sequence in sequences:
            sequence.free_hidden()
        return logits

    outputs = [read(prompts)]
    for step in range(steps):
        if change is not None and step == 2:
            change(model)
        outputs.append(read([max(place, 1) if step == several else 1 for place in range(len(texts))]))
    return outputs, pool


def run_blocks(monkeypatch, model, **options):
    with monkeypatch.context() as patched:
        patched.setattr("regard.models.causal_stack.paged_stack_step", lambda *given: None)
        return run(model, **options)


def assert_same(found, expected, *, rounding=0.0):
    """The same logits, keys and values, but for ``rounding`` of the largest; and nothing else is written."""
    outputs = zip(found[0], expected[0], strict=True)
    sides = [tuple(getattr(pool, side)[1:] for _, pool in (found, expected)) for side in ("key", "value")]
    for mine, theirs in (*outputs, *sides):
        assert torch.equal(mine.isnan(), theirs.isnan())
        one, other = mine.double().nan_to_num(), theirs.double().nan_to_num()
        assert (one - other).abs().max() <= rounding * other.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
class TestSameResults:
    @pytest.mark.parametrize("name", MODELS)
    def test_as_blocks(self, monkeypatch, calls, name, dtype):
        model = MODELS[name]().to(dtype)
        expected = run_blocks(monkeypatch, model)
        assert not calls
        assert_same(run(model), expected, rounding=ROUNDING[dtype])
        assert calls == [LAYERS] * 6

    @pytest.mark.parametrize("name", ["gpt2", "llama"])
    def test_with_int8_weights(self, monkeypatch, calls, name, dtype):
        model = MODELS[name]().to(dtype)
        convert_weights(model, "int8")
        expected = run_blocks(monkeypatch, model)
        assert_same(run(model), expected, rounding=ROUNDING[dtype])
        assert calls == [LAYERS] * 6

    @pytest.mark.parametrize("name", ["llama", "two rotations"])
    def test_with_any_number_of_threads(self, calls, name, dtype):
        model, before, found = MODELS[name]().to(dtype), torch.get_num_threads(), []
        try:
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                found.append(run(model, prompts=(1, 1, 1)))  # other kernels than ours read longer prompts
        finally:
            torch.set_num_threads(before)
        for one in found[1:]:
            assert_same(one, found[0])

    def test_whatever_is_in_memory(self, calls, dtype):
        model = make_llama().to(dtype)
        expected = run(model)
        native.poison(True)
        try:
            assert_same(run(model), expected)
        finally:
            native.poison(False)

    def test_as_texts_alone(self, calls, dtype):
        """Each text is what a state of its own computes."""
        model = make_llama().to(dtype)
        logits, _ = run(model)
        for place, length in enumerate(PROMPTS):
            ids = draw_ids(1, length + 6 + len(PROMPTS), seed=length)
            with torch.no_grad():
                _, state = model.prefill(ids[:, : length + 1])
                for step in range(6):
                    output, state = model.step(ids[:, length + step], state)
                    found, expected = logits[step + 1][place].double(), output[0].double()
                    limit = {torch.float32: 1e-4, torch.bfloat16: 6e-2}[dtype]
                    assert (found - expected).abs().max() <= limit * expected.abs().max()


def replace_weight(model):
    layer = model.layers[1].feed_forward.down
    layer.weight = nn.Parameter(layer.weight.detach() * 2)


def write_weight(model):
    with torch.no_grad():
        model.layers[0].attention.value_projection.weight.mul_(2)


def set_softcap(model):
    model.layers[1].attention.mechanism.softcap = 0.5


@pytest.mark.parametrize("change", [replace_weight, write_weight, set_softcap])
def test_changes_between_steps_have_their_effect(monkeypatch, calls, change):
    found = run(make_gpt2(), change=change)
    assert calls == [LAYERS] * 6
    assert_same(found, run_blocks(monkeypatch, make_gpt2(), change=change), rounding=ROUNDING[torch.float32])


def add_hook(model):
    model.layers[1].register_forward_hook(lambda *given: None)


def train(model):
    model.train()
    model.layers[0].attention_residual.dropout.p = 0.1
    model.eval()
    model.layers[0].attention_residual.train()


@pytest.mark.parametrize("change", [add_hook, train])
def test_blocks_are_called_from_a_change_on(calls, change):
    run(make_gpt2(), change=change)
    assert calls == [LAYERS] * 2


@pytest.mark.parametrize("name", MODELS)
def test_several_tokens_of_a_text(monkeypatch, calls, name):
    """As in a step that verifies tokens: 1, 1, 2, 3 and 4 tokens of the texts."""
    found = run(MODELS[name](), several=3)
    assert calls == [LAYERS] * 6
    assert_same(found, run_blocks(monkeypatch, MODELS[name](), several=3), rounding=ROUNDING[torch.float32])


def test_blocks_read_many_texts(calls):
    run(make_gpt2(), prompts=tuple(range(1, 20)), steps=2)
    assert not calls


def test_gradients_need_blocks(calls):
    model = make_gpt2()
    pool = model.page_pool(page_size=PAGE_SIZE)
    sequence = PagedSequence(pool, model.page_layout)
    sequence.extend(1)
    step = RaggedStep(pool, model.page_layout, [sequence], [1])
    parts = model.layers, model.norm, model.output
    assert stack_step.paged_stack_step(*parts, torch.ones(1, 36), step, model.layer_masks) is None


def test_the_kernel_checks_pages():
    """Errors of regard itself: the tables, lengths and sizes that lead to memory."""
    model = make_gpt2()
    pool = model.page_pool(page_size=PAGE_SIZE)
    sequences = [PagedSequence(pool, model.page_layout) for _ in range(2)]
    for sequence in sequences:
        sequence.extend(5)
    tokens, outputs = torch.ones(2, 1, 36), torch.empty(LAYERS, 2, 1, 36)
    with torch.no_grad():
        read = stack_step.read_layers(model.layers, model.norm, model.output, tokens)
    step = RaggedStep(pool, model.page_layout, sequences, [1, 1])
    good = [(*step.pages_of(number), None, 0, None) for number in range(LAYERS)]

    def check(message, layer=good[1], given=tokens, into=outputs):
        with pytest.raises(ValueError, match=message):
            read.stack.step_in_pages(given, into, None, [good[0], layer, good[2]])

    key, value, table, lengths, counts = good[1][:5]
    check("names a page that is not there", (key, value, table + 1000, lengths, counts, None, 0, None))
    check("no more keys than the pages hold", (key, value, table, lengths + 1000, counts, None, 0, None))
    check("room for the new tokens", (key, value, table, lengths * 0, counts, None, 0, None))
    check("value_pages: expected as many", (key, value[:1], table, lengths, counts, None, 0, None))
    check("key_pages", (key[..., :-1], value, table, lengths, counts, None, 0, None))
    check("contiguous heads", (key.mT.contiguous().mT, value, table, lengths, counts, None, 0, None))
    check("page_table", (key, value, table[:1], lengths, counts, None, 0, None))
    check("lengths", (key, value, table, lengths[:1], counts, None, 0, None))
    check("as many queries as there are", (key, value, table, lengths, counts * 2, None, 0, None))
    check("page_table", (key, value, table, lengths, None, None, 0, None))
    check("cosine", (key, value, table, lengths, counts, None, 0, (torch.ones(1, 4), torch.ones(1, 4), False)))
    check("expected \\(tokens, 1, width\\)", given=torch.ones(1, 2, 36), into=torch.empty(LAYERS, 1, 2, 36))
    read.stack.step_in_pages(tokens, outputs, None, good)
