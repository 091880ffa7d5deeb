"""The page as a file: its contents, and how it is written."""

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from layer_readings import layer_reading
from regard.errors import DataError, OptionError, OutputError, OutputExistsError
from regard.view import page_data
from regard.view.output_path import PAGE, check_output_path
from regard.view.page import render_page, write_page
from regard.view.read_pair import read_pair
from regard.view.reading import Reading, Tokens
from small_translators import SOURCE, TARGET, transformer


def make_reading(text: str = "</script><b>hi") -> Reading:
    one = np.ones((2, 1, 3), dtype=np.float32)
    tokens = Tokens(text, (text,), ((0, len(text)),), (False,))
    return Reading(tokens, (layer_reading("one", one, one, one, 1.0),), np.ones((2, 1, 5), dtype=np.float32))


def element(page: str, pattern: str) -> str:
    (matches,) = re.findall(pattern, page, re.DOTALL)
    return matches


def test_content_security_policy_has_the_hashes_of_script_and_style() -> None:
    page = render_page([make_reading()])
    policy = element(page, r'Content-Security-Policy" content="([^"]*)"')
    for name, pattern in (("script", r"<script>(.*?)</script>"), ("style", r"<style>(.*?)</style>")):
        digest = base64.b64encode(hashlib.sha256(element(page, pattern).encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_data_cannot_close_its_script_element() -> None:
    page = render_page([make_reading()])
    assert page.count("</script>") == 2
    data = json.loads(element(page, r'id="data">(.*?)</script>'))
    assert data["texts"][0]["attentions"][0]["tokens"][0]["surface"] == "</script><b>hi"
    assert "<b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;hi" in element(page, r"<title>(.*?)</title>")


def data_of(page: str) -> dict:
    return json.loads(element(page, r'id="data">(.*?)</script>'))


def test_data_of_a_translation_has_three_attentions() -> None:
    pair = read_pair(transformer(), SOURCE, TARGET)
    data = data_of(render_page([pair]))
    (text,) = data["texts"]
    assert (text["title"], text["attentions"][0]["opening"]["layer"], text["forced"]) == (
        f"{SOURCE} → {TARGET}",
        0,
        True,
    )
    alignment, source, target = text["attentions"]
    assert [one["kind"] for one in text["attentions"]] == ["alignment", "source", "target"]
    assert set(alignment) - set(source) == {"key_tokens", "key_words"}
    assert set(source) == set(target)
    # Positions in two different texts have no distance and no neighbours.
    assert alignment["statistics"]["columns"] == ["entropy", "</s>"]
    assert source["statistics"]["columns"] == ["entropy", "distance", "itself", "previous", "next", "</s>"]
    assert (len(alignment["masks"]), len(source["masks"]), len(target["masks"])) == (0, 0, 1)


@pytest.mark.parametrize(("size", "letters"), [(1, 2), (15, 3)])
def test_large_scores_are_stored_with_more_digits(size: int, letters: int) -> None:
    generator = np.random.default_rng(5)
    query, key = (size * generator.standard_normal((2, 53, 7)).astype(np.float32) for _ in range(2))
    tokens = Tokens("a" * 53, ("a",) * 53, tuple((at, at + 1) for at in range(53)), (False,) * 53)
    data = page_data.build_page_data([Reading(tokens, (layer_reading("one", query, key, key, 1.0),))], "", room=100)
    assert data["letters"] == letters
    assert 0 < data["largest_error"] < 0.01


def test_page_loads_no_external_resources() -> None:
    page = render_page([make_reading()])
    addresses = set(re.findall(r"\w+://[^\s\"'`]+", page)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert not re.search(r"\b(src|href)=|@import|url\(|innerHTML|insertAdjacentHTML|document\.write|eval\(", page)


def test_existing_file_is_kept_without_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("precious")
    with pytest.raises(OutputExistsError, match="overwrite=True"):
        write_page([make_reading()], path)
    assert path.read_text() == "precious"
    write_page([make_reading()], path, overwrite=True)
    assert path.read_text().startswith("<!doctype html>")
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"], "nothing is left aside"


def test_unwritable_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is a folder"):
        check_output_path(tmp_path, PAGE, overwrite=True)
    with pytest.raises(OutputError, match="does not exist"):
        check_output_path(tmp_path / "none" / "page.html", PAGE, overwrite=False)
    with pytest.raises(DataError, match="nothing to show"):
        render_page([])


def test_errors_of_the_file_system_are_reported(tmp_path: Path) -> None:
    # A name that no file system accepts: the same code path as a full disk or a missing permission, also for root.
    with pytest.raises(OutputError, match="cannot be written"):
        write_page([make_reading()], tmp_path / ("long" * 61 + ".html"))
    assert list(tmp_path.iterdir()) == []
