"""``replace_mechanism``: a trained model computes with another mechanism and its own weights."""

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import masks, positions
from regard.comparison import replace_mechanism
from regard.errors import OptionError, RefusedError
from regard.layers import MultiHeadAttention, encoder_block
from regard.mechanisms import Mechanism
from regard.models import (
    Bert,
    BertConfig,
    TextClassifier,
    TextClassifierConfig,
    Transformer,
    TransformerConfig,
    TransformerEncoder,
    TransformerEncoderConfig,
)

CONFIG = BertConfig(vocabulary=41, width=12, layers=2, heads=3, inner=7, max_length=17)
IDS = torch.tensor([[4, 5, 6, 3, 9, 11, 23], [5, 4, 3, 0, 0, 0, 0]])
MASK = masks.padding([7, 3])
ENOUGH = {
    "longformer": {"window": 16},
    "bigbird": {"block": 8},
    "nystromformer": {"landmarks": 7},
    "dot_product": {"impl": "reference"},
    "reformer": {"buckets": 1},
    "top_k": {"keys": 7},
}
"""Options with which a mechanism attends from each of 7 tokens to all."""


@pytest.fixture
def bert():
    torch.manual_seed(0)
    model = Bert(CONFIG).eval()
    for layer in model.layers:  # of the usual deviation, weights would be nearly uniform
        for projection in (layer.attention.query_projection, layer.attention.key_projection):
            torch.nn.init.normal_(projection.weight, std=0.7)
    return model


@pytest.mark.parametrize("name", ENOUGH)
def test_a_mechanism_that_reaches_all_tokens_computes_the_same(bert, name):
    replaced = replace_mechanism(bert, name, **ENOUGH[name])
    assert replaced.layers == ("layers.0.attention", "layers.1.attention")
    with torch.no_grad():
        expected, computed = (model(IDS, mask=MASK).hidden for model in (bert, replaced.model))
    assert_close(computed[0], expected[0], rtol=1e-4, atol=1e-5)
    assert_close(computed[1, :3], expected[1, :3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [("longformer", {"window": 2}), ("performer", {"seed": 3}), ("linformer", {"projected": 5}), ("linear", {})],
)
def test_layers_use_the_mechanism_and_the_model_is_not_changed(bert, name, options):
    before = {at: one.clone() for at, one in bert.state_dict().items()}
    torch.manual_seed(1)
    replaced = replace_mechanism(bert, name, **options).model
    alone = regard.mechanism(name, heads=3, head_dim=4, **options).eval()
    with regard.record(replaced) as seen, torch.no_grad():
        replaced(IDS, mask=MASK)
    for call in seen:
        assert type(call.mechanism) is type(alone)
        alone.load_state_dict(call.mechanism.state_dict())
        with torch.no_grad():
            assert_close(call.weights(), alone.weights(call.query, call.key, mask=MASK, **call.inputs))
    assert all(torch.equal(one, before[at]) for at, one in bert.state_dict().items())
    assert {type(layer.attention.mechanism).__name__ for layer in bert.layers} == {"DotProduct"}


def test_global_projections_start_as_copies(bert):
    replaced = replace_mechanism(bert, "longformer", window=2)
    layer = replaced.model.layers[1].attention
    for ours, usual in (("global_query", "query"), ("global_key", "key"), ("global_value", "value")):
        copied, source = layer.input_projections[ours], layer.get_submodule(f"{usual}_projection")
        assert torch.equal(copied.weight, source.weight)
        assert copied.weight.data_ptr() != source.weight.data_ptr()
        assert f"longformer: {ours} starts as a copy of the {usual} projection" in replaced.notes


def test_other_inputs_without_trained_weights_are_left_out():
    """Without its gates, forgetting attention is causal dot-product attention."""
    block, tokens = encoder_block(12, 3, 7).eval(), torch.randn(2, 7, 12)
    replaced = replace_mechanism(block, "forgetting")
    assert replaced.notes == ("forgetting: the model has no trained projection for forget, which is left out",)
    assert_close(replaced.model(tokens), block(tokens, mask=masks.causal()))


def test_trained_inputs_are_kept_for_the_same_mechanism():
    layer, tokens = (
        MultiHeadAttention(12, 3, mechanism="longformer", mechanism_options={"window": 4}),
        torch.randn(2, 7, 12),
    )
    replaced = replace_mechanism(layer, "longformer", window=16)
    assert replaced.notes == ()
    assert torch.equal(
        replaced.model.input_projections["global_query"].weight, layer.input_projections["global_query"].weight
    )
    back = replace_mechanism(layer, "dot_product")
    assert back.notes == tuple(
        f"dot_product: the model's trained projection for global_{side} is not used"
        for side in ("query", "key", "value")
    )
    assert len(back.model.input_projections) == 0
    assert not torch.allclose(back.model(tokens), layer(tokens))


def test_random_projections_are_said(bert):
    notes = replace_mechanism(bert, "linformer", projected=5).notes
    assert "linformer: key_projection has random weights, which were not trained" in notes


def test_the_same_mechanism_keeps_its_parameters():
    layer, tokens = MultiHeadAttention(12, 3, mechanism="additive").eval(), torch.randn(2, 7, 12)
    assert torch.equal(replace_mechanism(layer, "additive").model(tokens), layer(tokens))
    sizes = {"length": 9, "projected": 5}
    layer = MultiHeadAttention(12, 3, mechanism="linformer", mechanism_options=sizes).eval()
    assert torch.equal(replace_mechanism(layer, "linformer", **sizes).model(tokens), layer(tokens))
    notes = replace_mechanism(layer, "linformer", **sizes | {"projected": 7}).notes
    assert "linformer: key_projection has random weights, which were not trained" in notes


def test_position_dropout_mode_and_dtype_are_kept():
    layer = MultiHeadAttention(12, 3, position=positions.Rotary(4), dropout=0.25).double()
    replaced = replace_mechanism(layer, "longformer", window=16)
    assert replaced.model.mechanism.dropout == 0.25
    assert replaced.model.training
    tokens = torch.randn(2, 7, 12, dtype=torch.float64)
    assert_close(replaced.model.eval()(tokens), layer.eval()(tokens))
    performer = replace_mechanism(layer, "performer")
    assert performer.model.mechanism.projection.dtype == torch.float64
    assert not performer.model.mechanism.training
    assert replace_mechanism(layer.train(), "performer").notes == ("performer: weights are not dropped in training",)


def test_some_layers(bert):
    replaced = replace_mechanism(bert, "linear", layers=["layers.1.attention"])
    assert replaced.layers == ("layers.1.attention",)
    names = [type(layer.attention.mechanism).__name__ for layer in replaced.model.layers]
    assert names == ["DotProduct", "Linear"]


def test_refusals(bert):
    for name in ("additive", "luong_general", "luong_concat", "local_p"):
        with pytest.raises(RefusedError, match="no trained weights"):
            replace_mechanism(bert, name)
    with pytest.raises(RefusedError, match="trained parameters that dot_product cannot use"):
        replace_mechanism(MultiHeadAttention(12, 3, mechanism="additive"), "dot_product")
    with pytest.raises(RefusedError, match="one projection for queries and keys"):
        replace_mechanism(bert, "reformer", shared=True)
    with pytest.raises(OptionError, match="unknown mechanism 'longfromer'"):
        replace_mechanism(bert, "longfromer")
    with pytest.raises(OptionError, match="did you mean 'window'"):
        replace_mechanism(bert, "longformer", windows=3)
    with pytest.raises(OptionError, match="unknown attention layer"):
        replace_mechanism(bert, "linear", layers=["layers.9.attention"])
    with pytest.raises(OptionError, match="no attention layer"):
        replace_mechanism(torch.nn.Linear(2, 2), "linear")


def small_models():
    """One model of each class that is saved with a config."""
    torch.manual_seed(0)
    encoder = TransformerEncoderConfig(
        vocabulary=41, width=12, layers=2, heads=3, inner=7, mechanism="longformer", mechanism_options={"window": 2}
    )
    labels = TextClassifierConfig(labels=("no", "yes"))
    sizes = {"vocabulary": 11, "width": 12, "layers": 2, "heads": 3, "inner": 7}
    return {
        "bert": Bert(CONFIG),
        "encoder": TransformerEncoder(encoder),
        "classifier": TextClassifier(Bert(CONFIG), labels),
        "transformer": Transformer(TransformerConfig(**sizes)),
    }


@pytest.mark.parametrize("name", ["bert", "encoder", "classifier", "transformer"])
def test_a_model_with_a_replaced_mechanism_is_not_saved(name, tmp_path):
    """The folder would be loaded with the mechanism of the config."""
    model = small_models()[name]
    replaced = replace_mechanism(model, "longformer", window=4).model
    with pytest.raises(RefusedError, match=r"(?s)with a replaced mechanism cannot be saved.*expected.*got.*Longformer"):
        replaced.save(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("name", ["bert", "encoder", "classifier", "transformer"])
def test_the_same_mechanism_with_other_run_time_options_is_saved(name, tmp_path):
    model = small_models()[name]
    for part in model.modules():
        if isinstance(part, Mechanism):
            part.dropout = 0.25
            if hasattr(part, "impl"):
                part.impl = "reference"
    before = torch.get_rng_state()
    model.save(tmp_path / "folder")
    assert torch.equal(torch.get_rng_state(), before)
    assert (tmp_path / "folder" / "config.json").exists()


@pytest.mark.parametrize("row", regard.catalogue(), ids=lambda row: row.name)
def test_every_mechanism_is_saved_with_its_own_config(row, tmp_path):
    """Options that are drawn at random or that the model itself sets are no difference."""
    options = {"length": 17} if "length" in row.options else {"max_length": 17} if "max_length" in row.options else {}
    config = TransformerEncoderConfig(
        vocabulary=41, width=12, layers=2, heads=2, inner=7, mechanism=row.name, mechanism_options=options
    )
    TransformerEncoder(config).save(tmp_path / "folder")
    assert (tmp_path / "folder" / "config.json").exists()
