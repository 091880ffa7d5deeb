"""``regard view``: show what a model attends to in texts, pictures or sounds, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.chinese_words import CHINESE_WORDS, ChineseWords, check_chinese_words
from regard.cli.completion import choice_completer
from regard.cli.loaded_model import ModelLoading
from regard.cli.option_group import expand_option_groups
from regard.cli.shared_options import DEFAULT_MODEL, Data, Field, ModelName, Truncate, option
from regard.cli.verb import Verb
from regard.cli.view_comparison import ComparisonOptions, compare_media, compare_texts, compare_translations
from regard.cli.view_corpus import check_summary_options, summarize_texts
from regard.cli.view_drawing import DrawingOptions
from regard.cli.view_mechanisms import Mechanisms, parse_mechanisms, read_texts_side_by_side
from regard.cli.view_media import MediaOptions, check_only_media, find_kind, read_media
from regard.cli.view_output import OutputOptions, show_readings, show_summary
from regard.cli.view_pairs import PairOptions, check_no_text_options, choose_translator, read_pairs
from regard.cli.view_texts import MAX_TEXTS, collect_texts, read_texts, warn_about_missing_quotes
from regard.errors import OptionError
from regard.language import translate_message

if TYPE_CHECKING:
    from regard.comparison import MechanismChoice
    from regard.models.model_folder import ModelFolder
    from regard.text.line import Line
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


@expand_option_groups()
def view(
    texts: Texts = None,
    *,
    pairs: PairOptions,
    data: Data = None,
    field: Field = None,
    model: ModelName = None,
    mechanism: Mechanisms = None,
    comparison: ComparisonOptions,
    media: MediaOptions,
    truncate: Truncate = False,
    loading: ModelLoading,
    chinese_words: ChineseWordsOption = None,
    summary: Summary = False,
    output: OutputOptions,
    drawing: DrawingOptions,
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
    opened, kind = find_kind(given, [*media.picture], model, is_of_pairs=pairs.are_given)
    readings: Sequence[PrintedReading]
    if kind is not None:
        check_only_media(for_texts | others | {"--serve": output.serve}, kind)
        compared = comparison.are_given
        drawing.check_inputs(output.path, "comparisons" if compared else kind.plural, figures=not compared)
        files = (kind, [*given, *media.picture], opened, [*media.label])
        readings = compare_media(*files, comparison, loading) if compared else read_media(*files, loading)
        show_readings(readings, _name(opened or "", loading.weights), output, drawing, example=f"{kind.singular}.html")
        return
    media.check_no_label()
    choices = parse_mechanisms(mechanism, is_of_pairs=pairs.are_given)
    comparison.check_alone(mechanisms=bool(choices))
    if comparison.are_given or choices:
        drawing.check_inputs(output.path, "several mechanisms" if choices else "comparisons", figures=False)
    if pairs.are_given:
        check_no_text_options(for_texts)
        translator = choose_translator(given, model)
        sentences = ([*pairs.source], [*pairs.target], pairs.prefix)
        compared = comparison.are_given
        readings = (
            compare_translations(translator, *sentences, comparison, loading)
            if compared
            else read_pairs(translator, *sentences, loading)
        )
        show_readings(readings, _name(translator, loading.weights), output, drawing)
        return
    pairs.check_no_prefix()
    reader = DEFAULT_MODEL if opened is None else opened
    lines = collect_texts(given, data, field, limit=None if summary else MAX_TEXTS)
    warn_about_missing_quotes(given)
    reading: dict[str, Any] = {"truncate": truncate, "chinese_words": chinese_words, "loading": loading}
    if summary:
        show_summary(summarize_texts(reader, lines, **reading), output)
        return
    readings = _read(reader, lines, choices, comparison, **reading)
    show_readings(readings, _name(reader, loading.weights), output, drawing)


def _name(model: str | ModelFolder, weights: str | None) -> str:
    """The model as pages name it."""
    return str(model) if weights is None else translate_message(f"{model} with {weights} weights")


def _read(
    reader: str | ModelFolder,
    lines: list[Line],
    choices: Sequence[MechanismChoice],
    comparison: ComparisonOptions,
    **reading: Any,
) -> Sequence[PrintedReading]:
    """Read texts: alone, under several mechanisms, or compared with one another."""
    if choices:
        sides = read_texts_side_by_side(reader, lines, choices, **reading)
        return [made for side in sides for made in side.comparisons] if comparison.compare else sides
    if comparison.are_given:
        return compare_texts(reader, lines, comparison, **reading)
    return read_texts(reader, lines, **reading)


def _check_only_texts(option: str, others: dict[str, Any]) -> None:
    names = sorted(name for name, value in others.items() if value)
    if names:
        raise OptionError(
            f"{option} shows texts alone", expected="texts, --model and --open", got=", ".join(names),
            do=f"leave out {names[0]}, or {option}",
        )  # fmt: skip
