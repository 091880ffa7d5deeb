"""Perplexity with a sliding window, against one model call for each token."""

import math

import pytest
import torch

from regard.errors import CheckpointError, OptionError
from regard.generation import score_texts
from regard.models.rotary_config import RotaryConfig
from regard.positions import DynamicScaling
from small_language_models import documents, language_model


def slow_loss(model, texts, length, stride):
    """The sum of the losses, from one call for each predicted token with the context that its window leaves."""
    total, count = 0.0, 0
    for text in texts:
        ids = [0, *model.tokenizer.plain_ids([text])[0], 0]
        for target in range(1, len(ids)):
            window = 0 if target <= length else math.ceil((target - length) / stride)
            context = ids[window * stride : target]
            assert len(context) <= length
            logits = model(torch.tensor([context])).logits[0, -1].double()
            total -= float(logits.log_softmax(0)[ids[target]])
            count += 1
    return total, count


@pytest.mark.parametrize("kind", ["gpt2", pytest.param("llama", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("length", "stride"), [(43, 43), (17, 5), (17, 1), (11, 11), (1, 1)])
@torch.no_grad()
def test_each_token_is_scored_once_with_the_context_of_its_window(kind, length, stride):
    model, texts = language_model(kind), [documents()[0][:31], "x", documents()[3][:53]]
    expected, count = slow_loss(model, texts, length, stride)
    scores = score_texts(model, texts, length=length, stride=stride, batch_tokens=101)
    assert (scores.tokens, scores.documents) == (count, 3)
    assert scores.nats == pytest.approx(expected, rel=1e-5)
    assert scores.loss == pytest.approx(expected / count, rel=1e-5)
    assert scores.perplexity == pytest.approx(math.exp(expected / count), rel=1e-4)


def test_bits_per_byte_and_character():
    model = language_model()
    scores = score_texts(model, ["aé", "漢"])
    assert (scores.characters, scores.bytes, scores.tokens) == (3, 6, 8)
    assert scores.bits_per_byte == pytest.approx(scores.nats / math.log(2) / 6)
    assert scores.bits_per_character == pytest.approx(2 * scores.bits_per_byte)
    assert (scores.length, scores.stride) == (43, 21)


def test_what_is_not_predicted_does_not_count():
    """Without a start token the first token of each text is given: a byte here, and all of "x"."""
    model, texts = language_model("llama"), ["aé", "漢", "x", "bcd"]
    whole = score_texts(model, texts)
    model.start_id = None
    scores = score_texts(model, texts)
    assert (whole.characters, whole.bytes) == (7, 10)
    assert scores.tokens == whole.tokens - 4
    assert (scores.characters, scores.bytes) == (1 + 1 + 0 + 2, 2 + 2 + 0 + 2)
    assert scores.bits_per_byte == pytest.approx(scores.nats / math.log(2) / 6)
    ends = score_texts(model, ["x"])
    assert (ends.tokens, ends.bytes, ends.bits_per_byte) == (1, 0, math.inf)
    with pytest.raises(OptionError, match="no token to predict"):
        score_texts(model, [""])


def test_unknown_characters_are_counted():
    model = language_model(tokenizer="characters")
    assert score_texts(model, ["the ☃ cat", "☃"]).unknown == 2


def test_the_size_of_batches_changes_nothing_but_rounding():
    model, texts = language_model(), documents()[:7]
    small, large = (score_texts(model, texts, batch_tokens=size).nats for size in (1, 10_000))
    assert small == pytest.approx(large, rel=1e-6)


def test_documents_do_not_depend_on_one_another_where_the_rotation_depends_on_the_length():
    model = language_model("llama", max_length=5, rotary=RotaryConfig(scaling=DynamicScaling(3.0, 5)))
    texts = [documents()[0][:31], "x", documents()[3][:17]]
    alone = sum(score_texts(model, [text]).nats for text in texts)
    assert score_texts(model, texts).nats == pytest.approx(alone, rel=1e-6)


def test_a_model_that_predicts_uniformly_has_the_perplexity_of_its_vocabulary():
    model = language_model(tied=False)
    torch.nn.init.zeros_(model.output.weight)
    assert score_texts(model, documents()[:3]).perplexity == pytest.approx(257, rel=1e-5)


def test_unusable_arguments_are_refused():
    model = language_model()
    with pytest.raises(OptionError, match="longer than the model's context"):
        score_texts(model, ["abc"], length=44)
    with pytest.raises(OptionError, match="larger than the window"):
        score_texts(model, ["abc"], length=11, stride=12)
    with pytest.raises(OptionError, match="no token to predict"):
        score_texts(model, [])
    model.tokenizer = None
    with pytest.raises(CheckpointError, match="no tokenizer"):
        score_texts(model, ["abc"])
