"""``regard.show``: the attention of any model, recording or weights, as a page, figures and tables.

show(model, "a text")                      a model, its folder or its name, and texts, pictures or sounds
show(model, "a text", tokenizer=tokenizer) a model of another package that reads token ids
show(seen, tokens=tokens)                  what ``regard.record`` recorded
show(weights=weights, tokens=tokens)       tensors of torch or arrays of NumPy
show(readings)                             readings of ``regard.view``
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import nn

from regard.arguments import explain_arguments
from regard.audio.sound_file import SOUNDS
from regard.chinese_words import ChineseWords, check_chinese_words
from regard.device_names import AUTO
from regard.errors import MissingPackageError, OptionError, RefusedError, check_kind, class_and_line, short_repr
from regard.language import check_language
from regard.layers.eval_mode import eval_mode
from regard.models import EncoderDecoder, ImageEncoder
from regard.models.load import has_class, load
from regard.models.media_encoder import MediaEncoder
from regard.models.model import Model
from regard.models.model_folder import ModelFolder
from regard.recording import LayerCall, Recording, record
from regard.recording.captured_inputs import capture_projections
from regard.text import Tokenizer
from regard.translation import Translator
from regard.view import read, read_file, read_pair
from regard.view.attention_layer import AttentionLayer
from regard.view.attention_view import AttentionView
from regard.view.captured_projections import add_projections
from regard.view.fit_page import AnyReading
from regard.view.from_picture import read_picture_layers
from regard.view.from_recording import layers_of
from regard.view.from_weights import layers_of_weights, name_tokens, read_layers
from regard.view.layer_weights import WeightsAre
from regard.view.read import TextModel, make_reading
from regard.view.read_speech import SpeechModel
from regard.view.reading import PairReading, Reading
from regard.view.word_grouping import group_chinese_words

_OF_TOKENS = ("tokens", "key_tokens", "picture", "grid")
_OF_WEIGHTS = ("queries", "keys", "values", "scale", "weights_are")


@explain_arguments
def show(
    source: Any = None,
    inputs: Any = None,
    *,
    targets: str | Sequence[str] | None = None,
    labels: Sequence[str] = (),
    tokenizer: Any = None,
    weights: Any = None,
    tokens: Any = None,
    key_tokens: Any = None,
    picture: Any = None,
    grid: tuple[int, int] | None = None,
    queries: Any = None,
    keys: Any = None,
    values: Any = None,
    scale: float | None = None,
    weights_are: WeightsAre = "distribution",
    name: str = "",
    language: str | None = None,
    chinese_words: ChineseWords | None = None,
) -> AttentionView:
    """Show the attention of a model, of a recording, or of weights: in a notebook, as a page, as figures and tables.

    Args:
        source: a model of ``regard.load``, its folder or its name; a folder of transformers; any torch module that
            reads token ids, with its ``tokenizer``; what ``regard.record`` recorded, or some of its calls; or readings
            of ``regard.view``. Left out, ``weights`` are shown.
        inputs: with a model: a text, or the path of a picture or a sound, or an array of one; or a list of them.
        targets: with a translator: the target of each text; None lets the model translate.
        labels: with a model of pictures: texts of a CLIP, or one more label, as ``regard.view.read_file`` takes them.
        tokenizer: with a module of another package: a fast tokenizer of transformers, one of the library tokenizers, or
            ``regard.text.Tokenizer``.
        weights: (layers, heads, queries, keys), (heads, queries, keys) of one layer, or a list of the layers, of torch
            or NumPy, such as ``output.attentions`` of transformers.
        tokens: the tokens of the queries of a recording or of weights, and of the keys unless there are ``key_tokens``:
            strings as the vocabulary spells them, or ``regard.view.Tokens``. None numbers them.
        key_tokens: the tokens of the keys, if they are of another text, as in cross-attention.
        picture: the picture whose patches the tokens of a recording or of weights are: its pixels as the model read
            them, (height, width), with 3 channels first or last, of uint8 or floats.
        grid: the numbers of rows and columns of its patches, the last tokens; None is those of a square.
        queries, keys, values: (layers, heads, tokens, head_dim) from which ``weights`` are computed, for their steps.
        scale: the factor of the products of queries and keys; None is head_dim**-0.5.
        weights_are: "distribution" (rows sum to 1), "non-negative" or "signed".
        name: the name of the model on the page; "" is that of its folder or class.
        language: that of the page, "en" or "zh"; None is that of the environment, such as ``LANG=zh_CN.UTF-8``.
        chinese_words: what Chinese words are: those that "jieba" finds, "characters", or what "spaces" separate in the
            text; None is jieba where it is installed, else characters.

    Raises OptionError for arguments that have no effect on such a source, ShapeError for weights that do not fit their
    tokens, DtypeError for weights that are no floats, DataError for weights that are not finite or do not sum to 1, and
    what ``regard.view.read``, ``read_file`` and ``read_pair`` raise.
    """
    check_kind("name", name, str, do="the name of the model on the page")
    check_language(language)
    check_chinese_words(chinese_words)

    def make_view(readings: AnyReading | Sequence[AnyReading], shown_name: str = name) -> AttentionView:
        several = [readings] if isinstance(readings, AnyReading) else readings
        if chinese_words is not None:
            several = [group_chinese_words(reading, chinese_words) for reading in several]
        return AttentionView(several, name=shown_name, language=language)

    given: dict[str, Any] = {
        "inputs": inputs, "targets": targets, "labels": labels, "tokenizer": tokenizer, "tokens": tokens,
        "key_tokens": key_tokens, "picture": picture, "grid": grid, "queries": queries, "keys": keys, "values": values,
        "scale": scale, "weights_are": weights_are,
    }  # fmt: skip
    if weights is not None:
        if source is not None:
            raise OptionError(
                "`source` and `weights` are two things to show", expected="one of them",
                got=f"{short_repr(source)} and weights", do="leave out one",
            )  # fmt: skip
        _check_arguments("weights", given, (*_OF_TOKENS, *_OF_WEIGHTS))
        layers = layers_of_weights(weights, **{part: given[part] for part in _OF_WEIGHTS})
        return make_view(_read_layers(layers, given))
    if _is_readings(source):
        _check_arguments("readings", given, ())
        return make_view(source)
    if _is_recording(source):
        _check_arguments("a recording", given, _OF_TOKENS)
        layers = layers_of([source] if isinstance(source, LayerCall) else source)
        if isinstance(source, Recording):
            layers = add_projections(layers, source.inputs)
        return make_view(_read_layers(layers, given))
    if isinstance(source, str | Path | nn.Module | TextModel | SpeechModel | Translator):
        readings, model_name = _read_with_model(source, given)
        return make_view(readings, name or model_name)
    raise OptionError(
        "nothing that can be shown",
        expected="a model, its folder, a recording, or `weights`",
        got=short_repr(source),
        do='show(regard.load("minilm"), "a text"), show(seen, tokens=tokens) or show(weights=weights, tokens=tokens)',
    )


def load_text_model(folder: ModelFolder, *, weights: str | None = None, device: str | None = None) -> Model | TextModel:
    """Load a folder: a model of regard, or else a text model of ``transformers``, which is computed on the CPU.

    Raises MissingPackageError without ``transformers``, RefusedError for a format of ``weights`` or a ``device`` that
    it has not.
    """
    if has_class(folder):
        return load(folder, weights=weights, device=device)
    _refuse_weights(folder, weights)
    _refuse_device(folder, device)
    with _explain_missing_package(folder):
        from regard.hf.load_checkpoint import load_checkpoint

        return load_checkpoint(folder)


def load_speech_model(folder: ModelFolder, *, weights: str | None = None, device: str | None = None) -> SpeechModel:
    """Load the folder of a speech model of ``transformers`` with cross-attention.

    Raises MissingPackageError without ``transformers``, RefusedError for another model, for ``weights``, or a
    ``device`` other than the CPU.
    """
    _refuse_weights(folder, weights)
    _refuse_device(folder, device)
    with _explain_missing_package(folder):
        from regard.hf.speech_checkpoint import load_speech_checkpoint

        return load_speech_checkpoint(folder)


def _refuse_weights(folder: ModelFolder, weights: str | None) -> None:
    if weights is not None:
        raise RefusedError(
            f"{folder.path} is read by transformers, which has no {weights} weights",
            expected="a model that regard has, such as minilm, a BERT, a GPT-2, a Llama, a ViT or a T5",
            got=f"model_type {folder.model_type!r}",
            do="leave `weights` out",
        )


def _refuse_device(folder: ModelFolder, device: str | None) -> None:
    if device not in (None, AUTO, "cpu"):
        raise RefusedError(
            f"{folder.path} is read by transformers, and shown from the CPU",
            expected="a model that regard has, such as minilm, a BERT, a GPT-2, a Llama, a ViT or a T5",
            got=f"model_type {folder.model_type!r}",
            do="leave `device` out",
        )


@contextmanager
def _explain_missing_package(folder: ModelFolder) -> Iterator[None]:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"{folder.path} has an architecture that is read by transformers, so it needs a package",
            expected="transformers",
            got="it is not installed",
            do="pip install 'regard[hf]'",
        ) from error
    yield


def _check_arguments(kind: str, given: Mapping[str, Any], valid: Sequence[str]) -> None:
    """Raise OptionError for an argument that has no effect on this kind of source."""
    usual = {"labels": (), "weights_are": "distribution"}
    for name, value in given.items():
        usual_value = usual.get(name)
        is_usual = value is usual_value or (isinstance(value, str | tuple | list) and value in (usual_value, []))
        if name not in valid and not is_usual:
            raise OptionError(
                f"`{name}` has no effect on {kind}",
                expected=", ".join(f"`{argument}`" for argument in valid) or "no other argument",
                got=short_repr(value),
                do=f"leave out `{name}`",
            )


def _is_readings(source: Any) -> bool:
    several = list(source) if isinstance(source, list | tuple) else [source]
    return bool(several) and all(isinstance(reading, AnyReading) for reading in several)


def _is_recording(source: Any) -> bool:
    is_list = isinstance(source, list | tuple) and len(source) > 0
    return isinstance(source, Recording | LayerCall) or (
        is_list and all(isinstance(call, LayerCall) for call in source)
    )


def _read_with_model(source: Any, given: Mapping[str, Any]) -> tuple[Sequence[AnyReading], str]:
    """The readings of all inputs of a model, and its name: that of its folder or class."""
    model, inputs, name = source, given["inputs"], ""
    several = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if isinstance(source, str | Path):
        model = _load_reader(ModelFolder.open(source), several)
        name = Path(source).name
    if inputs is None or not several:
        raise OptionError(
            "there is nothing for the model to read", expected="`inputs`: a text, or the path of a picture or a sound",
            got=short_repr(inputs), do='show(model, "I ate an apple."); show(seen, tokens=tokens) of a recording',
        )  # fmt: skip
    name = name or type(model.model if isinstance(model, Translator) else model).__name__
    if isinstance(model, EncoderDecoder):
        model = Translator(model)
    if isinstance(model, Translator) or (isinstance(model, TextModel) and model.is_encoder_decoder):
        _check_arguments("a translator", given, ("inputs", "targets"))
        targets = [given["targets"]] if isinstance(given["targets"], str) else given["targets"]
        return _read_pairs(model, several, targets), name
    if isinstance(model, SpeechModel):
        _check_arguments("a speech model", given, ("inputs",))
        return [read_file(model, sound) for sound in several], name
    if isinstance(model, Model) and any(_is_file(model, entry) for entry in several):
        _check_arguments("a model of files", given, ("inputs", "labels"))
        return [read_file(model, file, labels=given["labels"]) for file in several], name
    if isinstance(model, Model | TextModel):
        _check_arguments("a model of texts", given, ("inputs",))
        return [read(model, text) for text in several], name
    _check_arguments("a model of another package", given, ("inputs", "tokenizer"))
    own = _make_tokenizer(given["tokenizer"], model)
    return [_read_module(model, own, text) for text in several], name


def _load_reader(folder: ModelFolder, inputs: Sequence[Any]) -> Model | TextModel | SpeechModel:
    """Load a folder; one of transformers as a speech model if all inputs are paths of sounds."""
    are_sounds = all(isinstance(entry, str | Path) and SOUNDS.is_name(Path(entry)) for entry in inputs)
    return load_speech_model(folder) if are_sounds and not has_class(folder) else load_text_model(folder)


def _is_file(model: Model, source: Any) -> bool:
    """Whether an input of a model is a file, or the contents of one, rather than a text."""
    if ImageEncoder.part_of(model) is None and not isinstance(model, MediaEncoder):
        return False
    medium = model.kind.files
    return not model.kind.texts or not isinstance(source, str) or (medium is not None and medium.is_name(Path(source)))


def _read_pairs(model: Translator | TextModel, sources: Sequence[str], targets: Any) -> list[PairReading]:
    if targets is not None and len(targets) != len(sources):
        raise OptionError(
            "the numbers of texts and of `targets` differ", expected=f"{len(sources)} targets, or none",
            got=short_repr(targets), do="leave out `targets` to let the model translate",
        )  # fmt: skip
    return [
        read_pair(model, source, target)
        for source, target in zip(sources, targets or [None] * len(sources), strict=True)
    ]


def _make_tokenizer(tokenizer: Any, model: nn.Module) -> Tokenizer:
    """The tokenizer of a model of another package."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if not isinstance(backend, tokenizers.Tokenizer):
        raise OptionError(
            f"{type(model).__name__} is a model of another package, which needs its tokenizer to read a text",
            expected="`tokenizer`: a fast tokenizer of transformers, or one of the library tokenizers",
            got=short_repr(tokenizer),
            do="record a call of the model: with regard.record(model) as seen: model(ids); show(seen, tokens=tokens)",
        )
    return Tokenizer(backend, pad_id=0)


def _read_module(model: nn.Module, tokenizer: Tokenizer, text: Any) -> Reading:
    """Record a module that reads token ids (1, tokens) while it reads a text."""
    check_kind("input", text, str, do="a text, or a list of texts")
    (tokenized,) = tokenizer.tokenize([text])
    parameter = next(model.parameters(), None)
    ids = torch.tensor([tokenized.ids], device=None if parameter is None else parameter.device)
    captured = capture_projections(model)
    with torch.no_grad(), eval_mode(model), captured as projections, record(model) as seen:
        try:
            model(ids)
        # A module of another package may raise anything for inputs that it does not take.
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
            raise RefusedError(
                f"{type(model).__name__} cannot be called with token ids alone",
                expected="model(ids), with ids of (1, tokens)",
                got=class_and_line(error, 200),
                do="record a call of your own: with regard.record(model) as seen: ...; show(seen, tokens=tokens)",
            ) from error
    return make_reading(tokenized, add_projections(layers_of(seen), projections), None)


def _read_layers(layers: Sequence[AttentionLayer], given: Mapping[str, Any]) -> AnyReading:
    """The reading of the layers of a picture or of texts."""
    if given["picture"] is None:
        _check_arguments("texts without a picture", given, [name for name in given if name != "grid"])
        return _read_texts(layers, given["tokens"], given["key_tokens"])
    _check_arguments("a picture", given, [name for name in given if name not in ("tokens", "key_tokens")])
    return read_picture_layers(layers, given["picture"], given["grid"])


def _read_texts(layers: Sequence[AttentionLayer], tokens: Any, key_tokens: Any) -> Reading | PairReading:
    """The reading of layers of one text, of cross-attention, or of both with the attention of each text.

    Layers are told apart by their numbers of queries and keys.
    """
    sizes = list(dict.fromkeys((layer.queries, layer.keys) for layer in layers))
    if not sizes:
        raise OptionError(
            "the recording is empty", expected="a call of the model inside the `with`", got="no call",
            do="with regard.record(model) as seen: model(ids)",
        )  # fmt: skip
    if len(sizes) == 1:
        return read_layers(layers, tokens, key_tokens)
    target, source = sizes[0] if key_tokens is None or tokens is None else (len(tokens), len(key_tokens))
    of_kind = {size: tuple(layer for layer in layers if (layer.queries, layer.keys) == size) for size in sizes}
    kinds = {"cross": (target, source), "source": (source, source), "target": (target, target)}
    if target == source or not set(sizes) <= set(kinds.values()) or kinds["cross"] not in of_kind:
        raise _mixed_layers_error(layers)
    own, others = name_tokens("tokens", tokens, target), name_tokens("key_tokens", key_tokens, source)
    cross = Reading(own, of_kind[kinds["cross"]], keys=others)
    within = {
        kind: Reading(text, of_kind[kinds[kind]]) if kinds[kind] in of_kind else None
        for kind, text in (("source", others), ("target", own))
    }
    return PairReading(cross, len(cross.layers) - 1, within["source"], within["target"], forced=True)


def _mixed_layers_error(layers: Sequence[AttentionLayer]) -> RefusedError:
    shapes: dict[tuple[int, int], list[str]] = {}
    for layer in layers:
        shapes.setdefault((layer.queries, layer.keys), []).append(layer.name)
    listed = "; ".join(
        f"{queries} x {keys} in {names[0] or 'attention'}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
        for (queries, keys), names in shapes.items()
    )
    return RefusedError(
        "the recorded layers attend to different tokens, so they are no single text",
        expected="layers of one text, or, with `tokens` and `key_tokens`, of a target and a source",
        got=f"queries x keys: {listed}",
        do="show some of the calls: show([call for call in seen if call.key.shape[2] == 7], tokens=tokens)",
    )
