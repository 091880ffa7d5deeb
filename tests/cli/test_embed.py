"""``regard embed`` in one process: inputs, formats, options, and every error."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner

from regard.cli.app import app
from regard.errors import (
    CheckpointError,
    DataError,
    MissingPackageError,
    OptionError,
    OutputError,
    OutputExistsError,
    RegardError,
    UnknownWordsWarning,
    write_error,
)
from regard.models import load
from regard.text import Embedder, embedding_job
from regard.text.resumable_shards import Shards
from shell_command import shell_message
from small_classifiers import TEXTS, classifier

LINES = ["one two", "", "three", "four five six", "猫", "seven"]


@pytest.fixture
def embed(tiny_model, tmp_path, monkeypatch):
    """Return a function that runs the command in an empty folder, and raises its errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, data=None):
        options = ["embed", "--model", tiny_model, *map(str, arguments)]
        return CliRunner().invoke(app, options, input=data, catch_exceptions=False)

    return run


@pytest.fixture
def expected(tiny_model):
    with pytest.warns(UnknownWordsWarning, match=r"1 text \(text 4\)"):
        return Embedder(load(tiny_model)).sentences(LINES).numpy()


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(embedding_job, "CHUNK_LINES", 2)


def write(lines, name="in.txt"):
    Path(name).write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")
    return name


def names(folder="."):
    return sorted(path.name for path in Path(folder).iterdir())


def read_rows(name):
    return rows(Path(name).read_text(encoding="utf-8"))


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


class TestInput:
    def assert_rows(self, result, expected):
        actual_rows = rows(result.stdout)
        assert [row["text"] for row in actual_rows] == LINES
        assert np.array([row["vector"] for row in actual_rows]) == pytest.approx(expected, abs=1e-6)

    def test_arguments(self, embed, expected):
        self.assert_rows(embed(*LINES), expected)

    def test_text_file(self, embed, expected, small_chunks):
        self.assert_rows(embed("--data", write(LINES)), expected)

    def test_standard_input(self, embed, expected):
        self.assert_rows(embed(data="\n".join(LINES)), expected)
        self.assert_rows(embed("--data", "-", data="\n".join(LINES)), expected)

    def test_byte_order_mark_and_windows_line_ends(self, embed, expected):
        self.assert_rows(embed(data=b"\xef\xbb\xbf" + "\r\n".join(LINES).encode()), expected)

    @pytest.mark.parametrize("name", ["in.txt.gz", "no_suffix"])
    def test_gzip_by_content(self, embed, expected, name):
        with gzip.open(name, "wt", encoding="utf-8") as file:
            file.write("\n".join(LINES))
        self.assert_rows(embed("--data", name), expected)

    def test_json_lines(self, embed, expected):
        name = write([json.dumps({"id": index, "words": line}) for index, line in enumerate(LINES)], "in.jsonl")
        self.assert_rows(embed("--data", name, "--field", "words"), expected)

    def test_a_list_of_records(self, embed, expected):
        records = [{"id": index, "words": line} for index, line in enumerate(LINES)]
        name = write([json.dumps(records, indent=1, ensure_ascii=False)], "in.json")
        assert "the field of the text is 'words'" in embed("--data", name, "-o", "out.npy").stderr
        assert np.array_equal(np.load("out.npy"), expected)
        name = write([json.dumps(LINES)], "texts.json")
        embed("--data", name, "-o", "texts.npy")
        assert np.array_equal(np.load("texts.npy"), expected)
        with pytest.raises(DataError, match="is no list of records"):
            embed("--data", write(["{", '"data": []', "}"], "object.json"), "-o", "no.npy")


class TestUnknownWords:
    def test_reported_with_line_numbers(self, embed, small_chunks):
        result = embed("--data", write(["猫狗", "one", "", "猫 two 狗", "猫 two"]), "-o", "out.npy")
        assert "most words of 2 texts (lines 1, 4) are not in this model's vocabulary" in result.stderr
        assert "multilingual" in result.stderr
        assert "most words of 1 text (line 1)" in embed("猫").stderr

    def test_no_report_if_the_words_are_known(self, embed):
        assert "vocabulary" not in embed("one", "two 猫").stderr


class TestOutput:
    def test_npy(self, embed, expected, small_chunks):
        result = embed("--data", write(LINES), "-o", "out.npy")
        actual = np.load("out.npy", allow_pickle=False)
        assert (actual.dtype, actual.shape) == (np.float32, (6, 22))
        assert actual == pytest.approx(expected, abs=1e-6)
        assert "6 rows" in result.stderr
        assert names() == ["in.txt", "out.npy"]

    def test_parquet(self, embed, expected, small_chunks):
        embed("--data", write(LINES), "-o", "out.parquet")
        table = pyarrow.parquet.read_table("out.parquet")
        assert table["text"].to_pylist() == LINES
        assert np.array(table["vector"].to_pylist()) == pytest.approx(expected, abs=1e-6)

    def test_all_formats_store_the_same_float32_values(self, embed):
        for name in ("out.npy", "out.jsonl", "out.parquet"):
            embed("--data", write(LINES), "-o", name)
        exact = np.load("out.npy")
        assert np.array_equal(np.array([row["vector"] for row in read_rows("out.jsonl")], np.float32), exact)
        table = pyarrow.parquet.read_table("out.parquet")
        assert np.array_equal(np.array(table["vector"].to_pylist(), np.float32), exact)

    @pytest.mark.filterwarnings("ignore::regard.errors.UnknownWordsWarning")
    def test_token_vectors(self, embed, tiny_model, small_chunks):
        for name in ("out.npy", "out.jsonl", "out.parquet"):
            embed("--data", write(LINES), "-o", name, "--tokens")
        model = load(tiny_model)
        expected = Embedder(model).tokens(LINES)
        vectors, offsets = np.load("out.npy"), np.load("out.npy.offsets.npy")
        table = pyarrow.parquet.read_table("out.parquet")
        lines = read_rows("out.jsonl")
        assert offsets.dtype == np.int64
        for row, one in enumerate(expected):
            actual = vectors[offsets[row] : offsets[row + 1]]
            assert actual == pytest.approx(one.numpy(), abs=1e-5)
            assert (
                lines[row]["tokens"]
                == table["tokens"][row].as_py()
                == list(model.tokenizer.encode(LINES[row]).tokens[0])
            )
            assert np.array_equal(np.array(lines[row]["vectors"], np.float32), actual)
            assert np.array_equal(np.array(table["vectors"][row].as_py(), np.float32), actual)

    @pytest.mark.filterwarnings("ignore::regard.errors.UnknownWordsWarning")
    def test_in_bfloat16_the_vectors_are_float32(self, embed, tiny_model, expected):
        result = embed("--data", write(LINES), "-o", "out.npy", "--dtype", "bfloat16")
        actual = np.load("out.npy")
        assert actual.dtype == np.float32
        assert (actual == Embedder(load(tiny_model, dtype=torch.bfloat16)).sentences(LINES).numpy()).all()
        assert (actual * expected).sum(axis=1).min() > 0.999
        assert "in bfloat16" in result.stderr

    def test_format_option_with_an_unknown_suffix(self, embed):
        embed("a", "-o", "out.vectors", "--format", "npy")
        assert np.load("out.vectors").shape == (1, 22)

    def test_parquet_without_pyarrow_names_the_extra(self, embed, monkeypatch):
        monkeypatch.setattr("regard.text.vector_files.find_spec", lambda name: None)
        with pytest.raises(MissingPackageError, match=r"regard\[parquet\]"):
            embed("a", "-o", "out.parquet")

    @pytest.mark.parametrize(
        "options",
        [("-o", "out.csv"), ("-o", "out"), ("--format", "npy"), ("-o", "x.npy", "--format", "csv"), ("--resume",),
         ("--dtype", "float8"), ("--field", "text"), ("--data", "x")],
    )  # fmt: skip
    def test_wrong_options(self, embed, options):
        with pytest.raises(OptionError):
            embed("a", *options)


class TestOutputExists:
    @pytest.mark.parametrize(("name", "options"), [("out.npy", ()), ("out.npy.offsets.npy", ("--tokens",))])
    def test_refused_unless_overwrite(self, embed, name, options):
        write(["old"], name)
        with pytest.raises(OutputExistsError, match="--overwrite"):
            embed("a", "-o", "out.npy", *options)
        embed("a", "-o", "out.npy", "--overwrite", *options)
        assert np.load(name).size

    def test_input_file_as_output_is_refused(self, embed):
        write(LINES, "in.npy")
        with pytest.raises(OptionError, match="same file"):
            embed("--data", "in.npy", "-o", "in.npy", "--overwrite")

    def test_resuming_a_complete_output_is_refused(self, embed):
        assert "out.npy: there is no interrupted run to resume" in embed("a", "-o", "out.npy", "--resume").stderr
        with pytest.raises(OutputExistsError, match="complete"):
            embed("a", "-o", "out.npy", "--resume")


BAD_LINES = {
    "not UTF-8": (b"one\nt\xffwo\nthree\n", None, r"line 2 of in\.txt is not UTF-8[\s\S]*0xff at byte 2"),
    "too long": (
        b"one\n" + b"word " * 31 + b"\nthree\n",
        None,
        r"line 2 of in\.txt is too long[\s\S]*31 tokens[\s\S]*126",
    ),
    "not JSON": (b'{"a": "x"}\n{"a": \n{"a": "y"}\n', "a", r"line 2 of in\.txt is not JSON"),
    "blank JSON": (b'{"a": "x"}\n\n{"a": "y"}\n', "a", r"line 2 of in\.txt is not JSON[\s\S]*blank"),
    "deep JSON": (b'{"a": "x"}\n' + b"[" * 100_000 + b'\n{"a": "y"}\n', "a", r"line 2 of in\.txt is not JSON"),
    "no field": (b'{"a": "x"}\n{"b": "x"}\n{"a": "y"}\n', "a", r"line 2 of in\.txt has no field 'a'[\s\S]*'b'"),
    "no object": (b'{"a": "x"}\n[1]\n{"a": "y"}\n', "a", r"line 2 of in\.txt has no field 'a'"),
    "no text": (b'{"a": "x"}\n{"a": 7}\n{"a": "y"}\n', "a", r"line 2 of in\.txt has no text in 'a'[\s\S]*7"),
    "surrogate": (
        b'{"a": "x"}\n{"a": "\\ud83d"}\n{"a": "y"}\n',
        "a",
        r"line 2 of in\.txt is not UTF-8[\s\S]*surrogate",
    ),
}


class TestBadLines:
    @pytest.fixture(params=BAD_LINES)
    def bad_input(self, request, embed):
        content, field, message = BAD_LINES[request.param]
        Path("in.txt").write_bytes(content)
        return ("--data", "in.txt", *(("--field", field) if field else ())), message

    def test_error_names_the_line(self, embed, bad_input):
        options, message = bad_input
        with pytest.raises(DataError, match=message) as caught:
            embed(*options, "-o", "out.npy")
        assert caught.value.exit_code == 3
        assert names() == ["in.txt"]

    def test_skip_bad_reports_the_line(self, embed, bad_input):
        options, _ = bad_input
        result = embed(*options, "-o", "out.jsonl", "--skip-bad")
        assert "skipped: 1 line, line 2" in result.stderr
        assert len(read_rows("out.jsonl")) == 2
        (skipped,) = read_rows("out.jsonl.skipped.jsonl")
        assert skipped["line"] == 2
        assert "line 2 of in.txt" in skipped["problem"]

    def test_skip_bad_with_standard_output(self, embed, bad_input):
        options, _ = bad_input
        result = embed(*options, "--skip-bad")
        assert len(rows(result.stdout)) == 2
        assert "line 2" in result.stderr

    def test_error_if_all_lines_are_skipped(self, embed):
        with pytest.raises(DataError, match=r"no line could be used[\s\S]*2 lines skipped"):
            embed("--skip-bad", "-o", "out.npy", data=b"\xff\n\xfe\n")
        assert names() == []

    def test_truncate_reports_the_line(self, embed):
        result = embed("--truncate", "-o", "out.npy", data="short\n" + "word " * 31)
        assert "truncated at the model's limit: 1 text, line 2" in result.stderr

    def test_skip_bad_skips_an_overlong_line(self, embed, monkeypatch):
        monkeypatch.setattr("regard.text.line_reader.MAX_LINE_BYTES", 100)
        result = embed("--skip-bad", data="a\n" + "b" * 1000 + "\nc\n")
        assert [row["text"] for row in rows(result.stdout)] == ["a", "c"]
        assert "line 2" in result.stderr

    @pytest.mark.parametrize(("coding", "zero"), [("utf-16-le", 2), ("utf-16-be", 1)])
    def test_utf_16_without_byte_order_mark(self, embed, coding, zero):
        with pytest.raises(DataError, match=r"line 1 of standard input[\s\S]*iconv -f UTF-16") as caught:
            embed(data="one\ntwo\n".encode(coding))
        assert f"byte 0x00 at byte {zero} of the line" in caught.value.got


class TestBadInput:
    @pytest.mark.parametrize(
        "content",
        [b"", gzip.compress(b"one\ntwo\n" * 999, mtime=0)[:-9], b"\xff\xfeo\0n\0e\0"],
        ids=["empty", "cut gzip", "UTF-16"],
    )
    def test_empty_truncated_and_utf_16_files(self, embed, content):
        Path("in.txt").write_bytes(content)
        with pytest.raises(DataError, match=r"in\.txt") as caught:
            embed("--data", "in.txt", "--skip-bad")
        assert caught.value.do

    def test_unreadable_paths(self, embed, tmp_path):
        with pytest.raises(DataError, match="cannot read"):
            embed("--data", "nowhere.txt")
        with pytest.raises(DataError, match="there are no files in"):
            embed("--data", tmp_path)

    def test_argument_that_is_not_utf_8(self, embed):
        with pytest.raises(DataError, match="text 2 is not UTF-8"):
            embed("fine", "t\udcffwo")

    def test_json_lines_whose_field_is_ambiguous(self, embed):
        name = write(['{"id": 1, "one": "x y", "two": "y z"}'], "in.jsonl")
        with pytest.raises(DataError, match=r"ambiguous[\s\S]*'one' \(texts\), 'two' \(texts\)[\s\S]*field="):
            embed("--data", name)

    def test_model_with_nan_outputs_is_refused(self, tiny_model, embed, tmp_path):
        model = load(tiny_model)
        with torch.no_grad():
            model.norm.bias.fill_(float("nan"))
        model.save(tmp_path / "broken")
        with pytest.raises(CheckpointError, match="not finite"):
            embed("a", "-o", "out.npy", "--model", tmp_path / "broken")


class TestBadOutput:
    @pytest.mark.parametrize("folder", ["out.npy", "out.npy.offsets.npy", "out.npy.skipped.jsonl"])
    def test_a_folder_is_refused_before_the_model_is_loaded(self, embed, folder):
        Path(folder).mkdir()
        with pytest.raises(OptionError, match="is a folder"):
            embed("a", "--tokens", "--overwrite", "-o", "out.npy", "--model", "no such model")
        assert names() == [folder]

    def test_missing_parent_folder(self, embed):
        with pytest.raises(OutputError, match=r"(?s)folder does not exist.*nowhere"):
            embed("a", "-o", "nowhere/out.npy", "--model", "no such model")

    @pytest.mark.parametrize(
        ("options", "advice"),
        [
            (("--format", "csv"), r"pandas\.read_json"),
            (("-o", "out.csv"), r"pandas\.read_json"),
            (("-o", "out.pt"), r"numpy\.load"),
            (("-o", "out.json"), "one object per line"),
            (("-o", "out"), "rename the output"),
        ],
    )
    def test_unsupported_formats_suggest_a_supported_one(self, embed, options, advice):
        with pytest.raises(OptionError, match=advice):
            embed("a", *options)

    @pytest.mark.parametrize(
        ("number", "advice"), [(28, "free some"), (2, "create the folder"), (30, "choose a place")]
    )
    def test_advice_depends_on_the_system_error(self, number, advice):
        error = write_error("x.npy cannot be written", OSError(number, os.strerror(number)), then="resume")
        assert error.do.startswith(advice)
        assert error.do.endswith("; resume")
        assert error.got == os.strerror(number)

    def test_format_that_contradicts_the_suffix_is_refused(self, embed):
        with pytest.raises(OptionError, match="contradict"):
            embed("a", "-o", "out.npy", "--format", "jsonl")
        embed("a", "-o", "out.npy", "--format", "npy")
        embed("a", "-o", "out.txt", "--format", "jsonl")
        assert names() == ["out.npy", "out.txt"]

    def test_one_row_is_reported_in_the_singular(self, embed):
        assert "1 row, 1 vector of 22 float32" in embed("a", "-o", "out.npy").stderr

    def test_control_characters_in_the_output_name_are_escaped(self, embed):
        result = embed("a", "-o", "out\x1b[31m.npy")
        assert "out⟨U+001B⟩[31m.npy: 1 row" in result.stderr
        assert "\x1b[31m" not in result.stderr


class SimulatedKill(BaseException):
    """Simulates a kill: nothing catches it."""


class TestResume:
    def is_killed_at_rename(self, embed, monkeypatch, rename_number, *options):
        """Run, with a kill at the given rename of a file. Return whether the run got that far."""
        count = 0
        replace = Path.replace

        def replace_or_die(self, target):
            nonlocal count
            count += 1
            if count == rename_number:
                raise SimulatedKill
            return replace(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace_or_die)
            try:
                embed(*options)
            except SimulatedKill:
                return True
        return False

    @pytest.mark.parametrize(
        "options",
        [
            pytest.param(("-o", "out.npy"), marks=pytest.mark.slow),
            ("-o", "out.npy", "--tokens"),  # two files
            pytest.param(("-o", "out.jsonl"), marks=pytest.mark.slow),
            ("-o", "out.parquet"),
        ],
    )
    def test_resumed_output_is_the_same_after_a_kill_at_any_rename(self, embed, monkeypatch, small_chunks, options):
        write(["one two", "x" * 99 + " too long", "", "猫", "three"])  # three parts; the bad line is in the first
        options = ("--data", "in.txt", "--skip-bad", *options)
        embed(*options)
        whole = {name: Path(name).read_bytes() for name in names()}
        rename_number = 0
        killed = True
        while killed:
            for name in set(names()) - {"in.txt"}:
                Path(name).unlink()
            rename_number += 1
            killed = self.is_killed_at_rename(embed, monkeypatch, rename_number, *options)
            if killed:
                embed(*options, "--resume")
            assert {name: Path(name).read_bytes() for name in names()} == whole
        assert rename_number > 2 * 3

    @pytest.fixture
    def embed_after_interruption(self, embed, monkeypatch, small_chunks):
        """Interrupt a run after two of three parts, and return the function that runs the command."""
        assert self.is_killed_at_rename(embed, monkeypatch, 6, "--data", write(LINES), "-o", "out.npy")
        assert names() == ["in.txt", "out.npy.parts"]
        return embed

    def test_earlier_parts_need_resume_or_overwrite(self, embed_after_interruption):
        with pytest.raises(OutputExistsError, match=r"--resume[\s\S]*--overwrite") as caught:
            embed_after_interruption("--data", "in.txt", "-o", "out.npy")
        assert caught.value.exit_code == 5
        embed_after_interruption("--data", "in.txt", "-o", "out.npy", "--overwrite")
        assert names() == ["in.txt", "out.npy"]

    def test_continues_after_the_complete_parts(self, embed_after_interruption, expected):
        result = embed_after_interruption("--data", "in.txt", "-o", "out.npy", "--resume")
        assert "resuming after 4 texts" in result.stderr
        assert np.load("out.npy") == pytest.approx(expected, abs=1e-6)

    def test_lines_appended_since_the_interruption(self, embed_after_interruption):
        write([*LINES, "more"])
        embed_after_interruption("--data", "in.txt", "-o", "out.npy", "--resume")
        assert np.load("out.npy").shape == (7, 22)

    @pytest.mark.parametrize("lines", [["other", *LINES[1:]], LINES[:3], [*LINES[:3], "other"]])
    def test_changed_input_is_refused(self, embed_after_interruption, lines):
        write(lines)
        with pytest.raises(OutputExistsError, match="first 4 texts"):
            embed_after_interruption("--data", "in.txt", "-o", "out.npy", "--resume")
        assert Shards(Path("out.npy")).has_earlier_run

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--batch", "3"), "batch: 32 then, 3 now"),
            (("--tokens",), "tokens"),
            (("--dtype", "bfloat16"), "dtype: 'float32' then, 'bfloat16' now"),
            (("--weights", "int8"), "weights: None then, 'int8' now"),
            (("--model", "minilm"), "fingerprint"),
        ],
    )
    def test_changed_options_are_refused(self, embed_after_interruption, options, message):
        with pytest.raises(OutputExistsError, match=message):
            embed_after_interruption("--data", "in.txt", "-o", "out.npy", "--resume", *options)
        assert names("out.npy.parts")[:4] == [
            "00000000.data",
            "00000000.json",
            "00000001.data",
            "00000001.json",
        ]

    def test_changed_format_is_refused(self, embed, monkeypatch, small_chunks):
        options = ("--data", write(LINES), "-o", "out.vectors", "--format")
        assert self.is_killed_at_rename(embed, monkeypatch, 6, *options, "npy")
        with pytest.raises(OutputExistsError, match="format: 'npy' then, 'jsonl' now"):
            embed(*options, "jsonl", "--resume")

    def test_a_bad_line_can_be_skipped_when_resuming(self, embed, small_chunks):
        write([*LINES, "x" * 99])
        with pytest.raises(DataError, match="line 7"):
            embed("--data", "in.txt", "-o", "out.npy")
        result = embed("--data", "in.txt", "-o", "out.npy", "--resume", "--skip-bad")
        assert np.load("out.npy").shape == (6, 22)
        assert "line 7" in result.stderr

    @pytest.mark.parametrize("options", [("--batch", "3"), ("--model", "none/at/all"), ("--field", "text")])
    @pytest.mark.usefixtures("embed_after_interruption")
    def test_refused_resume_does_not_suggest_resume(self, tiny_model, options):
        resumed = ["embed", "--model", tiny_model, "--data", "in.txt", "-o", "out.npy", "--resume"]
        result = CliRunner().invoke(app, [*resumed, *options])
        assert isinstance(result.exception, RegardError), result.output
        assert "--resume to continue" not in result.stderr
        assert Shards(Path("out.npy")).has_earlier_run

    def test_error_of_a_bad_line_suggests_skip_bad(self, tiny_model, small_chunks, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write([*LINES, "x" * 99])
        result = CliRunner().invoke(app, ["embed", "--model", tiny_model, "--data", "in.txt", "-o", "out.npy"])
        assert isinstance(result.exception, DataError)
        assert "correct the input, or skip lines with --skip-bad, and continue with --resume" in result.stderr
        assert "same command" not in result.stderr

    def test_damaged_parts_suggest_overwrite(self, embed_after_interruption):
        write(["{"], "out.npy.parts/00000001.json")
        with pytest.raises(OutputExistsError) as raised:
            embed_after_interruption("--data", "in.txt", "-o", "out.npy", "--resume")
        assert "start again (--overwrite)" in shell_message(raised.value)

    def test_resume_after_a_full_disk(self, embed, monkeypatch, small_chunks):
        add = Shards.add

        def add_until_disk_is_full(self, record, write):
            if self.count == 2:
                raise OSError(28, "No space left on device")
            add(self, record, write)

        with monkeypatch.context() as patch:
            patch.setattr(Shards, "add", add_until_disk_is_full)
            with pytest.raises(RegardError, match=r"No space left[\s\S]*--resume"):
                embed("--data", write(LINES), "-o", "out.npy")
        embed("--data", "in.txt", "-o", "out.npy", "--resume")
        assert np.load("out.npy").shape == (6, 22)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_of_a_classifier_are_the_normalized_input_of_its_head(embed, pooling):
    model = classifier(pooling=pooling)
    model.save("classifier")
    result = embed("--model", "classifier", "--data", write(TEXTS), "-o", "v.npy")
    assert f"of 20 float32 (classifier, {pooling} pooling, length 1)" in result.stderr
    pooled = []
    model.head.register_forward_hook(lambda module, inputs, output: pooled.append(inputs[0]))
    for text in TEXTS:
        model(model.tokenizer.encode([text]).ids)
    expected = torch.nn.functional.normalize(torch.cat(pooled), dim=-1).detach().numpy()
    np.testing.assert_allclose(np.load("v.npy"), expected, atol=1e-6)
    assert tuple(Embedder(load("classifier")).sentences([]).shape) == (0, 20)


def test_fingerprint_includes_an_encoder_within_a_model():
    """Models that differ in the encoder's config alone have other vectors, so one cannot resume the other's run."""
    one, again, other = (
        embedding_job.TextLines(Embedder(classifier(activation=name)), embedding_job.EmbeddingOptions()).fingerprint()
        for name in ("gelu", "gelu", "relu")
    )
    assert one == again != other
