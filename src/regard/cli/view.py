"""``regard view``: show what a model attends to in texts, pictures or sounds, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from regard.chinese_words import CHINESE_WORDS, ChineseWords, check_chinese_words
from regard.cli.completion import choice_completer, complete_mechanism
from regard.cli.loaded_model import open_model
from regard.cli.option_group import expand_option_groups
from regard.cli.progress import indeterminate_progress, track
from regard.cli.shared_options import (
    DEFAULT_MODEL,
    Data,
    Field,
    Language,
    ModelName,
    Overwrite,
    Prefix,
    Truncate,
    option,
)
from regard.cli.text_input import is_path
from regard.cli.verb import Verb
from regard.cli.view_comparison import ComparisonOptions, compare_media, compare_texts, compare_translations
from regard.cli.view_corpus import check_summary_options, print_summary, summarize_texts
from regard.cli.view_drawing import DrawingOptions, is_drawing
from regard.cli.view_media import find_named_kind, read_media
from regard.cli.view_texts import (
    MAX_TEXTS,
    choose_translator,
    collect_texts,
    read_pairs,
    read_texts,
    serve_texts,
    shorten_texts,
    warn_about_missing_quotes,
)
from regard.errors import DataError, OptionError
from regard.fields import option_field
from regard.language import translate_message

if TYPE_CHECKING:
    from rich.console import Console

    from regard.comparison import MechanismChoice
    from regard.media import Medium
    from regard.models.model_folder import ModelFolder
    from regard.text.line import Line
    from regard.view import CorpusStatistics
    from regard.view.side_by_side import SideBySide
    from regard.view.terminal import PrintedReading


EXAMPLES = """
[bold]Examples[/bold]

  regard view "The animal didn't cross the street because it was too tired."

  regard view "The animal didn't cross the street because it was too tired." -o tired.html

  regard view "I ate an apple." "Apple released a new phone." -o apple.html --open

  regard view "The cat sat on the mat." --mechanism longformer:window=4,performer -o side.html

  regard view "It was too tired to walk." "It was too wide to walk." --compare -o change.html

  regard view "It was too tired to walk." --model epoch-1/ --compare-model epoch-9/ -o trained.html

  regard view "The animal didn't cross the street because it was too tired." -o head.svg --layer 3 --head 1

  regard view --data sentences.txt -o heads.csv

  regard view --data sentences.txt -o sentences.html

  regard view --data corpus.txt --summary -o heads.csv

  regard view "A moving story." --model reviews/ -o label.html

  regard view de-en/ --source "Ein Hund läuft." -o dog.html

  regard view de-en/ --source "Ein Hund läuft." --target "A dog runs." -o dog-given.html

  regard view "The keys to the cabinet are here." --model gpt2/ -o keys.html

  regard view cat.png --model vit/ -o cat.html

  regard view cat.png --model clip/ --label "a photo of a cat." --label "a photo of a dog." -o cat.html

  regard view dawn.wav --model birds-model/ -o dawn.html

  regard view talk.wav --model whisper/ -o talk.html
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("view", cls=Verb, epilog=EXAMPLES)(view)


Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT",
        help="One or more texts, each in quotes, or paths of pictures or sounds. With --source: the "
        "translator's folder.",
        show_default=False,
    ),
]
Summary = Annotated[
    bool,
    option(
        "--summary",
        "Summarize what every head does over all texts, in place of each text: mean statistics and named patterns. "
        "With -o heads.csv or heads.json, as a table.",
    ),
]
ChineseWordsOption = Annotated[
    ChineseWords | None,
    option(
        "--chinese-words",
        "What Chinese words are: those that jieba finds, single characters, or what spaces separate in your text. "
        "Default: jieba if it is installed, else characters.",
        metavar="jieba|characters|spaces",
        autocompletion=choice_completer(CHINESE_WORDS),
    ),
]
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


@final
@dataclass(frozen=True)
class _PairOptions:
    """The sentences that a translator is shown on."""

    source: tuple[str, ...] = option_field((), "Sentence to show a translator on; repeat for more.", metavar="TEXT")
    target: tuple[str, ...] = option_field(
        (), "Translation of each --source, in order. Default: the model translates.", metavar="TEXT"
    )
    prefix: Prefix = None

    @property
    def are_given(self) -> bool:
        """Whether there are sentences."""
        return bool(self.source or self.target)

    def check_no_prefix(self) -> None:
        """Raise OptionError for a prefix without sentences for a translator."""
        if self.prefix is not None:
            raise OptionError(
                "--prefix has no effect without --source",
                expected='--source "..." for a T5',
                got="--prefix",
                do="leave out --prefix",
            )


@final
@dataclass(frozen=True)
class _MediaOptions:
    """The pictures that a model is shown on, and the labels that it is asked about."""

    picture: tuple[str, ...] = option_field(
        (), "Picture to show an image model on; repeat for more. Or give its path as an argument.", metavar="FILE"
    )
    label: tuple[str, ...] = option_field(
        (),
        "With pictures: a label whose gradient is shown too, beside those of the five most probable ones. With a "
        "CLIP: a text to compare with the picture; repeat for more.",
    )

    def check_no_label(self) -> None:
        """Raise OptionError for a label without pictures."""
        if self.label:
            raise OptionError("--label belongs to pictures", expected="a picture", got="texts", do="leave --label out")


@final
@dataclass(frozen=True)
class _Output:
    """The page, the figure or the table to write, if any, and whether it is opened."""

    out: Path | None = option_field(
        None,
        "Write an interactive page to this file, such as attention.html; or a figure (.svg, .pdf, .png), or a table "
        "(.csv, .json).",
        option="--out -o",
        metavar="FILE",
        before=("model",),
    )
    overwrite: Overwrite = False
    open_page: bool = option_field(
        False, "Open the page in your browser. Without --out it is written to attention.html.", option="--open"
    )

    serve: bool = option_field(
        False,
        "Show texts from a server on this computer that computes any weight when you zoom; no file is written. It ends "
        "when the page is closed.",
    )

    @property
    def path(self) -> Path | None:
        """The file of the page, the figure or the table; None for the terminal alone."""
        return Path("attention.html") if self.open_page and self.out is None and not self.serve else self.out

    @property
    def is_page(self) -> bool:
        """Whether the file is a page."""
        return self.path is not None and not is_drawing(self.path)

    def check(self) -> None:
        """Raise what ``check_output_path`` raises, before a model is loaded."""
        from regard.view.output_path import VIEW, check_output_path

        if self.serve and self.out is not None:
            raise OptionError(
                "--serve writes no file", expected="--serve, or -o", got=f"--serve and -o {self.out}",
                do="leave out one of them",
            )  # fmt: skip
        if self.path is not None:
            check_output_path(self.path, VIEW, overwrite=self.overwrite)


@expand_option_groups()
def view(
    texts: Texts = None,
    *,
    pairs: _PairOptions,
    data: Data = None,
    field: Field = None,
    model: ModelName = None,
    mechanism: Mechanisms = None,
    comparison: ComparisonOptions,
    media: _MediaOptions,
    truncate: Truncate = False,
    chinese_words: ChineseWordsOption = None,
    summary: Summary = False,
    output: _Output,
    drawing: DrawingOptions,
    lang: Language = None,
) -> None:
    """Show what every head of a model attends to: a summary in the terminal, and with --out an interactive page.

    With --source the model is a translator, and the output shows which source words each target word attends to.

    With --mechanism the same heads are computed by other mechanisms too, side by side: how much of the exact attention
    each keeps, and what it costs.

    With --compare or --compare-model two readings stand side by side: the words aligned, or the pictures, the
    differences, and the heads whose attention changed most.

    With pictures the model is an image encoder, and the output shows which patches each patch attends to. With sounds
    it is a Conformer, and the output shows over the spectrogram to which times each time attends.

    The page is one HTML file that loads nothing from the network, so it can be kept, sent and opened anywhere. With
    -o head.svg the output is a figure for a paper, with -o heads.csv a table.
    """
    del lang  # main has read it, for errors and help, too
    check_chinese_words(chinese_words)
    for_texts = {
        "--data": data, "--field": field, "--truncate": truncate, "--summary": summary, "--chinese-words": chinese_words
    }  # fmt: skip
    others = {"--mechanism": mechanism, "--source": pairs.source, "--target": pairs.target}
    if summary:
        unused = others | {
            "--open": output.open_page,
            "--serve": output.serve,
            "--picture": media.picture,
            "--label": media.label,
        }
        check_summary_options(output.path, unused | comparison.given | drawing.given, overwrite=output.overwrite)
    output.check()
    drawing.check(output.path)
    given = texts or []
    if output.serve:
        unused = others | {"--picture": media.picture, "--summary": summary} | comparison.given
        _check_only_texts("--serve", unused)
    opened, kind = _find_kind(given, [*media.picture], model, is_of_pairs=pairs.are_given)
    if kind is not None:
        _check_only_media(for_texts | others | {"--serve": output.serve}, kind)
        compared = comparison.are_given
        drawing.check_inputs(output.path, "comparisons" if compared else kind.plural, figures=not compared)
        files = (kind, [*given, *media.picture], opened, [*media.label])
        shown: Sequence[PrintedReading] = compare_media(*files, comparison) if compared else read_media(*files)
        _show(shown, str(opened or ""), output, drawing, example=f"{kind.singular}.html")
        return
    media.check_no_label()
    choices = _parse_mechanisms(mechanism, is_of_pairs=pairs.are_given)
    comparison.check_alone(mechanisms=bool(choices))
    if pairs.are_given:
        _check_no_text_options(for_texts)
        translator = choose_translator(given, model)
        sentences = ([*pairs.source], [*pairs.target], pairs.prefix)
        translations: Sequence[PrintedReading]
        if comparison.are_given:
            drawing.check_inputs(output.path, "comparisons", figures=False)
            translations = compare_translations(translator, *sentences, comparison)
        else:
            translations = read_pairs(translator, *sentences)
        _show(translations, translator, output, drawing)
        return
    pairs.check_no_prefix()
    reader = DEFAULT_MODEL if opened is None else opened
    lines = collect_texts(given, data, field, limit=None if summary else MAX_TEXTS)
    warn_about_missing_quotes(given)
    if summary:
        _show_summary(summarize_texts(reader, lines, truncate=truncate, chinese_words=chinese_words), output)
        return
    if choices or comparison.are_given:
        drawing.check_inputs(output.path, "several mechanisms" if choices else "comparisons", figures=False)
    readings: Sequence[PrintedReading]
    if choices:
        sides = _read_side_by_side(reader, lines, choices, truncate=truncate, chinese_words=chinese_words)
        readings = [made for side in sides for made in side.comparisons] if comparison.compare else sides
    elif comparison.are_given:
        readings = compare_texts(reader, lines, comparison, truncate=truncate, chinese_words=chinese_words)
    else:
        readings = read_texts(
            reader, lines, truncate=truncate, chinese_words=chinese_words, announces_page=output.is_page
        )
    _show(readings, str(reader), output, drawing)


def _find_kind(
    texts: list[str], pictures: list[str], model: str | None, *, is_of_pairs: bool
) -> tuple[str | ModelFolder | None, Medium | None]:
    """The model, opened if it decides, and pictures or sounds, by the arguments or by the model; None for texts.

    Raises OptionError for texts beside ``--picture``, or for a model of pictures or sounds.
    """
    if pictures:
        from regard.vision.picture_file import PICTURES

        stray = [text for text in texts if not is_path(text) and not PICTURES.is_name(Path(text))]
        if stray:
            raise OptionError(
                "--picture cannot be used with texts",
                expected="pictures, or texts",
                got=repr(stray[0][:60]),
                do="leave out the text, or --picture",
            )
        return model, PICTURES
    named = find_named_kind(texts)
    if named is not None or model is None or is_of_pairs:
        return model, named
    opened, model_kind = open_model(model)
    kind = None if model_kind is None or model_kind.texts else model_kind.files
    if kind is not None and texts and not any(map(is_path, texts)):
        if kind.is_name(Path(texts[0])):
            raise DataError(
                f"cannot read {texts[0]}",
                expected=f"a {kind.singular}",
                got="No such file or directory",
                do="check the path",
            )
        raise OptionError(
            f"{model} reads {kind.plural}, not texts",
            expected=f"the path of a {kind.singular}, such as {kind.example}",
            got=repr(texts[0][:60]),
            do=f'regard view {kind.example} --model {model}, or leave --model out: regard view "..."',
        )
    return opened, kind


def _check_only_texts(option: str, others: dict[str, Any]) -> None:
    names = sorted(name for name, value in others.items() if value)
    if names:
        raise OptionError(
            f"{option} shows texts alone", expected="texts, --model and --open", got=", ".join(names),
            do=f"leave out {names[0]}, or {option}",
        )  # fmt: skip


def _check_only_media(others: dict[str, Any], kind: Medium) -> None:
    names = {name for name, value in others.items() if value}
    if names:
        raise OptionError(
            f"{min(names)} cannot be used with {kind.plural}",
            expected=f"{kind.plural}, --model{', --label' * (kind.singular == 'picture')} and --out",
            got=", ".join(sorted(names)),
            do=f"leave out {min(names)}",
        )


def _show(
    readings: Sequence[PrintedReading],
    model: str,
    output: _Output,
    drawing: DrawingOptions,
    *,
    example: str = "attention.html",
) -> None:
    """Write the page, figure or table, then print the summary: a broken pipe (``| head``) must not prevent the file.

    Without a file, tell how to write a page, such as ``example``.
    """
    from regard.cli.broken_pipe import PipedConsole
    from regard.view.page import write_page
    from regard.view.page_size import has_many_tokens
    from regard.view.reading import Reading
    from regard.view.terminal import print_readings

    written = ""
    # The size of a page does not concern the terminal, which shows a summary of too many tokens alone.
    in_few_words = output.serve or any(map(has_many_tokens, readings))
    shown: Sequence[Any] = readings
    if in_few_words or output.is_page:
        shown = shorten_texts(readings, always=output.serve)
    printed = shown if in_few_words else readings
    _compare_words(printed)
    if output.path is not None and not output.is_page:
        written = drawing.write(readings, output.path, overwrite=output.overwrite)
    elif output.path is not None:
        with indeterminate_progress("writing the page"):
            path = write_page(shown, output.path, model=model, overwrite=output.overwrite)
        written = f"Page: {path} ({path.stat().st_size / 1000:,.0f} kB); open it in any browser."
    console = PipedConsole(highlight=False, markup=False)
    print_readings(printed, console)
    if output.serve:
        serve_texts(
            [reading for reading in readings if isinstance(reading, Reading)], shown, model, opens=output.open_page
        )
        return
    _print_written(written, console, example=example)
    if output.open_page:
        typer.launch(str(output.path))


def _show_summary(corpus: CorpusStatistics, output: _Output) -> None:
    """Write the table, then print the named heads, as ``_show`` does."""
    from regard.cli.broken_pipe import PipedConsole
    from regard.escape_text import escape_text

    written = ""
    if output.path is not None:
        table = corpus.table()
        table.save(output.path, overwrite=output.overwrite)
        written = f"Table: {output.path} ({len(table):,} rows of heads)"
    console = PipedConsole(highlight=False, markup=False)
    print_summary(corpus, console)
    if written:
        console.print(escape_text(translate_message(written)), soft_wrap=True)
    else:
        console.print(translate_message("For all statistics of every head, add: -o heads.csv"), style="dim")


def _compare_words(readings: Sequence[PrintedReading]) -> None:
    """Find the pairs of words, which page and terminal show; of a long text they take longer than to run the model."""
    from regard.view.reading import PairReading, Reading
    from regard.view.word_pairs import word_pairs

    texts = [reading for reading in readings if isinstance(reading, Reading | PairReading)]
    with track(texts, "texts compared") as tracked:
        for text in tracked:
            for reading in text.attentions.values():
                if reading.keys is None:
                    word_pairs(reading)


def _print_written(written: str, console: Console, *, example: str) -> None:
    """Print what was written, or how to write a page, such as ``example``."""
    from regard.escape_text import escape_text

    if written:
        console.print(escape_text(translate_message(written)), soft_wrap=True)
    else:
        advice = f"For the page with every layer and head, add: -o {example}"
        console.print(translate_message(advice), style="dim")


def _parse_mechanisms(texts: list[str] | None, *, is_of_pairs: bool) -> list[MechanismChoice]:
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


def _read_side_by_side(
    model: str | ModelFolder,
    lines: list[Line],
    choices: Sequence[MechanismChoice],
    *,
    truncate: bool,
    chinese_words: ChineseWords | None,
) -> list[SideBySide]:
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
    loaded = load(folder)
    with track(lines, "texts") as tracked:
        sides = (read_side_by_side(loaded, line.text, choices, truncate=truncate, name=line.name) for line in tracked)
        return [group_chinese_words(side, chinese_words) for side in sides]


def _check_no_text_options(options: dict[str, Any]) -> None:
    named = [option for option, value in options.items() if value not in (None, False)]
    if named:
        raise OptionError(
            f"{named[0]} cannot be used with --source",
            expected="texts for an encoder such as BERT, or --source for a translator",
            got="both",
            do="give --source once for each sentence",
        )
