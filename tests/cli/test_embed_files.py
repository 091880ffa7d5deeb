"""``regard embed`` of a folder or pattern: one output for each file, as the command gives for that file alone."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from regard.cli import embed_files
from regard.cli.app import app
from regard.errors import DataError, MissingPackageError, OptionError, OutputExistsError
from regard.text import embedding_job

FILES = {"a.txt": ["one two", "", "three"], "b.jsonl.txt": ["four"], "c.txt.gz": ["five six", "seven", "eight"]}
FOLDER = ("--data", "corpus", "-o", "vectors", "--format", "npy")


@pytest.fixture
def embed(tiny_model, tmp_path, monkeypatch):
    """Return a function that runs the command in a folder with FILES in corpus/, and raises its errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(embedding_job, "CHUNK_LINES", 2)
    Path("corpus").mkdir()
    for name, lines in FILES.items():
        content = "".join(f"{line}\n" for line in lines).encode()
        Path("corpus", name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)

    def run(*arguments, data=None):
        options = ["embed", "--model", tiny_model, *map(str, arguments)]
        return CliRunner().invoke(app, options, input=data, catch_exceptions=False)

    return run


def names(folder="."):
    return sorted(path.name for path in Path(folder).iterdir())


def read_outputs(folder="vectors"):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture
def expected(embed):
    """Outputs of the command for each file alone."""
    for name, out in zip(FILES, ("a.npy", "b.jsonl.npy", "c.npy"), strict=True):
        embed("--data", f"corpus/{name}", "-o", out)
    found = {path.name: path.read_bytes() for path in Path().glob("*.npy")}
    for name in found:
        Path(name).unlink()
    return found


@pytest.mark.parametrize("data", ["corpus", "corpus/*", "c*/**/*.[tg]*"])
def test_each_output_is_that_of_the_file_alone(embed, expected, data):
    Path("corpus/.hidden").write_text("no")
    Path("corpus/_SUCCESS").write_text("")  # empty
    result = embed("--data", data, "-o", "vectors", "--format", "npy")
    assert read_outputs() == expected
    assert "vectors: 3 files, 7 rows, 7 vectors of 22 float32" in result.stderr
    assert names() == ["corpus", "vectors"]


def test_folders_of_the_folder_are_read(embed, expected):
    Path("corpus/de/deep").mkdir(parents=True)
    Path("corpus/.git").mkdir()
    Path("corpus/de/deep/a.txt").write_bytes(Path("corpus/a.txt").read_bytes())
    Path("corpus/.git/a.txt").write_text("hidden")
    result = embed(*FOLDER)
    assert "4 files, 10 rows" in result.stderr
    assert Path("vectors/de/deep/a.npy").read_bytes() == expected["a.npy"]
    assert {path.relative_to("vectors").as_posix() for path in Path("vectors").rglob("*.npy")} == {
        *expected, "de/deep/a.npy"
    }  # fmt: skip


def test_outputs_in_the_folder_are_not_read(embed, expected):
    inside = ("--data", "corpus", "-o", "corpus/vectors", "--format", "npy")
    embed(*inside)
    assert read_outputs("corpus/vectors") == expected
    embed(*inside, "--overwrite")
    assert read_outputs("corpus/vectors") == expected
    Path("other/vectors").mkdir(parents=True)
    Path("corpus/vectors/a.npy").rename("other/vectors/a.npy")
    with pytest.raises(DataError, match="no files in other but the outputs"):
        embed("--data", "other", "-o", "other/vectors", "--format", "npy", "--overwrite")


def test_nothing_is_kept_of_a_run_in_folders_without_parts(embed):
    Path("corpus/de").mkdir()
    Path("corpus/a.txt").rename("corpus/de/a.txt")
    for path in ("corpus/b.jsonl.txt", "corpus/de/a.txt"):
        Path(path).write_bytes(b"\xff\n")
    with pytest.raises(DataError, match=r"line 1 of corpus/b"):
        embed(*FOLDER)
    assert names() == ["corpus"]


def test_resumed_after_a_failure(embed, expected):
    good = Path("corpus/c.txt.gz").read_bytes()
    Path("corpus/c.txt.gz").write_bytes(gzip.compress(b"five six\nseven\n\xff\n"))
    with pytest.raises(DataError, match="line 3 of corpus/c"):
        embed(*FOLDER)
    assert names("vectors") == ["a.npy", "b.jsonl.npy", "c.npy.parts"]
    with pytest.raises(OutputExistsError, match="interrupted run"):
        embed(*FOLDER)
    with pytest.raises(OutputExistsError, match="batch: 32 then, 3 now"):
        embed(*FOLDER, "--resume", "--batch", "3")
    Path("corpus/c.txt.gz").write_bytes(good)
    result = embed(*FOLDER, "--resume")
    assert "resuming: 2 of 3 files are complete" in result.stderr
    assert read_outputs() == expected
    assert names() == ["corpus", "vectors"]


def test_a_file_of_the_run_can_be_completed_alone(embed, expected):
    good = Path("corpus/c.txt.gz").read_bytes()
    Path("corpus/c.txt.gz").write_bytes(gzip.compress(b"five six\nseven\n\xff\n"))
    with pytest.raises(DataError):
        embed(*FOLDER)
    Path("corpus/c.txt.gz").write_bytes(good)
    embed("--data", "corpus/c.txt.gz", "-o", "vectors/c.npy", "--resume")
    assert read_outputs() == expected


def test_nothing_is_kept_of_a_run_without_parts(embed):
    Path("corpus/a.txt").write_bytes(b"\xff\n")
    with pytest.raises(DataError, match="line 1 of corpus/a"):
        embed(*FOLDER)
    assert names() == ["corpus"]


def test_existing_outputs(embed, expected):
    embed(*FOLDER)
    Path("vectors/other").write_text("kept")
    for options in ((), ("--resume",)):
        with pytest.raises(OutputExistsError, match=r"vectors/a\.npy already exists"):
            embed(*FOLDER, *options)
    np.save("vectors/a.npy", np.zeros(2))
    embed(*FOLDER, "--overwrite")
    assert read_outputs() == {**expected, "other": b"kept"}


def test_empty_files_are_left_out_and_reported(embed, expected):
    Path("corpus/d.txt").write_text("")
    result = embed(*FOLDER)
    assert "corpus/d.txt is empty: left out" in result.stderr
    assert read_outputs() == expected
    Path("nothing").mkdir()
    Path("nothing/e.txt").write_text("")
    with pytest.raises(DataError, match="all input files are empty"):
        embed("--data", "nothing", "-o", "others", "--format", "npy")
    assert not Path("others").exists()


def test_skipped_lines_are_reported_for_each_file(embed):
    Path("corpus/a.txt").write_bytes(b"one\n\xff\n")
    result = embed(*FOLDER, "--skip-bad")
    assert "corpus/a.txt:\nskipped: 1 line, line 2" in result.stderr
    assert names("vectors") == ["a.npy", "a.npy.skipped.jsonl", "b.jsonl.npy", "c.npy"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "corpus"), "no --out, no --format"),
        (("--data", "corpus", "-o", "vectors"), "no --format"),
        (("--data", "corpus", "-o", "corpus/a.txt", "--format", "npy"), "is a file"),
        (("--data", "corpus", "-o", "corpus", "--format", "npy"), "same folder"),
        (("--data", "corpus", "-o", "vectors", "--format", "csv"), "pandas"),
        (("--ray", "-o", "out.npy"), "no --data"),
        (("--data", "-", "--ray", "auto", "-o", "out.npy"), "standard input"),
        (("--ray", "--data", "corpus/a.txt"), "no --out"),
    ],
)
def test_refused_options(embed, options, message):
    with pytest.raises(OptionError, match=message):
        embed(*options, data="one\n")
    assert names() == ["corpus"]


def test_refused_files(embed):
    with pytest.raises(DataError, match=r"no file matches corpus/\*\.csv"):
        embed("--data", "corpus/*.csv", "-o", "vectors", "--format", "npy")
    Path("corpus/a.txt.gz").write_bytes(b"one\n")
    with pytest.raises(OptionError, match="same output"):
        embed(*FOLDER)


def test_without_ray_the_extra_is_named(embed, monkeypatch):
    monkeypatch.setattr("regard.ray_embedding.supervisor.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"regard\[ray\]"):
        embed("--ray", "--data", "corpus/a.txt", "-o", "out.npy")
    assert names() == ["corpus"]


def test_ctrl_c_suggests_resume(embed, tiny_model, monkeypatch):
    def interrupt(left, run):
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr(embed_files, "embed_here", interrupt)
    result = CliRunner().invoke(app, ["embed", "--model", tiny_model, *FOLDER])
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert names() == ["corpus"]
