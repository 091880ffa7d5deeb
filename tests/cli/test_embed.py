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
    OutputExistsError,
    RegardError,
    UnknownWordsWarning,
    write_error,
)
from regard.models import load
from regard.text import Embedder, embedding_job
from regard.text.resumable_shards import Shards

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
    def assert_rows(self, done, expected):
        found = rows(done.stdout)
        assert [row["text"] for row in found] == LINES
        assert np.array([row["vector"] for row in found]) == pytest.approx(expected, abs=1e-6)

    def test_arguments(self, embed, expected):
        self.assert_rows(embed(*LINES), expected)

    def test_a_file(self, embed, expected, small_chunks):
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


class TestUnknownWords:
    def test_said_with_the_numbers_of_their_lines(self, embed, small_chunks):
        result = embed("--data", write(["猫狗", "one", "", "猫 two 狗", "猫 two"]), "-o", "out.npy")
        assert "most words of 2 texts (lines 1, 4) are not in this model's vocabulary" in result.stderr
        assert "multilingual" in result.stderr
        assert "most words of 1 text (line 1)" in embed("猫").stderr

    def test_of_known_words_nothing_is_said(self, embed):
        assert "vocabulary" not in embed("one", "two 猫").stderr


class TestOutput:
    def test_npy(self, embed, expected, small_chunks):
        done = embed("--data", write(LINES), "-o", "out.npy")
        found = np.load("out.npy", allow_pickle=False)
        assert (found.dtype, found.shape) == (np.float32, (6, 22))
        assert found == pytest.approx(expected, abs=1e-6)
        assert "6 rows" in done.stderr
        assert names() == ["in.txt", "out.npy"]

    def test_parquet(self, embed, expected, small_chunks):
        embed("--data", write(LINES), "-o", "out.parquet")
        table = pyarrow.parquet.read_table("out.parquet")
        assert table["text"].to_pylist() == LINES
        assert np.array(table["vector"].to_pylist()) == pytest.approx(expected, abs=1e-6)

    def test_every_format_holds_the_same_float32(self, embed):
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
            found = vectors[offsets[row] : offsets[row + 1]]
            assert found == pytest.approx(one.numpy(), abs=1e-5)
            assert (
                lines[row]["tokens"]
                == table["tokens"][row].as_py()
                == list(model.tokenizer.encode(LINES[row]).tokens[0])
            )
            assert np.array_equal(np.array(lines[row]["vectors"], np.float32), found)
            assert np.array_equal(np.array(table["vectors"][row].as_py(), np.float32), found)

    @pytest.mark.filterwarnings("ignore::regard.errors.UnknownWordsWarning")
    def test_in_bfloat16_the_vectors_are_float32(self, embed, tiny_model, expected):
        done = embed("--data", write(LINES), "-o", "out.npy", "--dtype", "bfloat16")
        found = np.load("out.npy")
        assert found.dtype == np.float32
        assert (found == Embedder(load(tiny_model, dtype=torch.bfloat16)).sentences(LINES).numpy()).all()
        assert (found * expected).sum(axis=1).min() > 0.999
        assert "in bfloat16" in done.stderr

    def test_format_by_name(self, embed):
        embed("a", "-o", "out.vectors", "--format", "npy")
        assert np.load("out.vectors").shape == (1, 22)

    def test_the_format_needs_a_package(self, embed, monkeypatch):
        monkeypatch.setattr("regard.text.vector_files.find_spec", lambda name: None)
        with pytest.raises(MissingPackageError, match=r"regard\[parquet\]"):
            embed("a", "-o", "out.parquet")

    @pytest.mark.parametrize(
        "options",
        [("-o", "out.csv"), ("-o", "out"), ("--format", "npy"), ("-o", "x.npy", "--format", "csv"), ("--resume",),
         ("--dtype", "float8"), ("-o", "nowhere/x.npy"), ("--field", "text"), ("--data", "x")],
    )  # fmt: skip
    def test_wrong_options(self, embed, options):
        with pytest.raises(OptionError):
            embed("a", *options)


class TestOutputExists:
    @pytest.mark.parametrize(("name", "options"), [("out.npy", ()), ("out.npy.offsets.npy", ("--tokens",))])
    def test_refused_then_replaced(self, embed, name, options):
        write(["old"], name)
        with pytest.raises(OutputExistsError, match="--overwrite"):
            embed("a", "-o", "out.npy", *options)
        embed("a", "-o", "out.npy", "--overwrite", *options)
        assert np.load(name).size

    def test_the_input_is_never_the_output(self, embed):
        write(LINES, "in.npy")
        with pytest.raises(OptionError, match="same file"):
            embed("--data", "in.npy", "-o", "in.npy", "--overwrite")

    def test_resuming_what_is_complete(self, embed):
        embed("a", "-o", "out.npy", "--resume")
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
    def bad(self, request, embed):
        content, field, message = BAD_LINES[request.param]
        Path("in.txt").write_bytes(content)
        return ("--data", "in.txt", *(("--field", field) if field else ())), message

    def test_stops(self, embed, bad):
        options, message = bad
        with pytest.raises(DataError, match=message) as caught:
            embed(*options, "-o", "out.npy")
        assert caught.value.exit_code == 3
        assert names() == ["in.txt"]

    def test_skipped_and_said(self, embed, bad):
        options, _ = bad
        done = embed(*options, "-o", "out.jsonl", "--skip-bad")
        assert "skipped: 1 line, line 2" in done.stderr
        assert len(read_rows("out.jsonl")) == 2
        (skipped,) = read_rows("out.jsonl.skipped.jsonl")
        assert skipped["line"] == 2
        assert "line 2 of in.txt" in skipped["problem"]

    def test_skipped_without_a_file(self, embed, bad):
        options, _ = bad
        done = embed(*options, "--skip-bad")
        assert len(rows(done.stdout)) == 2
        assert "line 2" in done.stderr

    def test_nothing_left(self, embed):
        with pytest.raises(DataError, match=r"no line could be used[\s\S]*2 lines skipped"):
            embed("--skip-bad", "-o", "out.npy", data=b"\xff\n\xfe\n")
        assert names() == []

    def test_cut_when_asked_and_said(self, embed):
        done = embed("--truncate", "-o", "out.npy", data="short\n" + "word " * 31)
        assert "truncated at the model's limit: 1 text, line 2" in done.stderr

    def test_a_line_without_end(self, embed, monkeypatch):
        monkeypatch.setattr("regard.text.line_reader.MAX_LINE_BYTES", 100)
        done = embed("--skip-bad", data="a\n" + "b" * 1000 + "\nc\n")
        assert [row["text"] for row in rows(done.stdout)] == ["a", "c"]
        assert "line 2" in done.stderr

    @pytest.mark.parametrize(("coding", "zero"), [("utf-16-le", 2), ("utf-16-be", 1)])
    def test_utf_16_without_a_mark(self, embed, coding, zero):
        with pytest.raises(DataError, match=r"line 1 of standard input[\s\S]*iconv -f UTF-16") as caught:
            embed(data="one\ntwo\n".encode(coding))
        assert f"byte 0x00 at byte {zero} of the line" in caught.value.got


class TestBadInput:
    @pytest.mark.parametrize(
        "content",
        [b"", gzip.compress(b"one\ntwo\n" * 999, mtime=0)[:-9], b"\xff\xfeo\0n\0e\0"],
        ids=["empty", "cut gzip", "UTF-16"],
    )
    def test_files(self, embed, content):
        Path("in.txt").write_bytes(content)
        with pytest.raises(DataError, match=r"in\.txt") as caught:
            embed("--data", "in.txt", "--skip-bad")
        assert caught.value.do

    def test_no_file(self, embed, tmp_path):
        with pytest.raises(DataError, match="cannot read"):
            embed("--data", "nowhere.txt")
        with pytest.raises(DataError, match="cannot read"):
            embed("--data", tmp_path)

    def test_an_argument_of_another_encoding(self, embed):
        with pytest.raises(DataError, match="text 2 is not UTF-8"):
            embed("fine", "t\udcffwo")

    def test_json_lines_without_field(self, embed):
        name = write(['{"id": 1, "words": "x"}'], "in.jsonl")
        with pytest.raises(OptionError, match=r"--field[\s\S]*'id', 'words'"):
            embed("--data", name)

    def test_a_model_that_gives_no_numbers(self, tiny_model, embed, tmp_path):
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

    def test_no_parent(self, embed):
        with pytest.raises(OptionError, match="there is no folder nowhere"):
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
    def test_formats_that_are_not_written_say_which_serve(self, embed, options, advice):
        with pytest.raises(OptionError, match=advice):
            embed("a", *options)

    @pytest.mark.parametrize(("number", "advice"), [(28, "free some"), (2, "choose a place"), (30, "choose a place")])
    def test_advice_fits_what_the_system_says(self, number, advice):
        error = write_error("x.npy cannot be written", OSError(number, os.strerror(number)), then="resume")
        assert error.do.startswith(advice)
        assert error.do.endswith("; resume")
        assert error.got == os.strerror(number)

    def test_name_and_format_disagree(self, embed):
        with pytest.raises(OptionError, match="contradict"):
            embed("a", "-o", "out.npy", "--format", "jsonl")
        embed("a", "-o", "out.npy", "--format", "npy")
        embed("a", "-o", "out.txt", "--format", "jsonl")
        assert names() == ["out.npy", "out.txt"]

    def test_one_row_is_no_plural(self, embed):
        assert "1 row, 1 vector of 22 float32" in embed("a", "-o", "out.npy").stderr

    def test_a_name_cannot_act_on_the_terminal(self, embed):
        done = embed("a", "-o", "out\x1b[31m.npy")
        assert "out⟨U+001B⟩[31m.npy: 1 row" in done.stderr
        assert "\x1b[31m" not in done.stderr


class Killed(BaseException):
    """Simulates a kill: nothing catches it."""


class TestResume:
    def stopped_at(self, embed, monkeypatch, moment, *options):
        """Run, and stop at rename number ``moment``. Return whether the run got that far."""
        count = 0
        replace = Path.replace

        def dying(self, target):
            nonlocal count
            count += 1
            if count == moment:
                raise Killed
            return replace(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", dying)
            try:
                embed(*options)
            except Killed:
                return True
        return False

    @pytest.mark.parametrize(
        "options", [("-o", "out.npy"), ("-o", "out.npy", "--tokens"), ("-o", "out.jsonl"), ("-o", "out.parquet")]
    )
    def test_from_every_moment(self, embed, monkeypatch, small_chunks, options):
        write(["one two", "x" * 99 + " too long", "", "猫", "three"])  # three parts; the bad line is in the first
        options = ("--data", "in.txt", "--skip-bad", *options)
        embed(*options)
        whole = {name: Path(name).read_bytes() for name in names()}
        moment = 0
        died = True
        while died:
            for name in set(names()) - {"in.txt"}:
                Path(name).unlink()
            moment += 1
            died = self.stopped_at(embed, monkeypatch, moment, *options)
            if died:
                embed(*options, "--resume")
            assert {name: Path(name).read_bytes() for name in names()} == whole
        assert moment > 2 * 3

    @pytest.fixture
    def interrupted(self, embed, monkeypatch, small_chunks):
        """An interrupted run, in which two of three parts are complete."""
        assert self.stopped_at(embed, monkeypatch, 6, "--data", write(LINES), "-o", "out.npy")
        assert names() == ["in.txt", "out.npy.parts"]
        return embed

    def test_parts_are_not_overlooked(self, interrupted):
        with pytest.raises(OutputExistsError, match=r"--resume[\s\S]*--overwrite") as caught:
            interrupted("--data", "in.txt", "-o", "out.npy")
        assert caught.value.exit_code == 5
        interrupted("--data", "in.txt", "-o", "out.npy", "--overwrite")
        assert names() == ["in.txt", "out.npy"]

    def test_goes_on(self, interrupted, expected):
        done = interrupted("--data", "in.txt", "-o", "out.npy", "--resume")
        assert "resuming after line 4" in done.stderr
        assert np.load("out.npy") == pytest.approx(expected, abs=1e-6)

    def test_more_lines_since(self, interrupted):
        write([*LINES, "more"])
        interrupted("--data", "in.txt", "-o", "out.npy", "--resume")
        assert np.load("out.npy").shape == (7, 22)

    @pytest.mark.parametrize("lines", [["other", *LINES[1:]], LINES[:3], [*LINES[:3], "other"]])
    def test_another_input(self, interrupted, lines):
        write(lines)
        with pytest.raises(OutputExistsError, match="first 4 lines"):
            interrupted("--data", "in.txt", "-o", "out.npy", "--resume")
        assert Shards(Path("out.npy")).has_earlier_run

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--batch", "3"), "batch: 32 then, 3 now"),
            (("--tokens",), "tokens"),
            (("--dtype", "bfloat16"), "dtype: 'float32' then, 'bfloat16' now"),
            (("--model", "minilm"), "fingerprint"),
        ],
    )
    def test_other_options(self, interrupted, options, message):
        with pytest.raises(OutputExistsError, match=message):
            interrupted("--data", "in.txt", "-o", "out.npy", "--resume", *options)
        assert names("out.npy.parts")[:4] == [
            "00000000.data",
            "00000000.json",
            "00000001.data",
            "00000001.json",
        ]

    def test_another_format(self, embed, monkeypatch, small_chunks):
        options = ("--data", write(LINES), "-o", "out.vectors", "--format")
        assert self.stopped_at(embed, monkeypatch, 6, *options, "npy")
        with pytest.raises(OutputExistsError, match="format: 'npy' then, 'jsonl' now"):
            embed(*options, "jsonl", "--resume")

    def test_a_bad_line_can_be_skipped_when_resuming(self, embed, small_chunks):
        write([*LINES, "x" * 99])
        with pytest.raises(DataError, match="line 7"):
            embed("--data", "in.txt", "-o", "out.npy")
        done = embed("--data", "in.txt", "-o", "out.npy", "--resume", "--skip-bad")
        assert np.load("out.npy").shape == (6, 22)
        assert "line 7" in done.stderr

    @pytest.mark.parametrize("options", [("--batch", "3"), ("--model", "none/at/all"), ("--field", "text")])
    @pytest.mark.usefixtures("interrupted")
    def test_a_refused_resumption_does_not_advise_itself(self, tiny_model, options):
        resumed = ["embed", "--model", tiny_model, "--data", "in.txt", "-o", "out.npy", "--resume"]
        result = CliRunner().invoke(app, [*resumed, *options])
        assert isinstance(result.exception, RegardError), result.output
        assert "--resume to continue" not in result.stderr
        assert Shards(Path("out.npy")).has_earlier_run

    def test_after_a_bad_line_the_same_command_is_not_advised(self, tiny_model, small_chunks, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write([*LINES, "x" * 99])
        result = CliRunner().invoke(app, ["embed", "--model", tiny_model, "--data", "in.txt", "-o", "out.npy"])
        assert isinstance(result.exception, DataError)
        assert "correct the line, or skip it with --skip-bad, and continue with --resume" in result.stderr
        assert "same command" not in result.stderr

    def test_damaged_parts(self, interrupted):
        write(["{"], "out.npy.parts/00000001.json")
        with pytest.raises(OutputExistsError, match=r"start again \(--overwrite\)"):
            interrupted("--data", "in.txt", "-o", "out.npy", "--resume")

    def test_a_full_disk(self, embed, monkeypatch, small_chunks):
        add = Shards.add

        def full(self, record, write):
            if self.count == 2:
                raise OSError(28, "No space left on device")
            add(self, record, write)

        with monkeypatch.context() as patch:
            patch.setattr(Shards, "add", full)
            with pytest.raises(RegardError, match=r"No space left[\s\S]*--resume"):
                embed("--data", write(LINES), "-o", "out.npy")
        embed("--data", "in.txt", "-o", "out.npy", "--resume")
        assert np.load("out.npy").shape == (6, 22)
