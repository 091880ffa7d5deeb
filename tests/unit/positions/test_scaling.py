"""Rotary scalings against the oracles and against ``transformers``."""

import math

import pytest
import torch
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from regard import positions
from regard.conformance.oracles import rotary as oracle
from regard.errors import OptionError

TRAINED = 128

# (regard's scaling, transformers' name and its arguments besides factor and base)
PEERS = [
    (positions.LinearScaling(3.5), {"rope_type": "linear"}),
    (positions.DynamicScaling(3.5, TRAINED), {"rope_type": "dynamic"}),
    (positions.YarnScaling(3.5, TRAINED), {"rope_type": "yarn"}),
    (
        positions.YarnScaling(3.5, TRAINED, fast=7.0, slow=2.0),
        {"rope_type": "yarn", "beta_fast": 7.0, "beta_slow": 2.0},
    ),
    (
        positions.Llama3Scaling(3.5, TRAINED),
        {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    (
        positions.Llama3Scaling(3.5, TRAINED, low=2.0, high=11.0),
        {"rope_type": "llama3", "low_freq_factor": 2.0, "high_freq_factor": 11.0},
    ),
    (
        positions.YarnScaling(3.5, TRAINED, fast=7.0, slow=2.0, whole_pairs=False),
        {"rope_type": "yarn", "beta_fast": 7.0, "beta_slow": 2.0, "truncate": False},
    ),
]


def make_config(parameters, base, head_dim):
    """Config of a LLaMA with this scaling of rotary positions."""
    arguments = {"factor": 3.5, "rope_theta": base, "original_max_position_embeddings": TRAINED, **parameters}
    if parameters["rope_type"] in ("linear", "dynamic"):
        del arguments["original_max_position_embeddings"]
    reach = TRAINED if parameters["rope_type"] == "dynamic" else int(TRAINED * 3.5)
    return LlamaConfig(
        hidden_size=3 * head_dim,
        num_attention_heads=3,
        head_dim=head_dim,
        max_position_embeddings=reach,
        rope_parameters=arguments,
    )


@pytest.mark.parametrize("head_dim", [6, 22, 64])
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
class TestFrequencies:
    def test_agree_with_the_oracle(self, head_dim, base):
        for factor in (1.0, 2.0, 5.5):
            for trained in (31, 2048):
                for length in (7, trained, trained + 1, 5 * trained):
                    pairs = [
                        (positions.LinearScaling(factor), oracle.linear(head_dim, factor, base)),
                        (
                            positions.DynamicScaling(factor, trained),
                            oracle.dynamic_ntk(head_dim, factor, trained, length, base),
                        ),
                        (positions.YarnScaling(factor, trained), oracle.yarn(head_dim, factor, trained, base)),
                        (
                            positions.YarnScaling(factor, trained, fast=11.0, slow=3.0),
                            oracle.yarn(head_dim, factor, trained, base, fast=11.0, slow=3.0),
                        ),
                        (positions.Llama3Scaling(factor, trained), oracle.llama3(head_dim, factor, trained, base)),
                        (
                            positions.Llama3Scaling(factor, trained, low=2.0, high=7.0),
                            oracle.llama3(head_dim, factor, trained, base, low=2.0, high=7.0),
                        ),
                    ]
                    for scaling, expected in pairs:
                        actual = scaling.frequencies(base, head_dim, length)
                        assert_close(actual, torch.from_numpy(expected), rtol=1e-12, atol=0, msg=repr(scaling))

    @pytest.mark.parametrize(("scaling", "parameters"), PEERS, ids=repr)
    def test_agree_with_transformers(self, head_dim, base, scaling, parameters):
        config = make_config(parameters, base, head_dim)
        for length in (7, TRAINED, 3 * TRAINED):
            theirs, magnitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=length)
            ours = scaling.frequencies(base, head_dim, length)
            # transformers computes powers of the base in float32; the error grows with the exponent, at most ln(base).
            assert_close(ours.float(), theirs, rtol=20 * 2**-24, atol=0)
            assert scaling.magnitude == pytest.approx(magnitude, rel=1e-12)


@pytest.mark.parametrize("magnitude", [None, 1.3])
def test_long_rope_agrees_with_transformers(magnitude):
    short, long = tuple(1.0 + 0.1 * pair for pair in range(11)), tuple(2.0 + 0.7 * pair for pair in range(11))
    parameters = {"rope_type": "longrope", "short_factor": list(short), "long_factor": list(long)}
    config = make_config(parameters | ({} if magnitude is None else {"attention_factor": magnitude}), 10_000.0, 22)
    scaling = positions.LongRopeScaling(short, long, 3.5, TRAINED, magnitude_factor=magnitude)
    for length in (7, TRAINED, TRAINED + 1, 3 * TRAINED):
        theirs, factor = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=length)
        assert_close(scaling.frequencies(10_000.0, 22, length).float(), theirs, rtol=20 * 2**-24, atol=0)
        assert scaling.magnitude == pytest.approx(factor, rel=1e-12)


def test_long_rope_divides_each_frequency():
    scaling = positions.LongRopeScaling((1.0, 2.0, 4.0), (3.0, 5.0, 7.0), 2.0, 31)
    plain = [1.0, 10_000 ** (-1 / 3), 10_000 ** (-2 / 3)]
    for length, factors in ((31, (1.0, 2.0, 4.0)), (32, (3.0, 5.0, 7.0))):
        expected = [one / factor for one, factor in zip(plain, factors, strict=True)]
        assert scaling.frequencies(10_000.0, 6, length).tolist() == pytest.approx(expected, rel=1e-14)
    assert scaling.magnitude == pytest.approx(math.sqrt(1 + math.log(2) / math.log(31)), rel=1e-14)


def test_long_rope_refusals():
    for arguments, message in (
        (((1.0,), (1.0, 2.0), 2.0, 31), "two lists of factors of one length"),
        (((0.0,), (1.0,), 2.0, 31), "short_factors"),
        (((1.0,), (1.0,), 0.5, 31), "1 or more"),
        (((1.0,), (1.0,), 2.0, 1), "trained_length"),
    ):
        with pytest.raises(OptionError, match=message):
            positions.LongRopeScaling(*arguments)
    with pytest.raises(OptionError, match="3 factors, for 6 rotated dimensions"):
        positions.Rotary(6, scaling=positions.LongRopeScaling((1.0,), (1.0,), 2.0, 31))(torch.zeros(1, 6))


@pytest.mark.parametrize(("scaling", "parameters"), PEERS, ids=repr)
def test_rotary_agrees_with_llama(scaling, parameters):
    for length in (11, 2 * TRAINED):
        tokens = torch.randn(1, 3, length, 22)
        cosine, sine = LlamaRotaryEmbedding(make_config(parameters, 10_000.0, 22))(tokens, torch.arange(length)[None])
        theirs, _ = apply_rotary_pos_emb(tokens, tokens, cosine, sine)
        ours = positions.Rotary(22, scaling=scaling)(tokens)
        # Angles in transformers are float32: 255 rad have a relative error of a few 2^-24, times a token of up to 4.
        assert_close(ours, theirs, rtol=0, atol=2e-4)


@pytest.mark.parametrize("layout", ["halves", "pairs"])
def test_rotary_agrees_with_the_oracle(layout):
    tokens = torch.randn(2, 3, 5, 10, dtype=torch.float64)
    actual = positions.Rotary(10, layout=layout, scaling=positions.YarnScaling(4.0, 31))(tokens, offset=97)
    theta, magnitude = oracle.yarn(10, 4.0, 31), oracle.yarn_magnitude(4.0)
    expected = oracle.rotate(tokens.numpy(), theta, layout=layout, offset=97, magnitude=magnitude)
    assert_close(actual, torch.from_numpy(expected), rtol=0, atol=1e-12)


def test_dynamic_scaling_includes_the_offset_in_the_length():
    tokens = torch.randn(1, 1, 3, 6, dtype=torch.float64)
    actual = positions.Rotary(6, scaling=positions.DynamicScaling(2.0, 31))(tokens, offset=97)
    expected = oracle.rotate(tokens.numpy(), oracle.dynamic_ntk(6, 2.0, 31, 100), offset=97)
    assert_close(actual, torch.from_numpy(expected), rtol=0, atol=1e-12)


def test_dynamic_scaling_has_no_effect_within_the_trained_length():
    tokens = torch.randn(1, 31, 6)
    assert torch.equal(
        positions.Rotary(6, scaling=positions.DynamicScaling(4.0, 31))(tokens), positions.Rotary(6)(tokens)
    )


def test_dynamic_scaling_keeps_a_single_pair():
    # d = 2: the exponent d / (d - 2) is undefined, and the only pair is the fastest, with frequency base^0 = 1.
    assert positions.DynamicScaling(4.0, 31).frequencies(10_000.0, 2, 97).tolist() == [1.0]


def test_scaling_of_a_partial_rotation():
    rotary = positions.Rotary(10, rotated=6, scaling=positions.LinearScaling(2.0))
    tokens = torch.randn(1, 5, 10)
    rotated = rotary(tokens)
    assert torch.equal(rotated[..., 6:], tokens[..., 6:])
    assert_close(rotated[..., :6], positions.Rotary(6, scaling=positions.LinearScaling(2.0))(tokens[..., :6]))


def test_linear_scaling_divides_positions():
    # Chen 2023, equation 4: position m is replaced by m / s.
    tokens = torch.randn(1, 13, 6, dtype=torch.float64)
    scaled = positions.Rotary(6, scaling=positions.LinearScaling(3.0))(tokens)
    for row in (0, 3, 12):
        one = tokens[:, row : row + 1]
        assert_close(scaled[:, row : row + 1], positions.Rotary(6)(one, offset=row // 3))


def test_scalings_compare_and_hash_by_value():
    assert positions.LinearScaling(2.0) == positions.LinearScaling(2.0)
    assert len({positions.YarnScaling(2.0, 31), positions.YarnScaling(2.0, 31), positions.YarnScaling(2.0, 37)}) == 2
    assert "YarnScaling(factor=2.0, trained_length=31" in repr(
        positions.Rotary(6, scaling=positions.YarnScaling(2.0, 31))
    )


@pytest.mark.usefixtures("without_shape_checks")
class TestMessages:
    @pytest.mark.parametrize("factor", [0.5, 0.0, -2.0, math.inf, math.nan, True, "4"])
    def test_factor(self, factor):
        for make in (
            positions.LinearScaling,
            lambda given: positions.DynamicScaling(given, 31),
            lambda given: positions.YarnScaling(given, 31),
            lambda given: positions.Llama3Scaling(given, 31),
        ):
            with pytest.raises(OptionError, match=rf"(?s)factor.*finite number of 1 or more.*got: +{factor!r}.*divide"):
                make(factor)

    @pytest.mark.parametrize("trained", [0, -3, 2.5])
    def test_trained_length(self, trained):
        for make in (positions.DynamicScaling, positions.YarnScaling, positions.Llama3Scaling):
            with pytest.raises(OptionError, match=rf"(?s)wrong trained_length.*1 or more.*got: +{trained}"):
                make(2.0, trained)

    def test_bounds_of_the_blend(self):
        with pytest.raises(OptionError, match=r"(?s)slow and fast.*0 < slow < fast.*slow=32\.0, fast=1\.0"):
            positions.YarnScaling(2.0, 31, fast=1.0, slow=32.0)
        with pytest.raises(OptionError, match=r"(?s)low and high.*0 < low < high.*low=4\.0, high=4\.0"):
            positions.Llama3Scaling(2.0, 31, low=4.0)

    def test_integer_factors_are_accepted(self):
        assert positions.LinearScaling(2).frequencies(100.0, 4, 7).tolist() == [0.5, 0.05]
