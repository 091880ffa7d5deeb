"""A third-party mechanism: one class, one catalogue row and one oracle make it work in all public functions."""

import json
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import regard
from conformance import (
    claims,
    test_agreement,
    test_determinism,
    test_empty_rows,
    test_hidden,
    test_statistics,
)
from conformance.claim_cases import ClaimCase, sample_groups
from conformance.claims import Claim
from conformance.mask_cases import LAYOUTS
from regard import masks
from regard.cli.app import app
from regard.conformance import mechanism_oracles
from regard.conformance.oracles.softmax import key_head, rows, softmax, weighted_sum
from regard.errors import OptionError
from regard.mechanisms import DotProduct, ScoredMechanism
from regard.models import Transformer, TransformerConfig

NAME = "bounded"
PROVES = {
    "hidden": test_hidden.test_masked_positions_have_no_influence,
    "empty rows": test_empty_rows.test_empty_rows_give_zero_output_and_gradients,
    "determinism": test_determinism.test_same_inputs_same_bits,
    "agreement": test_agreement.test_agrees_with_the_oracle,
}


class Bounded(ScoredMechanism):
    """softmax(tanh(q) . tanh(k) / temperature) v."""

    def __init__(self, *, heads, head_dim, temperature=2.0):
        super().__init__(heads=heads, head_dim=head_dim)
        self.temperature = temperature

    def score(self, query, key):
        return query.tanh() @ key.tanh().mT / self.temperature


def _oracle(query, key, value, allowed, parameters):
    scores = np.zeros(allowed.shape, dtype=np.result_type(query, key))
    for batch, head, row, seen in rows(allowed):
        keys = key[batch, key_head(head, query.shape[1], key.shape[1]), seen]
        scores[batch, head, row, seen] = np.tanh(keys) @ np.tanh(query[batch, head, row]) / 2
    return weighted_sum(softmax(scores, allowed), value, allowed)


ROW = regard.CatalogueRow(NAME, Bounded, equation="softmax(tanh(q) . tanh(k) / t) v", paper="none", cost="n^2 d")


@pytest.fixture(autouse=True)
def register(monkeypatch):
    catalogue = sys.modules["regard.mechanism_catalogue"]
    monkeypatch.setattr(catalogue, "_BY_NAME", dict(catalogue._BY_NAME))
    monkeypatch.setitem(mechanism_oracles.ORACLES, NAME, mechanism_oracles.Oracle(_oracle))
    monkeypatch.setitem(claims.CATALOGUE_ROWS, NAME, ROW)
    regard.register_mechanism(ROW)


@pytest.mark.parametrize("promise", [*PROVES, "statistics"])
def test_conformance(promise, without_shape_checks, monkeypatch):
    claim = Claim(promise, NAME, "its own", "float32")
    layouts = LAYOUTS[2:] if promise == "determinism" else LAYOUTS
    case = ClaimCase(claim, sample_groups(claim, layouts), False)
    if promise == "statistics":
        test_statistics.test_statistics_agree_with_the_oracle(case, None, monkeypatch, lambda *_, **__: None)
    else:
        PROVES[promise](case, None, lambda *_, **__: None)


def test_layer_and_its_recording():
    layer = regard.MultiHeadAttention(12, 3, mechanism=NAME, mechanism_options={"temperature": 3.0})
    tokens = torch.randn(2, 5, 12)
    with regard.record(layer) as recording:
        layer(tokens, mask=masks.causal())
    assert recording[0].mechanism.temperature == 3.0
    torch.testing.assert_close(recording[0].weights().sum(-1), torch.ones(2, 3, 5))
    assert recording[0].observe(top=2).entropy.shape == (2, 3, 5)


def test_model_decodes_and_is_saved_and_loaded(tmp_path):
    config = TransformerConfig(
        vocabulary=11, width=12, layers=1, heads=3, inner=7, mechanism=NAME, mechanism_options={"temperature": 5.0}
    )
    model = Transformer(config).eval()
    model.save(tmp_path / "model")
    again = regard.load(tmp_path / "model")
    assert again.config == config
    source, target = torch.randint(3, 11, (2, 5)), torch.randint(3, 11, (2, 4))
    exact, state = model(source, target).logits, again.start(source)
    for place in range(4):
        logits, state = again.step(target[:, place], state)
        torch.testing.assert_close(logits, exact[:, place], rtol=0, atol=1e-5)


def test_regard_list_shows_it():
    listed = json.loads(CliRunner().invoke(app, ["list", "--json"]).output)["mechanisms"]
    assert listed[-1]["name"] == NAME
    assert listed[-1]["options"] == ["temperature"]


@pytest.mark.parametrize(
    ("name", "mechanism", "words"),
    [
        (NAME, Bounded, "a new mechanism"),
        ("two words", Bounded, "a new mechanism"),
        ("dot_product", DotProduct, "a new mechanism"),
        ("other", torch.nn.Linear, "cannot be registered"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_invalid_rows_are_refused(name, mechanism, words):
    row = regard.CatalogueRow(name, mechanism, equation="", paper="", cost="")
    with pytest.raises(OptionError, match=words):
        regard.register_mechanism(row)
    with pytest.raises(OptionError, match="row"):
        regard.register_mechanism(name)
