"""Encoders with a masked-language head against transformers, one model type after another; and their folders."""

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM
from typer.testing import CliRunner

import regard
from causal_parity import reload, save_and_read
from encoder_parity import assert_bfloat16, assert_same_model, assert_same_outputs, random_ids
from hypothesis_examples import examples
from regard.cli.app import app
from regard.errors import CheckpointError, OptionError, RefusedError, ShapeError
from regard.models import (
    Encoder,
    ModernBert,
    ModernBertConfig,
    Roberta,
    RobertaConfig,
    RotaryConfig,
    TextClassifier,
    TextClassifierConfig,
    load,
)
from regard.models.roberta import ROBERTA_TYPES
from regard.text import Embedder
from regard.view.words_from_tokens import words_of
from slow_parameters import slow_except
from small_checkpoints import change_config

LENGTH = 13
PREFIXES = {
    "bert": "bert.",
    "camembert": "roberta.",
    "modernbert": "model.",
    "roberta": "roberta.",
    "xlm-roberta": "roberta.",
}
CONFIGS = {
    "bert": "Bert",
    "camembert": "Camembert",
    "modernbert": "ModernBert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}
SUPPORTED = sorted(CONFIGS)
CLASSES = slow_except({"bert", "modernbert", "roberta"}, SUPPORTED)
"""The types, but those that are Robertas under another name marked slow."""
MODERNBERT_BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias")


def make_peer(kind, seed=0, deviation=0.2, **fields):
    """A small masked language model of transformers, with random weights, biases and norms included."""
    options = {
        "vocab_size": 31,
        "hidden_size": 22,
        "intermediate_size": 17,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "max_position_embeddings": LENGTH,
        "initializer_range": deviation,
        "pad_token_id": 0 if kind == "bert" else 1,
    } | fields
    if kind == "modernbert":  # the windows are shorter than the text
        options |= {"hidden_size": 28} | fields
        options = {"local_attention": 6, "cls_token_id": None, "sep_token_id": None} | options
        options |= {"bos_token_id": None, "eos_token_id": None}
    if kind in ROBERTA_TYPES:
        options["max_position_embeddings"] += options["pad_token_id"] + 1
    torch.manual_seed(seed)
    config = getattr(transformers, CONFIGS[kind] + "Config")(**options)
    config._attn_implementation = "eager"
    peer = AutoModelForMaskedLM.from_config(config).eval()
    assert peer.config.model_type == kind
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            if "norm" in name.lower() or name.endswith("bias"):
                weight += torch.randn_like(weight) * 0.3
    return peer


@st.composite
def peers(draw, kind):
    """A random small model of one type."""
    heads = draw(st.sampled_from([1, 2, 3]))
    options = {
        "vocab_size": draw(st.sampled_from([11, 31])),
        "hidden_size": heads * draw(st.sampled_from([14, 22])),
        "num_attention_heads": heads,
        "num_hidden_layers": draw(st.sampled_from([1, 2, 3, 5])),
        "tie_word_embeddings": draw(st.booleans()),
        "pad_token_id": draw(st.sampled_from([0, 1, 3])),
        "hidden_act": draw(st.sampled_from(["gelu", "relu", "gelu_new", "silu"])),
    }
    if kind == "modernbert":
        del options["hidden_act"]
        options |= {name: draw(st.booleans()) for name in MODERNBERT_BIASES}
        options |= {
            "hidden_activation": draw(st.sampled_from(["gelu", "silu", "gelu_pytorch_tanh"])),
            "classifier_activation": draw(st.sampled_from(["gelu", "relu"])),
            "local_attention": draw(st.sampled_from([2, 6, 7, 10])),
            "global_attn_every_n_layers": draw(st.sampled_from([1, 2, 3])),
        }
    return make_peer(kind, draw(st.integers(0, 2**16)), **options)


class TestParity:
    @pytest.mark.parametrize("kind", CLASSES)
    def test_random_small_models(self, tmp_path_factory, kind):
        @examples(12, without_slow=4)
        @given(peer=peers(kind))
        def check(peer):
            # transformers rotates queries and keys in float32
            assert_same_model(peer, tmp_path_factory.mktemp("peer"), length=LENGTH, exact=kind != "modernbert")

        check()

    @pytest.mark.parametrize("kind", slow_except({"modernbert"}, SUPPORTED))
    def test_bfloat16(self, tmp_path, kind):
        assert_bfloat16([make_peer(kind, seed) for seed in range(5)], tmp_path, length=LENGTH)

    @pytest.mark.parametrize("kind", SUPPORTED)
    def test_folders_are_read_by_transformers_and_again(self, tmp_path_factory, kind):
        @examples(6, without_slow=2)
        @given(peer=peers(kind), shard=st.sampled_from([100, 3000, 10**9]))
        def check(peer, shard):
            folder = tmp_path_factory.mktemp("peer")
            model = reload(peer, folder)
            unused = {"cls.predictions.bias", "lm_head.bias"} if not peer.config.tie_word_embeddings else set()
            again = save_and_read(model, folder / "copy", AutoModelForMaskedLM, shard, unused=unused)
            assert type(again) is type(peer)
            assert_same_outputs(model, again, random_ids(peer, 2, LENGTH))

        check()


@pytest.mark.parametrize("kind", CLASSES)
class TestFolders:
    def test_without_a_head(self, tmp_path, kind):
        """A folder of the encoder alone has the same hidden states, and no logits; it is written without the head."""
        peer = make_peer(kind)
        peer.base_model.save_pretrained(tmp_path / "encoder")
        encoder, whole = load(tmp_path / "encoder"), reload(peer, tmp_path / "whole")
        ids = random_ids(peer, 2, LENGTH)
        output = encoder(ids)
        assert torch.equal(output.hidden, whole(ids).hidden)
        assert output.logits is None
        assert "logits None" in repr(output)
        with pytest.raises(RefusedError, match="no masked-language head"):
            encoder.compute_logits(output.hidden)
        options = {} if kind == "modernbert" else {"add_pooling_layer": False}
        again = save_and_read(encoder, tmp_path / "copy", AutoModel, **options)
        with torch.no_grad():
            torch.testing.assert_close(again(ids).last_hidden_state, output.hidden, atol=1e-5, rtol=0)

    def test_embedding_and_classifying_take_no_head(self, tmp_path, kind):
        peer = make_peer(kind)
        whole = reload(peer, tmp_path)
        encoder = Encoder.load(tmp_path)
        ids = random_ids(peer, 2, LENGTH)
        assert encoder(ids).logits is None
        assert torch.equal(encoder(ids).hidden, whole(ids).hidden)
        assert not any(name.startswith("head.") for name in encoder.state_dict())

    def test_the_tied_matrix_is_one(self, tmp_path, kind):
        model = reload(make_peer(kind), tmp_path)
        assert model.head.output.weight is model.token_embedding.weight
        model.save(tmp_path / "copy")
        assert not any("decoder.weight" in name for name in load_file(tmp_path / "copy" / "model.safetensors"))

    def test_logits_of_some_positions(self, tmp_path, kind):
        peer = make_peer(kind)
        model, ids = reload(peer, tmp_path), random_ids(peer, 2, LENGTH)
        output, masked = model(ids), torch.rand(2, LENGTH) < 0.3
        torch.testing.assert_close(model.compute_logits(output.hidden[masked]), output.logits[masked])

    def test_a_missing_tensor_of_the_head(self, tmp_path, kind):
        reload(make_peer(kind), tmp_path).save(tmp_path / "copy")
        path = tmp_path / "copy" / "model.safetensors"
        tensors = load_file(path)
        heads = [name for name in tensors if not name.startswith(PREFIXES[kind])]
        del tensors[next(name for name in heads if "norm" in name.lower())]
        save_file(tensors, path)
        with pytest.raises(CheckpointError, match=r"lacks tensors of the model[\s\S]*head.norm"):
            load(tmp_path / "copy")


def test_old_files_of_bert_hold_the_tied_matrix_and_a_pooler(tmp_path):
    """As the published files, which have the head of next sentences as well: it is skipped, and a note says so."""
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=22, intermediate_size=13, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=LENGTH, attn_implementation="eager",
    )  # fmt: skip
    peer = transformers.BertForPreTraining(config).eval()
    peer.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    tensors["cls.predictions.transform.LayerNorm.gamma"] = tensors.pop("cls.predictions.transform.LayerNorm.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    model, ids = load(tmp_path), random_ids(peer, 2, LENGTH)
    assert len(model.notes) == 1
    assert "cls.seq_relationship.weight" in model.notes[0]
    with torch.no_grad():
        ours, theirs = model(ids), peer(ids, output_hidden_states=True)
    torch.testing.assert_close(ours.logits, theirs.prediction_logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.pooled, peer.bert(ids).pooler_output, atol=1e-5, rtol=0)
    model.save(tmp_path / "copy")
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "copy")(ids).pooled, ours.pooled)


class TestRoberta:
    def test_too_many_tokens(self):
        model = Roberta(RobertaConfig(vocabulary=31, width=22, layers=1, heads=2, inner=13, max_length=5)).eval()
        assert model.max_tokens == 5
        assert model(torch.tensor([[2, 3, 4, 5, 6, 1, 1]])).hidden.shape == (1, 7, 22)
        with pytest.raises(ShapeError, match="at most 5 tokens"):
            model(torch.full((1, 6), 2))

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"heads": 5}, "multiple of heads"),
            ({"model_type": "bert"}, "camembert, roberta, xlm-roberta"),
            ({"pad_id": 50265}, "pad_id"),
            ({"activation": "gelu_new"}, "activation of a RoBERTa"),
        ],
    )
    def test_hyperparameters(self, fields, message):
        with pytest.raises(OptionError, match=message):
            RobertaConfig(**fields)

    def test_a_classifier_with_this_encoder(self, tmp_path):
        encoder = reload(make_peer("xlm-roberta"), tmp_path / "peer")
        classifier = TextClassifier(encoder, TextClassifierConfig(labels=("no", "yes"))).eval()
        classifier.save(tmp_path / "classifier")
        ids = torch.randint(2, 31, (2, 7))
        assert torch.equal(load(tmp_path / "classifier")(ids).logits, classifier(ids).logits)


def test_other_types_are_told_those_that_are_supported(tmp_path):
    reload(make_peer("roberta"), tmp_path).save(tmp_path / "copy")
    change_config(tmp_path / "copy", model_type="deberta")
    with pytest.raises(CheckpointError, match=r"one of bert, camembert[\s\S]*roberta[\s\S]*xlm-roberta"):
        load(tmp_path / "copy")


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_an_output_layer_of_its_own_is_kept(tmp_path, kind):
    """config.json says that it is shared, and the file holds both: as in transformers the file is right."""
    peer = make_peer(kind, tie_word_embeddings=False)
    peer.save_pretrained(tmp_path)
    change_config(tmp_path, tie_word_embeddings=True)
    model = load(tmp_path)
    assert_same_outputs(model, peer, random_ids(peer, 2, LENGTH))
    assert not model.config.tied
    assert "not shared" in model.notes[0]


@pytest.mark.parametrize("copy", ["rounded", "own"])
def test_old_files_of_bert_have_one_bias_of_the_head(tmp_path, copy):
    """A rounded copy of the shared matrix is no matrix of its own."""
    peer = make_peer("bert", tie_word_embeddings=copy == "rounded")
    peer.save_pretrained(tmp_path)
    change_config(tmp_path, tie_word_embeddings=True)
    tensors = load_file(tmp_path / "model.safetensors")
    bias = tensors.pop("cls.predictions.decoder.bias", tensors.get("cls.predictions.bias"))
    tensors["cls.predictions.bias"] = bias.clone()
    if copy == "rounded":
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].bfloat16()
    save_file(tensors, tmp_path / "model.safetensors")
    model = load(tmp_path)
    assert model.config.tied == (copy == "rounded")
    assert_same_outputs(model, peer, random_ids(peer, 2, LENGTH))


@pytest.mark.parametrize("kind", ["Sequence", "Token"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_classifier_of_modernbert_is_its_encoder(tmp_path, kind, bias):
    """Its layers have the names of those of the masked-language head."""
    encoder = make_peer("modernbert", decoder_bias=bias)
    peer = getattr(transformers, f"ModernBertFor{kind}Classification")(encoder.config)
    peer.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.head is None
    assert "classifier.weight, head.dense.weight" in model.notes[0]
    ids = random_ids(encoder, 2, LENGTH)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).hidden, peer.model(ids).last_hidden_state, atol=1e-5, rtol=0)


class TestModernBert:
    def test_fields_of_older_files(self, tmp_path):
        """The published files have a field for each base of the rotation, and an interval of global layers."""
        rope = {
            "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        }
        peer = make_peer("modernbert", rope_parameters=rope, global_attn_every_n_layers=2)
        peer.save_pretrained(tmp_path)
        change_config(
            tmp_path,
            rope_parameters=...,
            layer_types=...,
            global_attn_every_n_layers=2,
            global_rope_theta=160000.0,
            local_rope_theta=100.0,
            position_embedding_type="absolute",
        )
        model = load(tmp_path)
        assert model.config.global_layers == (0, 2)
        assert_same_outputs(model, peer, random_ids(peer, 2, LENGTH))

    def test_a_base_that_the_type_does_not_have_is_ignored(self, tmp_path):
        make_peer("modernbert").save_pretrained(tmp_path)
        change_config(tmp_path, rope_parameters=..., rope_theta=77.0)
        peer = transformers.ModernBertForMaskedLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
        assert_same_outputs(load(tmp_path), peer, random_ids(peer, 2, LENGTH))

    def test_a_window_hides_what_is_beyond_it(self):
        torch.manual_seed(3)
        config = ModernBertConfig(
            vocabulary=31, width=28, layers=1, heads=2, inner=13, window=2, global_layers=(), pad_id=0, max_length=19
        )
        model, ids = ModernBert(config).eval(), torch.randint(1, 31, (1, 11))
        other = ids.clone()
        other[0, 5] = (ids[0, 5] + 3) % 31
        changed = (model(ids).hidden != model(other).hidden).any(-1)[0]
        assert changed.nonzero()[:, 0].tolist() == [3, 4, 5, 6, 7]

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"heads": 7}, "twice the heads"),
            ({"activation": "gelu"}, "geglu"),
            ({"global_layers": (22,)}, "global_layers"),
            ({"window": 0}, "window"),
            ({"rotary": RotaryConfig(rotated=4)}, "cannot store rotary"),
        ],
    )
    def test_hyperparameters(self, fields, message):
        with pytest.raises(OptionError, match=message):
            ModernBertConfig(**fields)

    def test_a_classifier_with_this_encoder(self, tmp_path):
        encoder = reload(make_peer("modernbert"), tmp_path / "peer")
        classifier = TextClassifier(encoder, TextClassifierConfig(labels=("no", "yes"))).eval()
        classifier.save(tmp_path / "classifier")
        ids = torch.randint(2, 31, (2, 7))
        assert torch.equal(load(tmp_path / "classifier")(ids).logits, classifier(ids).logits)


TEXTS = ["The cat eats a fish.", "Die Katze frisst einen Fisch; größer!", "猫吃鱼。我爱北京天安门。", "Кошка ест рыбу."]


def make_tokenizer(kind):
    """A tokenizer of the kind that models of this type have, trained on ``TEXTS``, and the id of its padding."""
    if kind == "bert":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=150, special_tokens=special, show_progress=False)
        first, last, pad = "[CLS]", "[SEP]", "[PAD]"
    elif kind == "xlm-roberta":
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        trainer = tokenizers.trainers.UnigramTrainer(
            vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False
        )
        first, last, pad = "<s>", "</s>", "<pad>"
    else:
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        first, last, pad = "<s>", "</s>", "<pad>"
    tokenizer.train_from_iterator(TEXTS, trainer)
    ends = [(one, tokenizer.token_to_id(one)) for one in (first, last)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} $B {last}", special_tokens=ends
    )
    return tokenizer, tokenizer.token_to_id(pad)


TEXT_KINDS = ("bert", "roberta", "xlm-roberta", "modernbert")


class TestTexts:
    """Folders with weights and tokenizer.json, as they are published, with the masked-language head."""

    @pytest.fixture
    def folder(self, tmp_path, kind):
        tokenizer, pad_id = make_tokenizer(kind)
        peer = make_peer(kind, vocab_size=tokenizer.get_vocab_size(), pad_token_id=pad_id, max_position_embeddings=64)
        peer.save_pretrained(tmp_path / "model")
        tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
        self.peer, self.tokenizer = peer, tokenizer
        return tmp_path / "model"

    @pytest.mark.parametrize("kind", TEXT_KINDS)
    def test_vectors_of_texts(self, folder, kind):
        vectors = Embedder(Encoder.load(folder)).sentences(TEXTS)
        for text, vector in zip(TEXTS, vectors, strict=True):
            ids = torch.tensor([self.tokenizer.encode(text).ids])
            with torch.no_grad():
                mean = self.peer.base_model(ids).last_hidden_state[0].mean(0)
            torch.testing.assert_close(vector, mean / mean.norm(), atol=1e-5, rtol=0)

    # The tests above and below read the vectors and words of every kind.
    @pytest.mark.parametrize("kind", slow_except({"roberta"}, TEXT_KINDS))
    def test_the_shell_embeds_and_shows(self, folder, tmp_path, kind):
        (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
        run = CliRunner()
        out = tmp_path / "vectors.npy"
        data = str(tmp_path / "texts.txt")
        found = run.invoke(app, ["embed", "--data", data, "--model", str(folder), "--out", str(out)])
        assert found.exit_code == 0, found.output
        expected = Embedder(Encoder.load(folder)).sentences(TEXTS).numpy()
        np.testing.assert_allclose(np.load(out), expected, atol=1e-5)
        page = tmp_path / "page.html"
        found = run.invoke(app, ["view", *TEXTS, "--model", str(folder), "--out", str(page)])
        assert found.exit_code == 0, found.output
        written = page.read_text(encoding="utf-8")
        assert "größer" in written

    @pytest.mark.parametrize("kind", TEXT_KINDS)
    def test_words_have_their_tokens(self, folder, kind):
        reading = regard.view.read(load(folder), TEXTS[1])
        words = [word.text for word in words_of(reading.tokens) if word.is_word]
        assert words == ["Die", "Katze", "frisst", "einen", "Fisch", "größer"]
        assert reading.tokens.special[0]
        assert reading.tokens.special[-1]
