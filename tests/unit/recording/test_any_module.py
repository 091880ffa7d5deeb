"""``regard.record`` of modules that nobody here wrote: the weights that they compute, with their bits unchanged."""

from __future__ import annotations

import logging
import math
import threading

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import regard
from regard import masks
from regard.errors import OptionError, RefusedError
from regard.mechanisms.dot_product import DotProduct
from regard.recording.recorded_call import RecordedDistanceBias

WIDTH, HEADS, LENGTH = 12, 3, 7


class Attention(nn.Module):
    """Causal self-attention as in many repositories; ``compute`` (query, key, value) is its core."""

    def __init__(self, compute, groups=HEADS):
        super().__init__()
        self.n_head, self.groups, self.compute = HEADS, groups, compute
        size = WIDTH // HEADS
        self.projection = nn.Linear(WIDTH, WIDTH + 2 * groups * size)
        self.output = nn.Linear(WIDTH, WIDTH)

    def project(self, tokens):
        size = WIDTH // HEADS
        parts = self.projection(tokens).split((WIDTH, self.groups * size, self.groups * size), dim=-1)
        return (part.unflatten(-1, (-1, size)).transpose(1, 2) for part in parts)

    def forward(self, tokens):
        return self.output(self.compute(self, *self.project(tokens)).transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Two layers with a residual connection each."""

    def __init__(self, compute, **options):
        super().__init__()
        self.layers = nn.ModuleList(Attention(compute, **options) for _ in range(2))

    def forward(self, tokens):
        for layer in self.layers:
            tokens = tokens + layer(tokens)
        return tokens


def causal_cells(queries, keys=None):
    return torch.ones(queries, keys or queries, dtype=torch.bool).tril()


def fused(layer, query, key, value):
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=layer.groups < HEADS)


def fused_bool_mask(layer, query, key, value):
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=causal_cells(query.shape[2]))


def fused_bias(layer, query, key, value):
    bias = torch.zeros(query.shape[2], query.shape[2]).masked_fill(~causal_cells(query.shape[2]), -torch.inf)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias.expand(2, HEADS, -1, -1))


def flex(layer, query, key, value):
    block_mask = create_block_mask(lambda batch, head, i, j: i >= j, None, None, LENGTH, LENGTH, device="cpu")
    return flex_attention(query, key, value, block_mask=block_mask)


def by_regard(layer, query, key, value):
    return regard.attention(query, key, value, mask=masks.causal())


def matmul(layer, query, key, value):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~causal_cells(query.shape[2]), -torch.inf).softmax(-1)
    return functional.dropout(weights, 0.3, layer.training) @ value


def in_place(layer, query, key, value):
    scores = torch.matmul(query, key.mT).mul_(query.shape[-1] ** -0.5)
    scores[:, :, ~causal_cells(query.shape[2])] = -1e30
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return functional.dropout(weights, 0.3, layer.training, inplace=True) @ value


def einsum(layer, query, key, value):
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * query.shape[-1] ** -0.5
    scores = torch.where(causal_cells(query.shape[2]), scores, torch.finfo(scores.dtype).min)
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), value)


def baddbmm(layer, query, key, value):
    """The heads are joined to the batch, as in fairseq, ESM and diffusers."""
    query, key, value = (side.flatten(0, 1) for side in (query, key, value))
    mask = torch.zeros(query.shape[1], query.shape[1]).masked_fill(~causal_cells(query.shape[1]), -torch.inf)
    scores = torch.baddbmm(mask[None].expand(len(query), -1, -1), query, key.mT, alpha=query.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), value).unflatten(0, (-1, HEADS))


def transposed(layer, query, key, value):
    """Values come first, with channels before places, as in models of pictures."""
    scores = (query.mT.mT @ key.mT) * query.shape[-1] ** -0.5
    weights = scores.masked_fill(~causal_cells(query.shape[2]), -torch.inf).softmax(-1)
    return (value.mT @ weights.mT).mT


FORMS = [fused, fused_bool_mask, fused_bias, flex, by_regard, matmul, in_place, einsum, baddbmm, transposed]


def expected_weights(model, tokens):
    """The causal softmax weights of each layer, in float64."""
    for layer in model.layers:
        query, key, _ = (side.double() for side in layer.project(tokens))
        key = key.repeat_interleave(HEADS // layer.groups, dim=1)
        scores = (query @ key.mT) * query.shape[-1] ** -0.5
        yield scores.masked_fill(~causal_cells(query.shape[2]), -torch.inf).softmax(-1)
        tokens = tokens + layer(tokens)


def check(model, tokens, seen):
    expected = list(expected_weights(model, tokens))
    assert [call.name for call in seen] == ["layers.0", "layers.1"]
    for call, weights in zip(seen, expected, strict=True):
        assert_close(call.weights().double(), weights, atol=1e-6, rtol=0)
        assert_close(call.weights(rows=[4, 0]).double(), weights[:, :, [4, 0]], atol=1e-6, rtol=0)
        observation = call.observe(top=2, rows=[1])
        assert_close(observation.rows.double(), weights[:, :, [1]], atol=1e-6, rtol=0)
        assert_close(observation.received.double(), weights.sum(2), atol=1e-5, rtol=0)
        assert_close(observation.top_weights.double(), weights.topk(2).values, atol=1e-6, rtol=0)


CASES = [(form, grad) for form in FORMS for grad in (False, True) if not (form is flex and grad)]
"""On a CPU torch has no gradients of flex_attention."""


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("form", "grad"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_weights_of_each_form(form, grad):
    model, tokens = Model(form).eval(), torch.randn(2, LENGTH, WIDTH)
    with torch.set_grad_enabled(grad):
        plain = model(tokens)
        with regard.record(model) as seen:
            recorded = model(tokens)
        assert torch.equal(recorded, plain)
        assert recorded.requires_grad == grad
    with torch.no_grad():
        check(model, tokens, seen)
    assert not any(side.requires_grad for call in seen for side in (call.query, call.key, call.value))


@pytest.mark.parametrize("form", [matmul, fused])
def test_training_keeps_bits_and_records_weights_before_dropout(form):
    model, tokens = Model(form), torch.randn(2, LENGTH, WIDTH)
    model.train()
    torch.manual_seed(3)
    model(tokens).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.manual_seed(3)
    with regard.record(model) as seen:
        model(tokens).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)
    assert len(seen) == 2
    for call in seen:
        assert_close(call.weights().sum(-1), torch.ones(2, HEADS, LENGTH))


def test_weights_that_dropout_changes_in_place():
    model, tokens = Model(in_place).train(), torch.randn(2, LENGTH, WIDTH)
    with torch.no_grad(), regard.record(model) as seen:
        model(tokens)
    for call in seen:
        assert_close(call.weights().sum(-1), torch.ones(2, HEADS, LENGTH))


@pytest.mark.parametrize("grad", [False, True])
def test_grouped_queries(grad):
    model, tokens = Model(fused, groups=1).eval(), torch.randn(2, LENGTH, WIDTH)
    with torch.set_grad_enabled(grad), regard.record(model) as seen:
        model(tokens)
    with torch.no_grad():
        check(model, tokens, seen)


@pytest.mark.parametrize("form", [fused, matmul])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(form, dtype):
    model, tokens = Model(form).eval().to(dtype), torch.randn(2, LENGTH, WIDTH, dtype=dtype)
    with torch.no_grad():
        with regard.record(model) as seen:
            model(tokens)
        for call, weights in zip(seen, expected_weights(model, tokens), strict=True):
            tolerance = 1e-12 if dtype == torch.float64 else 0.02
            assert_close(call.weights().double(), weights, atol=tolerance, rtol=0)


@pytest.mark.parametrize("form", [fused, matmul])
def test_autocast(form):
    model, tokens = Model(form).eval(), torch.randn(2, LENGTH, WIDTH)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = model(tokens)
        with regard.record(model) as seen:
            assert torch.equal(model(tokens), plain)
    with torch.no_grad():
        for call, weights in zip(seen, expected_weights(model, tokens), strict=True):
            assert_close(call.weights().double(), weights, atol=0.03, rtol=0)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_inference_mode(form):
    model, tokens = Model(form).eval(), torch.randn(2, LENGTH, WIDTH)
    with torch.inference_mode():
        plain = model(tokens)
        with regard.record(model) as seen:
            assert torch.equal(model(tokens), plain)
        check(model, tokens, seen)


@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.parametrize("form", [fused, matmul])
def test_a_checkpointed_layer_is_recorded_once(form, is_reentrant):
    model, tokens = Model(form), torch.randn(2, LENGTH, WIDTH, requires_grad=True)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens):
            for layer in self.model.layers:
                tokens = tokens + checkpoint(layer, tokens, use_reentrant=is_reentrant)
            return tokens

    with regard.record(Checkpointed()) as seen:
        pass
    outer = Checkpointed()
    with regard.record(outer) as seen:
        outer(tokens).sum().backward()
    assert [call.name for call in seen] == ["model.layers.0", "model.layers.1"]


@pytest.mark.parametrize("form", [fused, matmul])
def test_a_compiled_model(form):
    model, tokens = Model(form).eval(), torch.randn(2, LENGTH, WIDTH)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        plain = compiled(tokens)
        with regard.record(compiled) as seen:
            assert_close(compiled(tokens), plain)
        check(model, tokens, seen)
        assert_close(compiled(tokens), plain)


def test_keys_of_a_cache_that_is_written_later():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = torch.zeros(1, 1, 8, 4)

        def forward(self, tokens, place):
            self.cache[:, :, place] = tokens
            keys = self.cache[:, :, : place + 1]
            return functional.scaled_dot_product_attention(tokens[:, :, None], keys, keys)

    model, tokens = Cached(), torch.randn(6, 1, 1, 4)
    with torch.no_grad(), regard.record(model) as seen:
        for place in range(6):
            model(tokens[place], place)
    for place, call in enumerate(seen):
        assert torch.equal(call.key, tokens[: place + 1, 0].permute(1, 0, 2)[None])
        assert call.weights().shape == (1, 1, 1, place + 1)


class TestLayersOfTorch:
    """``nn.MultiheadAttention`` and the layers that hold it, on their fast paths and beside them."""

    @staticmethod
    def encoder(**options):
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, **options)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options.get("norm_first", False)).eval()

    @staticmethod
    def padding():
        return torch.tensor([[False] * 7, [False] * 4 + [True] * 3])

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    @pytest.mark.parametrize("norm_first", [False, True])
    @pytest.mark.parametrize("mask", [None, "padding", "causal"])
    def test_fast_path_of_the_encoder(self, norm_first, mask):
        model, tokens = self.encoder(norm_first=norm_first), torch.randn(2, LENGTH, WIDTH)
        arguments = {
            None: {},
            "padding": {"src_key_padding_mask": self.padding()},
            "causal": {"mask": ~causal_cells(LENGTH), "is_causal": True},
        }[mask]
        with torch.no_grad():
            plain = model(tokens, **arguments)
            with regard.record(model) as seen:
                assert torch.equal(model(tokens, **arguments), plain)
        assert [call.name for call in seen] == ["layers.0.self_attn", "layers.1.self_attn"]
        # The same layers beside their fast paths, which torch takes without gradients alone.
        with regard.record(model) as slow:
            model(tokens, **arguments)
        visible = ~self.padding() if mask == "padding" else torch.ones(2, LENGTH, dtype=torch.bool)
        for call, other in zip(seen, slow, strict=True):
            rows = visible[:, None, :].expand(-1, 2, -1)
            assert_close(call.weights()[rows], other.weights()[rows], atol=1e-5, rtol=0)

    @pytest.mark.parametrize("need_weights", [False, True])
    def test_multi_head_attention_agrees_with_its_own_weights(self, need_weights):
        layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, kdim=5, vdim=6).eval()
        query, key, value = torch.randn(2, LENGTH, WIDTH), torch.randn(2, 5, 5), torch.randn(2, 5, 6)
        hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        arguments = {"key_padding_mask": hidden}
        _, expected = layer(query, key, value, **arguments, average_attn_weights=False)
        with regard.record(layer) as seen:
            layer(query, key, value, **arguments, need_weights=need_weights)
        (call,) = seen
        assert_close(call.weights(), expected)

    def test_decoder(self):
        layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 16, batch_first=True)
        model = nn.TransformerDecoder(layer, 1).eval()
        tokens, memory = torch.randn(2, LENGTH, WIDTH), torch.randn(2, 5, WIDTH)
        with torch.no_grad(), regard.record(model) as seen:
            model(tokens, memory, tgt_mask=~causal_cells(LENGTH), tgt_is_causal=True)
        assert [call.name for call in seen] == ["layers.0.self_attn", "layers.0.multihead_attn"]
        assert [call.weights().shape for call in seen] == [(2, HEADS, LENGTH, LENGTH), (2, HEADS, LENGTH, 5)]
        assert not seen[0].weights().triu(1).any()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_a_score_function():
    slopes = torch.tensor([0.5, 0.25, 0.125])

    def decay(score, batch, head, i, j):
        return score - slopes[head] * (i - j).abs()

    model = Model(lambda layer, *sides: flex_attention(*sides, score_mod=decay)).eval()
    tokens = torch.randn(2, LENGTH, WIDTH)
    with torch.no_grad(), regard.record(model) as seen:
        model(tokens)
        query, key, _ = model.layers[0].project(tokens)
    distances = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    scores = query @ key.mT * query.shape[-1] ** -0.5 - slopes[:, None, None] * distances
    assert_close(seen[0].weights(), scores.softmax(-1), atol=1e-6, rtol=0)


def test_scores_of_several_products():
    """Relative positions of Transformer-XL and DeBERTa: the scores are a sum of products."""

    def compute(layer, query, key, value):
        by_place = query @ torch.randn(1, 1, LENGTH, query.shape[-1], generator=torch.Generator().manual_seed(1)).mT
        layer.kept = (query @ key.mT + by_place).softmax(-1)
        return layer.kept @ value

    model = Model(compute).eval()
    with torch.no_grad(), regard.record(model) as seen:
        model(torch.randn(2, LENGTH, WIDTH))
    for call, layer in zip(seen, model.layers, strict=True):
        assert torch.equal(call.weights(), layer.kept)


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("training", [False, True])
def test_sinks_are_no_keys(place, training):
    """gpt-oss: a column of sinks joins the scores, and leaves the weights."""

    def compute(layer, query, key, value):
        scores, sinks = query @ key.mT, torch.ones(2, HEADS, LENGTH, 1)
        weights = torch.cat([sinks, scores] if place == "first" else [scores, sinks], dim=-1).softmax(-1)
        layer.kept = weights[..., 1:] if place == "first" else weights[..., :-1]
        return functional.dropout(layer.kept, 0.2, layer.training) @ value

    model = Model(compute).train(training)
    with torch.no_grad(), regard.record(model) as seen:
        model(torch.randn(2, LENGTH, WIDTH))
    for call, layer in zip(seen, model.layers, strict=True):
        assert torch.equal(call.weights(), layer.kept)
        assert call.mechanism.weights_are == "non-negative"


def test_windows_and_heads_by_their_axes():
    """(windows, batch) before the heads are joined to one axis."""

    class Windows(nn.Module):
        num_heads = 2

        def forward(self, query, key):
            self.kept = (query @ key.mT).softmax(-1)
            return self.kept @ key

    model = Windows()
    with regard.record(model) as seen:
        model(torch.randn(3, 4, 2, 5, 6), torch.randn(3, 4, 2, 7, 6))
    assert_close(seen[0].weights(), model.kept.flatten(0, 1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("length", [HEADS, LENGTH])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", ["linear", "einsum"])
def test_heads_that_are_mixed_by_weights_of_the_model(form, causal, length):
    """Talking heads (Shazeer et al. 2020) as in CaiT: scores and weights are mixed; the values get the last ones."""

    class TalkingHeads(Attention):
        def __init__(self):
            super().__init__(TalkingHeads.mix_and_attend)
            self.before, self.after = (nn.Linear(HEADS, HEADS, bias=form == "linear") for _ in range(2))

        def mix(self, linear, cells):
            if form == "einsum":
                return torch.einsum("gh,bhqk->bgqk", linear.weight, cells)
            return linear(cells.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

        def mix_and_attend(self, query, key, value):
            scores = self.mix(self.before, query @ key.mT)
            if causal:
                scores = scores.masked_fill(~causal_cells(length), -torch.inf)
            self.kept = self.mix(self.after, scores.softmax(-1))
            return self.kept @ value

    torch.manual_seed(6)
    model = nn.Sequential(TalkingHeads(), TalkingHeads()).eval()
    for layer in model:
        for mixture in (layer.before, layer.after):
            nn.init.normal_(mixture.weight)
    tokens = torch.randn(2, length, WIDTH)
    with torch.no_grad():
        plain = model(tokens)
        with regard.record(model) as seen:
            assert torch.equal(model(tokens), plain)
    assert [call.name for call in seen] == ["0", "1"]
    for call, layer in zip(seen, model, strict=True):
        assert torch.equal(call.weights(), layer.kept)
        assert call.mechanism.weights_are == "signed"


class TestMemoryOfAttentionByHand:
    """Weights are computed again where scores are scaled dot products with a mask and a bias by distance."""

    @staticmethod
    def record(compute, dtype=torch.float32):
        model = Model(compute).eval().to(dtype)
        with torch.no_grad(), regard.record(model) as seen:
            model(torch.randn(2, LENGTH, WIDTH, dtype=dtype))
        return seen, model

    @pytest.mark.parametrize("compute", [matmul, in_place, einsum, baddbmm, transposed], ids=lambda form: form.__name__)
    def test_it_is_linear_in_length(self, compute):
        seen, _ = self.record(compute)
        for call in seen:
            assert isinstance(call.mechanism, DotProduct)
            assert call.mask == masks.causal()
            assert call.bias is None
        assert seen[0].observe(top=1).max_score is not None

    def test_weights_are_let_go(self):
        kept = []

        def compute(layer, query, key, value):
            weights = (query @ key.mT).softmax(-1)
            kept.append(StorageWeakRef(weights.untyped_storage()))
            return weights @ value

        model = Model(compute).eval()
        with torch.no_grad(), regard.record(model) as seen:
            model(torch.randn(2, LENGTH, WIDTH))
            assert all(reference.expired() for reference in kept)
        assert len(seen) == len(kept) == 2

    def test_a_bias_by_distance_is_a_table(self):
        distances = (torch.arange(LENGTH) - torch.arange(LENGTH)[:, None]).abs()
        bias = -torch.tensor([0.5, 0.25, 0.125])[:, None, None] * distances

        def compute(layer, query, key, value):
            layer.kept = (query @ key.mT / 2 + bias).masked_fill(~causal_cells(LENGTH), -torch.inf).softmax(-1)
            return layer.kept @ value

        seen, model = self.record(compute)
        for call, layer in zip(seen, model.layers, strict=True):
            assert isinstance(call.bias, RecordedDistanceBias)
            assert_close(call.weights(), layer.kept, atol=1e-6, rtol=0)

    @pytest.mark.parametrize("form", ["dense bias", "softcap", "bfloat16", "nan"])
    def test_other_scores_have_their_weights_kept(self, form):
        def compute(layer, query, key, value):
            scores = query @ key.mT
            if form == "dense bias":
                scores = scores + torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(1))
            elif form == "softcap":
                scores = scores.mul(3).tanh()
            elif form == "nan":
                scores[:, :, 2, 1] = torch.nan
            layer.scores, layer.kept = scores, scores.softmax(-1)
            return layer.kept @ value

        seen, model = self.record(compute, torch.bfloat16 if form == "bfloat16" else torch.float32)
        layers = list(model.layers)[: 1 if form == "nan" else 2]
        for call, layer in zip(seen, layers, strict=False):
            assert_close(call.weights(), layer.kept.float(), atol=0, rtol=0, equal_nan=True)
            assert torch.equal(call.observe(top=1).max_score.nan_to_num(), layer.scores.amax(-1).nan_to_num())

    @pytest.mark.parametrize("change", ["gate", "heads"])
    def test_weights_that_are_changed_after_the_softmax(self, change):
        """The weights are those that the values are multiplied by, as of talking heads (Shazeer et al. 2020)."""
        mix = torch.randn(HEADS, HEADS, generator=torch.Generator().manual_seed(1))

        def compute(layer, query, key, value):
            weights = (query @ key.mT).softmax(-1)
            gated = weights * torch.rand(1, HEADS, 1, 1, generator=torch.Generator().manual_seed(2))
            layer.kept = gated if change == "gate" else functional.conv2d(weights, mix[..., None, None])
            return layer.kept @ value

        seen, model = self.record(compute)
        for call, layer in zip(seen, model.layers, strict=True):
            assert torch.equal(call.weights(), layer.kept)
            assert call.mechanism.weights_are == ("non-negative" if change == "gate" else "signed")

    def test_weights_of_two_products(self):
        """Shaw et al. 2018: the weights are multiplied by values, and by vectors of distances."""

        def compute(layer, query, key, value):
            layer.kept = (query @ key.mT).softmax(-1)
            return layer.kept @ value + layer.kept @ value.flip(2)

        seen, model = self.record(compute)
        assert [call.name for call in seen] == ["layers.0", "layers.0", "layers.1", "layers.1"]
        for call in seen:
            assert_close(call.weights(), model.get_submodule(call.name).kept, atol=1e-6, rtol=0)
        assert_close(seen[1].value, seen[0].value.flip(2))


class TestWhatIsNotAttention:
    def test_a_router_and_gates_are_not_recorded(self):
        class Router(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate, self.attention = nn.Linear(WIDTH, 4), Attention(matmul)
                self.experts = nn.Parameter(torch.randn(4, WIDTH))

            def forward(self, tokens):
                return self.attention(tokens) + self.gate(tokens).softmax(-1) @ self.experts

        model = Router().eval()
        with torch.no_grad(), regard.record(model) as seen:
            model(torch.randn(2, LENGTH, WIDTH))
        assert [call.name for call in seen] == ["attention"]

    def test_a_model_without_attention_is_refused(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        with pytest.raises(OptionError, match="Sequential has no attention layer"), regard.record(model):
            pass

        class Convolution(nn.Module):
            def forward(self, tokens):
                return tokens * 2

        model = Convolution()
        with regard.record(model) as seen:
            pass  # the model was not called, so that nothing is known
        assert len(seen) == 0
        with pytest.raises(RefusedError, match="no attention was seen while Convolution ran"), regard.record(model):
            model(torch.randn(2, 3))

    def test_a_softmax_over_queries_is_named(self, caplog):
        class Slots(nn.Module):
            def forward(self, query, key):
                return (query @ key.mT).softmax(-2) @ key

        class Both(nn.Module):
            def __init__(self):
                super().__init__()
                self.slots, self.attention = Slots(), Attention(fused)

            def forward(self, tokens):
                return self.attention(tokens) + self.slots(tokens, tokens)

        model = Both().eval()
        tokens = torch.randn(2, LENGTH, WIDTH)
        with caplog.at_level(logging.WARNING, "regard"), torch.no_grad(), regard.record(model) as seen:
            model(tokens)
        assert [call.name for call in seen] == ["attention"]
        assert "not recorded: a softmax of scores in slots" in caplog.text
        of_slots = pytest.raises(RefusedError, match=r"got: +a softmax of scores with another use in Slots\n")
        with of_slots, regard.record(model.slots):
            model.slots(tokens, tokens)

    def test_many_layers_that_are_not_understood_are_counted(self):
        class Slots(nn.Module):
            def forward(self, query):
                return (query @ query.mT).softmax(-2) @ query

        model = nn.Sequential(*(Slots() for _ in range(11)))
        with pytest.raises(RefusedError, match="another use in 0, 1, 2, 3, 4, 5 and 5 more"), regard.record(model):
            model(torch.randn(2, LENGTH, WIDTH))

    def test_another_model_and_another_thread_are_not_recorded(self):
        model, other, tokens = Model(fused).eval(), Model(fused).eval(), torch.randn(2, LENGTH, WIDTH)
        with torch.no_grad(), regard.record(model) as seen:
            other(tokens)
            thread = threading.Thread(target=model, args=(tokens,))
            thread.start()
            thread.join()
        assert len(seen) == 0

    def test_an_error_of_the_model_passes_through(self):
        model = Model(fused).eval()
        with pytest.raises(RuntimeError, match="shape"), regard.record(model):
            model(torch.randn(2, LENGTH, WIDTH + 1))
        with torch.no_grad(), regard.record(model) as seen:
            model(torch.randn(2, LENGTH, WIDTH))
        assert len(seen) == 2


def test_layers_of_regard_inside_a_foreign_model_are_recorded_once():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.ours, self.theirs = regard.MultiHeadAttention(WIDTH, HEADS), Attention(fused)

        def forward(self, tokens):
            return self.theirs(self.ours(tokens))

    model = Mixed().eval()
    with torch.no_grad(), regard.record(model) as seen:
        model(torch.randn(2, LENGTH, WIDTH))
    assert [call.name for call in seen] == ["ours", "theirs"]
    with torch.no_grad(), regard.record(model) as seen:
        model.ours.query_projection(torch.randn(2, LENGTH, WIDTH))  # a part alone, which does not attend
    assert len(seen) == 0
