"""Texts under several mechanisms for ``regard view``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from regard.cli.completion import complete_mechanism
from regard.cli.loaded_model import ModelLoading
from regard.cli.progress import track
from regard.cli.shared_options import option
from regard.errors import OptionError

if TYPE_CHECKING:
    from regard.chinese_words import ChineseWords
    from regard.comparison import MechanismChoice
    from regard.models.model_folder import ModelFolder
    from regard.text.line import Line
    from regard.view.side_by_side import SideBySide

Mechanisms = Annotated[
    list[str] | None,
    option(
        "--mechanism",
        "Show the same heads under these mechanisms, next to exact attention; options as NAME:OPTION=VALUE, "
        "such as longformer:window=8,performer. Repeat for more.",
        metavar="NAME,NAME",
        autocompletion=complete_mechanism,
    ),
]


def parse_mechanisms(texts: list[str] | None, *, is_of_pairs: bool) -> list[MechanismChoice]:
    """The mechanisms of ``--mechanism``. Raises OptionError for one beside sentences for a translator."""
    from regard.comparison import parse_choices

    choices = parse_choices(",".join(texts)) if texts else []
    if choices and is_of_pairs:
        raise OptionError(
            "--mechanism cannot be used with --source",
            expected="texts for an encoder such as BERT",
            got="both",
            do="leave out --source",
        )
    return choices


def read_texts_side_by_side(
    model: str | ModelFolder,
    lines: list[Line],
    choices: Sequence[MechanismChoice],
    *,
    truncate: bool,
    chinese_words: ChineseWords | None,
    loading: ModelLoading,
) -> list[SideBySide]:
    """Read each text with exact attention and under every mechanism. Raises OptionError for other models."""
    from regard.models.load import find_class, has_class, load
    from regard.models.model_folder import ModelFolder
    from regard.view.read_side_by_side import read_side_by_side
    from regard.view.word_grouping import group_chinese_words

    folder = ModelFolder.open(model)
    if not has_class(folder):
        raise OptionError(
            f"{model} cannot be shown under other mechanisms: transformers computes it",
            expected="a model that regard has, such as minilm, a BERT, a RoBERTa, a GPT-2 or a Llama",
            got=f"model_type {folder.model_type!r}",
            do="leave out --mechanism",
        )
    if find_class(folder).kind.pairs:
        raise OptionError(
            f"{model} is a translator, which cannot be shown under other mechanisms",
            expected="a text encoder, such as minilm",
            got=f"a {find_class(folder).__name__}",
            do=f'leave out --mechanism: regard view {model} --source "..."',
        )
    loaded = load(folder, weights=loading.weights, device=loading.device)
    with track(lines, "texts") as tracked:
        sides = (read_side_by_side(loaded, line.text, choices, truncate=truncate, name=line.name) for line in tracked)
        return [group_chinese_words(side, chinese_words) for side in sides]
