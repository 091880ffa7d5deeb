"""Translators on the fake device: every search and all alignments equal those on the CPU."""

from __future__ import annotations

import pytest
import torch

from fake_device.device import DEVICE, DeviceTensor
from regard.search import Beam, Greedy, Sampling
from small_translators import ENGLISH, GERMAN, recurrent, transformer

ATTENTION_MODELS = {
    "transformer": transformer,
    "transformer-learned": lambda: transformer(position="learned", length=64),
    "transformer-rotary": lambda: transformer(position="rotary"),
    "transformer-t5": lambda: transformer(position="t5"),
    "transformer-additive": lambda: transformer(position="none", mechanism="additive"),
    "gru-additive": lambda: recurrent("additive"),
    "gru-local-p": lambda: recurrent("local_p"),
    "lstm-concat": lambda: recurrent("luong_concat", cell="lstm"),
}
MAKERS = {**ATTENTION_MODELS, "gru-none": lambda: recurrent("none")}
SEARCHES = [
    *((name, Greedy()) for name in MAKERS),
    *((name, Beam(3, coverage_penalty=0.2, best=2)) for name in ATTENTION_MODELS),
    ("gru-none", Beam(3, best=2)),
    *((name, Sampling(seed=1, top_k=7, best=2)) for name in ("transformer", "gru-additive")),
]


def make_on_both_devices(name):
    """Build the same translator on the CPU and on the fake device."""
    translators = [MAKERS[name]() for _ in range(2)]
    translators[1].model.to(DEVICE)
    assert all(isinstance(weight, DeviceTensor) for weight in translators[1].model.parameters())
    return translators


@pytest.mark.parametrize(("name", "search"), SEARCHES, ids=str)
def test_search_results_equal_those_on_the_cpu(name, search):
    on_cpu, on_device = (one.translate(GERMAN[:3], search=search) for one in make_on_both_devices(name))
    for one, other in zip(on_cpu, on_device, strict=True):
        assert [each.text for each in other.renderings] == [each.text for each in one.renderings]
        scores = [each.score for each in one.renderings]
        assert [each.score for each in other.renderings] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("name", ATTENTION_MODELS)
def test_word_alignments_equal_those_on_the_cpu(name):
    pairs = list(zip(GERMAN[:3], ENGLISH[:3], strict=True))
    on_cpu, on_device = (one.aligned_pairs(pairs) for one in make_on_both_devices(name))
    for one, other in zip(on_cpu, on_device, strict=True):
        torch.testing.assert_close(other.weights.cpu(), one.weights, rtol=0, atol=1e-5)
