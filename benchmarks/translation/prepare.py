"""Data that must be split into training and test data first. Each function writes files into a folder."""

from __future__ import annotations

import gzip
import importlib.util
import random
from collections.abc import Callable
from pathlib import Path


def tatoeba(data: Path, folder: Path) -> None:
    """Split English-French pairs: the last 5,000 different English sentences of the file are held out."""
    with gzip.open(data / "tatoeba" / "eng-fra_2019-04-07.txt.gz", "rt", encoding="utf-8") as file:
        pairs = [tuple(line.rstrip("\n").split("\t")[:2]) for line in file]
    held = set(list(dict.fromkeys(source for source, _ in pairs))[-5000:])
    _write_pairs(folder / "train.tsv", [pair for pair in pairs if pair[0] not in held])
    first = {source: target for source, target in reversed(pairs) if source in held}
    _write_pairs(folder / "test.tsv", list(first.items()))


def jupyterlab(language: str) -> Callable[[Path, Path], None]:
    """Return a function that splits the catalogue of a language pack, with a tenth of its messages held out."""

    def prepare(data: Path, folder: Path) -> None:
        from regard.text.pairs import SkipCounts, read_pairs

        del data
        name = f"jupyterlab_language_pack_{language.replace('-', '_')}"
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"pip install --no-deps {name.replace('_', '-').lower()}")
        found = read_pairs([Path(next(iter(spec.submodule_search_locations)))])
        pairs = list(dict.fromkeys((pair.source, pair.target) for pair in SkipCounts().count(found)))
        sources = sorted({source for source, _ in pairs})
        held = set(random.Random(1).sample(sources, len(sources) // 10))
        _write_pairs(folder / "train.tsv", [pair for pair in pairs if pair[0] not in held])
        _write_pairs(folder / "test.tsv", [pair for pair in pairs if pair[0] in held])

    return prepare


PREPARE: dict[str, Callable[[Path, Path], None]] = {
    "tatoeba": tatoeba,
    "jupyterlab-fr": jupyterlab("fr-FR"),
    "jupyterlab-de": jupyterlab("de-DE"),
    "jupyterlab-zh": jupyterlab("zh-CN"),
}


def _write_pairs(path: Path, pairs: list[tuple[str, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
