"""Why a padded sound differs: convolutions over hidden frames, in types of transformers and in a model of one line."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard
from unit.auditing.media_table import audit_sound

READS = "(Conv1d) reads hidden frames beside visible ones: they are not set to 0 before it"


@pytest.mark.parametrize(
    ("name", "causes"),
    [
        ("data2vec-audio", [f"encoder.pos_conv_embed.layers.1.conv {READS}"]),
        ("wav2vec2-conformer, layer norm", [f"encoder.layers.0.conv_module.depthwise_conv {READS}"]),
        (
            "wav2vec2-conformer",
            [
                "feature_extractor.conv_layers.0.layer_norm (GroupNorm) computes its statistics over all of the time, "
                "hidden samples too",
                f"encoder.layers.0.conv_module.depthwise_conv {READS}",
            ],
        ),
    ],
)
def test_causes_in_transformers(name, causes):
    leak = audit_sound(name)["padded sounds"].leak
    assert leak is not None
    assert leak.cause == "; and ".join(causes)


class Frames(nn.Module):
    """Two convolutions over frames; ``hides`` says before which of them hidden frames are set to 0."""

    def __init__(self, hides: set[str]) -> None:
        super().__init__()
        self.hides = hides
        self.first, self.second = (nn.Conv1d(5, 5, 3, padding=1) for _ in range(2))

    def forward(self, input_features, attention_mask=None):
        hidden = input_features.mT
        for name in ("first", "second"):
            if attention_mask is not None and name in self.hides:
                hidden = hidden * attention_mask[:, None].to(hidden)
            hidden = getattr(self, name)(hidden)
        return hidden.mT


@pytest.mark.parametrize("hides", [{"first", "second"}, {"first"}, {"second"}, set()])
def test_the_first_convolution_that_reads_hidden_frames(hides):
    torch.manual_seed(3)
    inputs = {"input_features": torch.randn(1, 23, 5)}
    result = regard.audit(Frames(hides).eval(), inputs, only=["padded"])["padded sounds"]
    missing = [name for name in ("first", "second") if name not in hides]
    assert result.verdict == ("leaks" if missing else "holds")
    if missing:
        assert result.leak.cause == f"{missing[0]} {READS}"
