"""``regard evaluate transcribe``: error rates of the texts that a model writes for sounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from regard.cli.media_input import read_entries
from regard.cli.shared_options import (
    Device,
    ScoreFormat,
    SkipBad,
    TextColumns,
    Weights,
    check_score_format,
    model_option,
    option,
)
from regard.cli.transcribe import load_transcriber
from regard.cli.verb import Verb
from regard.columns import parse_columns
from regard.device_names import AUTO
from regard.language import count_noun, translate, translate_message

if TYPE_CHECKING:
    from regard.media.files_with_texts import FileWithText
    from regard.transcription import Transcriber
    from regard.transcription.scores import ErrorRate, TranscriptionMeasure

NOTES = """
[bold]Error rates[/bold] are substitutions, insertions and deletions over the words (WER) or characters (CER) of the \
references, computed by jiwer. Upper and lower case and punctuation count. Insertions may raise a rate above 1.

[bold]Loss[/bold] is the mean of a character (of some models of a word), in nats. Texts with characters that the model \
lacks, and texts that are too long for their sound, have no loss; they count in the error rates.

[bold]Examples[/bold]

  regard evaluate transcribe --model model/ --data test.csv

  regard evaluate transcribe --model model/ --data test/ --skip-bad --worst 20

  regard evaluate transcribe --model model/ --data test.tsv --columns 2,1 --format json
"""


def register(evaluate: typer.Typer) -> None:
    """Add the command to its verb."""
    evaluate.command("transcribe", cls=Verb, epilog=NOTES)(transcribe)


@final
@dataclass(frozen=True)
class _Example:
    """A sound, its reference, what the model wrote, and the edits between them, in characters."""

    sound: str
    reference: str
    hypothesis: str
    errors: int


def transcribe(
    data: Annotated[
        list[Path],
        option(
            "--data", "Sounds with their texts, in any format of the training data; repeat for more.", metavar="PATH"
        ),
    ],
    model: Annotated[str, model_option("Folder of the model to measure; required.")] = "",
    columns: TextColumns = None,
    worst: Annotated[int, option("--worst", "Number of the worst texts to show.", min=0, show_default=True)] = 5,
    skip_bad: SkipBad = False,
    form: ScoreFormat = "text",
    weights: Weights = None,
    device: Device = AUTO,
) -> None:
    """Measure a model that writes texts: word and character error rates, loss, and the worst texts."""
    check_score_format(form)
    parsed = parse_columns(columns)
    from regard.audio.sound_file import SOUNDS
    from regard.columns import check_columns
    from regard.media.files_with_texts import read_and_report_files_with_texts
    from regard.transcription.scores import load_jiwer

    check_columns(parsed, ("path", "text"))
    load_jiwer()  # raises before the model is loaded
    transcriber = load_transcriber(model, {"device": device}, weights)
    sounds = read_and_report_files_with_texts(data, SOUNDS, parsed)
    measure, used = _measure(transcriber, sounds, skip_bad=skip_bad)
    scores = measure.score()
    fields: dict[str, Any] = {
        "sounds": scores.texts,
        "exact": scores.exact,
        "word_error_rate": scores.words.rate,
        "character_error_rate": scores.characters.rate,
        "loss": measure.loss,
        "without_loss": measure.without_loss,
        "words": asdict(scores.words),
        "characters": asdict(scores.characters),
    }
    examples = _find_worst(used, measure, scores.errors, worst)
    if form == "json":
        print(json.dumps({**fields, "worst": [asdict(example) for example in examples]}, indent=2, ensure_ascii=False))
        return
    _print_scores(fields, scores.words, scores.characters, transcriber.labels.tokenizer)
    _print_examples(examples)


def _measure(
    transcriber: Transcriber, sounds: Sequence[FileWithText], *, skip_bad: bool
) -> tuple[TranscriptionMeasure, list[FileWithText]]:
    """Run the model on the sounds, and return those that can be read. Raises DataError for others, unless skip_bad."""
    from regard.audio.sound_file import SOUNDS
    from regard.transcription.scores import TranscriptionMeasure

    measure, used = TranscriptionMeasure(transcriber.labels), list[Any]()

    def read(sound: FileWithText) -> Any:
        return transcriber.read(sound.content, name=sound.place)

    for good, inputs in read_entries(sounds, read, SOUNDS, skip_bad=skip_bad):
        texts = [sound.text for sound in good]
        used += good
        for output in transcriber.model.run_inputs(inputs, batch=transcriber.batch):
            count = output.visible.shape[0]
            measure.add(output, texts[:count])
            texts = texts[count:]
    return measure, used


def _find_worst(
    sounds: Sequence[FileWithText], measure: TranscriptionMeasure, errors: Sequence[int], limit: int
) -> list[_Example]:
    """The texts with the largest character error rates, at most ``limit``; those without errors are left out."""
    order = sorted(range(len(errors)), key=lambda index: -errors[index] / len(measure.references[index]))
    return [
        _Example(sounds[index].place, measure.references[index], measure.hypotheses[index], errors[index])
        for index in order[:limit]
        if errors[index]
    ]


def _print_scores(fields: dict[str, Any], words: ErrorRate, characters: ErrorRate, unit: str) -> None:
    loss = "none" if fields["loss"] is None else f"{fields['loss']:.4f} per {unit.removesuffix('s')}"
    rates = f"word error rate {words.rate:.4f}   character error rate {characters.rate:.4f}   loss {loss}"
    print(translate_message(rates))
    print(translate_message(f"{count_noun(fields['sounds'], 'sound')}, {fields['exact']:,} of them without an error"))
    for name, rate in (("words", words), ("characters", characters)):
        counts = f"{rate.substitutions:,} substituted, {rate.insertions:,} inserted, {rate.deletions:,} deleted"
        print(translate_message(f"{rate.length:,} {name}: {counts}"))
    if fields["without_loss"]:
        sentence = f"{fields['without_loss']:,} of the texts cannot be written by the model, and have no loss"
        print(translate_message(sentence))


def _print_examples(examples: Sequence[_Example]) -> None:
    """Print the worst texts, with terminal control characters escaped: texts and names are untrusted."""
    from regard.escape_text import escape_text

    if examples:
        print("\n" + translate_message("The worst texts, by character error rate"))
    for example in examples:
        rate = example.errors / len(example.reference)
        print(f"  {escape_text(example.sound)}, {rate:.2f}")
        print(f"    {translate('text'):5}  {escape_text(example.reference)}")
        print(f"    {translate('model'):5}  {escape_text(example.hypothesis)}")
