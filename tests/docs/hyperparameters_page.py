"""The page of all hyperparameters: one table a config, from the declarations of its fields; ``make docs`` writes it."""

from __future__ import annotations

import regard.models
from docs.pages import ROOT
from regard.fields import format_table

PAGE = ROOT / "docs" / "hyperparameters.md"
_HEAD = """# Hyperparameters

Every field of the config of every model: its default, its name in the `config.json` of published models, and what it
is. A config without such names is that of a model that only regard reads; its `config.json` has the fields themselves.
Each field is declared once, in the class of the config: from the declaration follow the check, reading and writing of
`config.json`, the docstring and this page, which `make docs` writes.

`BertConfig(...)` takes the fields by name, and `regard train` by `--set NAME=VALUE`.
"""


def make_page() -> str:
    """The text of the page."""
    names = [name for name in regard.models.__all__ if name.endswith("Config")]
    tables = [f"## `{name}`\n\n{format_table(getattr(regard.models, name))}\n" for name in sorted(names)]
    return "\n".join([_HEAD, *tables])


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
