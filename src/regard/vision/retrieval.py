"""Retrieval: how often the text of a picture, or the picture of a text, is among the nearest of all.

    recall@k of pictures    the share of pictures of which one of the k nearest texts is theirs
    recall@k of texts       the share of texts of which one of the k nearest pictures is theirs

Near are vectors with a large product. A picture may have several texts, and a text that is written for several pictures
belongs to each of them. Karpathy and Fei-Fei 2015, "Deep visual-semantic alignments", section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.devices import to_float64
from regard.errors import ShapeError

RANKS = (1, 5, 10)
"""The k of recall@k."""
_ROWS = 1024
"""Rows of products at a time."""


@final
@dataclass(frozen=True, eq=False)
class Retrieval:
    """How well pictures and texts find each other.

    picture_to_text, text_to_picture       recall@k by k
    found_texts (pictures,)                the index of the nearest text of each picture
    num_pictures, num_texts                how many there are
    """

    picture_to_text: dict[int, float]
    text_to_picture: dict[int, float]
    found_texts: Int[np.ndarray, " pictures"]
    num_pictures: int
    num_texts: int

    @property
    def recall(self) -> float:
        """The mean of recall@1 in both directions."""
        return (self.picture_to_text[1] + self.text_to_picture[1]) / 2


def measure_retrieval(
    pictures: Tensor,
    texts: Tensor,
    written: Sequence[str],
    picture_of: Int[np.ndarray, " pairs"],
) -> Retrieval:
    """Measure retrieval among all pictures and all different texts.

    Args:
        pictures: the vectors of pictures, (pictures, size).
        texts: the vectors of the texts of pairs, (pairs, size).
        written: the text of each pair; equal ones count as one text.
        picture_of: the index of the picture of each pair; each picture is in one or more pairs.

    Raises ShapeError unless there is a vector and a picture for each text.
    """
    if not len(texts) == len(written) == len(picture_of) or texts.dim() != 2 or pictures.dim() != 2:
        raise ShapeError(
            "pictures and texts are no pairs",
            expected="a vector and a picture of each text",
            got=f"{len(written)} texts, {tuple(texts.shape)} vectors, pictures of {len(picture_of)}",
            do="pass them in the same order",
        )
    first: dict[str, int] = {}
    text_of = np.array([first.setdefault(text, len(first)) for text in written], dtype=np.int64)
    _, begins = np.unique(text_of, return_index=True)
    different = texts[torch.from_numpy(begins)]
    owned = np.unique(np.stack([picture_of, text_of], axis=1), axis=0)
    by_picture, found = _recalls(pictures, different, owned, len(pictures))
    by_text, _ = _recalls(different, pictures, owned[:, ::-1], len(different))
    return Retrieval(by_picture, by_text, begins[found], len(pictures), len(different))


def _recalls(
    asking: Float[Tensor, "n size"], among: Float[Tensor, "m size"], owned: npt.NDArray[np.int64], count: int
) -> tuple[dict[int, float], Int[np.ndarray, " n"]]:
    """Recall@k of the rows of ``asking``; ``owned`` (pairs, 2) are the rows of both that belong together."""
    largest = min(max(RANKS), len(among))
    keys = np.sort(owned[:, 0] * np.int64(len(among)) + owned[:, 1])
    hits = np.zeros((count, largest), dtype=bool)
    nearest = np.zeros(count, dtype=np.int64)
    for begin in range(0, count, _ROWS):
        products = to_float64(asking[begin : begin + _ROWS]) @ to_float64(among).T
        chosen = products.topk(largest, dim=1).indices.cpu().numpy()
        rows = np.arange(begin, begin + len(chosen))
        nearest[rows] = chosen[:, 0]
        pairs = rows[:, None] * np.int64(len(among)) + chosen
        place = np.searchsorted(keys, pairs).clip(max=len(keys) - 1)
        hits[rows] = keys[place] == pairs
    return {k: float(hits[:, :k].any(axis=1).mean()) for k in RANKS}, nearest
