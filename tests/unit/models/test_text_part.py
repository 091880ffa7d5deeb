"""The language model of models that read pictures too, against that of transformers in the whole model."""

import json

import pytest
import safetensors.torch
import torch
import transformers

import regard
from regard.errors import CheckpointError
from regard.models import Llama
from regard.models.text_part import _DEFAULTS

IDS = torch.tensor([[1, 7, 4, 9, 3, 12, 8, 5, 6], [2, 2, 9, 11, 4, 3, 5, 1, 7]])
TEXT = {
    "vocab_size": 31, "hidden_size": 24, "intermediate_size": 17, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 16, "initializer_range": 0.2, "bos_token_id": 1,
    "pad_token_id": None, "sliding_window": 4,
}  # fmt: skip
VISION = {
    "hidden_size": 8, "intermediate_size": 9, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
MODELS = {
    "gemma3": ("Gemma3ForConditionalGeneration", "Gemma3Config", {"mm_tokens_per_image": 4, "image_token_id": 30}),
    "mistral3": ("Mistral3ForConditionalGeneration", "Mistral3Config", {"image_token_id": 30}),
}


def make_peer(kind, *, tied=True, **text):
    model, config, options = MODELS[kind]
    text_type = {"gemma3": "gemma3_text", "mistral3": "mistral"}[kind]
    vision_type = {"gemma3": "siglip_vision_model", "mistral3": "pixtral"}[kind]
    torch.manual_seed(3)
    config = getattr(transformers, config)(
        text_config={**TEXT, "model_type": text_type, **text},
        vision_config={**VISION, "model_type": vision_type},
        tie_word_embeddings=tied,
        **options,
    )
    config._attn_implementation = "eager"
    peer = getattr(transformers, model)(config).eval()
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            if "norm" in name:
                weight += torch.randn_like(weight) * 0.3
    return peer


def rename(folder, old, new):
    """Rename the tensors of a folder, as files of other versions name them."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    found = [name for name in tensors if name.startswith(old)]
    assert found
    renamed = {new + name.removeprefix(old) if name in found else name: tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(renamed, path)


@torch.no_grad()
def assert_equal(model, peer):
    expected = peer(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits
    found = model(IDS).logits
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("kind", MODELS)
class TestParity:
    def test_whole_folder(self, tmp_path, kind):
        peer = make_peer(kind)
        peer.save_pretrained(tmp_path)
        model = regard.load(tmp_path)
        assert isinstance(model, Llama)
        assert_equal(model, peer)
        assert "its language model was loaded" in model.notes[-1]

    def test_both_layouts(self, tmp_path, kind):
        peer = make_peer(kind)
        peer.save_pretrained(tmp_path)
        names = safetensors.torch.load_file(tmp_path / "model.safetensors")
        older = any(name.startswith("language_model.model.") for name in names)
        prefixes = ("language_model.model.", "model.language_model.")
        rename(tmp_path, *(prefixes if older else prefixes[::-1]))
        assert_equal(regard.load(tmp_path), peer)

    def test_saved_as_a_language_model(self, tmp_path, kind):
        peer = make_peer(kind, tied=False)
        peer.save_pretrained(tmp_path / "whole")
        regard.load(tmp_path / "whole").save(tmp_path / "text")
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "text")
        assert_equal(regard.load(tmp_path / "text"), peer)
        with torch.no_grad():
            expected = peer(input_ids=IDS).logits
            assert (again(IDS).logits - expected).abs().max() <= 1e-4 * expected.abs().max()

    def test_another_language_model_is_refused(self, tmp_path, kind):
        make_peer(kind).save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        config = json.loads(path.read_text())
        config["text_config"]["model_type"] = "llama"
        path.write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=r"another language model[\s\S]*got:\s+'llama'"):
            regard.load(tmp_path)


def test_scaled_rotation_of_older_files(tmp_path):
    """Published files of Gemma 3 scale the rotation of layers without a window alone, by "rope_scaling"."""
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    peer = make_peer("gemma3", rope_parameters=rope)
    peer.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["text_config"]["rope_parameters"], config["text_config"]["layer_types"]
    config["text_config"]["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    config["eos_token_id"] = [1, 30]
    config["text_config"].pop("eos_token_id", None)
    path.write_text(json.dumps(config))
    (tmp_path / "generation_config.json").unlink()
    model = regard.load(tmp_path)
    assert_equal(model, peer)
    assert model.end_ids == (1, 30)


def test_fields_that_files_leave_out():
    """The published file of Gemma 3 4B has five fields of the language model; the others are defaults."""
    theirs = transformers.Gemma3TextConfig()
    for name, default in _DEFAULTS["gemma3_text"].items():
        assert getattr(theirs, name) == default
