"""The language modelling task: what it prepares, says and refuses; and that it learns."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import regard
from quiet_report import QuietReport
from regard.errors import CheckpointError, DataError, OptionError, OutputExistsError
from regard.generation import score_texts
from regard.log import notes_to
from regard.models import Gpt2, Llama
from regard.tasks.language_modelling import LanguageModelRecipe, LanguageModelTask
from regard.tasks.language_modelling.blocks import PackedBlocks, RandomOffsetBlocks
from regard.train import RankShard, RunContext, Schedule, Settings, run
from small_language_models import documents, language_model, write_documents

SETTINGS = Settings(schedule=Schedule(peak=5e-3, warmup=5), steps=60, validate_every=30, average=1, precision="float32")
SMALL = {"width": 32, "layers": 1, "heads": 2}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_documents(tmp_path / "texts", 211)
    (tmp_path / "book.txt").write_text("\n\n".join(documents(211)), encoding="utf-8")
    return tmp_path


def make_recipe(folder, name="texts", **options):
    options = {"hyperparameters": SMALL, "vocabulary": 290, "block": 31, "batch": 7, **options}
    return LanguageModelRecipe(data=(folder / name,), **options)


def prepare(recipe, settings=SETTINGS):
    """Prepare a task; return it and its messages."""
    task, said = LanguageModelTask(recipe), []
    torch.manual_seed(1)
    with notes_to(said.append):
        task.prepare(RunContext(settings))
    return task, said


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gpt2", "book.txt"),
        ("llama", "texts"),
        pytest.param("gpt2", "texts", marks=pytest.mark.slow),
        pytest.param("llama", "book.txt", marks=pytest.mark.slow),
    ],
)
def test_a_trained_model_predicts_better_than_bytes_at_random(folder, name, kind):
    report = QuietReport()
    result = run(
        LanguageModelTask(make_recipe(folder, name, model=kind)), SETTINGS, folder / "m", device="cpu", report=report
    )
    model = regard.load(folder / "m")
    assert isinstance(model, Gpt2 if kind == "gpt2" else Llama)
    assert (model.start_id, model.end_ids, model.max_tokens) == (0, (0,), 31)
    scores = score_texts(model, documents(23, seed=5), length=31, stride=31)
    assert scores.bits_per_byte < 3.0  # 8 at random
    assert -result.score < 3.5
    about = json.loads((folder / "m" / "about.json").read_text())
    assert set(about["validation"]) == {"loss", "perplexity", "bits_per_byte", "bits_per_character"}
    assert report.shown[0].startswith("text:      ")
    assert report.shown[1].startswith("continued: ")


def test_layers_have_the_mechanisms_of_the_recipe_in_turn(folder):
    recipe = make_recipe(
        folder, attention="gated_delta, moba", hyperparameters={**SMALL, "layers": 3, "mechanism_options.block": 5}
    )
    options = {"device": "cpu", "report": QuietReport()}
    run(LanguageModelTask(recipe), replace(SETTINGS, steps=20), folder / "m", **options)
    model = regard.load(folder / "m")
    assert model.config.mechanisms == ("gated_delta", "moba", "gated_delta")
    assert (model.config.model_type, model.config.mechanism_options) == ("regard-llama", {"block": 5})
    run(LanguageModelTask(recipe), replace(SETTINGS, steps=30), folder / "m", **options, resume=True)
    assert score_texts(regard.load(folder / "m"), documents(23, seed=5), length=31, stride=31).bits_per_byte < 5.0


def test_dot_products_alone_are_a_llama_of_transformers(folder):
    task, _ = prepare(make_recipe(folder, attention="dot_product", size="small"))
    assert (task.model.config.model_type, task.model.config.attention_dropout) == ("llama", 0.1)
    task, _ = prepare(make_recipe(folder, attention="forgetting", size="small"))
    assert task.model.config.attention_dropout == 0.1
    task, _ = prepare(make_recipe(folder, attention="forgetting,kda", size="small", hyperparameters={"width": 32}))
    assert task.model.config.attention_dropout == 0.0


def test_mechanisms_that_a_language_model_cannot_have_are_refused(folder):
    with pytest.raises(OptionError, match="a GPT-2 has dot-product attention in every layer"):
        make_recipe(folder, attention="kda", model="gpt2").check_effect()
    for attention in ("", "kda,", ",", " "):
        with pytest.raises(OptionError, match="the name of a mechanism is missing"):
            prepare(make_recipe(folder, attention=attention))
    with pytest.raises(OptionError, match=r"more mechanisms than layers\n.*at most 2,(.|\n)*3: kda, kda, dot_product"):
        prepare(make_recipe(folder, attention="kda,kda,dot_product", hyperparameters={"layers": 2}))
    with pytest.raises(OptionError, match="a language model is causal and decodes in steps, which linformer does not"):
        prepare(make_recipe(folder, attention="linformer"))
    with pytest.raises(OptionError, match="unknown mechanism 'kada'") as unknown:
        prepare(make_recipe(folder, attention="kada"))
    assert "kda" in unknown.value.expected
    assert "linformer" not in unknown.value.expected
    for hyperparameters in ({"mechanisms": "kda"}, {"mechanism_options.x": 3}):
        with pytest.raises(OptionError, match=r"no setting of its own(.|\n)*attention="):
            prepare(make_recipe(folder, model="llama", hyperparameters=hyperparameters))


def test_one_text_and_several(folder):
    one, said = prepare(make_recipe(folder, "book.txt"))
    assert isinstance(one.batches, RandomOffsetBlocks)
    assert any("at random offsets" in line for line in said)
    several, said = prepare(make_recipe(folder))
    assert isinstance(several.batches, PackedBlocks)
    assert any("packed into blocks" in line for line in said)
    assert said[0] == f"{len(several.batches.documents)} documents of " + said[0].split(" of ", 1)[1]


def test_the_loss_of_the_shards_is_that_of_the_batch(folder):
    task, _ = prepare(make_recipe(folder, hyperparameters={**SMALL, "dropout": 0.0}))
    batch = task.epoch(0)[0]
    whole = task.loss(task.model.eval(), batch, RankShard())
    parts = [task.loss(task.model, batch, RankShard(rank, 11)) for rank in range(11)]
    torch.testing.assert_close(sum(parts), whole)
    assert task.tokens(batch) == 7 * 31


def test_unknown_characters_of_held_out_text_are_reported(folder):
    (folder / "valid.txt").write_text("☃☃" + documents()[0])
    _, said = prepare(make_recipe(folder, tokenizer="characters", validation=(folder / "valid.txt",)))
    assert any("of the held-out tokens are unknown" in line for line in said)


def test_fine_tuning_starts_from_the_weights_and_the_tokenizer(folder):
    start = language_model("llama")
    start.save(folder / "start")
    recipe = LanguageModelRecipe(data=(folder / "texts",), start=str(folder / "start"), batch=7)
    task, said = prepare(recipe, replace(SETTINGS, steps=None, schedule=Schedule()))
    assert task.batches.length == 43  # the context of the model
    assert any("llama" in line.lower() or "start" in line for line in said)
    torch.testing.assert_close(dict(task.model.named_parameters()), dict(start.named_parameters()))
    settings = task.complete(replace(SETTINGS, steps=None, schedule=Schedule()))
    assert (settings.epochs, settings.schedule.peak) == (3, 6e-5)
    before = score_texts(start, documents(23, seed=5)).loss
    run(LanguageModelTask(recipe), replace(SETTINGS, steps=40), folder / "m", device="cpu", report=QuietReport())
    tuned = regard.load(folder / "m")
    assert tuned.tokenizer.to_json() == start.tokenizer.to_json()
    assert score_texts(tuned, documents(23, seed=5)).loss < before


def test_a_changed_recipe_is_refused_on_resume(folder):
    short = replace(SETTINGS, steps=2)
    run(LanguageModelTask(make_recipe(folder)), short, folder / "m", device="cpu", report=QuietReport())
    for changed in ({"batch": 5}, {"block": 29}, {"tokenizer": "bytes"}):
        task = LanguageModelTask(make_recipe(folder, **changed))
        with pytest.raises(OutputExistsError, match="was started with another"):
            run(task, short, folder / "m", resume=True, device="cpu", report=QuietReport())
    (folder / "texts" / "999.txt").write_text("one more")
    with pytest.raises(OutputExistsError, match="data has changed"):
        run(
            LanguageModelTask(make_recipe(folder)), short, folder / "m", resume=True, device="cpu", report=QuietReport()
        )


def test_what_cannot_be_trained_is_refused(folder):
    with pytest.raises(OptionError, match="unknown setting of a Gpt2"):
        prepare(make_recipe(folder, hyperparameters={"depth": 3}))
    with pytest.raises(OptionError, match="determined by the tokenizer"):
        prepare(make_recipe(folder, hyperparameters={"vocabulary": 3}))
    with pytest.raises(OptionError, match="context of the model is shorter than a block"):
        prepare(make_recipe(folder, hyperparameters={"max_length": 30}))
    with pytest.raises(OptionError, match="unknown model size"):
        prepare(make_recipe(folder, size="huge"))
    with pytest.raises(CheckpointError, match="minilm is another kind of model"):
        prepare(LanguageModelRecipe(data=(folder / "texts",), start="minilm"))
    language_model().save(folder / "start")
    with pytest.raises(OptionError, match="longer than the context"):
        prepare(LanguageModelRecipe(data=(folder / "texts",), start=str(folder / "start"), block=44))
    with pytest.raises(DataError, match="No such file"):
        prepare(make_recipe(folder, "none"))


def test_the_warm_up_of_a_short_cosine_is_a_tenth(folder):
    task, _ = prepare(make_recipe(folder))
    settings = Settings(schedule=Schedule("cosine", steps=70), steps=70)
    assert task.complete(settings).schedule.warmup == 7
    assert task.complete(Settings(steps=70)).schedule.warmup == 100


def test_the_mechanisms_of_the_layers_are_said_and_what_is_not_trained(folder):
    _, said = prepare(make_recipe(folder, attention="kda,kda,dsa", hyperparameters={"layers": 3}))
    assert any("3 layers of 128, attention 2 x kda and dsa, " in line for line in said)
    assert sum("does not train the indexer of dsa" in line for line in said) == 1


def test_hyperparameters_are_checked_before_the_data_are_looked_for(tmp_path):
    with pytest.raises(OptionError, match="widht"):
        LanguageModelTask(make_recipe(tmp_path, "no such file", hyperparameters={"widht": 16})).check()
