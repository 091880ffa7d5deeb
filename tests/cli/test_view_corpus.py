"""``regard view --summary``: what every head does over all texts, also of more texts than a page holds."""

import csv
import re
from pathlib import Path

import pytest

from regard.cli import view
from regard.errors import DataError, OptionError
from regard.view import fit_page
from shell_command import error_message, output, run

ANIMALS = ["cat", "dog", "bird", "horse"]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A file of 21 sentences, one more than a page holds here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(view, "MAX_TEXTS", 20)
    monkeypatch.setattr(fit_page, "ANNOUNCED_BYTES", 1_000_000)
    texts = [f"The {ANIMALS[n % 4]} saw the {ANIMALS[n % 3]} in street {n}." for n in range(21)]
    Path("corpus.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    return texts


def test_summarizes_more_texts_than_a_page_holds(corpus: list[str]) -> None:
    assert "--summary" in error_message(OptionError, "view", "--data", "corpus.txt")
    printed = output("view", "--data", "corpus.txt", "--summary", "-o", "heads.csv")
    assert printed.startswith("21 texts, ")
    # The head of MiniLM that is known for the previous token, in every text.
    (row,) = [line.split() for line in printed.splitlines() if line.startswith("0·2 ")]
    assert row[1:5] == ["previous", "token", "100", "%"]
    assert printed.splitlines()[-1] == "Table: heads.csv (72 rows of heads)"
    with Path("heads.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    named = {(row["layer"], row["head"]): row for row in rows if row["pattern"]}
    assert named["0", "2"]["pattern"] == "previous token"
    assert float(named["0", "2"]["agreement"]) == 1
    assert float(named["0", "2"]["score"]) > 0.99


def test_says_how_large_a_page_will_be(corpus: list[str]) -> None:
    """Within a third: the sentences have about the same length."""
    Path("some.txt").write_text("\n".join(corpus[:8]) + "\n", encoding="utf-8")
    result = run("view", "--data", "some.txt", "-o", "page.html")
    said = re.search(r"The page has about ([\d.]+) MB\.", result.stderr)
    assert said is not None
    assert float(said[1]) == pytest.approx(Path("page.html").stat().st_size / 1e6, rel=1 / 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "x.html"], "ends in .csv or .json"),
        (["-o", "x.csv", "--layer", "3"], "--layer has no effect with --summary"),
        (["--mechanism", "linear"], "--mechanism has no effect with --summary"),
        (["--open"], "--open has no effect with --summary"),
        (["--source", "a"], "--source has no effect with --summary"),
    ],
)
def test_refuses_what_a_summary_does_not_use(corpus: list[str], arguments: list[str], message: str) -> None:
    assert message in error_message(OptionError, "view", "--data", "corpus.txt", "--summary", *arguments)
    assert [path.name for path in Path().iterdir()] == ["corpus.txt"]


def test_refuses_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n\n", encoding="utf-8")
    assert "no text" in error_message(DataError, "view", "--data", "empty.txt", "--summary")
