"""``regard view`` in the shell: the packaged model, valid and invalid input."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from click.testing import Result
from typer.testing import CliRunner

from regard import models
from regard.cli import progress, view, view_output
from regard.errors import (
    CheckpointError,
    DataError,
    MissingPackageError,
    OptionError,
    OutputError,
    OutputExistsError,
    RefusedError,
    RegardError,
)
from regard.models import load
from regard.view.serve import PageServer
from shell_command import shell_message
from small_checkpoints import save_checkpoint
from small_language_models import language_model
from small_translators import SOURCE, TARGET, recurrent, transformer

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def load_once() -> Callable[..., Any]:
    """``load`` with a cache, since loading would take most of the time of these tests."""
    return cache(load)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load_once: Callable[..., Any]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "load", load_once)
    app = typer.Typer()
    app.callback()(lambda: None)
    view.register(app)
    return lambda *arguments: CliRunner(env={"COLUMNS": "100"}).invoke(app, ["view", *arguments])


def refusal_message(run: Run, kind: type[RegardError], *arguments: str) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, kind), result.output
    return shell_message(result.exception)


def test_help_has_examples(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "Examples" in result.output


def test_prints_the_finding_and_writes_the_page(run: Run, tmp_path: Path) -> None:
    result = run("The animal didn't cross the street because it was too tired.", "-o", "attention.html")
    assert result.exit_code == 0, result.exception
    row = next(line.split() for line in result.output.splitlines() if line.startswith("it "))
    assert row[:4] == ["it", "animal", "67.7", "%"]
    assert row[-2:] == ["3", "1"]
    assert any(line.startswith("it → animal") and "67.3 % in 5·11" in line for line in result.output.splitlines())
    assert "attention.html" in result.output
    assert (tmp_path / "attention.html").stat().st_size < 1_000_000


def test_without_out_suggests_writing_a_page(run: Run, tmp_path: Path) -> None:
    result = run("I ate an apple.", "Apple released a new phone.")
    assert result.exit_code == 0, result.exception
    assert "add: -o attention.html" in result.output
    assert list(tmp_path.iterdir()) == []
    row = next(line.split() for line in result.output.splitlines() if line.startswith("apple  1, 2"))
    expected = [0.95, 0.81, 0.76, 0.73, 0.77, 0.79, 0.70]
    assert [float(cosine) for cosine in row[3:]] == pytest.approx(expected, abs=0.0051)


def test_texts_from_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_bytes("\ufeffFirst line here.\r\n\nZweite Zeile dort.\n".encode())
    result = run("--data", "texts.txt")
    assert result.exit_code == 0, result.exception
    assert "1. First line here." in result.output
    assert "2. Zweite Zeile dort." in result.output


@pytest.mark.slow
def test_long_text_is_truncated_only_with_truncate(run: Run, tmp_path: Path) -> None:
    long = "word " * 600
    message = refusal_message(run, DataError, long)
    assert "602 tokens" in message
    assert "512" in message
    assert "--truncate" in message
    result = run(long, "--truncate", "-o", "cut.html")
    assert result.exit_code == 0, result.exception
    assert "not the last 90" in result.output
    assert '"dropped":90' in (tmp_path / "cut.html").read_text("utf-8")


def test_an_existing_page_is_refused_before_the_model_is_loaded(run: Run, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("precious")
    message = refusal_message(run, OutputExistsError, "hi there", "-o", "page.html", "--model", "no such model")
    assert "--overwrite" in message
    assert (tmp_path / "page.html").read_text() == "precious"
    assert run("hi there", "-o", "page.html", "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("texts", "hinted"),
    [(("The", "animal", "is"), True), (("The", "animal is"), False), (("The",), False), (("猫が", "犬が"), False)],
)
def test_unquoted_sentence_gets_a_hint(run: Run, texts: tuple[str, ...], hinted: bool) -> None:
    result = run(*texts)
    assert result.exit_code == 0, result.exception
    assert ('Quote it: "The animal is"' in result.stderr) == hinted


def test_invalid_input_is_refused(run: Run, tmp_path: Path) -> None:
    assert "standard input is empty" in refusal_message(run, DataError)
    assert "text 2 is empty" in refusal_message(run, DataError, "hi", " \n")
    (tmp_path / "empty.txt").write_text("\n\n")
    assert "only blank lines" in refusal_message(run, DataError, "--data", "empty.txt")
    (tmp_path / "latin.txt").write_bytes(b"fine\ncaf\xe9\n")
    assert "line 2 of latin.txt is not UTF-8" in refusal_message(run, DataError, "--data", "latin.txt")
    assert "cannot read none.txt" in refusal_message(run, DataError, "--data", "none.txt")
    assert "does not exist" in refusal_message(run, OutputError, "hi", "-o", "none/page.html")


@pytest.mark.parametrize(
    ("name", "advised"),
    [("head.JPG", "head.png"), ("page.XLSX", "page.html"), ("page", "page.html"), ("page.html.txt", "page.html.html")],
)
def test_the_ending_of_the_output_must_be_known(run: Run, tmp_path: Path, name: str, advised: str) -> None:
    message = refusal_message(run, OptionError, "hi", "-o", name, "--model", "none")
    assert "a name that ends in .html, .svg, .pdf, .png, .csv or .json" in message
    assert f"name it {advised}" in message
    assert list(tmp_path.iterdir()) == []


def test_text_without_words_is_shown(run: Run) -> None:
    result = run("?!", "-o", "marks.html")
    assert result.exit_code == 0, result.exception
    assert "no two words" in result.output


def test_progress_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []

    @contextmanager
    def record_count(total: int, things: str) -> Iterator[Callable[[int], None]]:
        events.append((total, things))
        yield events.append

    @contextmanager
    def record_start(what: str) -> Iterator[None]:
        events.append(what)
        yield

    monkeypatch.setattr(progress, "count_progress", record_count)
    monkeypatch.setattr(view_output, "indeterminate_progress", record_start)
    assert run("one", "two", "three", "-o", "page.html").exit_code == 0
    assert events == [(3, "texts"), 1, 2, 3, (3, "texts compared"), 1, 2, 3, "writing the page"]


def test_no_finding_for_mostly_unknown_words(run: Run, tmp_path: Path) -> None:
    result = run("苹果很贵, he said.", "-o", "unknown.html")
    assert result.exit_code == 0, result.exception
    assert "3 of 5 words are not in this model's vocabulary" in result.output
    assert "multilingual" in result.output
    assert "attends to" not in result.output
    assert '"advice":"Use a model' in (tmp_path / "unknown.html").read_text("utf-8")


def test_the_reader_says_what_chinese_words_are(run: Run, tmp_path: Path) -> None:
    result = run("我 吃了 苹果 。", "I ate.", "--chinese-words", "spaces", "--compare", "-o", "words.html")
    assert result.exit_code == 0, result.exception
    assert "吃了" in result.output
    assert "spaces separate in the text" in (tmp_path / "words.html").read_text("utf-8")
    assert "jieba|characters|spaces" in run("--help").output
    assert run("我", "--chinese-words", "letters").exit_code == 2


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three translators: one with attention, one limited to 13 tokens, one without attention."""
    folder = tmp_path_factory.mktemp("translators")
    transformer().model.save(folder / "whole")
    transformer(position="learned", length=13).model.save(folder / "short")
    recurrent("none").model.save(folder / "blind")
    return folder


def test_view_of_a_given_translation(run: Run, tmp_path: Path, translators: Path) -> None:
    result = run(str(translators / "whole"), "--source", SOURCE, "--target", TARGET, "-o", "pair.html")
    assert result.exit_code == 0, result.exception
    lines = result.output.splitlines()
    assert lines[:2] == [SOURCE, f"→ {TARGET}  (as given)"]
    aligned = transformer().aligned_pair(SOURCE, TARGET)
    for row, (written, weights) in enumerate(zip(aligned.target_words, aligned.weights, strict=True), start=3):
        first = int(weights.argmax())
        assert lines[row].split()[:3] == [written, aligned.source_words[first], f"{100 * float(weights[first]):.1f}"]
    assert "Source self-attention" in lines
    assert "Target self-attention" in lines
    assert '"forced":true' in (tmp_path / "pair.html").read_text("utf-8")


def test_view_of_the_models_translation(run: Run, tmp_path: Path, translators: Path) -> None:
    result = run("--model", str(translators / "whole"), "--source", SOURCE, "--source", "Hunde.", "-o", "pairs.html")
    assert result.exit_code == 0, result.exception
    translations = transformer().translate([SOURCE, "Hunde."])
    for number, one in enumerate(translations, start=1):
        at = result.output.splitlines().index(f"{number}. {one.source}")
        assert result.output.splitlines()[at + 1] == f"→ {one.text}".rstrip()
    page = (tmp_path / "pairs.html").read_text("utf-8")
    assert page.count('"forced":false') == 2
    assert page.count('"kind":"alignment"') == 2


def test_translator_errors_suggest_what_to_do(run: Run, translators: Path) -> None:
    whole = str(translators / "whole")
    assert "no such folder" in refusal_message(run, CheckpointError, str(translators / "none"), "--source", SOURCE)
    assert 'regard view "..." --model minilm' in refusal_message(run, OptionError, "minilm", "--source", SOURCE)
    for arguments in ((SOURCE, "--model", whole), (whole,)):
        assert f'regard view {whole} --source "..."' in refusal_message(run, OptionError, *arguments)
    assert "--source is empty" in refusal_message(run, DataError, whole, "--source", " ")
    assert "--target is empty" in refusal_message(run, DataError, whole, "--source", SOURCE, "--target", "")
    assert "1 of --source, 2 of --target" in refusal_message(
        run, OptionError, whole, "--source", "a", "--target", "b", "--target", "c"
    )
    assert 'add --source "..."' in refusal_message(run, OptionError, whole, "--target", TARGET)
    assert "the folder of one translator" in refusal_message(run, OptionError, "--source", SOURCE)
    assert "quote a sentence" in refusal_message(run, OptionError, whole, "--source", "Ein", "Hund")
    assert "--data cannot be used with --source" in refusal_message(
        run, OptionError, whole, "--source", "a", "--data", "b.txt"
    )


def test_unviewable_translations_are_refused(run: Run, translators: Path) -> None:
    short = str(translators / "short")
    pairs = ("--source", "Hund", "--target", "dog", "--source", SOURCE * 3, "--target", "dog")
    message = refusal_message(run, DataError, short, *pairs)
    assert "source 2 is too long for the model" in message
    assert "at most 12 subwords" in message
    assert "the target is too long" in refusal_message(
        run, DataError, short, "--source", "Hund", "--target", TARGET * 3
    )
    assert "without attention" in refusal_message(run, RefusedError, str(translators / "blind"), "--source", SOURCE)


TIRED = "The animal didn't cross the street because it was too tired."


def test_mechanisms_side_by_side(run: Run, tmp_path: Path) -> None:
    result = run(TIRED, "--mechanism", "longformer:window=4,performer,additive", "-o", "side.html")
    assert result.exit_code == 0, result.exception
    lines = [line.split() for line in result.output.splitlines()]
    window = next(line for line in lines if line[:1] == ["longformer"])
    assert window[2:4] == ["70.4", "%"]
    assert "0.25" in window
    pair = next(line for line in lines if line[:3] == ["it", "→", "animal"])
    assert pair[3:8] == ["3·1", "67.7", "%", "0.0", "%"]
    assert "additive refuses: additive has parameters of its own" in " ".join(result.output.split())
    assert "With longformer window=4." in result.output
    page = (tmp_path / "side.html").read_text("utf-8")
    assert len(page.encode()) < 1_000_000
    assert "The same head under each mechanism" in page


def test_defaults_for_short_texts_are_said(run: Run) -> None:
    result = run("The cat sat on the mat.", "--mechanism", "bigbird")
    assert "bigbird block=1, random_blocks=1 (options that were not given are set for 9 tokens)" in result.output


def test_wrong_mechanisms_are_refused_before_the_model_is_loaded(run: Run, tmp_path: Path) -> None:
    for wrong, meant in {"longfromer": "longformer", "longformer:windw=2": "window"}.items():
        message = refusal_message(run, OptionError, "hi", "--mechanism", wrong, "--model", "no such model")
        assert f"did you mean '{meant}'" in message
    assert "--source" in refusal_message(run, OptionError, "folder", "--source", "hi", "--mechanism", "linear")
    long = "word " * 400
    assert "too long to be shown side by side" in refusal_message(run, DataError, long, "--mechanism", "linear")
    save_checkpoint("bloom", tmp_path / "bloom")
    message = refusal_message(run, OptionError, "hi", "--mechanism", "linear", "--model", "bloom")
    assert "transformers computes it" in message


CHECKPOINT_TEXT = "The keys to the old cabinet are on the table, because it was small."


def test_a_checkpoint_of_transformers(run: Run, tmp_path: Path) -> None:
    save_checkpoint("gpt2", tmp_path / "gpt2")
    result = run(CHECKPOINT_TEXT, "The animal was tired.", "--model", "gpt2", "-o", "keys.html")
    assert result.exit_code == 0, result.exception
    assert "The first token, The, gets" in result.output
    assert "kept apart" in result.output
    attended = [line.split()[1] for line in result.output.splitlines() if line.endswith(("0     3", "1     1"))]
    assert attended
    assert "The" not in attended
    assert (tmp_path / "keys.html").stat().st_size > 50_000


def test_an_encoder_decoder_of_transformers(run: Run, tmp_path: Path) -> None:
    save_checkpoint("t5", tmp_path / "t5")
    for target in ([], ["--target", "A dog runs."]):
        result = run("t5", "--source", "Ein Hund läuft.", *target)
        assert result.exit_code == 0, result.exception
        assert "Ein Hund läuft." in result.output
        assert "Source self-attention" in result.output
        assert ("→ A dog runs.  (as given)" in result.output) == bool(target)
    message = refusal_message(run, OptionError, "A text.", "--model", "t5")
    assert "encoder-decoder" in message
    assert "--source" in message


def test_a_decoder_is_no_translator(run: Run, tmp_path: Path) -> None:
    save_checkpoint("gpt2", tmp_path / "gpt2")
    message = refusal_message(run, OptionError, "gpt2", "--source", "A dog.")
    assert "is not a translator" in message
    assert "a Gpt2" in message


def test_a_checkpoint_without_transformers(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("gpt2", "bloom"):
        save_checkpoint(kind, tmp_path / kind)
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers" or "regard.hf" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert run("A text.", "--model", "gpt2").exit_code == 0, "regard has this type itself"
    message = refusal_message(run, MissingPackageError, "A text.", "--model", "bloom")
    assert "transformers" in message
    assert "pip install 'regard[hf]'" in message


def test_a_pickle_is_refused(run: Run, tmp_path: Path) -> None:
    (save_checkpoint("gpt2", tmp_path / "gpt2") / "model.safetensors").rename(tmp_path / "gpt2" / "pytorch_model.bin")
    assert "only as a pickle" in refusal_message(run, CheckpointError, "A text.", "--model", "gpt2")


TIRED = "The animal didn't cross the street because it was too tired."


def test_one_changed_word_is_compared(run: Run, tmp_path: Path) -> None:
    result = run(TIRED, TIRED.replace("tired", "wide"), TIRED, "--compare", "-o", "change.html")
    assert result.exit_code == 0, result.output
    assert "Different: tired / wide." in result.stdout
    assert "animal 67.7 → 28.1 %" in result.stdout
    assert result.stdout.count("text 1: ") == 2, "the first text with each of the others"
    assert (tmp_path / "change.html").exists()


def test_two_models_are_compared_on_each_text(run: Run, tmp_path: Path) -> None:
    other = load("minilm")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter *= 1.1
    other.save(tmp_path / "later")
    result = run(TIRED, "I ate an apple.", "--compare-model", "later")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("minilm: ") == result.stdout.count("later: ") == 2
    assert "nearest" not in result.stdout


def test_heads_of_one_text_and_mechanisms_are_compared(run: Run) -> None:
    alone = run("I ate an apple.", "--compare")
    assert alone.exit_code == 0, alone.output
    assert "Each head is compared with the head that is nearest to it." in alone.stdout
    mechanisms = run("I ate an apple.", "--compare", "--mechanism", "longformer:window=2,linear")
    assert mechanisms.exit_code == 0, mechanisms.output
    assert mechanisms.stdout.count("dot_product: ") == 2
    assert "longformer:window=2: I ate an apple." in mechanisms.stdout


def test_comparisons_that_have_no_meaning_are_refused(run: Run, translators: Path) -> None:
    both = refusal_message(run, OptionError, "Hi.", "--compare-model", "minilm", "--mechanism", "linear")
    assert "--compare-model cannot be used with --mechanism" in both
    drawn = ("--source", SOURCE, "--compare", "-o", "head.svg")
    pairs = refusal_message(run, OptionError, str(translators / "transformer"), *drawn)
    assert "comparisons" in pairs


def test_a_long_text_is_summarized_and_size_and_time_are_said(run: Run, tmp_path: Path) -> None:
    model = language_model("llama", max_length=2000)
    model.save(tmp_path / "model")
    text = "the cat sees the old oak. " * 60
    (tmp_path / "text.txt").write_text(text)
    arguments = (
        "--data",
        str(tmp_path / "text.txt"),
        "--model",
        str(tmp_path / "model"),
        "-o",
        str(tmp_path / "long.html"),
    )
    result = run(*arguments)
    assert "A text has more than 1,024 tokens. Each head is summarized, which takes about 1 s." in result.stderr
    assert "The page has about 0.2 MB." in result.stderr
    assert "2 layers, 10 heads." in result.stdout
    page = (tmp_path / "long.html").read_text()
    assert 'class="one-screen long-text"' in page
    assert len(page) == pytest.approx(0.28e6, rel=0.15)


def test_serve_prints_the_address_and_writes_no_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends, original = iter((None, KeyboardInterrupt)), PageServer.serve

    def serve(self: PageServer) -> None:
        self.stop()
        original(self)
        end = next(ends)
        if end:
            raise end

    monkeypatch.setattr(PageServer, "serve", serve)
    for _ in range(2):  # the page is closed; Ctrl-C
        result = run("The cat sat on the mat.", "--serve")
        assert result.exit_code == 0, result.output
        assert "Page: http://127.0.0.1:" in result.stdout
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("A cat.", "-o", "page.html"), "--serve writes no file"),
        (("A cat.", "--mechanism", "performer"), "--serve shows texts alone"),
        (("A cat.", "--summary"), "has no effect with --summary"),
    ],
)
def test_serve_is_for_texts_alone(run: Run, arguments: tuple[str, ...], part: str) -> None:
    assert part in refusal_message(run, OptionError, *arguments, "--serve")
