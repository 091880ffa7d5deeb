"""The table of docs/transformers.md: what the suite proves for each model type.

PYTHONPATH=tests python -m unit.hf.model_table     writes it into the page
"""

from __future__ import annotations

from pathlib import Path

from unit.hf.model_types import CLAIMS, MODEL_TYPES

PAGE = Path(__file__).parents[3] / "docs" / "transformers.md"
START, END = "<!-- table of model types -->", "<!-- end of table -->"
COLUMNS = {
    "training": "forward, backward",
    "padding": "padding",
    "generation": "generation, left padding",
    "static cache": "static cache",
    "weights": "weights",
}
NAMES = {
    "decoder": "decoder",
    "encoder": "encoder",
    "seq2seq": "encoder-decoder",
    "speech": "speech to text",
    "image": "images",
    "audio": "audio",
    "pair": "images and texts",
}


def render() -> str:
    """The table in Markdown, a row for each model type."""
    rows = [["type", "kind", *(COLUMNS[claim] for claim in CLAIMS)], ["---"] * (2 + len(CLAIMS))]
    rows += [
        [f"`{kind.name}`", NAMES[kind.family], *("yes" if claim(kind) else "-" for claim in CLAIMS.values())]
        for kind in MODEL_TYPES
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def read_page() -> tuple[str, str, str]:
    """The page before the table, the table, and the page after it."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    table, _, after = rest.partition(END)
    return before, table.strip(), after


if __name__ == "__main__":
    before, _, after = read_page()
    PAGE.write_text(f"{before}{START}\n{render()}\n{END}{after}", encoding="utf-8")
