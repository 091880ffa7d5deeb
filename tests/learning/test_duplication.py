"""The duplication task: its sequences, which symbols are predicted, and a short run of the program."""

from __future__ import annotations

import json
import math

import pytest
import torch

from benchmarks.learning import train_duplication
from benchmarks.learning.duplication import SYMBOLS, DuplicationModel, accuracy, draw_sequences, loss_of
from regard.mechanisms import Reformer


def make_model(length):
    torch.manual_seed(1)
    mechanism = Reformer(heads=4, head_dim=64, rounds=2, buckets=4)
    return DuplicationModel(length, mechanism), mechanism


def test_the_second_half_repeats_the_first():
    sequences = draw_sequences(5, 14, torch.Generator().manual_seed(3))
    assert sequences.shape == (5, 14)
    assert torch.equal(sequences[:, :7], sequences[:, 7:])
    assert not sequences[:, 0].any()
    assert 1 <= int(sequences[:, 1:7].min()) <= int(sequences.max()) <= SYMBOLS


def test_no_logit_depends_on_the_symbol_it_predicts():
    (model, _), sequences = make_model(14), draw_sequences(1, 14, torch.Generator().manual_seed(3))
    logits = model(sequences)
    assert logits.shape == (1, 6, SYMBOLS + 1)
    for place in range(6):
        changed = sequences.clone()
        changed[:, 8 + place :] = 5
        torch.testing.assert_close(model(changed)[:, : place + 1], logits[:, : place + 1], rtol=0, atol=1e-5)
        assert not torch.equal(model(changed)[:, place + 1 :], logits[:, place + 1 :]) or place == 5


def test_loss_and_accuracy_of_a_model_that_knows_nothing():
    (model, mechanism), sequences = make_model(62), draw_sequences(33, 62, torch.Generator().manual_seed(3))
    assert loss_of(model, sequences).item() == pytest.approx(math.log(SYMBOLS + 1), abs=0.5)
    assert accuracy(model, mechanism, sequences, 4) < 0.05
    assert mechanism.rounds == 2


@pytest.mark.slow
def test_a_short_run(tmp_path, capfd):
    options = ["--length", "30", "--steps", "3", "--minutes", "1", "--tests", "5", "--evaluate", "2,1"]
    assert train_duplication.EXPERIMENT.main([*options, "--out", str(tmp_path)]) == 0
    assert "| 30 symbols | " in capfd.readouterr().out
    (result,) = json.loads((tmp_path / "results.json").read_text()).values()
    assert (result["steps"], set(result["accuracy"])) == (3, {"2", "1"})
