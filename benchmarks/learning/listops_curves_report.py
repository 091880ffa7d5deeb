"""The table of ListOps on a GPU, and its section in docs/results.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "listops_gpu.json"
_LEFT = 0.3
"""Accuracy of a model that has left the plateau of its first steps, where it answers with frequent labels."""

_TEXT = """\
### ListOps: the others, and what keeps a model on the plateau

The same model and data for the mechanisms that the table lacks, and for `linear` and `reformer`, which stay there on
the plateau where a model answers with the most frequent labels, with one setting changed at a time: the learning rate,
the kind of positions, what the classifier reads (the first token and not the mean over all), the chunk of Reformer. All
of them train at once on one GPU for seven minutes, in plain torch, so the budget is cut: the steps are those that each
reached, of 5,000. The accuracy is the best one on the 2,000 validation texts, measured every 500 steps; *leaves the
plateau* is the step of the first one above 30 %.

```console
python -m benchmarks.learning.train_listops_on_gpu --data listops/ --publish
```
"""
_READING = """\
A model leaves the plateau when it finds the operator at the beginning among a thousand tokens. Linear attention does
with a fourfold learning rate, and neither with learned positions nor with the first token; Reformer does if the
classifier reads the first token. `local_p` attends to a window around a position that it predicts, and does not find
the beginning. Xiong et al. 2021, "Nystromformer", measure 19.1 % for Reformer and 18.8 % for Performer, and
37.2 % for Nystromformer. On this task a number near 18 % says that a training did not start, and not what a mechanism
can represent.
"""


def table(found: dict[str, Any]) -> str:
    """A table in Markdown, the best accuracy first."""
    lines = ["| mechanism | accuracy | leaves the plateau | steps |", "|---|--:|--:|--:|"]
    for name, one in sorted(found.items(), key=lambda item: -_best(item[1])):
        left = next((f"{at['step']:,}" for at in one["validations"] if at["accuracy"] > _LEFT), "")
        accuracy = f"{100 * _best(one):.1f} %" if one["validations"] else ""
        lines.append(f"| {name} | {accuracy} | {left} | {one['steps']:,} |")
    return "\n".join(lines)


def render_section(found: dict[str, Any]) -> Iterator[str]:
    """The lines of the section; without results, only what is measured and how."""
    yield _TEXT
    if not found:
        return
    yield f"{table(found)}\n"
    yield _READING
    first = next(iter(found.values()))
    machine, versions = first["machine"], first["versions"]
    built = f"regard {versions['regard']} ({versions['commit']}), torch {versions['torch']}"
    yield f"<small>{machine.get('GPU') or machine['processor']}, {built}.</small>\n"


def _best(one: dict[str, Any]) -> float:
    return max((at["accuracy"] for at in one["validations"]), default=0.0)
