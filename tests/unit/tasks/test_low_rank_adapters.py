"""Low-rank adapters: what they compute, which weights they train, and that the saved model is an ordinary one."""

from __future__ import annotations

import copy

import pytest
import torch

import regard
from regard.errors import OptionError
from regard.models import TextClassifier, TextClassifierConfig
from regard.tasks.language_modelling import LanguageModelRecipe, LanguageModelTask
from regard.tasks.low_rank_adapters import add_adapters, merge_adapters
from regard.tasks.recipe_fields import check_adapters
from regard.train import Schedule, Settings, run
from small_language_models import language_model, write_documents
from small_masked_language_models import masked_language_model

RANK, ALPHA = 3, 5.0


def trained_names(model):
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def randomise_adapters(model):
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_" in name:
                weight.copy_(torch.randn_like(weight) * 0.2)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "modernbert"])
def test_an_adapted_layer_adds_the_product_of_its_factors(kind):
    """The oracle adds alpha / r B A to each matrix of the plain model by hand."""
    plain = language_model(kind) if kind in ("gpt2", "llama") else masked_language_model(kind)
    model = copy.deepcopy(plain)
    said = add_adapters(model, rank=RANK, alpha=ALPHA)
    assert said.startswith(f"adapters of rank {RANK} in ")
    ids = torch.randint(5, 100, (2, 11))
    torch.testing.assert_close(model(ids).logits, plain(ids).logits)  # B is 0
    randomise_adapters(model)
    state, changed = model.state_dict(), 0
    expected = copy.deepcopy(plain)
    with torch.no_grad():
        for name, layer in expected.named_modules():
            if f"{name}.lora_A.default.weight" in state:
                low, high = (state[f"{name}.lora_{side}.default.weight"] for side in "AB")
                layer.weight += ALPHA / RANK * high @ low
                changed += 1
    assert changed == sum("layers" in name and type(one) is torch.nn.Linear for name, one in plain.named_modules())
    torch.testing.assert_close(model(ids).logits, expected(ids).logits, rtol=1e-4, atol=1e-4)
    merged = merge_adapters(model)
    assert merged.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(merged(ids).logits, expected(ids).logits, rtol=1e-4, atol=1e-4)
    assert trained_names(merged) == trained_names(plain)
    torch.testing.assert_close(dict(model.named_parameters()), {n: state[n] for n in dict(model.named_parameters())})
    assert merge_adapters(plain) is plain


def test_only_adapters_and_the_named_modules_are_trained():
    model = TextClassifier(masked_language_model("bert"), TextClassifierConfig(labels=("no", "yes")))
    add_adapters(model, rank=RANK, trained=[model.head, None])
    assert {name for name in trained_names(model) if ".lora_" not in name} == {"head.weight", "head.bias"}
    assert len(trained_names(model)) == 2 + 2 * 6 * 2  # factors, linear layers of a layer, layers


def test_a_run_trains_adapters_and_saves_an_ordinary_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_documents(tmp_path / "texts", 53)
    start = language_model("llama")
    start.save("start")
    recipe = LanguageModelRecipe(data=(tmp_path / "texts",), start="start", batch=7, lora=RANK)
    task = LanguageModelTask(recipe)
    settings = Settings(steps=4, validate_every=2, precision="float32", schedule=Schedule(warmup=1))
    run(task, settings, "tuned", device="cpu")
    tuned = regard.load("tuned")
    assert task.complete(settings).schedule.peak == 2e-4
    assert tuned.state_dict().keys() == start.state_dict().keys()
    different = {
        name for name, weight in tuned.state_dict().items() if not torch.equal(weight, start.state_dict()[name])
    }
    assert different
    assert all((name.startswith("layers.") and "projection" in name) or "feed_forward" in name for name in different)


def test_a_rank_above_that_of_the_weights_is_refused():
    model = language_model()  # its matrices have 20 and 13 rows or columns
    with pytest.raises(OptionError, match=r"(?s)rank of the adapters is too high.*at most 20") as refused:
        add_adapters(model, rank=10**6)
    assert "1,000,000" in str(refused.value)
    add_adapters(model, rank=20)


def test_adapters_without_effect_are_refused():
    with pytest.raises(OptionError, match="need a trained model"):
        check_adapters(8, None, start=None)
    with pytest.raises(OptionError, match="has no effect without adapters"):
        check_adapters(None, 4.0, start="m")
    with pytest.raises(OptionError, match="wrong lora"):
        LanguageModelRecipe(data=(), start="m", lora=0)
    with pytest.raises(OptionError, match="no linear layers"):
        add_adapters(torch.nn.Linear(3, 5), rank=2)
