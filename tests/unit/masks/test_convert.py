"""Converted masks against the functions whose conventions they follow."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close
from transformers import BertConfig, BertModel

import regard
from regard import masks
from regard.errors import DtypeError, OptionError, ShapeError

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 3, 5, 7, 12


def random_bools(*shape):
    """Random bools with False first in each row, so that every query has a visible key if True means hidden."""
    tensor = torch.rand(shape) < 0.5
    tensor[..., 0] = False
    return tensor


def to_additive(hidden, lowest=-torch.inf):
    """Convert to an additive mask."""
    return torch.zeros(hidden.shape).masked_fill(hidden, lowest)


class TestMultiheadAttention:
    def theirs_and_ours(self, mask, **arguments):
        module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
        query, memory = torch.randn(BATCH, QUERIES, WIDTH), torch.randn(BATCH, KEYS, WIDTH)
        ours = regard.MultiHeadAttention.from_torch(module)(query, memory, mask=mask)
        return module(query, memory, memory, need_weights=False, **arguments)[0], ours

    @pytest.mark.parametrize("shape", [(QUERIES, KEYS), (BATCH * HEADS, QUERIES, KEYS)])
    @pytest.mark.parametrize("form", [lambda banned: banned, to_additive])
    def test_attention_mask(self, shape, form):
        mask = form(random_bools(*shape))
        converted = masks.from_multihead_attention(mask, heads=HEADS)
        assert_close(*self.theirs_and_ours(converted, attn_mask=mask), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("form", [lambda banned: banned, to_additive])
    def test_padding(self, form):
        padding = form(random_bools(BATCH, KEYS))
        converted = masks.from_multihead_attention(key_padding_mask=padding)
        assert not converted.depends_on_query
        assert_close(*self.theirs_and_ours(converted, key_padding_mask=padding), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("form", [lambda banned: banned, to_additive])
    def test_attention_mask_and_padding(self, form):
        mask, padding = form(random_bools(BATCH * HEADS, QUERIES, KEYS)), form(random_bools(BATCH, KEYS))
        converted = masks.from_multihead_attention(mask, padding, heads=HEADS)
        outputs = self.theirs_and_ours(converted, attn_mask=mask, key_padding_mask=padding)
        assert_close(*outputs, rtol=0, atol=1e-6)

    def test_causal(self):
        mask = nn.Transformer.generate_square_subsequent_mask(KEYS)
        assert torch.equal(masks.from_multihead_attention(mask).dense(KEYS, KEYS), masks.causal().dense(KEYS, KEYS))

    def test_batch_comes_before_heads(self):
        banned = torch.zeros(BATCH * HEADS, QUERIES, KEYS, dtype=torch.bool)
        banned[1 * HEADS + 2, 3, 4] = True
        dense = masks.from_multihead_attention(banned, heads=HEADS).dense(QUERIES, KEYS)
        assert (~dense).nonzero().tolist() == [[1, 2, 3, 4]]

    def test_messages(self):
        three = random_bools(BATCH * HEADS, QUERIES, KEYS)
        for heads in (None, 4):
            with pytest.raises(OptionError, match=rf"(?s)3-d attn_mask.*heads={heads}, shape \(6, 5, 7\).*num_heads"):
                masks.from_multihead_attention(three, heads=heads)
        with pytest.raises(OptionError, match=r"(?s)wrong heads.*got: +0"):
            masks.from_multihead_attention(three, heads=0)
        for shape in ((KEYS,), (BATCH, HEADS, QUERIES, KEYS)):
            with pytest.raises(ShapeError, match=r"(?s)attn_mask.*\(queries, keys\) or \(batch \* heads.*7"):
                masks.from_multihead_attention(random_bools(*shape))
        with pytest.raises(ShapeError, match=r"(?s)key_padding_mask.*\(batch, keys\).*got: +\(7,\)"):
            masks.from_multihead_attention(key_padding_mask=random_bools(KEYS))
        with pytest.raises(OptionError, match=r"(?s)no mask was passed.*attn_mask or key_padding_mask.*mask=None"):
            masks.from_multihead_attention()


class TestSdpa:
    def theirs_and_ours(self, mask, queries=QUERIES, keys=KEYS, **arguments):
        query = torch.randn(BATCH, HEADS, queries, 4)
        key, value = torch.randn(2, BATCH, HEADS, keys, 4)
        theirs = scaled_dot_product_attention(query, key, value, **arguments)
        return theirs, regard.attention(query, key, value, mask=mask)

    @pytest.mark.parametrize(
        "shape",
        [(QUERIES, KEYS), (1, KEYS), (BATCH, HEADS, QUERIES, KEYS), (BATCH, 1, 1, KEYS), (1, HEADS, QUERIES, KEYS)],
    )
    @pytest.mark.parametrize("form", [lambda banned: ~banned, to_additive])
    def test_attention_mask(self, shape, form):
        mask = form(random_bools(*shape))
        assert_close(*self.theirs_and_ours(masks.from_sdpa(mask), attn_mask=mask), rtol=0, atol=1e-6)

    @pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3)])
    def test_causal(self, queries, keys):
        mask = masks.from_sdpa(is_causal=True)
        assert_close(*self.theirs_and_ours(mask, queries, keys, is_causal=True), rtol=0, atol=1e-6)

    def test_attention_mask_and_causal(self):
        allowed = ~random_bools(5, 5)
        both = masks.from_sdpa(allowed, is_causal=True)
        assert torch.equal(both.dense(5, 5)[0, 0], allowed.tril())

    def test_messages(self):
        with pytest.raises(OptionError, match=r"(?s)no mask was passed.*attn_mask or is_causal"):
            masks.from_sdpa()
        with pytest.raises(ShapeError, match=r"(?s)2 or 4 dimensions.*got: +shape \(3, 5, 7\)"):
            masks.from_sdpa(random_bools(3, 5, 7))


class TestTransformers:
    """The attention weights of a random BERT are 0 exactly where the mask hides keys."""

    def weights(self, attention_mask):
        torch.manual_seed(7)
        config = BertConfig(
            vocab_size=17,
            hidden_size=12,
            num_hidden_layers=1,
            num_attention_heads=3,
            intermediate_size=5,
            attn_implementation="eager",
        )
        model = BertModel(config).eval()
        with torch.no_grad():
            output = model(torch.arange(BATCH * KEYS).view(BATCH, KEYS), attention_mask, output_attentions=True)
        return output.attentions[0]

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
    def test_padding(self, dtype):
        tokens = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 0, 1, 1, 1]]).to(dtype)
        allowed = masks.from_transformers(tokens).dense(KEYS, KEYS).expand(BATCH, HEADS, KEYS, KEYS)
        assert torch.equal(self.weights(tokens) > 0, allowed)

    @pytest.mark.parametrize("lowest", [-torch.inf, torch.finfo(torch.float32).min])
    @pytest.mark.parametrize("shape", [(BATCH, 1, KEYS, KEYS), (BATCH, HEADS, KEYS, KEYS), (BATCH, 1, 1, KEYS)])
    def test_additive(self, lowest, shape):
        mask = to_additive(random_bools(*shape), lowest)
        allowed = masks.from_transformers(mask).dense(KEYS, KEYS).expand(BATCH, HEADS, KEYS, KEYS)
        assert torch.equal(self.weights(mask) > 0, allowed)

    def test_bool_of_four_dimensions(self):
        allowed = ~random_bools(BATCH, 1, QUERIES, KEYS)
        assert torch.equal(masks.from_transformers(allowed).dense(QUERIES, KEYS), allowed)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_lowest_value_of_each_dtype(self, dtype):
        banned = random_bools(BATCH, 1, QUERIES, KEYS)
        mask = torch.zeros(banned.shape, dtype=dtype).masked_fill(banned, torch.finfo(dtype).min)
        assert torch.equal(masks.from_transformers(mask).dense(QUERIES, KEYS), ~banned)

    def test_messages(self):
        with pytest.raises(ShapeError, match=r"(?s)attention_mask.*\(batch, keys\) or \(batch, heads.*got: +\(7,\)"):
            masks.from_transformers(torch.ones(7))
        with pytest.raises(OptionError, match=r"(?s)1 for tokens and 0.*only 0 and 1.*from 0 to 3.*padding_of"):
            masks.from_transformers(torch.tensor([[0, 3, 1]]))
        with pytest.raises(OptionError, match=r"(?s)1 for tokens and 0.*from -inf to 0"):
            masks.from_transformers(to_additive(random_bools(BATCH, KEYS)))


class TestOtherInputs:
    """Masks that are neither bool nor additive; and arrays and lists."""

    @pytest.mark.parametrize("convert", [masks.from_multihead_attention, masks.from_sdpa])
    def test_float_biases_are_refused(self, convert):
        for value in (-10_000.0, 0.5, torch.inf, torch.nan):
            mask = torch.zeros(QUERIES, KEYS)
            mask[1, 2] = value
            with pytest.raises(
                OptionError, match=rf"(?s)is a bias.*0 \(may attend\) and -inf.*such as {value:g}.*masks\.keep.*bias="
            ):
                convert(mask)

    @pytest.mark.parametrize("convert", [masks.from_multihead_attention, masks.from_sdpa])
    def test_integer_masks_are_refused(self, convert):
        with pytest.raises(DtypeError, match=r"(?s)neither bool nor additive.*torch\.uint8.*which value means"):
            convert(torch.zeros(QUERIES, KEYS, dtype=torch.uint8))
        with pytest.raises(DtypeError, match=r"torch\.int64"):
            masks.from_transformers(torch.ones(BATCH, 1, QUERIES, KEYS, dtype=torch.int64))

    def test_arrays_and_lists_are_converted_like_tensors(self):
        for convert, tensor in (
            (masks.from_sdpa, ~random_bools(BATCH, 1, QUERIES, KEYS)),
            (masks.from_sdpa, to_additive(random_bools(QUERIES, KEYS))),
            (masks.from_multihead_attention, random_bools(QUERIES, KEYS)),
            (
                lambda mask: masks.from_multihead_attention(mask, heads=HEADS),
                random_bools(BATCH * HEADS, QUERIES, KEYS),
            ),
            (lambda padding: masks.from_multihead_attention(None, padding), random_bools(BATCH, KEYS)),
            (masks.from_transformers, (~random_bools(BATCH, KEYS)).long()),
            (
                masks.from_transformers,
                to_additive(random_bools(BATCH, 1, QUERIES, KEYS), torch.finfo(torch.float32).min),
            ),
        ):
            expected = convert(tensor)
            assert convert(tensor.numpy()) == expected
            assert convert(tensor.tolist()) == expected

    def test_mask_is_independent_of_later_changes_to_its_tensor(self):
        for convert, tensor in (
            (masks.from_sdpa, ~random_bools(QUERIES, KEYS)),
            (masks.from_sdpa, to_additive(random_bools(QUERIES, KEYS))),
            (masks.from_multihead_attention, random_bools(QUERIES, KEYS)),
            (masks.from_transformers, (~random_bools(BATCH, KEYS)).long()),
        ):
            mask = convert(tensor)
            before = mask.dense(QUERIES, KEYS).clone()
            tensor.fill_(0)
            assert torch.equal(mask.dense(QUERIES, KEYS), before)


class TestCuSeqlens:
    """Each text alone, in torch's function, is the oracle."""

    @pytest.mark.parametrize("is_causal", [False, True])
    @pytest.mark.parametrize("lengths", [(7,), (3, 0, 1, 7), (1, 2)])
    def test_texts_attend_to_themselves(self, lengths, is_causal):
        ends = torch.tensor([0, *lengths]).cumsum(0).int()
        tokens = [torch.randn(1, HEADS, sum(lengths), WIDTH) for _ in range(3)]
        texts = zip(*(side.split(lengths, dim=2) for side in tokens), strict=True)
        alone = [scaled_dot_product_attention(*text, is_causal=is_causal) for text in texts if text[0].shape[2]]
        mask = masks.from_cu_seqlens(ends)
        ours = regard.attention(*tokens, mask=mask & masks.causal() if is_causal else mask)
        assert_close(ours, torch.cat(alone, 2), rtol=0, atol=1e-6)

    def test_queries_of_other_tokens(self):
        of_queries, of_keys = (2, 1, 4), (3, 5, 1)
        query, key = torch.randn(1, HEADS, 7, WIDTH), torch.randn(1, HEADS, 9, WIDTH)
        parts = zip(query.split(of_queries, 2), key.split(of_keys, 2), strict=True)
        alone = [scaled_dot_product_attention(part, of_part, of_part) for part, of_part in parts]
        mask = masks.from_cu_seqlens([0, 3, 8, 9], [0, 2, 3, 7])
        assert_close(regard.attention(query, key, key, mask=mask), torch.cat(alone, 2), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("ends", [[1, 3], [0, 3, 2], [0], [0.0, 3.0]])
    def test_others_are_refused(self, ends):
        with pytest.raises(OptionError, match=r"(?s)cu_seqlens_k does not say where texts begin.*\[0, 5, 8\]"):
            masks.from_cu_seqlens(ends)
        with pytest.raises(ShapeError, match="cu_seqlens_k has the wrong shape"):
            masks.from_cu_seqlens([[0, 3]])
