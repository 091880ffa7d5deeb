"""Reading of picture files: modes, orientation, transparency, sizes, broken files."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from picture_files import random_pixels
from regard.errors import DataError
from regard.vision import MAX_PIXELS, read_picture
from regard.vision.picture_file import is_picture_name, read_header
from tiff_files import grey_tiff


def saved(image: Image.Image, form: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def test_rgb_and_grey_keep_their_pixels(tmp_path):
    for channels, mode in ((3, "RGB"), (1, "L")):
        pixels = random_pixels(channels=channels)
        path = tmp_path / f"{mode}.png"
        path.write_bytes(saved(Image.fromarray(pixels)))
        for source in (path, str(path), path.read_bytes(), pixels, Image.fromarray(pixels)):
            read = read_picture(source)
            assert read.mode == mode
            np.testing.assert_array_equal(np.asarray(read), pixels)


def test_array_with_one_channel_in_the_last_dimension():
    pixels = random_pixels(channels=1)
    np.testing.assert_array_equal(np.asarray(read_picture(pixels[..., None])), pixels)


def test_channels_are_as_asked():
    grey = random_pixels(channels=1)
    np.testing.assert_array_equal(np.asarray(read_picture(grey, channels=3)), np.repeat(grey[..., None], 3, axis=2))
    assert read_picture(random_pixels(), channels=1).mode == "L"


def test_transparent_pixels_are_white_whatever_their_colour():
    """The invisible colour has no influence; a half transparent pixel is laid on white."""
    pixels = random_pixels(channels=4, seed=3)
    pixels[..., 3] = 0
    pixels[0, 0] = (10, 20, 30, 255)
    pixels[0, 1] = (0, 0, 0, 128)
    for seed in (5, 6):
        other = pixels.copy()
        hidden = other[..., 3] == 0
        other[hidden, :3] = random_pixels(seed=seed)[hidden]
        read = np.asarray(read_picture(saved(Image.fromarray(other, "RGBA"))))
        assert read[0, 0].tolist() == [10, 20, 30]
        assert np.abs(read[0, 1].astype(int) - 127).max() <= 1
        assert (read[hidden] == 255).all()


def test_grey_with_transparency_stays_grey():
    pixels = np.stack([random_pixels(channels=1), np.full((7, 11), 255, np.uint8)], axis=2)
    pixels[2, 3, 1] = 0
    read = read_picture(saved(Image.fromarray(pixels, "LA")))
    expected = pixels[..., 0].copy()
    expected[2, 3] = 255
    assert read.mode == "L"
    np.testing.assert_array_equal(np.asarray(read), expected)


def test_palette_with_and_without_transparency():
    indices = random_pixels(channels=1) % 3
    image = Image.fromarray(indices, "P")
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    colours = np.eye(3, dtype=np.uint8)[indices] * 255
    np.testing.assert_array_equal(np.asarray(read_picture(saved(image))), colours)
    visible = np.where((indices == 1)[..., None], np.uint8(255), colours)
    np.testing.assert_array_equal(np.asarray(read_picture(saved(image, transparency=1))), visible)


def test_sixteen_bits_keep_the_upper_eight():
    wide = np.random.default_rng(2).integers(0, 65536, (7, 11), dtype=np.uint16)
    read = read_picture(saved(Image.fromarray(wide)))
    assert read.mode == "L"
    np.testing.assert_array_equal(np.asarray(read), wide >> 8)
    np.testing.assert_array_equal(np.asarray(read_picture(saved(Image.fromarray(wide), "TIFF"))), wide >> 8)


@pytest.mark.parametrize("white_is_zero", [False, True])
@pytest.mark.parametrize(("bits", "order"), [(1, "<"), (4, ">"), (8, "<"), (12, "<"), (16, "<"), (16, ">")])
def test_grey_tiff_of_any_number_of_bits(bits, order, white_is_zero):
    """The largest number is white, or black if the file says so."""
    samples = np.random.default_rng(bits).integers(0, 2**bits, (5, 8))
    samples[0, :2] = 0, 2**bits - 1
    light = 2**bits - 1 - samples if white_is_zero else samples
    expected = light >> (bits - 8) if bits >= 8 else light * (255 // (2**bits - 1))
    data = grey_tiff(samples, bits, white_is_zero=white_is_zero, order=order)
    if (bits, order, white_is_zero) == (16, ">", True) or (bits, white_is_zero) == (12, True):
        with pytest.raises(DataError, match="not a picture that can be read"):  # no mode of Pillow
            read_picture(data)
        return
    np.testing.assert_array_equal(np.asarray(read_picture(data)), expected)


def test_black_and_white_and_cmyk():
    dots = Image.fromarray(((random_pixels(channels=1) > 99) * 255).astype(np.uint8)).convert("1")
    np.testing.assert_array_equal(np.asarray(read_picture(saved(dots))), np.asarray(dots) * np.uint8(255))
    cmyk = Image.new("CMYK", (5, 3), (0, 255, 255, 0))
    read = np.asarray(read_picture(saved(cmyk, "TIFF")))
    assert read.shape == (3, 5, 3)
    assert (read == (255, 0, 0)).all()


def test_first_frame_of_an_animation():
    frames = [Image.new("L", (5, 3), shade) for shade in (200, 10, 90)]
    for form in ("GIF", "TIFF"):
        stream = saved(frames[0], form, save_all=True, append_images=frames[1:])
        assert (np.asarray(read_picture(stream)) == 200).all()


@pytest.mark.parametrize(
    ("orientation", "turn"),
    [
        (1, lambda a: a),
        (2, lambda a: a[:, ::-1]),
        (3, lambda a: a[::-1, ::-1]),
        (4, lambda a: a[::-1]),
        (5, lambda a: a.transpose(1, 0, 2)),
        (6, lambda a: np.rot90(a, -1)),
        (7, lambda a: a[::-1, ::-1].transpose(1, 0, 2)),
        (8, lambda a: np.rot90(a)),
    ],
)
def test_orientation_of_exif(orientation, turn):
    """The eight orientations of EXIF 2.32, table 6, by array operations."""
    pixels = random_pixels()
    exif = Image.Exif()
    exif[0x0112] = orientation
    read = np.asarray(read_picture(saved(Image.fromarray(pixels), exif=exif)))
    np.testing.assert_array_equal(read, turn(pixels))


def test_broken_exif_is_no_orientation():
    pixels = random_pixels()
    read = read_picture(saved(Image.fromarray(pixels), exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\xff"))
    np.testing.assert_array_equal(np.asarray(read), pixels)


def test_size_is_checked_before_pixels_are_decoded():
    """A file of 66 bytes whose header says 100,000 x 100,000 is refused by the header: it has no pixels at all."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    for edge in (8193, 12_000, 100_000):
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", edge, edge, 8, 2, 0, 0, 0))
        bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
        with pytest.raises(DataError, match="too many pixels") as caught:
            read_picture(bomb, name="bomb.png")
        assert f"{MAX_PIXELS:,}" in str(caught.value)
        assert "bomb.png" in str(caught.value)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_truncated_files_are_named(tmp_path, form):
    whole = saved(Image.fromarray(random_pixels(61, 67)), form)
    for share in (0.02, 0.5, 0.9):
        path = tmp_path / f"cut.{form.lower()}"
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(DataError, match="cut") as caught:
            read_picture(path)
        assert caught.value.expected
        assert caught.value.do


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"],
)
def test_other_files_are_no_pictures(tmp_path, content):
    path = tmp_path / "x.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not a picture"):
        read_picture(path)


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "none.png", tmp_path):
        with pytest.raises(DataError, match="cannot read"):
            read_picture(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
@pytest.mark.parametrize("read", [read_picture, read_header])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, read):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataError, match="not a file"):
        read(tmp_path / "pipe.png")


NO_ARRAYS = (
    np.zeros((3, 5)),
    np.zeros((3, 5, 2), np.uint8),
    np.zeros((0, 5), np.uint8),
    np.zeros(3, np.uint8),
    7,
    None,
)


@pytest.mark.parametrize("wrong", NO_ARRAYS)
@pytest.mark.usefixtures("without_shape_checks")
def test_other_values_are_refused(wrong):
    with pytest.raises(DataError):
        read_picture(wrong)


def test_32_bit_pixels_are_refused():
    with pytest.raises(DataError, match="32 bits"):
        read_picture(saved(Image.fromarray(np.zeros((3, 5), np.float32)), "TIFF"))


def test_names_of_pictures(tmp_path):
    assert is_picture_name(tmp_path / "A.JPG")
    assert not is_picture_name(tmp_path / "a.txt")
