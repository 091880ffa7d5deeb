"""``regard export``: the files that it writes, and its errors."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from regard.cli.app import app
from regard.errors import CheckpointError, OptionError, OutputExistsError, RefusedError
from shell_command import shell_message
from small_classifiers import classifier
from small_image_models import image_classifier
from small_translators import SOURCE, transformer


@pytest.fixture
def model(tmp_path, monkeypatch):
    """The name of a folder with a pre-norm model."""
    monkeypatch.chdir(tmp_path)
    transformer(norm="pre", heads=4, width=24).model.save(tmp_path / "m")
    return "m"


def export(*arguments):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["export", *arguments])


def test_reports_the_folder_and_refuses_an_existing_one(model, tmp_path):
    import ctranslate2

    result = export(model, "--format", "ctranslate2", "--out", "ct2")
    assert result.exit_code == 0, result.exception
    assert "ct2: exported for ctranslate2" in result.output
    other = ctranslate2.Translator(str(tmp_path / "ct2"), intra_threads=1)  # it sets torch's threads too
    results = other.translate_batch([SOURCE.split()], max_decoding_length=3)
    assert len(results) == 1
    assert isinstance(export(model, "--format", "ctranslate2", "--out", "ct2").exception, OutputExistsError)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["m", "--format", "tensorflow"], OptionError, "ctranslate2"),
        (["m", "--format", "onnx"], RefusedError, "an encoder or a classifier"),
        (["m", "--format", "marian"], RefusedError, "norm"),
        (["nothing", "--format", "pegasus"], CheckpointError, "nothing"),
    ],
)
def test_unsupported_exports_are_refused(model, tmp_path, arguments, kind, words):
    result = export(*arguments, "--out", "other")
    assert isinstance(result.exception, kind), result.exception
    assert words in shell_message(result.exception)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow  # tests/unit/export has each form
@pytest.mark.usefixtures("without_shape_checks")
def test_a_classifier_for_transformers_and_for_onnx_runtime(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    classifier().save(tmp_path / "c")
    result = export("c", "--format", "onnx", "--out", "graph")
    assert result.exit_code == 0, result.exception
    assert "graph: exported for onnx" in result.output
    assert "within 0.0001 of the largest" in result.output
    assert (tmp_path / "graph" / "model.onnx").exists()
    result = export("c", "--format", "transformers", "--out", "folder")
    assert isinstance(result.exception, RefusedError)
    assert "--format onnx" in shell_message(result.exception)


def test_pictures_for_transformers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    image_classifier().save(tmp_path / "p")
    assert export("p", "--format", "transformers", "--out", "hf").exit_code == 0
    assert (tmp_path / "hf" / "preprocessor_config.json").exists()


def test_help_has_an_example_of_each_kind():
    text = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["export", "--help"]).output
    for example in ("--format onnx --out topics-onnx/", "--format transformers --out", "--format ctranslate2 --out"):
        assert example in text
