"""Terminal view of sounds: the labels, and the times that all tokens attend to most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from regard.escape_text import escape_and_isolate, escape_text
from regard.view.sound_reading import SoundReading
from regard.view.terminal_picture import MAX_LABELS, make_share_table

MAX_TIMES = 8


def print_sounds(readings: Sequence[SoundReading], console: Console) -> None:
    """Print the labels and the strongest times of each sound."""
    for reading in readings:
        _print_sound(reading, console)


def _print_sound(reading: SoundReading, console: Console) -> None:
    plain = console.options.ascii_only
    console.print(Text(escape_text(reading.name), style="bold"))
    if reading.probabilities:
        labels = [(escape_and_isolate(name), share) for name, share in reading.probabilities[:MAX_LABELS]]
        console.print(make_share_table("label", "probability", labels, plain=plain))
        more = len(reading.probabilities) - MAX_LABELS
        if more > 0:
            console.print(f"… and {more:,} less probable labels.", style="dim")
    if not reading.layers:
        return
    console.print(make_share_table("\ntime", "\nshare", strongest_times(reading), plain=plain))
    console.print(
        f"Attention of all tokens, averaged, in the last layer, {len(reading.layers) - 1}, averaged over its heads. A "
        f"token has {reading.seconds_per_token * 1000:.0f} ms. Attention shows which times a model uses, not why it "
        "decides.\n",
        style="dim",
    )


def strongest_times(reading: SoundReading) -> list[tuple[str, float]]:
    """The times that get the largest shares of the attention in the last layer, the largest first."""
    received = np.abs(reading.layers[-1].weights()).mean(axis=(0, 1))
    order = np.argsort(-received, kind="stable")[:MAX_TIMES]
    return [(reading.name_of(int(token)), float(received[token])) for token in order]
