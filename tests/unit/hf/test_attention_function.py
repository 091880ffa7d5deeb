"""One attention layer: arguments of ``transformers`` mean what its own functions take them to mean."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.masking_utils import sliding_window_causal_mask_function

from regard.errors import DtypeError, RefusedError, RegardError, ShapeError
from regard.hf.attention_function import attention_function
from regard.kernels.reference import query_tiles

CAUSAL = torch.ones(11, 11, dtype=torch.bool).tril()[None, None]


class Layer(nn.Module):
    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.eval()


def tensors(
    queries: int = 11, keys: int = 11, key_heads: int = 2, dtype=torch.float64, batch: int = 3
) -> tuple[Tensor, ...]:
    shapes = ((batch, 4, queries, 5), (batch, key_heads, keys, 5), (batch, key_heads, keys, 7))
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)


def oracle(query, key, value, *, allowed=None, bias=0.0, scale=None, softcap=None, sinks=None) -> tuple[Tensor, Tensor]:
    """Attention by its equations, cell by cell in one matrix; a row without keys gives 0."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(2, 3) * (query.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    exponentials = torch.exp(scores + bias)
    if allowed is not None:
        exponentials = exponentials * allowed
    total = exponentials.sum(-1, keepdim=True) + (0.0 if sinks is None else torch.exp(sinks))
    weights = exponentials / total.clamp(min=1e-300)
    return (weights @ value).transpose(1, 2), weights


def assert_equal_with_gradients(output: Tensor, expected: Tensor, leaves: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(output, expected, atol=1e-12, rtol=1e-10)
    upstream = torch.randn_like(expected)
    for got, wanted in zip(
        torch.autograd.grad(output, leaves, upstream), torch.autograd.grad(expected, leaves, upstream), strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("sinks", [None, "heads", "queries"])
@pytest.mark.parametrize("masked", [False, True])
def test_softcap_and_sinks(masked, sinks, softcap, is_small, monkeypatch):
    """In one tile of queries, and in tiles of two."""
    if is_small:
        monkeypatch.setattr(query_tiles, "_TILE_BYTES", 3 * 4 * 11 * 8 * 2)
    query, key, value = leaves = tensors()
    allowed = CAUSAL & (torch.arange(11) != 3) if masked else None
    logits = {None: None, "heads": torch.randn(4), "queries": torch.randn(3, 4, 11, 1)}[sinks]
    arguments = {}
    if logits is not None:
        logits = logits.double().requires_grad_()
        leaves = (*leaves, logits)
        arguments = {"s_aux" if sinks == "heads" else "sinks": logits}
    output, _ = attention_function(Layer(), query, key, value, allowed, softcap=softcap, scaling=0.7, **arguments)
    column = None if logits is None else logits.reshape(1, 4, 1, 1) if sinks == "heads" else logits
    expected, _ = oracle(query, key, value, allowed=allowed, softcap=softcap, scale=0.7, sinks=column)
    assert_equal_with_gradients(output, expected, leaves)


def test_a_query_without_keys_gives_0_with_a_sink():
    query, key, value = tensors()
    allowed = CAUSAL & (torch.arange(11) > 2)
    output, _ = attention_function(Layer(), query, key, value, allowed, s_aux=torch.zeros(4).double())
    assert not output[:, :3].any()
    assert output[:, 3:].all()


@pytest.mark.parametrize("arguments", [{}, {"softcap": 1.5}, {"s_aux": torch.zeros(4).double()}])
def test_hidden_tokens_have_no_influence(arguments):
    query, key, value = tensors()
    allowed = (torch.arange(11) < 7).expand(3, 1, 11, 11)
    expected, _ = attention_function(Layer(), query, key, value, allowed, **arguments)
    poisoned_key, poisoned_value = key.detach().clone(), value.detach().clone()
    poisoned_key[:, :, 7:], poisoned_value[:, :, 8:] = torch.nan, torch.inf
    output, _ = attention_function(Layer(), query, poisoned_key, poisoned_value, allowed, **arguments)
    assert torch.equal(output, expected)


def test_output_is_contiguous_and_has_no_weights():
    output, weights = attention_function(Layer(), *tensors(), None)
    assert output.shape == (3, 11, 4, 7)
    assert output.is_contiguous()
    assert weights is None


@pytest.mark.parametrize("form", ["bool", "additive", "bias"])
def test_position_bias(form):
    query, key, value = leaves = tensors()
    bias = torch.randn(1, 4, 11, 11, dtype=torch.float64, requires_grad=True)
    mask, other = CAUSAL, 0.0
    if form == "additive":
        mask = torch.zeros(1, 1, 11, 11, dtype=torch.float64).masked_fill(~CAUSAL, torch.finfo(torch.float64).min)
    if form == "bias":
        other = torch.randn(3, 1, 11, 11, dtype=torch.float64, requires_grad=True)
        mask, leaves = other.masked_fill(~CAUSAL, -torch.inf), (*leaves, other)
    output, _ = attention_function(Layer(), query, key, value, mask, position_bias=bias, scaling=1.0)
    expected, _ = oracle(query, key, value, allowed=CAUSAL, bias=bias + other, scale=1.0)
    assert_equal_with_gradients(output, expected, (*leaves, bias))


def test_position_bias_for_keys_that_are_not_filled_yet():
    query, key, value = tensors(queries=3, keys=13)
    bias = torch.randn(1, 4, 3, 13, dtype=torch.float64)
    allowed = (torch.arange(13) <= torch.arange(3)[:, None] + 4)[None, None]
    output, weights = attention_function(
        Layer(), query, key, value, allowed, position_bias=bias, output_attentions=True
    )
    expected, expected_weights = oracle(query, key, value, allowed=allowed, bias=bias)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, expected_weights)


@pytest.mark.parametrize("as_argument", [False, True])
def test_causal_without_a_mask(as_argument):
    query, key, value = tensors()
    layer = Layer(is_causal=not as_argument)
    output, _ = attention_function(layer, query, key, value, None, is_causal=True if as_argument else None)
    torch.testing.assert_close(output, oracle(query, key, value, allowed=CAUSAL)[0])


def test_the_argument_comes_before_the_attribute_of_the_layer():
    query, key, value = tensors()
    output, _ = attention_function(Layer(is_causal=True), query, key, value, None, is_causal=False)
    torch.testing.assert_close(output, oracle(query, key, value)[0])


def test_one_causal_query_attends_to_every_key():
    query, key, value = tensors(queries=1)
    output, _ = attention_function(Layer(is_causal=True), query, key, value, None)
    torch.testing.assert_close(output, oracle(query, key, value)[0])


def test_a_causal_layer_without_a_mask_is_refused_where_alignment_is_unknown():
    with pytest.raises(RefusedError, match="without a mask") as error:
        attention_function(Layer(is_causal=True), *tensors(queries=3), None)
    assert "3 queries and 11 keys" in str(error.value)


@pytest.mark.parametrize("name", ["block_table", "temperature"])
def test_unknown_arguments_are_refused(name):
    with pytest.raises(RefusedError, match=name):
        attention_function(Layer(), *tensors(), None, **{name: torch.zeros(3, 11, 2, dtype=torch.long)})


@pytest.mark.parametrize("kind", ["bool", "lowest"])
def test_chosen_keys_of_a_sparse_model(kind):
    """Each query attends to the keys of its indices that the mask shows; one has chosen hidden keys alone."""
    query, key, value = leaves = tensors()
    indices = torch.randn(3, 11, 11).topk(4, dim=-1).indices
    indices[1, 0] = torch.tensor([7, 8, 9, 10])
    chosen = torch.zeros(3, 11, 11, dtype=torch.bool)
    for entry in range(3):
        for row in range(11):
            chosen[entry, row, indices[entry, row]] = True
    lowest = torch.finfo(torch.float64).min
    mask = CAUSAL if kind == "bool" else torch.zeros(1, 1, 11, 11).double().masked_fill(~CAUSAL, lowest)
    output, weights = attention_function(Layer(), query, key, value, mask, indices=indices, output_attentions=True)
    expected, of_keys = oracle(query, key, value, allowed=CAUSAL & chosen[:, None])
    assert_equal_with_gradients(output, expected, leaves)
    torch.testing.assert_close(weights, of_keys)
    assert not output[1, 0].any()


@pytest.mark.parametrize(
    ("indices", "mask", "error"),
    [
        (torch.zeros(3, 11, 2, dtype=torch.long), None, RefusedError),
        (torch.zeros(3, 11, 2), CAUSAL, DtypeError),
        ([0], CAUSAL, DtypeError),
        (torch.zeros(3, 5, 2, dtype=torch.long), CAUSAL, ShapeError),
        (torch.full((3, 11, 2), 11), CAUSAL, ShapeError),
        (torch.full((3, 11, 2), -1), CAUSAL, ShapeError),
    ],
)
def test_indices_that_do_not_fit(indices, mask, error):
    with pytest.raises(error):
        attention_function(Layer(), *tensors(), mask, indices=indices)


class Indexed(Layer):
    """A layer whose indexer chooses blocks of 3 keys."""

    def __init__(self, block_size=3):
        super().__init__()
        self.indexer = torch.nn.Module()
        self.indexer.block_size = block_size


@pytest.mark.parametrize("kind", ["bool", "lowest"])
@pytest.mark.parametrize("groups", [1, 2])
def test_chosen_blocks_of_a_sparse_model(kind, groups):
    """Each query of a group of heads attends to the keys of its blocks that the mask shows; the last block is short."""
    query, key, value = leaves = tensors()
    heads = query.shape[1]
    indices = torch.randn(3, groups, 11, 4).topk(2, dim=-1).indices
    indices[1, :, 0] = torch.tensor([2, 3])
    indices[2, :, 5] = torch.tensor([3, -1])
    chosen = torch.zeros(3, heads, 11, 11, dtype=torch.bool)
    for entry in range(3):
        for head in range(heads):
            for row in range(11):
                for block in indices[entry, head * groups // heads, row]:
                    if block >= 0:
                        chosen[entry, head, row, 3 * block : 3 * block + 3] = True
    lowest = torch.finfo(torch.float64).min
    mask = CAUSAL if kind == "bool" else torch.zeros(1, 1, 11, 11).double().masked_fill(~CAUSAL, lowest)
    output, weights = attention_function(
        Indexed(), query, key, value, mask, block_indices=indices, output_attentions=True
    )
    expected, of_keys = oracle(query, key, value, allowed=CAUSAL & chosen)
    assert_equal_with_gradients(output, expected, leaves)
    torch.testing.assert_close(weights, of_keys)
    assert not output[1, 0].any()


@pytest.mark.parametrize(
    ("indices", "layer", "mask", "error"),
    [
        (torch.zeros(3, 1, 11, 2, dtype=torch.long), Indexed(), None, RefusedError),
        (torch.zeros(3, 1, 11, 2, dtype=torch.long), Layer(), CAUSAL, RefusedError),
        (torch.zeros(3, 1, 11, 2, dtype=torch.long), Indexed(0), CAUSAL, RefusedError),
        (torch.zeros(3, 1, 11, 2), Indexed(), CAUSAL, DtypeError),
        (torch.zeros(3, 11, 2, dtype=torch.long), Indexed(), CAUSAL, ShapeError),
        (torch.zeros(3, 5, 11, 2, dtype=torch.long), Indexed(), CAUSAL, ShapeError),
        (torch.full((3, 1, 11, 2), 4), Indexed(), CAUSAL, ShapeError),
        (torch.full((3, 1, 11, 2), -2), Indexed(), CAUSAL, ShapeError),
    ],
)
def test_indices_of_blocks_that_do_not_fit(indices, layer, mask, error):
    with pytest.raises(error):
        attention_function(layer, *tensors(), mask, block_indices=indices)


def test_harmless_arguments_are_accepted():
    expected, _ = attention_function(Layer(), *(inputs := tensors()), None)
    output, _ = attention_function(
        Layer(),
        *inputs,
        None,
        use_cache=True,
        sliding_window=11,
        seq_idx=torch.zeros(3, 11, dtype=torch.int32),
        position_ids=torch.arange(11),
        indices=None,
        block_indices=None,
        anything=None,
    )
    assert torch.equal(output, expected)


@pytest.mark.parametrize("window", [1, 3, 10, 11, 64])
@pytest.mark.parametrize("queries", [1, 11])
def test_a_causal_window_without_a_mask(queries, window):
    """The mask of ``transformers``: key j of query i counts if i - window < j <= i; one query is the last."""
    query, key, value = leaves = tensors(queries=queries)
    output, _ = attention_function(Layer(is_causal=True), query, key, value, None, sliding_window=window)
    positions = torch.arange(11 - queries, 11)[:, None]
    allowed = sliding_window_causal_mask_function(window)(0, 0, positions, torch.arange(11))
    assert_equal_with_gradients(output, oracle(query, key, value, allowed=allowed)[0], leaves)


def test_the_weights_of_a_causal_window():
    query, key, value = tensors()
    layer = Layer(is_causal=True)
    _, weights = attention_function(layer, query, key, value, None, sliding_window=3, output_attentions=True)
    _, expected = oracle(query, key, value, allowed=CAUSAL & ~CAUSAL.tril(-3))
    torch.testing.assert_close(weights, expected)


def test_a_window_counts_only_without_a_mask():
    """The mask of a model holds the window; a model that passes both gets what the mask says."""
    query, key, value = tensors()
    output, _ = attention_function(Layer(is_causal=True), query, key, value, CAUSAL, sliding_window=3)
    torch.testing.assert_close(output, oracle(query, key, value, allowed=CAUSAL)[0])


@pytest.mark.parametrize(("is_causal", "window"), [(False, 3), (False, 10), (True, 0), (True, -1)])
def test_a_window_whose_meaning_is_not_known_is_refused(is_causal, window):
    """Half the width of a window that is not causal: inclusive in the masks of ``transformers``, less one in flash."""
    with pytest.raises(RefusedError, match="with a window, and without a mask") as error:
        attention_function(Layer(is_causal=is_causal), *tensors(), None, sliding_window=window)
    assert f"sliding_window={window}" in str(error.value)


def test_a_window_of_all_keys_is_harmless_in_both_directions():
    query, key, value = tensors()
    output, _ = attention_function(Layer(), query, key, value, None, sliding_window=11)
    torch.testing.assert_close(output, oracle(query, key, value)[0])


def test_a_cache_of_another_kind_is_refused():
    with pytest.raises(RefusedError, match="this cache") as error:
        attention_function(Layer(), *tensors(), None, cache=DynamicCache())
    assert "past_key_values" in str(error.value)


PACKED = [
    {"cu_seq_lens_q": torch.tensor([0, 5, 11]), "cu_seq_lens_k": torch.tensor([0, 5, 11])},
    {"cu_seq_lens_k": torch.tensor([0, 5, 11], dtype=torch.int32)},
    {"seq_idx": (torch.arange(11) >= 5).int()[None]},
]
SAME_TEXT = (torch.arange(11) >= 5)[:, None] == (torch.arange(11) >= 5)


@pytest.mark.parametrize("packed", PACKED, ids=lambda packed: "+".join(packed))
@pytest.mark.parametrize(
    "mask",
    [
        None,
        CAUSAL,
        CAUSAL & SAME_TEXT,
        torch.zeros(1, 1, 11, 11).masked_fill(~CAUSAL, torch.finfo(torch.float32).min),
        CAUSAL & (torch.arange(11) > 1),  # padding on the left, which is cut off
    ],
    ids=["none", "causal", "separated", "additive", "padded"],
)
def test_packed_texts_are_separated(packed, mask):
    """With a mask that separates them, as a model makes it without a cache, and with one that does not."""
    query, key, value = leaves = tensors(batch=1)
    layer = Layer(is_causal=True)
    output, weights = attention_function(layer, query, key, value, mask, output_attentions=True, **packed)
    seen = CAUSAL if mask is None else mask if mask.dtype == torch.bool else mask == 0
    expected, of_keys = oracle(query, key, value, allowed=seen & SAME_TEXT)
    torch.testing.assert_close(weights, of_keys)
    assert_equal_with_gradients(output, expected, leaves)


def test_packed_rows_of_a_batch_are_separated():
    query, key, value = tensors()
    ends = torch.tensor([0, 5, 11, 22, 26, 33])
    output, _ = attention_function(Layer(is_causal=True), query, key, value, None, cu_seq_lens_q=ends)
    numbers = torch.tensor([[0] * 5 + [1] * 6, [0] * 11, [0] * 4 + [1] * 7])
    same = (numbers[:, :, None] == numbers[:, None])[:, None]
    torch.testing.assert_close(output, oracle(query, key, value, allowed=CAUSAL & same)[0])


@pytest.mark.parametrize(
    ("batch", "queries", "packed"),
    [
        (1, 3, {"cu_seq_lens_q": torch.tensor([0, 1, 2])}),
        (1, 11, {"seq_idx": torch.tensor([[0, 1, 1]])}),
        (1, 11, {"cu_seq_lens_q": torch.tensor([0, 5, 12])}),
        (3, 11, {"cu_seq_lens_q": torch.tensor([0, 5, 11])}),
        (1, 11, {"cu_seq_lens_q": torch.tensor([0, 5, 11]), "cu_seq_lens_k": torch.tensor([0, 6, 11])}),
    ],
    ids=["queries", "numbers", "tokens", "rows", "two"],
)
def test_packed_texts_that_do_not_fit_are_refused(batch, queries, packed):
    with pytest.raises(RefusedError, match="packed"):
        attention_function(Layer(is_causal=False), *tensors(batch=batch, queries=queries), None, **packed)


def test_tokens_behind_the_last_text_are_a_text_of_their_own():
    query, key, value = tensors(batch=1)
    output, _ = attention_function(Layer(), query, key, value, CAUSAL, cu_seq_lens_q=torch.tensor([0, 3, 7]))
    numbers = torch.tensor([0] * 3 + [1] * 4 + [2] * 4)
    expected = oracle(query, key, value, allowed=CAUSAL & (numbers[:, None] == numbers))[0]
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize(("queries", "tokens"), [(11, 11), (4, 11)], ids=["prompt", "chunk"])
def test_packed_texts_in_the_beginning_of_a_static_cache(queries, tokens):
    """Keys behind the tokens are hidden, as the unused part of a static cache is."""
    query, key, value = tensors(batch=1, queries=queries, keys=17)
    mask = torch.arange(17) <= torch.arange(tokens - queries, tokens)[:, None]
    ends = {"cu_seq_lens_q": torch.tensor([0, queries]), "cu_seq_lens_k": torch.tensor([0, 5, tokens])}
    output, _ = attention_function(Layer(), query, key, value, mask[None, None], **ends)
    later = torch.arange(17) >= 5
    same = later[tokens - queries : tokens, None] == later
    torch.testing.assert_close(output, oracle(query, key, value, allowed=(mask & same)[None, None])[0])


@pytest.mark.parametrize("layer", ["cross", "flag", "decoder", "longer"])
def test_the_mask_of_other_layers_is_left_as_it_is(layer):
    """Cross-attention, and calls whose keys the arguments do not describe."""
    query, key, value = tensors(batch=1, keys=13 if layer == "longer" else 11)
    mask = torch.rand(1, 1, 11, key.shape[2]) > 0.3
    module = Layer()
    if layer == "cross":
        module = type("TextCrossAttention", (Layer,), {})()
    if layer == "flag":
        module.is_cross_attention = True
    if layer == "decoder":
        module.is_causal, module.config = False, SimpleNamespace(is_encoder_decoder=True)
    output, _ = attention_function(module, query, key, value, mask, **PACKED[0])
    torch.testing.assert_close(output, oracle(query, key, value, allowed=mask)[0])


def test_one_text_is_not_packed():
    one = torch.tensor([0, 11])
    # The rows of a batch are texts of their own.
    rows = torch.arange(3)[:, None].expand(3, 11)
    expected, _ = attention_function(Layer(), *(inputs := tensors()), None)
    output, _ = attention_function(Layer(), *inputs, None, cu_seq_lens_q=one, cu_seq_lens_k=one, seq_idx=rows)
    assert torch.equal(output, expected)


def test_two_kinds_of_sinks_are_refused():
    with pytest.raises(RefusedError, match="two kinds of sinks"):
        attention_function(Layer(), *tensors(), None, s_aux=torch.zeros(4), sinks=torch.zeros(3, 4, 11, 1))


def test_a_mask_for_other_lengths_is_refused():
    with pytest.raises(ShapeError):
        attention_function(Layer(), *tensors(), torch.rand(3, 1, 11, 13) > 0.5)
    with pytest.raises(RegardError):
        attention_function(Layer(), *tensors(), torch.rand(2, 1, 11, 11) > 0.5)


@pytest.mark.parametrize(("queries", "keys"), [(11, 7), (11, 13), (7, 11)])
def test_a_causal_mask_for_other_lengths_is_refused(queries, keys):
    """Its structure, that it is causal, would fit any lengths."""
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)[None, None]
    with pytest.raises(ShapeError, match="does not fit queries and keys"):
        attention_function(Layer(), *tensors(), mask)


@pytest.mark.parametrize("arguments", [{}, {"softcap": 1.5}, {"s_aux": torch.randn(4).double()}])
def test_weights_on_request(arguments):
    query, key, value = tensors()
    allowed = CAUSAL & (torch.arange(11) != 3)
    _, weights = attention_function(Layer(), query, key, value, allowed, output_attentions=True, **arguments)
    sinks = arguments.get("s_aux")
    column = None if sinks is None else sinks.reshape(1, 4, 1, 1)
    _, expected = oracle(query, key, value, allowed=allowed, softcap=arguments.get("softcap"), sinks=column)
    torch.testing.assert_close(weights, expected)


def test_dropout_only_while_training():
    inputs = tensors()
    layer = Layer()
    expected, _ = attention_function(layer, *inputs, None)
    assert torch.equal(attention_function(layer, *inputs, None, dropout=0.5)[0], expected)
    layer.train()
    assert not torch.equal(attention_function(layer, *inputs, None, dropout=0.5)[0], expected)


def test_dropout_with_a_sink_has_the_right_mean():
    query, key, value = tensors()
    layer = Layer().train()
    sinks = torch.zeros(4).double()
    expected, _ = attention_function(layer, query, key, value, None, s_aux=sinks)
    draws = torch.stack(
        [attention_function(layer, query, key, value, None, s_aux=sinks, dropout=0.3)[0] for _ in range(400)]
    )
    error = (draws.mean(0) - expected).abs() / (draws.std(0) / math.sqrt(len(draws)))
    assert error.max() < 6.0


def test_a_trained_scale():
    query, key, value = leaves = tensors()
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    output, _ = attention_function(Layer(), query, key, value, None, scaling=scale)
    assert_equal_with_gradients(output, oracle(query, key, value, scale=scale)[0], (*leaves, scale))


@pytest.mark.parametrize("single", ["query", "key"])
def test_one_side_for_the_whole_batch(single):
    query, key, value = tensors()
    if single == "query":
        query = query[:1]
    else:
        key, value = key[:1], value[:1]
    output, _ = attention_function(Layer(), query, key, value, None)
    torch.testing.assert_close(output, oracle(query, key, value)[0])


def test_autocast_takes_tensors_of_several_dtypes():
    """Rotary positions leave queries and keys in float32, and values in bfloat16."""
    query, key, value = (tensor.detach() for tensor in tensors(dtype=torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = attention_function(Layer(), query, key, value.bfloat16(), None)
    assert output.dtype == torch.bfloat16
    expected, _ = attention_function(Layer(), query.bfloat16(), key.bfloat16(), value.bfloat16(), None)
    assert torch.equal(output, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("arguments", [{}, {"softcap": 1.5}, {"s_aux": torch.zeros(4)}])
def test_half_precision(dtype, arguments):
    query, key, value = (tensor.detach().to(dtype) for tensor in tensors())
    output, _ = attention_function(Layer(), query, key, value, CAUSAL, **arguments)
    assert output.dtype == dtype
    sinks = torch.zeros(1, 4, 1, 1).double() if "s_aux" in arguments else None
    expected, _ = oracle(
        query.double(), key.double(), value.double(), allowed=CAUSAL, softcap=arguments.get("softcap"), sinks=sinks
    )
    # bfloat16 multiplies in pairs may round the weights too: twice the rounding of values up to the largest.
    atol = 2 * torch.finfo(dtype).eps * float(value.abs().max())
    torch.testing.assert_close(output.double(), expected, atol=atol, rtol=0)
