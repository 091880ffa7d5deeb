"""The task of transcription, for ``regard.train.run``."""

from __future__ import annotations

from functools import partial
from typing import Any, final

from torch import Tensor, nn

from regard.audio import AudioProcessor
from regard.audio.sound_augmentation import SoundAugmentation
from regard.audio.sound_file import SOUNDS
from regard.errors import DataError, OptionError
from regard.language import abbreviate_names
from regard.log import log
from regard.media.files_with_texts import FileWithText, read_and_report_files_with_texts
from regard.models import AudioEncoder, Conformer, ctc_loss
from regard.models.audio_encoder import AudioEncoderOutput
from regard.tasks.decoded_files import FileSet, split_files
from regard.tasks.labelled_data import report_conflicts, report_replaced_head
from regard.tasks.new_conformer import build_conformer, describe_model, with_ctc_labels
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.recipe_task import sample_rows
from regard.tasks.sentences import Indices
from regard.tasks.sound_batches import Features, decode_sounds
from regard.tasks.sound_task import SoundTask
from regard.tasks.transcription.data import MOST_LISTED, TranscribedSoundBatches, report_unknown, select_long_enough
from regard.tasks.transcription.recipe import METRICS, TranscriptionRecipe
from regard.train import RunContext, Validation
from regard.transcription.scores import TranscriptionMeasure, load_jiwer
from regard.transcription.text_labels import TextLabels

_BATCH = 32
_NUM_SAMPLES = 3


@final
class TranscriptionTask(SoundTask[TranscriptionRecipe]):
    """Training a model that writes the texts of sounds, by ``recipe``.

    ``prepare`` makes the choices that the recipe leaves open, and reports them. It sets ``batches`` to the training
    sounds, ``held_out`` to the validation sounds, ``labels`` to the labels of the model, and ``metric`` to what decides
    which weights are best.
    """

    model: AudioEncoder
    batches: TranscribedSoundBatches
    held_out: TranscribedSoundBatches
    labels: TextLabels
    metric: str

    data_kind = "sounds with texts"

    def check(self) -> None:
        """Raise as ``RecipeTask.check``, and MissingPackageError without the package of error rates."""
        super().check()
        load_jiwer()

    def prepare(self, context: RunContext) -> None:
        """Read and decode the sounds, make or load the model, and hold some sounds out.

        Raises DataError for data that cannot be used, OptionError for an invalid recipe, CheckpointError for a model
        that cannot be started from.
        """
        recipe, seed = self._recipe, context.settings.seed
        self.check()
        start = self.load_start()
        sounds = read_and_report_files_with_texts(recipe.data, SOUNDS, recipe.columns)
        others = (
            read_and_report_files_with_texts(recipe.validation, SOUNDS, recipe.columns) if recipe.validation else []
        )
        if start is None:
            sounds, processor = self._choose_processor(sounds)
        else:
            assert start.processor is not None
            processor = start.processor
        whole, other = decode_sounds(sounds, others, processor, memory=recipe.memory, skip_bad=recipe.skip_bad)
        texts = [file.text for file in whole.files]
        self.model = self._build_model(texts, processor) if start is None else self._fine_tune(start, texts)
        self.model.processor = processor
        self.labels = TextLabels(self.model.labels)
        log.info(f"the model: {describe_model(recipe, self._size, self.model, processor)}")
        report_conflicts(whole.digests, whole.files, texts, SOUNDS, what="texts")
        self._split(
            FileSet.whole(whole),
            None if other is None else FileSet.whole(other),
            recipe.augmentation(),
            seed=seed,
        )
        self._report_texts()
        self.metric = recipe.metric or ("wer" if self.labels.tokenizer == "words" else "cer")
        log.info(f"the best model is chosen by the {METRICS[self.metric]}")
        self.try_model()

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model that was chosen, and a hash of the sounds and texts."""
        return {**super().recipe(), "tokenizer": self.labels.tokenizer}

    def tokens(self, batch: NumberedBatch) -> int:
        """The number of characters or words of a batch."""
        return self.batches.count_labels(batch)

    @property
    def unit(self) -> str:
        """The unit of ``tokens``, in the plural."""
        return self.labels.tokenizer

    def loss_of(self, output: AudioEncoderOutput, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar."""
        return ctc_loss(output, self.batches.targets_of(batch, rows)).sum()

    def validate(self, model: nn.Module) -> Validation:
        """Measure error rates and loss on the validation sounds."""
        assert isinstance(model, AudioEncoder)
        return validate_texts(model, self.held_out, metric=self.metric)

    def baseline(self) -> float | None:
        """The score of a model that writes nothing, whose error rates are 1; unknown for the loss."""
        return None if self.metric == "loss" else -1.0

    def describe(self, score: float) -> str:
        """Format a score, for example "character error rate 0.014 on held-out sounds"."""
        return f"{METRICS[self.metric]} {abs(score):.3f} on held-out sounds"

    def _build_model(self, texts: list[str], processor: AudioProcessor) -> AudioEncoder:
        self._size = self.presets.choose_size(len(texts), self._recipe.model)
        labels = TextLabels.find(texts, self._recipe.tokenizer or "characters")
        return build_conformer(self._recipe, self._size, bands=processor.mels, labels=labels.labels)

    def _fine_tune(self, start: Conformer, texts: list[str]) -> AudioEncoder:
        """The trained model, with the labels of the texts too. Raises OptionError for labels of another kind."""
        has_texts = bool(start.labels) and not start.classifies
        option = self._recipe.tokenizer
        tokenizer = TextLabels(start.labels).tokenizer if has_texts else option or "characters"
        if option not in (None, tokenizer):
            raise OptionError(
                "fine-tuning cannot change what a label is",
                expected=f"tokenizer={tokenizer!r}, that of {self._recipe.start}",
                got=f"tokenizer={option!r}",
                do="leave it out (`tokenizer=...`)",
            )
        labels = TextLabels.find(texts, tokenizer).labels
        model = with_ctc_labels(start, labels)
        new = [repr(label) for label in model.labels if label not in start.labels]
        if not has_texts:
            report_replaced_head(str(self._recipe.start), start.labels, labels, is_kept=False)
        elif new:
            listed = abbreviate_names(new, MOST_LISTED)
            log.info(f"the head of {self._recipe.start} gets random weights for new {tokenizer}: {listed}")
        return model

    def _split(
        self,
        whole: FileSet[FileWithText, Features],
        other: FileSet[FileWithText, Features] | None,
        augmentation: SoundAugmentation,
        *,
        seed: int,
    ) -> None:
        """Set the batches for training and for validation, of sounds that are long enough for their texts."""
        recipe, labels = self._recipe, self.labels
        select = partial(select_long_enough, model=self.model, labels=labels, skip_bad=recipe.skip_bad)
        whole, other = select(whole), None if other is None else select(other)
        training, held = split_files(whole, other, [()] * len(whole), SOUNDS, seed=seed)
        self.batches, self.held_out = (
            TranscribedSoundBatches(
                sounds,
                labels,
                frames_per_token=self.model.frames_per_token,
                size=recipe.batch,
                seed=seed,
                augmentation=own,
            )
            for sounds, own in ((training, augmentation), (held, SoundAugmentation()))
        )

    def _report_texts(self) -> None:
        """Report the labels, and the labels of validation texts that cannot be learned.

        Raises DataError if the loss decides which weights are best, and no validation text has one.
        """
        labels = self.labels
        listed = abbreviate_names([repr(label) for label in labels.labels], MOST_LISTED)
        log.info(f"{len(labels.labels):,} {labels.tokenizer}: {listed}")
        learned = labels
        if self._recipe.start is None:
            learned = TextLabels.find(self.batches.texts, labels.tokenizer)
        report_unknown(self.held_out.texts, learned)
        if self._recipe.metric == "loss" and all(target is None for target in self.held_out.targets):
            raise DataError(
                "no validation text has a loss",
                expected=f"a text of known {labels.tokenizer}",
                got=f"unknown {labels.tokenizer} in each of them",
                do="choose another `metric`, or other validation data (`validation=...`)",
            )


def validate_texts(model: AudioEncoder, batches: TranscribedSoundBatches, *, metric: str) -> Validation:
    """Error rates and loss (mean per label) with samples of texts; ``metric``, "cer", "wer" or "loss", counts."""
    measure, sounds = TranscriptionMeasure(TextLabels(model.labels)), batches.examples.files
    places: list[str] = []
    for rows in batches.cut_for_validation(_BATCH):
        some = [sounds[row] for row in rows.tolist()]
        measure.add(model(**batches.inputs(rows, model.device)), [sound.text for sound in some])
        places += [sound.place for sound in some]
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
