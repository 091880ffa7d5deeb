"""Folders of a T5, written by ``transformers``: the same tokens, sentences and outputs as there."""

import json

import pytest
import torch
import transformers

import regard
from regard.errors import CheckpointError, OptionError
from regard.models import T5
from regard.search import Beam, Greedy
from regard.text.pretrained_subwords import PretrainedSubwords
from regard.text.subwords import Subwords
from regard.text.tokenizer import Tokenizer
from regard.text.words import token_spans
from regard.translation import Translator
from small_checkpoints import make_tokenizer as make_bpe
from small_t5 import save_t5
from small_translators import transformer

PREFIX = "translate English to German: "
SENTENCES = ["A small dog runs.", "Two dogs run through the snow, 100 % sure.", "%s <b>dog</b>", "☃ dog ☃☃"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_t5(tmp_path_factory.mktemp("t5") / "t5")


@pytest.fixture(scope="module")
def peer(folder):
    return open_peer(folder)


def open_peer(folder):
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def peer_output(peer, text, **options):
    """What transformers writes, if it may not write padding and unknown tokens either, with our limit of length."""
    model, tokenizer = peer
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    banned = [tokenizer.pad_token_id, tokenizer.unk_token_id]
    most = 2 * ids.shape[1] + 10
    (row,) = model.generate(ids, max_new_tokens=most, suppress_tokens=banned, do_sample=False, **options)
    return tokenizer.decode(row, skip_special_tokens=True)


class TestParity:
    @pytest.mark.parametrize("prefix", [PREFIX, pytest.param("", marks=pytest.mark.slow)])
    def test_greedy_search_and_beams(self, folder, peer, prefix):
        translator = Translator.load(folder, prefix=prefix)
        beam = {"num_beams": 3, "length_penalty": 0.0, "early_stopping": "never"}
        for search, options in (
            (Greedy(), {"num_beams": 1}),
            (Beam(width=3, length_penalty=0.0, patience=float("inf")), beam),
        ):
            sentences = SENTENCES if search == Greedy() else SENTENCES[:2]
            texts = [one.text for one in translator.translate(sentences, search=search)]
            assert texts == [peer_output(peer, prefix + text, **options) for text in sentences]

    def test_ids(self, folder, peer):
        translator = Translator.load(folder)
        for text in [*SENTENCES, "dog <extra_id_0> runs </s> cat"]:
            assert [*translator.encode_source(text)[1], 1] == peer[1](text)["input_ids"]

    def test_a_saved_folder(self, folder, peer, tmp_path):
        model = regard.load(folder)
        model.metadata = {"prefix": PREFIX}
        model.save(tmp_path / "copy")
        model.save(tmp_path / "copy", overwrite=True)
        again = regard.load(tmp_path / "copy")
        assert again.prefix == PREFIX
        theirs, tokenizer = open_peer(tmp_path / "copy")
        assert tokenizer(SENTENCES)["input_ids"] == peer[1](SENTENCES)["input_ids"]
        for text, found in zip(SENTENCES, Translator(again).translate(SENTENCES, search=Greedy()), strict=True):
            assert found.text == peer_output((theirs, tokenizer), PREFIX + text, num_beams=1)


class TestTranslator:
    def test_texts_without_words(self, folder):
        translator = Translator.load(folder, prefix=PREFIX)
        for blank in ("", "  ", "\n"):
            (found,) = translator.translate([blank])
            assert found.text == ""
            assert found.renderings[0].ids == ()

    def test_private_use_characters_are_text(self, folder):
        """Placeholders of regard's own subwords: here they are characters like others."""
        (found,) = Translator.load(folder).translate(["\ue001 dog"], search=Greedy())
        (same,) = Translator.load(folder).translate(["\ue002 dog"], search=Greedy())
        assert found.renderings[0].ids == same.renderings[0].ids

    @pytest.mark.parametrize("prefix", ["", PREFIX, "s:"])
    def test_alignments_leave_out_the_prefix(self, folder, prefix):
        translator = Translator.load(folder, prefix=prefix)
        aligned = translator.aligned_pair("Two dogs run .", "Zwei Hunde ☃ laufen .", split=token_spans)
        first = "s:Two" if prefix == "s:" else "Two"
        assert aligned.source_words == (first, "dogs", "run", ".")
        assert aligned.target_words == ("Zwei", "Hunde", "<unk>", "laufen", ".")
        assert aligned.weights.shape == (5, 4)
        whole = translator.model.cross_attention_weights(
            torch.tensor([[*translator.encode_source("Two dogs run .")[1], 1]]),
            torch.tensor([[0, *translator.target.encode(["Zwei Hunde ☃ laufen ."])[0]]]),
        )
        assert aligned.weights.sum() <= whole.sum() + 1e-4
        if not prefix:
            pieces = translator.source.pieces_of(translator.encode_source("Two dogs run .")[1])
            last = [place for place, piece in enumerate(pieces) if piece.word == 3]
            target = [piece.word for piece in translator.target.pieces_of(translator.target.encode(["Zwei"])[0])]
            rows = torch.tensor([place for place, word in enumerate(target) if word == 0])
            expected = whole[0][rows][:, last].sum(1).mean()
            torch.testing.assert_close(aligned.weights[0, 3], expected.detach())

    def test_a_prefix_with_a_translator_of_regard(self):
        with pytest.raises(OptionError, match="single task"):
            Translator(transformer().model, prefix=PREFIX)
        with pytest.raises(OptionError, match="prefix"):
            Translator(transformer().model, prefix=3)

    def test_a_folder_without_tokenizer(self, folder, tmp_path):
        model = regard.load(folder)
        model.tokenizer = model.subwords = None
        model.save(tmp_path / "bare")
        (tmp_path / "bare" / "tokenizer.json").unlink(missing_ok=True)
        with pytest.raises(CheckpointError, match="no subwords") as refused:
            Translator.load(tmp_path / "bare")
        assert "save_pretrained" in str(refused.value)

    def test_a_damaged_tokenizer_config(self, folder, tmp_path):
        regard.load(folder).save(tmp_path / "bad")
        (tmp_path / "bad" / "tokenizer_config.json").write_text("[1, 2")
        with pytest.raises(CheckpointError, match="tokenizer_config"):
            regard.load(tmp_path / "bad")

    def test_an_encoder_alone(self, tmp_path):
        folder = save_t5(tmp_path / "encoder", encoder=True)
        with pytest.raises(CheckpointError, match="another kind of model"):
            Translator.load(folder)


class TestSubwords:
    def test_new_subwords_are_recognised(self, folder, tmp_path):
        subwords = Subwords.train([*SENTENCES, "Zwei Hunde laufen."], size=330)
        config = json.loads((folder / "config.json").read_text())
        model = T5(regard.models.T5Config(subwords.vocabulary, width=16, layers=1, heads=2, head_dim=8, inner=20,
                                          pad_id=0, start_id=2, end_ids=(3,)))  # fmt: skip
        assert config["model_type"] == model.model_type == "t5"
        model.subwords = (subwords, subwords)
        model.save(tmp_path / "own")
        again = regard.load(tmp_path / "own")
        assert isinstance(again.subwords[0], Subwords)
        assert again.subwords[0].to_json() == subwords.to_json()
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "own")
        texts = ["Two dogs run.", "</s> Zwei ☃"]
        assert tokenizer(texts)["input_ids"] == [[*ids, 3] for ids in subwords.encode(texts)]

    @pytest.mark.parametrize("kind", ["llama", "roberta"])
    def test_pieces_of_other_decoders(self, kind):
        """Spaces as ▁, and bytes: the pieces are the text, and a character of several tokens belongs to one word."""
        subwords = PretrainedSubwords(Tokenizer(make_bpe(kind), pad_id=0), end_id=2)
        text = "The dog läuft ☃ durch." if kind == "roberta" else "The dog runs through."
        (ids,) = subwords.encode([text])
        assert subwords.words_of(ids) == tuple(text.split())
        pieces = subwords.pieces_of(ids)
        assert "".join(piece.text for piece in pieces if piece.word is not None).strip() == text
        assert {piece.word for piece in pieces} - {None} == set(range(len(text.split())))

    def test_the_first_word_is_unknown(self, folder):
        subwords = Translator.load(folder).source
        (ids,) = subwords.encode(["☃ dog"])
        assert subwords.words_of(ids) == ("<unk>", "dog")
        assert subwords.words_of([2, *subwords.encode(["dog"])[0]])[-1].endswith("dog")
