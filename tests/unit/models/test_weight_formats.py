"""Weights of few bits in every model: what is converted, how far outputs move, and what is refused."""

import copy

import pytest
import torch
from torch import nn

import regard
from every_model import EXAMPLES, make_example
from regard.errors import CheckpointError, OptionError, RefusedError
from regard.export import FORMS, export
from regard.layers.quantized_linear import QuantizedLinear
from regard.models.weight_formats import convert_weights
from regard.number_formats import WEIGHT_FORMATS
from small_classifiers import classifier
from small_translators import transformer

KEPT = {"router", "head", "distillation_head", "last"}


def make_dense(model):
    """Give a converted model floating-point layers with the weights that the stored ones stand for."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, QuantizedLinear):
                linear = nn.Linear(child.in_features, child.out_features, bias=child.bias is not None)
                linear.weight.data = child.dense_weight()
                if child.bias is not None:
                    linear.bias.data = child.bias
                setattr(parent, name, linear)
    return model


def distance(found, expected):
    assert found.dtype == expected.dtype
    return (found - expected).norm() / expected.norm()


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
@torch.no_grad()
def test_every_model_computes_with_the_stored_weights(kind):
    """A scale that is lost, or weights that a layer reads past the conversion, give an error of about 1."""
    model, inputs, compute = make_example(kind)
    exact = compute(model.eval(), inputs)
    for weights in WEIGHT_FORMATS:
        converted = copy.deepcopy(model)
        convert_weights(converted, weights)
        left = {name.split(".")[-1] for name, module in converted.named_modules() if isinstance(module, nn.Linear)}
        assert left <= KEPT
        found = compute(converted, inputs)
        assert weights == "int4" or 0 < distance(found, exact) < 0.06
        with pytest.raises(RefusedError, match=f"no linear layers that can have {weights} weights"):
            convert_weights(converted, weights)  # all are converted
        assert distance(found, compute(make_dense(converted), inputs)) < 0.06  # tokens are rounded, too


def test_loaders_pass_the_format_on(tmp_path):
    classifier().save(tmp_path / "m")
    loaded = regard.load(tmp_path / "m", weights="int8")
    assert any(isinstance(module, QuantizedLinear) for module in loaded.modules())
    assert not any(isinstance(module, QuantizedLinear) for module in regard.load(tmp_path / "m").modules())
    with pytest.raises(OptionError, match="format of weights 'int3'"):
        regard.load(tmp_path / "no-such-folder", weights="int3")
    with pytest.raises(CheckpointError):
        regard.load(tmp_path / "no-such-folder", weights="int8")


@pytest.mark.parametrize("form", FORMS)
def test_rounded_weights_are_not_exported(form, tmp_path):
    model = classifier() if form in ("transformers", "onnx") else transformer().model
    convert_weights(model, "int8")
    with pytest.raises(RefusedError, match="with int8 weights cannot be saved"):
        export(model, tmp_path / "exported", form=form)
    assert list(tmp_path.iterdir()) == []
