"""The data of a transcriber: sounds that are too short for their texts, and characters that no text teaches.

Batches of sounds with the texts that a model learns to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from regard.audio.sound_augmentation import SoundAugmentation
from regard.audio.sound_file import SOUNDS
from regard.errors import DataError, short_repr
from regard.language import abbreviate_names, count_noun
from regard.log import log
from regard.media.files_with_texts import FileWithText
from regard.models import AudioEncoder
from regard.models.ctc import count_needed_tokens
from regard.tasks.decoded_files import FileSet
from regard.tasks.labelled_data import report_bad_files
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.sentences import Indices
from regard.tasks.sound_batches import Features, SoundBatches
from regard.transcription.text_labels import TextLabels


@final
class TranscribedSoundBatches(SoundBatches[FileWithText]):
    """Batches of sounds with texts; ``targets`` are the numbers of their labels, None if the ``labels`` lack one.

    ``frames_per_token`` is the model's number, by which augmentation leaves enough frames for each text.
    """

    def __init__(
        self,
        sounds: FileSet[FileWithText, Features],
        labels: TextLabels,
        *,
        frames_per_token: int,
        size: int,
        seed: int,
        augmentation: SoundAugmentation,
    ) -> None:
        super().__init__(sounds, size=size, seed=seed, augmentation=augmentation)
        self.frames_per_token = frames_per_token
        self.texts = [file.text for file in sounds.files]
        self.targets = [labels.encode(text) for text in self.texts]

    def target_bytes(self) -> bytes:
        """The texts of the sounds."""
        return "\0".join(self.texts).encode()

    def least_frames(self, index: int) -> int:
        """The least frames of as many tokens as the text needs."""
        return (count_needed_tokens(self._target(index)) - 1) * self.frames_per_token + 1

    def count_labels(self, batch: NumberedBatch) -> int:
        """The number of labels of the texts of a batch."""
        return sum(len(self._target(index)) for index in batch.examples.tolist())

    def targets_of(self, batch: NumberedBatch, rows: Indices) -> list[list[int]]:
        """The targets of the ``rows`` of a batch."""
        return [self._target(index) for index in batch.examples[rows].tolist()]

    def _target(self, index: int) -> list[int]:
        target = self.targets[index]
        assert target is not None, "a training text is written with labels of the model"
        return target


MOST_LISTED = 12
"""Characters or words that a message names."""


def select_long_enough(
    sounds: FileSet[FileWithText, Features], model: AudioEncoder, labels: TextLabels, *, skip_bad: bool
) -> FileSet[FileWithText, Features]:
    """The sounds that have as many tokens as their texts need, those with unknown labels among them.

    Raises DataError with the names of the others, unless ``skip_bad``, which reports them.
    """
    good, problems = [], []
    lengths = sounds.decoded.lengths[sounds.chosen].tolist()
    for index, (sound, frames) in enumerate(zip(sounds.files, lengths, strict=True)):
        target, tokens = labels.encode(sound.text), model.count_tokens(frames)
        needed = 0 if target is None else count_needed_tokens(target)
        if needed > tokens:
            problems.append(_too_short_error(sound, needed, tokens))
        else:
            good.append(index)
    report_bad_files(problems, len(sounds), SOUNDS, skip_bad=skip_bad)
    return sounds.select(np.array(good, dtype=np.int64))


def report_unknown(texts: Sequence[str], learned: TextLabels) -> None:
    """Report the characters or words of validation texts that are not among the ``learned`` ones."""
    unknown = list(dict.fromkeys(word for text in texts for word in learned.find_unknown(text)))
    if unknown:
        listed = abbreviate_names([repr(word) for word in unknown], MOST_LISTED)
        log.info(f"{learned.tokenizer} of validation texts that the training texts lack count as errors: {listed}")


def _too_short_error(sound: FileWithText, needed: int, tokens: int) -> DataError:
    return DataError(
        f"{sound.place} is too short for its text: it has {count_noun(tokens, 'token')}, and the text needs {needed:,}",
        expected="a label for a token at most, and a blank between equal ones",
        got=short_repr(sound.text),
        do="check the text, or leave the sound out",
    )
