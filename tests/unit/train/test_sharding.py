"""FSDP: weights sharded over two processes, with the gradient norm and the weights of one; and what is refused."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import regard
from regard.errors import OptionError, RefusedError
from regard.train import sharding
from script_process import run_script
from training_process import two_ranks

SIZE = 7, 13
SCRIPT = f"""
import json, torch
from torch import nn
from regard.train import state_dicts
from regard.train.distributed import Processes
processes = Processes(device="cpu")
torch.manual_seed(3)
model = nn.Linear{SIZE}
model, optimizer = processes.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
rows = torch.arange(28.0).reshape(4, 7) / 10
processes.backward(model(rows[processes.rank :: 2]).square().sum() * 2)
norm = float(processes.clip(model, 1.0))
optimizer.step()
local = [weight.to_local().numel() for weight in model.parameters()]
weights = state_dicts.get_weights(processes.unwrap(model), {{}})
print(json.dumps([processes.is_sharded, local, norm, {{name: one.tolist() for name, one in weights.items()}}]))
"""
PLUGIN = {"fsdp_version": 2, "auto_wrap_policy": None, "min_num_params": 0, "transformer_cls_names_to_wrap": None}


@pytest.mark.skipif(sys.platform == "win32", reason="torch has no gloo for FSDP there")
def test_weights_are_sharded_and_clipped_by_the_norm_of_all_shards():
    fsdp = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    with two_ranks(fsdp) as ranks, ThreadPoolExecutor(2) as together:
        runs = [together.submit(run_script, SCRIPT, environment=os.environ | rank) for rank in ranks]
        result = [run.result() for run in runs]
    assert [one.returncode for one in result] == [0, 0], result[0].stderr
    main, other = (json.loads(one.stdout) for one in result)
    assert main[0] is other[0] is True
    assert [sum(each) for each in zip(main[1], other[1], strict=True)] == [91, 13]
    assert min(*main[1], *other[1]) > 0

    torch.manual_seed(3)
    model = nn.Linear(*SIZE)
    model(torch.arange(28.0).reshape(4, 7) / 10).square().sum().backward()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    assert main[2] == other[2] == pytest.approx(norm, rel=1e-5)
    assert other[3] == {}  # the main process alone has the weights, whole
    for name, weight in model.named_parameters():
        torch.testing.assert_close(torch.tensor(main[3][name]), (weight - weight.grad).detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("version", [1, 3])
def test_other_versions_are_refused(version):
    with pytest.raises(OptionError, match=f"does not support version {version} of FSDP"):
        sharding.check_sharding(SimpleNamespace(**PLUGIN | {"fsdp_version": version}))


def test_choice_of_modules_by_size_is_refused():
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    plugin = PLUGIN | {"auto_wrap_policy": size_based_auto_wrap_policy, "min_num_params": 100}
    with pytest.raises(OptionError, match="by size"):
        sharding.check_sharding(SimpleNamespace(**plugin))


def test_parameters_without_gradients_are_refused():
    model = nn.Sequential(regard.mechanism("dsa", heads=2, head_dim=8))
    with pytest.raises(RefusedError, match="leaves parameters without gradients"):
        sharding.check_shardable(model, SimpleNamespace(**PLUGIN))
    sharding.check_shardable(
        nn.Sequential(regard.mechanism("dot_product", heads=2, head_dim=8)), SimpleNamespace(**PLUGIN)
    )


def test_cpus_are_refused_where_there_is_an_accelerator(monkeypatch):
    from accelerate.utils import DistributedType

    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    with pytest.raises(RefusedError, match="FSDP on CPUs"):
        sharding.shard_on_cpus(SimpleNamespace(distributed_type=DistributedType.MULTI_CPU))
