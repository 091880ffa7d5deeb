"""The section on TinyShakespeare in docs/results.md: a table, and how it was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.formatting import threads

_FOLDER = Path(__file__).resolve().parent / "results"
RESULTS, SPEEDS = _FOLDER / "shakespeare.json", _FOLDER / "shakespeare_speed.json"
"""The files of published results: the losses, and the speed beside nanoGPT's loop of each processor."""
PUBLISHED = 1.88
"""The validation loss of nanoGPT's README for this configuration, with a peak learning rate of 1e-3."""

_TEXT = """\
## TinyShakespeare

A character model in nanoGPT's configuration for a CPU: blocks of 64 characters, 12 in a batch, 4 layers of 4 heads and
width 128, 2,000 steps, no dropout. The loss is that of all of the last tenth of the text; nanoGPT estimates it from
samples. nanoGPT has a learning rate of 1e-3, which these 2,000 steps leave far from the end.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_shakespeare --data tinyshakespeare.txt.gz --publish
python -m benchmarks.learning.time_shakespeare --data tinyshakespeare.txt.gz --nanogpt nanoGPT/
```
"""


def table(found: dict[str, Any]) -> str:
    """A table in Markdown: the loss of each learning rate, the best first."""
    lines = ["| learning rate | validation loss | minutes | tokens per second |", "|---|--:|--:|--:|"]
    for name, one in sorted(found.items(), key=lambda item: float(item[1]["validation loss"])):
        shown = f"{one['validation loss']:.3f} | {one['seconds'] / 60:.1f} | {one['tokens per second']:,}"
        lines.append(f"| {name} | {shown} |")
    return "\n".join([*lines, f"| published, 1e-3 | {PUBLISHED} | | |"])


_SPEED_TEXT = """\
Tokens per second beside nanoGPT's own training loop, which on a CPU is in float32 and not compiled, in turns: each rate
is a median of means over ten steps. `regard train lm` takes bfloat16 where the processor multiplies it faster.
"""


def speed_table(found: dict[str, Any]) -> str:
    """A table in Markdown: tokens per second of our loop and of nanoGPT's, for each processor."""
    lines = ["| processor | precision | tokens per second | nanoGPT | ratio |", "|---|---|--:|--:|--:|"]
    for processor, one in sorted(found.items()):
        rates = one["tokens per second"]
        for precision in dict.fromkeys((one["chosen"], "float32")):
            chosen = f"{precision}, the default here" if precision == one["chosen"] else precision
            rate = rates[f"regard, {precision}"]
            ratio = rate / rates["nanoGPT"]
            lines.append(f"| {processor} | {chosen} | {rate:,} | {rates['nanoGPT']:,} | {ratio:.2f} |")
    return "\n".join(lines)


def render_section(found: dict[str, Any], speeds: dict[str, Any]) -> Iterator[str]:
    """The lines of the section; without results, only what is measured and how."""
    yield _TEXT
    if found:
        yield from _render_losses(found)
    if speeds:
        yield f"{_SPEED_TEXT}\n{speed_table(speeds)}\n"


def _render_losses(found: dict[str, Any]) -> Iterator[str]:
    yield f"{table(found)}\n"
    first = next(iter(found.values()))
    machine, versions = first["machine"], first["versions"]
    yield (
        f"Measured on {threads(machine)} of {machine['processor']}.\n\n"
        f"<small>regard {versions['regard']} ({versions['commit']}), torch {versions['torch']}.</small>\n"
    )
