"""``regard.hf.check``: which layers of a model ignore the implementation that is set."""

from __future__ import annotations

import re
import subprocess
import sys

import peft
import pytest
import torch
import transformers
from torch import nn

import regard.hf
from garbage import GARBAGE
from regard.errors import OptionError
from unit.hf.model_table import PAGE
from unit.hf.model_types import MODEL_TYPES, ModelType

SIZES = {"vocab_size": 97, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 40}
FAST_ISLANDS = {
    "bloom": (SIZES | {"n_head": 4, "n_layer": 2}, "BloomAttention"),
    "sew-d": (SIZES, "DisentangledSelfAttention"),
}
ISLANDS = {
    "gptj": ({"vocab_size": 97, "n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4}, "GPTJAttention"),
    "deberta-v2": (SIZES, "DisentangledSelfAttention"),
    "longformer": (SIZES | {"attention_window": 4}, "LongformerSelfAttention"),
    "mpnet": (SIZES, "MPNetSelfAttention"),
    "mra": (SIZES, "MraSelfAttention"),
    "wavlm": (SIZES, "WavLMAttention"),
    "yoso": (SIZES, "YosoSelfAttention"),
    "falcon": (SIZES, "FalconAttention"),
    "swinv2": ({"image_size": 32, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4]}, "Swinv2SelfAttention"),
    "reformer": (
        {"attn_layers": ["local", "lsh"], "axial_pos_embds": False, "is_decoder": True, "num_buckets": 4},
        "LocalSelfAttention",
    ),
}


@pytest.mark.parametrize("name", [*FAST_ISLANDS, *[pytest.param(name, marks=pytest.mark.slow) for name in ISLANDS]])
def test_models_that_ignore_the_name(name):
    sizes, layer = (FAST_ISLANDS | ISLANDS)[name]
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **sizes))
    report = regard.hf.check(model)
    assert not report.uses_regard
    assert layer in report.own_code.values()
    assert f"ignore attn_implementation: {layer}" in str(report)


def names_on_the_page():
    """The model types of which docs/transformers.md says that they ignore the name."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- list of models that ignore the name -->")
    return re.findall("`([^`]+)`", rest.partition("<!-- end of list -->")[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", names_on_the_page())
def test_models_of_the_page_accept_and_ignore_the_name(name):
    """At their default sizes, without memory for weights."""
    config = transformers.AutoConfig.for_model(name)
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config, attn_implementation="regard")
    report = regard.hf.check(model)
    assert report.own_code
    assert not report.uses_regard
    assert bool(report.through_interface) == (name in ("bigbird_pegasus", "longt5", "pegasus_x"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["bark", "data2vec-vision", "deepseek_ocr2", "falcon", "git", "gpt_neo", "gptj", "sam", "sam_hq", "unlimited_ocr"],
)
def test_models_that_do_not_know_the_name(name):
    config = transformers.AutoConfig.for_model(name)
    with torch.device("meta"), pytest.raises(KeyError, match="regard"):
        transformers.AutoModel.from_config(config, attn_implementation="regard")


@pytest.mark.parametrize(
    ("name", "auto"),
    [
        ("bloom", "AutoModelForCausalLM"),
        pytest.param("mpnet", "AutoModelForMaskedLM", marks=pytest.mark.slow),
        pytest.param("megatron-bert", "AutoModelForCausalLM", marks=pytest.mark.slow),
        pytest.param("bigbird_pegasus", "AutoModelForSeq2SeqLM", marks=pytest.mark.slow),
        pytest.param("led", "AutoModelForSeq2SeqLM", marks=pytest.mark.slow),
    ],
)
def test_models_that_ignore_the_name_compute_as_with_eager(name, auto):
    """Their layers add the mask to their scores, so it must be additive."""
    family, sizes = "decoder", SIZES | {"n_head": 4, "n_layer": 2, "pad_token_id": 0}
    if auto == "AutoModelForSeq2SeqLM":
        family, sizes = "seq2seq", next(kind for kind in MODEL_TYPES if kind.name == "bart").sizes
    kind = ModelType(name, family, auto, sizes)
    model, inputs = kind.build(), kind.inputs("left")
    config = transformers.AutoConfig.for_model(name, **sizes)
    named = getattr(transformers, auto).from_config(config, attn_implementation="regard").eval()
    named.load_state_dict(model.state_dict())
    assert named.config._attn_implementation == "regard"
    at = inputs.get("decoder_input_ids", inputs["attention_mask"]).bool()
    with torch.no_grad():
        torch.testing.assert_close(named(**inputs).logits[at], model(**inputs).logits[at], atol=1e-5, rtol=1e-5)


def test_a_model_with_another_implementation():
    model = next(kind for kind in MODEL_TYPES if kind.name == "llama").build()
    report = regard.hf.check(model)
    assert not report.uses_regard
    assert 'attn_implementation="eager"' in str(report)
    model.set_attn_implementation("regard")
    report = regard.hf.check(model)
    assert report.uses_regard
    assert report.through_interface == ("model.layers.0.self_attn", "model.layers.1.self_attn")
    assert str(report) == (
        "LlamaForCausalLM: all attention layers compute with regard\n  2 layers use the interface of transformers"
    )


def test_a_model_without_attention_layers():
    config = transformers.FNetConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, intermediate_size=40)
    report = regard.hf.check(transformers.AutoModel.from_config(config))
    assert not report.uses_regard
    assert str(report) == "FNetModel: no attention layer was found"


@pytest.mark.parametrize("value", [*GARBAGE, "module"])
def test_other_models_are_refused(value):
    with pytest.raises(OptionError, match="wrong model"):
        regard.hf.check(nn.Linear(3, 5) if value == "module" else GARBAGE[value]())


@pytest.mark.slow
def test_without_transformers():
    code = "import sys; sys.modules['transformers'] = None\nimport regard\nimport regard.hf"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingPackageError" in result.stderr
    assert "pip install 'regard[hf]'" in result.stderr


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft's use of transformers
def test_a_compiled_model_and_a_peft_model_are_looked_into():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    model.set_attn_implementation("regard")
    for wrapped in (torch.compile(model), peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))):
        assert regard.hf.check(wrapped).uses_regard
    with pytest.raises(OptionError, match=r"(?s)wrong model.*PreTrainedModel.*Linear"):
        regard.hf.check(torch.nn.Linear(2, 3))
