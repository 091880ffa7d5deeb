"""Reading of a picture by a CLIP: attention over patches, and each of some texts against the picture and its patches.

    probabilities       softmax over the texts of exp(logit_scale) v . t_k          v, t: embeddings of length 1
    gradient rollout    of the logit of each text, see ``rollout``
    similarity          cosine of t_k and the projection of a patch, normed as the class token is: W norm(h_i)

Only the class token is trained to be near a text. That patches are too is an observation: Zhou, Loy and Dai 2022,
"Extract free dense labels from CLIP", section 3.1, whose maps leave out the attention of the last layer; here it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.classification import ZeroShotClassifier
from regard.errors import OptionError, check_kind
from regard.models import Clip
from regard.models.image_encoder import ImageOutput
from regard.view.picture_reading import PictureReading
from regard.view.read_picture import capture_picture
from regard.vision.picture_file import Picture

MAX_TEXTS = 12
"""Most texts of a page: the gradient of each is rolled out."""


@explain_arguments
def read_clip_attention(model: Clip, picture: Picture, texts: Sequence[str], *, name: str = "") -> PictureReading:
    """Capture every attention layer of the vision tower of a CLIP, and what texts have in common with the picture.

    Args:
        model: a CLIP, from ``regard.load``.
        picture: a path, the bytes of a file, an array of uint8, or a picture of Pillow.
        texts: texts to compare with the picture, such as ["a photo of a cat.", "a photo of a dog."], ``MAX_TEXTS`` at
            most.
        name: the picture's name on the page and in messages; "" is its path.

    Raises OptionError for unusable texts, CheckpointError for a model without tokenizer or processor, DataError for a
    picture that cannot be read, and for a text that is too long.
    """
    check_kind("model", model, Clip, do='model = regard.load("clip/")')
    check_kind("name", name, str, do="the picture's name on the page")
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
    cosines = vectors.double().cpu() @ functional.normalize(tokens.double().cpu(), dim=-1).T
    return list(cosines.numpy())
