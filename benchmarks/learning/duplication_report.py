"""The table of Reformer's duplication task, and its section in docs/results.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "duplication.json"
PUBLISHED = {8: 1.0, 4: 0.999, 2: 0.994, 1: 0.919}
"""Accuracy by rounds of evaluation, Kitaev et al. 2020, table 2."""

_TEXT = """\
## Duplication

A sequence has the form 0 w 0 w, where w is a string of random symbols from 1 to 127. The model predicts the second w,
whose next symbol is the one that stands half of the sequence before (Kitaev et al. 2020, section 2.1). One layer of
[Reformer](mechanisms.md#reformer) is trained with 4 hash rounds, with as many buckets as make 32 tokens in each on
average. It is evaluated with other numbers of rounds too, without further training: with more rounds, the query and
the symbol to copy share a bucket more often. The published model uses chunks of sorted tokens, this one exact attention
inside buckets.

```console
pip install -e '.[bench]'
python -m benchmarks.learning.train_duplication --length 1024 --minutes 8 --publish
python -m benchmarks.learning.train_duplication --length 4096 --batch 4 --minutes 20 --publish
```
"""


def table(found: dict[str, Any]) -> str:
    """A table in Markdown: accuracy by rounds of evaluation, one line for each trained model."""
    rounds = list(next(iter(found.values()))["accuracy"])
    lines = [
        "| trained on | "
        + " | ".join(f"{one} round{'s' if int(one) > 1 else ''}" for one in rounds)
        + " | steps | batch | minutes |"
    ]
    lines.append("|---|" + "--:|" * (len(rounds) + 3))
    for name, one in found.items():
        shares = " | ".join(f"{100 * one['accuracy'].get(number, float('nan')):.1f} %" for number in rounds)
        lines.append(f"| {name} | {shares} | {one['steps']:,} | {one['batch']} | {one['minutes']:.0f} |")
    published = (f"{100 * PUBLISHED[int(one)]:.1f} %" if int(one) in PUBLISHED else "" for one in rounds)
    return "\n".join([*lines, f"| published, 1,024 symbols | {' | '.join(published)} | 150,000 | | |"])


def render_section(found: dict[str, Any]) -> Iterator[str]:
    """The lines of the section; without results, only what is measured and how."""
    yield _TEXT
    if not found:
        return
    yield f"{table(found)}\n"
    first = next(iter(found.values()))
    machine, versions = first["machine"], first["versions"]
    yield (
        f"Part of the symbols of the second w that are predicted. Trained with 4 rounds, on {machine['threads']} "
        f"threads of {machine['processor']}. Published: Kitaev et al. 2020, table 2.\n"
    )
    yield f"<small>regard {versions['regard']} ({versions['commit']}), torch {versions['torch']}.</small>\n"
