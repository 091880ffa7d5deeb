"""Every model of regard is audited without inputs, as a module and as a folder, and leaks nowhere that is not known."""

import pytest
import torch

import regard
from every_model import EXAMPLES, make_example
from regard import models
from regard.auditing.open_model import open_model
from regard.errors import OptionError
from small_audio_models import audio_model
from small_clips import small_clip
from small_gatos import small_gato

KNOWN = {
    # its output queries are positions as well, counted from the first column
    models.PerceiverTextEncoder: {"padding left": "places are counted from the padding"},
}
HOLDS = {
    models.Bert: {"padding right", "padding left", "packed by documents", "1e30 in padding"},
    models.TransformerEncoder: {"padding right", "padding left", "packed by documents"},
    models.Transformer: {"causal", "source padding right", "source padding left", "cache"},
    models.TextClassifier: {"padding right", "empty row", "batch"},
    models.Gpt2: {"causal", "padding left", "packed by documents", "cache", "beams", "paged cache"},
    models.Clip: {"padding right", "padding left", "batch"},
    models.ClipText: {"causal", "padding right", "padding left", "packed by documents"},
    models.Conformer: {"padded sounds", "batch", "NaN beside it", "bfloat16"},
    models.Gato: {"causal", "padding right", "batch", "bfloat16"},
    models.Vit: {"batch", "NaN beside it", "bfloat16"},
}
"""What at least is asked of these models, and holds."""


KINDS = [
    pytest.param(kind, marks=[] if kind in HOLDS | KNOWN else pytest.mark.slow, id=kind.__name__)
    for kind in EXAMPLES
    if kind is not models.Perceiver
]


def small_model(kind):
    model, _, _ = make_example(kind)
    return model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_models_of_regard_are_sound(kind):
    report = regard.audit(small_model(kind), skip=["compiled"])
    held = {result.name for result in report.results if result.verdict == "holds"}
    leaks = {result.name: result.leak.cause for result in report.leaks}
    assert leaks.keys() == KNOWN.get(kind, {}).keys(), leaks
    assert all(KNOWN[kind][name] in cause for name, cause in leaks.items())
    assert held >= HOLDS.get(kind, {"batch"})
    raised = [result for result in report.results if "the model raised" in result.reason]
    assert not raised, raised


def test_a_model_that_may_read_anything_is_audited_with_inputs():
    model, inputs, _ = make_example(models.Perceiver)
    with pytest.raises(OptionError, match="no inputs for this model"):
        regard.audit(model.eval())
    report = regard.audit(model.eval(), {"inputs": inputs[0]}, only=["batch", "random numbers"])
    assert report.exit_code == 0


@pytest.mark.parametrize("make", [audio_model, small_clip, small_gato, lambda: small_clip().text])
def test_folders_of_regard_are_audited(make, tmp_path):
    make().save(tmp_path / "model")
    opened = open_model(str(tmp_path / "model"), "regard")
    report = regard.audit(opened.model, opened.inputs, only=["batch", "padding right", "padded sounds"])
    assert report.exit_code == 0, report
    assert not [result for result in report.results if "do not fit" in result.reason]


def test_a_leak_of_sounds_is_found():
    model = audio_model()
    forward = model.forward
    model.forward = lambda features, *, mask=None: forward(features)  # hides no frame
    result = regard.audit(model, only=["padded sounds"])["padded sounds"]
    assert result.verdict == "leaks"


def test_a_contrastive_model_of_transformers_is_audited_with_pictures():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**sizes, "vocab_size": 97, "max_position_embeddings": 33, "eos_token_id": 96, "pad_token_id": 0}
    vision = {**sizes, "image_size": 16, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    report = regard.audit(transformers.CLIPModel(config).eval(), only=["padding", "batch"])
    assert report["padding right"].verdict == "holds"
    assert report["batch"].verdict == "holds"
    # Padded on the left with the end token, a text ends where its padding begins.
    assert "id 96" in report["padding left"].leak.change
