"""Figures for papers: what is drawn, its size, the same bytes each time, and text that stays text."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.cli import view_drawing
from regard.errors import DataError, OptionError, OutputError, OutputExistsError, RefusedError
from regard.models import Swin, SwinConfig
from regard.view import AttentionView, LayerWeights, PairReading, PictureReading, Reading, Tokens
from regard.view.figures import colours
from regard.view.figures.draw import FigureKind
from regard.view.figures.picture import patch_weights
from regard.view.from_picture import read_picture_layers
from regard.view.from_weights import layers_of_weights, read_weights
from regard.view.head_weights import Place, find_place, head_weights
from regard.view.tables import TableKind
from regard.vision import ImageProcessor
from sampled_parameters import parametrize_sample

HOSTILE = "</script><img onerror=alert(1)>&$x^2$\x1b[31m"
WORDS = ["[CLS]", "The", "ani", "##mal", HOSTILE, "[SEP]"]
KINDS: tuple[FigureKind, ...] = ("matrix", "lines", "row", "grid")


def random_view(*, layers: int = 2, heads: int = 3, tokens: list[str] | None = None, **options: Any) -> AttentionView:
    tokens = WORDS if tokens is None else tokens
    weights = np.random.default_rng(3).random((layers, heads, len(tokens), len(tokens))) ** 4
    return AttentionView(read_weights(weights / weights.sum(-1, keepdims=True), tokens=tokens, **options))


@pytest.mark.parametrize("kind", KINDS)
def test_files_have_the_same_bytes_each_time(kind: FigureKind, tmp_path: Path) -> None:
    for ending, start in (("svg", b"<?xml"), ("pdf", b"%PDF-"), ("png", b"\x89PNG")):
        first, second = (random_view().figure(kind).save(tmp_path / f"{name}.{ending}").read_bytes() for name in "ab")
        assert first == second
        assert first.startswith(start)


@parametrize_sample("kind, width", KINDS, [40.0, 85.0, 170.0])
def test_a_figure_is_no_wider_than_asked(kind: FigureKind, width: float, tmp_path: Path) -> None:
    path = random_view(heads=12).figure(kind, width=width).save(tmp_path / "a.png")
    with Image.open(path) as image:
        millimetres = image.width / 300 * 25.4
        pixels = np.asarray(image.convert("RGB"))
    assert 15 < millimetres < width + 0.2
    edges = (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])
    assert all((edge > 200).all() for edge in edges), "nothing is cut at an edge"


def svg_text(svg: str) -> str:
    return " ".join(ElementTree.fromstring(svg).itertext())


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_outlines_and_nothing_runs_or_is_fetched(kind: FigureKind) -> None:
    svg = random_view().figure(kind)._repr_svg_()
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
    assert not tags & {"text", "script", "foreignObject", "a"}
    links = {
        value for element in ElementTree.fromstring(svg).iter() for name, value in element.items() if "href" in name
    }
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert "<!--" not in svg
    assert not re.search(r"\son\w+=", svg)


def shades_of(view: AttentionView, **place: Any) -> np.ndarray:
    (mesh,) = view.figure(**place).drawing.axes[0].collections
    return np.asarray(mesh.get_array())


def test_shades_of_a_matrix_are_proportional_to_weights() -> None:
    view = random_view()
    weights = view.readings[0].layers[1].weights()[2]
    expected = colours.shares()(weights / weights.max())[..., :3]
    np.testing.assert_allclose(shades_of(view, layer=1, head=2), expected, atol=1e-6)
    mean = view.readings[0].layers[1].weights().mean(0)
    for head in (None, "mean"):
        shades = shades_of(view, layer=1, head=head)
        np.testing.assert_allclose(shades, colours.shares()(mean / mean.max())[..., :3], atol=1e-6)


def test_signed_weights_have_two_colours() -> None:
    weights = np.array([[[1.0, -0.5], [0.0, 0.25]]])
    shades = shades_of(AttentionView(read_weights(weights, weights_are="signed")), layer=0, head=0)
    red, _, blue = np.moveaxis(shades, -1, 0)
    difference = blue - red
    assert (np.sign(np.where(abs(difference) < 0.03, 0, difference)) == np.sign(weights[0])).all()


def test_the_first_token_of_a_decoder_is_grey() -> None:
    weights = np.tril(np.array([[9.0, 1, 1], [8, 2, 1], [7, 2, 1]]))
    weights /= weights.sum(-1, keepdims=True)
    shades = shades_of(AttentionView(read_weights(weights)), layer=0, head=0)
    assert np.ptp(shades[:, 0], axis=-1).max() < 0.02
    assert shades[1, 1].sum() < 1, "the largest weight beside it has the strongest shade"
    assert "kept apart" in AttentionView(read_weights(weights)).figure().note


def test_words_are_joined() -> None:
    reading = random_view().readings[0]
    joined = head_weights(reading, Place(0, 1, 2), words=True)
    weights = reading.layers[0].weights()[1]
    assert joined.rows[:3] == ("[CLS]", "The", "animal")
    assert joined.row == 2
    np.testing.assert_allclose(joined.weights[1, 2], weights[1, 2:4].sum())
    np.testing.assert_allclose(joined.weights[2, 1], weights[2:4, 1].mean())


def test_the_default_place_is_the_strongest_finding() -> None:
    words = ["cats", "like", "old", "dogs", "and", "big", "cows"]
    weights = np.full((2, 3, 7, 7), 1 / 7)
    weights[1, 2, 0] = [0, 0, 0, 0.9, 0, 0, 0.1]
    weights[1, 1, 0] = [0, 0, 0, 0.8, 0, 0.1, 0.1]
    reading = read_weights(weights, tokens=words)
    assert find_place(reading, reading, layer=None, head=None, token=None) == Place(1, 2, 0)
    assert find_place(reading, reading, layer=1, head=None, token="old") == Place(1, None, 2)
    assert "layer 1, head 2" in AttentionView(reading).figure().note
    assert AttentionView(reading).figure("row").note == "layer 1, head 2, from cats"


def test_lines_of_several_heads_have_colours_and_a_legend() -> None:
    view = random_view()
    one = view.figure("lines", layer=0, head=1).drawing
    several = view.figure("lines", layer=0, head=[0, 2]).drawing
    assert len(one.axes) == 1
    assert [text.get_text() for text in several.axes[1].texts] == ["layer 0, head", "0", "2"]
    weights = view.readings[0].layers[0].weights()[1]
    assert len(one.axes[0].collections[0].get_paths()) == (weights / weights.max() >= 0.05).sum()
    only = view.figure("lines", layer=0, head=1, token="The").drawing
    assert len(only.axes[0].collections[0].get_paths()) == (weights[1] / weights.max() >= 0.05).sum()


def test_cross_attention_names_its_query() -> None:
    weights = np.full((1, 2, 3, 4), 0.25)
    view = AttentionView(read_weights(weights, tokens=["ein", "Hund", "."], key_tokens=["a", "dog", ".", "</s>"]))
    drawing = view.figure("row", layer=0, token=1).drawing
    assert drawing.axes[0].texts[0].get_text() == "Hund →"
    for kind in KINDS:
        view.figure(kind)


def test_a_long_text_is_thinned_out_and_drawn_as_an_image() -> None:
    view = random_view(layers=1, heads=1, tokens=[f"t{number}" for number in range(150)])
    drawing = view.figure(layer=0, head=0).drawing
    assert len(drawing.axes[0].images) == 1
    assert 10 < len(drawing.axes[0].texts) < 150
    view.figure("grid")
    with pytest.raises(DataError, match="too long for a figure of lines"):
        random_view(layers=1, heads=1, tokens=["x"] * 201).figure("lines")


def test_characters_without_a_font_are_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matplotlib.font_manager.fontManager.ttflist", [])
    random_view(tokens=["a", "我"]).figure(layer=0, head=0)
    assert "no font on this machine has" in caplog.text


def test_characters_of_other_fonts_are_found(caplog: pytest.LogCaptureFixture) -> None:
    drawing = random_view(tokens=["我", "吃", "مرحبا"]).figure(layer=0, head=0).drawing
    assert caplog.text == ""
    assert "我" in [text.get_text() for text in drawing.axes[0].texts]


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (OptionError, "unknown kind of figure", {"kind": "rows"}),
        (OptionError, "wrong layer", {"layer": 2}),
        (OptionError, "wrong head", {"layer": 1, "head": 3}),
        (OptionError, "head needs a layer", {"head": 1}),
        (OptionError, "has no token 'dog'", {"kind": "row", "token": "dog"}),
        (OptionError, "wrong token", {"kind": "row", "token": 6}),
        (OptionError, "token has no effect", {"token": 1}),
        (OptionError, "layer has no effect", {"kind": "grid", "layer": 1}),
        (OptionError, "shows one head", {"layer": 1, "head": [0, 1]}),
        (OptionError, "shows one head", {"kind": "lines", "layer": 1, "head": []}),
        (OptionError, "too many heads", {"kind": "lines", "layer": 1, "head": [0] * 8}),
        (OptionError, "wrong width", {"width": 1}),
        (OptionError, "wrong text", {"text": 1}),
        (OptionError, "unknown kind of attention", {"attention": "source"}),
    ],
)
def test_places_that_do_not_exist_are_refused(error: type[Exception], match: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=match):
        random_view().figure(**arguments)


def test_pictures_and_empty_readings_are_refused() -> None:
    picture = PictureReading("a", np.zeros((1, 2, 2), dtype=np.uint8), ())
    with pytest.raises(DataError, match="nothing to draw"):
        AttentionView(picture).figure()
    with pytest.raises(RefusedError, match="of texts and translations"):
        AttentionView(picture).table()
    empty = Reading(Tokens("a", ("a",), ((0, 1),), (False,)), ())
    for kind in KINDS:
        with pytest.raises(DataError, match="nothing to draw"):
            AttentionView(empty).figure(kind)


def picture_view(size: tuple[int, int] = (12, 12), **options: Any) -> AttentionView:
    weights = np.random.default_rng(3).random((2, 3, 10, 10)) ** 4
    pixels = np.random.default_rng(5).integers(0, 256, (*size, 3), dtype=np.uint8)
    layers = layers_of_weights(weights / weights.sum(-1, keepdims=True))
    return AttentionView(read_picture_layers(layers, pixels, **options))


@pytest.mark.parametrize("size", [(12, 12), (6, 30)])
def test_a_picture_has_its_weights_over_it(size: tuple[int, int]) -> None:
    view = picture_view(size, grid=(3, 3))
    figure = view.figure("row", layer=0, head=1, token=5)
    assert figure.note == "layer 0, head 1, from row 1, column 1"
    picture, over = (axes.images[0].get_array() for axes in figure.drawing.axes[:2])
    np.testing.assert_allclose(picture, np.moveaxis(view.readings[0].pixels, 0, -1) / 255)
    weights = view.readings[0].layers[0].attention.weights()[1, 5]
    lowest, largest = 0.1, weights[1:].max()
    rows, columns = (np.arange(length) * 3 // length for length in size)
    places = np.clip((weights[1:].reshape(3, 3)[np.ix_(rows, columns)] - lowest) / (largest - lowest), 0, 1)
    grey = picture.mean(-1, keepdims=True)
    np.testing.assert_allclose(over, colours.shares()(places)[..., :3] * (1 - 0.35 * (1 - grey)), atol=1e-9)


def test_a_picture_opens_at_its_class_token() -> None:
    assert picture_view().figure("row").note == "layer 1, mean of all heads, from class token"
    assert picture_view().figure(token="class token", head=2, layer=0).note == "layer 0, head 2, from class token"
    for kind in ("lines", "grid"):
        with pytest.raises(RefusedError, match="no text"):
            picture_view().figure(kind)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="unknown token"):
        picture_view().figure("row", token="dog")
    with pytest.raises(OptionError, match="wrong token"):
        picture_view().figure("row", token=10)


def test_keys_outside_of_the_window_have_no_colour() -> None:
    config = SwinConfig((12, 12), (2, 2), channels=1, width=8, depths=(2,), heads=(2,), window=3, labels=("a", "b"))
    model = Swin(config).eval()
    model.processor = ImageProcessor((12, 12), channels=1, mean=(0.5,), std=(0.5,))
    (reading,) = regard.show(model, np.zeros((12, 12), np.uint8)).readings
    assert isinstance(reading, PictureReading)
    layer = reading.layers[0]
    assert layer.windows is not None
    weights = patch_weights(layer, 0, 0)
    assert np.isfinite(weights).sum() == (layer.keys[0] >= 0).sum() < len(weights)
    AttentionView(reading).figure("row", layer=0, head=0)


def test_files_are_not_replaced_and_other_names_are_refused(tmp_path: Path) -> None:
    figure = random_view().figure(layer=0, head=0)
    path = figure.save(tmp_path / "a.svg")
    with pytest.raises(OutputExistsError):
        figure.save(path)
    figure.save(str(path), overwrite=True)
    with pytest.raises(OptionError, match=r"SVG, PDF or PNG(.|\n)*\.svg, \.pdf or \.png"):
        figure.save(tmp_path / "a.gif")
    with pytest.raises(OutputError):
        figure.save(tmp_path / "missing" / "a.svg")


def test_translations_have_figures_of_each_kind_of_attention() -> None:
    def reading(queries: str, keys: str | None = None) -> Reading:
        return read_weights(
            np.full((2, 1, len(queries), len(keys or queries)), 1 / len(keys or queries)),
            tokens=list(queries),
            key_tokens=None if keys is None else list(keys),
        )

    pair = PairReading(reading("abc", "defg"), 1, reading("defg"), reading("abc"), forced=True)
    view = AttentionView(pair)
    assert view.figure().note == "layer 1, mean of all heads"
    assert view.figure(attention="source", layer=0, head=0).drawing.axes[0].texts[0].get_text() == "d"
    assert len(view.table("heads", attention="target")) == 2
    assert "distance" not in view.table().columns


def test_the_shell_completes_all_kinds() -> None:
    assert FigureKind.__args__ == view_drawing.FIGURES
    assert TableKind.__args__ == view_drawing.TABLES


def test_colours_are_those_of_the_page() -> None:
    """The ends of the ramps in assets/colour.js, as a browser computes them."""
    light, dark = colours.shares()([0, 255])[:, :3]
    np.testing.assert_allclose(light, np.array([251, 252, 254]) / 255, atol=0.01)
    np.testing.assert_allclose(dark, np.array([5, 40, 103]) / 255, atol=0.02)


def test_ink_on_a_shade_is_readable() -> None:
    assert colours.ink_on((1.0, 1.0, 1.0)) == "#000000"
    assert colours.ink_on((0.0, 0.1, 0.4)) == "#ffffff"


def test_grid_of_layers_with_different_numbers_of_heads() -> None:
    tokens = Tokens("a b", ("a", "b"), ((0, 1), (2, 3)), (False, False))
    layers = tuple(
        LayerWeights(f"layers.{number}", torch.eye(2).expand(heads, 2, 2).contiguous(), "distribution", "")
        for number, heads in enumerate((1, 3))
    )
    drawing = AttentionView(Reading(tokens, layers)).figure("grid").drawing
    assert sum(len(axes.images) for axes in drawing.axes) == 1 + 3 + 1
