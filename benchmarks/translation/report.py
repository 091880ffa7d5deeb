"""``python -m benchmarks.translation.report``: from the results to docs/results.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.translation import results
from benchmarks.translation.config import NAMES

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"

_NAMES = {"regard": "regard", "transformers": "transformers, generate", "ctranslate2": "CTranslate2"}
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
- Minutes are those of training, validation included.
"""


def main() -> None:
    """Write the page."""
    found = [(name, result) for name in NAMES if (result := results.read(name)) is not None]
    parts = [_INTRODUCTION, *(line for name, result in found for line in _result(name, result))]
    _PAGE.write_text("\n".join(parts), encoding="utf-8")


def _result(name: str, result: dict[str, Any]) -> Iterator[str]:
    trained, training = result["trained"], result["training"]
    yield f"## {result['title']}\n"
    yield (
        f"`{name}`: {result['weights'] / 1e6:.1f} million weights, {result['pairs']:,} pairs, {trained['minutes']} "
        f"minutes on {result['machine']['threads']} threads of {result['machine']['processor']}, "
        f"{training['tokens a second']:,} tokens a second, {result['memory GB']} GB. Options: `{result['options']}`.\n"
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
    search, kind = result["metric"].split(", ", 1)
    reached = result["scores"][search][kind]
    mark = "✓" if reached >= result["promise"] else "✗"
    return f"{mark} {reached:.2f} {result['metric']} (≥ {result['promise']})."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
