"""Sentence vectors against sentence-transformers, and their batching and pooling."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import CheckpointError, DataError, OptionError, RefusedError
from regard.models import Bert, BertConfig, load
from regard.models.model_folder import resolve_folder
from regard.text import Embedder, Pooling
from regard.text.embedding import batches_by_length

# Some of the texts are in scripts that the model does not know, about which the embedder warns.
pytestmark = pytest.mark.filterwarnings("ignore::regard.errors.UnknownWordsWarning")

TEXTS = [
    "The animal didn't cross the street because it was too tired.",
    "",
    "猫 吃 鱼。我爱北京天安门，今天天气很好。",
    "😀 naïve café 𠀀",
    "word " * 260,
    "a",
    "[MASK] <b>&amp;</b> [SEP] https://example.org?q=1",
    "שלום עולם",
]


@pytest.fixture(scope="module")
def embedder():
    return Embedder(load("minilm"))


@pytest.fixture(scope="module")
def peer():
    from sentence_transformers import SentenceTransformer  # takes a second in each worker process

    peer = SentenceTransformer(str(resolve_folder("minilm")), device="cpu")
    peer.max_seq_length = 512  # otherwise it truncates at 256
    return peer


@pytest.fixture(scope="module")
def theirs(peer):
    """Vectors of all texts by sentence-transformers."""
    return peer.encode(TEXTS)


def test_cosine_against_sentence_transformers(embedder, theirs):
    ours = embedder.sentences(TEXTS).numpy()
    assert (ours * theirs).sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert np.abs(ours - theirs).max() < 1e-5


def test_bfloat16_against_sentence_transformers(theirs):
    ours = Embedder(load("minilm", dtype=torch.bfloat16)).sentences(TEXTS)
    assert ours.dtype == torch.float32
    assert (ours.numpy() * theirs).sum(axis=1).min() > 0.999
    assert ours.norm(dim=1).numpy() == pytest.approx(1, abs=1e-6)


def test_token_vectors_against_sentence_transformers(embedder, peer):
    for ours, theirs in zip(
        embedder.tokens(TEXTS[:4]), peer.encode(TEXTS[:4], output_value="token_embeddings"), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_batches_give_what_single_texts_give(embedder):
    together = embedder.sentences(TEXTS, batch=3)
    alone = torch.cat([embedder.sentences(text) for text in TEXTS])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_saved_models_give_the_same_in_sentence_transformers(embedder, peer, tmp_path):
    embedder.model.save(tmp_path / "saved")
    theirs = type(peer)(str(tmp_path / "saved"), device="cpu").encode(TEXTS[:4])
    assert (embedder.sentences(TEXTS[:4]).numpy() * theirs).sum(axis=1) == pytest.approx(1, abs=1e-5)


def test_no_texts(embedder):
    assert embedder.sentences([]).shape == (0, 384)
    assert embedder.tokens([]) == ()


def test_long_text_is_refused_or_truncated(embedder):
    with pytest.raises(DataError, match=r"text 1 is too long[\s\S]*513 tokens"):
        embedder.sentences(["a", "word " * 511])
    cut = embedder.sentences(["word " * 600], truncate=True)
    torch.testing.assert_close(cut, embedder.sentences(["word " * 510]))


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 7), st.integers(50, 99))
def test_batches_contain_every_text_once(lengths, size, most_tokens):
    actual = list(batches_by_length(lengths, size, most_tokens=most_tokens))
    assert sorted(row for batch in actual for row in batch) == list(range(len(lengths)))
    for batch in actual:
        assert 1 <= len(batch) <= size
        assert len(batch) * max(lengths[row] for row in batch) <= most_tokens
    assert [lengths[row] for batch in actual for row in batch] == sorted(lengths)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(0, 30))
def test_batches_have_little_padding(lengths, most_padding):
    actual = list(batches_by_length(lengths, 7, most_padding=most_padding))
    of = [[lengths[row] for row in batch] for batch in actual]
    assert sorted(row for batch in actual for row in batch) == list(range(len(lengths)))
    assert all(max(batch) * len(batch) - sum(batch) <= most_padding for batch in of)
    for batch, following in pairwise(of):  # each batch is as long as possible
        longer = [*batch, following[0]]
        assert len(longer) > 7 or max(longer) * len(longer) - sum(longer) > most_padding


def test_an_empty_batch_is_refused():
    with pytest.raises(OptionError, match="wrong batch"):
        list(batches_by_length([1], 0))


class TestPooling:
    HIDDEN = torch.tensor([[[3.0, 4.0], [1.0, 0.0], [float("nan"), 9.0]]])

    def test_mean_ignores_nonfinite_padding(self):
        pooled = Pooling(("mean",), normalise=False).pool(self.HIDDEN, torch.tensor([2]))
        assert pooled.tolist() == [[2.0, 2.0]]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_summed_in_float32(self, dtype):
        """bfloat16 can represent neither the sum over 513 tokens nor the number 513."""
        hidden = torch.ones(1, 513, 1, dtype=dtype)
        pooled = Pooling(("mean",), normalise=False).pool(hidden, torch.tensor([513]))
        assert pooled.dtype == torch.float32
        assert pooled.tolist() == [[1.0]]

    def test_first_token_at_length_1(self):
        pooled = Pooling(("cls",), normalise=True).pool(self.HIDDEN, torch.tensor([2]))
        torch.testing.assert_close(pooled, torch.tensor([[0.6, 0.8]]))

    @pytest.mark.parametrize("mode", ["cls", "mean"])
    def test_written_files_are_read_again(self, tmp_path, mode):
        pooling = Pooling((mode,), normalise=mode == "cls", limit=7)
        (tmp_path / "1_Pooling").mkdir()
        for name, content in pooling.files(13, 99).items():
            (tmp_path / name).write_text(content)
        assert Pooling.read(tmp_path) == pooling
        assert Pooling.read(tmp_path).limit == 7

    @pytest.mark.parametrize("name", ["sentence_roberta_config.json", "sentence_xlm-roberta_config.json"])
    def test_settings_under_the_names_of_other_encoders(self, tmp_path, name):
        (tmp_path / "modules.json").write_text(json.dumps([{"path": "", "type": "a.Transformer"}]))
        (tmp_path / name).write_text(json.dumps({"max_seq_length": 7, "do_lower_case": True}))
        pooling = Pooling.read(tmp_path)
        assert (pooling.limit, pooling.others) == (7, ("do_lower_case",))

    def test_a_folder_without_modules(self, tmp_path):
        assert Pooling.read(tmp_path) is None

    def test_unsupported_modules_are_refused_when_used(self, tmp_path):
        modules = [
            {"path": "", "type": "a.Transformer"},
            {"path": "1", "type": "a.Pooling"},
            {"path": "2", "type": "a.Dense"},
        ]
        (tmp_path / "modules.json").write_text(json.dumps(modules))
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
        with pytest.raises(RefusedError, match=r"max_tokens, module 'Dense'"):
            Pooling.read(tmp_path).check()

    @pytest.mark.parametrize("content", ["{", "{}", '[{"type": "a.Pooling", "path": "../.."}]'])
    def test_damaged_files(self, tmp_path, content):
        (tmp_path / "modules.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"modules\.json"):
            Pooling.read(tmp_path)


def test_a_model_without_tokenizer():
    with pytest.raises(CheckpointError, match="no tokenizer"):
        Embedder(Bert(BertConfig(vocabulary=5, width=2, layers=1, heads=1, inner=3)))
