"""``regard view -o``: figures and tables by the ending of the name, and options that have no effect."""

import csv
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

from picture_files import random_pixels
from regard.errors import OptionError
from shell_command import error_message, output
from small_image_models import image_classifier

TEXT = "The animal didn't cross the street because it was too tired."


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ([], "layer 3, head 1"),
        (["--layer", "3", "--head", "1"], "layer 3, head 1"),
        (["--layer", "2"], "layer 2, mean of all heads"),
        (["--figure", "lines", "--layer", "3", "--head", "1,4"], "layer 3, head 1, 4"),
        (["--figure", "row", "--token", "it", "--words"], "layer 3, head 1, from it"),
        (["--figure", "grid", "--width", "120"], "all heads of 6 layers"),
    ],
)
def test_figures(options: list[str], note: str) -> None:
    assert output("view", TEXT, "-o", "head.svg", *options).splitlines()[-1] == f"Figure: head.svg ({note})"
    ElementTree.parse("head.svg")


def test_other_formats_of_figures() -> None:
    for name, start in (("head.png", b"\x89PNG"), ("head.pdf", b"%PDF")):
        output("view", TEXT, "-o", name)
        assert Path(name).read_bytes().startswith(start)


def test_tables() -> None:
    assert output("view", TEXT, "I ate an apple.", "-o", "heads.csv").splitlines()[-1] == (
        "Table: heads.csv (144 rows of heads)"
    )
    with Path("heads.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == ["0"] * 72 + ["1"] * 72
    output("view", TEXT, "-o", "it.json", "--table", "weights", "--layer", "3", "--head", "1", "--words")
    weights = json.loads(Path("it.json").read_text(encoding="utf-8"))
    (share,) = [row["weight"] for row in weights if (row["query_token"], row["key_token"]) == ("it", "animal")]
    assert f"{100 * share:.1f}" == "67.7"


def test_a_figure_of_a_picture() -> None:
    image_classifier().save("model")
    path = Path("cat.png")
    Image.fromarray(random_pixels()).save(path)
    lines = output("view", path, "--model", "model", "-o", "drawn.png", "--layer", "0", "--head", "1").splitlines()
    assert lines[-1] == "Figure: drawn.png (layer 0, head 1, from class token)"
    message = error_message(OptionError, "view", str(path), "--model", "model", "-o", "cat.csv")
    assert "no tables of pictures" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([TEXT, "-o", "x.gif"], ".html, .svg, .pdf, .png, .csv or .json"),
        ([TEXT, "-o", "x.html", "--layer", "3"], "--layer has no effect on x.html"),
        ([TEXT, "--head", "3"], "--head has no effect on the terminal"),
        ([TEXT, "--head", "3"], "add an output, such as -o head.svg, or leave it out"),
        ([TEXT, "-o", "x.svg", "--table", "heads"], "--table has no effect on x.svg"),
        ([TEXT, "-o", "x.csv", "--width", "90"], "--width has no effect on x.csv"),
        ([TEXT, "I ate.", "-o", "x.svg"], "a figure shows one text or picture"),
        ([TEXT, "-o", "x.svg", "--layer", "9"], "wrong --layer"),
        ([TEXT, "-o", "x.svg", "--mechanism", "linear"], "no figures of several mechanisms"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    assert message in error_message(OptionError, "view", *arguments)
    assert list(Path().iterdir()) == []
