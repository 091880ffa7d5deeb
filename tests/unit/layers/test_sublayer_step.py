"""Decoding steps in one native call for each sublayer: equal to the modules one after the other, and when it is used.

The modules are those of torch and of this package, whose results other tests compare with independent oracles. Both
compute in float32 and round at the same places, so float32 results differ by some roundings, and bfloat16 results by
one rounding where a float32 number lies near the middle of two.
"""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from any_threads import assert_same_bits
from regard import masks
from regard.kernels.extension import native
from regard.kernels.operators import sublayer_op
from regard.kernels.support import is_portable
from regard.layers import (
    ACTIVATIONS,
    DecoderBlock,
    DecoderCache,
    FeedForward,
    KeyValueCache,
    MultiHeadAttention,
    PostNorm,
    PreNorm,
    RMSNorm,
    SandwichNorm,
    decoder,
)
from regard.layers.quantized_linear import Int8Linear
from regard.mechanisms import DotProduct
from regard.models.beam_groups import BeamGroups
from regard.positions import ALiBi, Rotary, ShawRelative, T5Buckets

pytestmark = pytest.mark.skipif(native is None or is_portable(), reason="modules are used without vector instructions")

WIDTH, HEADS, KEY_HEADS, HEAD_DIM, INNER, PAST = 37, 6, 3, 10, 53, 29
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def make_attention(**options):
    options = {"key_value_heads": KEY_HEADS, "head_dim": HEAD_DIM, **options}
    return MultiHeadAttention(WIDTH, HEADS, **options)


def make_block(
    attention=None, *, activation="gelu_tanh", residual="pre", norm="layer", cross=False, bias=True, dropout=0.0
):
    def make_norm(width=WIDTH):
        made = nn.LayerNorm(width) if norm == "layer" else RMSNorm(width, offset=1.0 if norm == "offset" else 0.0)
        for parameter in made.parameters():
            nn.init.normal_(parameter, mean=1.0, std=0.3)
        return made

    def make_residual():
        if residual == "sandwich":
            return SandwichNorm(make_norm(), output_norm=make_norm(), dropout=dropout)
        return {"pre": PreNorm, "post": PostNorm}[residual](make_norm(), dropout=dropout)

    made = DecoderBlock(
        attention=make_attention(bias=bias) if attention is None else attention,
        feed_forward=FeedForward(WIDTH, INNER, activation=activation, bias=bias),
        attention_residual=make_residual(),
        feed_forward_residual=make_residual(),
        cross_attention=MultiHeadAttention(WIDTH, HEADS, head_dim=HEAD_DIM) if cross else None,
        cross_attention_residual=make_residual() if cross else None,
    )
    for name, parameter in made.named_parameters():
        if name.endswith("projection.bias"):
            nn.init.normal_(parameter)
    return made.eval()


@pytest.fixture
def calls(monkeypatch):
    """The names of the sublayers that were computed in one native call."""
    found = []

    def count(name, compute, *given):
        found.append(name)
        return compute(*given)

    for name in ("feed_forward", "attention"):
        monkeypatch.setattr(sublayer_op, name, partial(count, name, getattr(sublayer_op, name)))
    return found


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@torch.no_grad()
def run_steps(layer, *, batch=3, steps=3, length=1, dtype=torch.float32, mask=None, past=PAST, memory=None, **options):
    """Run a text of ``past`` tokens and then ``steps`` calls of ``length`` tokens; return the outputs of these."""
    tokens = draw(batch, past + steps * length, WIDTH, dtype=dtype)
    mask = masks.causal() if mask is None else mask
    _, cache = layer(tokens[:, :past], memory, mask=masks.causal(), cache=DecoderCache())
    outputs = []
    for step in range(steps):
        first = past + step * length
        output, cache = layer(tokens[:, first : first + length], mask=mask, cache=cache, **options)
        outputs.append(output)
    return torch.stack(outputs), cache


def run_modules(monkeypatch, layer, **options):
    with monkeypatch.context() as patched:
        patched.setattr(decoder, "can_step", lambda tokens: False)
        return run_steps(layer, **options)


def check(monkeypatch, calls, layer, *, dtype=torch.float32, sublayers=2, **options):
    if next(layer.parameters()).dtype != dtype:
        layer = layer.to(dtype)
    expected, of_modules = run_modules(monkeypatch, layer, dtype=dtype, **options)
    assert not calls
    found, cache = run_steps(layer, dtype=dtype, **options)
    assert len(calls) == 3 * sublayers
    scale = expected.abs().max().item()
    assert (found.double() - expected.double()).abs().max().item() <= TOLERANCE[dtype] * scale
    for side in ("key", "value"):
        mine, theirs = getattr(cache.own, side).double(), getattr(of_modules.own, side).double()
        assert (mine - theirs).abs().max().item() <= TOLERANCE[dtype] * theirs.abs().max().item()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
class TestEqualToModules:
    @pytest.mark.parametrize("residual", ["pre", "post", "sandwich"])
    @pytest.mark.parametrize("norm", ["layer", "rms", "offset"])
    def test_norms(self, monkeypatch, calls, norm, residual, dtype):
        if norm == "offset" and dtype == torch.bfloat16 and residual == "post":
            dtype = torch.float32  # the weight is near 1, so that tokens would double at each norm
        check(monkeypatch, calls, make_block(norm=norm, residual=residual), dtype=dtype)

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_activations(self, monkeypatch, calls, activation, bias, dtype):
        check(monkeypatch, calls, make_block(activation=activation, bias=bias), dtype=dtype)

    @pytest.mark.parametrize("batch", [1, 2, 11])
    def test_batches(self, monkeypatch, calls, batch, dtype):
        check(monkeypatch, calls, make_block(), dtype=dtype, batch=batch)

    def test_several_tokens(self, monkeypatch, calls, dtype):
        check(monkeypatch, calls, make_block(), dtype=dtype, batch=2, length=5)

    @pytest.mark.parametrize("layout", ["halves", "pairs"])
    @pytest.mark.parametrize("rotated", [HEAD_DIM, 6])
    def test_rotations_and_norms_of_heads(self, monkeypatch, calls, layout, rotated, dtype):
        attention = make_attention(
            position=Rotary(HEAD_DIM, layout=layout, rotated=rotated),
            query_norm=RMSNorm(HEAD_DIM),
            key_norm=RMSNorm(HEAD_DIM),
        )
        check(monkeypatch, calls, make_block(attention), dtype=dtype, batch=2, length=3)

    def test_values_of_another_size(self, monkeypatch, calls, dtype):
        check(monkeypatch, calls, make_block(make_attention(value_head_dim=7)), dtype=dtype)

    def test_wide_rotations(self, monkeypatch, calls, dtype):
        attention = make_attention(head_dim=76, position=Rotary(76))  # more than a vector, and no multiple of one
        check(monkeypatch, calls, make_block(attention), dtype=dtype)

    @pytest.mark.parametrize("position", [T5Buckets(HEADS), ALiBi(HEADS)])
    def test_biases_by_distance(self, monkeypatch, calls, position, dtype):
        check(monkeypatch, calls, make_block(make_attention(position=position)), dtype=dtype)

    @pytest.mark.parametrize(
        "mask", [masks.causal() & masks.padding([30, 7, 29]), masks.window(5, 0), masks.padding([0, 3, 9])]
    )
    def test_masks(self, monkeypatch, calls, mask, dtype):
        check(monkeypatch, calls, make_block(), dtype=dtype, mask=mask)

    def test_softcap_and_sinks(self, monkeypatch, calls, dtype):
        mechanism = DotProduct(heads=HEADS, head_dim=HEAD_DIM, softcap=2.0, sinks=True)
        check(monkeypatch, calls, make_block(make_attention(mechanism=mechanism)), dtype=dtype)

    def test_int8_weights(self, monkeypatch, calls, dtype):
        layer = make_block(activation="swiglu").to(dtype)
        for module in (layer.attention, layer.feed_forward):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(module, name, Int8Linear.from_linear(child))
        check(monkeypatch, calls, layer, dtype=dtype)

    def test_cross_attention(self, monkeypatch, calls, dtype):
        layer = make_block(cross=True)
        memory = draw(3, 17, WIDTH, dtype=dtype, seed=1)
        check(monkeypatch, calls, layer, dtype=dtype, memory=memory, memory_mask=masks.padding([17, 1, 0]), sublayers=3)

    @pytest.mark.parametrize("group_ids", [[0, 0, 1, 1], [1, 0, 1, 1]])
    def test_rows_that_share_their_source(self, monkeypatch, calls, group_ids, dtype):
        layer, groups = make_block(cross=True).to(dtype), BeamGroups(torch.tensor(group_ids), 2)
        memory = draw(2, 17, WIDTH, dtype=dtype, seed=1)

        @torch.no_grad()
        def run():
            tokens = draw(4, PAST + 1, WIDTH, dtype=dtype)
            cache = DecoderCache(None, layer.cross_attention.project_memory(memory))
            for index in range(3):
                row = tokens[:, index : index + 1]
                output, cache = layer(row, mask=masks.causal(), cache=cache, memory_shared=groups)
            return output

        with monkeypatch.context() as patched:
            patched.setattr(decoder, "can_step", lambda tokens: False)
            expected = run()
        found = run()
        assert len(calls) == 8  # the first state of self-attention is empty
        scale = expected.abs().max().item()
        assert (found.double() - expected.double()).abs().max().item() <= TOLERANCE[dtype] * scale

    def test_window_caches(self, monkeypatch, calls, dtype):
        layer = make_block().to(dtype)

        @torch.no_grad()
        def run():
            tokens, outputs = draw(2, 90, WIDTH, dtype=dtype), []
            cache = DecoderCache(layer.attention.empty_cache(window=5))
            for index in range(90):  # more than the room behind the window
                output, cache = layer(tokens[:, index : index + 1], mask=masks.window(4, 0), cache=cache)
                outputs.append(output)
            return torch.cat(outputs, dim=1)

        found = run()
        assert len(calls) == 2 * 90 - 1
        with monkeypatch.context() as patched:
            patched.setattr(decoder, "can_step", lambda tokens: False)
            expected = run()
        assert (found.double() - expected.double()).abs().max() <= TOLERANCE[dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["gelu", "geglu_tanh"])
class TestBits:
    def test_do_not_depend_on_threads(self, activation, dtype):
        layer = make_block(activation=activation).to(dtype)
        assert_same_bits(lambda: run_steps(layer, dtype=dtype)[0], threads=(1, 2, 5))

    def test_do_not_depend_on_other_rows(self, activation, dtype):
        layer = make_block(activation=activation).to(dtype)
        with torch.no_grad():
            tokens = draw(7, 5, WIDTH, dtype=dtype)
            key, value = draw(2, 7, KEY_HEADS, 4, HEAD_DIM, dtype=dtype, seed=2)

            def run(rows):
                cache = DecoderCache(KeyValueCache.empty().extended(key[rows], value[rows]))
                return layer(tokens[rows, 4:], mask=masks.causal(), cache=cache)[0]

            together = run(slice(0, 7))
            assert all(torch.equal(run(slice(row, row + 1))[0], together[row]) for row in range(7))

    def test_memory_around_the_arrays_has_no_influence(self, activation, dtype):
        layer = make_block(activation=activation).to(dtype)
        expected = run_steps(layer, dtype=dtype)[0]
        native.poison(True)
        try:
            assert torch.equal(run_steps(layer, dtype=dtype)[0], expected)
        finally:
            native.poison(False)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@torch.no_grad()
def test_nonfinite_tokens_that_are_hidden_have_no_influence(calls, bad):
    layer = make_block()
    tokens, key = draw(3, 1, WIDTH), draw(2, 3, KEY_HEADS, 9, HEAD_DIM, seed=4)
    mask = masks.causal() & masks.padding([4, 10, 10], side="left")
    outputs = []
    for number in (0.0, bad):
        key[:, 0, :, 2] = number
        cache = DecoderCache(KeyValueCache.empty().extended(*key.clone()))
        outputs.append(layer(tokens, mask=mask, cache=cache)[0])
    assert len(calls) == 4
    assert torch.equal(*outputs)


@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 16), st.booleans(), st.booleans(), st.integers(0, 2**20))
@torch.no_grad()
def test_feed_forward_of_any_sizes(width, inner, rows, gated, half, seed):
    """Against float64, with the bound of three sums in float32: Higham 2002, section 3.5."""
    dtype = torch.bfloat16 if half else torch.float32
    tokens = draw(rows, 1, width, dtype=dtype, seed=seed)
    up, gate = (draw(inner, width, dtype=dtype, seed=seed + one) for one in (1, 2))
    down = draw(width, inner, dtype=dtype, seed=seed + 3)
    layers = [(weight, None, None, len(weight)) for weight in (up, gate, down)]
    read = sublayer_op.FeedForwardLayers(layers[0], layers[1] if gated else None, layers[2], "relu")
    found = sublayer_op.feed_forward(tokens, read, sublayer_op.SublayerNorms())
    first = tokens.double() @ (gate if gated else up).double().T
    size = tokens.double().abs() @ (gate if gated else up).double().abs().T
    active, other = first.clamp(min=0), tokens.double() @ up.double().T if gated else 1.0
    other_size = tokens.double().abs() @ up.double().abs().T if gated else 1.0
    expected = tokens.double() + (active * other) @ down.double().T
    rounding = 2.0**-8 if half else 2.0**-24
    bound = (6 * rounding + (width + inner + 12) * 2.0**-23) * (
        tokens.double().abs() + 2 * (size * other_size) @ down.double().abs().T
    )
    assert ((found.double() - expected).abs() <= bound + 1e-30).all()


@pytest.mark.parametrize("rounded", ["up", "gate", "down"])
@pytest.mark.parametrize(("width", "inner"), [(1024, 2730), (64, 68), (67, 131)])
@torch.no_grad()
def test_layers_of_several_formats_have_the_same_tasks(rounded, width, inner):
    """With any number of threads: a task activates the outputs that it computed of both layers."""
    linears = {"up": nn.Linear(width, inner), "gate": nn.Linear(width, inner), "down": nn.Linear(inner, width)}
    layers = {
        name: (linear.weight.detach(), None, linear.bias.detach(), linear.out_features)
        for name, linear in linears.items()
    }
    stored = Int8Linear.from_linear(linears[rounded])
    layers[rounded] = (stored.weight, stored.scale, stored.bias, stored.out_features)
    matrices = {name: linear.weight.double() for name, linear in linears.items()}
    matrices[rounded] = stored.dense_weight().double()
    tokens = draw(3, 1, width)
    up, gate = (tokens.double() @ matrices[name].T + linears[name].bias.double() for name in ("up", "gate"))
    expected = tokens.double() + (gate.relu() * up) @ matrices["down"].T + linears["down"].bias.double()
    outputs = []
    for threads in (1, 2, 8, 16):
        output = torch.empty_like(tokens)
        native.feed_forward_sublayer(tokens, **layers, output=output, activation="relu", threads=threads)
        outputs.append(output)
    assert all(torch.equal(output, outputs[0]) for output in outputs)
    # Tokens are rounded to 1 / 127 of the largest of a group.
    assert (outputs[0].double() - expected).norm() <= 0.02 * (expected - tokens.double()).norm()


class TestWhenItIsUsed:
    """Modules are called one after the other wherever they do more than the kernel."""

    @pytest.mark.parametrize(
        "name",
        [
            "attention",
            "attention.query_projection",
            "attention.output_projection",
            "attention.mechanism",
            "attention_residual",
            "attention_residual.norm",
            "attention_residual.dropout",
            "feed_forward",
            "feed_forward.up",
            "feed_forward.dropout",
            "feed_forward_residual",
            "feed_forward_residual.norm",
        ],
    )
    def test_hooks_are_called(self, calls, name):
        layer, seen = make_block(), []
        layer.get_submodule(name).register_forward_hook(lambda *given: seen.append(name))
        run_steps(layer, steps=1, past=29)
        assert len(seen) == 2  # the text before, and the step
        assert calls == ["feed_forward" if name.startswith("attention") else "attention"]

    def test_global_hooks_are_called(self, calls):
        handle = nn.modules.module.register_module_forward_hook(lambda *given: None)
        try:
            run_steps(make_block(), steps=1)
        finally:
            handle.remove()
        assert not calls

    def test_recording(self, calls):
        layer = make_block()
        with regard.record(layer) as seen:
            run_steps(layer, steps=1)
        assert len(seen) == 2
        assert calls == ["feed_forward"]

    def test_not_with_gradients(self, calls):
        layer = make_block()
        _, cache = run_steps(layer, steps=1)
        calls.clear()
        tokens = draw(3, 1, WIDTH).requires_grad_()
        layer(tokens, mask=masks.causal(), cache=cache)[0].sum().backward()
        assert tokens.grad is not None
        assert not calls

    def test_not_with_dropout(self, calls):
        run_steps(make_block(dropout=0.5).train(), steps=1)
        assert not calls

    def test_not_for_many_tokens(self, calls):
        run_steps(make_block(), steps=1, batch=17)
        assert not calls

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
    def test_not_in_other_dtypes(self, calls, dtype):
        run_steps(make_block().to(dtype), steps=1, dtype=dtype)
        assert not calls

    @torch.no_grad()
    def test_not_under_autocast(self, calls):
        layer = make_block()
        with torch.autocast("cpu", torch.bfloat16):
            run_steps(layer, steps=1)
        assert not calls

    def test_not_for_adapted_layers(self, calls):
        layer = make_block()
        layer.feed_forward.up = nn.Sequential(layer.feed_forward.up)
        layer.feed_forward.up.in_features = WIDTH
        run_steps(layer, steps=1)
        assert calls == ["attention"]

    @pytest.mark.parametrize(
        "options",
        [
            {"mechanism": "linear"},
            {"mechanism": "talking_heads", "key_value_heads": HEADS},
            {"position": ShawRelative(HEAD_DIM)},
            {"mechanism": DotProduct(heads=HEADS, head_dim=HEAD_DIM, impl="reference")},
            {"mechanism": DotProduct(heads=HEADS, head_dim=HEAD_DIM, scale=1e30)},
        ],
        ids=["linear", "talking_heads", "ShawRelative", "reference", "scale"],
    )
    def test_not_for_what_the_kernel_does_not_compute(self, calls, options):
        run_steps(make_block(make_attention(**options)), steps=1)
        assert calls == ["feed_forward"]

    def test_not_if_a_library_is_named(self, calls, monkeypatch):
        monkeypatch.setattr("regard.layers.sublayer_step.uses_own_kernel", lambda: False)
        run_steps(make_block(), steps=1)
        assert not calls

    def test_changed_weights_are_used(self, calls):
        layer = make_block()
        before, _ = run_steps(layer, steps=1)
        layer.feed_forward.down.weight.data = layer.feed_forward.down.weight.data.clone().zero_()
        layer.feed_forward.down.bias.data.zero_()
        layer.attention.output_projection.weight = nn.Parameter(torch.zeros(WIDTH, HEADS * HEAD_DIM))
        nn.init.zeros_(layer.attention.output_projection.bias)
        after, _ = run_steps(layer, steps=1)
        assert len(calls) == 4
        assert not torch.equal(before, after)
        assert torch.equal(after[0], draw(3, PAST + 1, WIDTH)[:, PAST:])


class TestStates:
    @torch.no_grad()
    def test_two_steps_from_one_state(self, calls):
        """The second step copies: the keys of the first are not overwritten."""
        layer = make_block()
        _, cache = run_steps(layer, steps=2)
        one, other = draw(2, 3, 1, WIDTH, seed=5)
        first, after = layer(one, mask=masks.causal(), cache=cache)
        kept = after.own.key.clone()
        layer(other, mask=masks.causal(), cache=cache)
        assert torch.equal(after.own.key, kept)
        assert torch.equal(layer(one, mask=masks.causal(), cache=cache)[0], first)

    def test_reserved_tokens(self):
        key, value = draw(2, 3, KEY_HEADS, 7, HEAD_DIM)
        state = KeyValueCache.empty().extended(key, value)
        assert state.reserved(2) is None  # gradients are enabled
        with torch.no_grad():
            assert KeyValueCache.empty().reserved(1) is None
            more = state.reserved(2)
        assert (more.length, tuple(more.key.shape)) == (9, (3, KEY_HEADS, 9, HEAD_DIM))
        assert torch.equal(more.key[:, :, :7], key)

    @torch.no_grad()
    def test_errors_are_those_of_the_modules(self):
        layer = make_block()
        _, cache = run_steps(layer, steps=1)
        with pytest.raises(regard.errors.ShapeError):
            layer(draw(2, 1, WIDTH), mask=masks.causal(), cache=cache)
        with pytest.raises(regard.errors.ShapeError):
            layer(draw(3, 1, WIDTH), mask=masks.padding([1, 2]), cache=cache)


class TestArguments:
    """The kernel refuses arrays that do not fit each other."""

    def arguments(self):
        tokens = draw(2, 1, WIDTH)
        up, down = (draw(INNER, WIDTH), None, None, INNER), (draw(WIDTH, INNER), None, None, WIDTH)
        return {"tokens": tokens, "up": up, "gate": None, "down": down, "output": torch.empty_like(tokens)}

    @pytest.mark.parametrize(
        ("name", "wrong", "message"),
        [
            ("up", None, "up"),
            ("up", (torch.ones(INNER, WIDTH),), "up"),
            ("up", (torch.ones(INNER, WIDTH + 1), None, None, INNER), "up"),
            ("up", (torch.ones(INNER, WIDTH), None, None, INNER + 1), "up"),
            ("up", (torch.ones(INNER, WIDTH), None, None, -1), "up"),
            ("gate", (torch.ones(INNER + 1, WIDTH), None, None, INNER + 1), "gate"),
            ("down", (torch.ones(WIDTH, INNER, dtype=torch.int8), None, None, WIDTH), "scale"),
            ("output", torch.ones(2, 2, WIDTH), "output"),
            ("activation", "tanh", "activation"),
            ("before", (torch.ones(WIDTH + 1), None, 1e-5, 0.0, True), "before"),
        ],
    )
    def test_feed_forward(self, name, wrong, message):
        with pytest.raises((ValueError, TypeError), match=message):
            native.feed_forward_sublayer(**(self.arguments() | {name: wrong}))

    @pytest.mark.parametrize(
        ("name", "wrong", "message"),
        [
            ("query", torch.empty(2, HEADS, 2, HEAD_DIM), "query"),
            ("query", torch.empty(2, HEAD_DIM, 1, HEADS).transpose(1, 3), "query"),
            ("key", torch.ones(2, HEADS, 3, HEAD_DIM + 1), "key"),
            ("mixed", torch.ones(2, HEADS, 1, HEAD_DIM + 1), "mixed"),
            ("query_layer", (torch.ones(HEADS * HEAD_DIM + 1, WIDTH), None, None, HEADS * HEAD_DIM + 1), "query_layer"),
            ("query_layer", (torch.ones(HEADS * HEAD_DIM + 1, WIDTH), None, None, HEADS * HEAD_DIM), "query_layer"),
            ("key_layer", None, "key_layer"),
            ("rotation", (torch.ones(2, 4), torch.ones(2, 4), False), "cosine"),
            ("rotation", (torch.ones(1, 3), torch.ones(1, 3), False), "cosine"),
        ],
    )
    def test_attention(self, name, wrong, message):
        tokens, size = draw(2, 1, WIDTH), HEADS * HEAD_DIM
        layer, back = (draw(size, WIDTH), None, None, size), (draw(WIDTH, size), None, None, WIDTH)
        heads = {one: torch.zeros(2, HEADS, 1, HEAD_DIM) for one in ("query", "mixed")}
        keys = {one: torch.zeros(2, HEADS, 3, HEAD_DIM) for one in ("key", "value")}
        layers = {"query_layer": layer, "key_layer": layer, "value_layer": layer, "output_layer": back}
        given = {"tokens": tokens, "output": torch.empty_like(tokens), **heads, **keys, **layers}
        native.attention_sublayer(**given)
        with pytest.raises((ValueError, TypeError), match=message):
            native.attention_sublayer(**(given | {name: wrong}))
