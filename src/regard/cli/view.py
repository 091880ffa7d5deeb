"""``regard view``: show what a model attends to in texts, pictures or sounds, in the terminal and as a page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.completion import complete_mechanism
from regard.cli.media_input import find_media_kind
from regard.cli.progress import count_progress, indeterminate_progress
from regard.cli.shared_options import DEFAULT_MODEL, Data, Field, ModelName, Overwrite, Prefix, Truncate, report_prefix
from regard.cli.text_input import check_text_options, open_texts
from regard.cli.verb import Verb
from regard.cli.view_media import find_named_kind, show_media
from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from rich.console import Console

    from regard.comparison import MechanismChoice
    from regard.media import MediaKind
    from regard.text.line_reader import Line
    from regard.view.reading import PairReading, Reading
    from regard.view.side_by_side import SideBySide

MAX_TEXTS = 200
"""Maximum number of texts: the page holds every head of each text, about 250 kB per sentence."""

EXAMPLES = """
[bold]Examples[/bold]

  regard view "The animal didn't cross the street because it was too tired."

  regard view "The animal didn't cross the street because it was too tired." -o tired.html

  regard view "I ate an apple." "Apple released a new phone." -o apple.html --open

  regard view "The cat sat on the mat." --mechanism longformer:window=4,performer -o side.html

  regard view --data sentences.txt -o sentences.html

  regard view "A moving story." --model reviews/ -o label.html

  regard view de-en/ --source "Ein Hund läuft." -o dog.html

  regard view de-en/ --source "Ein Hund läuft." --target "A dog runs." -o dog-given.html

  regard view "The keys to the cabinet are here." --model gpt2/ -o keys.html

  regard view cat.png --model vit/ -o cat.html

  regard view cat.png --model clip/ --label "a photo of a cat." --label "a photo of a dog." -o cat.html

  regard view dawn.wav --model birds-model/ -o dawn.html
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("view", cls=Verb, epilog=EXAMPLES)(view)


def view(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="One or more texts, each in quotes, or paths of pictures or sounds. With --source: the "
            "translator's folder.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source", metavar="TEXT", help="Sentence to show a translator on; repeat for more.", show_default=False
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="TEXT",
            help="Translation of each --source, in order. Default: the model translates.",
            show_default=False,
        ),
    ] = None,
    prefix: Prefix = None,
    data: Data = None,
    field: Field = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write an interactive page to this file, such as attention.html.",
            show_default=False,
        ),
    ] = None,
    model: ModelName = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            "--mechanism",
            metavar="A,B,..",
            help="Show the same heads under these mechanisms, next to exact attention; options as NAME:OPTION=VALUE, "
            "such as longformer:window=8,performer.",
            show_default=False,
            autocompletion=complete_mechanism,
        ),
    ] = None,
    picture: Annotated[
        list[str] | None,
        typer.Option(
            "--picture",
            metavar="FILE",
            help="Picture to show an image model on; repeat for more. Or give its path as an argument.",
            show_default=False,
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="NAME",
            help="With pictures: a label whose gradient is shown too, beside those of the five most probable ones. "
            "With a CLIP: a text to compare with the picture; repeat for more.",
            show_default=False,
        ),
    ] = None,
    truncate: Truncate = False,
    overwrite: Overwrite = False,
    open_page: Annotated[
        bool,
        typer.Option("--open", help="Open the page in your browser. Without --out it is written to attention.html."),
    ] = False,
) -> None:
    """Show what every head of a model attends to: a summary in the terminal, and with --out an interactive page.

    With --source the model is a translator, and the output shows which source words each target word attends to.

    With --mechanism the same heads are computed by other mechanisms too, side by side: how much of the exact attention
    each keeps, and what it costs.

    With pictures the model is an image encoder, and the output shows which patches each patch attends to. With sounds
    it is a Conformer, and the output shows over the spectrogram to which times each time attends.

    The page is one HTML file that loads nothing from the network, so it can be kept, sent and opened anywhere.
    """
    from regard.view.page import check_output_path

    path = Path("attention.html") if open_page and out is None else out
    if path is not None:
        check_output_path(path, overwrite=overwrite)
    kind = _find_kind(texts or [], picture or [], model, source or target)
    if kind is not None:
        from regard.cli.broken_pipe import PipedConsole

        others = {"--data": data, "--field": field, "--mechanism": mechanism, "--source": source, "--target": target}
        _check_only_media(
            {name for name, value in others.items() if value} | ({"--truncate"} if truncate else set()), kind
        )
        console, arguments = PipedConsole(highlight=False, markup=False), [*(texts or []), *(picture or [])]
        written = show_media(kind, arguments, model, label or [], path, console, overwrite=overwrite)
        _tell_where(written, console, open_page=open_page, example=f"{kind.one}.html")
        return
    if label:
        raise OptionError("--label belongs to pictures", expected="a picture", got="texts", do="leave --label out")
    choices = _parse_mechanisms(mechanism)
    if choices and (source or target):
        raise OptionError(
            "--mechanism cannot be used with --source",
            expected="texts for an encoder such as BERT",
            got="both",
            do="leave out --source",
        )
    if choices:
        name = DEFAULT_MODEL if model is None else model
        named = _collect_texts(texts or [], data, field)
        _hint_at_quotes(texts or [])
        compared = _read_side_by_side(name, named, choices, truncate=truncate)
        _show_side_by_side(compared, name, path, overwrite=overwrite, open_page=open_page)
        return
    if source or target:
        _check_no_text_options(data, field, truncate=truncate)
        name = _choose_translator(texts or [], model)
        readings: Sequence[Reading | PairReading] = _read_pairs(name, source or [], target or [], prefix)
    else:
        if prefix is not None:
            raise OptionError(
                "--prefix has no effect without --source",
                expected='--source "..." for a T5',
                got="--prefix",
                do="leave out --prefix",
            )
        name = DEFAULT_MODEL if model is None else model
        named = _collect_texts(texts or [], data, field)
        _hint_at_quotes(texts or [])
        readings = _read_texts(name, named, truncate=truncate)
    _show(readings, name, path, overwrite=overwrite, open_page=open_page)


def _find_kind(texts: list[str], pictures: list[str], model: str | None, pairs: list[str] | None) -> MediaKind | None:
    """Pictures or sounds, by the arguments or by the model; None for texts.

    Raises OptionError for a model of pictures or sounds that is given texts.
    """
    if pictures:
        from regard.vision.picture_file import PICTURES

        return PICTURES
    named = find_named_kind(texts)
    if named is not None or model is None or pairs:
        return named
    kind = find_media_kind(model)
    if kind is not None and texts and not any(map(_is_path, texts)):
        raise OptionError(
            f"{model} reads {kind.several}, not texts",
            expected=f"the path of a {kind.one}, such as {kind.example}",
            got=repr(texts[0][:60]),
            do=f'regard view {kind.example} --model {model}, or leave --model out: regard view "..."',
        )
    return kind


def _is_path(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # not a valid path
        return False


def _check_only_media(names: set[str], kind: MediaKind) -> None:
    if names:
        raise OptionError(
            f"{min(names)} cannot be used with {kind.several}",
            expected=f"{kind.several}, --model{', --label' * (kind.one == 'picture')} and --out",
            got=", ".join(sorted(names)),
            do=f"leave out {min(names)}",
        )


def _show(
    readings: Sequence[Reading | PairReading], model: str, path: Path | None, *, overwrite: bool, open_page: bool
) -> None:
    """Write the page, then print the summary: a broken pipe (``| head``) must not prevent the page."""
    from regard.cli.broken_pipe import PipedConsole
    from regard.view.page import write_page
    from regard.view.terminal import print_readings

    written = None
    if path is not None:
        with indeterminate_progress("writing the page"):
            written = write_page(readings, path, model=model, overwrite=overwrite)
    console = PipedConsole(highlight=False, markup=False)
    print_readings(readings, console)
    _tell_where(written, console, open_page=open_page)


def _show_side_by_side(
    readings: Sequence[SideBySide], model: str, path: Path | None, *, overwrite: bool, open_page: bool
) -> None:
    """Write the page of several mechanisms, then print the summary."""
    from regard.cli.broken_pipe import PipedConsole
    from regard.view.side_by_side_page import write_side_by_side
    from regard.view.terminal_side_by_side import print_side_by_side

    written = None
    if path is not None:
        with indeterminate_progress("writing the page"):
            written = write_side_by_side(readings, path, model=model, overwrite=overwrite)
    console = PipedConsole(highlight=False, markup=False)
    print_side_by_side(readings, console)
    _tell_where(written, console, open_page=open_page)


def _tell_where(written: Path | None, console: Console, *, open_page: bool, example: str = "attention.html") -> None:
    """Print where the page is, or how to write one, such as ``example``, and open it if requested."""
    from regard.escape_text import escape_text

    if written is None:
        console.print(f"For the page with every layer and head, add: -o {example}", style="dim")
        return
    console.print(
        f"Page: {escape_text(str(written))} ({written.stat().st_size / 1000:,.0f} kB); open it in any browser.",
        soft_wrap=True,
    )
    if open_page:
        typer.launch(str(written))


def _parse_mechanisms(text: str | None) -> list[MechanismChoice]:
    from regard.comparison import parse_choices

    return [] if text is None else parse_choices(text)


def _read_side_by_side(
    model: str, named: list[tuple[str, str]], choices: Sequence[MechanismChoice], *, truncate: bool
) -> list[SideBySide]:
    from regard.models import EncoderDecoder, load
    from regard.view.read_side_by_side import read_side_by_side

    loaded = load(model)
    if isinstance(loaded, EncoderDecoder):
        raise OptionError(
            f"{model} is a translator, which cannot be shown under other mechanisms",
            expected="a text encoder, such as minilm",
            got=f"a {type(loaded).__name__}",
            do=f'leave out --mechanism: regard view {model} --source "..."',
        )
    readings = []
    with count_progress(len(named), "texts") as advance:
        for name, text in named:
            readings.append(read_side_by_side(loaded, text, choices, truncate=truncate, name=name))
            advance(len(readings))
    return readings


def _read_texts(model: str, named: list[tuple[str, str]], *, truncate: bool) -> list[Reading]:
    read = _make_text_reader(model)
    readings = []
    with count_progress(len(named), "texts") as advance:
        for name, text in named:
            readings.append(read(text, truncate=truncate, name=name))
            advance(len(readings))
    return readings


def _make_text_reader(model: str) -> Callable[..., Reading]:
    """Load a model that reads texts, and return the function that captures its attention."""
    from regard.cli.checkpoint_folder import find_checkpoint, load_checkpoint
    from regard.models import EncoderDecoder, load
    from regard.models.load import ANY_MODEL
    from regard.view.read import read

    folder = find_checkpoint(model, ANY_MODEL)
    if folder is not None:
        checkpoint = load_checkpoint(folder)
        if checkpoint.is_encoder_decoder:
            raise _missing_source_error(model)
        from regard.hf.read_text import read_text

        return partial(read_text, checkpoint)
    loaded = load(model)
    if isinstance(loaded, EncoderDecoder):
        raise _missing_source_error(model)
    return partial(read, loaded)


def _read_pairs(model: str, sources: list[str], targets: list[str], prefix: str | None) -> list[PairReading]:
    _check_pairs(sources, targets)
    read = _make_pair_reader(model, prefix)
    translations: Sequence[str | None] = targets or [None] * len(sources)
    names = ["the source", "the target"] if len(sources) == 1 else ["source {}", "target {}"]
    readings = []
    with count_progress(len(sources), "translations") as advance:
        for number, (source, target) in enumerate(zip(sources, translations, strict=True), start=1):
            named = {"source_name": names[0].format(number), "target_name": names[1].format(number)}
            readings.append(read(source, target, **named))
            advance(number)
    return readings


def _make_pair_reader(model: str, prefix: str | None) -> Callable[..., PairReading]:
    """Load an encoder-decoder, and return the function that captures its attention.

    Raises OptionError for a ``prefix`` to a model that transformers reads, whose sources are read as they are.
    """
    from regard.cli.checkpoint_folder import find_checkpoint, load_checkpoint
    from regard.models import EncoderDecoder
    from regard.models.load import TRANSLATOR, load, resolve_folder
    from regard.translation import Translator
    from regard.view.read_pair import read_pair

    folder = find_checkpoint(model, TRANSLATOR)
    if folder is not None:
        checkpoint = load_checkpoint(folder)
        if not checkpoint.is_encoder_decoder:
            raise _no_translator_error(model, type(checkpoint.model).__name__)
        if prefix is not None:
            raise OptionError(
                f"--prefix has no effect on {model}, which transformers reads",
                expected="a T5, or a translator of regard",
                got=f"a {type(checkpoint.model).__name__}",
                do="write the prefix in --source",
            )
        from regard.hf.read_source_and_target import read_source_and_target

        return partial(read_source_and_target, checkpoint)
    loaded = load(resolve_folder(model, TRANSLATOR))
    if not isinstance(loaded, EncoderDecoder):
        raise _no_translator_error(model, type(loaded).__name__)
    translator = Translator(loaded, prefix=prefix)
    report_prefix(translator.prefix, prefix)
    translator.check_attention()
    return partial(read_pair, translator)


def _no_translator_error(model: str, got: str) -> OptionError:
    return OptionError(
        f"{model} is not a translator, so it cannot be used with --source",
        expected="a folder that `regard train translate` wrote, or an encoder-decoder of transformers",
        got=f"a {got}",
        do=f'give the text alone: regard view "..." --model {model}',
    )


def _choose_translator(arguments: list[str], model: str | None) -> str:
    """Return the translator's folder: the argument or ``--model``. Raises OptionError unless exactly one was given."""
    named = [*arguments, *([] if model is None else [model])]
    if len(named) != 1:
        raise OptionError(
            "--source needs exactly one model",
            expected="the folder of one translator",
            got=", ".join(map(repr, named)) if named else "none",
            do='regard view model/ --source "..."; quote a sentence of several words',
        )
    return named[0]


def _check_pairs(sources: list[str], targets: list[str]) -> None:
    """Raise OptionError unless there are no targets or one per source, DataError for an empty text."""
    if targets and len(targets) != len(sources):
        raise OptionError(
            "the numbers of sources and targets differ",
            expected="a --target for each --source, or none",
            got=f"{len(sources)} of --source, {len(targets)} of --target",
            do="leave out --target to let the model translate" if sources else 'add --source "..."',
        )
    for option, sentences in (("source", sources), ("target", targets)):
        for text in sentences:
            if not text.strip():
                raise DataError(
                    f"--{option} is empty", expected="a sentence", got=repr(text), do="give a sentence in quotes"
                )


def _check_no_text_options(data: str | None, field: str | None, *, truncate: bool) -> None:
    options = {"--data": data is not None, "--field": field is not None, "--truncate": truncate}
    named = [option for option, is_set in options.items() if is_set]
    if named:
        raise OptionError(
            f"{named[0]} cannot be used with --source",
            expected="texts for an encoder such as BERT, or --source for a translator",
            got="both",
            do="give --source once for each sentence",
        )


def _missing_source_error(model: str) -> OptionError:
    return OptionError(
        f"{model} is an encoder-decoder, such as a translator, and --source is missing",
        expected="--source, and optionally --target",
        got="a text alone",
        do=f'regard view {model} --source "..."',
    )


def _collect_texts(arguments: list[str], data: str | None, field: str | None) -> list[tuple[str, str]]:
    """Collect the name and text of each argument, or of each line that is not blank.

    Raises DataError for an empty argument, an unreadable line, or no text at all; OptionError for more than
    ``MAX_TEXTS`` texts.
    """
    check_text_options(arguments, data, field)
    if len(arguments) == 1 and _is_model_folder(arguments[0]):
        raise OptionError(
            f"{arguments[0]} is a model's folder, and the text is missing",
            expected="a text, or --source for a translator",
            got="a folder alone",
            do=f'regard view {arguments[0]} --source "...", or regard view "..." --model {arguments[0]}',
        )
    with open_texts(arguments, data, field) as lines:
        named = map(_name_and_text, lines)
        collected = list(islice((one for one in named if arguments or one[1].strip()), MAX_TEXTS + 1))
    for name, text in collected:
        if not text.strip():
            raise DataError(f"{name} is empty", expected="a text", got=repr(text), do="give a text in quotes")
    if not collected:
        raise DataError(
            "there is no text to view",
            expected="one or more texts",
            got="only blank lines",
            do='try: regard view "I ate an apple."',
        )
    if len(collected) > MAX_TEXTS:
        file = "FILE" if data in (None, "-") else data
        raise OptionError(
            "there are too many texts to view",
            expected=f"at most {MAX_TEXTS}",
            got=f"more than {MAX_TEXTS}",
            do=f"view some of them: head -n 20 {file} | regard view; or embed them all: regard embed --data {file}",
        )
    return collected


def _is_model_folder(text: str) -> bool:
    try:
        return (Path(text) / "config.json").is_file()
    except (OSError, ValueError):  # not a valid path
        return False


def _hint_at_quotes(texts: list[str]) -> None:
    """Hint at missing quotes if all texts are single ASCII words (scripts without spaces are not ASCII)."""
    if len(texts) > 1 and all(text.isascii() and len(text.split()) == 1 for text in texts):
        from regard.escape_text import escape_text

        sentence = escape_text(" ".join(texts))
        print(f'These are {len(texts)} texts of one word. One sentence? Quote it: "{sentence}"', file=sys.stderr)


def _name_and_text(line: Line) -> tuple[str, str]:
    if line.problem is not None:
        raise line.problem
    return line.name, line.text
