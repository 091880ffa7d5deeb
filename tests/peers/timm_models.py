"""``regard.record`` of timm's models, unchanged: the weights that their dropout gets. Run in a process of its own.

Its models: plain, distilled, with rotations, behind convolutions, in windows, with a bias by distance, with
attention over channels, and with heads that are mixed. ``MODELS`` has the size of a picture, and the number of layers.
"""

from __future__ import annotations

import sys

import torch
from torch.testing import assert_close

import regard
from torchvision_stand_in import stand_in

MODELS = {
    "vit_tiny_patch16_224": (64, 12),
    "deit3_small_patch16_224": (64, 12),
    "eva02_tiny_patch14_224": (56, 12),
    "vit_small_r26_s32_224": (64, 12),
    "swin_tiny_patch4_window7_224": (224, 12),
    "vit_relpos_small_patch16_224": (224, 12),
    "xcit_nano_12_p16_224": (224, 14),
    "cait_xxs24_224": (64, 26),
}


@torch.no_grad()
def check(name: str, *, fused: bool) -> None:
    """Compare the weights of a model, which keeps its bits, with those that its layers pass to dropout."""
    stand_in()
    import timm
    import timm.layers

    torch.manual_seed(5)
    size, layers = MODELS[name]
    timm.layers.set_fused_attn(False)
    model = timm.create_model(name, pretrained=False, **({} if size == 224 else {"img_size": size})).eval()
    picture, expected = torch.randn(2, 3, size, size), []
    handles = [
        module.register_forward_pre_hook(lambda _module, arguments: expected.append(arguments[0]))
        for full, module in model.named_modules()
        if full.endswith("attn_drop")
    ]
    model(picture)
    for handle in handles:
        handle.remove()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    plain = model(picture)
    with regard.record(model) as seen:
        assert torch.equal(model(picture), plain)
    assert len(seen) == len(expected) == layers
    for call, weights in zip(seen, expected, strict=True):
        assert call.name in dict(model.named_modules())
        assert_close(call.weights(), weights.reshape(call.weights().shape), atol=1e-5, rtol=0)
    print(f"{name}: {len(seen)} layers", file=sys.stderr)
