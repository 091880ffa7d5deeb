"""``regard translate``: contradicting options, input and output formats, and output files."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from typer.testing import CliRunner

from regard.cli.app import app
from regard.cli.interactive import run_interactive
from regard.cli.translation_formats import remarks, to_one_line
from regard.errors import DataError, OptionError, OutputError, OutputExistsError, RefusedError
from regard.search import Greedy
from regard.translation import Rendering, Translation, Translator
from shell_command import shell_message
from small_translators import recurrent, transformer

SENTENCE = "Ein kleiner Hund läuft."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator") / "m"
    transformer().model.save(folder)
    return folder


@pytest.fixture(autouse=True)
def folder(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model, tmp_path / "m")
    return tmp_path


def translate(*arguments, **options):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["translate", "--model", "m", *arguments], **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "0.5"], "--temperature has no effect without --sample"),
        (["--top-k", "5", "--seed", "3"], "--top-k, --seed has no effect without --sample"),
        (["--sample", "--beam", "9"], "--beam has no effect with --sample"),
        (["--sample", "--coverage-penalty", "1"], "--coverage-penalty has no effect with --sample"),
        (["--beam", "1", "--length-penalty", "nan"], "wrong length_penalty"),
        (["--beam", "1", "--coverage-penalty", "-1"], "wrong coverage_penalty"),
        (["--patience", "0"], "wrong patience"),
        (["--best", "3"], "--format text has one translation per line"),
    ],
)
def test_options_without_effect_are_refused(arguments, words):
    result = translate(SENTENCE, *arguments)
    assert isinstance(result.exception, OptionError), result.exception
    assert words in shell_message(result.exception)


def test_the_number_of_translations_is_positive():
    result = translate(SENTENCE, "--best", "0", "--format", "jsonl")
    assert result.exit_code == 2
    assert "Invalid value for '--best'" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--sample"], marks=pytest.mark.slow),
        ["--sample", "--best", "3", "--format", "tsv"],
        ["--sample", "--temperature", "0.5", "--top-k", "5", "--top-p", "0.9", "--seed", "3"],
        pytest.param(["--beam", "1"], marks=pytest.mark.slow),
        ["--beam", "1", "--coverage-penalty", "0.2"],
        ["--beam", "2", "--best", "3", "--format", "tsv"],
        ["--length-penalty", "0", "--patience", "inf"],
    ],
)
def test_compatible_options_are_accepted(arguments):
    result = translate(SENTENCE, *arguments)
    assert result.exit_code == 0, result.exception
    assert result.stdout.count("\n") == (3 if "--best" in arguments else 1)


def test_sampling_without_a_seed_is_reproducible():
    first, again, other = (translate(SENTENCE, "--sample", *seed).output for seed in ([], [], ["--seed", "2"]))
    assert first == again != other


def test_batch_size_changes_no_translation(folder):
    (folder / "in.de").write_text("Zwei Hunde laufen.\nDer Hund.\n" * 5, encoding="utf-8")
    whole, parts = (translate("--data", "in.de", *more) for more in ([], ["--batch-tokens", "7"]))
    assert parts.exit_code == 0, parts.exception
    assert whole.output == parts.output


def test_alignments_without_attention_are_refused_before_the_input_is_read(folder):
    recurrent("none").model.save(folder / "blind")
    result = translate("--data", "nowhere", "--format", "pharaoh", "--model", "blind")
    assert isinstance(result.exception, RefusedError)
    assert "without attention" in shell_message(result.exception)


def test_the_field_of_json_lines_is_chosen_and_reported(folder):
    (folder / "in.jsonl").write_text('{"id": 1, "text": "Zwei Hunde laufen."}\n{"id": 2, "text": "Der Hund."}\n')
    chosen = translate("--data", "in.jsonl", "--beam", "1")
    assert chosen.stderr.splitlines()[0] == "in.jsonl: the field of the text is 'text'"
    named = translate("--data", "in.jsonl", "--field", "text", "--beam", "1")
    assert named.exit_code == 0, named.exception
    both = translate("Zwei Hunde laufen.", "Der Hund.", "--beam", "1")
    assert chosen.stdout == named.stdout == both.stdout
    assert named.stderr == both.stderr


def test_line_separators_in_a_translation_become_spaces():
    assert to_one_line('see <a\thref="x">\u2028 there\r\n') == 'see <a href="x">  there  '


class TestOutputFile:
    """Output files, with --out."""

    def test_error_leaves_a_partial_file_of_the_finished_lines(self, folder):
        lines = ["Zwei Hunde laufen."] * 1024 + ["Der Hund." * 2000, "Der Hund."]  # one chunk, then a bad line
        (folder / "in.de").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        result = translate("--data", "in.de", "-o", "out.en", "--beam", "1")
        assert isinstance(result.exception, DataError)
        assert "line 1025 of in.de" in shell_message(result.exception)
        assert not (folder / "out.en").exists()
        assert (folder / "out.en.partial").read_text(encoding="utf-8").count("\n") == 1024
        assert "out.en.partial: the 1,024 lines that were finished" in result.stderr

    def test_lines_before_a_bad_line_are_translated(self, folder):
        for bad in (b"\xff\xfe", b"Der Hund." * 2000):
            (folder / "in.de").write_bytes(b"Zwei Hunde laufen.\nDer Hund.\n" + bad + b"\nDer Hund.\n")
            result = translate("--data", "in.de", "--beam", "1")
            assert isinstance(result.exception, DataError)
            assert "line 3" in shell_message(result.exception)
            assert result.stdout.count("\n") == 2

    def test_error_in_the_first_line_leaves_no_file(self, folder):
        (folder / "in.de").write_bytes(b"\xff\xfeno UTF-8\n")
        (folder / "long.de").write_text("Der Hund." * 2000 + "\n", encoding="utf-8")
        for name in ("in.de", "long.de"):
            assert isinstance(translate("--data", name, "-o", "out.en").exception, DataError)
        assert sorted(path.name for path in folder.iterdir()) == ["in.de", "long.de", "m"]

    def test_complete_output_leaves_no_partial_file(self, folder):
        assert translate(SENTENCE, "-o", "out.en").exit_code == 0
        assert sorted(path.name for path in folder.iterdir()) == ["m", "out.en"]
        assert isinstance(translate(SENTENCE, "-o", "out.en").exception, OutputExistsError)

    def test_folder_as_output_is_refused_before_translating(self):
        for more in ([], ["--overwrite"]):
            result = translate(SENTENCE, "-o", "m", *more)
            assert isinstance(result.exception, OutputError)
            assert "m is a folder" in shell_message(result.exception)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
    def test_named_pipe_is_written_to_and_not_replaced(self, folder):
        os.mkfifo(folder / "pipe")
        with ThreadPoolExecutor(1) as others:
            read = others.submit((folder / "pipe").read_text, encoding="utf-8")
            assert translate(SENTENCE, "-o", "pipe", "--overwrite").exit_code == 0
            assert read.result(timeout=300) == translate(SENTENCE).stdout
        assert (folder / "pipe").is_fifo()


def test_truncated_translation_is_reported(folder):
    model = transformer().model
    with torch.no_grad():
        model.output.bias = torch.nn.Parameter(torch.zeros(model.vocab_sizes[1]))
        model.output.bias[model.end_id] = -1e4
    (cut,) = Translator(model).translate([SENTENCE], search=Greedy())
    assert remarks(cut.source, cut.renderings[0]) == [
        f"was cut after {len(cut.renderings[0].ids)} subwords, before the model ended it"
    ]


def test_interactive_mode_continues_after_undecodable_input(monkeypatch, capsys):
    typed = iter([UnicodeDecodeError("utf-8", b"\xfc", 0, 1, "invalid start byte"), "Zwei Hunde.", EOFError()])

    def answer(prompt):
        one = next(typed)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr("builtins.input", answer)
    run_interactive(transformer(), Greedy())
    shown = capsys.readouterr().out
    assert "the input is not utf-8" in shown
    assert transformer().translate(["Zwei Hunde."], search=Greedy())[0].text.split()[0] in shown


def test_an_empty_translation_is_said(monkeypatch):
    """An empty line of the input stays empty, and is nothing to say."""

    def translate_to_nothing(self, texts, *, search=None):
        return [Translation(text, (Rendering("", (), 0.0, -1.0, finished=True),)) for text in texts]

    monkeypatch.setattr(Translator, "translate", translate_to_nothing)
    result = translate(SENTENCE, "--beam", "1")
    assert (result.exit_code, result.stdout) == (0, "\n")
    assert "translation 1 is empty" in result.stderr
    assert remarks("", Rendering("", (), 0.0, 0.0, finished=True)) == []
    assert remarks("\u2003\n", Rendering("", (), 0.0, 0.0, finished=True)) == []
    assert remarks("Hund", Rendering(" ", (7,), 0.0, 0.0, finished=True)) == ["is empty"]


def test_strings_that_a_translation_lost_are_said(monkeypatch):
    def translate_without_placeholders(self, texts, *, search=None):
        lost = Rendering("files", (7,), 0.0, -1.0, finished=True, missing=("%d", "%s"))
        return [Translation(text, (lost,)) for text in texts]

    monkeypatch.setattr(Translator, "translate", translate_without_placeholders)
    result = translate("%d Dateien in %s", "--beam", "1")
    assert (result.exit_code, result.stdout) == (0, "files\n")
    assert "translation 1 lacks %d %s" in result.stderr


@pytest.mark.parametrize(("target", "is_short"), [("Open file", True), ("Open the file now", False)])
def test_short_references_are_compared_by_chrf(folder, target, is_short):
    """BLEU counts 4-grams, so a perfect translation of a button has BLEU 0."""
    (folder / "pairs.tsv").write_text(f"Datei öffnen\t{target}\n" * 3, encoding="utf-8")
    (folder / "perfect.txt").write_text(f"{target}\n" * 3)
    arguments = ["evaluate", "translate", "--hypotheses", "perfect.txt", "--data", "pairs.tsv"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.exception
    assert f"BLEU {0 if is_short else 100:.2f}" in result.stdout
    assert "chrF 100.00" in result.stdout
    assert ("no reference has four words in a row" in result.stderr) is is_short


@pytest.mark.parametrize(("options", "reference"), [([], "A dog."), (["--target", "fr"], "Un chien.")])
def test_the_languages_of_the_model_choose_those_of_the_data(folder, monkeypatch, options, reference):
    about = {"languages": ["de", "en"]}
    (folder / "m" / "about.json").write_text(json.dumps(about))
    (folder / "pairs.csv").write_text("fr,en,de\nUn chien.,A dog.,Ein Hund.\n")

    def translate_rightly(self, texts, **options):
        assert list(texts) == ["Ein Hund."]
        return [Translation("Ein Hund.", (Rendering(reference, (7,), 0.0, -1.0, finished=True),))]

    monkeypatch.setattr(Translator, "translate", translate_rightly)
    monkeypatch.setattr(Translator, "stream", translate_rightly)
    arguments = ["evaluate", "translate", "--model", "m", "--data", "pairs.csv", "--beam", "1", *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.exception
    assert "chrF 100.00" in result.stdout
