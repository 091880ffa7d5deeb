"""Given positions of tokens: texts padded on the left, or packed into a row, have the outputs of each alone."""

import math

import pytest
import torch

from regard import masks
from regard.errors import DtypeError, OptionError, ShapeError
from regard.models import (
    Bert,
    BertConfig,
    ClipText,
    ClipTextConfig,
    Transformer,
    TransformerConfig,
    TransformerEncoder,
    TransformerEncoderConfig,
)
from regard.positions import Learned, Sinusoidal

VOCABULARY, LENGTH, HIDDEN = 31, 7, 4
SIZES = {"vocabulary": VOCABULARY, "width": 20, "heads": 5, "layers": 2, "inner": 13}
CLOSE = {"rtol": 1e-11, "atol": 1e-11}


def encoder(position):
    return TransformerEncoder(TransformerEncoderConfig(**SIZES, position=position, max_length=19, dropout=0.0))


def bert():
    return Bert(BertConfig(**SIZES, max_length=19, dropout=0.0, attention_dropout=0.0))


def clip_text():
    return ClipText(ClipTextConfig(**SIZES, max_length=19, projection=None, end_id=5, pad_id=0))


MODELS = [
    *(pytest.param(lambda name=name: encoder(name), id=name) for name in ("sinusoidal", "learned", "rotary", "alibi")),
    pytest.param(bert, id="bert"),
    pytest.param(clip_text, id="clip_text"),
]


def draw(count, length, seed):
    ids = torch.randint(6, VOCABULARY, (count, length), generator=torch.Generator().manual_seed(seed))
    ids[:, -1] = 5  # the end token of CLIP
    return ids


@pytest.fixture
def exact():
    torch.manual_seed(5)
    return lambda model: model.double().eval()


@pytest.mark.parametrize("make", MODELS)
def test_a_text_padded_on_the_left_is_as_alone(make, exact):
    model, text = exact(make()), draw(2, LENGTH, 1)
    padded = torch.cat([draw(2, HIDDEN, 2), text], dim=1)
    visible = torch.arange(HIDDEN + LENGTH)[None].expand(2, -1) >= HIDDEN
    positions = (torch.arange(HIDDEN + LENGTH) - HIDDEN).clamp(min=0)[None].expand(2, -1)
    output = model(padded, mask=masks.keep(visible[:, None, None]), positions=positions).hidden[:, HIDDEN:]
    torch.testing.assert_close(output, model(text).hidden, **CLOSE)


@pytest.mark.parametrize("make", MODELS)
def test_packed_texts_are_as_each_alone(make, exact):
    model, texts = exact(make()), [draw(1, length, length) for length in (5, 7, 3)]
    positions = torch.cat([torch.arange(text.shape[1]) for text in texts])[None]
    numbers = torch.repeat_interleave(torch.arange(3), torch.tensor([5, 7, 3]))[None]
    packed = model(torch.cat(texts, dim=1), mask=masks.documents(numbers), positions=positions).hidden
    for text, output in zip(texts, packed.split([5, 7, 3], dim=1), strict=True):
        torch.testing.assert_close(output, model(text).hidden, **CLOSE)


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "t5"])
def test_a_source_padded_on_the_left_gives_the_logits_of_the_source_alone(position, exact):
    model = exact(Transformer(TransformerConfig(**SIZES, position=position, max_length=19, dropout=0.0)))
    source, target = draw(2, LENGTH, 1), draw(2, 5, 3)
    padded = torch.cat([draw(2, HIDDEN, 2), source], dim=1)
    visible = torch.arange(HIDDEN + LENGTH)[None].expand(2, -1) >= HIDDEN
    positions = (torch.arange(HIDDEN + LENGTH) - HIDDEN).clamp(min=0)[None].expand(2, -1)
    logits = model(padded, target, mask=masks.keep(visible[:, None, None]), source_positions=positions).logits
    torch.testing.assert_close(logits, model(source, target).logits, **CLOSE)


def test_sinusoids_of_given_positions():
    positions = torch.tensor([[0, 3, 100_003], [7, 7, 0]])
    table = Sinusoidal(6).double().at(positions)
    for row in range(2):
        for place in range(3):
            p = int(positions[row, place])
            angles = [p / 10000 ** (2 * pair / 6) for pair in range(3)]
            expected = [number for angle in angles for number in (math.sin(angle), math.cos(angle))]
            torch.testing.assert_close(table[row, place].tolist(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("encoding", [Sinusoidal(6), Learned(11, 6)])
def test_given_positions_have_the_bits_of_counted_ones(encoding):
    assert torch.equal(encoding.at(torch.arange(2, 11)[None])[0], encoding(9, offset=2))


@pytest.mark.parametrize("make", MODELS)
def test_positions_that_do_not_fit_are_refused(make):
    model, ids = make(), draw(2, LENGTH, 1)
    with pytest.raises(ShapeError, match="ids and positions have different shapes"):
        model(ids, positions=torch.arange(LENGTH)[None])
    with pytest.raises(DtypeError, match="positions are not integers"):
        model(ids, positions=torch.zeros(2, LENGTH))
    with pytest.raises(OptionError, match="positions are out of range"):
        model(ids, positions=torch.full((2, LENGTH), -1))


@pytest.mark.parametrize("make", [lambda: encoder("learned"), bert, clip_text])
def test_positions_beyond_the_last_learned_one_are_refused(make):
    with pytest.raises(OptionError, match="positions are out of range"):
        make()(draw(2, LENGTH, 1), positions=torch.full((2, LENGTH), 19))
