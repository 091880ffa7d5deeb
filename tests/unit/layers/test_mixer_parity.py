"""Gated delta net and Mamba-2's mixer: the weights of transformers' layers give the same numbers, forward and backward,
with padding and step by step.
"""

import pytest
import torch
from transformers import DynamicCache, Mamba2Config, Qwen3NextConfig
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer as TheirMixer
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from regard import masks
from regard.errors import OptionError, RefusedError, ShapeError
from regard.layers import GatedDeltaNet, Mamba2Mixer, MixerCache

WIDTH, LENGTH = 22, 75
PAIRS = ("gated delta net", "mamba2")
TOLERANCE = 1e-4


def qwen_config(seed):
    """Sizes from a seed, with fewer heads of keys than of values."""
    draw = torch.Generator().manual_seed(seed)
    key_heads, group, kernel = (
        int(torch.randint(least, most, (), generator=draw)) for least, most in ((1, 4), (1, 4), (2, 5))
    )
    return Qwen3NextConfig(
        hidden_size=WIDTH,
        linear_num_key_heads=key_heads,
        linear_num_value_heads=key_heads * group,
        linear_key_head_dim=5,
        linear_value_head_dim=7,
        linear_conv_kernel_dim=kernel,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )


def mamba_config(seed):
    groups = 1 + seed % 2
    return Mamba2Config(
        hidden_size=WIDTH,
        expand=2,
        num_heads=4,
        head_dim=11,
        n_groups=groups,
        state_size=5,
        conv_kernel=3 + seed % 2,
        chunk_size=16,
        use_conv_bias=seed % 3 > 0,
        use_bias=False,
        num_hidden_layers=1,
        time_step_limit=(0.0, 0.5 if seed == 1 else float("inf")),
    )


def make_pair(kind, seed=0):
    """Their layer and ours, with the same random weights, and their configuration."""
    torch.manual_seed(seed)
    if kind == "mamba2":
        config = mamba_config(seed)
        theirs = TheirMixer(config, 0)
        ours = Mamba2Mixer(
            WIDTH,
            config.num_heads,
            value_dim=config.head_dim,
            state_size=config.state_size,
            groups=config.n_groups,
            kernel=config.conv_kernel,
            convolution_bias=config.use_conv_bias,
            time_step_limit=config.time_step_limit,
        )
    else:
        config = qwen_config(seed)
        theirs = Qwen3NextGatedDeltaNet(config, 0)
        ours = GatedDeltaNet(
            WIDTH,
            config.linear_num_value_heads,
            key_heads=config.linear_num_key_heads,
            head_dim=config.linear_key_head_dim,
            value_dim=config.linear_value_head_dim,
            kernel=config.linear_conv_kernel_dim,
        )
    for parameter in theirs.parameters():
        parameter.data = parameter.data + 0.3 * torch.randn_like(parameter)
    ours.load_state_dict(theirs.state_dict())
    return theirs.eval(), ours.eval(), config


def random_tokens(length=LENGTH, batch=2):
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(length))


def shown_tokens(padding, length=LENGTH):
    """True for tokens that are not padding."""
    place = torch.arange(length)
    return torch.stack(
        [torch.ones(length, dtype=torch.bool), {"left": place >= 6, "right": place < length - 6}[padding]]
    )


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_output_and_gradients_agree(kind, seed, padding):
    theirs, ours, _ = make_pair(kind, seed)
    tokens = random_tokens()
    shown = None if padding is None else shown_tokens(padding)
    mask = None if shown is None else masks.causal() & masks.keep(shown[:, None, None])
    counted = torch.ones(2, LENGTH, dtype=torch.bool) if shown is None else shown  # rows of padding hold nothing
    results = []
    for layer, options in ((theirs, {"attention_mask": shown}), (ours, {"mask": mask})):
        leaf = tokens.clone().requires_grad_()
        output = layer(leaf, **options)
        output[counted].pow(3).sum().backward()
        results.append((output[counted].detach(), leaf.grad[counted]))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE * float(other.abs().max()))
    expected = make_pair(kind, seed)[1]  # the names of their gradients are translated as those of weights are
    expected.load_state_dict({name: parameter.grad for name, parameter in theirs.named_parameters()})
    for (name, parameter), wanted in zip(ours.named_parameters(), expected.parameters(), strict=True):
        largest = float(wanted.detach().abs().max())
        assert (parameter.grad - wanted).abs().max() <= TOLERANCE * max(1.0, largest), name


@pytest.mark.parametrize("kind", PAIRS)
@torch.no_grad()
def test_steps_agree(kind):
    theirs, ours, config = make_pair(kind, 2)
    tokens = random_tokens(length=13)
    known, cache = DynamicCache(config=config), ours.empty_cache()
    outputs = []
    for part in tokens.split([7, 1, 1, 1, 1, 1, 1], dim=1):
        expected = theirs(part, cache_params=known)
        output, cache = ours(part, mask=masks.causal(), cache=cache)
        torch.testing.assert_close(output, expected, rtol=TOLERANCE, atol=TOLERANCE)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=1), ours(tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", PAIRS)
@torch.no_grad()
def test_steps_of_padded_texts_equal_the_whole(kind):
    ours = make_pair(kind, 1)[1].double()
    tokens, shown = random_tokens(length=13).double(), shown_tokens("left", 13)
    whole, cache, parts = ours(tokens, mask=masks.keep(shown[:, None, None])), ours.empty_cache(), []
    for first, stop in ((0, 5), (5, 8), (8, 9), (9, 13)):
        mask = masks.causal() & masks.keep(shown[:, None, None, :stop])
        part, cache = ours(tokens[:, first:stop], mask=mask, cache=cache)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)
    assert isinstance(cache, MixerCache)
    assert cache.length == 13
    turned, _ = ours(tokens[:, :1], cache=cache.reordered(torch.tensor([1, 0])))
    straight, _ = ours(tokens[:, :1].flip(0), cache=cache)
    torch.testing.assert_close(turned.flip(0), straight)


@pytest.mark.parametrize("kind", PAIRS)
def test_padding_has_no_influence(kind):
    """Not even NaN, on either side: the output is that of the text alone."""
    ours = make_pair(kind, 1)[1].double()
    tokens = random_tokens(length=11, batch=1).double()
    exact = ours(tokens)
    hidden = torch.full((1, 3, WIDTH), torch.nan, dtype=torch.float64)
    for padded, shown in (
        (torch.cat([hidden, tokens], dim=1), slice(3, None)),
        (torch.cat([tokens, hidden], dim=1), slice(0, 11)),
    ):
        keep = torch.zeros(14, dtype=torch.bool)
        keep[shown] = True
        leaf = padded.requires_grad_()
        output = ours(leaf, mask=masks.causal() & masks.keep(keep[None]))[:, shown]
        torch.testing.assert_close(output, exact, rtol=0, atol=1e-12)
        (gradient,) = torch.autograd.grad(output.sum(), leaf)
        assert not gradient[:, ~keep].any()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", PAIRS)
def test_other_calls_are_refused(kind):
    ours = make_pair(kind)[1]
    tokens = random_tokens(length=5)
    with pytest.raises(ShapeError, match="tokens do not fit the layer"):
        ours(tokens[..., :-1])
    with pytest.raises(RefusedError, match="a mask must be causal"):
        ours(tokens, mask=masks.window(2, 0))
    with pytest.raises(OptionError, match="not a state of"):
        ours(tokens, cache=ours.mechanism.empty_state())
    heads = ours.heads
    if heads > 1:
        with pytest.raises(RefusedError, match="differs between heads"):
            ours(tokens, mask=masks.keep(torch.rand(1, heads, 1, 5) > 0.5))
    with pytest.raises(OptionError, match=r"(?s)does not divide heads.*a divisor of 4.*got: +3"):
        Mamba2Mixer(WIDTH, 4, value_dim=11, groups=3)
    with pytest.raises(OptionError, match=r"(?s)does not divide heads"):
        GatedDeltaNet(WIDTH, 4, head_dim=5, key_heads=3)


@pytest.mark.parametrize(
    "make", [lambda: GatedDeltaNet(WIDTH, 2, head_dim=5), lambda: Mamba2Mixer(WIDTH, 4, value_dim=11)]
)
def test_several_texts_in_a_row_are_refused(make):
    """The mechanism would keep them apart, and the convolution before it would not."""
    with pytest.raises(RefusedError, match=r"(?s)refuses several texts in a row.*the convolution"):
        make()(torch.randn(1, 5, WIDTH), mask=masks.documents([0, 0, 0, 1, 1]) & masks.causal())
