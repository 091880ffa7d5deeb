"""Exported ONNX graphs, computed by ONNX Runtime for sizes that they were not traced with."""

import json
import shutil

import jaxtyping
import numpy as np
import onnxruntime
import pytest
import torch

from every_model import make_example
from regard import masks, models
from regard.errors import MissingPackageError, RefusedError
from regard.export import export, onnx_form
from regard.text import Pooling
from small_classifiers import classifier
from small_image_models import image_classifier
from small_language_models import language_model
from small_masked_language_models import masked_language_model

# A trace has symbolic sizes, which the suite's shape checks take for no integers.
pytestmark = pytest.mark.usefixtures("without_shape_checks")
TEXTS = ["the small dog", "the old oak the old train", "a"]


def session_of(folder):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])


def run(folder, *inputs):
    session = session_of(folder)
    named = {one.name: value.numpy() for one, value in zip(session.get_inputs(), inputs, strict=True)}
    return {one.name: torch.from_numpy(result) for one, result in
            zip(session.get_outputs(), session.run(None, named), strict=True)}  # fmt: skip


def padded(lengths, vocabulary, pad_id=0, seed=3):
    """Random ids (batch, longest), and which are tokens."""
    lengths = torch.tensor(lengths)
    tokens = torch.arange(int(lengths.max())) < lengths[:, None]
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocabulary, tokens.shape, generator=generator).where(tokens, pad_id)
    return ids, tokens, masks.padding(lengths)


def assert_same_classifier(model, folder, vocabulary):
    """Compare batches of several sizes, one row and one token included, and each text with itself alone."""
    for lengths in ([11, 3, 7, 1], [1], [2], [23]):
        ids, tokens, mask = padded(lengths, vocabulary, model.pad_id)
        with torch.no_grad():
            ours = model(ids, mask=mask).logits
        torch.testing.assert_close(run(folder, ids, tokens.long())["logits"], ours, atol=2e-5, rtol=2e-5)
    ids, tokens, _ = padded([11, 3], vocabulary, model.pad_id)
    both = run(folder, ids, tokens.long())["logits"]
    alone = run(folder, ids[1:, :3], tokens[1:, :3].long())["logits"]
    torch.testing.assert_close(both[1:], alone, atol=2e-5, rtol=2e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The exported classifier of ``classifier()``: an encoder of ours, and the mean of its tokens."""
    folder = tmp_path_factory.mktemp("onnx") / "classifier"
    jaxtyping.config.update("jaxtyping_disable", True)  # the fixture for it belongs to one test
    export(classifier(), folder, form="onnx")
    return folder


class TestClassifierOfTheMean:
    def test_any_number_of_rows_and_tokens(self, folder):
        assert_same_classifier(classifier(), folder, 300)

    def test_axes_have_names(self, folder):
        ids, mask = session_of(folder).get_inputs()
        assert (ids.name, ids.shape) == ("input_ids", ["batch", "length"])
        assert (mask.name, mask.shape) == ("attention_mask", ["batch", "length"])
        (logits,) = session_of(folder).get_outputs()
        assert (logits.name, logits.shape) == ("logits", ["batch", 3])

    def test_files_beside_it(self, folder):
        transformers = pytest.importorskip("transformers")
        assert sorted(one.name for one in folder.iterdir()) == [
            "config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json",
        ]  # fmt: skip
        config = json.loads((folder / "config.json").read_text())
        assert config["id2label"] == {"0": "animal", "1": "plant", "2": "vehicle"}
        assert config["problem_type"] == "single_label_classification"
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        read = tokenizer(TEXTS, padding=True, return_tensors="pt")
        model = classifier()
        batch = model.tokenizer.encode(TEXTS)
        assert torch.equal(read["input_ids"], batch.ids)
        with torch.no_grad():
            ours = model(batch.ids, mask=batch.mask).logits
        found = run(folder, read["input_ids"], read["attention_mask"])["logits"]
        torch.testing.assert_close(found, ours, atol=2e-5, rtol=2e-5)


def test_pictures(tmp_path):
    model = image_classifier(channels=3)
    export(model, tmp_path / "out", form="onnx")
    pixels = torch.randn(5, 3, 12, 8)
    with torch.no_grad():
        ours = model(pixels).logits
    torch.testing.assert_close(run(tmp_path / "out", pixels)["logits"], ours, atol=2e-5, rtol=2e-5)
    assert (tmp_path / "out" / "preprocessor_config.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_classifiers(tmp_path, kind, pooling):
    encoder = masked_language_model(kind, head=False, max_length=41)
    model = models.TextClassifier(encoder, models.TextClassifierConfig(("a", "b", "c"), pooling=pooling)).eval()
    export(model, tmp_path / "out", form="onnx")
    assert_same_classifier(model, tmp_path / "out", encoder.config.vocabulary)


@pytest.mark.slow
def test_an_encoder_with_its_pooling_and_its_head(tmp_path):
    model = masked_language_model("bert")
    model.pooling = Pooling(("mean",))
    export(model, tmp_path / "out", form="onnx")
    ids, tokens, mask = padded([13, 2, 5], model.config.vocabulary)
    found = run(tmp_path / "out", ids, tokens.long())
    with torch.no_grad():
        output = model(ids, mask=mask)
    torch.testing.assert_close(found["last_hidden_state"][tokens], output.hidden[tokens], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(found["logits"][tokens], output.logits[tokens], atol=2e-5, rtol=2e-5)
    pooled = model.pooling.pool(output.hidden, tokens.sum(1))
    torch.testing.assert_close(found["sentence_embedding"], pooled, atol=2e-5, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "none"])
def test_encoders_of_every_position(tmp_path, position):
    model = classifier(position=position, norm="post" if position == "learned" else "pre")
    export(model, tmp_path / "out", form="onnx")
    assert_same_classifier(model, tmp_path / "out", 300)


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        ("bigbird", {"block": 4, "random_blocks": 1}),
        ("longformer", {"window": 12, "global_projections": False}),
        ("moba", {"block": 4, "chosen_blocks": 2}),
        ("nsa", {"block": 4, "stride": 2, "compressed_block": 4, "chosen_blocks": 2, "window": 6}),
    ],
)
def test_a_short_example_decides_nothing_for_longer_texts(tmp_path, mechanism, options):
    """These compute short texts as exact attention, and a graph is traced with five tokens."""
    model = classifier(mechanism=mechanism, mechanism_options=options, position="none")
    try:
        export(model, tmp_path / "out", form="onnx")
    except RefusedError:
        return
    assert_same_classifier(model, tmp_path / "out", 300)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [models.T5Encoder, models.ClipText], ids=lambda kind: kind.__name__)
def test_other_encoders(tmp_path, kind):
    model, (ids,), _ = make_example(kind)
    model.eval()
    export(model, tmp_path / "out", form="onnx")
    found = run(tmp_path / "out", ids, torch.ones_like(ids))
    with torch.no_grad():
        torch.testing.assert_close(found["last_hidden_state"], model(ids).hidden, atol=2e-5, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [models.Deit, models.Swin, models.Cct, models.Cvt, models.ClipVision, models.PerceiverImageEncoder],
    ids=lambda kind: kind.__name__,
)  # fmt: skip
def test_other_models_of_pictures(tmp_path, kind):
    model, inputs, _ = make_example(kind)
    pixels = inputs[0] if isinstance(inputs, tuple) else inputs
    model.eval()
    export(model, tmp_path / "out", form="onnx")
    found = run(tmp_path / "out", pixels)
    with torch.no_grad():
        output = model(pixels)
    name, ours = ("logits", output.logits) if model.labels else ("pooler_output", output.pooled)
    torch.testing.assert_close(found[name], ours, atol=2e-5, rtol=2e-5)


class TestRefused:
    @pytest.mark.parametrize("make", [lambda: language_model("gpt2"), lambda: make_example(models.Clip)[0],
                                      lambda: make_example(models.Transformer)[0]])  # fmt: skip
    def test_models_that_are_no_encoders(self, tmp_path, make):
        with pytest.raises(RefusedError, match="an encoder or a classifier"):
            export(make(), tmp_path / "out", form="onnx")

    def test_half_precision(self, tmp_path):
        with pytest.raises(RefusedError, match=r"float32[\s\S]*bfloat16"):
            export(classifier().bfloat16(), tmp_path / "out", form="onnx")

    def test_a_graph_that_computes_other_numbers(self, folder, tmp_path, monkeypatch):
        """The graph is that of the model before its bias changed. Nothing is left behind."""
        monkeypatch.setattr(onnx_form, "_trace", lambda graph, example, path: shutil.copy(folder / "model.onnx", path))
        model = classifier()
        model.head.bias.data += 0.01
        with pytest.raises(RefusedError, match="computes other numbers"):
            export(model, tmp_path / "out", form="onnx")
        assert list(tmp_path.iterdir()) == []

    def test_a_model_that_cannot_be_traced(self, tmp_path, monkeypatch):
        model = classifier()
        forward = model.encoder.forward
        model.encoder.forward = lambda ids, **options: forward(torch.from_numpy(np.array(ids.tolist())), **options)
        with pytest.raises(RefusedError, match="has no ONNX graph"):
            export(model, tmp_path / "out", form="onnx")
        assert list(tmp_path.iterdir()) == []

    def test_missing_packages(self, tmp_path, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(MissingPackageError, match=r"regard\[export\]"):
            export(classifier(), tmp_path / "out", form="onnx")
