"""Runs on a text: windows, errors of each head, and changed vectors, against computations of their own."""

import json

import numpy as np
import pytest
import tokenizers
import torch

import regard
import regard.bench
from regard.bench.peak_memory import CaseProcess
from regard.bench.replacement import neighbour_count
from regard.bench.text_windows import TextWindows
from regard.comparison import replace_mechanism
from regard.errors import CheckpointError, DataError, OptionError
from regard.models import Bert, BertConfig
from regard.text import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LENGTH, LAYERS, HEADS = 13, 2, 3


@pytest.fixture(scope="module")
def model():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *("##" + letter for letter in LETTERS)]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(11)
    config = BertConfig(
        vocabulary=len(names), width=21, layers=LAYERS, heads=HEADS, inner=17, max_length=LENGTH, deviation=0.3
    )
    made = Bert(config).eval()
    made.tokenizer = Tokenizer(backend, pad_id=0, limit=LENGTH)
    return made


@pytest.fixture(scope="module")
def text():
    """One letter per token, in lines of different lengths, with a blank line."""
    letters = np.random.default_rng(5).choice(list(LETTERS), 157)
    return [" ".join(letters[:40]), "", " ".join(letters[40:63]), " ".join(letters[63:])]


@pytest.fixture(scope="module")
def report(model, text):
    """A run without memory, as on systems that cannot fork: starting a process takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CaseProcess, "is_supported", lambda: False)
        return regard.bench.run_on_text(
            text,
            model,
            ["linear", "longformer:window=4:global_tokens=[]", "additive", "linformer"],
            lengths=[LENGTH, 2 * LENGTH],
            texts=9,
            seconds=0.02,
            top=3,
        )


def letter_ids(text):
    return [4 + LETTERS.index(letter) for letter in "".join(text).replace(" ", "")]


class TestWindows:
    def test_windows_join_lines_and_have_special_tokens(self, model, text):
        windows, ids = TextWindows(text, model), letter_ids(text)
        assert len(windows) == len(ids) == 157
        assert windows.count(LENGTH) == 157 // 11
        cut = windows.cut(LENGTH, 99).tolist()
        assert cut == [[2, *ids[start : start + 11], 3] for start in range(0, 154, 11)]

    def test_fewer_windows_are_spread_over_the_text(self, model, text):
        windows = TextWindows(text, model)
        everything = windows.cut(LENGTH, 99).tolist()
        assert windows.cut(LENGTH, 4).tolist() == [everything[index] for index in (0, 3, 7, 10)]

    def test_a_text_that_is_too_short(self, model):
        with pytest.raises(DataError, match="shorter than a window of 13 tokens"):
            TextWindows(["a b c"], model).cut(LENGTH, 3)
        with pytest.raises(DataError, match="no words"):
            TextWindows(["", " "], model)

    def test_a_window_without_room(self, model, text):
        with pytest.raises(OptionError, match="no room for text"):
            TextWindows(text, model).cut(2, 3)

    def test_a_model_without_tokenizer(self, text):
        config = BertConfig(vocabulary=11, width=6, layers=1, heads=2, inner=7, max_length=17)
        with pytest.raises(CheckpointError, match="no tokenizer"):
            TextWindows(text, Bert(config))


def test_errors_of_each_head_agree_with_numpy(model, text, report):
    """Linear attention of the recorded queries and keys, by its equation."""
    ids = TextWindows(text, model).cut(LENGTH, 4)
    with regard.record(model) as seen, torch.no_grad():
        model(ids)
    for layer, call in enumerate(seen):
        query, key, value = (one.double().numpy() for one in (call.query, call.key, call.value))
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(7)
        exact = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        features = [np.where(one > 0, one + 1, np.exp(np.minimum(one, 0))) for one in (query, key)]
        linear = features[0] @ features[1].transpose(0, 1, 3, 2)
        linear /= linear.sum(-1, keepdims=True)
        for head in range(HEADS):
            (found,) = (
                one.measures
                for one in report.heads
                if (one.mechanism, one.layer, one.head, one.length) == ("linear", layer, head, LENGTH)
            )
            outputs = [weights[:, head] @ value[:, head] for weights in (exact, linear)]
            error = np.linalg.norm(outputs[1] - outputs[0]) / np.linalg.norm(outputs[0])
            assert found.output_error == pytest.approx(error, rel=1e-4)
            kept = np.minimum(exact[:, head], linear[:, head]).sum(-1).mean()
            assert found.mass_kept == pytest.approx(kept, abs=1e-5)


def test_changed_vectors_agree_with_numpy(model, text, report):
    """Mean pooling, normalised: the default for a model whose folder does not say."""
    ids = TextWindows(text, model).cut(LENGTH, 9)
    other = replace_mechanism(model, "linear").model.eval()
    with torch.no_grad():
        hidden, changed = (one(ids).hidden.double().numpy() for one in (model, other))
    (found,) = (one.change for one in report.replacements if one.mechanism == "linear")
    vectors, others = (one / np.linalg.norm(one, axis=-1, keepdims=True) for one in (hidden.mean(1), changed.mean(1)))
    cosines = (vectors * others).sum(-1)
    assert found.cosine_mean == pytest.approx(cosines.mean(), abs=1e-5)
    assert found.cosine_min == pytest.approx(cosines.min(), abs=1e-5)
    errors = np.linalg.norm(changed - hidden, axis=-1) / np.linalg.norm(hidden, axis=-1)
    assert found.token_error_mean == pytest.approx(errors.mean(), rel=1e-4)
    assert found.token_error_max == pytest.approx(errors.max(), rel=1e-4)
    between = [vectors[i] @ vectors[j] for i in range(9) for j in range(9) if i != j]
    assert report.cosine_between_texts == pytest.approx(np.mean(between), abs=1e-5)

    count, same, kept, correlations = neighbour_count(9), 0, 0, []
    assert count == 4
    for text_number in range(9):
        rest = [number for number in range(9) if number != text_number]
        ours, theirs = (np.array([one[text_number] @ one[number] for number in rest]) for one in (vectors, others))
        same += ours.argmax() == theirs.argmax()
        kept += len(set(np.argsort(-ours)[:count]) & set(np.argsort(-theirs)[:count]))
        ranks = [np.array([(values < value).sum() for value in values]) for values in (ours, theirs)]
        correlations.append(np.corrcoef(*ranks)[0, 1])
    assert found.nearest == pytest.approx(same / 9)
    assert found.neighbours == pytest.approx(kept / 9 / count)
    assert found.rank_correlation == pytest.approx(np.mean(correlations))


def test_a_mechanism_that_needs_trained_parameters_is_listed_with_the_reason(report):
    (additive,) = (one for one in report.replacements if one.mechanism == "additive")
    assert "no trained weights" in additive.missing
    assert additive.change is additive.time is None
    assert "no trained weights" in report.shapes.case("additive", LENGTH).missing["error"]


def test_untrained_projections_are_noted(report):
    (linformer,) = (one for one in report.replacements if one.mechanism == "linformer")
    assert any("not trained" in note for note in linformer.notes)
    assert linformer.change is not None


def test_lengths_beyond_the_model_have_times_but_no_errors(report):
    case = report.shapes.case("linear", 2 * LENGTH)
    assert case.time is not None
    assert case.missing["error"] == f"the model reads at most {LENGTH} tokens (got {2 * LENGTH} tokens)"
    assert {one.length for one in report.heads} == {LENGTH}
    assert (report.length, report.texts, report.available) == (LENGTH, 9, 14)


def test_json(report):
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert found["windows"] == {"length": LENGTH, "measured": 9, "in_the_text": 14}
    assert found["neighbours"] == 4
    labels = ["dot_product", "linear", "longformer:window=4:global_tokens=[]", "additive", "linformer"]
    assert [one["mechanism"] for one in found["replacements"]] == labels
    assert found["replacements"][0]["change"] is None
    assert found["replacements"][1]["seconds_per_text"]["runs"] == 9
    assert len(found["heads"]) == 3 * LAYERS * HEADS
    assert found["settings"]["heads"] == HEADS
    assert found["settings"]["head_dim"] == 7


def test_the_model_is_unchanged(model, report):
    del report
    kinds = {type(layer.attention.mechanism).__name__ for layer in model.layers}
    assert kinds == {"DotProduct"}


def test_options_that_are_the_models(model, text):
    for options in ({"heads": 2}, {"head_dim": 3}, {"causal": True}):
        with pytest.raises(OptionError, match="cannot be chosen for a model"):
            regard.bench.run_on_text(text, model, **options)
    with pytest.raises(OptionError, match="longer than the model reads"):
        regard.bench.run_on_text(text, model, ["linear"], lengths=[LENGTH + 1])
    with pytest.raises(OptionError, match="wrong texts"):
        regard.bench.run_on_text(text, model, ["linear"], texts=0)
