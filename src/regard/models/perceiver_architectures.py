"""The classes of ``transformers`` for Perceivers: what each reads and returns, and its fields of config.json.

The sizes of the published models are partly constants in the code of these classes, so that they are not in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast, final

from regard.models.config_file import ConfigFile
from regard.models.label_names import read_labels
from regard.models.perceiver_inputs import (
    AudioInput,
    ConvolutionInput,
    FlowInput,
    JoinedInput,
    LabelInput,
    PerceiverInput,
    PixelInput,
    TextInput,
    TokenInput,
    TrainedPixelInput,
    VideoInput,
)
from regard.models.perceiver_outputs import (
    AudioOutput,
    ClassOutput,
    FlowOutput,
    JoinedOutput,
    LabelOutput,
    OutputQueries,
    TextOutput,
    VideoOutput,
)

_Ends = tuple[PerceiverInput, OutputQueries | None]


@final
class Architecture(NamedTuple):
    """A class of ``transformers``: how its input and output are read from config.json, and written to it.

    ``kinds`` are the classes of both.
    """

    kinds: tuple[type[PerceiverInput], type[OutputQueries] | None]
    read: Any
    write: Any


def find_architecture(source: PerceiverInput, output: OutputQueries | None) -> str | None:
    """The name of the class of ``transformers`` with an input and an output of these kinds; None if there is none."""
    kinds = (type(source), None if output is None else type(output))
    return next((name for name, architecture in ARCHITECTURES.items() if architecture.kinds == kinds), None)


def _read_tokens(config: ConfigFile) -> _Ends:
    return TokenInput(config.size("d_model", default=768)), None


def _read_text_input(config: ConfigFile) -> TextInput:
    return TextInput(
        vocabulary=config.size("vocab_size", default=262),
        max_length=config.size("max_position_embeddings", default=2048),
        width=config.size("d_model", default=768),
        pad_id=0
        if config.fields.get("pad_token_id") is None
        else config.index("pad_token_id", default=0, below="vocab_size"),
    )


def _read_masked_text(config: ConfigFile) -> _Ends:
    return _read_text_input(config), TextOutput()


def _read_text_class(config: ConfigFile) -> _Ends:
    return _read_text_input(config), ClassOutput(_read_labels(config))


def _write_text(source: TextInput, output: object) -> dict[str, Any]:
    del output
    return {
        "vocab_size": source.vocabulary,
        "max_position_embeddings": source.max_length,
        "d_model": source.width,
        "pad_token_id": source.pad_id,
    }


def _read_trained_pixels(config: ConfigFile) -> _Ends:
    size = config.size("image_size", default=56)
    return TrainedPixelInput((size, size)), ClassOutput(_read_labels(config))


def _read_pixels(config: ConfigFile) -> _Ends:
    return PixelInput(), ClassOutput(_read_labels(config))


def _read_convolution(config: ConfigFile) -> _Ends:
    return ConvolutionInput(), ClassOutput(_read_labels(config))


def _read_flow(config: ConfigFile) -> _Ends:
    return FlowInput(cast("tuple[int, int]", _sizes(config, "train_size", (368, 496)))), FlowOutput()


def _read_multimodal(config: ConfigFile) -> _Ends:
    frames, size = config.size("num_frames", default=16), config.size("image_size", default=56)
    samples = frames * config.size("audio_samples_per_frame", default=1920)
    patch, labels = config.size("samples_per_patch", default=16), _read_labels(config)
    shape = _sizes(config, "output_shape", (1, 16, 224, 224))
    resolution = (frames, size, size)
    source = JoinedInput(
        {
            "audio": AudioInput(samples, patch),
            "image": VideoInput(resolution),
            "label": LabelInput(len(labels)),
        },
        hidden=("label",),
    )
    output = JoinedOutput(
        {
            "audio": AudioOutput(samples, patch),
            "image": VideoOutput(cast("tuple[int, int, int]", shape[1:]), resolution=resolution),
            "label": LabelOutput(labels, config.size("_label_trainable_num_channels", default=1024)),
        },
        width=config.size("output_num_channels", default=512),
    )
    return source, output


def _write_multimodal(source: JoinedInput, output: JoinedOutput) -> dict[str, Any]:
    """The fields of a multimodal model; empty if it has other parts, which are then not what is read from them."""
    audio, image = source.parts.get("audio"), source.parts.get("image")
    video, label = output.parts.get("image"), output.parts.get("label")
    known = isinstance(audio, AudioInput) and isinstance(image, VideoInput)
    if not (known and isinstance(video, VideoOutput) and isinstance(label, LabelOutput)):
        return {}
    assert isinstance(audio, AudioInput)
    assert isinstance(image, VideoInput)
    frames = image.resolution[0]
    return {
        "num_frames": frames,
        "image_size": image.resolution[1],
        "audio_samples_per_frame": max(1, audio.samples // frames),
        "samples_per_patch": audio.patch,
        "output_shape": [1, *video.shape],
        "output_num_channels": output.width,
        "_label_trainable_num_channels": label.width,
    }


def _no_fields(source: object, output: object) -> dict[str, Any]:
    del source, output
    return {}


ARCHITECTURES: Mapping[str, Architecture] = {
    "PerceiverModel": Architecture((TokenInput, None), _read_tokens, lambda source, _: {"d_model": source.width}),
    "PerceiverForMaskedLM": Architecture((TextInput, TextOutput), _read_masked_text, _write_text),
    "PerceiverForSequenceClassification": Architecture((TextInput, ClassOutput), _read_text_class, _write_text),
    "PerceiverForImageClassificationLearned": Architecture(
        (TrainedPixelInput, ClassOutput), _read_trained_pixels, lambda source, _: {"image_size": source.size[0]}
    ),
    "PerceiverForImageClassificationFourier": Architecture((PixelInput, ClassOutput), _read_pixels, _no_fields),
    "PerceiverForImageClassificationConvProcessing": Architecture(
        (ConvolutionInput, ClassOutput), _read_convolution, _no_fields
    ),
    "PerceiverForOpticalFlow": Architecture(
        (FlowInput, FlowOutput), _read_flow, lambda source, _: {"train_size": list(source.size)}
    ),
    "PerceiverForMultimodalAutoencoding": Architecture(
        (JoinedInput, JoinedOutput), _read_multimodal, _write_multimodal
    ),
}
"""The classes of ``transformers`` by their names, which "architectures" holds."""


def _read_labels(config: ConfigFile) -> tuple[str, ...]:
    """The names of the labels in their order, from "id2label"; without it there are two, as in ``transformers``."""
    named = config.fields.get("id2label")
    return read_labels(config, len(named) if isinstance(named, dict) else config.size("num_labels", default=2))


def _sizes(config: ConfigFile, field: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Read a list of as many sizes as the default has."""
    sizes = config.sizes(field, default=default)
    if len(sizes) != len(default):
        raise config.field_error(field, f"a list of {len(default)} integers above 0")
    return sizes
