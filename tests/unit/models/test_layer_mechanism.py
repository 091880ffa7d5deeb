"""Mechanisms in models: options that are lists, a projection of all layers, and decoders."""

import math

import pytest
import torch
from torch import nn

import regard
from regard import masks
from regard.errors import OptionError, RefusedError
from regard.mechanisms.linformer import make_projection
from regard.models import Transformer, TransformerConfig, TransformerEncoder, TransformerEncoderConfig

SIZES = {"vocabulary": 31, "width": 12, "heads": 2, "layers": 3, "inner": 14}
IDS = torch.arange(23)[None] + 4


def make_encoder(mechanism, **options):
    torch.manual_seed(0)
    config = TransformerEncoderConfig(**SIZES, mechanism=mechanism, mechanism_options=options)
    return TransformerEncoder(config).eval()


def make_translator(mechanism, **options):
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**SIZES, mechanism=mechanism, mechanism_options=options)).eval()


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        ("longformer", {"window": 4, "global_tokens": [0, 3]}),
        ("longformer", {"window": 4, "global_tokens": (1, 2)}),
        ("bigbird", {"block": 5, "global_blocks": []}),
        ("bigbird", {"block": 5, "random_blocks": [[[0], [3], [1], [-1], [2]]]}),
        ("bigbird", {"block": 5, "random_blocks": torch.tensor([[[0], [3], [1], [-1], [2]]])}),
        ("reformer", {"buckets": [2, 4]}),
        ("retention", {"decays": [0.5, 0.9]}),
        ("mamba2", {"time_step_limit": (0.0, math.inf)}),
    ],
)
def test_a_saved_model_has_its_options(tmp_path, mechanism, options):
    model = make_encoder(mechanism, **options)
    model.save(tmp_path / "model")
    loaded = regard.load(tmp_path / "model")
    assert repr(loaded.layers) == repr(model.layers)
    with torch.no_grad():
        assert torch.equal(loaded(IDS).hidden, model(IDS).hidden)


def test_what_json_does_not_have_is_refused(tmp_path):
    model = make_encoder("linformer", length=29, projected=7, sharing="layerwise", projection=make_projection(7, 29))
    with pytest.raises(RefusedError, match="JSON does not have"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "fields", ['{"global_tokens": [0, {}]}', '{"window": NaN}', '{"global_tokens": [1e300]}', "[3]"]
)
def test_options_of_other_kinds_are_refused(tmp_path, fields):
    make_encoder("longformer", window=4).save(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    text = config.read_text(encoding="utf-8")
    before, _, after = text.partition('"mechanism_options": {')
    config.write_text(f'{before}"mechanism_options": {fields}{after.partition("}")[2]}', encoding="utf-8")
    with pytest.raises(regard.errors.CheckpointError, match="mechanism_options"):
        regard.load(tmp_path / "model")


LAYERWISE = {"length": 29, "projected": 7, "sharing": "layerwise"}


class TestLayerwiseProjection:
    def test_all_layers_share_one(self, tmp_path):
        model = make_encoder("linformer", **LAYERWISE)
        model.save(tmp_path / "model")
        loaded = regard.load(tmp_path / "model")
        for one in (model, loaded):
            assert len({id(layer.attention.mechanism.projection) for layer in one.layers}) == 1
            assert sum(parameter.shape == (7, 29) for parameter in one.parameters()) == 1
        with torch.no_grad():
            assert torch.equal(loaded(IDS).hidden, model(IDS).hidden)

    def test_its_gradient_is_the_sum_over_the_layers(self):
        """An oracle with three projections of equal values."""
        model, apart = (make_encoder("linformer", **LAYERWISE) for _ in range(2))
        for layer in apart.layers:
            layer.attention.mechanism.projection = nn.Parameter(layer.attention.mechanism.projection.detach().clone())
        for one in (model, apart):
            one(IDS).hidden.square().sum().backward()
        summed = sum(layer.attention.mechanism.projection.grad for layer in apart.layers)
        torch.testing.assert_close(model.layers[0].attention.mechanism.projection.grad, summed)

    def test_a_layer_alone_has_its_own(self):
        first, second = (
            regard.MultiHeadAttention(12, 2, mechanism="linformer", mechanism_options=LAYERWISE) for _ in range(2)
        )
        assert first.mechanism.projection is not second.mechanism.projection


class TestDecoders:
    def test_later_tokens_of_a_bigbird_change_nothing(self):
        model, target = make_translator("bigbird", block=2, random_blocks=1), torch.arange(21)[None] + 5
        assert not model.encoder[0].attention.mechanism.causal
        with torch.no_grad():
            whole, part = model(IDS, target).logits, model(IDS, target[:, :13]).logits
        torch.testing.assert_close(whole[:, :13], part)

    def test_chunks_are_refused_before_training(self):
        with pytest.raises(OptionError, match="chunks are cut from all tokens"):
            make_translator("reformer", chunk=8)

    def test_a_layer_with_chunks_refuses_to_decode(self):
        layer = regard.MultiHeadAttention(12, 2, mechanism="reformer", mechanism_options={"chunk": 8})
        with pytest.raises(RefusedError, match="chunk=None"):
            layer.empty_cache()


def test_a_mask_of_several_texts_is_no_error_to_ask_about():
    assert regard.mechanism("nsa", heads=4, head_dim=8).refuses_mask(masks.padding([5, 3])) is None
    reason = regard.mechanism("nsa", heads=4, head_dim=8).refuses_mask(masks.padding([5, 3], side="left"))
    assert reason is not None
    assert "begin" in reason
