"""``python -m benchmarks.translation.report``: write docs/results.md from the results; --check only compares."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import atomic_write
from benchmarks.learning import results as learning_results
from benchmarks.learning import time_shakespeare, train_shakespeare
from benchmarks.translation import results
from benchmarks.translation.config import NAMES, Config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"

_EXPERIMENTS = (
    "recall", "listops", "listops_on_gpu", "sst2", "pictures", "distillation", "digits", "keywords", "tones",
    "gato_tasks", "duplication", "wikitext", "pretraining",
)  # fmt: skip
_DECODER_LABELS = {"regard": "regard", "transformers": "transformers, generate", "ctranslate2": "CTranslate2"}
_MIN_WORDS = 4
"""Minimum source words for the table by length: BLEU counts 4-grams."""
_INTRODUCTION = """\
<!-- Written by `python -m benchmarks.translation.report` from benchmarks/translation/results. Do not edit. -->

# Results of training

What models of this project learn: translation first, then with each mechanism
[recall by distance](#recall-by-distance), [ListOps](#listops) and the
[sentiment of sentences](#sentiment-of-sentences); image models on [Fashion-MNIST](#fashion-mnist) and
[5,000 digits](#5000-digits), audio models on [spoken keywords](#spoken-keywords) and [sounds](#sounds); Reformer's
[duplication](#duplication); and then language models on [WikiText-2](#wikitext-2) and
[TinyShakespeare](#tinyshakespeare), and what [pre-training](#pre-training) is worth.

## Translation quality

Each result is one command: the config in `benchmarks/translation/configs` has the data, the options of
`regard train translate`, and the published score. The data is not part of this repository.

```console
pip install -e '.[train,bench]'
python -m benchmarks.translation multi30k-de-en --data data/
```

- *Tokenized* scores use Moses tokenization, as the papers did; sacreBLEU with its signature is the score to compare
  with others.
- Minutes count training up to the saved weights, including validation; the options give the limit.
"""


@dataclass(frozen=True)
class Result:
    """A config with its target, and its measured result."""

    config: Config
    measured: dict[str, Any]

    @property
    def search(self) -> str:
        """The search whose score is compared with the target."""
        return self.config.metric.partition(", ")[0]

    @property
    def score(self) -> dict[str, Any]:
        """All scores of that search."""
        found: dict[str, Any] = self.measured["scores"][self.search]
        return found

    @property
    def compared_score(self) -> float:
        """The score that is compared with the target."""
        found: float = self.score[self.config.metric.partition(", ")[2]]
        return found

    @property
    def mark(self) -> str:
        """Mark for a reached or missed target score; empty without one."""
        if self.config.target_score is None:
            return ""
        return "✓" if self.compared_score >= self.config.target_score else "✗"


def read_all() -> list[Result]:
    """Read all results, in the order of their configs' names."""
    found = ((Config.read(name), results.read(name)) for name in NAMES)
    return [Result(config, measured) for config, measured in found if measured is not None]


def render_page(found: list[Result]) -> str:
    """Render the whole page in Markdown."""
    parts = [_INTRODUCTION, *_render_overview(found), *_render_lengths(found)]
    parts += [line for result in found for line in _render_result(result)]
    for name in _EXPERIMENTS:
        report = import_module(f"benchmarks.learning.train_{name}").REPORT
        parts += report.render(learning_results.read(report.path))
    files = (train_shakespeare.REPORT.path, time_shakespeare.SPEEDS)
    parts += time_shakespeare.render_section(*map(learning_results.read, files))
    return "\n".join(parts)


def _render_overview(found: list[Result]) -> Iterator[str]:
    yield "| result | minutes | memory, GB | metric | score | target | published | sacreBLEU |"
    yield "|---|--:|--:|---|--:|--:|---|--:|"
    for result in found:
        target = "" if result.config.target_score is None else f"≥ {result.config.target_score:.1f} {result.mark}"
        yield (
            f"| {_format_link(result)} | {result.measured['trained']['minutes']:.0f} | {_format_memory(result)} "
            f"| {result.config.metric} | {result.compared_score:.2f} | {target} | {result.config.published} "
            f"| {result.score['sacrebleu']:.2f} |"
        )
    yield ""


def _render_lengths(found: list[Result]) -> Iterator[str]:
    yield "## BLEU by source length\n"
    yield (
        "sacreBLEU of each quarter of the test sentences, with the number of source words in brackets. Without "
        "attention, a model is worse on longer sentences. BLEU is meaningless for texts of fewer than 4 words.\n"
    )
    yield "| result | shortest | | | longest |"
    yield "|---|--:|--:|--:|--:|"
    for result in found:
        quarters = result.measured["by length"][result.search]
        if quarters[0]["words"][0] < _MIN_WORDS:
            continue
        cells = (f"{one['sacrebleu']:.1f} ({one['words'][0]}–{one['words'][1]})" for one in quarters)
        yield f"| {_format_link(result)} | {' | '.join(cells)} |"
    yield ""


def _format_link(result: Result) -> str:
    return f"[{result.config.title}](#{_heading_to_anchor(result.config.title)})"


def _format_memory(result: Result) -> str:
    target = result.config.max_memory
    memory: float = result.measured["memory GB"]
    if target is None:
        return f"{memory:.2f}"
    return f"{memory:.2f} (≤ {target:.0f}) {'✓' if memory <= target else '✗'}"


def _heading_to_anchor(title: str) -> str:
    """Convert a heading to the anchor that mkdocs generates."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def _render_result(result: Result) -> Iterator[str]:
    config, measured = result.config, result.measured
    trained, training = measured["trained"], measured["training"]
    yield f"## {config.title}\n"
    yield (
        f"`{config.name}`: {measured['weights'] / 1e6:.1f} million weights, {measured['pairs']:,} pairs, "
        f"{trained['minutes']} minutes on {measured['machine']['threads']} threads of "
        f"{measured['machine']['processor']}, {training['tokens a second']:,} tokens per second, "
        f"{_format_memory(result)} GB. "
        f"Options: `{measured['options']}`.\n"
    )
    yield "| search | sacreBLEU | chrF | tokenized | tokenized, lower case |"
    yield "|---|--:|--:|--:|--:|"
    for search, one in measured["scores"].items():
        columns = [one[column] for column in ("sacrebleu", "chrf", "tokenized", "tokenized, lower case")]
        yield f"| {search} | " + " | ".join(f"{value:.2f}" for value in columns) + " |"
    yield f"\nPublished: {config.published}. {_format_target(result)}"
    signature = next(iter(measured["scores"].values()))["signature"]
    yield f"Signature: `{signature}`.\n"
    if config.note:
        yield f"{config.note}\n"
    yield "| source | translation |\n|---|---|"
    yield from (f"| {_escape_cell(source)} | {_escape_cell(target)} |" for source, target in measured["examples"])
    if "decoding" in measured:
        yield from _render_decoding(measured["decoding"])
    versions = measured["versions"]
    yield f"\n<small>regard {versions['regard']} ({versions['commit']}), torch {versions['torch']}.</small>\n"


def _render_decoding(decoding: dict[str, Any]) -> Iterator[str]:
    contestants = decoding["contestants"]
    ours = contestants["regard"]["seconds"]
    yield (
        f"\nDecoding of the first {decoding['sentences']} sentences with a beam of {decoding['beam']}, in batches of "
        f"{decoding['batch']}, in float32, timed in turns:\n"
    )
    yield "| | seconds | tokens per second | time relative to regard | sacreBLEU |\n|---|--:|--:|--:|--:|"
    for name, one in contestants.items():
        half = (one["high"] - one["low"]) / 2
        yield (
            f"| {_DECODER_LABELS[name]} | {one['seconds']:.2f} ± {half:.2f} | {one['tokens a second']:,} "
            f"| {one['seconds'] / ours:.2f} | {one['sacrebleu']:.2f} |"
        )


def _format_target(result: Result) -> str:
    if result.config.target_score is None:
        return ""
    return f"{result.mark} {result.compared_score:.2f} {result.config.metric} (≥ {result.config.target_score})."


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write or check the page, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translation.report", description="Write docs/results.md from the results."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is not up to date")
    asked = parser.parse_args()
    text = render_page(read_all())
    if asked.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    atomic_write.write(PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
