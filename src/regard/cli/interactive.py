"""A conversation on a terminal: a sentence is typed, its translation comes, and what each word was found by."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.translation_formats import remarks
from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from regard.search import Search
    from regard.translation import Aligned, Translator


def check_interactive_options(out: Path | None, form: str, field: str | None, *, skip_bad: bool) -> None:
    """Raise OptionError for what is of files and pipes."""
    options = {
        "--out": out is not None,
        "--format": form != "text",
        "--field": field is not None,
        "--skip-bad": skip_bad,
    }
    names = ", ".join(name for name, said in options.items() if said)
    if names:
        raise OptionError(
            f"a conversation has no {names}",
            expected="sentences to translate, or a terminal alone",
            got=f"{names}, and no sentence",
            do="give sentences as arguments, by --data FILE, or from a pipe",
        )


def run_interactive(translator: Translator, search: Search) -> None:
    """Sentence by sentence, until the input ends."""
    from rich.console import Console

    from regard.view.escape_text import escape_text

    with contextlib.suppress(ImportError):  # Windows has none
        import readline  # noqa: F401 - from now on input() knows arrow keys and what was typed before
    console = Console(highlight=False, markup=False)
    console.print("Type a sentence; an empty line or Ctrl-D ends.", style="dim")
    while True:
        try:
            text = input("> ")
        except EOFError:
            console.print()
            return
        except UnicodeDecodeError:
            console.print(
                f"what was typed is not {sys.stdin.encoding}, which the terminal is said to have", style="red"
            )
            continue
        if not text.strip():
            return
        try:
            translator.check(text, "the sentence")
        except DataError as problem:
            console.print(escape_text(problem.what), style="red")
            continue
        (found,) = translator.translate([text], search=search)
        for one in found.renderings:
            console.print(escape_text(one.text), style="bold", soft_wrap=True)
            for remark in remarks(one):
                console.print(escape_text(f"it {remark}"), style="red", soft_wrap=True)
        if translator.model.has_attention:
            aligned = translator.aligned(found.source, found.renderings[0])
            console.print(_format_alignment(aligned, plain=console.options.ascii_only), style="dim", soft_wrap=True)


def _format_alignment(aligned: Aligned, *, plain: bool) -> str:
    """Each target word with the source word that it was found by most."""
    from regard.view.escape_text import escape_and_isolate

    heaviest = aligned.weights.argmax(dim=1).tolist() if aligned.weights.numel() else []
    arrow = "<-" if plain else "←"
    return "  ".join(
        f"{escape_and_isolate(word)} {arrow} {escape_and_isolate(aligned.source_words[index])}"
        for word, index in zip(aligned.target_words, heaviest, strict=True)
    )
