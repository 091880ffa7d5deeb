"""Sizes of new image classifiers, and training hyperparameters, chosen by the pictures.

    tiny     6 layers of 96       0.45 million weights for pictures of 28 x 28      up to 100,000 pictures
    small    8 layers of 192      2.4 million                                       up to a million
    base     12 layers of 384     21 million, the sizes of DeiT small               more

A picture has about 8 x 8 patches; Dosovitskiy et al. 2021 have 14 x 14 of 16 x 16 pixels, which is picture_size=224
and patch_size=16. Base: Touvron et al. 2021, table 1. The weights are a ViT's and a DeiT's. A Swin of the
same layers has half the width in its first stage, of two layers and about 16 x 16 patches, and fewer weights. A CCT has
convolutions that halve the picture until it has about 8 x 8 tokens, and a twentieth more weights. A CvT has three
stages of a third, two thirds and four thirds of the width, with 1, 1 and the layers less 4; its first map has about 16
x 16 tokens. A Perceiver has a layer less, a third as many latents as a layer is wide, and reads pixels. A tiny model of
any of them has at most half a million weights for grey pictures of 28 x 28.
"""

from __future__ import annotations

import math

from regard.tasks.presets import FineTuning, Presets, Size, name_models, split_model_name

ARCHITECTURES = ("vit", "deit", "swin", "cct", "cvt", "perceiver")
_PATCHES = 8
_LARGEST_WINDOW = 8
_EDGES = (32, 48, 64, 96, 128)
"""Edges of the pictures of a new model; the last one for all that are larger."""
_LARGEST_OWN = 64
"""Pictures of one size up to this edge are not resized."""


PRESETS = Presets(
    sizes=(
        Size("tiny", below=100_000, width=96, layers=6, heads=3, inner=192, peak=1e-3, warmup=200),
        Size("small", below=1_000_000, width=192, layers=8, heads=3, inner=384, peak=1e-3, warmup=500),
        Size("base", width=384, layers=12, heads=6, inner=1536, peak=5e-4, warmup=1000),
    ),
    fine_tuning=FineTuning(peak=1e-4, warmup=100, epochs=10),
)
MODELS = name_models(ARCHITECTURES)
"""Names of new models: a size is the size of a ViT, an architecture alone has the size that the data suggests."""


def choose_model(pictures: int, name: str | None = None, *, distilled: bool = False) -> tuple[str, Size]:
    """The architecture and the size of ``name``, or those for this number of pictures.

    With a teacher the architecture is a DeiT unless it is named.
    """
    kind, size = split_model_name(name, ARCHITECTURES, "deit" if distilled else "vit")
    return kind, PRESETS.choose_size(pictures, size)


def choose_picture_size(height: int, width: int, *, all_alike: bool) -> tuple[int, int]:
    """The (height, width) of a new model's pictures, for data whose usual size is this.

    Small pictures that are all of one size keep it, if it can be cut into patches; others become squares.
    """
    small = max(height, width) <= _LARGEST_OWN
    if all_alike and small and choose_patch_size(height) > 1 and choose_patch_size(width) > 1:
        return height, width
    edge = next((edge for edge in _EDGES if min(height, width) <= edge), _EDGES[-1])
    return edge, edge


def choose_patch_size(edge: int, *, patches: int = _PATCHES) -> int:
    """The divisor of an edge that is closest to its ``patches``-th part, the larger of two."""
    divisors = [divisor for divisor in range(1, edge + 1) if edge % divisor == 0]
    return min(divisors, key=lambda divisor: (abs(divisor - edge / patches), -divisor))


def choose_window(rows: int, columns: int) -> int:
    """The window of a Swin whose first map has this size: half of its shorter side, 2 to 8."""
    return max(2, min(_LARGEST_WINDOW, -(-min(rows, columns) // 2)))


def choose_convolutions(height: int, width: int) -> int:
    """The convolutions of a CCT, each of which halves the picture: about 8 x 8 tokens are left."""
    return max(1, round(math.log2(max(height, width) / _PATCHES)))
