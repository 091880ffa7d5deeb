"""``transformers.Trainer`` with attn_implementation="regard": the losses of a run are those of eager."""

from __future__ import annotations

import functools

import pytest

from unit.hf.trainer_runs import STEPS, train, train_in_two

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # peft
]
eager = functools.cache(functools.partial(train, implementation="eager"))


def assert_equal(losses: list[float], expected: list[float]) -> None:
    assert len(losses) == STEPS
    assert max(losses) - min(losses) > 0.1  # the model learns
    assert losses == pytest.approx(expected, abs=1e-5, rel=0)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "gradient-checkpointing"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_losses(name, checkpointing):
    """Recomputed layers have the losses of layers that are kept."""
    assert_equal(train(name, "regard", checkpointing=checkpointing), eager(name))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_losses_of_adapters(name):
    assert_equal(train(name, "regard", lora=True), eager(name, lora=True))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_two_processes_have_the_losses_of_one(name):
    """DDP by gloo: each process has half of a batch."""
    assert_equal(train_in_two(name, "regard"), eager(name))
