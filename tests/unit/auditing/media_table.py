"""The tables of docs/audit.md about sounds and pictures: what an audit finds in each type of ``transformers``.

PYTHONPATH=tests:tests/support:. python -m unit.auditing.media_table sounds            audits all types of sounds
PYTHONPATH=tests:tests/support:. python -m unit.auditing.media_table pictures vit swin   audits these, keeps other rows
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import regard
from regard.auditing import AuditReport
from tiny_transformers import draw_weights, shrink
from unit.auditing.type_table import read_rows, write_rows

_WAVES = {
    "conv_dim": (16, 16),
    "conv_kernel": (5, 3),
    "conv_stride": (3, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
}
"""Sizes of models that read the samples of a sound by convolutions."""

_MELS = 16


def _waves(**sizes: Any) -> tuple[Mapping[str, Any], Mapping[str, tuple[int, ...]]]:
    return {**_WAVES, **sizes}, {"input_values": (1, 200)}


def _frames(shape: tuple[int, ...] = (1, 40, _MELS), **sizes: Any) -> tuple[Any, Mapping[str, tuple[int, ...]]]:
    return {"mask_time_prob": 0.0, "layerdrop": 0.0, **sizes}, {"input_features": shape}


_IDS = {"decoder_input_ids": (1, 9)}

SOUNDS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, tuple[int, ...]]]] = {
    **{
        name: _waves()
        for name in ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio", "sew", "sew-d")
    },
    **{
        f"{name}, layer norm": _waves(feat_extract_norm="layer")
        for name in ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "sew", "wav2vec2-conformer")
    },
    "wav2vec2-conformer": _waves(conv_depthwise_kernel_size=5),
    "wav2vec2-bert": _frames(feature_projection_input_dim=_MELS, conv_depthwise_kernel_size=5),
    "parakeet_encoder": _frames(num_mel_bins=_MELS, subsampling_conv_channels=8, conv_kernel_size=5),
    "lasr_encoder": _frames(num_mel_bins=_MELS, subsampling_conv_channels=8, conv_kernel_size=4),
    "speech_to_text": (_frames(input_feat_per_channel=_MELS)[0], {**_IDS, "input_features": (1, 40, _MELS)}),
    "whisper": (
        {"num_mel_bins": _MELS, "max_source_positions": 20, "mask_time_prob": 0.0},
        {**_IDS, "input_features": (1, _MELS, 40)},
    ),
    "moonshine": ({}, {**_IDS, "input_values": (1, 3000)}),
    "audio-spectrogram-transformer": (
        {"num_mel_bins": _MELS, "max_length": 24, "patch_size": 8, "time_stride": 8, "frequency_stride": 8},
        {"input_values": (1, 24, _MELS)},
    ),
    "clap_audio_model": (
        {
            "num_mel_bins": 8,
            "spec_size": 32,
            "window_size": 2,
            "patch_embeds_hidden_size": 8,
            "hidden_size": 16,
            "depths": [2, 2],
            "num_attention_heads": [2, 2],
            "num_hidden_layers": 2,
        },
        {"input_features": (1, 1, 40, 8)},
    ),
}
"""For each type: its sizes, and the shapes of inputs."""

_PICTURE = {"image_size": 64, "num_channels": 3}


def build(name: str, sizes: Mapping[str, Any]) -> Any:
    """A small model of a type with random weights; what is behind a comma in the name is not of the type."""
    config = shrink(CONFIG_MAPPING[name.partition(",")[0]])
    config = shrink(type(config), **{field: size for field, size in sizes.items() if hasattr(config, field)})
    with torch.random.fork_rng():
        torch.manual_seed(29)
        model = transformers.AutoModel.from_config(config)
    draw_weights(model)
    return model.eval()


def find_picture_types() -> list[str]:
    """Types whose base model reads pictures alone."""
    found = []
    for name, kind in modeling_auto.MODEL_MAPPING_NAMES.items():
        model = getattr(transformers, kind if isinstance(kind, str) else kind[0], None)
        try:
            if model.main_input_name == "pixel_values" and not CONFIG_MAPPING[name].sub_configs:
                found.append(name)
        # A type may need a package that is not there.
        except Exception:
            continue
    return sorted(found)


def audit_sound(name: str) -> AuditReport:
    """Audit a small model of a type of sounds."""
    sizes, shapes = SOUNDS[name]
    inputs = {
        argument: torch.randint(3, 80, shape) if argument == "decoder_input_ids" else torch.randn(shape)
        for argument, shape in shapes.items()
    }
    only = ["padded", "batch", "NaN beside", "random", "implementations", "bfloat16"]
    return regard.audit(build(name, sizes), inputs, only=only)


def audit_picture(name: str) -> AuditReport:
    """Audit a small model of a type of pictures."""
    model = build(name, _PICTURE)
    size = getattr(model.config, "image_size", 64)
    height, width = (size, size) if isinstance(size, int) else size
    return regard.audit(
        model,
        {"pixel_values": torch.randn(1, getattr(model.config, "num_channels", 3), height, width)},
        only=["batch", "NaN beside", "random", "implementations", "bfloat16"],
    )


def make_row(name: str, report: AuditReport) -> str:
    """A row: what leaks, and what cannot be asked."""
    leaks = [
        result.name + (f": {result.leak.cause.partition(': ')[0]}" if result.leak.cause else "")
        for result in report.leaks
        if result.leak is not None
    ]
    padded = [result for result in report.results if result.name == "padded sounds"]
    column = f" {padded[0].verdict} |" if padded else ""
    return f"| `{name}` |{column} {'; '.join(leaks) or 'none'} |"


TABLES: Mapping[str, tuple[Callable[[], list[str]], Callable[[str], AuditReport], str]] = {
    "sounds": (lambda: list(SOUNDS), audit_sound, "| type | padded sounds | leaks |\n| --- | --- | --- |"),
    "pictures": (find_picture_types, audit_picture, "| type | leaks |\n| --- | --- |"),
}


def main(medium: str, *names: str) -> None:
    find_names, audit, head = TABLES[medium]
    for name in names or find_names():
        try:
            report = audit(name)
        # A type whose small config cannot be built has no row.
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            continue
        row = make_row(name, report)
        print(row, flush=True)
        write_rows({**read_rows(medium), name: row}, medium, head)


if __name__ == "__main__":
    main(*sys.argv[1:])
