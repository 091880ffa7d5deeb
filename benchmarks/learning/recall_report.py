"""The table of the recall benchmark, and its section in docs/results.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.learning.recall_task import CHANCE
from benchmarks.plot_style import SCHEMES

RESULTS = Path(__file__).resolve().parent / "results" / "recall.json"
ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"

_TEXT = """\
## Recall by distance

How far back does a model find a token? A sequence holds pairs of a key and a value among noise. Each key comes a second
time, 2 to 255 tokens after its value, and the model has to answer with the value, one of 16: associative recall, with
every octave of distances (2-3, 4-7, ..) equally often. The nearest published task is multi-query associative recall
(Arora et al. 2024, "Zoology").

A GRU, a gated dilated convolution over 729 tokens, the [mechanisms](mechanisms.md#the-scan-family) with a state of
constant size, and dot-product attention with rotary positions are put into the same two blocks of width 64, with the
same number of weights (within 1 %), and are trained for the same number of steps on the same sequences with the same
learning rate. A short convolution before the first block joins each value to the key before it, for every model. One
command trains all models and draws the plot:

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_recall
```
"""
_ALT_TEXT = "Accuracy by distance, and over all distances against the time of training, one line per model"


def table(found: dict[str, Any]) -> str:
    """A table in Markdown: accuracy of each model in each octave of distances, its weights and processor time."""
    octaves = list(next(iter(found.values()))["octaves"])
    lines = ["| model | " + " | ".join(octaves) + " | weights | minutes |", "|---|" + "--:|" * (len(octaves) + 2)]
    for name, one in found.items():
        shares = " | ".join(f"{100 * one['octaves'][octave]:.1f} %" for octave in octaves)
        seconds = one["processor seconds"]
        minutes = "" if seconds is None else f"{seconds / 60:.1f}"
        lines.append(f"| {name} | {shares} | {one['weights']:,} | {minutes} |")
    chance = " | ".join([f"{100 * CHANCE:.1f} %"] * len(octaves))
    return "\n".join([*lines, f"| chance | {chance} | | |"])


def render_section(found: dict[str, Any]) -> Iterator[str]:
    """The lines of the section; without results, only what is measured and how."""
    yield _TEXT
    if not found:
        return
    for scheme in SCHEMES:
        yield f"![{_ALT_TEXT}](assets/recall-{scheme}.svg#only-{scheme})"
    first = next(iter(found.values()))
    machine, versions, options = first["machine"], first["versions"], first["options"]
    yield f"\n{table(found)}\n"
    yield (
        f"Accuracy by the distance between a value and its second key. {options['steps']:,} steps of "
        f"{options['batch']} sequences of {options['length']} tokens, one training for each row. *Minutes* are those "
        f"of one core, for the whole training, on {machine['processor']}.\n"
    )
    yield f"<small>regard {versions['regard']} ({versions['commit']}), torch {versions['torch']}.</small>\n"
