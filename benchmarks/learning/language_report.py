"""The sections on WikiText-2 and on pre-training in docs/results.md: a table each, and how they were measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.learning import results

_FOLDER = Path(__file__).resolve().parent / "results"
WIKITEXT, PRETRAINING = _FOLDER / "wikitext.json", _FOLDER / "pretraining.json"
"""The files of published results."""

_WIKITEXT_TEXT = """\
## WikiText-2

A small language model with subwords, 4 layers of width 192, trained on the validation set of WikiText-2 (Merity et al.
2016) and measured on its test set. The training set of the published models is ten times as large, so perplexities per
word cannot be compared with theirs. A word is what white space separates, and the end of a line is one more.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_wikitext --data data/ --publish
```
"""
_PRETRAINING_TEXT = """\
## Pre-training

A ModernBERT of 4 layers of width 128 first learns to fill in masked tokens of text without labels, `regard train mlm`,
and then to classify, `regard train classify --from`. It is compared with the same model with random weights: same
tokenizer, data, epochs and learning rates, of which each model takes the one with the best mean accuracy on the
validation texts. Accuracies are means over three seeds, of classifiers that start from one encoder. The texts without
labels are the validation and test set of WikiText-2, and the sentences of the training set of SST-2.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_pretraining --data data/ --publish
```
"""


def wikitext_table(found: dict[str, Any]) -> str:
    """A table in Markdown: perplexities and bits per byte of each model, the best first."""
    lines = ["| model | perplexity of a token | perplexity of a word | bits per byte | steps | minutes | memory GB |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for name, one in sorted(found.items(), key=lambda item: float(item[1]["bits_per_byte"])):
        shown = f"{one['perplexity']:.1f} | {one['perplexity per word']:.1f} | {one['bits_per_byte']:.3f}"
        lines.append(f"| {name} | {shown} | {one['steps']:,} | {one['seconds'] / 60:.1f} | {one['memory GB']:.2f} |")
    return "\n".join(lines)


def pretraining_table(found: dict[str, Any]) -> str:
    """A table in Markdown: accuracy of each classifier over its seeds, its time and that of its encoder."""
    lines = [
        "| model | test accuracy | lowest and highest | validation accuracy | rate | minutes | minutes before |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, members in results.group_seeds(found).items():
        accuracies = [100 * one["accuracy"] for one in members]
        validation = 100 * statistics.mean(one["training"]["validation"]["accuracy"] for one in members)
        minutes = statistics.mean(one["seconds"] for one in members) / 60
        before = f"{members[0]['encoder']['seconds'] / 60:.1f}" if "encoder" in members[0] else ""
        shown = f"{statistics.mean(accuracies):.1f} % | {min(accuracies):.1f} to {max(accuracies):.1f} %"
        shown += f" | {validation:.1f} % | {members[0]['rate']}"
        lines.append(f"| {name} | {shown} | {minutes:.1f} | {before} |")
    return "\n".join(lines)


def render_sections(wikitext: dict[str, Any], pretraining: dict[str, Any]) -> Iterator[str]:
    """The lines of both sections; without results, only what is measured and how."""
    yield _WIKITEXT_TEXT
    if wikitext:
        yield f"{wikitext_table(wikitext)}\n"
        yield _describe_machine(wikitext)
    yield _PRETRAINING_TEXT
    if pretraining:
        yield f"{pretraining_table(pretraining)}\n"
        yield _describe_machine(pretraining)


def _describe_machine(found: dict[str, Any]) -> str:
    first = next(iter(found.values()))
    machine, versions = first["machine"], first["versions"]
    threads = f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
    return (
        f"On {threads} of {machine['processor']}.\n\n"
        f"<small>regard {versions['regard']} ({versions['commit']}), torch {versions['torch']}.</small>\n"
    )
