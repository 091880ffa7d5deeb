"""A small model of every class of ``regard.models``, with random inputs: for tests of what all models do.

``EXAMPLES`` has a function for each class. It returns a model without dropout, inputs whose first dimension is the
batch (``ROWS`` examples), and a function that computes numbers (rows, ..) from a model, perhaps wrapped, and some of
the inputs; every parameter has a part in them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from regard import models
from regard.control import ContinuousSpace, Episode, StepTokenizer, tokenize_episode
from small_audio_models import audio_model
from small_classifiers import classifier
from small_clips import small_clip

ROWS = 5
Example: TypeAlias = tuple[nn.Module, Any, Callable[[nn.Module, Any], Tensor]]
_SIZES: Mapping[str, Any] = {"width": 24, "layers": 2, "heads": 2}
_LABELS = ("cat", "dog", "owl")


def model_classes() -> set[type[nn.Module]]:
    """The classes of models that ``regard.models`` has."""
    named = [getattr(models, name) for name in models.__all__]
    return {one for one in named if inspect.isclass(one) and issubclass(one, nn.Module) and not inspect.isabstract(one)}


def take_rows(inputs: Any, rows: slice) -> Any:
    """Some rows of inputs."""
    return tuple(one[rows] for one in inputs) if isinstance(inputs, tuple) else inputs[rows]


def _ids(length: int = 7, vocabulary: int = 31) -> Tensor:
    return torch.randint(4, vocabulary, (ROWS, length))


def _logits(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    logits: Tensor = model(*inputs).logits
    return logits


def _hidden(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    hidden: Tensor = model(*inputs).hidden
    return hidden


def _of_ids(make: Callable[[], nn.Module], read: Callable[..., Tensor] = _logits) -> Callable[[], Example]:
    return lambda: (make(), (_ids(),), read)


def _of_pixels(make: Callable[[], nn.Module], *size: int) -> Callable[[], Example]:
    return lambda: (make(), (torch.randn(ROWS, 3, *size),), _logits)


def _translating(make: Callable[[], nn.Module]) -> Callable[[], Example]:
    return lambda: (make(), (_ids(), _ids(5)), _logits)


def _bert(kind: type[nn.Module], config: type) -> nn.Module:
    return kind(
        config(31, **_SIZES, inner=17, max_length=13, dropout=0.0, attention_dropout=0.0, head=True, pooler=False)
    )


def _gpt2() -> nn.Module:
    none = {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
    return models.Gpt2(models.Gpt2Config(31, **_SIZES, max_length=19, **none))


def _modernbert() -> nn.Module:
    return models.ModernBert(models.ModernBertConfig(31, **_SIZES, inner=17, head=True, pad_id=0))


def _qwen3_next() -> nn.Module:
    config = models.Qwen3NextConfig(
        31, **_SIZES, key_value_heads=1, head_dim=8, attention_layers=(1,), delta_heads=4, delta_key_heads=2,
        delta_head_dim=6, delta_value_dim=5, inner=17, experts=2, chosen_experts=2, expert_inner=7, shared_inner=9,
        max_length=13, rotary=models.RotaryConfig(rotated=2),
    )  # fmt: skip
    return models.Qwen3Next(config)


def _t5() -> models.T5Config:
    return models.T5Config(31, **_SIZES, head_dim=12, inner=17, dropout=0.0)


def _deit() -> nn.Module:
    config = models.DeitConfig((14, 21), (7, 7), **_SIZES, inner=17, labels=_LABELS, distillation_head=True)
    return models.Deit(config)


def _swin() -> nn.Module:
    config = models.SwinConfig(
        (12, 20), patch_size=(2, 2), width=12, depths=(2, 2), heads=(1, 2), window=3, labels=_LABELS,
        stochastic_depth=0.0,
    )  # fmt: skip
    return models.Swin(config)


def _cct() -> nn.Module:
    config = models.CctConfig(
        (12, 20), **_SIZES, inner=17, convolutions=1, tokenizer_width=7, labels=_LABELS, dropout=0.0,
        attention_dropout=0.0, stochastic_depth=0.0,
    )  # fmt: skip
    return models.Cct(config)


def _cvt() -> nn.Module:
    two: Mapping[str, tuple[Any, ...]] = {
        "widths": (8, 12), "depths": (1, 2), "heads": (1, 2), "embedding_kernels": (3, 3),
        "embedding_strides": (2, 2), "embedding_paddings": (1, 1), "projection_kernels": (3, 3),
        "key_value_strides": (2, 2), "key_value_paddings": (1, 1), "inner_ratios": (2.0, 2.0),
        "projection_biases": (True, True), "dropouts": (0.0, 0.0), "attention_dropouts": (0.0, 0.0),
        "stochastic_depths": (0.0, 0.0),
    }  # fmt: skip
    return models.Cvt(models.CvtConfig((12, 20), labels=_LABELS, **two))


def _clip() -> Example:
    model = small_clip(channels=3)
    ids = torch.cat([torch.randint(1, 200, (ROWS, 6)), torch.full((ROWS, 1), model.config.text.end_id)], dim=1)

    def embed(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        output = model(*inputs)
        scale = output.logits_per_image.diagonal()[:, None]  # has the trained scale, and needs no other row
        return torch.cat([output.text_embeddings, output.image_embeddings, scale], dim=1)

    return model, (ids, torch.randn(ROWS, 3, 12, 12)), embed


def _clip_text() -> Example:
    model, (ids, _), _ = _clip()
    return model.text, (ids,), lambda text, inputs: text(*inputs).embedding  # type: ignore[return-value]


def _clip_vision() -> Example:
    model, (_, pixels), _ = _clip()
    return model.vision, (pixels,), lambda vision, inputs: vision(*inputs).pooled  # type: ignore[return-value]


def _conformer() -> Example:
    return audio_model(dropout=0.0), (torch.randn(ROWS, 37, 7),), _logits


def _perceiver(number: models.PerceiverInput) -> models.Perceiver:
    return models.Perceiver.classifier(number, _LABELS, latents=5, width=12, layers=2, repeats=2, heads=3)


def _perceiver_of_pictures() -> Example:
    inner = _perceiver(models.ConvolutionInput((17, 13), channels=3, width=6, bands=3))
    return models.PerceiverImageEncoder(inner), (torch.randn(ROWS, 3, 17, 13),), _logits


def _perceiver_of_texts() -> Example:
    """Its queries are positions and its logits belong to another class, so the hidden states are compared."""
    config = models.PerceiverConfig(
        models.TextInput(max_length=13, width=16), models.PositionOutput(heads=2, query_key_width=6),
        latents=5, width=12, layers=2, repeats=2, heads=3, dropout=0.0,
    )  # fmt: skip
    return models.PerceiverTextEncoder(config), (_ids(),), _hidden


def _gato() -> Example:
    config = models.GatoConfig(
        text=7, bins=29, discrete=3, width=24, layers=2, heads=3, inner=29, max_length=41, max_observation=11,
        places=19, channels=3, patch_channels=6, groups=3, dropout=0.0,
    )  # fmt: skip
    steps = StepTokenizer({"state": ContinuousSpace((3,))}, ContinuousSpace((2,)), ranges=config.ranges)
    drawn = torch.rand(ROWS, 2, 5).numpy()
    episodes = [
        tokenize_episode(Episode([{"state": one[:3]} for one in rows], [one[3:] for one in rows], [0.0, 0.0]), steps)
        for rows in drawn
    ]

    def read(model: nn.Module, rows: Any) -> Tensor:
        logits: Tensor = model(models.GatoBatch.from_sequences(rows)).logits
        return logits

    model = models.Gato(config)
    for unused in (model.embedding.patches, model.embedding.rows, model.embedding.columns):  # there are no patches
        unused.requires_grad_(False)
    return model, episodes, read


def _text_classifier() -> Example:
    model = classifier()
    model.train()
    return model, (_ids(),), _logits


EXAMPLES: Mapping[type[nn.Module], Callable[[], Example]] = {
    models.Bert: _of_ids(lambda: _bert(models.Bert, models.BertConfig)),
    models.Roberta: _of_ids(lambda: _bert(models.Roberta, models.RobertaConfig)),
    models.ModernBert: _of_ids(_modernbert),
    models.Gpt2: _of_ids(_gpt2),
    models.Llama: _of_ids(
        lambda: models.Llama(models.LlamaConfig(31, **_SIZES, key_value_heads=1, inner=17, max_length=19))
    ),
    models.Mamba: _of_ids(
        lambda: models.Mamba(models.MambaConfig(31, width=24, layers=2, heads=4, head_dim=12, state_size=6, groups=2))
    ),
    models.Qwen3Next: _of_ids(_qwen3_next),
    models.T5: _translating(lambda: models.T5(_t5())),
    models.T5Encoder: _of_ids(lambda: models.T5Encoder(_t5()), _hidden),
    models.Transformer: _translating(
        lambda: models.Transformer(models.TransformerConfig(31, **_SIZES, inner=17, dropout=0.0))
    ),
    models.TransformerEncoder: _of_ids(
        lambda: models.TransformerEncoder(models.TransformerEncoderConfig(31, **_SIZES, inner=17, dropout=0.0)), _hidden
    ),
    models.Recurrent: _translating(
        lambda: models.Recurrent(models.RecurrentConfig(31, 31, width=24, layers=2, dropout=0.0))
    ),
    models.TextClassifier: _text_classifier,
    models.Vit: _of_pixels(
        lambda: models.Vit(models.VitConfig((14, 21), (7, 7), **_SIZES, inner=17, labels=_LABELS)), 14, 21
    ),
    models.Deit: _of_pixels(_deit, 14, 21),
    models.Swin: _of_pixels(_swin, 12, 20),
    models.Cct: _of_pixels(_cct, 12, 20),
    models.Cvt: _of_pixels(_cvt, 12, 20),
    models.Clip: _clip,
    models.ClipText: _clip_text,
    models.ClipVision: _clip_vision,
    models.Conformer: _conformer,
    models.Perceiver: lambda: (
        _perceiver(models.PixelInput((5, 7), channels=3, bands=3)),
        (torch.randn(ROWS, 3, 5, 7),),
        _logits,
    ),
    models.PerceiverImageEncoder: _perceiver_of_pictures,
    models.PerceiverTextEncoder: _perceiver_of_texts,
    models.Gato: _gato,
}


def make_example(kind: type[nn.Module]) -> Example:
    """A model in training mode, its inputs, and how numbers are computed from both; the same in each call."""
    torch.manual_seed(3)
    model, inputs, compute = EXAMPLES[kind]()
    return model.train(), inputs, compute
