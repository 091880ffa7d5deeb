"""The dropout layer: active only in training, as torch.nn.Dropout, and used everywhere in models."""

import copy

import pytest
import torch
from torch import nn

from regard.errors import DtypeError, OptionError
from regard.layers import Dropout, FeedForward, PostNorm
from regard.models import Bert, BertConfig, Transformer, TransformerConfig


def test_dropped_fraction_and_scaling():
    tokens = torch.randn(3, 5, 7919)
    output = Dropout(0.2)(tokens)
    dropped = output == 0
    assert torch.equal(output[~dropped], tokens[~dropped] * torch.tensor(1 / 0.8))
    assert dropped.float().mean().item() == pytest.approx(0.2, abs=5 * (0.2 * 0.8 / tokens.numel()) ** 0.5)


def test_eval_mode_and_probability_0_return_the_same_tensor():
    tokens = torch.randn(7)
    layer = Dropout(0.5)
    assert Dropout()(tokens) is tokens
    assert Dropout(0.0)(tokens) is tokens
    assert layer.eval()(tokens) is tokens
    assert (layer.train()(torch.ones(1009)) == 0).any()


def test_the_probability_can_be_changed():
    layer = Dropout(0.0)
    layer.p = 0.9
    assert (layer(torch.ones(1009)) == 0).float().mean() > 0.8
    layer.p = 0
    assert layer(torch.ones(1009)).all()


def test_repr_copy_and_state_dict_are_those_of_torch():
    assert repr(Dropout(0.25)) == "Dropout(p=0.25)"
    assert copy.deepcopy(Dropout(0.25)).p == 0.25
    assert not Dropout(0.25).state_dict()


@pytest.mark.parametrize("wrong", [-0.1, 1.0, 1.5, float("nan")])
def test_invalid_probabilities_are_refused(wrong):
    with pytest.raises(OptionError, match=r"(?s)dropout is a probability.*0 <= dropout < 1"):
        Dropout(wrong)


@pytest.mark.usefixtures("without_shape_checks")
def test_integer_tensors_are_refused():
    with pytest.raises(DtypeError, match=r"(?s)tokens has an unsupported dtype.*float32.*torch\.int64.*\.float\(\)"):
        Dropout(0.5)(torch.ones(7, dtype=torch.int64))


def test_under_autocast_half_precision_stays_half_precision():
    with torch.autocast("cpu", torch.bfloat16):
        assert Dropout(0.5)(nn.Linear(7, 11)(torch.ones(3, 7))).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "model",
    [
        lambda: Transformer(TransformerConfig(vocabulary=31, width=8, layers=1, heads=2, inner=16)),
        lambda: Bert(BertConfig(vocabulary=31, width=8, layers=1, heads=2, inner=16)),
        lambda: FeedForward(7, 11, dropout=0.1),
        lambda: PostNorm(nn.Identity(), dropout=0.1),
    ],
    ids=["Transformer", "Bert", "FeedForward", "PostNorm"],
)
def test_models_use_only_this_dropout(model):
    kinds = {type(module) for module in model().modules()}
    assert Dropout in kinds
    assert nn.Dropout not in kinds


def test_a_compiled_layer_is_one_graph():
    layer, tokens = Dropout(0.5), torch.ones(1009)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    results = []
    for function in (compiled, layer):
        torch.manual_seed(79)
        results.append(function(tokens))
    assert torch.equal(*results)
