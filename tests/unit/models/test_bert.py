"""BERT as an nn.Module: its outputs and its errors."""

import pytest
import torch

from regard import masks
from regard.errors import OptionError, ShapeError
from regard.models import Bert, BertConfig

SMALL = BertConfig(vocabulary=17, width=14, layers=3, heads=2, inner=11, max_length=7, segments=2)


@pytest.fixture
def model():
    torch.manual_seed(5)
    return Bert(SMALL).eval()


def test_shapes(model):
    output = model(torch.zeros(2, 5, dtype=torch.long))
    assert output.hidden.shape == (2, 5, 14)
    assert output.pooled.shape == (2, 14)
    assert output.layers is None
    (gradient,) = torch.autograd.grad(output.pooled.sum(), model.pooler.weight)
    assert gradient.any()


def test_updated_weights_are_used():
    """The model is so large that a CPU may use another code path when no gradient is needed."""
    model = Bert(BertConfig(vocabulary=17, width=130, layers=2, heads=2, inner=521, max_length=37)).eval()
    ids, mask = torch.randint(1, 17, (3, 37)), masks.padding([37, 13, 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        trained = model(ids, mask=mask).hidden
        with torch.no_grad():
            torch.testing.assert_close(model(ids, mask=mask).hidden, trained, atol=1e-5, rtol=1e-5)
        trained.square().mean().backward()
        optimizer.step()
        with torch.inference_mode():
            assert not torch.allclose(model(ids, mask=mask).hidden, trained, atol=1e-3)


def test_without_pooler():
    assert Bert(BertConfig(vocabulary=5, width=2, layers=1, heads=1, inner=3, pooler=False))(
        torch.zeros(1, 3, dtype=torch.long)
    ).pooled is None  # fmt: skip


def test_too_many_tokens_are_refused(model):
    with pytest.raises(ShapeError, match=r"at most 7 tokens[\s\S]*8 tokens"):
        model(torch.zeros(1, 8, dtype=torch.long))


def test_invalid_segments_are_refused(model):
    with pytest.raises(OptionError, match="segments are out of range"):
        model(torch.zeros(1, 5, dtype=torch.long), segments=torch.full((1, 5), 2))


def test_segments_of_another_shape_are_refused(model):
    with pytest.raises(ShapeError, match=r"segments \(1, 5\)"):
        model(torch.zeros(1, 5, dtype=torch.long), segments=torch.zeros(1, 3, dtype=torch.long))


def test_invalid_hyperparameters_are_refused():
    with pytest.raises(OptionError, match="width=13, heads=2"):
        BertConfig(width=13, heads=2)
    with pytest.raises(OptionError, match="gelu_tanh"):
        BertConfig(activation="gelu_new")
