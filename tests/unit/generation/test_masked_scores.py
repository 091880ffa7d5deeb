"""Scores of masked language models, against a loop that shares nothing with them."""

import math

import numpy as np
import pytest
import torch

from regard.errors import CheckpointError, OptionError
from regard.generation.masked_scores import encode_document, mask_documents, score_masked_texts
from regard.text.token_masking import TokenMasking
from small_language_models import documents
from small_masked_language_models import masked_language_model


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_scores_are_those_of_the_texts_alone(kind):
    model = masked_language_model(kind)
    texts = documents(13, seed=5)
    scores = score_masked_texts(model, texts, length=19, share=0.3, seed=7, batch_tokens=100)
    encoded = [encode_document(text, model.tokenizer) for text in texts]
    masking = TokenMasking.of(model.tokenizer, share=0.3)
    nats, tokens, correct = 0.0, 0, 0
    masked = mask_documents(encoded, model.tokenizer, length=19, masking=masking, seed=7)
    for one in masked:
        assert (one.ids[0], one.ids[-1], len(one.ids) <= 19) == (2, 3, True)
        assert (one.masked[one.chosen] == 4).all()
        assert (one.masked[~one.chosen] == one.ids[~one.chosen]).all()
        logits = model(torch.from_numpy(one.masked)[None]).logits[0].detach().double().log_softmax(-1)
        for place in np.flatnonzero(one.chosen):
            nats -= float(logits[place, one.ids[place]])
            correct += int(logits[place].argmax() == one.ids[place])
            tokens += 1
    assert np.concatenate([one.ids[1:-1] for one in masked]).tolist() == np.concatenate(encoded).tolist()
    assert (scores.tokens, scores.correct, scores.texts, scores.documents) == (tokens, correct, len(masked), 13)
    assert scores.nats == pytest.approx(nats, rel=1e-5)
    assert scores.loss == pytest.approx(nats / tokens, rel=1e-5)
    assert scores.perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert scores.accuracy == correct / tokens


def test_what_cannot_be_measured_is_refused():
    model = masked_language_model()
    with pytest.raises(CheckpointError, match="no masked-language head"):
        score_masked_texts(masked_language_model(head=False), ["the cat"])
    with pytest.raises(OptionError, match="longer than those"):
        score_masked_texts(model, ["the cat"], length=44)
    with pytest.raises(OptionError, match="wrong length"):
        score_masked_texts(model, ["the cat"], length=2)
    with pytest.raises(OptionError, match="no token to mask"):
        score_masked_texts(model, ["☃"])
