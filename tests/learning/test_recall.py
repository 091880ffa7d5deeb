"""Associative recall by distance: answers read off the tokens, causal models of one size, and a short run."""

from __future__ import annotations

import json
import random

import pytest
import torch

from benchmarks.learning import train_recall
from benchmarks.learning.recall import KEYS, VALUES, VOCABULARY, RecallBatch, RecallProblem
from benchmarks.learning.recall_models import SCAN_FAMILY, count_weights, default_models, make_model
from benchmarks.learning.recall_plot import describe
from benchmarks.learning.recall_task import CHANCE, RecallTask
from regard.errors import OptionError
from regard.train import RankShard, RunContext, Settings

PROBLEM = RecallProblem(octaves=5, length=131)
CPU = torch.device("cpu")


def read_queries(ids):
    """The queries of a sequence, read off its tokens: for each key that comes again, what followed it at first."""
    queries, known = [], {}
    for place, token in enumerate(ids):
        if token >= KEYS:
            continue
        if token not in known:
            known[token] = place + 1
            continue
        queries.append((place, ids[known[token]] - KEYS, place - known[token]))
    return queries


def test_reading_of_queries():
    noise = KEYS + VALUES
    ids = [noise, 3, KEYS + 1, noise, noise, 7, KEYS + 4, 3, noise, noise, noise, 7]
    assert read_queries(ids) == [(7, 1, 5), (11, 4, 5)]


def test_answers_and_distances_agree_with_the_tokens():
    for one in PROBLEM.draw(random.Random(1), 211):
        assert len(one.ids) == 131
        assert sorted(one.queries) == read_queries(one.ids)
        assert all(0 <= answer < VALUES for _, answer, _ in one.queries)
        octaves = [distance.bit_length() - 1 for _, _, distance in one.queries]
        assert sorted(octaves) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_tokens_other_than_pairs_and_queries_are_noise():
    counts = {"key": 0, "value": 0, "noise": 0}
    for one in PROBLEM.draw(random.Random(2), 23):
        for token in one.ids:
            assert 0 <= token < VOCABULARY
            counts["key" if token < KEYS else "value" if token < KEYS + VALUES else "noise"] += 1
    assert counts == {"key": 23 * 20, "value": 23 * 10, "noise": 23 * 101}


def test_distances_fill_every_octave_and_answers_are_balanced():
    queries = [query for one in PROBLEM.draw(random.Random(3), 400) for query in one.queries]
    assert {distance for _, _, distance in queries} == set(range(2, 64))
    right = sum(answer == 3 for _, answer, _ in queries)
    deviation = (len(queries) * CHANCE * (1 - CHANCE)) ** 0.5
    assert abs(right - len(queries) * CHANCE) < 4 * deviation


def test_the_longest_distance_fits_exactly():
    problem = RecallProblem(octaves=6, length=129)
    assert problem.octave_names == ("2-3", "4-7", "8-15", "16-31", "32-63", "64-127")
    assert max(query.distance for one in problem.draw(random.Random(1), 97) for query in one.queries) > 120
    with pytest.raises(OptionError, match="do not fit"):
        RecallProblem(octaves=6, length=128)
    with pytest.raises(OptionError, match="do not fit"):
        RecallProblem(octaves=1, length=17)


def test_batches_put_the_queries_of_all_sequences_in_one_dimension():
    sequences = PROBLEM.draw(random.Random(4), 3)
    batch = RecallBatch.of(sequences, CPU)
    expected = [(row, *query) for row, one in enumerate(sequences) for query in one.queries]
    columns = (batch.rows, batch.places, batch.answers, batch.distances)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert batch.ids.tolist() == [one.ids for one in sequences]


def test_default_models_are_those_of_the_catalogue():
    models = default_models()
    assert models[:3] == ("gru", "convolution", "linear")
    assert models[-1] == "dot_product"
    assert set(models[2:-1]) <= set(SCAN_FAMILY)


@pytest.mark.parametrize("name", default_models())
def test_models_have_one_size_and_are_causal(name):
    """Tokens after a query change nothing; a token 100 tokens before it does."""
    torch.manual_seed(1)
    model = make_model(name, width=32, heads=2).double()
    assert count_weights(model) == pytest.approx(count_weights(make_model("dot_product", width=32, heads=2)), rel=0.01)
    ids, rows, places = torch.randint(VOCABULARY, (1, 131)), torch.tensor([0]), torch.tensor([113])
    before = model(ids, rows, places)
    later, earlier = ids.clone(), ids.clone()
    later[0, 114:] = torch.randint(VOCABULARY, (17,))
    earlier[0, 13] = (ids[0, 13] + 1) % VOCABULARY
    assert torch.equal(model(later, rows, places), before)
    assert not torch.equal(model(earlier, rows, places), before)


def test_the_convolutions_of_the_blocks_see_729_tokens():
    """Three tokens each time, with dilations 1 to 243: 1 + 2 * 364 tokens."""
    torch.manual_seed(1)
    model = make_model("convolution", width=32, heads=2).double()
    tokens = torch.randn(1, 800, 32, dtype=torch.float64, requires_grad=True)
    output = tokens
    for block in model.blocks:
        output = block(output)
    output[0, -1].sum().backward()
    reached = tokens.grad[0].abs().sum(-1).nonzero()[:, 0]
    assert reached.tolist() == list(range(800 - 729, 800))


def test_unknown_models_are_refused():
    with pytest.raises(OptionError, match="unknown model 'gur'"):
        make_model("gur", width=32, heads=2)


def make_task(batch):
    task = RecallTask(PROBLEM, "linear", width=16, heads=2, batch=batch)
    torch.manual_seed(1)
    task.prepare(RunContext(Settings(steps=1, seed=5)))
    return task


def test_losses_of_shards_add_up_and_an_empty_shard_counts_nothing():
    task = make_task(3)
    whole = task.loss(task.model, 7, RankShard()).detach()
    parts = [task.loss(task.model, 7, RankShard(rank, 4)).detach() for rank in range(4)]
    assert float(parts[3]) == 0.0
    torch.testing.assert_close(sum(parts), whole)
    assert task.tokens(7) == 3 * 10


def test_batches_depend_on_seed_and_number_alone():
    batches = [float(make_task(2).loss(make_task(2).model, number, RankShard()).detach()) for number in (7, 7, 8)]
    assert batches[0] == batches[1] != batches[2]
    assert list(make_task(2).epoch(2)) == list(range(200, 300))


def test_accuracy_by_octave_of_a_model_that_knows_the_answers():
    """Right for distances below 16 alone."""
    task = make_task(2)

    class Known(torch.nn.Module):
        def forward(self, ids, rows, places):
            logits = torch.zeros(len(rows), VALUES)
            for number, (row, place) in enumerate(zip(rows.tolist(), places.tolist(), strict=True)):
                (answer,) = [one[1:] for one in read_queries(ids[row].tolist()) if one[0] == place]
                value, distance = answer
                logits[number, value if distance < 16 else (value + 1) % VALUES] = 1.0
            return logits

    task.model = Known()
    assert task.accuracy_by_octave() == {"2-3": 1.0, "4-7": 1.0, "8-15": 1.0, "16-31": 0.0, "32-63": 0.0}


def test_the_curve_is_read_from_the_metrics_of_a_run(tmp_path):
    lines = [
        {"step": 10, "kind": "train", "loss": 2.0},
        {"step": 20, "kind": "validation", "accuracy": 0.25},
        {"step": 40, "kind": "validation", "accuracy": 0.75},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert train_recall.read_curve(tmp_path / "metrics.jsonl") == [(20, 0.25), (40, 0.75)]


def test_table_section_and_legend():
    one = {"octaves": {"2-3": 1.0, "4-7": 0.5}, "weights": 1234, "processor seconds": 90.0}
    assert train_recall.REPORT.table({"gru": one}).splitlines()[2:] == [
        "| gru | 100.0 % | 50.0 % | 1,234 | 1.5 |",
        "| chance | 6.2 % | 6.2 % | | |",
    ]
    assert describe("gru", one) == "gru\n90 s, 1,234 weights"
    assert describe("gru", one | {"processor seconds": None}) == "gru\n1,234 weights"
    assert "train_recall" in "\n".join(train_recall.REPORT.render({}))


@pytest.mark.slow
def test_a_short_run_is_kept_and_compared_with_runs_of_the_same_options_alone(tmp_path):
    options = ["--octaves", "2", "--length", "37", "--width", "8", "--batch", "3", "--steps", "4", "--device", "cpu"]
    trained = []
    for arguments in (["gru,linear"], ["linear"], ["linear", "--steps", "6"]):
        asked = train_recall.EXPERIMENT.parse_options(["--out", str(tmp_path), *options, "--models", *arguments])
        trained.append(train_recall.EXPERIMENT.run(asked))
    first, again, longer = trained
    for name in ("octaves", "processor seconds"):
        assert again["linear"][name] == first["linear"][name]
    assert set(first) == {"gru", "linear"}
    assert set(longer) == {"linear"}
    for found, steps in ((first, 4), (longer, 6)):
        one = found["linear"]
        assert one["steps"] == steps
        assert set(one["octaves"]) == {"2-3", "4-7"}
        assert [point[0] for point in one["curve"]] == sorted(point[0] for point in one["curve"])
    assert set(json.loads((tmp_path / "results.json").read_text())) == {"gru", "linear"}
