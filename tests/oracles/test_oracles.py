"""The oracles against hand-worked cases, closed forms, published numbers and finite differences."""

import ast
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from oracles import blocks, differences
from regard.conformance.oracles import (
    additive,
    attention,
    bigbird,
    dropout,
    longformer,
    luong,
    masks,
    positions,
    rotary,
    sigmoid,
)

BATCH, HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM, HIDDEN = 2, 3, 3, 5, 7, 2, 5
GRADIENTS = pytest.mark.parametrize(
    "assert_gradients",
    [
        pytest.param(differences.assert_directional_derivatives, id="along directions"),
        pytest.param(differences.assert_gradients_elementwise, id="element by element", marks=pytest.mark.slow),
    ],
)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(1706)


def inputs(random, heads=HEADS, key_heads=HEADS):
    return (
        random.normal(size=(BATCH, heads, QUERIES, HEAD_DIM)),
        random.normal(size=(BATCH, key_heads, KEYS, HEAD_DIM)),
        random.normal(size=(BATCH, key_heads, KEYS, VALUE_DIM)),
    )


def mask_with_empty_row_and_hidden_key(random):
    allowed = random.random((BATCH, 1, QUERIES, KEYS)) < 0.7
    allowed[:, :, 0, 0] = True
    allowed[:, :, 1] = False
    allowed[..., 3] = False
    return allowed


def test_oracles_import_only_numpy_and_one_another():
    folders = Path(__file__).parent, Path(attention.__file__).parent
    for path in (path for folder in folders for path in folder.glob("*.py") if not path.name.startswith("test_")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            inner = {name for name in imported if f"{name}.".startswith("regard.conformance.oracles.")}
            allowed = {"numpy", "oracles", *sys.stdlib_module_names}
            assert {name.split(".")[0] for name in imported if name not in inner} <= allowed, path.name


class TestDropout:
    def test_generator_is_the_published_splitmix64(self):
        """The first five numbers of SplitMix64 for seed 1234567, which many implementations use as a test."""
        expected = [
            6457827717110365317,
            3203168211198807973,
            9817491932198370423,
            4593380528125082431,
            16408922859458223821,
        ]
        states = [(1234567 + step * 0x9E3779B97F4A7C15) % 2**64 for step in range(5)]
        assert [dropout.mix(state) for state in states] == expected

    def test_fraction_of_kept_numbers(self):
        count, probability = 100_003, 0.3
        lost = count - dropout.keep_mask(5, count, probability).sum()
        assert abs(lost - count * probability) < 5 * (count * probability * (1 - probability)) ** 0.5
        assert dropout.keep_mask(5, 7, 0.0).all()
        assert dropout.keep_mask(5, 0, 0.3).shape == (0,)


class TestDotProduct:
    def test_two_vectors(self):
        """The example that many tutorials print: scores [[8, 14], [18, 32]], then scaled by 1 / sqrt(2)."""
        query = np.array([[1.0, 2], [3, 4]])[None, None]
        key = np.array([[2.0, 3], [4, 5]])[None, None]
        value = np.array([[0.1, 0.2], [0.3, 0.4]])[None, None]
        output, weights = attention.attention(query, key, value)
        expected = [[1.4166e-02, 9.8583e-01], [5.0198e-05, 9.9995e-01]]
        np.testing.assert_allclose(weights[0, 0], expected, rtol=5e-5)
        np.testing.assert_allclose(output[0, 0], [[0.2972, 0.3972], [0.3, 0.4]], atol=5e-5)
        # The softmax of two scores is the logistic function of their difference, here (14 - 8) / sqrt(2).
        np.testing.assert_allclose(weights[0, 0, 0, 1], 1 / (1 + math.exp(-6 / math.sqrt(2))), rtol=1e-15)

    def test_equal_scores_give_the_mean(self, random):
        _, key, value = inputs(random)
        query = np.zeros((BATCH, HEADS, QUERIES, HEAD_DIM))
        output, _ = attention.attention(query, key, value)
        np.testing.assert_allclose(output, np.broadcast_to(value.mean(2, keepdims=True), output.shape))

    def test_default_scale_is_one_over_the_root_of_head_dim(self, random):
        query, key, value = inputs(random)
        given = attention.attention(query, key, value, scale=1 / math.sqrt(HEAD_DIM))[0]
        np.testing.assert_array_equal(attention.attention(query, key, value)[0], given)

    def test_matrix_equation(self, random):
        """Equation 1 in one line, where nothing is masked."""
        query, key, value = inputs(random)
        exponentials = np.exp(query @ key.swapaxes(2, 3) / math.sqrt(HEAD_DIM))
        expected = exponentials / exponentials.sum(-1, keepdims=True) @ value
        np.testing.assert_allclose(attention.attention(query, key, value)[0], expected, rtol=1e-13)

    def test_grouped_queries_equal_repeated_keys(self, random):
        query, key, value = inputs(random, heads=6, key_heads=2)
        repeated = attention.attention(query, key.repeat(3, axis=1), value.repeat(3, axis=1))
        for ours, expected in zip(attention.attention(query, key, value), repeated, strict=True):
            np.testing.assert_array_equal(ours, expected)

    def test_bias_of_minus_infinity_masks(self, random):
        query, key, value = inputs(random)
        allowed = mask_with_empty_row_and_hidden_key(random)
        with_mask = attention.attention(query, key, value, allowed)
        with_bias = attention.attention(query, key, value, bias=np.where(allowed, 0.0, -np.inf))
        np.testing.assert_array_equal(with_bias[0], with_mask[0])

    def test_masked_keys_have_no_influence(self, random):
        query, key, value = inputs(random)
        allowed = mask_with_empty_row_and_hidden_key(random)
        upstream = random.normal(size=(BATCH, HEADS, QUERIES, VALUE_DIM))
        clean = attention.attention(query, key, value, allowed)[0]
        clean_gradients = attention.backward(query, key, value, upstream, allowed)
        key[:, :, 3], value[:, :, 3], query[:, :, 1] = np.nan, np.inf, np.nan
        np.testing.assert_array_equal(attention.attention(query, key, value, allowed)[0], clean)
        assert (clean[:, :, 1] == 0).all()
        poisoned_gradients = attention.backward(query, key, value, upstream, allowed)
        for ours, expected in zip(poisoned_gradients[:3], clean_gradients[:3], strict=True):
            np.testing.assert_array_equal(ours, expected)
        assert (clean_gradients.query[:, :, 1] == 0).all()
        assert (clean_gradients.key[:, :, 3] == 0).all()
        assert (clean_gradients.value[:, :, 3] == 0).all()

    @GRADIENTS
    @pytest.mark.parametrize("bias_shape", [(6, 1, KEYS), (BATCH, 1, QUERIES, KEYS), (QUERIES, 1), (1,)])
    def test_backward(self, random, bias_shape, assert_gradients):
        query, key, value = inputs(random, heads=6, key_heads=3)
        allowed = mask_with_empty_row_and_hidden_key(random)
        bias = random.normal(size=bias_shape)
        upstream = random.normal(size=(BATCH, 6, QUERIES, VALUE_DIM))

        def loss(query, key, value, bias):
            return float((attention.attention(query, key, value, allowed, bias, scale=0.3)[0] * upstream).sum())

        ours = attention.backward(query, key, value, upstream, allowed, bias, scale=0.3)
        assert_gradients(loss, (query, key, value, bias), ours[:4], atol=1e-10)

    def test_backward_with_softcap_sinks_and_dropout(self, random):
        query, key, value = inputs(random, heads=6, key_heads=3)
        bias, sinks = random.normal(size=(6, 1, KEYS)), random.normal(size=6)
        terms = {"allowed": mask_with_empty_row_and_hidden_key(random), "scale": 0.7, "softcap": 1.3}
        terms["dropout_mask"] = (random.random((BATCH, 6, QUERIES, KEYS)) < 0.7) / 0.7
        upstream = random.normal(size=(BATCH, 6, QUERIES, VALUE_DIM))

        def loss(query, key, value, bias, sinks):
            return float((attention.attention(query, key, value, bias=bias, sinks=sinks, **terms)[0] * upstream).sum())

        ours = attention.backward(query, key, value, upstream, bias=bias, sinks=sinks, **terms)
        differences.assert_directional_derivatives(loss, (query, key, value, bias, sinks), ours, atol=1e-10)

    def test_observe_of_equal_weights(self):
        """Over n keys with scores of 0, entropy and lse are both log n."""
        query, key = np.zeros((1, 1, 2, 3)), np.zeros((1, 1, 5, 3))
        allowed = np.array([[True, False, True, True, False], [False] * 5])
        observation = attention.observe(query, key, np.ones((1, 1, 5, 2)), allowed, top=4, query_rows=(1, 0))
        np.testing.assert_allclose(observation.lse[0, 0], [math.log(3), -np.inf])
        np.testing.assert_allclose(observation.entropy[0, 0], [math.log(3), 0])
        np.testing.assert_allclose(observation.received[0, 0], [1 / 3, 0, 1 / 3, 1 / 3, 0])
        assert observation.top_keys[0, 0].tolist() == [[0, 2, 3, -1], [-1] * 4]
        np.testing.assert_allclose(observation.top_weights[0, 0], [[1 / 3, 1 / 3, 1 / 3, 0], [0] * 4])
        np.testing.assert_allclose(observation.rows[0, 0], [[0] * 5, [1 / 3, 0, 1 / 3, 1 / 3, 0]])

    def test_observe_of_known_weights(self):
        """Scores log 1, log 2, log 5 have weights 1/8, 1/4, 5/8 and lse log 8, a large shift in or out."""
        key = np.log(np.array([1.0, 2, 5]))[None, None, :, None] + 700
        observation = attention.observe(np.ones((1, 1, 1, 1)), key, np.eye(3)[None, None], scale=1.0)
        np.testing.assert_allclose(observation.weights[0, 0, 0], [1 / 8, 1 / 4, 5 / 8])
        np.testing.assert_allclose(observation.lse[0, 0, 0], math.log(8) + 700)
        bits = (3 + 2 * 2 + 5 * (3 - math.log2(5))) / 8
        np.testing.assert_allclose(observation.entropy[0, 0, 0], bits * math.log(2))
        assert observation.top_keys[0, 0, 0].tolist() == [2, 1, 0, *[-1] * 5]


class TestAdditive:
    def test_by_hand(self):
        """One dimension: scores 2 tanh(3 * 0.1 - k) for keys 0.3 and 0.3 - atanh(0.5) are 0 and 1."""
        query, key = np.full((1, 1, 1, 1), 0.1), np.array([0.3, 0.3 - math.atanh(0.5)]).reshape(1, 1, 2, 1)
        weight, minus = np.full((1, 1, 1), 3.0), np.full((1, 1, 1), -1.0)
        _, weights = additive.attention(query, key, key, weight, minus, np.full((1, 1), 2.0))
        np.testing.assert_allclose(weights[0, 0, 0], [1 / (1 + math.e), math.e / (1 + math.e)])

    @GRADIENTS
    def test_backward(self, random, assert_gradients):
        query, key, value = inputs(random, heads=4, key_heads=2)
        allowed = mask_with_empty_row_and_hidden_key(random)
        upstream = random.normal(size=(BATCH, 4, QUERIES, VALUE_DIM))
        weights = [random.normal(size=(4, HIDDEN, HEAD_DIM)) / 3 for _ in range(2)] + [random.normal(size=(4, HIDDEN))]

        def loss(*arguments):
            return float((additive.attention(*arguments, allowed)[0] * upstream).sum())

        ours = additive.backward(query, key, value, *weights, upstream, allowed)
        assert_gradients(loss, (query, key, value, *weights), ours, atol=1e-9)


class TestSigmoid:
    def test_two_known_weights(self):
        """A score of 0 among 3 visible keys weighs 1 / (1 + 3); of log 3 it weighs 1 / 2."""
        key = np.array([0.0, np.log(3), 0.0, 9.0])[None, None, :, None]
        allowed = np.array([True, True, True, False])
        _, weights = sigmoid.attention(np.ones((1, 1, 1, 1)), key, np.ones((1, 1, 4, 2)), allowed)
        np.testing.assert_allclose(weights[0, 0, 0], [1 / 4, 1 / 2, 1 / 4, 0])

    @GRADIENTS
    @pytest.mark.parametrize("bias", [None, -0.3])
    def test_backward(self, random, bias, assert_gradients):
        query, key, value = inputs(random, heads=6, key_heads=3)
        allowed = mask_with_empty_row_and_hidden_key(random)
        pair_bias = random.normal(size=(6, 1, KEYS))
        upstream = random.normal(size=(BATCH, 6, QUERIES, VALUE_DIM))

        def loss(query, key, value, pair_bias):
            return float((sigmoid.attention(query, key, value, allowed, bias, pair_bias)[0] * upstream).sum())

        ours = sigmoid.backward(query, key, value, upstream, allowed, bias, pair_bias)
        assert_gradients(loss, (query, key, value, pair_bias), ours[:4], atol=1e-10)


class TestLuong:
    def test_dot_is_the_unscaled_dot_product(self, random):
        query, key, value = inputs(random, heads=4, key_heads=2)
        allowed = mask_with_empty_row_and_hidden_key(random)
        expected = attention.attention(query, key, value, allowed, scale=1.0)[0]
        np.testing.assert_allclose(luong.dot(query, key, value, allowed)[0], expected, rtol=1e-12)

    def test_general_is_dot_with_a_projected_query(self, random):
        query, key, value = inputs(random)
        weight = random.normal(size=(HEADS, HEAD_DIM, HEAD_DIM))
        expected = luong.dot(query @ weight, key, value)[0]
        np.testing.assert_allclose(luong.general(query, key, value, weight)[0], expected, rtol=1e-12)

    def test_concat_is_additive_with_its_weight_split(self, random):
        query, key, value = inputs(random)
        weight = random.normal(size=(HEADS, HIDDEN, 2 * HEAD_DIM))
        score_vector = random.normal(size=(HEADS, HIDDEN))
        expected, _ = additive.attention(
            query, key, value, weight[..., :HEAD_DIM], weight[..., HEAD_DIM:], score_vector
        )
        ours, _ = luong.concat(query, key, value, weight, score_vector)
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


class TestDifferences:
    def test_known_gradient(self, random):
        point = random.normal(size=(3, 2))
        gradient = differences.gradient(lambda x: float(np.exp(x).sum() + x.prod()), point)
        np.testing.assert_allclose(gradient, np.exp(point) + point.prod() / point, atol=1e-11)

    @GRADIENTS
    def test_wrong_gradient_element_is_detected(self, random, assert_gradients):
        points = [random.normal(size=(3, 2)), random.normal(size=(5,))]

        def function(one, other):
            return float(np.exp(one).sum() * other.prod())

        right = [np.exp(points[0]) * points[1].prod(), np.exp(points[0]).sum() * points[1].prod() / points[1]]
        assert_gradients(function, points, right, atol=1e-9)
        right[1][3] += 1e-6
        with pytest.raises(AssertionError):
            assert_gradients(function, points, right, atol=1e-9)


def grid(text: str) -> np.ndarray:
    """A mask as a picture: x may attend, . may not."""
    return np.array([[mark == "x" for mark in row] for row in text.split()])


class TestMasks:
    def test_causal(self):
        np.testing.assert_array_equal(masks.causal(3, 3), grid("x.. xx. xxx"))

    def test_causal_with_fewer_queries_ends_at_the_last_key(self):
        np.testing.assert_array_equal(masks.causal(2, 5), grid("xxxx. xxxxx"))

    def test_causal_with_more_queries_leaves_the_first_ones_empty(self):
        np.testing.assert_array_equal(masks.causal(4, 2), grid(".. .. x. xx"))

    def test_window(self):
        np.testing.assert_array_equal(masks.window(1, 2, 5, 5), grid("xxx.. xxxx. .xxxx ..xxx ...xx"))

    def test_window_without_bound(self):
        np.testing.assert_array_equal(masks.window(None, 0, 3, 5), masks.causal(3, 5))
        np.testing.assert_array_equal(masks.window(0, None, 3, 3), grid("xxx .xx ..x"))
        assert masks.window(None, None, 2, 3).all()

    def test_padding(self):
        padded = masks.padding([2, 0, 3], 2, 3)
        assert padded.shape == (3, 1, 2, 3)
        np.testing.assert_array_equal(padded[0, 0], grid("xx. xx."))
        assert not padded[1].any()
        assert padded[2].all()

    def test_documents(self):
        kept = masks.documents([[7, 7, 3, 3, 3], [0, 1, 1, 0, 2]], 5, 5)
        np.testing.assert_array_equal(kept[0, 0], grid("xx... xx... ..xxx ..xxx ..xxx"))
        np.testing.assert_array_equal(kept[1, 0], grid("x..x. .xx.. .xx.. x..x. ....x"))

    def test_documents_with_fewer_queries(self):
        np.testing.assert_array_equal(masks.documents([[7, 7, 3]], 2, 3)[0, 0], grid("xx. ..x"))

    def test_global_tokens(self):
        np.testing.assert_array_equal(masks.global_tokens([1], 3, 3), grid(".x. xxx .x."))

    def test_global_tokens_with_fewer_queries(self):
        np.testing.assert_array_equal(masks.global_tokens([0, 3], 2, 4), grid("x..x xxxx"))

    def test_keep_and_blocked_are_opposite(self, random):
        array = random.random((BATCH, 1, 1, KEYS)) < 0.5
        kept = masks.keep(array, QUERIES, KEYS)
        np.testing.assert_array_equal(kept, np.broadcast_to(array, (BATCH, 1, QUERIES, KEYS)))
        np.testing.assert_array_equal(masks.blocked(array, QUERIES, KEYS), ~kept)


class TestSparse:
    """Queries of 0 have equal weights for all visible keys, and one-hot values show which keys these are."""

    def visible_keys(self, attention, tokens, *arguments):
        zeros, ones = np.zeros((1, 1, tokens, 2)), np.eye(tokens)[None, None]
        weights = attention(zeros, zeros, ones, *arguments)[0, 0]
        np.testing.assert_allclose(weights.sum(-1), 1)
        return weights > 0

    def test_longformer(self):
        is_global = np.array([[False, True, False, False]])
        np.testing.assert_array_equal(
            self.visible_keys(longformer.attention, 4, 2, is_global), grid("xx.. xxxx .xxx .xxx")
        )
        nothing = np.zeros((1, 5), dtype=bool)
        np.testing.assert_array_equal(
            self.visible_keys(longformer.attention, 5, 2, nothing, None, (2,)), grid("x.x.. .x.x. x.x.x .x.x. ..x.x")
        )

    def test_projections_of_global_tokens_in_longformer(self):
        query, key, value = np.zeros((1, 1, 3, 2)), np.zeros((1, 1, 3, 2)), np.eye(3)[None, None]
        output = longformer.attention(
            query, key, value, 2, np.array([[False, False, True]]), global_value=5 * value, global_query=query
        )
        np.testing.assert_allclose(output[0, 0], [[1 / 3] * 3, [1 / 3] * 3, [5 / 3] * 3])

    def test_bigbird(self):
        np.testing.assert_array_equal(
            self.visible_keys(bigbird.attention, 6, 2, 1, [[[2], [0], []]], (0,)),
            grid("xxxxxx xx..xx xxxx.. xxxx.. x...xx x...xx"),
        )
        np.testing.assert_array_equal(
            self.visible_keys(bigbird.attention, 5, 2, 1, [[[1], []]], (0,), None, 1),
            grid("xxxxx xxxxx xxxxx x..xx x..xx"),
        )


class TestPositions:
    def test_sinusoidal_by_hand(self):
        table = positions.sinusoidal(3, 4)
        expected = [[0, 1, 0, 1], [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]]
        np.testing.assert_allclose(table[:2], expected)

    def test_sinusoidal_shift_is_a_rotation(self):
        """Section 3.5: PE[pos + k] is a linear function of PE[pos], the same for all positions."""
        table = positions.sinusoidal(11, 6)
        pairs = table[:, 0::2] * 1j + table[:, 1::2]
        np.testing.assert_allclose(pairs[5:] / pairs[:-5], np.broadcast_to(pairs[5], (6, 3)), rtol=1e-12)

    def test_alibi_slopes_of_the_paper(self):
        """Section 3: 1/2 to 1/256 for 8 heads, 2^-0.5 to 2^-8 for 16."""
        np.testing.assert_array_equal(positions.alibi_slopes(8), [1 / 2**power for power in range(1, 9)])
        np.testing.assert_allclose(positions.alibi_slopes(16), [2 ** (-power / 2) for power in range(1, 17)])

    def test_alibi_slopes_between_powers_of_two(self):
        """Twelve heads: the eight, then every other one of the sixteen."""
        beyond = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
        np.testing.assert_allclose(positions.alibi_slopes(12)[:8], positions.alibi_slopes(8))
        np.testing.assert_allclose(positions.alibi_slopes(12)[8:], beyond)
        np.testing.assert_allclose(positions.alibi_slopes(3), [2**-4, 2**-8, 2**-2])

    def test_alibi_by_hand(self):
        np.testing.assert_allclose(positions.alibi(1, 2, 3)[0], -np.array([[1, 0, 1], [2, 1, 0]]) / 256)

    def test_shaw_rows_are_clipped(self):
        """k = 1: rows for -1, 0 and 1, and everything farther takes the nearest of them."""
        rows = positions.shaw_rows(np.array([[10.0], [20.0], [30.0]]), 3, 3)[..., 0]
        np.testing.assert_array_equal(rows, [[20, 30, 30], [10, 20, 30], [10, 10, 20]])

    def test_shaw_of_zero_tables_is_plain_attention(self, random):
        query, key, value = inputs(random)
        allowed = mask_with_empty_row_and_hidden_key(random)
        ours = positions.shaw(query, key, value, np.zeros((5, HEAD_DIM)), np.zeros((5, VALUE_DIM)), allowed)
        for one, other in zip(ours, attention.attention(query, key, value, allowed), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)

    def test_shaw_key_term_is_a_bias(self, random):
        """Equation 5: the term q . aK splits off from q . k."""
        query, key, value = inputs(random)
        table = random.normal(size=(5, HEAD_DIM))
        rows = positions.shaw_rows(table, QUERIES, KEYS)
        bias = np.einsum("bhid,ijd->bhij", query, rows) / math.sqrt(HEAD_DIM)
        expected = attention.attention(query, key, value, bias=bias)[0]
        np.testing.assert_allclose(positions.shaw(query, key, value, table)[0], expected, rtol=1e-12)

    def test_shaw_value_term_by_hand(self):
        """Equal weights over two keys at distances 0 and 1: the mean of the values and of their rows."""
        zeros, table = np.zeros((1, 1, 2, 1)), np.array([[1.0], [2.0], [4.0]])
        output, _ = positions.shaw(zeros, zeros, zeros + 10, np.zeros((3, 1)), table)
        np.testing.assert_allclose(output[0, 0, :, 0], [10 + (2 + 4) / 2, 10 + (1 + 2) / 2])

    def test_t5_buckets_unidirectional(self):
        """32 buckets to 128: exact to 15, then 16 equal factors of 8^(1/16), and 31 from about 113 on."""
        past = [positions.t5_bucket(-distance, bidirectional=False) for distance in range(200)]
        assert past[:16] == list(range(16))
        assert past == sorted(past)
        edges = [past.index(16 + step) for step in range(1, 16)]
        assert edges == [math.ceil(16 * 8 ** (step / 16) - 1e-9) for step in range(1, 16)]
        assert past[-1] == 31
        assert positions.t5_bucket(5, bidirectional=False) == 0

    def test_t5_buckets_bidirectional(self):
        """16 each way: exact to 7, then factors of 16^(1/8), whose even powers 16, 32 and 64 are edges."""
        after = {distance: positions.t5_bucket(distance) for distance in range(1, 200)}
        before = {distance: positions.t5_bucket(-distance) for distance in range(200)}
        assert [before[distance] for distance in range(8)] == list(range(8))
        assert [before[distance] for distance in (15, 16, 31, 32, 63, 64)] == [9, 10, 11, 12, 13, 14]
        assert before[199] == 15
        assert all(after[distance] == before[distance] + 16 for distance in after)

    def test_t5_bucket_matrix_is_key_minus_query(self):
        np.testing.assert_array_equal(positions.t5_buckets(2, 3), [[1, 0, 17], [2, 1, 0]])


class TestRotary:
    @pytest.mark.parametrize("layout", ["halves", "pairs"])
    def test_products_depend_on_distance_only(self, random, layout):
        """RoFormer, equation 16: (R_m q) . (R_n k) is a function of n - m."""
        query, key = random.normal(size=(1, 6)), random.normal(size=(1, 6))
        theta = rotary.frequencies(6)

        def product(query_position, key_position):
            turned = rotary.rotate(query, theta, layout, query_position)
            return turned[0] @ rotary.rotate(key, theta, layout, key_position)[0]

        np.testing.assert_allclose(product(3, 7), product(103, 107), rtol=1e-10)
        assert abs(product(3, 7) - product(3, 8)) > 1e-3

    def test_by_hand(self):
        """At position 1 the first pair turns by 1 radian and the second by 0.01."""
        turned = rotary.rotate(np.array([[1.0, 0, 0, 2]]), rotary.frequencies(4), "pairs", offset=1)
        expected = [math.cos(1), math.sin(1), -2 * math.sin(0.01), 2 * math.cos(0.01)]
        np.testing.assert_allclose(turned[0], expected)

    def test_layouts_differ_by_a_permutation(self, random):
        vectors, theta = random.normal(size=(3, 5, 6)), rotary.frequencies(6)
        order = [0, 2, 4, 1, 3, 5]
        pairs = rotary.rotate(vectors, theta, "pairs", offset=2)
        np.testing.assert_allclose(rotary.rotate(vectors[..., order], theta, "halves", 2), pairs[..., order])

    def test_offset_continues_a_sequence(self, random):
        vectors, theta = random.normal(size=(7, 6)), rotary.frequencies(6)
        rest = rotary.rotate(vectors[3:], theta, offset=3)
        np.testing.assert_array_equal(rest, rotary.rotate(vectors, theta)[3:])

    def test_linear_scaling_divides_positions(self):
        np.testing.assert_allclose(rotary.linear(6, 4.0) * 8, rotary.frequencies(6) * 2)

    def test_ntk_keeps_the_fastest_and_divides_the_slowest(self):
        scaled, plain = rotary.ntk(10, 4.0), rotary.frequencies(10)
        np.testing.assert_allclose([scaled[0], scaled[-1]], [plain[0], plain[-1] / 4])

    def test_dynamic_ntk_begins_beyond_the_trained_length(self):
        np.testing.assert_array_equal(rotary.dynamic_ntk(10, 2.0, 64, 64), rotary.frequencies(10))
        np.testing.assert_allclose(rotary.dynamic_ntk(10, 1.0, 64, 192), rotary.ntk(10, 3.0))
        np.testing.assert_allclose(rotary.dynamic_ntk(10, 2.0, 64, 96), rotary.ntk(10, 2.0))

    @pytest.mark.parametrize("yarn", [rotary.yarn, rotary.yarn_of_the_paper])
    def test_yarn_keeps_the_fast_and_divides_the_slow(self, yarn):
        """L = 2048, base 10000, d = 128: more than 32 turns up to pair 16, fewer than 1 from pair 41."""
        scaled, plain = yarn(128, 16.0, 2048), rotary.frequencies(128)
        turns = 2048 * plain / (2 * math.pi)
        np.testing.assert_allclose(scaled[turns > 33], plain[turns > 33])
        np.testing.assert_allclose(scaled[turns < 0.85], plain[turns < 0.85] / 16)
        between = (turns < 25) & (turns > 1.2)
        assert (scaled[between] < plain[between]).all()
        assert (scaled[between] > plain[between] / 16).all()

    def test_yarn_magnitude(self):
        np.testing.assert_allclose(rotary.yarn_magnitude(math.exp(10)), 2.0)
        assert rotary.yarn_magnitude(1.0) == 1.0

    def test_llama3_keeps_the_fast_and_divides_the_slow(self):
        scaled, plain = rotary.llama3(128), rotary.frequencies(128, 500_000.0)
        wavelengths = 2 * math.pi / plain
        np.testing.assert_array_equal(scaled[wavelengths < 2048], plain[wavelengths < 2048])
        np.testing.assert_array_equal(scaled[wavelengths > 8192], plain[wavelengths > 8192] / 8)
        assert (np.diff(scaled) < 0).all()


class TestBlocks:
    def test_layer_norm_by_hand(self):
        norm = blocks.Norm(np.array([1.0, 1, 2]), np.array([0.0, 0, 5]), epsilon=0.0)
        root = math.sqrt(3 / 2)
        np.testing.assert_allclose(blocks.layer_norm(np.array([1.0, 2, 3]), norm), [-root, 0, 2 * root + 5])

    def test_layer_norm_of_equal_numbers_is_the_bias(self):
        norm = blocks.Norm(np.ones(3), np.arange(3.0))
        np.testing.assert_array_equal(blocks.layer_norm(np.full(3, 7.0), norm), np.arange(3.0))

    @pytest.mark.parametrize(
        ("activation", "at_minus_one", "at_one"),
        [
            (blocks.relu, 0, 1),
            (blocks.gelu, -0.158655254, 0.841344746),  # Phi(1) = 0.841344746
            (blocks.gelu_tanh, -0.158808009, 0.841191991),
            (blocks.silu, -0.268941421, 0.731058579),  # 1 / (1 + 1 / e)
        ],
    )
    def test_activations(self, activation, at_minus_one, at_one):
        np.testing.assert_allclose(activation(np.array([-1.0, 0, 1])), [at_minus_one, 0, at_one], atol=1e-9)

    def test_feed_forward_by_hand(self):
        inner = blocks.Linear(np.array([[1.0, -1]]), np.array([0.0, 1]))
        outer = blocks.Linear(np.array([[2.0], [3]]), np.array([10.0]))
        layer = blocks.FeedForward(inner, outer, "relu")
        # x = 2: inner (2, -1), relu (2, 0), outer 4 + 10. x = -2: inner (-2, 3), relu (0, 3), outer 9 + 10.
        np.testing.assert_array_equal(blocks.feed_forward(np.array([[2.0], [-2]]), layer), [[14], [19]])

    @pytest.mark.parametrize(("name", "activation"), [("swiglu", blocks.silu), ("geglu", blocks.gelu)])
    def test_gated_feed_forward_by_hand(self, name, activation):
        inner, gate = blocks.Linear(np.array([[5.0]])), blocks.Linear(np.array([[0.5]]))
        layer = blocks.FeedForward(inner, blocks.Linear(np.array([[7.0]])), name, gate)
        expected = activation(np.array(1.0)) * 10 * 7
        np.testing.assert_allclose(blocks.feed_forward(np.array([[2.0]]), layer), [[expected]])

    def test_multi_head_is_the_sum_of_its_heads(self, random):
        """Concat(head_1, ..., head_h) W_O is the sum of head_i times its rows of W_O."""
        width, heads, head_dim = 6, 3, 2
        x = random.normal(size=(BATCH, KEYS, width))
        query, key, value, output = (blocks.Linear(random.normal(size=(width, width))) for _ in range(4))
        expected = np.zeros_like(x)
        for head in range(heads):
            own = slice(head * head_dim, (head + 1) * head_dim)
            one, _ = attention.attention(
                *((x @ part.weight[:, own])[:, None] for part in (query, key, value)),
                masks.causal(KEYS, KEYS),
            )
            expected += one[:, 0] @ output.weight[own]
        layer = blocks.MultiHead(query, key, value, output, heads, heads)
        ours, weights = blocks.multi_head(x, layer, allowed=masks.causal(KEYS, KEYS))
        assert weights.shape == (BATCH, heads, KEYS, KEYS)
        np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-12)

    def test_encoder_block_with_zero_sublayers(self, random):
        """Sublayers that give 0 leave x (pre-norm), or x normalized twice (post-norm)."""
        x, norm = random.normal(size=(BATCH, KEYS, 4)), blocks.Norm(np.ones(4), np.zeros(4), epsilon=0.0)
        zero = blocks.Linear(np.zeros((4, 4)))
        layers = (
            blocks.MultiHead(zero, zero, zero, zero, 2, 2),
            norm,
            blocks.FeedForward(zero, zero, "gelu"),
            norm,
        )
        np.testing.assert_array_equal(blocks.encoder_block(x, *layers, norm_first=True), x)
        after = blocks.encoder_block(x, *layers, norm_first=False)
        np.testing.assert_allclose(after.mean(-1), 0, atol=1e-15)
        np.testing.assert_allclose(after, (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True))
