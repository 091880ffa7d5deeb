"""``regard translate``: translate sentences from arguments, a file, a pipe or an interactive session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.interactive import check_interactive_options, run_interactive
from regard.cli.loaded_model import choose_numbers, report_prefix
from regard.cli.option_group import expand_option_groups
from regard.cli.output_file import check_output_file, open_output_file
from regard.cli.progress import line_progress
from regard.cli.search_options import BeamOptions, TranslationSearchOptions
from regard.cli.shared_options import (
    BatchTokens,
    CacheFormat,
    Data,
    Device,
    Dtype,
    Field,
    OutputFile,
    Overwrite,
    Prefix,
    Texts,
    Weights,
    drop_none,
    format_option,
    model_option,
    option,
)
from regard.cli.stderr import say
from regard.cli.text_input import check_text_options, is_stdin_terminal, open_texts, read_usable
from regard.cli.translation_formats import FORMATS, format_translation, remarks
from regard.cli.verb import Verb
from regard.device_names import AUTO
from regard.errors import OptionError, check_choice

if TYPE_CHECKING:
    from regard.search import Search
    from regard.text.line import Line
    from regard.text.line_reader import LineReader
    from regard.translation import Aligned, Translation, Translator

_ALIGNMENT_BATCH = 64
"""Translations per batch of word alignment."""
_MAX_REMARKS = 20
"""Remarks on translations that are printed one by one."""

NOTES = """
[bold]Formats.[/bold] text: one translation per line. tsv: line number, score, translation; several rows per line with \
--best. jsonl: source, translations with score and log-probability, and for each target word the source words it \
attended to most, with weights. pharaoh: word alignment of each line as links i-j, source word i to target word j, \
from 0.

[bold]Lines.[/bold] The output has one line per input line, in the same order; an empty line stays empty. Memory does \
not grow with the length of the input. Lines from a pipe are translated as they arrive, so another program can wait \
for each answer. With --skip-bad an unusable line gives an empty line and a message. A run that ends early leaves the \
finished lines in OUT.partial.

[bold]Interactive.[/bold] On a terminal, without TEXT and --data: type a sentence, and see its translation and the \
source word that each word attended to most.

[bold]Examples[/bold]

  regard translate --model de-en/ "Ein Hund läuft durch den Schnee."

  regard translate --model de-en/ --data news.de -o news.en --beam 5

  cat news.de | regard translate --model de-en/ --format jsonl --best 3

  regard translate --model de-en/

  regard translate --model t5/ --prefix "translate English to German: " "A dog runs through the snow."
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("translate", cls=Verb, epilog=NOTES)(translate)


@expand_option_groups()
def translate(
    texts: Texts = None,
    model: Annotated[str, model_option("Folder that `regard train translate` wrote, or of a T5; required.")] = "",
    data: Data = None,
    out: OutputFile = None,
    form: Annotated[str, format_option("Output format: text, tsv, jsonl or pharaoh.", FORMATS)] = "text",
    field: Field = None,
    prefix: Prefix = None,
    *,
    beam: BeamOptions,
    searching: TranslationSearchOptions,
    batch_tokens: BatchTokens = None,
    skip_bad: Annotated[
        bool, option("--skip-bad", "Write an empty line for an unusable line and report it.", show_default=True)
    ] = False,
    weights: Weights = None,
    cache_format: CacheFormat = None,
    device: Device = AUTO,
    dtype: Dtype = AUTO,
    overwrite: Overwrite = False,
) -> None:
    """Translate sentences with a trained model."""
    texts = texts or []
    _check(form, searching.best, model, out, data, overwrite=overwrite)
    interactive = not texts and data is None and is_stdin_terminal()
    if interactive:
        check_interactive_options(out, form, field, skip_bad=skip_bad)
    else:
        check_text_options(texts, data, field)
    search = searching.choose_search(beam)
    from regard.train.allocator import keep_freed_memory
    from regard.translation import Translator

    keep_freed_memory()
    given = drop_none({"tokens": batch_tokens, "prefix": prefix})
    numbers = choose_numbers(device, dtype)
    translator = Translator.load(model, **numbers, weights=weights, cache_format=cache_format, **given)
    report_prefix(translator.prefix, prefix)
    if form == "pharaoh":
        translator.check_attention()
    if interactive:
        run_interactive(translator, search)
        return
    with open_texts(texts, data, field) as lines, open_output_file(out) as file:
        number = remarked = 0
        for some in _translate_lines(translator, lines, search, form, out, skip_bad=skip_bad):
            for found, words in some:
                number += 1
                file.write(format_translation(found, words, number, form))
                for remark in remarks(found.source, found.renderings[0]):
                    remarked += 1
                    if remarked <= _MAX_REMARKS:
                        say(f"translation {number} {remark}")
            file.flush()  # a program at the other end of the pipe may wait for these translations
    if remarked > _MAX_REMARKS:
        say(f"{remarked - _MAX_REMARKS:,} more remarks of this kind; --format jsonl lists them all")
    if out is not None:
        say(f"{out}: written")


def _check(form: str, best: int, model: str, out: Path | None, data: str | None, *, overwrite: bool) -> None:
    check_choice("format of translations", form, FORMATS)
    if not model:
        raise OptionError(
            "no model was given to translate with",
            expected="--model FOLDER",
            got="no --model",
            do="train one: regard train translate --data pairs.tsv --out model/",
        )
    if best > 1 and form in ("text", "pharaoh"):
        raise OptionError(
            f"--format {form} has one translation per line",
            expected="--format tsv or jsonl for several",
            got=f"--best {best}",
            do="add --format tsv",
        )
    check_output_file(out, overwrite=overwrite, data=data)


def _translate_lines(
    translator: Translator,
    lines: LineReader | Sequence[Line],
    search: Search,
    form: str,
    out: Path | None,
    *,
    skip_bad: bool,
) -> Iterator[Iterator[tuple[Translation, Aligned | None]]]:
    """Translate the lines chunk by chunk, as they arrive, with a progress bar over the file."""
    from regard.text.line_reader import chunk_lines
    from regard.translation.translator import CHUNK_SENTENCES

    def read(line: Line) -> str:
        translator.check(line.text, line.name)
        return line.text

    done = 0
    with line_progress(lines, out) as advance:
        for some in chunk_lines(lines, CHUNK_SENTENCES):
            texts, problem = read_usable(some, read, skipped="left empty" if skip_bad else None)
            yield _add_alignments(translator, translator.translate(texts, search=search), form)
            if problem is not None:
                raise problem
            done += len(some)
            advance(done)


def _add_alignments(
    translator: Translator, translated: Iterable[Translation], form: str
) -> Iterator[tuple[Translation, Aligned | None]]:
    """Pair each translation with its word alignment, batch by batch, or with None if the format has no alignment."""
    from regard.text.words import token_spans, word_spans

    split = token_spans if form == "pharaoh" else word_spans
    is_aligned = form == "pharaoh" or (form == "jsonl" and translator.model.has_attention)
    rest = iter(translated)
    while some := list(islice(rest, _ALIGNMENT_BATCH)):
        to_align = [translation for translation in some if is_aligned and translation.renderings[0].ids]
        aligned = iter(
            translator.aligned_all(
                [(translation.source, translation.renderings[0]) for translation in to_align], split=split
            )
        )
        for translation in some:
            yield translation, next(aligned) if is_aligned and translation.renderings[0].ids else None
