"""The table of distillation, and its section in docs/results.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.formatting import threads
from benchmarks.learning import results

RESULTS = Path(__file__).resolve().parent / "results" / "distillation.json"

_TEXT = """\
## Distillation

Students of 6 layers of width 96 on Fashion-MNIST: a ViT that learns from the labels alone, and a [DeiT](images.md)
whose distillation token learns from the answers of a teacher beside them, by equation 3 of Touvron et al. 2021 (hard
distillation). The teacher is a CCT. As in the paper all students take the same steps; those of the DeiT take longer,
by the time of the teacher's answers.

```console
pip install -e '.[train,vision,bench]'
python -m benchmarks.learning.train_distillation --publish
```
"""


def table(found: dict[str, Any]) -> str:
    """A table in Markdown: the accuracy of each kind of student, the mean over its seeds and their range."""
    lines = ["| model | accuracy | lowest and highest | trainings | steps | minutes |", "|---|--:|--:|--:|--:|--:|"]
    for name, members in results.group_seeds(found).items():
        accuracies = [100 * one["accuracy"] for one in members]
        spread = f"{min(accuracies):.1f} to {max(accuracies):.1f} %" if len(members) > 1 else ""
        steps = statistics.mean(one["steps"] for one in members)
        minutes = statistics.mean(one["seconds"] for one in members) / 60
        mean = f"{statistics.mean(accuracies):.1f} %"
        lines.append(f"| {name} | {mean} | {spread} | {len(members)} | {steps:,.0f} | {minutes:.0f} |")
    return "\n".join(lines)


def render_section(found: dict[str, Any]) -> Iterator[str]:
    """The lines of the section; without results, only what is measured and how."""
    yield _TEXT
    if not found:
        return
    yield f"{table(found)}\n"
    *_, student = found.values()
    machine, versions = student["machine"], student["versions"]
    yield (
        f"Accuracy on the 10,000 test pictures; the standard error of one training's is 0.3 percentage points. On "
        f"{threads(machine)} of {machine['processor']}. Published, on ImageNet: DeiT-Ti 72.2 % without a "
        f"teacher and 74.5 % with its distillation token (Touvron et al. 2021, table 5).\n"
    )
    yield f"<small>regard {versions['regard']} ({versions['commit']}), torch {versions['torch']}.</small>\n"
