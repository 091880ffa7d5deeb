"""A Perceiver as a text encoder: the states before the last layer of a masked language model, padding, its folder."""

import pytest
import torch
from torch.nn import functional

import regard
from regard import masks
from regard.errors import OptionError, RefusedError, ShapeError
from regard.models import (
    ClassOutput,
    Perceiver,
    PerceiverConfig,
    PerceiverTextEncoder,
    PixelInput,
    PositionOutput,
    TextClassifier,
    TextClassifierConfig,
    TextInput,
    TextOutput,
)
from regard.text.embedding import Embedder

SIZES = {"latents": 5, "width": 12, "layers": 2, "heads": 3, "cross_heads": 2, "deviation": 0.3}
INPUT = TextInput(max_length=23, width=14)


def make():
    torch.manual_seed(3)
    return PerceiverTextEncoder(PerceiverConfig(INPUT, PositionOutput(2, 6), **SIZES)).eval()


def test_hidden_states_are_those_before_the_last_layer():
    """The logits of a masked language model are its hidden states times the embedding, and a bias."""
    torch.manual_seed(3)
    filler = Perceiver(PerceiverConfig(INPUT, TextOutput(2, 6), **SIZES)).eval()
    encoder = PerceiverTextEncoder.around(filler)
    ids, mask = torch.randint(6, 262, (2, 13)), masks.padding([13, 7])
    hidden = encoder(ids, mask=mask).hidden
    logits = functional.linear(hidden, filler.input.token_embedding.weight, filler.output.last.bias)
    assert hidden.shape == (2, 13, 14)
    assert torch.equal(logits, filler(ids, mask=mask).logits)
    assert (encoder.width, encoder.max_tokens, encoder.pad_id, encoder.training) == (14, 23, 0, False)
    assert encoder.tokenizer.ids(["é"]) == [[4, 201, 175, 5]]


def test_at_computes_some_positions():
    model, ids = make().perceiver, torch.randint(6, 262, (2, 13))
    some = model(ids, at=torch.tensor([4, 0])).logits
    torch.testing.assert_close(some, model(ids).logits[:, [4, 0]])


def test_padding_has_no_influence():
    """Not on hidden states, not on gradients, and neither has its length."""
    model, ids = make(), torch.randint(6, 262, (2, 13))
    found = []
    for padding in (7, 200):
        ids[1, 7:] = padding
        model.zero_grad()
        hidden = model(ids, mask=masks.padding([13, 7])).hidden
        hidden[1, :7].square().sum().backward()
        found.append((hidden.detach(), [weight.grad.clone() for weight in model.parameters()]))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(*pair) for pair in zip(found[0][1], found[1][1], strict=True))
    torch.testing.assert_close(model(ids[1:, :7]).hidden[0], found[0][0][1, :7])


def test_folders(tmp_path):
    """That of the encoder is a Perceiver's; that of a classifier holds the bytes' tokenizer too."""
    model = make()
    texts = model.tokenizer.encode(["Straße", "yes"])
    model.save(tmp_path / "encoder")
    again = PerceiverTextEncoder.around(regard.load(tmp_path / "encoder"))
    assert torch.equal(again(texts.ids, mask=texts.mask).hidden, model(texts.ids, mask=texts.mask).hidden)
    classifier = TextClassifier(model, TextClassifierConfig(("no", "yes"), max_tokens=11)).eval()
    classifier.save(tmp_path / "classifier")
    read = regard.load(tmp_path / "classifier")
    assert torch.equal(read(texts.ids, mask=texts.mask).logits, classifier(texts.ids, mask=texts.mask).logits)
    assert (read.max_tokens, read.tokenizer.limit, read.tokenizer.to_json()) == (11, 11, classifier.tokenizer.to_json())
    assert Embedder(read).sentences(["Straße", "yes"]).shape == (2, 14)


def test_bad_input():
    with pytest.raises(OptionError, match=r"(?s)no text encoder.*PixelInput"):
        PerceiverTextEncoder(PerceiverConfig(PixelInput((5, 7)), ClassOutput(("a", "b")), **SIZES))
    with pytest.raises(OptionError, match="PositionOutput does not go with this input"):
        Perceiver(PerceiverConfig(PixelInput((5, 7), bands=1, channels=2), PositionOutput(), **SIZES))
    with pytest.raises(RefusedError, match="no hidden state for each token"):
        make()(torch.randint(6, 262, (1, 3)), keep_layers=True)
    with pytest.raises(ShapeError, match="too long"):
        make()(torch.randint(6, 262, (1, 24)))
