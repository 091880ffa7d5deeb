"""Adapters that are saved alone: peft and regard add the same to the base, and other bases are refused."""

from __future__ import annotations

import contextlib
import json
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.errors import CheckpointError, OptionError
from regard.generation import load_generator
from regard.models.adapter_folder import fingerprint
from regard.models.model_folder import ModelFolder
from regard.tasks.language_modelling import LanguageModelRecipe, LanguageModelTask
from regard.tasks.low_rank_adapters import AdapterBase
from regard.train import Schedule, Settings, run
from slow_parameters import slow_except
from small_language_models import language_model, write_documents

RANK, ALPHA = 3, 5.0
IDS = torch.arange(5, 27).reshape(2, 11)
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # peft


def train_adapters(folder, base: str, **options) -> None:
    """Train adapters for a few steps, and save them as ``folder / "adapters"``."""
    write_documents(folder / "texts", 23)
    recipe = LanguageModelRecipe(
        data=(folder / "texts",), start=base, batch=7, lora=RANK, lora_alpha=ALPHA, keep_adapters=True, **options
    )
    settings = Settings(steps=4, validate_every=2, precision="float32", schedule=Schedule(warmup=1, peak=0.03))
    run(LanguageModelTask(recipe), settings, folder / "adapters", device="cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function from a model to a folder with its adapters and their base, each trained once."""

    @cache
    def train(kind: str, **options) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        with contextlib.chdir(folder):
            language_model(kind, **options).save("base")
            train_adapters(folder, "base")
        return folder

    return train


def copy_trained(folder: Path, to: Path) -> Path:
    """Copy adapters and their base to a folder where a test may change them, and return that of the adapters."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    change_config(to / "adapters", base_model_name_or_path=str(to / "base"))
    return to / "adapters"


@pytest.fixture(params=slow_except({"gpt2", "phi3"}, ("gpt2", "llama", "phi3")))
def adapters(request, trained, tmp_path, monkeypatch):
    """A folder of trained adapters beside its base; the layers of Phi-3 are those of a Llama, fused in its file."""
    options = {} if request.param == "gpt2" else {"model_type": request.param, "tied": True}
    monkeypatch.chdir(tmp_path)
    return copy_trained(trained(request.param, **options), tmp_path)


def test_transformers_with_peft_computes_what_regard_computes(adapters):
    import peft
    import transformers

    assert sorted(one.name for one in adapters.iterdir()) == [
        "about.json", "adapter_config.json", "adapter_model.safetensors"
    ]  # fmt: skip
    base = transformers.AutoModelForCausalLM.from_pretrained(adapters.parent / "base").eval()
    with torch.no_grad():
        plain = base(IDS).logits
        adapted = peft.PeftModel.from_pretrained(base, adapters).eval()
        expected = adapted(IDS).logits
        torch.testing.assert_close(regard.load(adapters)(IDS).logits, expected, atol=1e-4, rtol=1e-4)
    layers = [layer for layer in adapted.modules() if isinstance(layer, peft.tuners.lora.LoraLayer)]
    assert {round(layer.scaling["default"], 6) for layer in layers} == {round(ALPHA / RANK, 6)}  # of fused layers, too
    assert (expected - plain).abs().max() > 0.1  # they were trained


def test_adapters_of_peft_are_added(adapters, tmp_path):
    """A folder that peft wrote: some layers only, ranks and scales by layer, and rsLoRA."""
    import peft
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(adapters.parent / "base").eval()
    linear = [
        name.rpartition(".")[2] for name in json.loads((adapters / "adapter_config.json").read_text())["target_modules"]
    ]
    targets = sorted(set(linear))[:2]
    config = peft.LoraConfig(
        r=2,
        lora_alpha=7,
        target_modules=targets,
        rank_pattern={targets[0]: 5},
        alpha_pattern={targets[0]: 3},
        use_rslora=True,
        init_lora_weights=False,
        fan_in_fan_out="c_fc" in linear,
    )
    torch.manual_seed(3)
    model = peft.get_peft_model(base, config).eval()
    model.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        expected = model(IDS).logits
    torch.testing.assert_close(regard.load(tmp_path / "theirs")(IDS).logits, expected, atol=1e-4, rtol=1e-4)


def test_adapters_are_a_model_wherever_one_is_named(adapters):
    """They generate, are fine-tuned, and are saved as a whole model."""
    model = regard.load(adapters)
    generator = load_generator(adapters)
    assert torch.equal(generator.model.state_dict()["norm.weight"], model.state_dict()["norm.weight"])
    assert generator.generate(["No."], max_tokens=3)[0][0].tokens <= 3
    model.save("whole")
    torch.testing.assert_close(regard.load("whole")(IDS).logits, model(IDS).logits)
    recipe = LanguageModelRecipe(data=(adapters.parent / "texts",), start=str(adapters), batch=7)
    settings = Settings(steps=1, precision="float32", schedule=Schedule(warmup=1, peak=1e-9))
    run(LanguageModelTask(recipe), settings, "tuned", device="cpu")
    torch.testing.assert_close(regard.load("tuned")(IDS).logits, model(IDS).logits, atol=1e-4, rtol=1e-4)


@pytest.fixture
def llama_adapters(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return copy_trained(trained("llama"), tmp_path)


def change_config(folder, **fields) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_another_base_is_refused(llama_adapters, tmp_path):
    """The same architecture with other weights, and a base in which a layer has another size."""
    other = language_model("llama")
    with torch.no_grad():
        other.norm.weight += 1
    other.save("other")
    change_config(llama_adapters, base_model_name_or_path="other")
    with pytest.raises(CheckpointError, match=r"(?s)do not belong to the model .*other.*base_model_name_or_path"):
        regard.load(llama_adapters)
    (llama_adapters / "about.json").unlink()  # as of peft: then names and shapes decide
    regard.load(llama_adapters)
    language_model("llama", inner=17).save("wide")
    change_config(llama_adapters, base_model_name_or_path="wide")
    with pytest.raises(CheckpointError, match=r"do not belong to the model .*wide"):
        regard.load(llama_adapters)
    language_model("gpt2").save("gpt2")
    change_config(llama_adapters, base_model_name_or_path="gpt2")
    with pytest.raises(CheckpointError, match=r"(?s)do not belong.*no layer model\.layers\.0"):
        regard.load(llama_adapters)


def test_a_base_is_found_beside_the_adapters_and_a_missing_one_is_named(llama_adapters, tmp_path, monkeypatch):
    expected = regard.load(llama_adapters)(IDS).logits
    shutil.move("base", llama_adapters / "base")
    with pytest.raises(CheckpointError, match=r"(?s)no model .*base.*adapter_config\.json"):
        regard.load(llama_adapters)
    change_config(llama_adapters, base_model_name_or_path="base")
    assert torch.equal(regard.load(llama_adapters)(IDS).logits, expected)
    change_config(llama_adapters, base_model_name_or_path=None)
    with pytest.raises(CheckpointError, match="does not name the model"):
        regard.load(llama_adapters)
    change_config(llama_adapters, base_model_name_or_path=str(llama_adapters))
    with pytest.raises(CheckpointError, match="consists of adapters itself"):
        regard.load(llama_adapters)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"alpha_pattern": {"(a+)+b": 2}}, "alpha_pattern"),
    ],
)
def test_other_kinds_of_adapters_are_refused(llama_adapters, fields, said):
    change_config(llama_adapters, **fields)
    with pytest.raises(CheckpointError, match=rf"(?s)regard cannot add.*{said}.*merge_and_unload"):
        regard.load(llama_adapters)


def test_other_tensors_are_refused(llama_adapters):
    path = llama_adapters / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(iter(tensors))
    save_file(tensors | {name.replace("lora_A", "lora_magnitude_vector"): torch.ones(3)}, path)
    with pytest.raises(CheckpointError, match="lora_magnitude_vector"):
        regard.load(llama_adapters)
    save_file({one: tensor for one, tensor in tensors.items() if one != name}, path)
    with pytest.raises(CheckpointError, match=r"lora_A \(r, in\) and lora_B"):
        regard.load(llama_adapters)


def test_what_cannot_be_kept_apart_is_refused(llama_adapters):
    with pytest.raises(OptionError, match="no effect without adapters"):
        LanguageModelRecipe(data=(), start="base", keep_adapters=True)
    with pytest.raises(OptionError, match="on top of adapters"):
        AdapterBase.of(str(llama_adapters), language_model("llama"))
    experts = language_model("llama", model_type="gpt_oss", sinks=True, experts=3, chosen_experts=2, **GPT_OSS)
    with pytest.raises(OptionError, match="3 experts"):
        AdapterBase.of("base", experts)


GPT_OSS = {"attention_bias": True, "output_bias": True, "windows": (5, None)}


def test_a_fingerprint_is_that_of_the_numbers_rounded_to_bfloat16(tmp_path):
    model = language_model("llama")
    model.save(tmp_path / "one")
    model.to(torch.bfloat16).save(tmp_path / "half")
    assert fingerprint(ModelFolder.open(tmp_path / "one")) == fingerprint(ModelFolder.open(tmp_path / "half"))
    with torch.no_grad():
        model.layers[1].feed_forward.down.weight[0, 0] += 1
    model.save(tmp_path / "other")
    assert fingerprint(ModelFolder.open(tmp_path / "other")) != fingerprint(ModelFolder.open(tmp_path / "half"))
