"""CCT against an oracle in NumPy, its folders, published sizes, picture sizes, promises and bad input."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import regard
from hypothesis_examples import examples
from oracles import compact_transformer as oracle
from regard.errors import CheckpointError, OptionError, ShapeError
from regard.layers import checkpoint_activations
from regard.layers.convolutional_tokenizer import ConvolutionalTokenizer
from regard.layers.sequence_pooling import SequencePooling
from regard.models import Cct, CctConfig, ImageEncoder, TokenGrid, load
from regard.models.kinds import IMAGE_ENCODER
from regard.models.load import find_kind
from regard.models.model_folder import ModelFolder
from small_checkpoints import change_config

SMALL = {
    "picture_size": (13, 11),
    "channels": 2,
    "width": 14,
    "layers": 3,
    "heads": 7,
    "inner": 17,
    "convolutions": 2,
    "tokenizer_width": 5,
    "labels": ("a", "b", "c"),
}


def make(seed=0, **options):
    """A small model in float64, with random weights: norms and biases included."""
    torch.manual_seed(seed)
    model = Cct(CctConfig(**(SMALL | options))).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += torch.randn_like(weight) * 0.3
    return model


def pictures(model, batch=2, size=None):
    return torch.randn(batch, model.channels, *(size or model.picture_size), dtype=next(model.parameters()).dtype)


@st.composite
def models(draw):
    heads = draw(st.sampled_from([1, 2, 3]))
    return make(
        draw(st.integers(0, 2**16)),
        picture_size=(draw(st.integers(1, 13)), draw(st.integers(1, 13))),
        channels=draw(st.sampled_from([1, 3])),
        width=2 * heads * draw(st.sampled_from([1, 3])),
        layers=draw(st.integers(1, 2)),
        heads=heads,
        convolutions=draw(st.integers(1, 3)),
        kernel_size=draw(st.integers(1, 5)),
        stride=draw(st.integers(1, 2)),
        positions=draw(st.sampled_from(["learned", "sinusoidal", "none"])),
        projection_bias=draw(st.booleans()),
    )


class TestEquation:
    def test_outputs_equal_the_oracle(self):
        @examples(30, without_slow=10)
        @given(model=models())
        def check(model):
            pixels = pictures(model)
            weights = {name: weight.detach().numpy() for name, weight in model.state_dict().items()}
            with torch.no_grad():
                output = model(pixels, keep_layers=True)
            for number, picture in enumerate(pixels.numpy()):
                expected = oracle.forward(picture, weights, model.config)
                found = (output.hidden[number], output.pooled[number], output.logits[number])
                for ours, exact in zip(found, expected, strict=True):
                    np.testing.assert_allclose(ours.numpy(), exact, rtol=1e-9, atol=1e-9)
            assert len(output.layers) == model.config.layers + 1

        check()

    def test_gradients_of_pixels_are_slopes(self):
        """The derivative along a random direction, by differences of the oracle; no ReLU or maximum switches there."""
        model = make()
        pixels = pictures(model, 1).requires_grad_()
        direction, factors = torch.randn_like(pixels), torch.randn(3, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((model(pixels).logits[0] * factors).sum(), pixels)
        weights = {name: weight.detach().numpy() for name, weight in model.state_dict().items()}

        def loss(step):
            moved = (pixels + step * direction)[0].detach().numpy()
            return (oracle.forward(moved, weights, model.config)[2] * factors.numpy()).sum()

        slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
        assert (gradient * direction).sum().item() == pytest.approx(slope, rel=1e-6)

    def test_stochastic_depth_rises_from_0(self):
        model = Cct(CctConfig(**SMALL, stochastic_depth=0.5))
        assert [layer.stochastic_depth.p for layer in model.layers] == [0.0, 0.25, 0.5]
        model.train()
        tokens = torch.randn(64, 3, 14)
        last = model.layers[2]
        torch.manual_seed(0)
        skipped = (last(tokens) == tokens).all(dim=(1, 2)).sum()  # both sublayers, with probability 1/4
        assert 4 <= skipped <= 32

    def test_activation_checkpointing_changes_no_gradient(self):
        model = make(stochastic_depth=0.5, dropout=0.3).train()
        pixels, found = pictures(model), []
        for enabled in (False, True):
            assert checkpoint_activations(model, enabled=enabled) == 3
            model.zero_grad()
            torch.manual_seed(5)
            model(pixels).logits.sum().backward()
            found.append([weight.grad.clone() for weight in model.parameters()])
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))

    def test_weights_of_the_pooling(self):
        pooling, tokens = SequencePooling(5), torch.randn(2, 7, 5)
        weights = pooling.weights(tokens)
        assert_close(weights.sum(1), torch.ones(2))
        assert_close(pooling(tokens), (weights[..., None] * tokens).sum(1))


class TestPictureSizes:
    @pytest.mark.parametrize("size", [(13, 11), (14, 12), (1, 29), (31, 5)])
    def test_grids_and_records(self, size):
        model = make()
        with regard.record(model) as seen, torch.no_grad():
            hidden = model(pictures(model, size=size)).hidden
        grids = model.token_grids(*size)
        assert grids == (TokenGrid(-(-size[0] // 4), -(-size[1] // 4)),) * 3
        assert hidden.shape[1] == grids[0].tokens
        assert [call.query.shape[2] for call in seen] == [grid.tokens for grid in grids]

    @pytest.mark.parametrize("deviation", [0.02, 0.05])
    def test_initial_positions_vary_ten_times_as_much_as_weights(self, deviation):
        """The published code has 0.2 beside 0.02, both of normal numbers, cut at two deviations."""
        model = Cct(CctConfig(**SMALL | {"picture_size": (97, 89), "deviation": deviation}))
        assert float(model.positions.weight.detach().std()) == pytest.approx(10 * deviation, rel=0.15)

    def test_positions_of_another_size_are_interpolated(self):
        model = make()
        expected = model.positions(5, 2)
        pixels = pictures(model, size=(17, 8))
        with torch.no_grad():
            moved = model(pixels, keep_layers=True).layers[0] - model.tokenizer(pixels)
        assert_close(moved, expected.expand_as(moved))

    def test_the_tokenizer_counts_its_rows(self):
        @examples(40)
        @given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
        def check(height, width, kernel, stride, convolutions):
            tokenizer = ConvolutionalTokenizer(1, 3, convolutions=convolutions, kernel_size=kernel, stride=stride)
            rows, columns = tokenizer.grid(height, width)
            assert tokenizer(torch.zeros(1, 1, height, width)).shape == (1, rows * columns, 3)

        check()


class TestFolders:
    @pytest.mark.parametrize("options", [{}, {"positions": "none", "labels": ()}, {"positions": "sinusoidal"}])
    def test_round_trip(self, tmp_path, options):
        model = make(**options)
        model.save(tmp_path / "model", max_shard_bytes=5000)
        loaded = load(tmp_path / "model", dtype=torch.float64)
        assert loaded.config == model.config
        assert find_kind(ModelFolder.open(tmp_path / "model")) is IMAGE_ENCODER
        pixels = pictures(model)
        with torch.no_grad():
            assert torch.equal(loaded(pixels).hidden, model(pixels).hidden)

    def test_mechanisms(self, tmp_path):
        options = {"mechanism": "nystromformer", "mechanism_options": {"landmarks": 2}, "attention_dropout": 0.0}
        model = Cct(CctConfig(**SMALL, **options))
        model.save(tmp_path / "model")
        assert ImageEncoder.load(tmp_path / "model").config == model.config

    @pytest.mark.parametrize(
        ("field", "value"),
        [("width", 15), ("positions", "rotary"), ("convolutions", 99), ("picture_size", [1]), ("layers", None)],
    )
    def test_unusable_configs(self, tmp_path, field, value):
        make().save(tmp_path / "model")
        change_config(tmp_path / "model", **{field: value})
        with pytest.raises(CheckpointError):
            load(tmp_path / "model")


class TestPromises:
    def test_no_pictures(self):
        assert make()(torch.zeros(0, 2, 13, 11, dtype=torch.float64)).logits.shape == (0, 3)


@pytest.mark.usefixtures("without_shape_checks")
class TestBadInput:
    def test_tokens_of_another_pooling(self):
        with pytest.raises(ShapeError, match="do not fit the pooling"):
            make().pooling(torch.zeros(1, 3, 13))

    @pytest.mark.parametrize(
        ("changed", "facts"),
        [
            ({"heads": 3}, "not divisible by heads"),
            ({"positions": "rotary"}, "positions"),
            ({"positions": None}, "positions"),
            ({"convolutions": 0}, "convolutions"),
            ({"convolutions": 17}, "convolutions"),
            ({"stochastic_depth": 1.0}, "probability"),
            ({"picture_size": 32}, "wrong picture_size"),
            ({"activation": "sine"}, "activation"),
        ],
    )
    def test_config(self, changed, facts):
        with pytest.raises(OptionError, match=facts):
            CctConfig(**(SMALL | changed))

    def test_odd_width_with_sinusoids(self):
        with pytest.raises(OptionError, match="come in pairs"):
            Cct(CctConfig(**(SMALL | {"width": 7, "positions": "sinusoidal"})))
