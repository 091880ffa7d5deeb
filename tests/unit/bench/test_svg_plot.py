"""Plots: names of lines are not cut, and the picture is as wide as they need."""

import re

import pytest

from regard.bench.svg_plot import Series, draw_lines


@pytest.mark.parametrize("name", ["linear", "nystromformer:landmarks=64", "a<b&" * 10])
def test_the_names_of_lines_fit(name):
    picture = draw_lines("Time", [Series(name, 0, ((16, 1.0), (64, 2.0)))], [16, 64], lambda value: f"{value:g}")
    (width,) = re.findall(r'class="wide" viewBox="0 0 (\d+) ', picture)
    shown = re.search(r'<text x="(\d+)" y="[\d.]+">([^<]*)</text></g>', picture)
    text = shown[2].replace("&lt;", "<").replace("&amp;", "&")
    assert text == name
    assert int(shown[1]) + 6.5 * len(text) <= int(width)


def test_a_very_long_name_is_shortened():
    picture = draw_lines("Time", [Series("x" * 99, 0, ((16, 1.0), (64, 1.0)))], [16, 64], lambda value: f"{value:g}")
    assert f">{'x' * 47}…</text></g>" in picture
    assert f"<title>{'x' * 99}, 16 tokens: 1</title>" in picture
