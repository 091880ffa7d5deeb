"""The sections on WikiText-2 and on pre-training in docs/results.md: a table each, and how they were measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

A BERT of 4 layers of width 128 first learns to fill in masked tokens of text without labels, `regard train mlm`, and
then to classify, `regard train classify --from`. It is compared with the same model with random weights: same
tokenizer, data, epochs and learning rates, of which each model takes the one with the best accuracy on the validation
texts. The texts without labels are the validation and test set of WikiText-2, and the sentences of the training set of
SST-2.

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
    """A table in Markdown: accuracy of each classifier, with the time of its own training and of its encoder's."""
    lines = [
        "| model | test accuracy | validation accuracy | rate | minutes | minutes before |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, one in found.items():
        before = f"{one['encoder']['seconds'] / 60:.1f}" if "encoder" in one else ""
        accuracies = f"{100 * one['accuracy']:.1f} % | {100 * one['validation accuracy']:.1f} %"
        rate = one["run"].rpartition(", ")[2]
        lines.append(f"| {name} | {accuracies} | {rate} | {one['seconds'] / 60:.1f} | {before} |")
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
