"""The task of translation: losses of shards, and the loss of a validation."""

import numpy as np
import pytest
import torch

from regard import masks
from regard.tasks.translation import TranslationRecipe, TranslationTask
from regard.train import RankShard, RunContext, Settings
from small_translators import write_pairs


@pytest.fixture
def task(tmp_path):
    write_pairs(tmp_path / "pairs.tsv")
    numbers = {"layers": 1, "width": 16, "inner": 19}
    made = TranslationTask(
        TranslationRecipe((tmp_path / "pairs.tsv",), model="tiny", hyperparameters=numbers, smoothing=0.2)
    )
    torch.manual_seed(1)
    made.prepare(RunContext(Settings(steps=1, precision="float32")))
    made.model.eval()
    return made


def test_losses_of_shards_add_up_and_an_empty_shard_adds_nothing(task):
    batch = task.epoch(0)[0]
    shards = len(batch) + 1
    parts = [task.loss(task.model, batch, RankShard(rank, shards)) for rank in range(shards)]
    torch.testing.assert_close(sum(parts), task.loss(task.model, batch, RankShard()))
    assert parts[-1].item() == 0
    parts[-1].backward()
    assert not any(parameter.grad.any() for parameter in task.model.parameters() if parameter.grad is not None)


@torch.no_grad()
def test_validation_loss_is_the_mean_cross_entropy_of_a_target_token(task):
    """Of each pair alone, end tokens included, and without label smoothing."""
    batches, losses = task.validation.batches, []
    for number in range(len(task.validation.pairs)):
        pair = batches.batch(np.array([number]))
        logits = task.model(pair.source, pair.decoder_input, mask=masks.padding(pair.lengths)).logits[0].double()
        length = int(batches.corpus.target.lengths[number]) + 1
        assert pair.labels.shape == (1, length)
        losses += (-logits.log_softmax(-1)[torch.arange(length), pair.labels[0]]).tolist()
    assert len(task.validation.pairs) > 1
    assert task.validate(task.model).metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
