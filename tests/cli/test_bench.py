"""``regard bench``: runs of the command, its outputs, and the errors of wrong options."""

import json
import subprocess

import numpy as np
import pytest

from cli_process import ENVIRONMENT, fork_command


@pytest.fixture
def run(tmp_path):
    """Return a function that runs ``regard bench`` in an empty folder."""

    def run(*options, columns=100):
        return subprocess.run(
            [*fork_command(warnings="error"), "bench", *options],
            cwd=tmp_path,
            env=ENVIRONMENT | {"COLUMNS": str(columns), "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )

    return run


def run_shape(run, *options):
    return run("--heads", "2", "--head-dim", "8", "--seconds", "0.02", *options)


def test_tables_and_page(run, tmp_path):
    result = run_shape(
        run, "--mechanism", "linear,linformer,performer:features=16", "--length", "16,64", "--causal", "-o", "page.html"
    )
    assert (result.returncode, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].startswith("batch 1, 2 heads of 8, float32 · causal · forward · cpu: ")
    titles = ["Time", "Peak memory", "Error against exact attention", "Not measured"]
    assert [line for line in lines if line in titles] == titles
    time, _, error, missing = (lines.index(title) for title in titles)
    assert lines[time + 2] == "mechanism 16 64 faster than dot_product"
    rows = {line.split()[0]: line for line in lines[time + 4 : time + 8]}
    assert list(rows) == ["dot_product", "linear", "linformer", "performer:features=16"]
    assert rows["linformer"] == "linformer refused refused not measured"
    assert rows["linear"].count("s ") >= 2
    assert any(line.startswith("linear* 64 ") and line.count("%") == 3 for line in lines[error:missing])
    assert any("16, 64 refused it projects keys" in line for line in lines[missing:])
    assert lines[-1].startswith("Written: page.html (")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "performer:features=16" in page


@pytest.mark.slow  # atomic writes have tests of their own, and the next test reads JSON
def test_json_replaces_a_file(run, tmp_path):
    (tmp_path / "there.json").write_text("old")
    options = ["--mechanism", "linear", "--length", "8", "--json", "-o", "there.json", "--overwrite"]
    result = run_shape(run, *options)
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert json.loads((tmp_path / "there.json").read_text(encoding="utf-8")) == found
    assert len(found["cases"]) == 2


@pytest.mark.slow  # the test above is of a process, and tests/unit/bench/test_run.py of the numbers
def test_json_of_a_run_with_gradients(run, tmp_path):
    """The file and standard output hold the same; ``faster`` follows from the medians."""
    result = run_shape(
        run, "--mechanism", "nystromformer:landmarks=8", "--length", "256,32", "--batch", "2", "--backward", "--json",
        "--out", "out.json", "--threads", "1", "--dtype", "bfloat16",
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == found
    settings = found["settings"]
    assert settings["lengths"] == [32, 256]
    assert (settings["heads"], settings["head_dim"], settings["batch"]) == (2, 8, 2)
    assert (settings["dtype"], settings["backward"], settings["threads"]) == ("bfloat16", True, 1)
    cases = {(case["mechanism"], case["length"]): case for case in found["cases"]}
    label = "nystromformer:landmarks=8"
    assert set(cases) == {(name, length) for name in ("dot_product", label) for length in (32, 256)}
    ratios = [
        np.log(cases[label, length]["seconds"]["median"] / cases["dot_product", length]["seconds"]["median"])
        for length in (32, 256)
    ]
    faster = found["mechanisms"][1]["faster"]
    if faster["status"] == "from":
        expected = np.exp(np.interp(0.0, [-ratios[0], -ratios[1]], np.log([32, 256])))
        assert faster["length"] == pytest.approx(expected)
    else:
        assert faster["status"] in ("unclear", *(("never",) if ratios[1] >= 0 else ("shortest",)))
    assert all(case["peak_bytes"] >= 0 for case in cases.values())
    assert cases[label, 256]["error"]["rows"] == 64


@pytest.mark.slow  # tests/unit/bench/test_run_on_text.py runs on a text in this process
def test_a_text_and_a_model(run, tmp_path, tiny_model):
    letters = np.random.default_rng(3).choice(list("abcdefghijklmnopqrstuvwxyz"), 300)
    (tmp_path / "book.txt").write_text(" ".join(letters[:100]) + "\n\n" + " ".join(letters[100:]) + "\n")
    result = run(
        "--data", "book.txt", "--model", tiny_model, "--mechanism", "linear,additive", "--length", "31", "--texts", "5",
        "--seconds", "0.02", "--out", "book.html",
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].endswith("on 5 of 10 windows of 31 tokens of the text")
    titles = ["Vectors of the model", "Output error by layer and head", "Time", "Peak memory"]
    assert [line for line in lines if line in titles] == titles
    vectors = lines.index("Vectors of the model")
    assert lines[vectors + 2] == "mechanism cosine least token error nearest nearest 2 rank time of a text"
    linear = lines[vectors + 5].split()
    assert linear[0] == "linear"
    assert -1 <= float(linear[2]) <= float(linear[1]) <= 1
    assert any(line.startswith("additive 31 error additive has parameters of its own") for line in lines)
    assert "Vectors of the model" in (tmp_path / "book.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--mechanism", "linea"], 2, "did you mean 'linear'?"),
        (["--mechanism", "nystromformer:landmarks=0", "--length", "8"], 2, "wrong landmarks"),
        (["--mechanism", "nystromformer:marks=3"], 2, "unknown option of mechanism 'nystromformer'"),
        (["--length", "0"], 2, "wrong --length"),
        (["--length", "12,x"], 2, "wrong --length"),
        (["--length", "99999999999"], 2, "wrong length"),
        (["--heads", "0"], 2, "--heads"),
        (["--dtype", "int8"], 2, "unknown dtype"),
        (["--device", "cuda:99"], 2, "cannot use device 'cuda:99'"),
        (["--seconds", "-1"], 2, "wrong seconds"),
        (["--data", "missing.txt"], 3, "missing.txt"),
        (["--data", "empty.txt"], 3, "empty.txt is empty"),
        (["--data", "short.txt"], 3, "shorter than a window"),
        (["--data", "short.txt", "--heads", "3"], 2, "heads cannot be chosen for a model"),
        (["--data", "short.txt", "--causal"], 2, "causal cannot be chosen for a model"),
        (["--data", "short.txt", "--model", "no/model"], 4, "no/model"),
        (["--model", "minilm"], 2, "--model needs a text"),
        (["-o", "out.png"], 2, "does not say what to write"),
        (["-o", "no/folder/out.html"], 5, "folder does not exist"),
        (["-o", "there.html"], 5, "there.html already exists"),
        (["12"], 2, "unexpected argument 12"),
    ],
)
def test_wrong_options(run_here, tmp_path, options, code, message):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("a text")
    (tmp_path / "there.html").write_text("old")
    result = run_here("bench", *options)
    assert result.returncode == code, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "there.html").read_text() == "old"


def test_mechanisms_and_lengths_may_be_repeated(run):
    options = ["--mechanism", "linear", "--mechanism", "retention,additive", "--length", "8", "--length", "16"]
    result = run_shape(run, *options, "--causal", "--json")
    found = json.loads(result.stdout)
    assert [one["mechanism"] for one in found["cases"]] == ["dot_product", "linear", "retention", "additive"] * 2
    assert sorted({one["length"] for one in found["cases"]}) == [8, 16]
