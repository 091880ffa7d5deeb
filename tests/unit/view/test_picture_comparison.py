"""Two pictures compared: the share of attention that moved at each place, which heads are compared, and refusals."""

from io import StringIO

import numpy as np
import pytest
import torch
from rich.console import Console

from picture_files import random_pixels
from regard.errors import OptionError
from regard.models.image_encoder import ImageEncoder
from regard.view import PictureReading, compare_pictures, print_readings, read_file
from small_image_models import image_classifier, small_cct


def other_weights(model: ImageEncoder) -> ImageEncoder:
    """The model after a step of a training: all weights changed."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def readings() -> tuple[PictureReading, PictureReading]:
    picture = random_pixels(12, 8, channels=1)
    return read_file(image_classifier(), picture, name="a"), read_file(
        other_weights(image_classifier()), picture, name="a"
    )


def weights_of(reading: PictureReading, layer: int, head: int) -> np.ndarray:
    return reading.layers[layer].attention.weights()[head]


def test_two_checkpoints_on_one_picture_move_by_the_total_variation_of_their_rows() -> None:
    first, second = readings()
    comparison = compare_pictures(first, second, names=("before", "after"))
    assert len(comparison.heads) == first.heads
    for change, moved in zip(comparison.heads, comparison.moved, strict=True):
        rows = [weights_of(reading, change.layer, change.head) for reading in (first, second)]
        np.testing.assert_allclose(moved, np.maximum(rows[0] - rows[1], 0).sum(axis=1), rtol=1e-5)
        assert change.change == pytest.approx(moved.mean(), rel=1e-5)
    changes = [head.change for head in comparison.heads]
    assert changes == sorted(changes, reverse=True)
    console = Console(width=110, record=True, file=StringIO())
    print_readings(comparison, console)
    move = comparison.move_in_head(0)
    said = console.export_text()
    assert first.layers[move.change.layer].name_of(move.place) in said
    assert f"{100 * move.lost_shares[0]:.1f} → {100 * move.lost_shares[1]:.1f} %" in said


def test_heads_of_one_picture_are_compared_with_the_nearest_other_head() -> None:
    reading, _ = readings()
    comparison = compare_pictures(reading, reading)
    assert len(comparison.heads) == reading.heads
    assert all((head.layer, head.head) != (head.other_layer, head.other_head) for head in comparison.heads)


def test_readings_with_tokens_at_other_places_are_refused() -> None:
    first, _ = readings()
    other = read_file(small_cct(), random_pixels(12, 8, channels=1), name="b")
    with pytest.raises(OptionError, match="no common places"):
        compare_pictures(first, other)
