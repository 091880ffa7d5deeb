"""PNG files of every colour type, depth, transparency and interlacing: the pixels of the standard."""

import io
from itertools import product

import numpy as np
import pytest
from PIL import Image

from png_files import CHANNELS, DEPTHS, chunk, png_bytes, visible_pixels
from regard.vision import read_picture
from regard.vision.picture_file import read_header

KINDS = [(colour_type, depth) for colour_type, depths in DEPTHS.items() for depth in depths]
GREY = (0, 4)


def make_picture(colour_type, depth, seed=0, height=13, width=11):
    """Samples, and the values of tRNS and PLTE: one of the colours of the picture, which also has its neighbours."""
    random = np.random.default_rng([seed, colour_type, depth])
    samples = random.integers(0, 2**depth, (height, width, CHANNELS[colour_type]))
    palette, transparency = b"", b""
    if colour_type == 3:
        palette = random.integers(0, 256, (2**depth, 3), dtype=np.uint8).tobytes()
        transparency = random.integers(0, 256, max(1, 2**depth - 1), dtype=np.uint8).tobytes()
    elif colour_type in (0, 2):
        key = samples[3, 4].copy()
        samples[5, :4] = key
        samples[6, :4] = key ^ 1  # differs in the lowest bit, which 8 bits do not show
        samples[7, 1] = (key + 1) % 2**depth
        transparency = key.astype(">u2").tobytes()
    return samples, transparency, palette


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("has_transparency", [False, True])
@pytest.mark.parametrize(("colour_type", "depth"), KINDS)
def test_pixels_are_those_of_the_standard(colour_type, depth, has_transparency, interlaced, tmp_path):
    samples, transparency, palette = make_picture(colour_type, depth)
    transparency = transparency if has_transparency else b""
    data = png_bytes(samples, colour_type, depth, transparency=transparency, palette=palette, interlaced=interlaced)
    expected = visible_pixels(samples, colour_type, depth, transparency=transparency, palette=palette)
    (tmp_path / "a.png").write_bytes(data)
    for source in (data, tmp_path / "a.png", Image.open(tmp_path / "a.png")):
        read = read_picture(source)
        assert read.mode == ("L" if colour_type in GREY else "RGB")
        pixels = np.asarray(read).reshape(expected.shape).astype(float)
        is_partly_visible = has_transparency or colour_type in (4, 6)
        assert np.abs(pixels - expected).max() <= (1 if is_partly_visible else 0)
        assert ((pixels == 255) == (expected > 254.4)).all() or is_partly_visible
    assert read_header(data) == (13, 11, colour_type in GREY)
    assert read_picture(data, channels=3).mode == "RGB"
    grey = np.asarray(read_picture(data, channels=1)).astype(float)
    weights = np.array([0.299, 0.587, 0.114]) if expected.shape[2] == 3 else np.ones(1)
    assert np.abs(grey - expected @ weights).max() <= 1.51


@pytest.mark.parametrize(("colour_type", "depth"), [one for one in KINDS if one[0] in (0, 2)])
def test_exactly_one_colour_is_invisible(colour_type, depth):
    """Colours that differ from it in the lowest of 16 bits are visible, though their upper 8 bits are equal."""
    samples, transparency, _ = make_picture(colour_type, depth, seed=1)
    samples[...] = 1
    key = np.frombuffer(transparency, ">u2").astype(int)
    samples[0, 0], samples[0, 1], samples[0, 2:4] = key, key ^ 1, (key[0] + 1) % 2**depth
    pixels = np.asarray(read_picture(png_bytes(samples, colour_type, depth, transparency=transparency)))
    plain = np.asarray(read_picture(png_bytes(samples, colour_type, depth)))
    assert (pixels[0, 0] == 255).all()
    visible = (samples != key).any(axis=-1)
    np.testing.assert_array_equal(pixels[visible], plain[visible])


@pytest.mark.parametrize(("colour_type", "depth"), [(0, 2), (0, 16), (2, 16), (4, 16), (6, 16)])
def test_pictures_with_transparency_are_turned(colour_type, depth):
    samples, transparency, _ = make_picture(colour_type, depth)
    exif = Image.Exif()
    exif[0x112] = 6
    turn = chunk(b"eXIf", exif.tobytes()[6:])
    plain = png_bytes(samples, colour_type, depth, transparency=transparency)
    turned = png_bytes(samples, colour_type, depth, transparency=transparency, chunks=turn)
    np.testing.assert_array_equal(np.asarray(read_picture(turned)), np.rot90(np.asarray(read_picture(plain)), -1))


def test_the_oracle_agrees_with_pillow_where_it_reads_all():
    for (colour_type, depth), interlaced in product(KINDS, (False, True)):
        samples, _, palette = make_picture(colour_type, depth)
        data = png_bytes(samples, colour_type, depth, palette=palette, interlaced=interlaced)
        with Image.open(io.BytesIO(data)) as opened:
            found = np.asarray(opened.convert("RGB") if opened.mode == "P" else opened)
        if depth == 16 and colour_type == 0:
            np.testing.assert_array_equal(found, samples[..., 0])
        elif colour_type in (0, 2, 3):
            expected = visible_pixels(samples, colour_type, depth, palette=palette)
            scale = 255 if (colour_type, depth) == (0, 1) else 1  # Pillow's mode "1" is False and True
            np.testing.assert_array_equal(found.reshape(expected.shape) * scale, expected)
