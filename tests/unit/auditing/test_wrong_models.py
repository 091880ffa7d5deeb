"""Models whose outputs belong to no tokens, that cannot be called, or that something declares bidirectional."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

import regard
from regard.errors import OptionError

IDS = torch.randint(0, 19, (2, 7), generator=torch.Generator().manual_seed(1))


class Outputs(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.tokens, self.output, self.change = nn.Embedding(19, 8), nn.Linear(8, 5), change

    def forward(self, ids):
        return self.change(self.output(self.tokens(ids)))


@pytest.mark.parametrize(
    ("change", "shape"),
    [(lambda outputs: outputs.mean(1), "(1, 5)"), (lambda outputs: outputs[:, ::2], "(1, 4, 5)")],
    ids=["pooled", "every second"],
)
def test_outputs_that_belong_to_no_token(change, shape):
    report = regard.audit(Outputs(change).eval(), IDS, causal=True, skip=["bfloat16"])
    assert report.leaks == (), str(report)
    assert report["batch"].verdict == "holds"
    for name in ("causal", "causal in training mode", "gradient of later tokens", "1e30 in later tokens"):
        assert report[name].verdict == "cannot be asked"
        assert f"for a text of 7 the model returns a tensor of shape {shape}" in report[name].reason


def test_outputs_with_features_before_positions():
    report = regard.audit(Outputs(lambda outputs: outputs.transpose(1, 2)).eval(), IDS, causal=True, only=["causal"])
    assert report["causal"].verdict == "holds"
    leaking = Outputs(lambda outputs: (outputs + outputs.roll(-1, 1)).transpose(1, 2)).eval()
    leak = regard.audit(leaking, IDS, causal=True, only=["causal"])["causal"].leak
    assert leak.output + 1 == leak.input


def test_a_classifier_of_texts_is_not_accused():
    config = transformers.LlamaConfig(
        vocab_size=53, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_labels=3
    )
    config.pad_token_id = 0
    model = transformers.LlamaForSequenceClassification(config).eval()
    report = regard.audit(model, only=["causal", "packed", "cache", "batch"])
    assert report.leaks == (), str(report)
    assert "outputs do not belong to tokens" in report["packed by position_ids"].reason


def test_modules_that_cannot_be_called():
    class Nothing(nn.Module):
        pass

    with pytest.raises(OptionError, match="a module without it"):
        regard.audit(Nothing(), IDS)
    with pytest.raises(OptionError, match=r"0.weight on the device 'meta'"), torch.device("meta"):
        regard.audit(nn.Sequential(nn.Embedding(19, 8)), IDS)


def test_a_model_that_is_bidirectional_because_an_argument_says_so():
    report = regard.audit(Outputs(lambda outputs: outputs).eval(), IDS, causal=False, only=["batch"])
    assert any("audited as bidirectional, as `causal=False` says" in note for note in report.notes)


def test_a_model_that_is_bidirectional_because_its_config_says_so():
    config = transformers.LlamaConfig(
        vocab_size=53, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    config.is_causal = False
    report = regard.audit(transformers.LlamaModel(config).eval(), only=["causal", "batch"])
    assert report["causal"].verdict == "cannot be asked"
    assert any("as its config says (is_causal=False)" in note for note in report.notes)
