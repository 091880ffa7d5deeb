"""Decoding steps in one native call for all layers: the bits of one call for each sublayer, and when it is used.

The calls for sublayers are compared with modules in ``test_sublayer_step``, and models with ``transformers`` elsewhere.
"""

import copy
import gc
import pickle
import time
import weakref

import pytest
import torch
from torch import nn

import regard
from regard.kernels.extension import native
from regard.kernels.support import is_portable
from regard.layers import decoder, stack_step
from regard.layers.quantized_linear import Int8Linear
from regard.mechanisms import DotProduct
from small_decoders import LAYERS, MODELS, VOCABULARY, draw_ids, make_gpt2, make_llama

pytestmark = pytest.mark.skipif(native is None or is_portable(), reason="modules are used without vector instructions")

ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.fixture
def calls(monkeypatch):
    """The number of layers of each call."""
    found = []
    compute = stack_step.compute_stack

    def count(stack, tokens, steps, logits):
        found.append(len(steps))
        return compute(stack, tokens, steps, logits)

    monkeypatch.setattr(stack_step, "compute_stack", count)
    return found


@torch.no_grad()
def run(model, *, rows=3, prompt=11, steps=4, new=1, lengths=None, change=None):
    """Read a prompt, then ``steps`` times ``new`` tokens; return what each step returns, and the last state."""
    ids = draw_ids(rows, prompt + steps * new)
    _, state = model.prefill(ids[:, :prompt], lengths=None if lengths is None else torch.tensor(lengths))
    outputs = []
    for step in range(steps):
        if change is not None and step == 2:
            change(model)
        first = prompt + step * new
        output, state = model.extend(ids[:, first : first + new], state, keep_layers=True)
        outputs.append((torch.stack(output.layers[:-1]), output.hidden, output.logits))
    return outputs, state


def run_blocks(monkeypatch, model, **options):
    with monkeypatch.context() as patched:
        patched.setattr("regard.models.causal_stack.stack_step", lambda *given: None)
        return run(model, **options)


def assert_same(found, expected, *, rounding=0.0):
    """The same bits, but for ``rounding`` of the last norm, which torch computes for blocks."""
    for mine, theirs in zip(found[0], expected[0], strict=True):
        assert torch.equal(mine[0], theirs[0])
        for one, other in zip(mine[1:], theirs[1:], strict=True):
            assert (one.double() - other.double()).abs().max() <= rounding * other.double().abs().max()
    for mine, theirs in zip(found[1].caches, expected[1].caches, strict=True):
        assert mine.length == theirs.length
        assert torch.equal(mine.own.key, theirs.own.key)
        assert torch.equal(mine.own.value, theirs.own.value)


@pytest.mark.parametrize("dtype", ROUNDING)
class TestSameBits:
    @pytest.mark.parametrize("name", MODELS)
    def test_of_models(self, monkeypatch, calls, name, dtype):
        model = MODELS[name]().to(dtype)
        expected = run_blocks(monkeypatch, model)
        assert not calls
        assert_same(run(model), expected, rounding=ROUNDING[dtype])
        assert calls == [LAYERS] * 4

    @pytest.mark.parametrize("name", ["gpt2", "two rotations"])
    @pytest.mark.parametrize("lengths", [[11, 1, 4], [2, 3, 3]])
    def test_of_padded_prompts(self, monkeypatch, calls, name, lengths, dtype):
        model = MODELS[name]().to(dtype)
        expected = run_blocks(monkeypatch, model, lengths=lengths, steps=9)
        assert_same(run(model, lengths=lengths, steps=9), expected, rounding=ROUNDING[dtype])
        assert len(calls) == 9

    @pytest.mark.parametrize("name", ["gpt2", "two rotations"])
    def test_of_several_tokens(self, monkeypatch, calls, name, dtype):
        model = MODELS[name]().to(dtype)
        expected = run_blocks(monkeypatch, model, new=5)
        assert_same(run(model, new=5), expected, rounding=ROUNDING[dtype])
        assert len(calls) == 4

    def test_of_long_texts(self, monkeypatch, calls, dtype):
        model = MODELS["two rotations"]().to(dtype)  # storages of windows and texts are replaced on the way
        expected = run_blocks(monkeypatch, model, steps=80)
        assert_same(run(model, steps=80), expected, rounding=ROUNDING[dtype])
        assert len(calls) == 80

    def test_of_int8_weights(self, monkeypatch, calls, dtype):
        model = make_llama().to(dtype)
        for layer in model.layers:
            layer.feed_forward.up = Int8Linear.from_linear(layer.feed_forward.up)
            layer.attention.key_projection = Int8Linear.from_linear(layer.attention.key_projection)
        expected = run_blocks(monkeypatch, model)
        assert_same(run(model), expected, rounding=ROUNDING[dtype])
        assert len(calls) == 4

    def test_for_any_number_of_threads(self, calls, dtype):
        model, before, outputs = make_llama().to(dtype), torch.get_num_threads(), []
        try:
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                outputs.append(run(model, prompt=2))  # other kernels than ours read longer prompts
        finally:
            torch.set_num_threads(before)
        for one in outputs[1:]:
            assert_same(one, outputs[0])

    def test_whatever_is_in_memory(self, calls, dtype):
        model = make_llama().to(dtype)
        expected = run(model)
        native.poison(True)
        try:
            assert_same(run(model), expected)
        finally:
            native.poison(False)

    @torch.no_grad()
    def test_of_branches(self, calls, dtype):
        """A state stays what it is while others are made from it."""
        model = make_gpt2().to(dtype)
        first, state = model.prefill(draw_ids(2, 7))
        first, state = model.step(first, state)
        tokens = draw_ids(2, 1, seed=3)[:, 0]
        one, after_one = model.step(tokens, state)
        other, _ = model.step((tokens + 1) % VOCABULARY, state)
        again, after_again = model.step(tokens, state)
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
        following = draw_ids(2, 1, seed=4)[:, 0]
        assert torch.equal(model.step(following, after_one)[0], model.step(following, after_again)[0])
        assert len(calls) == 6


def replace_weight(model):
    layer = model.layers[1].feed_forward.down
    layer.weight = nn.Parameter(layer.weight.detach() * 2)


def replace_data(model):
    layer = model.layers[1].attention.query_projection
    layer.weight.data = layer.weight.data * 2


def shrink_data(model):
    """Other sizes at the same address: all but the last heads."""
    attention = model.layers[2].attention
    attention.output_projection.weight.data = attention.output_projection.weight.data[:, :]
    model.layers[2].feed_forward.up.weight.data = model.layers[2].feed_forward.up.weight.data[:-4]
    model.layers[2].feed_forward.up.bias.data = model.layers[2].feed_forward.up.bias.data[:-4]
    model.layers[2].feed_forward.down.weight.data = model.layers[2].feed_forward.down.weight.data[:, :-4].contiguous()


def write_weight(model):
    with torch.no_grad():
        model.layers[0].attention.value_projection.weight.mul_(2)


def replace_module(model):
    model.layers[2].feed_forward.up = nn.Linear(36, 41, bias=False)
    nn.init.ones_(model.layers[2].feed_forward.up.weight)


def wrap_module(model):
    up = model.layers[2].feed_forward.up
    wrapped = nn.Sequential(up, nn.Tanh())
    wrapped.in_features = up.in_features
    model.layers[2].feed_forward.up = wrapped


def swap_layers(model):
    model.layers[0], model.layers[2] = model.layers[2], model.layers[0]


def replace_mechanism(model):
    model.layers[1].attention.mechanism = DotProduct(heads=6, head_dim=6, scale=0.1)


def set_softcap(model):
    model.layers[1].attention.mechanism.softcap = 0.5


def set_scale(model):
    model.layers[1].attention.mechanism.factor = 0.05


def set_epsilon(model):
    model.layers[0].attention_residual.norm.eps = 3.0


def replace_forward(model):
    model.layers[1].feed_forward.forward = lambda tokens: tokens


def patch_forward_of_norm(model):
    norm = model.layers[1].feed_forward_residual.norm
    norm.forward = torch.zeros_like


def prune(model):
    nn.utils.parametrize.register_parametrization(model.layers[0].feed_forward.up, "weight", Halved())


class Halved(nn.Module):
    def forward(self, weight):
        return weight / 2


CHANGES = [
    replace_weight,
    replace_data,
    shrink_data,
    write_weight,
    replace_module,
    wrap_module,
    swap_layers,
    replace_mechanism,
    set_softcap,
    set_scale,
    set_epsilon,
    replace_forward,
    patch_forward_of_norm,
    prune,
]


class TestChangesBetweenSteps:
    @pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
    def test_have_their_effect(self, monkeypatch, calls, change):
        expected = run_blocks(monkeypatch, make_gpt2(), change=change)
        found = run(make_gpt2(), change=change)
        assert_same(found, expected, rounding=ROUNDING[torch.float32])
        assert len(calls) in (2, 4)
        assert not torch.equal(found[0][-1][2], run(make_gpt2())[0][-1][2])

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "attention",
            "attention.query_projection",
            "attention.mechanism",
            "attention.position",
            "attention_residual",
            "attention_residual.norm",
            "attention_residual.dropout",
            "feed_forward",
            "feed_forward.down",
        ],
    )
    def test_hooks_are_called(self, calls, name):
        model, seen = make_llama(), []

        def hook(model):
            handles.append(model.layers[1].get_submodule(name).register_forward_hook(lambda *given: seen.append(name)))

        handles = []
        run(model, change=hook)
        assert len(seen) >= 2
        assert len(calls) == 2
        handles[0].remove()
        calls.clear()
        run(model)
        assert len(calls) == 4

    def test_global_hooks_are_called(self, calls):
        model, seen, handles = make_llama(), [], []

        def hook(model):
            handles.append(nn.modules.module.register_module_forward_hook(lambda *given: seen.append(1)))

        try:
            run(model, change=hook)
        finally:
            handles[0].remove()
        assert len(calls) == 2
        assert seen

    def test_recording(self, calls):
        model = make_gpt2()
        run(model)
        calls.clear()
        with regard.record(model) as seen:
            run(model, steps=1)
        assert not calls
        assert len(seen) == 2 * LAYERS  # the prompt, and the step

    def test_training_drops(self, calls):
        model = make_gpt2()
        run(model, change=lambda model: model.train())
        assert len(calls) == 2


class TestWhenItIsUsed:
    def test_not_with_gradients(self, calls):
        model = make_gpt2()
        _, state = run(model, steps=1)
        calls.clear()
        logits, _ = model.step(torch.tensor([1, 2, 3]), state)
        assert logits.requires_grad
        assert not calls

    def test_not_for_many_tokens(self, calls):
        run(make_gpt2(), rows=17)
        assert not calls

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
    def test_not_in_other_dtypes(self, calls, dtype):
        run(make_gpt2().to(dtype), steps=1)
        assert not calls

    def test_not_for_experts(self, calls):
        run(make_llama(experts=4, chosen_experts=2, sinks=True, model_type="gpt_oss"), steps=1)
        assert not calls

    def test_not_if_a_library_is_named(self, calls, monkeypatch):
        monkeypatch.setattr("regard.layers.sublayer_step.uses_own_kernel", lambda: False)
        run(make_gpt2(), steps=1)
        assert not calls

    def test_not_for_parameters_at_odd_addresses(self, monkeypatch, calls):
        model = make_gpt2()
        weight = model.layers[1].feed_forward.up.weight
        memory = torch.zeros(weight.numel() * 4 + 1, dtype=torch.uint8)
        memory[1:] = weight.detach().flatten().view(torch.uint8)
        weight.data = torch.frombuffer(memory.numpy(), dtype=torch.float32, offset=1).view(weight.shape)
        expected = run_blocks(monkeypatch, model)
        assert_same(run(model), expected, rounding=ROUNDING[torch.float32])
        assert not calls


class TestOwnership:
    def test_nothing_keeps_the_model(self, calls):
        model = make_gpt2()
        run(model)
        kept = [weakref.ref(model), weakref.ref(model.layers), weakref.ref(model.layers[0].feed_forward.up.weight)]
        del model
        gc.collect()
        assert [one() for one in kept] == [None] * 3

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
    def test_models_are_copied(self, calls, duplicate):
        model = make_gpt2()
        expected = run(model)
        twin = duplicate(model)
        with torch.no_grad():
            model.layers[0].feed_forward.up.weight.zero_()
        assert_same(run(twin), expected)
        assert len(calls) == 8


def test_blocks_are_called_alone(monkeypatch, calls):
    """The calls for sublayers, with which others are compared here, are not made beside those for all layers."""
    made = []
    monkeypatch.setattr(decoder, "attention_step", lambda *given: made.append(given))
    run(make_gpt2())
    assert len(calls) == 4
    assert not made


def test_a_step_is_one_parallel_region():
    """The output layer, too, is computed by the team of the layers, unless other processes take its cores."""
    model, threads = make_gpt2(width=192, inner=768, vocabulary=4001), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.no_grad():
            _, state = model.prefill(draw_ids(1, 5))
            for _ in range(10000):
                before = native.parallel_counts()
                model.step(torch.tensor([3]), state)
                teams, stages = (
                    after - earlier for after, earlier in zip(native.parallel_counts(), before, strict=True)
                )
                if teams == 1:
                    break
                time.sleep(0.005)
    finally:
        torch.set_num_threads(threads)
    assert teams == 1
    assert stages == 5 * LAYERS + 1, "queries, keys and values; attention; output; up; down; and the logits"
