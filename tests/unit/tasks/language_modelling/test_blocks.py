"""Blocks of documents: every token once, with the right label, document and position; and their loss."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.language_modelling.blocks import IGNORED, PackedBlocks, RandomOffsetBlocks, make_blocks
from regard.tasks.language_modelling.validation import block_loss
from regard.tasks.sentences import Sentences
from small_language_models import documents, language_model


def unique_documents(lengths):
    """Documents whose tokens are all different, so that each can be recognised."""
    numbers = iter(range(sum(lengths)))
    return [[next(numbers) for _ in range(length)] for length in lengths]


@given(lengths=st.lists(st.integers(1, 23), min_size=2, max_size=17), length=st.integers(1, 13), size=st.integers(1, 5))
def test_packed_blocks_hold_each_prediction_once(lengths, length, size):
    texts = unique_documents(lengths)
    if sum(lengths) == len(lengths):
        return
    blocks = PackedBlocks(Sentences.from_ids(texts, 1000), length=length, size=size, seed=3)
    owner = {token: (number, place) for number, text in enumerate(texts) for place, token in enumerate(text)}
    seen, count = [], 0
    for batch in blocks.epoch(2):
        rows = np.arange(len(batch.begins))
        made = blocks.tensors(batch, rows)
        count += blocks.tokens(batch)
        assert int((made.labels != IGNORED).sum()) == blocks.tokens(batch)
        for row in range(len(rows)):
            last = None
            for place in range(made.ids.shape[1]):
                token, label = int(made.ids[row, place]), int(made.labels[row, place])
                if label == IGNORED:
                    continue
                document, offset = owner[token]
                assert owner[label] == (document, offset + 1)
                seen.append(label)
                new = last != document
                if made.documents is None:
                    assert last in (None, document)
                else:
                    assert (not new) == (
                        place > 0 and bool(made.documents[row, place] == made.documents[row, place - 1])
                    )
                    expected = 0 if new else int(made.positions[row, place - 1]) + 1
                    assert int(made.positions[row, place]) == expected
                last = document
    assert sorted(seen) == sorted(token for text in texts for token in text[1:])
    assert count == blocks.predictions == len(seen)


def test_epochs_differ_and_repeat():
    blocks = make_blocks(Sentences.from_ids(unique_documents([7] * 31), 300), length=5, size=3, seed=1)
    first, second, again = blocks.epoch(0), blocks.epoch(1), blocks.epoch(0)
    assert first[0] is not again[0]
    assert all((one.begins == other.begins).all() and (one.order == other.order).all()
               for one, other in zip(first, again, strict=True))  # fmt: skip
    assert any((one.order != other.order).any() for one, other in zip(first, second, strict=True))


def test_one_document_gives_blocks_at_random_offsets():
    (text,) = unique_documents([101])
    blocks = make_blocks(Sentences.from_ids([text], 300), length=7, size=3, seed=1)
    assert isinstance(blocks, RandomOffsetBlocks)
    batches = blocks.epoch(0)
    assert len(batches) == 100 // 21
    begins = {int(one) for batch in batches for one in batch.begins}
    assert len(begins) > 7
    for batch in batches:
        made = blocks.tensors(batch, np.arange(3))
        assert (made.documents, made.positions) == (None, None)
        assert (made.labels == made.ids + 1).all()
        assert (made.ids[:, 0] == torch.from_numpy(batch.begins)).all()
    drawn = np.concatenate([batch.begins for number in range(2000) for batch in blocks.epoch(number)])
    assert (drawn.min(), drawn.max()) == (0, 93)  # the last block ends with the last token


def test_a_short_document_shortens_its_blocks():
    blocks = make_blocks(Sentences.from_ids(unique_documents([5]), 300), length=7, size=3, seed=1)
    assert blocks.length == 4
    assert (blocks.tensors(blocks.epoch(0)[0], np.arange(3)).labels == torch.tensor([[1, 2, 3, 4]])).all()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "retention", "moba"])
def test_packing_changes_neither_loss_nor_gradient(kind):
    """The loss of packed documents is the sum of those of the documents alone, cut where the blocks are."""
    options = {
        "gpt2": {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0},
        "retention": {"mechanisms": ("retention", "dot_product"), "model_type": "regard-llama"},
        "moba": {"mechanisms": ("moba",) * 2, "mechanism_options": {"block": 3}, "model_type": "regard-llama"},
    }
    model = language_model(kind, **options.get(kind, {}))
    texts = [
        model.tokenizer.ids([text])[0][:length] for text, length in zip(documents(), [5, 2, 11, 1, 7, 13], strict=False)
    ]
    blocks = PackedBlocks(Sentences.from_ids(texts, 300), length=17, size=3, seed=5)
    (batch,) = blocks.epoch(0)
    made = blocks.tensors(batch, np.arange(len(batch.begins)))
    assert made.documents is not None
    packed = block_loss(model, made, decoder=model)
    alone = 0.0
    for row in range(len(made.ids)):
        for number in made.documents[row].unique().tolist():
            here = (made.documents[row] == number) & (made.labels[row] != IGNORED)
            if here.any():
                logits = model(made.ids[row][here][None]).logits[0]
                alone = alone + torch.nn.functional.cross_entropy(logits, made.labels[row][here], reduction="sum")
    torch.testing.assert_close(packed, alone)
    expected = torch.autograd.grad(alone, list(model.parameters()))
    torch.testing.assert_close(torch.autograd.grad(packed, list(model.parameters())), expected, rtol=1e-4, atol=1e-4)
