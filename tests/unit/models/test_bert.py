"""BERT as an nn.Module: its outputs and its errors."""

import pytest
import torch

import regard
from regard import masks
from regard.errors import DtypeError, OptionError, ShapeError
from regard.models import Bert, BertConfig
from regard.models import bert as sizes

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


def test_keep_layers_returns_all_hidden_states(model):
    output = model(torch.zeros(2, 5, dtype=torch.long), keep_layers=True)
    assert [tuple(layer.shape) for layer in output.layers] == [(2, 5, 14)] * 4
    assert torch.equal(output.layers[-1], output.hidden)


def test_recorded_layers_are_named_from_0(model):
    with regard.record(model) as recording:
        model(torch.zeros(1, 5, dtype=torch.long))
    assert [layer.name for layer in recording] == ["layers.0.attention", "layers.1.attention", "layers.2.attention"]


def test_padding_has_no_influence(model):
    ids = torch.randint(1, 17, (2, 5))
    other = ids.clone()
    other[1, 3:] = (ids[1, 3:] + 3) % 17
    mask = masks.padding([5, 3])
    hidden, changed = (model(tokens, mask=mask).hidden for tokens in (ids, other))
    assert torch.equal(hidden[0], changed[0])
    assert torch.equal(hidden[1, :3], changed[1, :3])


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


def test_every_weight_gets_a_gradient(model):
    model.train()
    output = model(torch.arange(7)[None], segments=torch.tensor([[0, 1, 0, 1, 0, 1, 0]]))
    (output.hidden.square().sum() + output.pooled.sum()).backward()
    # A norm's output has a fixed length, so a gradient may be 0, but none may be None.
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_too_many_tokens_are_refused(model):
    with pytest.raises(ShapeError, match=r"at most 7 tokens[\s\S]*8 tokens"):
        model(torch.zeros(1, 8, dtype=torch.long))


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (torch.zeros(5, dtype=torch.long), ShapeError, "batch dimension"),
        (torch.zeros(1, 5), DtypeError, "float32"),
        (torch.full((1, 5), 17), OptionError, "0 to 16"),
        (torch.full((1, 5), -1), OptionError, "0 to 16"),
    ],
)
def test_invalid_ids_are_refused(model, ids, error, message):
    with pytest.raises(error, match=message):
        model(ids)


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


@pytest.mark.parametrize(
    ("builder", "millions"),
    # Parameters as published: Turc et al. 2019, table 1; Devlin et al. 2019, section 3; Wang et al. 2020, table 1.
    [("bert_tiny", 4.4), ("bert_mini", 11.3), ("bert_small", 29.1), ("bert_base", 110), ("minilm", 22)],
)
def test_published_sizes(builder, millions):
    with torch.device("meta"):
        model = getattr(sizes, builder)()
    count = sum(weight.numel() for weight in model.parameters()) / 1e6
    assert count == pytest.approx(millions, rel=0.04)
