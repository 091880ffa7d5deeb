"""``python -m benchmarks.translation.report``: from the results to docs/results.md; --check only compares."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import files
from benchmarks.translation import results
from benchmarks.translation.config import NAMES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"

_NAMES = {"regard": "regard", "transformers": "transformers, generate", "ctranslate2": "CTranslate2"}
_SHORTEST = 4
"""Words: BLEU counts runs of four."""
_INTRODUCTION = """\
<!-- Written by `python -m benchmarks.translation.report` from benchmarks/translation/results. Do not edit. -->

# How good are the translators?

Each result is one command: the config in `benchmarks/translation/configs` has the data, the options of
`regard train translate`, and what was published. The data is not part of this repository.

```console
pip install -e '.[train,bench]'
python -m benchmarks.translation multi30k-de-en --data data/
```

- *Tokenized* scores cut texts into tokens by the rules of Moses, as the papers did; beside them stands sacreBLEU with
  its signature, which is the number to compare with others.
- Minutes are those of training up to the weights that were kept, validation included; the options say how many there
  were to be.
"""


def read_all() -> dict[str, dict[str, Any]]:
    """All results, by the names of their configs."""
    found = ((name, results.read(name)) for name in NAMES)
    return {name: result for name, result in found if result is not None}


def page(found: dict[str, dict[str, Any]]) -> str:
    """The whole page."""
    parts = [_INTRODUCTION, *_overview(found), *_lengths(found)]
    parts += [line for name, result in found.items() for line in _result(name, result)]
    return "\n".join(parts)


def _overview(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield "| result | minutes | memory, GB | metric | reached | promised | published | sacreBLEU |"
    yield "|---|--:|--:|---|--:|--:|---|--:|"
    for result in found.values():
        score = result["scores"][_metric(result)[0]]
        promise = "" if result["promise"] is None else f"{result['promise']:.1f} {_mark(result)}"
        yield (
            f"| {_linked(result)} | {result['trained']['minutes']:.0f} | {_memory(result)} | {result['metric']} "
            f"| {_reached(result):.2f} | {promise} | {result['published']} | {score['sacrebleu']:.2f} |"
        )
    yield ""


def _lengths(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield "## By the length of the source\n"
    yield (
        "sacreBLEU of each quarter of the test sentences, in brackets how many words their sources have: a model "
        "without attention falls behind as sentences grow. BLEU says nothing of texts of fewer than 4 words.\n"
    )
    yield "| result | shortest | | | longest |"
    yield "|---|--:|--:|--:|--:|"
    for result in found.values():
        quarters = result["by length"][_metric(result)[0]]
        if quarters[0]["words"][0] < _SHORTEST:
            continue
        cells = (f"{one['sacrebleu']:.1f} ({one['words'][0]}–{one['words'][1]})" for one in quarters)
        yield f"| {_linked(result)} | {' | '.join(cells)} |"
    yield ""


def _linked(result: dict[str, Any]) -> str:
    return f"[{result['title']}](#{_anchor(result['title'])})"


def _memory(result: dict[str, Any]) -> str:
    most = result["most memory GB"]
    reached: float = result["memory GB"]
    if most is None:
        return f"{reached:.2f}"
    return f"{reached:.2f} (≤ {most:.0f}) {'✓' if reached <= most else '✗'}"


def _anchor(title: str) -> str:
    """What mkdocs makes of a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def _result(name: str, result: dict[str, Any]) -> Iterator[str]:
    trained, training = result["trained"], result["training"]
    yield f"## {result['title']}\n"
    yield (
        f"`{name}`: {result['weights'] / 1e6:.1f} million weights, {result['pairs']:,} pairs, {trained['minutes']} "
        f"minutes on {result['machine']['threads']} threads of {result['machine']['processor']}, "
        f"{training['tokens a second']:,} tokens a second, {_memory(result)} GB. Options: `{result['options']}`.\n"
    )
    yield "| search | sacreBLEU | chrF | tokenized | tokenized, lower case |"
    yield "|---|--:|--:|--:|--:|"
    for search, one in result["scores"].items():
        columns = [one[column] for column in ("sacrebleu", "chrf", "tokenized", "tokenized, lower case")]
        yield f"| {search} | " + " | ".join(f"{value:.2f}" for value in columns) + " |"
    yield f"\nPublished: {result['published']}. {_promised(result)}"
    signature = next(iter(result["scores"].values()))["signature"]
    yield f"Signature: `{signature}`.\n"
    yield "| source | translation |\n|---|---|"
    yield from (f"| {_cell(source)} | {_cell(target)} |" for source, target in result["examples"])
    if "decoding" in result:
        yield from _decoding(result["decoding"])
    versions = result["versions"]
    yield f"\n<small>regard {versions['regard']} ({versions['commit']}), torch {versions['torch']}.</small>\n"


def _decoding(decoding: dict[str, Any]) -> Iterator[str]:
    contestants = decoding["contestants"]
    ours = contestants["regard"]["seconds"]
    yield (
        f"\nThe first {decoding['sentences']} sentences by a beam of {decoding['beam']}, "
        f"{decoding['batch']} at a time, in float32, in turns:\n"
    )
    yield "| | seconds | tokens a second | time beside regard's | sacreBLEU |\n|---|--:|--:|--:|--:|"
    for name, one in contestants.items():
        half = (one["high"] - one["low"]) / 2
        yield (
            f"| {_NAMES[name]} | {one['seconds']:.2f} ± {half:.2f} | {one['tokens a second']:,} "
            f"| {one['seconds'] / ours:.2f} | {one['sacrebleu']:.2f} |"
        )


def _promised(result: dict[str, Any]) -> str:
    if result["promise"] is None:
        return ""
    return f"{_mark(result)} {_reached(result):.2f} {result['metric']} (≥ {result['promise']})."


def _mark(result: dict[str, Any]) -> str:
    return "✓" if _reached(result) >= result["promise"] else "✗"


def _reached(result: dict[str, Any]) -> float:
    search, kind = _metric(result)
    score: float = result["scores"][search][kind]
    return score


def _metric(result: dict[str, Any]) -> tuple[str, str]:
    """How the translations were found, and which score of them counts."""
    search, _, kind = result["metric"].partition(", ")
    return search, kind


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translation.report", description="Write docs/results.md from the results."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; leave with 1 unless it is up to date")
    asked = parser.parse_args()
    text = page(read_all())
    if asked.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    files.write(PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
