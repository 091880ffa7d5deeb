"""Ids are arbitrary: a model and subwords with renumbered tokens learn and write the same text.

Special tokens then have any ids, and the ids 0 to 3 are ordinary tokens.
"""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from regard.models import Recurrent, Transformer, load
from regard.search import Beam, Greedy, Sampling
from regard.tasks.sentences import Sentences
from regard.tasks.translation.data import Corpus, CorpusBatches
from regard.tasks.translation.new_model import PRESETS, new_model
from regard.tasks.translation.recipe import TranslationRecipe
from regard.tasks.translation.validation import pair_loss
from regard.text.subwords import Subwords
from regard.translation import Translator
from regard.translation.export import FORMS, export
from regard.view.read_pair import read_pair
from sampled_parameters import parametrize_sample
from small_translators import ENGLISH, GERMAN, JOINT_SUBWORDS, recurrent, transformer

UNIGRAM = Subwords.train(GERMAN + ENGLISH, size=330, algorithm="unigram")
SENTENCES = ["Zwei", "🙂 Hund"]
SEARCHES = [Greedy(), Beam(3, best=3), Sampling(seed=3, top_k=1), Beam(2, length_penalty=0.0, coverage_penalty=0.3)]
SEEDS = some.integers(0, 10**6)


def random_order(seed, vocabulary):
    """Return the new id of each token; no special token keeps its id."""
    chance = np.random.default_rng(seed)
    while True:
        order = chance.permutation(vocabulary)
        if not (order[:4] < 4).any():
            return order


def renumber_subwords(subwords, order):
    """Return the subwords with the new ids, read from a file."""
    content = json.loads(subwords.to_json())
    model = content["model"]
    if model["type"] == "BPE":
        model["vocab"] = {name: int(order[number]) for name, number in model["vocab"].items()}
    else:
        model["vocab"] = [model["vocab"][number] for number in np.argsort(order)]
        model["unk_id"] = int(order[model["unk_id"]])
    return content


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Read subwords from the contents of a file."""
    path = tmp_path_factory.mktemp("subwords") / "tokenizer.json"

    def of(content):
        path.write_text(json.dumps(content), encoding="utf-8")
        return Subwords.from_file(path)

    return of


def renumber_translator(translator, order, read):
    """Return the translator with renumbered tokens."""
    model = translator.model
    numbers = {name: int(order[getattr(model, name)]) for name in ("pad_id", "start_id", "end_id")}
    other = type(model)(type(model.config)(**{**vars(model.config), **numbers})).eval()
    places = torch.from_numpy(np.argsort(order))
    words = {"source_words.weight", "target_words.weight", "output.weight"}
    weights = {name: one[places] if name in words else one for name, one in model.state_dict().items()}
    other.load_state_dict(weights)
    other.tie()
    subwords = read(renumber_subwords(translator.source, order))
    other.subwords = (subwords, subwords)
    return Translator(other.to(next(model.parameters()).dtype))


def make_both(seed, read, make=transformer, **options):
    translator = make(**options)
    translator.model.double()
    order = random_order(seed, JOINT_SUBWORDS.vocabulary)
    return translator, renumber_translator(translator, order, read), order


def batches(translator):
    sides = translator.source.encode(GERMAN[:3]), translator.target.encode(ENGLISH[:3])
    corpus = Corpus(*(Sentences.from_ids(side, JOINT_SUBWORDS.vocabulary) for side in sides))
    model = translator.model
    ids = {"pad_id": model.pad_id, "start_id": model.start_id, "end_id": model.end_id}
    return CorpusBatches(corpus, tokens=1000, seed=1, **ids)


MAKERS = [
    (transformer, {}),
    (transformer, {"shared": "none"}),
    (recurrent, {"attention": "additive"}),
    (recurrent, {"attention": "luong_dot", "cell": "lstm", "shared": "all"}),
]


@pytest.mark.parametrize("subwords", [JOINT_SUBWORDS, UNIGRAM], ids=["bpe", "unigram"])
@settings(max_examples=3, deadline=None)
@given(seed=SEEDS)
def test_texts_are_split_alike(read, subwords, seed):
    order = random_order(seed, subwords.vocabulary)
    other = read(renumber_subwords(subwords, order))
    special = ("pad_id", "unknown_id", "start_id", "end_id")
    assert [getattr(other, name) for name in special] == [order[getattr(subwords, name)] for name in special]
    for ids, others in zip(subwords.encode(SENTENCES), other.encode(SENTENCES), strict=True):
        assert others == order[ids].tolist()
        assert other.decode(others) == subwords.decode(ids)
        assert other.pieces_of(others) == subwords.pieces_of(ids)
    every = range(subwords.vocabulary)
    assert [other.decode([int(order[one])]) for one in every] == [subwords.decode([one]) for one in every]


@pytest.mark.parametrize(("make", "options"), MAKERS)
def test_losses_and_gradients_are_the_same(read, make, options):
    one, other, order = make_both(3, read, make, **options)
    losses = []
    for translator in (one, other):
        loss = pair_loss(translator.model, batches(translator), np.arange(3), smoothing=0.1)
        loss.backward()
        losses.append(loss.detach())
    # Sums over the vocabulary in another order.
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=0)
    mine, its = (translator.model.source_words.weight.grad for translator in (one, other))
    torch.testing.assert_close(its[order], mine, rtol=0, atol=1e-10 * mine.abs().max().item())
    assert its[order].any()


@parametrize_sample("maker, search", MAKERS, SEARCHES)
def test_translations_are_the_same(read, maker, search):
    make, options = maker
    one, other, order = make_both(5, read, make, **options)
    for mine, its in zip(
        one.translate(SENTENCES, search=search), other.translate(SENTENCES, search=search), strict=True
    ):
        assert [each.text for each in its.renderings] == [each.text for each in mine.renderings]
        for my, its_own in zip(mine.renderings, its.renderings, strict=True):
            assert its_own.ids == tuple(order[list(my.ids)].tolist())
            assert its_own.score == pytest.approx(my.score, rel=1e-9)
            assert its_own.finished == my.finished


@settings(max_examples=3, deadline=None)
@given(seed=SEEDS)
def test_translations_are_the_same_for_any_ids(read, seed):
    one, other, _ = make_both(seed, read)
    actual = [[it.text for it in each.translate(SENTENCES, search=Greedy())] for each in (one, other)]
    assert actual[0] == actual[1]


def test_saved_model_keeps_the_ids(read, tmp_path):
    _, other, _ = make_both(7, read)
    other.model.save(tmp_path / "model")
    again = Translator(load(tmp_path / "model", dtype=torch.float64))
    assert [one.ids for it in again.translate(SENTENCES) for one in it.renderings] == [
        one.ids for it in other.translate(SENTENCES) for one in it.renderings
    ]


def test_alignments_and_readings_are_the_same(read):
    one, other, _ = make_both(11, read)
    mine, its = (each.aligned_pairs([(GERMAN[0], ENGLISH[0]), (GERMAN[1], ENGLISH[1])]) for each in (one, other))
    for my, its_own in zip(mine, its, strict=True):
        assert (its_own.source_words, its_own.target_words) == (my.source_words, my.target_words)
        torch.testing.assert_close(its_own.weights, my.weights, rtol=0, atol=1e-12)
    readings = [read_pair(each, GERMAN[0], ENGLISH[0]) for each in (one, other)]
    assert readings[1].alignment.tokens.pieces == readings[0].alignment.tokens.pieces
    assert readings[1].target.tokens.pieces[0] == "<s>"
    assert readings[1].alignment.tokens.pieces[-1] == "</s>"


@pytest.mark.parametrize("form", FORMS)
def test_exports_name_the_special_tokens(read, tmp_path, form):
    model = transformer(norm="pre" if form == "pegasus" else "post")
    other = renumber_translator(model, random_order(13, JOINT_SUBWORDS.vocabulary), read)
    # Only the export receives the subwords.
    subwords, other.model.subwords = other.model.subwords, None
    export(other.model, subwords, tmp_path / "out", form=form)
    settings_of = json.loads((tmp_path / "out" / "config.json").read_text())
    if form == "ctranslate2":
        names = [settings_of[name] for name in ("unk_token", "bos_token", "eos_token", "decoder_start_token")]
        assert names == ["<unk>", "<s>", "</s>", "<s>"]
        return
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    own = subwords[1]
    assert sorted(written["suppress_tokens"]) == sorted([own.pad_id, own.unknown_id, own.start_id])
    assert (settings_of["pad_token_id"], settings_of["eos_token_id"]) == (own.pad_id, own.end_id)
    tokens = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    names = [tokens[name] for name in ("pad_token", "unk_token", "bos_token", "eos_token")]
    assert names == ["<pad>", "<unk>", "<s>", "</s>"]


@pytest.mark.parametrize("kind", ["tiny", "gru"])
def test_new_model_has_the_special_ids_of_its_subwords(read, kind):
    subwords = read(renumber_subwords(JOINT_SUBWORDS, random_order(17, JOINT_SUBWORDS.vocabulary)))
    model = new_model(TranslationRecipe(data=(), model=kind), PRESETS.sizes[0], (subwords, subwords))
    assert isinstance(model, Transformer if kind == "tiny" else Recurrent)
    special = ("pad_id", "start_id", "end_id")
    assert [getattr(model, name) for name in special] == [getattr(subwords, name) for name in special]
    assert not model.source_words.weight[subwords.pad_id].any()


def test_end_token_that_is_also_padding_is_learned():
    """As in GPT-2. The end of each sentence counts in the loss, and nothing after it."""
    plain, ending = transformer(pad_id=0), transformer(pad_id=3)
    ending.model.load_state_dict(plain.model.state_dict())
    losses = [pair_loss(each.model, batches(each), np.arange(3), smoothing=0.1) for each in (plain, ending)]
    assert torch.equal(losses[0], losses[1])
