"""Two processes learn what one process learns, by DDP and by FSDP, for every model: losses, weights and averages."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from every_model import EXAMPLES, model_classes
from regard.errors import RefusedError
from regard.train import sharding
from script_process import run_script
from training_process import two_ranks

ALL = tuple(kind.__name__ for kind in EXAMPLES)
SOME = ("T5", "Recurrent", "Clip", "Conformer", "Gato")
"""Tied weights and two stacks, LSTMs, a loss over all rows of a batch, statistics of batches, frozen parameters."""
FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "NO_WRAP"}
SCRIPT = """
import copy, json, torch
from every_model import EXAMPLES, make_example, take_rows
from regard.layers import checkpoint_activations
from regard.models import Recurrent
from regard.train import state_dicts
from regard.train.distributed import Processes

STEPS = 2
processes = Processes(device="cpu")

def train(model, weights, compute, inputs, rows, run_backward, share, reduce):
    losses = []
    optimizer = torch.optim.SGD(weights, lr=1e-3)
    if share > 1:
        model, optimizer = processes.prepare(model, optimizer)
    for _ in range(STEPS):
        loss = compute(model, take_rows(inputs, rows)).float().square().sum() / 100
        run_backward(loss * share)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(reduce(float(loss.detach())))
    return model, losses

for kind in [one for one in EXAMPLES if one.__name__ in NAMES]:
    model, inputs, compute = make_example(kind)
    whole = copy.deepcopy(model)
    trained = lambda one: [weight for weight in one.parameters() if weight.requires_grad]
    _, expected = train(
        whole, trained(whole), compute, inputs, slice(None), lambda loss: loss.backward(), 1, lambda loss: loss
    )
    if CHECKPOINTED and kind is not Recurrent:
        checkpoint_activations(model)
    prepared, found = train(
        model, trained(model), compute, inputs, slice(processes.rank, None, 2), processes.backward, 2, processes.sum
    )
    weights = state_dicts.get_weights(processes.unwrap(prepared), getattr(model, "tied_weights", {}))
    own = whole.state_dict()
    differ = {
        name: float((own[name].double() - weight.double()).abs().max()) / max(1e-3, float(own[name].abs().max()))
        for name, weight in weights.items()
    }
    if processes.is_main:
        print(json.dumps([kind.__name__, processes.is_sharded, expected, found, max(differ.values())]))
"""


def test_there_is_an_example_of_every_model():
    assert set(EXAMPLES) == model_classes()


def test_sharding_a_parameter_that_is_a_number_is_refused():
    """FSDP cannot, and says so in words of its own."""
    model = nn.Module()
    model.factor = nn.Parameter(torch.tensor(2.0))
    with pytest.raises(RefusedError, match=r"a single number(.|\n)*factor"):
        sharding.check_shardable(model, SimpleNamespace(transformer_cls_names_to_wrap=None))


@pytest.mark.skipif(sys.platform == "win32", reason="torch has no gloo for FSDP there")
@pytest.mark.parametrize(
    ("launcher", "checkpointed", "names"),
    [
        pytest.param({}, False, SOME, id="DDP-some"),
        pytest.param({}, False, ALL, id="DDP", marks=pytest.mark.slow),
        pytest.param(FSDP, False, ALL, id="FSDP", marks=pytest.mark.slow),
        pytest.param({}, True, ALL, id="DDP-checkpointed", marks=pytest.mark.slow),
        pytest.param(FSDP, True, ALL, id="FSDP-checkpointed", marks=pytest.mark.slow),
    ],
)
def test_two_processes_learn_what_one_does(launcher, checkpointed, names):
    script = f"CHECKPOINTED, NAMES = {checkpointed}, {names}\n{SCRIPT}"
    with two_ranks(launcher) as ranks, ThreadPoolExecutor(2) as together:
        runs = [together.submit(run_script, script, environment=os.environ | rank) for rank in ranks]
        main, other = (run.result() for run in runs)
    assert (main.returncode, other.returncode) == (0, 0), main.stderr + other.stderr
    results = [json.loads(line) for line in main.stdout.splitlines()]
    assert [name for name, *_ in results] == [name for name in ALL if name in names]
    for name, is_sharded, expected, found, difference in results:
        assert is_sharded == bool(launcher), name
        assert expected[0] != expected[-1], name
        assert found == pytest.approx(expected, rel=1e-4), name
        assert difference < 1e-4, name
