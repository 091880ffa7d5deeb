"""The data of a transcriber: sounds that are too short for their texts, and characters that no text teaches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regard.audio.sound_file import SOUNDS
from regard.errors import DataError, short_repr
from regard.media.files_with_texts import FileWithText
from regard.models import AudioEncoder
from regard.models.ctc import count_needed_tokens
from regard.tasks.labelled_media import Say, report_bad_files
from regard.tasks.sentences import Indices
from regard.tasks.sound_features import SoundFeatures
from regard.transcription.text_labels import TextLabels

_SHOWN = 12
"""Characters or words that a message names."""


def find_long_enough(
    features: SoundFeatures[FileWithText], model: AudioEncoder, labels: TextLabels, *, skip_bad: bool, say: Say
) -> Indices:
    """The indices of the sounds that have as many tokens as their texts need, those with unknown labels among them.

    Raises DataError with the names of the others, unless ``skip_bad``, which reports them.
    """
    good, problems = [], []
    for index, (sound, frames) in enumerate(zip(features.sounds, features.lengths.tolist(), strict=True)):
        target, tokens = labels.encode(sound.text), model.count_tokens(frames)
        needed = 0 if target is None else count_needed_tokens(target)
        if needed > tokens:
            problems.append(_too_short_error(sound, needed, tokens))
        else:
            good.append(index)
    report_bad_files(problems, len(features.sounds), SOUNDS, skip_bad=skip_bad, say=say)
    return np.array(good, dtype=np.int64)


def report_unknown(texts: Sequence[str], learned: TextLabels, say: Say) -> None:
    """Report the characters or words of validation texts that are not among the ``learned`` ones."""
    unknown = list(dict.fromkeys(one for text in texts for one in learned.find_unknown(text)))
    if unknown:
        listed = shorten_list([repr(one) for one in unknown])
        say(f"{learned.tokenizer} of validation texts that the training texts lack count as errors: {listed}")


def shorten_list(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _too_short_error(sound: FileWithText, needed: int, tokens: int) -> DataError:
    have = "1 token" if tokens == 1 else f"{tokens:,} tokens"
    return DataError(
        f"{sound.place} is too short for its text: it has {have}, and the text needs {needed:,}",
        expected="a label for a token at most, and a blank between equal ones",
        got=short_repr(sound.text),
        do="check the text, or leave the sound out",
    )
