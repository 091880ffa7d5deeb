"""Reading of a file: run a model of pictures, sounds or other files on it, and capture its attention.

A CLIP compares the picture, and each of its patches, with texts:

    probabilities       softmax over the texts of exp(logit_scale) v . t_k          v, t: embeddings of length 1
    gradient rollout    of the logit of each text, see ``rollout``
    similarity          cosine of t_k and the projection of a patch, normed as the class token is: W norm(h_i)

Only the class token is trained to be near a text. That patches are too is an observation: Zhou, Loy and Dai 2022,
"Extract free dense labels from CLIP", section 3.1, whose maps leave out the attention of the last layer; here it stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.classification import ZeroShotClassifier
from regard.errors import DataError, OptionError, check_kind
from regard.models import AudioEncoder, Clip, ImageEncoder
from regard.models.image_encoder import ImageOutput
from regard.models.media_encoder import DrawnInput, MediaEncoder
from regard.recording import record
from regard.text.tokenizer import check_texts
from regard.transcription import Transcriber, Transcription
from regard.transcription.text_labels import TextLabels
from regard.view.from_recording import layers_of
from regard.view.picture_reading import PictureLayer, PictureReading
from regard.view.read_picture import capture_picture, find_label, rank_labels
from regard.view.read_speech import SpeechModel, read_speech
from regard.view.sound_track import HeardWord, SoundTrack, join_labels

MAX_TOKENS = 2048
"""Maximum number of tokens of an input that is no picture, 82 seconds of a Conformer."""
MAX_TEXTS = 12
"""Most texts of a page: the gradient of each is rolled out."""


@explain_arguments
def read_file(model: Any, file: Any, *, labels: Sequence[str] = (), name: str = "") -> PictureReading:
    """Capture every attention layer of ``model`` for a file; with a head that classifies also its labels.

    Args:
        model: from ``regard.load``: an image encoder, a CLIP, or another model that draws its inputs, such as a
            Conformer, which reads sounds; or a speech model of transformers, such as a Whisper, from
            ``regard.hf.speech_checkpoint.load_speech_checkpoint``.
        file: a path, or another form that the model reads, such as the bytes of a file, or an array of uint8 for a
            picture.
        labels: of an image encoder, a label whose gradient is shown beside the gradients of the ``MAX_LABELS`` most
            probable ones; of a CLIP, texts to compare with the picture, ``MAX_TEXTS`` at most, such as
            ["a photo of a cat.", "a photo of a dog."]. Without any, a CLIP is its vision tower.
        name: the name of the file on the page and in messages; "" is its path.

    Raises DataError for a file that cannot be read or has too many tokens, and for a text that is too long; OptionError
    for labels that the model lacks, and for unusable texts; CheckpointError for a model without a tokenizer or
    processor; RefusedError for a model that does not draw its inputs.
    """
    check_texts("labels", labels)
    check_kind("name", name, str, do="the name of the file on the page")
    if isinstance(model, Clip) and labels:
        return _read_clip(model, file, labels, name=name)
    pictures = ImageEncoder.part_of(model)
    if len(labels) > (pictures is not None):
        raise OptionError(
            "`labels` has more labels than the model takes",
            expected="texts for a CLIP, or one label of an image encoder, beside the five most probable ones",
            got=f"{len(labels)} for a {type(model).__name__}",
            do="leave out the others",
        )
    if pictures is not None:
        chosen = find_label(pictures, labels[0] if labels else None)
        return capture_picture(
            pictures,
            file,
            name=name,
            labels=pictures.labels,
            compute_logits=lambda output: output.logits,
            chosen=chosen,
        )[0]
    if isinstance(model, SpeechModel):
        return read_speech(model, file, name=name)
    check_kind("model", model, MediaEncoder, do='model = regard.load("conformer/")')
    assert isinstance(model, MediaEncoder)
    return _read_drawn(model, file, name=name)


def _read_drawn(model: MediaEncoder, file: Any, *, name: str) -> PictureReading:
    """Capture the attention of a model that draws its inputs."""
    name = name or (str(file) if isinstance(file, str | Path) else f"the {model.medium.singular}")
    samples = model.require_processor().read_samples(file, name=name) if isinstance(model, AudioEncoder) else None
    content = model.make_input(file if samples is None else samples, name=name)
    drawn = model.draw_input(content)
    if drawn.grid.tokens > MAX_TOKENS:
        raise DataError(
            f"{name} is too long to show",
            expected=f"at most {MAX_TOKENS:,} tokens",
            got=f"{drawn.grid.tokens:,}",
            do="cut it into parts",
        )
    logits = transcription = None
    with record(model) as recording:
        if isinstance(model, AudioEncoder) and model.labels and not model.classifies:
            (transcription,) = Transcriber(model, batch=1).transcribe_features([content], [name])
        else:
            (output,) = model.run_inputs([content], batch=1)
            logits = output.logits if model.classifies else None
    return PictureReading(
        name,
        drawn.pixels,
        tuple(PictureLayer(drawn.grid, layer, drawn.cell) for layer in layers_of(recording)),
        rank_labels(model.labels, logits),
        no_rollout_reason=drawn.no_rollout_reason,
        noun=drawn.noun,
        note=drawn.note,
        axis=drawn.axis,
        track=None if samples is None else _make_track(model, samples, transcription, drawn),
    )


def _make_track(
    model: MediaEncoder,
    samples: Float32[np.ndarray, " samples"],
    transcription: Transcription | None,
    drawn: DrawnInput,
) -> SoundTrack:
    """The sound, and what a model with a ctc head wrote for it; such a head writes nothing for a blank."""
    rate = model.require_processor().rate
    if transcription is None or drawn.axis is None:
        return SoundTrack(samples, rate)
    step = drawn.axis.seconds_per_token
    labels = tuple(
        HeardWord(
            label.text, label.start, label.end, range(round(label.start / step), math.ceil(label.end / step - 1e-6))
        )
        for label in transcription.labels
    )
    joined = join_labels(labels) if TextLabels(model.labels).tokenizer == "characters" else labels
    timing = "Times are those of the tokens for which the model wrote a label."
    return SoundTrack(samples, rate, labels, joined, transcription.text, timing)


def _read_clip(model: Clip, picture: Any, texts: Sequence[str], *, name: str) -> PictureReading:
    """Capture the attention of the vision tower of a CLIP, and what texts have in common with the picture."""
    with torch.no_grad():
        classifier = ZeroShotClassifier(model, texts)
    if len(classifier.labels) > MAX_TEXTS:
        raise OptionError(
            "there are too many texts",
            expected=f"at most {MAX_TEXTS}",
            got=str(len(classifier.labels)),
            do="view some of them",
        )
    vectors = classifier.label_embeddings

    def compute_logits(output: ImageOutput) -> Tensor:
        pictures = functional.normalize(output.pooled, dim=-1)
        return model.compute_logits(vectors.to(pictures), pictures)

    reading, output = capture_picture(
        model.vision, picture, name=name, labels=classifier.labels, compute_logits=compute_logits, gradients=MAX_TEXTS
    )
    return replace(
        reading, similarities=dict(zip(classifier.labels, _compare_tokens(model, output, vectors), strict=True))
    )


@torch.no_grad()
def _compare_tokens(model: Clip, output: ImageOutput, vectors: Tensor) -> list[np.ndarray]:
    """The cosine of each text (texts, size) with each token, as arrays (tokens,) of float64."""
    tower = model.vision
    tokens = tower.norm(output.hidden[0])
    if tower.projection is not None:
        tokens = tower.projection(tokens)
    cosines = vectors.cpu().double() @ functional.normalize(tokens.cpu().double(), dim=-1).T
    return list(cosines.numpy())
