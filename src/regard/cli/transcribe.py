"""``regard transcribe``: the texts of sounds, from arguments, a folder, a file or a pipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.loaded_model import choose_numbers, require_model
from regard.cli.media_input import MediaInput, open_media, read_media, write_answers
from regard.cli.output_file import check_output_file
from regard.cli.shared_options import Device, Dtype, OutputFile, Overwrite, Weights, format_option, model_option, option
from regard.cli.text_input import check_text_options, is_stdin_terminal
from regard.cli.translation_formats import to_one_line
from regard.cli.verb import Verb
from regard.device_names import AUTO
from regard.errors import OptionError, check_choice

if TYPE_CHECKING:
    from regard.transcription import Transcriber, Transcription

FORMATS = ("text", "tsv", "jsonl")

NOTES = """
[bold]Formats.[/bold] text: the text alone. tsv: path, text, which is a table that `regard evaluate transcribe` and \
`regard train transcribe` read. jsonl: sound, text, and its characters (of some models its words) with the times, in \
seconds, between which the model wrote each: within the character or soon after it, and not its bounds.

[bold]Lines.[/bold] The output has one line per sound, in the same order. Sounds from a pipe are answered as they \
arrive. With --skip-bad an unusable sound has no text and gives a message. A run that ends early leaves the finished \
lines in OUT.partial.

[bold]Examples[/bold]

  regard transcribe --model model/ hello.wav

  regard transcribe --model model/ recordings/ --format tsv -o texts.tsv

  regard transcribe --model model/ hello.wav --format jsonl

  find . -name "*.flac" | regard transcribe --model model/ --skip-bad
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("transcribe", cls=Verb, epilog=NOTES)(transcribe)


def transcribe(
    sounds: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOUND", help="WAV or FLAC files, or folders of them.", show_default=False),
    ] = None,
    model: Annotated[str, model_option("Folder that `regard train transcribe` wrote; required.")] = "",
    data: Annotated[
        str | None,
        option(
            "--data",
            "Folder of sounds, or file with one path per line, plain or gzip; - is standard input. A pipe is read "
            "without --data.",
            metavar="FILE",
        ),
    ] = None,
    out: OutputFile = None,
    form: Annotated[str, format_option("Output format: text, tsv or jsonl.", FORMATS)] = "text",
    field: Annotated[
        str | None, option("--field", "Field of JSON lines, or column of a table, with the path.", metavar="NAME")
    ] = None,
    skip_bad: Annotated[
        bool, option("--skip-bad", "Write no text for an unusable sound, and report it.", show_default=True)
    ] = False,
    weights: Weights = None,
    device: Device = AUTO,
    dtype: Dtype = AUTO,
    overwrite: Overwrite = False,
) -> None:
    """Write the texts of sounds with a trained model."""
    sounds = sounds or []
    check_choice("format of transcriptions", form, FORMATS)
    check_output_file(out, overwrite=overwrite, data=data)
    _check_sounds(sounds, data, field)
    transcriber = load_transcriber(model, choose_numbers(device, dtype), weights)
    from regard.audio.sound_file import SOUNDS

    def answer(files: list[MediaInput]) -> list[str]:
        unit = transcriber.labels.tokenizer
        return [format_transcription(transcription, form, unit) for transcription in _transcribe(transcriber, files)]

    with open_media(sounds, data, field, SOUNDS) as lines:
        files = read_media(lines, lambda path, name: transcriber.read(path, name=name), SOUNDS, out)
        write_answers(files, answer, out, SOUNDS, lacking="a text", skip_bad=skip_bad)


def _check_sounds(sounds: list[str], data: str | None, field: str | None) -> None:
    """Raise OptionError for contradictory options, or if there is no sound to read."""
    if not sounds and data is None and is_stdin_terminal():
        raise OptionError(
            "there is no sound",
            expected="paths of sounds, --data FILE, or a pipe to standard input",
            got="nothing",
            do="give a path, such as hello.wav",
        )
    check_text_options(sounds, data, field)


def load_transcriber(folder: str, numbers: Mapping[str, Any], weights: str | None) -> Transcriber:
    """Load a transcriber; ``numbers`` are those of ``choose_numbers``, or a device alone.

    Raises OptionError without a folder.
    """
    require_model(folder, example="regard train transcribe --data speech/ --out model/")
    from regard.transcription import Transcriber

    return Transcriber.load(folder, **numbers, weights=weights)


def format_transcription(transcription: Transcription, form: str, unit: str) -> str:
    """Format a transcription in one of ``FORMATS``, line ending included; ``unit`` is "characters" or "words"."""
    text = to_one_line(transcription.text)
    if form == "text":
        return f"{text}\n"
    if form == "tsv":
        return f"{to_one_line(transcription.name)}\t{text}\n"
    labels = [
        {"text": label.text, "start": round(label.start, 3), "end": round(label.end, 3)}
        for label in transcription.labels
    ]
    record = {"sound": transcription.name, "text": transcription.text, unit: labels}
    return json.dumps(record, ensure_ascii=False) + "\n"


def _transcribe(transcriber: Transcriber, some: list[MediaInput]) -> list[Transcription]:
    """The transcriptions, in order; broken files have no text."""
    from regard.transcription import Transcription

    good = [sound for sound in some if sound.problem is None]
    found = iter(transcriber.transcribe_features([sound.content for sound in good], [sound.name for sound in good]))
    return [next(found) if sound.problem is None else Transcription(sound.name, "", ()) for sound in some]
