"""Retrieval, against counting by hand and by sorting."""

import numpy as np
import pytest
import torch

from regard.errors import ShapeError
from regard.vision.retrieval import measure_retrieval


def test_counted_by_hand():
    """Three pictures; the second has two texts, and the third has the text of the first."""
    pictures = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    texts = torch.tensor([[0.8, 0.6], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    found = measure_retrieval(pictures, texts, ["a", "b", "c", "a"], np.array([0, 1, 1, 2]))
    assert (found.num_pictures, found.num_texts) == (3, 3)
    # a: products .8, .6, .96 -> the third, which is its own; b: 0, 1, .8 -> right; c: .6, .8, 1 -> the third, wrong
    assert found.text_to_picture[1] == pytest.approx(2 / 3)
    # first: .8, 0, .6 -> a, right; second: .6, 1, .8 -> b, right; third: .96, .8, 1 -> c, which is of the second
    assert found.picture_to_text[1] == pytest.approx(2 / 3)
    assert found.found_texts.tolist() == [0, 1, 2]
    assert found.text_to_picture[5] == found.picture_to_text[5] == found.picture_to_text[10] == 1.0
    assert found.recall == pytest.approx(2 / 3)


def test_random_vectors_against_sorting():
    """1,031 pictures, so that the products are cut; two texts for each, some of them equal."""
    generator = np.random.default_rng(1)
    pictures = generator.normal(size=(1031, 7))
    texts = np.repeat(pictures, 2, axis=0) + generator.normal(size=(2062, 7))
    owners = np.repeat(np.arange(1031), 2)
    written = [str(number) for number in generator.integers(0, 1500, 2062)]
    first = {text: index for index, text in reversed(list(enumerate(written)))}
    names = list(dict.fromkeys(written))
    kept = texts[[first[name] for name in names]]
    own = {(int(owner), text) for owner, text in zip(owners, written, strict=True)}
    found = measure_retrieval(torch.from_numpy(pictures), torch.from_numpy(texts), written, owners)
    for k in (1, 5, 10):
        near = [np.argsort(-(kept @ one), kind="stable")[:k] for one in pictures]
        hits = [any((index, names[text]) in own for text in some) for index, some in enumerate(near)]
        assert found.picture_to_text[k] == pytest.approx(np.mean(hits))
        near = [np.argsort(-(pictures @ one), kind="stable")[:k] for one in kept]
        hits = [any((int(index), name) in own for index in some) for name, some in zip(names, near, strict=True)]
        assert found.text_to_picture[k] == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("texts", [torch.ones(2, 3), torch.ones(3)])
def test_wrong_shapes(texts):
    with pytest.raises(ShapeError, match="no pairs"):
        measure_retrieval(torch.ones(3, 3), texts, ["a", "b", "c"], np.arange(3))
