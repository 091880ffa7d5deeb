"""The translator: order, batches, streams, placeholders, words, and sentences that it cannot read."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from hypothesis_examples import examples
from regard.errors import CheckpointError, DataError, OptionError, RefusedError
from regard.search import Beam, Greedy, Hypothesis, Sampling, Search
from regard.text.placeholders import TOKENS, protect
from regard.text.words import token_spans, word_spans, words
from regard.translation import Rendering, Translation, Translator
from small_translators import GERMAN, recurrent, transformer

TEXTS = [
    *GERMAN[1:3],
    "Hund",
    "",
    "Zwei kleine Hunde laufen.",
    "  ",
    "klein %s",
    "läuft",
]
TAGGED = 'Ein <a href="x" class="y">Hund</a> läuft.'


@pytest.fixture(scope="module")
def translator():
    return transformer()


@pytest.fixture(scope="module")
def translations(translator):
    """Translations of all texts with default options."""
    return texts_of(translator.translate(TEXTS))


def texts_of(found):
    return [[one.text for one in translation.renderings] for translation in found]


class TestOrder:
    @pytest.mark.parametrize(
        "search",
        [Beam(3, best=2), *(pytest.param(one, marks=pytest.mark.slow) for one in (Greedy(), Sampling(seed=3, best=2)))],
        ids=str,
    )
    def test_sentences_are_translated_as_if_alone(self, translator, search):
        translations = translator.translate(TEXTS, search=search)
        assert [one.source for one in translations] == TEXTS
        for text, one in zip(TEXTS, translations, strict=True):
            (alone,) = translator.translate([text], search=search)
            assert texts_of([alone]) == texts_of([one])
            for mine, its in zip(alone.renderings, one.renderings, strict=True):
                assert mine.score == pytest.approx(its.score, abs=1e-4)

    @pytest.mark.parametrize("tokens", [pytest.param(1, marks=pytest.mark.slow), 17, 10**6])
    def test_batch_size_has_no_effect(self, translator, translations, tokens):
        assert texts_of(Translator(translator.model, tokens=tokens).translate(TEXTS)) == translations

    def test_renderings_are_sorted_by_score(self, translator):
        for one in translator.translate(GERMAN[:2], search=Beam(4, best=4)):
            scores = [rendering.score for rendering in one.renderings]
            assert scores == sorted(scores, reverse=True)
            assert one.text == one.renderings[0].text

    def test_empty_texts_have_empty_translations(self, translator):
        assert translator.translate([]) == []
        assert translator.translate(["", " \t"]) == [
            Translation("", (Rendering("", (), 0.0, 0.0, True),)),
            Translation(" \t", (Rendering("", (), 0.0, 0.0, True),)),
        ]


class TestStream:
    @pytest.fixture(autouse=True)
    def small_chunks(self, monkeypatch):
        monkeypatch.setattr("regard.translation.translator.CHUNK_SENTENCES", 13)

    def test_reads_only_one_chunk_ahead(self, translator):
        read = []
        texts = (read.append(number) or "Hund" for number in itertools.count())
        actual = translator.stream(texts, search=Greedy())
        assert next(actual).source == "Hund"
        assert len(read) <= 13
        for _ in range(13):
            next(actual)
        assert len(read) <= 26

    def test_agrees_with_translate(self, translator):
        many = TEXTS * 3  # more than are in memory at a time
        actual = list(translator.stream(many, search=Greedy()))
        assert [one.source for one in actual] == many
        assert texts_of(actual) == texts_of(translator.translate(TEXTS, search=Greedy())) * 3

    def test_overlong_text_is_named_by_its_number(self):
        translator = transformer(position="learned", length=29)
        texts = ["", *[""] * 1300, " ".join(["Schnee"] * 40)]
        with pytest.raises(DataError, match="text 1,302 is too long"):
            list(translator.stream(texts, search=Greedy()))


class TestPlaceholders:
    def test_missing_placeholders_are_reported(self, translator):
        (translations,) = translator.translate(["Ein Hund %s läuft."], search=Greedy())
        best = translations.renderings[0]
        assert best.missing == (() if "%s" in best.text else ("%s",))

    def test_placeholders_are_restored(self, translator):
        originals = protect("%s und %d").kept
        rendering = translator._render(
            protect("%s und %d"), _make_hypothesis(translator, f"two {TOKENS[1]} {TOKENS[0]}")
        )
        assert originals == ("%s", "%d")
        assert rendering.text == "two %d %s"
        assert rendering.missing == ()

    def test_unused_placeholders_are_dropped(self, translator):
        rendering = translator._render(protect("%s"), _make_hypothesis(translator, f"two {TOKENS[3]}"))
        assert rendering.text.strip() == "two"
        assert rendering.missing == ("%s",)


def _make_hypothesis(translator, text):
    from regard.search import Hypothesis

    (ids,) = translator.target.encode([text])
    return Hypothesis(tuple(ids), -1.0, -1.0, True)


class TestWords:
    @pytest.mark.parametrize("make", [transformer, lambda: recurrent("additive"), lambda: recurrent("local_p")])
    def test_weights_of_target_words_over_source_words(self, make):
        translator = make()
        (translations,) = translator.translate(["Zwei kleine Hunde laufen."], search=Beam(3))
        aligned = translator.aligned(translations.source, translations.renderings[0])
        assert aligned.source_words == words("Zwei kleine Hunde laufen.")
        assert " ".join(aligned.target_words).split() == translations.text.split()
        assert aligned.weights.shape == (len(aligned.target_words), len(aligned.source_words))
        assert (aligned.weights >= 0).all()
        assert (aligned.weights.sum(1) <= 1 + 1e-5).all()  # some weight may be on the end token
        heaviest = aligned.weights.argmax(1).tolist()
        assert aligned.alignment.sure <= {(source, target) for target, source in enumerate(heaviest)}

    def test_alignment_of_a_given_pair(self, translator):
        aligned = translator.aligned_pair("Zwei Hunde", "Two dogs run.")
        assert (aligned.source_words, aligned.target_words) == (("Zwei", "Hunde"), ("Two", "dogs", "run."))

    @pytest.mark.parametrize("split", [word_spans, token_spans])
    def test_a_tag_with_attributes_is_one_word_and_several_tokens(self, translator, split):
        aligned = translator.aligned_pair(TAGGED, TAGGED, split=split)
        assert " ".join(aligned.source_words).split() == TAGGED.split()
        tokens = len(TAGGED.split())
        links = aligned.token_alignment.sure
        assert {target for _, target in links} == set(range(tokens))
        assert {source for source, _ in links} <= set(range(tokens))

    @examples(25)
    @given(
        some.lists(some.sampled_from(["Hund", "%s", '<a href="x">', "läuft,", "{n}", "Schnee"]), min_size=1, max_size=9)
    )
    def test_token_links_are_within_the_texts(self, translator, parts):
        text = " ".join(parts)
        aligned = translator.aligned_pair(text, text, split=token_spans)
        links = aligned.token_alignment.sure
        assert {target for _, target in links} == set(range(len(text.split())))
        assert {source for source, _ in links} <= set(range(len(text.split())))

    @pytest.mark.parametrize(
        "make",
        [
            transformer,
            lambda: recurrent("luong_general"),
            pytest.param(lambda: recurrent("local_p"), marks=pytest.mark.slow),
        ],
    )
    def test_batch_of_pairs_equals_single_pairs(self, make):
        translator, targets = make(), ("Two", "The dog is small.", TAGGED)
        pairs = [(source, target) for source in GERMAN[:3] for target in targets]
        each = [translator.aligned_pair(*pair) for pair in pairs]
        for tokens in (1, 23, 10**6):
            translator.tokens = tokens
            for alone, found in zip(each, translator.aligned_pairs(pairs), strict=True):
                assert (found.source_words, found.target_words) == (alone.source_words, alone.target_words)
                torch.testing.assert_close(found.weights, alone.weights, rtol=0, atol=1e-5)
        translated = translator.translate(GERMAN[:3], search=Greedy())
        rendered = [(one.source, one.renderings[0]) for one in translated]
        for one, found in zip(rendered, translator.aligned_all(rendered), strict=True):
            torch.testing.assert_close(found.weights, translator.aligned(*one).weights, rtol=0, atol=1e-5)
        assert translator.aligned_all([]) == []

    def test_model_without_attention_has_no_alignment(self):
        translator = recurrent("none")
        (translations,) = translator.translate(["Zwei Hunde"], search=Greedy())
        with pytest.raises(RefusedError):
            translator.aligned("Zwei Hunde", translations.renderings[0])

    def test_truncated_translation_is_aligned(self):
        """The model never ends (states near 1, weights of the end -100), so the translation has the maximum length."""
        translator = transformer(position="learned", length=23, norm="pre")
        translator.model.decoder_norm.weight.data.fill_(0.1)
        translator.model.decoder_norm.bias.data.fill_(1.0)
        translator.model.output.weight.data[translator.model.end_id] = -100
        (translations,) = translator.translate(["Ein kleiner Hund läuft durch"], search=Greedy())
        assert not translations.renderings[0].finished
        assert len(translations.renderings[0].ids) == 22
        aligned = translator.aligned(translations.source, translations.renderings[0])
        assert aligned.weights.shape == (len(aligned.target_words), len(aligned.source_words))

    def test_alignment_is_without_dropout(self):
        translator = transformer(dropout=0.5)
        translator.model.train()
        one, other = (translator.aligned_pair("Zwei Hunde laufen.", "Two dogs run.").weights for _ in range(2))
        assert torch.equal(one, other)
        assert translator.model.training


class TestInvalidTexts:
    def test_sentence_beyond_the_positions(self):
        translator = transformer(position="learned", length=29)
        long = " ".join(["Schnee"] * 40)
        with pytest.raises(DataError, match=r"(?s)text 2 is too long for the model.*at most 28 subwords.*got"):
            translator.translate(["Hund", long])
        with pytest.raises(DataError, match="line 7 is too long"):
            translator.check(long, "line 7")
        with pytest.raises(DataError, match="the source is too long"):
            translator.aligned_pair(long, "Two")
        with pytest.raises(DataError, match="the source of pair 2 is too long"):
            translator.aligned_pairs([("Hund", "dog"), (long, "Two")])
        with pytest.raises(DataError, match="the target of pair 2 is too long"):
            translator.aligned_pairs([("Hund", "dog"), ("Hund", " ".join(["snow"] * 40))])
        with pytest.raises(DataError, match="text 1 is too long"):
            translator.aligned(long, translator.translate(["Hund"], search=Greedy())[0].renderings[0])
        translator.check("Hund", "line 1")

    @pytest.mark.usefixtures("without_shape_checks")
    @pytest.mark.parametrize("texts", ["Ein Hund", 7, None])
    def test_values_that_are_no_list_of_texts(self, translator, texts):
        with pytest.raises(OptionError, match="texts is not a list of texts"):
            translator.translate(texts)

    def test_items_that_are_no_text(self, translator, without_shape_checks):
        del without_shape_checks
        with pytest.raises(OptionError, match="text 2 is not a string"):
            translator.translate(["Hund", None])
        with pytest.raises(OptionError, match="text 1 is not a string"):
            translator.translate(b"ab")

    def test_model_without_subwords(self):
        model = transformer().model
        model.subwords = None
        with pytest.raises(CheckpointError, match="no subwords"):
            Translator(model)

    def test_unseen_scripts_are_encoded_in_bytes(self, translator):
        for text in ("猫が好き", "Щука", "🐈"):
            (ids,) = translator.source.encode([text])
            assert 1 not in ids
            assert translator.source.decode(ids) == text
        assert len(translator.translate(["猫が好き"], search=Greedy())) == 1


def test_translating_does_not_change_the_model(translator):
    translator.model.train()
    before = {name: weight.clone() for name, weight in translator.model.state_dict().items()}
    translator.translate(["Hund"])
    assert translator.model.training
    assert all(torch.equal(weight, before[name]) for name, weight in translator.model.state_dict().items())
    translator.model.eval()


class CountingSearch(Search):
    """Search that writes nothing, and counts the sources of each call."""

    def __init__(self, rows: int) -> None:
        self._rows, self.batches = rows, []

    @property
    def rows(self) -> int:
        return self._rows

    def decode(self, model, source, lengths, most):
        self.batches.append(len(source))
        return [[Hypothesis((), 0.0, 0.0, finished=True)] for _ in source]


class TestBatches:
    """Number of sentences that are searched together."""

    def test_batches_shrink_with_the_number_of_targets(self):
        translator = Translator(transformer().model, tokens=60)
        (ids,) = translator.source.encode(["Zwei Hunde laufen."])
        together = 60 // (len(ids) + 1)
        for rows, size in ((1, together), (5, together), (10, 30 // (len(ids) + 1)), (1000, 1)):
            search = CountingSearch(rows)
            translator.translate(["Zwei Hunde laufen."] * 97, search=search)
            assert max(search.batches) == size
            assert sum(search.batches) == 97

    def test_logits_limit_the_number_of_short_sentences(self, monkeypatch):
        translator = transformer()
        monkeypatch.setattr("regard.translation.translator._MAX_LOGITS", 7 * 5 * translator.target.vocabulary)
        search = CountingSearch(5)
        translator.translate(["Hund"] * 97, search=search)
        assert max(search.batches) == 7

    @pytest.mark.parametrize(
        ("search", "rows"), [(Greedy(), 1), (Beam(7), 7), (Beam(4, best=2), 4), (Sampling(seed=1, best=3), 3)], ids=str
    )
    def test_number_of_rows_of_each_search(self, search, rows):
        assert search.rows == rows
