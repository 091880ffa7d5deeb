"""ViT base and Swin-T of timm, with the weights of models of transformers; and the hidden states of any image model.

timm is optional and needs torchvision. Both models project queries, keys and values by one matrix. By default ViT
computes attention by torch's fused attention, and Swin by products and a softmax.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.optional_imports import missing_package_error

_SHARED_NAMES = {
    r"^embeddings\.patch_embeddings\.projection": "patch_embed.proj",
    r"attention\.o_proj": "attn.proj",
    r"layernorm_before": "norm1",
    r"layernorm_after": "norm2",
    r"^layernorm": "norm",
}
_VIT_NAMES = {
    **_SHARED_NAMES,
    r"^embeddings\.cls_token$": "cls_token",
    r"^embeddings\.position_embeddings$": "pos_embed",
    r"^layers\.": "blocks.",
}
_SWIN_NAMES = {
    **_SHARED_NAMES,
    r"^embeddings\.norm": "patch_embed.norm",
    r"^encoder\.": "",
    r"attention\.relative_position_bias\.": "attn.",
}
"""What replaces each pattern in the name of a parameter of transformers."""


def compute_hidden(model: Any, pixels: Tensor) -> Tensor:
    """Compute the last hidden states (batch, tokens, width) of a model of regard, transformers or timm."""
    if hasattr(model, "forward_features"):  # timm: without its pooling
        features: Tensor = model.forward_features(pixels)
        return features.flatten(1, -2)
    output = model(pixels)
    return cast(Tensor, output.hidden if hasattr(output, "hidden") else output.last_hidden_state)


def build_vit(theirs: Any) -> nn.Module:
    """Build timm's ViT base without a head, with the weights and the epsilon of a ``transformers.ViTModel``."""
    norm = partial(nn.LayerNorm, eps=theirs.config.layer_norm_eps)
    model = _create_model("vit_base_patch16_224", norm_layer=norm)
    return _load(model, _rename(theirs.state_dict(), _VIT_NAMES))


def build_swin(theirs: Any) -> nn.Module:
    """Build timm's Swin-T without a head, with the weights of a ``transformers.SwinModel`` of that size."""
    weights = _rename(theirs.state_dict(), _SWIN_NAMES)
    # timm merges patches at the start of a stage, transformers at the end of the one before.
    moved = {re.sub(r"(?<=^layers\.)\d+(?=\.downsample)", _next_number, name): one for name, one in weights.items()}
    return _load(_create_model("swin_tiny_patch4_window7_224"), moved)


def _create_model(name: str, **options: Any) -> Any:
    try:
        import timm
    except ImportError:
        raise missing_package_error("timm", "timm torchvision") from None
    return timm.create_model(name, pretrained=False, num_classes=0, **options)


def _rename(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Rename parameters, and join the projections of queries, keys and values."""
    renamed = {}
    for name, tensor in state.items():
        if ".attention.q_proj." in name:
            parts = (state[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj"))
            name, tensor = name.replace("attention.q_proj", "attn.qkv"), torch.cat(list(parts))
        for pattern, replacement in names.items():
            name = re.sub(pattern, replacement, name)
        if "k_proj" not in name and "v_proj" not in name:
            renamed[name] = tensor
    return renamed


def _next_number(found: re.Match[str]) -> str:
    return str(int(found[0]) + 1)


def _load(model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Load all parameters; buffers, which timm computes itself, may be missing."""
    of_model = {name for name, _ in model.named_parameters()}
    model.load_state_dict({name: one for name, one in weights.items() if name in of_model}, strict=False)
    missing = of_model - set(weights)
    assert not missing, f"weights without a value: {sorted(missing)}"
    return model.eval()
