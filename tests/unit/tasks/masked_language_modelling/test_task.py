"""The masked language modelling task: its masks, its loss, what it refuses, and that it learns."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

import regard
from regard.errors import CheckpointError, OptionError
from regard.log import notes_to
from regard.models import Bert, ModernBert, Roberta, Transformer, TransformerConfig
from regard.tasks.language_modelling.blocks import PackedBlocks, RandomOffsetBlocks
from regard.tasks.masked_language_modelling import MaskedLanguageModelRecipe, MaskedLanguageModelTask
from regard.tasks.masked_language_modelling.validation import count_unknown, mask_blocks, masked_loss
from regard.tasks.sentences import Sentences
from regard.text.token_masking import TokenMasking
from regard.train import RankShard, RunContext, Schedule, Settings, run
from slow_parameters import slow_except
from small_language_models import documents, language_model, write_documents
from small_masked_language_models import masked_language_model

SETTINGS = Settings(schedule=Schedule(peak=5e-3, warmup=5), steps=60, validate_every=30, average=1, precision="float32")
SMALL = {"width": 32, "layers": 1, "heads": 2}
KINDS = {"bert": Bert, "roberta": Roberta, "modernbert": ModernBert}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_documents(tmp_path / "texts", 211)
    (tmp_path / "book.txt").write_text("\n\n".join(documents(211)), encoding="utf-8")
    return tmp_path


def make_recipe(folder, name="texts", **options):
    options = {"hyperparameters": SMALL, "vocabulary": 290, "block": 31, "batch": 7, **options}
    return MaskedLanguageModelRecipe(data=(folder / name,), **options)


def prepare(recipe, settings=SETTINGS):
    """Prepare a task; return it and its messages."""
    task, said = MaskedLanguageModelTask(recipe), []
    torch.manual_seed(1)
    with notes_to(said.append):
        task.prepare(RunContext(settings))
    return task, said


@pytest.mark.parametrize(
    ("kind", "name"),
    slow_except(
        {("bert", "texts"), ("roberta", "book.txt"), ("modernbert", "texts")},
        product(KINDS, ("texts", "book.txt")),
        rows=True,
    ),
)
def test_a_trained_model_fills_in_masked_tokens_and_transformers_reads_it(folder, kind, name):
    result = run(MaskedLanguageModelTask(make_recipe(folder, name, model=kind)), SETTINGS, folder / "m", device="cpu")
    model = regard.load(folder / "m")
    assert isinstance(model, KINDS[kind])
    about = json.loads((folder / "m" / "about.json").read_text())
    assert set(about["validation"]) == {"loss", "perplexity", "accuracy"}
    assert about["validation"]["loss"] == pytest.approx(-result.score)
    assert about["validation"]["loss"] < 4.5  # ln 290 = 5.7 at random
    assert "filled in: " in (folder / "m.run" / "samples.txt").read_text()
    tokenizer, peer = AutoTokenizer.from_pretrained(folder / "m"), AutoModelForMaskedLM.from_pretrained(folder / "m")
    batch = model.tokenizer.encode("the [MASK] sees the dog")
    assert tokenizer("the [MASK] sees the dog").input_ids == batch.ids[0].tolist()
    with torch.no_grad():
        torch.testing.assert_close(
            model(batch.ids).logits, peer.eval()(input_ids=batch.ids).logits, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("kind", KINDS)
def test_packing_changes_neither_loss_nor_gradient(kind):
    """The loss of packed documents is the sum of those of the documents alone, cut where the blocks are."""
    model = masked_language_model(kind, dropout=0.0, attention_dropout=0.0)
    texts = [
        model.tokenizer.ids([text])[0][:length] for text, length in zip(documents(), [9, 4, 11, 3, 7], strict=False)
    ]
    blocks = PackedBlocks(Sentences.from_ids(texts, 300), length=17, size=3, seed=5, lookahead=0)
    (batch,) = blocks.epoch(0)
    plain = blocks.tensors(batch, np.arange(len(batch.begins)))
    assert plain.documents is not None
    assert sorted(plain.ids[plain.labels >= 0].tolist()) == sorted(token for text in texts for token in text)
    masked = mask_blocks(plain, TokenMasking.of(model.tokenizer, share=0.4), np.random.default_rng(3))
    assert not masked.chosen[plain.labels < 0].any()
    absolute = model.has_absolute_positions
    packed = masked_loss(model, masked, np.arange(len(masked.chosen)), absolute_positions=absolute, device=model.device)
    alone = 0.0
    for row in range(len(plain.ids)):
        for number in plain.documents[row].unique().tolist():
            here = (plain.documents[row] == number) & (plain.labels[row] >= 0)
            at = masked.chosen[row][here]
            if at.any():
                logits = model(masked.blocks.ids[row][here][None]).logits[0][at]
                alone = alone + torch.nn.functional.cross_entropy(logits, plain.ids[row][here][at], reduction="sum")
    torch.testing.assert_close(packed, alone)
    expected = torch.autograd.grad(alone, list(model.parameters()), allow_unused=True)
    found = torch.autograd.grad(packed, list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["texts", "book.txt"])
def test_the_loss_of_the_shards_is_that_of_the_batch(folder, name):
    task, _ = prepare(make_recipe(folder, name, hyperparameters={**SMALL, "dropout": 0.0, "attention_dropout": 0.0}))
    assert isinstance(task.batches, PackedBlocks if name == "texts" else RandomOffsetBlocks)
    batch = task.epoch(0)[0]
    whole = task.loss(task.model.eval(), batch, RankShard())
    parts = [task.loss(task.model, batch, RankShard(rank, 11)) for rank in range(11)]
    torch.testing.assert_close(sum(parts), whole)
    assert 0.1 < task.tokens(batch) / (7 * 31) < 0.2


def test_masks_are_drawn_anew_for_each_batch_and_depend_on_the_seed_alone(folder):
    task, again = (prepare(make_recipe(folder, "book.txt"))[0] for _ in range(2))
    other, _ = prepare(make_recipe(folder, "book.txt"), replace(SETTINGS, seed=2))
    first, second = (task._mask(batch) for batch in task.epoch(0)[:2])
    assert torch.equal(first.chosen, again._mask(again.epoch(0)[0]).chosen)
    assert not torch.equal(first.chosen, second.chosen)
    assert not torch.equal(first.chosen, task._mask(task.epoch(1)[0]).chosen)
    assert not torch.equal(first.chosen, other._mask(other.epoch(0)[0]).chosen)
    assert (first.blocks.labels[:, [0, -1]] == torch.tensor([2, 3])).all()  # each block between [CLS] and [SEP]


def test_a_batch_of_special_tokens_has_no_loss(folder):
    task, _ = prepare(make_recipe(folder))
    batch = task.epoch(0)[0]
    masked = task._mask(batch)
    masked.chosen[:] = False
    loss = masked_loss(
        task.model, masked, np.arange(len(masked.chosen)), absolute_positions=True, device=task.model.device
    )
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(weight.grad is not None and not weight.grad.any() for weight in task.model.parameters())


@pytest.mark.parametrize("head", [True, False])
def test_fine_tuning_starts_from_the_weights_and_the_tokenizer(folder, head):
    start = masked_language_model("roberta", head=head, pooler=not head)
    start.save(folder / "start")
    recipe = MaskedLanguageModelRecipe(data=(folder / "texts",), start=str(folder / "start"), batch=7)
    task, said = prepare(recipe)
    assert task.batches.length == 43
    assert any("no masked-language head" in line for line in said) == (not head)
    found = task.model.state_dict()
    for name, weight in start.state_dict().items():
        assert name.startswith("pooler.") or torch.equal(found[name], weight)
    assert torch.equal(task.model.head.output.weight, task.model.token_embedding.weight)
    run(MaskedLanguageModelTask(recipe), replace(SETTINGS, steps=2), folder / "m", device="cpu")
    assert regard.load(folder / "m").tokenizer.to_json() == start.tokenizer.to_json()
    settings = task.complete(replace(SETTINGS, steps=None, schedule=Schedule()))
    assert (settings.epochs, settings.schedule.peak) == (3, 5e-5)


def test_what_cannot_be_trained_is_refused(folder):
    with pytest.raises(OptionError, match="unknown setting of a Bert"):
        prepare(make_recipe(folder, hyperparameters={"depth": 3}))
    with pytest.raises(OptionError, match="shorter than a block"):
        prepare(make_recipe(folder, hyperparameters={"max_length": 30}))
    with pytest.raises(OptionError, match="no room for text"):
        prepare(make_recipe(folder, block=2))
    with pytest.raises(OptionError, match="fine-tuning cannot change"):
        prepare(make_recipe(folder, start="m", lowercase=True))
    language_model().save(folder / "decoder")
    Transformer(TransformerConfig(31, width=12, layers=1, heads=2, inner=7)).save(folder / "translator")
    for name, words in (("decoder", "regard train lm --from"), ("translator", "regard train translate")):
        with pytest.raises(CheckpointError, match="another kind of model") as caught:
            prepare(MaskedLanguageModelRecipe(data=(folder / "texts",), start=name))
        assert words in str(caught.value)


def test_unknown_tokens_are_counted():
    documents = [np.array([4, 1, 1, 7]), np.array([], dtype=int), np.array([1, 5, 0])]
    assert count_unknown(documents, 1) == (3, 7)
    assert count_unknown(documents, 0) == (1, 7)
    assert count_unknown(documents, None) == (0, 7)
