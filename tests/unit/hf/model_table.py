"""The tables of docs/transformers.md: what the suite proves for each model type.

PYTHONPATH=tests python -m unit.hf.model_table     writes them into the page
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from unit.hf import mixer_types, model_types
from unit.hf.model_types import ModelType

PAGE = Path(__file__).parents[3] / "docs" / "transformers.md"
COLUMNS = {
    "training": "forward, backward",
    "padding": "padding",
    "generation": "generation, left padding",
    "static cache": "static cache",
    "weights": "weights",
    "parts": "prompts in parts",
}
NAMES = {
    "decoder": "decoder",
    "mixer": "decoder",
    "encoder": "encoder",
    "seq2seq": "encoder-decoder",
    "speech": "speech to text",
    "image": "images",
    "audio": "audio",
    "pair": "images and texts",
}


@final
@dataclass(frozen=True)
class ModelTable:
    """A table of the page, between two comments."""

    title: str
    types: Sequence[ModelType]
    claims: Mapping[str, Callable[[ModelType], bool]]

    def render(self) -> str:
        """The table in Markdown, a row for each model type."""
        rows = [["type", "kind", *(COLUMNS[claim] for claim in self.claims)], ["---"] * (2 + len(self.claims))]
        rows += [
            [f"`{kind.name}`", NAMES[kind.family], *("yes" if claim(kind) else "-" for claim in self.claims.values())]
            for kind in self.types
        ]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def read_page(self) -> tuple[str, str, str]:
        """The page before the table, the table, and the page after it."""
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"<!-- table of {self.title} -->")
        table, _, after = rest.partition("<!-- end of table -->")
        return before, table.strip(), after

    def write(self) -> None:
        """Write the table into the page."""
        before, _, after = self.read_page()
        start, end = f"<!-- table of {self.title} -->", "<!-- end of table -->"
        PAGE.write_text(f"{before}{start}\n{self.render()}\n{end}{after}", encoding="utf-8")


TABLES = (
    ModelTable("model types", model_types.MODEL_TYPES, model_types.CLAIMS),
    ModelTable("linear mixers", mixer_types.MIXER_TYPES, mixer_types.CLAIMS),
)

if __name__ == "__main__":
    for one in TABLES:
        one.write()
