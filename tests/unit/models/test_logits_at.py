"""``logits_at`` and ``positions`` of masked language models: part of the usual output, refused if they do not fit."""

import pytest
import torch

from regard.errors import DtypeError, OptionError, RefusedError, ShapeError
from small_masked_language_models import masked_language_model

KINDS = ("bert", "roberta", "modernbert")


@pytest.mark.parametrize("kind", KINDS)
def test_logits_at_are_those_of_these_positions(kind):
    model = masked_language_model(kind)
    ids = torch.randint(5, 100, (3, 11))
    at = torch.rand(3, 11) < 0.4
    whole, some = model(ids), model(ids, logits_at=at)
    torch.testing.assert_close(some.logits, whole.logits[at])
    assert torch.equal(some.hidden, whole.hidden)
    assert model(ids, logits_at=torch.zeros(3, 11, dtype=torch.bool)).logits.shape == (0, model.config.vocabulary)
    with pytest.raises(ShapeError, match="different shapes"):
        model(ids, logits_at=at[:, :-1])
    with pytest.raises(DtypeError, match="does not say which"):
        model(ids, logits_at=at.long())
    with pytest.raises(RefusedError, match="no masked-language head"):
        masked_language_model(kind, head=False)(ids, logits_at=at)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_positions_from_the_first_column_are_the_usual_ones(kind):
    model = masked_language_model(kind)
    assert model.has_absolute_positions
    ids = torch.randint(5, 100, (3, 11))
    usual = torch.arange(11).expand(3, 11)
    torch.testing.assert_close(model(ids, positions=usual).hidden, model(ids).hidden)
    assert not torch.allclose(model(ids, positions=usual + 1).hidden, model(ids).hidden)
    with pytest.raises(ShapeError, match="different shapes"):
        model(ids, positions=usual[:, :-1])
    with pytest.raises(OptionError, match="out of range"):
        model(ids, positions=usual + 33)
