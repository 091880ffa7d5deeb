"""Interactive translation on a terminal: read a sentence, print its translation and its word alignment."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli.argument_options import spell_for_shell
from regard.cli.translation_formats import remarks
from regard.errors import DataError, OptionError
from regard.language import translate_message

if TYPE_CHECKING:
    from regard.search import Search
    from regard.translation import Aligned, Translator


def check_interactive_options(out: Path | None, form: str, field: str | None, *, skip_bad: bool) -> None:
    """Raise OptionError for options that only apply to files and pipes."""
    options = {
        "--out": out is not None,
        "--format": form != "text",
        "--field": field is not None,
        "--skip-bad": skip_bad,
    }
    names = ", ".join(name for name, is_set in options.items() if is_set)
    if names:
        raise OptionError(
            f"{names} has no effect in interactive mode",
            expected="sentences to translate, or none of these options",
            got=f"{names}, and no sentence",
            do="give sentences as arguments, with --data FILE, or through a pipe",
        )


def run_interactive(translator: Translator, search: Search) -> None:
    """Read and translate sentences until an empty line or the end of the input."""
    from rich.console import Console

    from regard.escape_text import escape_text

    with contextlib.suppress(ImportError):  # not on Windows
        import readline  # noqa: F401 - gives input() line editing and history
    console = Console(highlight=False, markup=False)
    console.print(translate_message("Type a sentence; an empty line or Ctrl-D exits."), style="dim")
    while True:
        try:
            text = input("> ")
        except EOFError:
            console.print()
            return
        except UnicodeDecodeError:
            problem = f"the input is not {sys.stdin.encoding}, the encoding set for this terminal"
            console.print(translate_message(problem), style="red")
            continue
        if not text.strip():
            return
        try:
            translator.check(text, "the sentence")
        except DataError as error:
            console.print(spell_for_shell(escape_text(translate_message(error.what))), style="red")
            continue
        (found,) = translator.translate([text], search=search)
        for rendering in found.renderings:
            console.print(escape_text(rendering.text), style="bold", soft_wrap=True)
            for remark in remarks(found.source, rendering):
                console.print(escape_text(translate_message(f"the translation {remark}")), style="red", soft_wrap=True)
        if translator.model.has_attention:
            aligned = translator.aligned(found.source, found.renderings[0])
            console.print(_format_alignment(aligned, plain=console.options.ascii_only), style="dim", soft_wrap=True)


def _format_alignment(aligned: Aligned, *, plain: bool) -> str:
    """Pair each target word with the source word it attends to most."""
    from regard.escape_text import escape_and_isolate

    heaviest = aligned.weights.argmax(dim=1).tolist() if aligned.weights.numel() else []
    arrow = "<-" if plain else "←"
    return "  ".join(
        f"{escape_and_isolate(word)} {arrow} {escape_and_isolate(aligned.source_words[index])}"
        for word, index in zip(aligned.target_words, heaviest, strict=True)
    )
