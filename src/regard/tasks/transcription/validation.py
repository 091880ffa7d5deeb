"""The validation of a transcriber: word and character error rates, and the loss, on validation sounds."""

from __future__ import annotations

from regard.models import AudioEncoder
from regard.tasks.recipe_task import sample_rows
from regard.tasks.transcription.data import Batches
from regard.train import Validation
from regard.transcription.measure import TranscriptionMeasure
from regard.transcription.text_labels import TextLabels

_BATCH = 32
_NUM_SAMPLES = 3


def validate_texts(model: AudioEncoder, batches: Batches, *, metric: str) -> Validation:
    """Error rates and loss (mean per label) with samples of texts; ``metric``, "cer", "wer" or "loss", counts."""
    measure, sounds = TranscriptionMeasure(TextLabels(model.labels)), batches.examples.files
    places: list[str] = []
    for rows in batches.cut_for_validation(_BATCH):
        some = [sounds[row] for row in rows.tolist()]
        measure.add(model(**batches.inputs(rows, model.device)), [one.text for one in some])
        places += [one.place for one in some]
    scores = measure.score()
    metrics = {"cer": scores.characters.rate, "wer": scores.words.rate}
    metrics |= {} if measure.loss is None else {"loss": measure.loss}
    return Validation(-metrics[metric], metrics, _samples(places, measure))


def _samples(places: list[str], measure: TranscriptionMeasure) -> tuple[str, ...]:
    """Some sounds with their texts and what the model writes, from the longest to shorter ones."""
    lines: list[str] = []
    for index in sample_rows(len(places), _NUM_SAMPLES):
        lines += [f"sound:  {places[index]}", f"text:   {measure.references[index]}"]
        lines += [f"model:  {measure.hypotheses[index]}"]
    return tuple(lines)
