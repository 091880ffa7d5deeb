"""Eval mode inside a block, and the mode of each module afterwards."""

from contextlib import suppress

from torch import nn

from regard.layers.eval_mode import eval_mode


def test_each_module_has_its_mode_again():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()))
    model[1][0].eval()  # a frozen norm
    before = [module.training for module in model.modules()]
    with eval_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before
    with suppress(KeyError), eval_mode(model):
        raise KeyError
    assert [module.training for module in model.modules()] == before
