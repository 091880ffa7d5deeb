"""The contestants of the suite of whole models of transformers, with small models."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.suites import hf_models
from benchmarks.targets import MaxTimeOfParts
from benchmarks.timing import Samples

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "sliding_window": 5,
    "num_hidden_layers": 2,
}
LAYERS = {
    "bert padded": {},
    "llama window": {},
    "qwen3 2048": {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 6,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "gemma2 2048": {},
    "gpt-oss 2048": {},
    "mamba2 2048": {"num_heads": 8, "head_dim": 8, "state_size": 6, "chunk_size": 4},
}


@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("name", LAYERS)
def test_contestants_are_right_and_run(name, training):
    whole = hf_models._MODELS[name]
    lengths = (13, 7) if len(whole.lengths) > 1 else (13,)
    kind = replace(whole, lengths=lengths, sizes={**whole.sizes, **SMALL, **LAYERS[name]})
    problem = hf_models._ModelProblem(kind, torch.float32, training=training)
    scans = {scan: getattr(problem.file, scan) for scan in kind.scans}
    for contestant in kind.contestants:
        made = problem.contestant(contestant)
        assert not [one for one in made.deviations() if one.is_wrong]
        made.run()
    assert {scan: getattr(problem.file, scan) for scan in kind.scans} == scans


def test_the_expected_time_replaces_a_part():
    target = MaxTimeOfParts("transformers", "transformers-part", "native-part", 1.05)
    ours, others = (
        Samples((7.5, 7.7, 7.4)),
        {
            "transformers": Samples((10.0, 10.0, 10.0)),
            "transformers-part": Samples((4.0, 4.0, 4.0)),
            "native-part": Samples((1.0, 1.0, 1.0)),
        },
    )
    verdict = target.judge(ours, others, {}, 1.0)
    assert verdict is not None
    assert verdict.reached is False
    assert verdict.got == pytest.approx(7.5 / 7.0)
    assert target.judge(ours, {"transformers": Samples((10.0,))}, {}, 1.0) is None
