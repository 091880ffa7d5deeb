"""The deviation of initial weights by width: outputs of linear layers vary as much at any width."""

import pytest
import torch
from torch import nn

from regard.models import CvtConfig, Gpt2Config, LlamaConfig, SwinConfig, VitConfig
from regard.models.initial_weights import choose_deviation, init_from_normal
from regard.tasks.hyperparameters import apply_hyperparameters


def test_the_published_models_keep_their_deviation():
    """Devlin et al. 2019, Radford et al. 2019 and Dosovitskiy et al. 2021 have 0.02 at a width of 768."""
    assert choose_deviation(768) == pytest.approx(0.02)


@pytest.mark.parametrize("width", [48, 211, 768, 1536])
def test_outputs_vary_as_much_at_any_width(width):
    torch.manual_seed(1)
    layer = nn.Linear(width, 1009)
    init_from_normal(layer, choose_deviation(width))
    outputs = layer(torch.randn(101, width)).detach()
    assert float(outputs.std()) == pytest.approx(0.02 * 768**0.5, rel=0.02)


def test_new_models_have_the_deviation_of_their_width():
    fields = {"layers": 1, "heads": 2}
    made = apply_hyperparameters(Gpt2Config, {**fields, "width": 192}, {}, fixed={})
    assert made.deviation == pytest.approx(0.04)
    assert apply_hyperparameters(Gpt2Config, {**fields, "width": 192}, {"width": 48}, fixed={}).deviation == 0.08
    assert apply_hyperparameters(Gpt2Config, {**fields, "width": 192}, {"deviation": 0.5}, fixed={}).deviation == 0.5
    assert apply_hyperparameters(LlamaConfig, {**fields, "deviation": 0.02}, {"width": 48}, fixed={}).deviation == 0.02


@pytest.mark.parametrize("kind", [VitConfig, SwinConfig, CvtConfig, Gpt2Config, LlamaConfig])
def test_configs_have_the_published_deviation(kind):
    assert kind().deviation == 0.02
