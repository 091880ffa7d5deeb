"""Terminal view of pictures: the labels, and the patches that the first token attends to most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from regard.escape_text import escape_and_isolate, escape_text
from regard.language import join_sentences, translate, translate_message
from regard.view.picture_reading import PictureLayer, PictureReading
from regard.view.sound_track import SoundTrack
from regard.view.terminal_tables import Column, fitted_table, make_share_table

MAX_PATCHES = 8
MAX_LABELS = 5


def print_pictures(readings: Sequence[PictureReading], console: Console) -> None:
    """Print the labels and the strongest patches of each picture."""
    for reading in readings:
        _print_picture(reading, console)


def _print_picture(reading: PictureReading, console: Console) -> None:
    console.print(Text(escape_text(reading.name), style="bold"))
    plain = console.options.ascii_only
    if reading.probabilities:
        labels = [(escape_and_isolate(name), share) for name, share in reading.probabilities[:MAX_LABELS]]
        console.print(make_share_table(translate("label"), translate("probability"), labels, plain=plain))
        more = len(reading.probabilities) - MAX_LABELS
        if more > 0:
            console.print(translate("… and {more} less probable labels.", more=f"{more:,}"), style="dim")
    if reading.track is not None and reading.track.words:
        _print_track(reading.track, console)
    if not reading.layers or (reading.track is not None and not reading.layers[-1].grid.rows):
        return  # the words of a speech model have times instead
    rows, how = strongest_patches(reading)
    console.print(
        make_share_table(f"\n{translate_message(reading.noun)}", f"\n{translate('share')}", rows, plain=plain)
    )
    console.print(join_sentences((how, translate_message(reading.note))) + "\n", style="dim")


def _print_track(track: SoundTrack, console: Console) -> None:
    """Print the words that were heard, each with its times in seconds."""
    console.print(Text(escape_text(track.text)))
    columns = (
        Column(f"\n{translate('word')}", wraps_from=40),
        Column(f"\n{translate('from')}", "right"),
        Column(f"\n{translate('to')}", "right"),
    )
    rows = [
        (Text(escape_and_isolate(word.text), style="bold"), f"{word.start:.2f} s", f"{word.end:.2f} s")
        for word in track.words
    ]
    console.print(fitted_table(columns, rows, console.width))
    console.print(translate_message(track.timing), style="dim")


def strongest_patches(reading: PictureReading) -> tuple[list[tuple[str, float]], str]:
    """The strongest patches with their shares, and what they are shares of, as a sentence.

    They are the shares of the class token through all layers if there is a rollout, of its attention in the last layer
    if not, and of the mean of all tokens if there is no class token. Of a model with a readout, they are its weights;
    of a Perceiver, they are keys.
    """
    layer = reading.layers[-1]
    names = layer.grid.prefix
    if reading.rollout is not None and names:
        how = translate("Attention rollout of the {name} token, through all layers.", name=translate_message(names[0]))
        return _strongest(layer, reading.rollout[0]), how
    if reading.readout is not None and not layer.grid.rows:
        how = translate("Attention rollout from the query of the labels to the picture, through all latents.")
        return _strongest(layer, reading.readout), how
    if reading.readout is not None:
        how = translate("Weights of the sequence pooling, by which the head reads the tokens of the last layer.")
        return _strongest(layer, reading.readout), how
    weights = np.abs(layer.attention.weights()).mean(axis=0)
    received = np.zeros(layer.grid_of_keys.tokens)
    keys, counted = layer.keys, slice(0, 1) if names else slice(None)
    inside = keys[counted] >= 0
    np.add.at(received, keys[counted][inside], weights[counted][inside])
    source = translate("all tokens, averaged,")
    if names:
        source = translate("the {name} token", name=translate_message(names[0]))
    number = len(reading.layers) - 1
    return (
        _strongest(layer, received / len(keys[counted])),
        translate(
            "Attention of {source} in the last layer, {layer}, averaged over its heads.", source=source, layer=number
        ),
    )


def _strongest(layer: PictureLayer, shares: np.ndarray) -> list[tuple[str, float]]:
    """The patches, or keys, with the largest shares, the largest first."""
    first = len(layer.grid_of_keys.prefix)
    order = first + np.argsort(-shares[first:], kind="stable")[:MAX_PATCHES]
    return [(translate_message(layer.name_of_key(int(token))), float(shares[token])) for token in order]
