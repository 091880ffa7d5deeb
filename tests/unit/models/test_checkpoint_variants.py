"""Folders as others write them: a tied matrix under its other name, names of wrappers, tokens without a row."""

import json
import logging

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file, save_model
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from every_model import EXAMPLES, make_example, model_classes
from regard.errors import CheckpointError, DataError, OptionError, RefusedError
from regard.generation import Generator
from regard.models import Bert, Conformer, Llama, load
from regard.search import Greedy
from regard.text import Pooling
from regard.text.token_masking import TokenMasking
from slow_parameters import slow_except
from small_checkpoints import change_config
from small_classifiers import classifier
from small_clips import small_clip
from small_language_models import language_model
from small_masked_language_models import masked_language_model
from small_t5 import save_t5

WEIGHTS = "model.safetensors"
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 17}
IDS = {"vocab_size": 31, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = SIZES | IDS | {"num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 19}
BERT = SIZES | IDS | {"max_position_embeddings": 19}
T5 = {"vocab_size": 31, "d_model": 24, "d_kv": 6, "d_ff": 17, "num_layers": 2, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
TIED = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 19} | IDS),
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", LLAMA),
    "qwen2": ("Qwen2ForCausalLM", {name: value for name, value in LLAMA.items() if name != "head_dim"}),
    "qwen3": ("Qwen3ForCausalLM", LLAMA),
    "phi3": ("Phi3ForCausalLM", {name: value for name, value in LLAMA.items() if name != "head_dim"}),
    "gemma2": ("Gemma2ForCausalLM", LLAMA),
    "gemma3_text": ("Gemma3ForCausalLM", LLAMA),
    "gpt_oss": ("GptOssForCausalLM", LLAMA | {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "bert": ("BertForMaskedLM", BERT),
    "roberta": ("RobertaForMaskedLM", BERT),
    "camembert": ("CamembertForMaskedLM", BERT),
    "xlm-roberta": ("XLMRobertaForMaskedLM", BERT),
    "modernbert": ("ModernBertForMaskedLM", BERT | {"cls_token_id": 1, "sep_token_id": 2}),
    "t5": ("T5ForConditionalGeneration", T5),
    "mt5": ("MT5ForConditionalGeneration", T5 | {"tie_word_embeddings": True}),
    "umt5": ("UMT5ForConditionalGeneration", T5 | {"tie_word_embeddings": True}),
}
"""The class in ``transformers`` of each type with a tied output layer, and its sizes."""


def make_peer(kind):
    name, sizes = TIED[kind]
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(kind, **{"tie_word_embeddings": True, **sizes})
    config._experts_implementation = "eager"  # the grouped products of torch need widths that 4 divides
    return getattr(transformers, name)(config).eval()


def shared_names(peer):
    """The names of all parameters that have the memory of another one, in groups."""
    groups = {}
    for name, tensor in peer.state_dict().items():
        groups.setdefault(tensor.data_ptr(), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def kept_names(peer):
    """Which of its names each shared matrix is saved under: every choice for one of them."""
    groups = shared_names(peer)
    return [(group, kept) for group in groups for kept in group]


def logits_of(model, ids):
    with torch.no_grad():
        return (model(ids, ids) if hasattr(model, "encode") else model(ids)).logits


def peer_logits(peer, ids):
    arguments = {"decoder_input_ids": ids} if peer.config.is_encoder_decoder else {}
    with torch.no_grad():
        return peer(input_ids=ids, **arguments).logits


class TestTiedWeights:
    @pytest.mark.parametrize("kind", TIED)
    def test_a_shared_matrix_under_any_of_its_names(self, kind, tmp_path):
        peer = make_peer(kind)
        ids = torch.randint(3, 31, (2, 7))
        expected = peer_logits(peer, ids)
        state = {name: tensor.clone() for name, tensor in peer.state_dict().items()}
        choices = kept_names(peer)
        assert choices
        for number, (group, kept) in enumerate(choices):
            folder = tmp_path / str(number)
            peer.config.save_pretrained(folder)
            save_file({name: one for name, one in state.items() if name == kept or name not in group}, folder / WEIGHTS)
            model = load(folder)
            assert model.notes == ()
            torch.testing.assert_close(logits_of(model, ids), expected, atol=2e-5, rtol=2e-5)
            weights = list(model.parameters())
            assert sum(weight.numel() for weight in weights) == sum(one.numel() for one in peer.parameters()), kept

    @pytest.mark.parametrize("kind", TIED)
    def test_save_model_of_safetensors(self, kind, tmp_path):
        peer = make_peer(kind)
        peer.config.save_pretrained(tmp_path)
        save_model(peer, str(tmp_path / WEIGHTS))
        ids = torch.randint(3, 31, (2, 7))
        torch.testing.assert_close(logits_of(load(tmp_path), ids), peer_logits(peer, ids), atol=2e-5, rtol=2e-5)

    def test_a_missing_output_layer_of_its_own_is_refused(self, tmp_path):
        peer = make_peer("llama")
        peer.config.tie_word_embeddings = False
        peer.config.save_pretrained(tmp_path)
        for missing in ("lm_head.weight", "model.embed_tokens.weight"):
            save_file({name: one.clone() for name, one in peer.state_dict().items() if name != missing},
                      tmp_path / WEIGHTS)  # fmt: skip
            with pytest.raises(CheckpointError, match="lacks tensors of the model"):
                load(tmp_path)


PREFIXES = {
    "DistributedDataParallel": lambda name: f"module.{name}",
    "torch.compile": lambda name: f"_orig_mod.{name}",
    "both": lambda name: f"module._orig_mod.{name}",
    "both, the other way": lambda name: f"_orig_mod.module.{name}",
    "compiled and checkpointed modules": lambda name: wrap_modules(name, "_orig_mod._checkpoint_wrapped_module"),
    "FSDP": lambda name: "_fsdp_wrapped_module." + wrap_modules(name, "_fsdp_wrapped_module"),
}


def wrap_modules(name, wrapper):
    """The name of a tensor if the modules of numbered layers are wrapped."""
    parts = []
    for part in name.split("."):
        parts += [part, wrapper] if part.isdigit() else [part]
    return ".".join(parts)


def save_example(kind, folder):
    """Write the folder of a small model of a class; False if the class is saved as a part of others alone."""
    model = make_example(kind)[0].eval()
    model.save(folder)
    return model


def rename(folder, change):
    tensors = load_file(folder / WEIGHTS)
    save_file({change(name): tensor for name, tensor in tensors.items()}, folder / WEIGHTS)


class TestNamesOfWrappers:
    def test_every_model_is_tested(self):
        assert set(EXAMPLES) == model_classes()

    @pytest.mark.parametrize(
        "kind", slow_except([Bert, Conformer, Llama], EXAMPLES), ids=lambda kind: getattr(kind, "__name__", None)
    )
    def test_models_saved_inside_a_wrapper(self, kind, tmp_path, caplog):
        save_example(kind, tmp_path / "plain")
        plain = load(tmp_path / "plain")
        original = (tmp_path / "plain" / WEIGHTS).read_bytes()
        for wrapper, change in PREFIXES.items():
            (tmp_path / "plain" / WEIGHTS).write_bytes(original)
            rename(tmp_path / "plain", change)
            caplog.clear()
            with caplog.at_level(logging.WARNING, logger="regard"):
                model = load(tmp_path / "plain")
            assert any("wrapped model" in note for note in model.notes), wrapper
            assert "wrapped model" in caplog.text
            expected, found = plain.state_dict(), model.state_dict()
            assert expected.keys() == found.keys()
            assert all(torch.equal(expected[name], found[name]) for name in expected)

    def test_shards(self, tmp_path):
        peer = make_peer("llama")
        peer.save_pretrained(tmp_path, max_shard_size="5KB")
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert len(set(index["weight_map"].values())) > 1
        for file in set(index["weight_map"].values()):
            tensors = load_file(tmp_path / file)
            save_file({f"module.{name}": tensor for name, tensor in tensors.items()}, tmp_path / file)
        index["weight_map"] = {f"module.{name}": file for name, file in index["weight_map"].items()}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        ids = torch.randint(3, 31, (2, 7))
        torch.testing.assert_close(logits_of(load(tmp_path), ids), peer_logits(peer, ids), atol=2e-5, rtol=2e-5)

    def test_a_prefix_of_some_names_is_refused(self, tmp_path):
        make_peer("llama").save_pretrained(tmp_path)
        rename(tmp_path, lambda name: f"module.{name}" if "layers.0" in name else name)
        with pytest.raises(CheckpointError, match=r"not in the model[\s\S]*module\.model\.layers\.0"):
            load(tmp_path)

    def test_two_tensors_of_one_name_are_refused(self, tmp_path):
        make_peer("llama").save_pretrained(tmp_path)
        tensors = load_file(tmp_path / WEIGHTS)
        tensors["_orig_mod.model.norm.weight"] = tensors["model.norm.weight"].clone()
        save_file(tensors, tmp_path / WEIGHTS)
        with pytest.raises(CheckpointError, match=r"twice[\s\S]*_orig_mod\.model\.norm\.weight"):
            load(tmp_path)


class TestTokensOutsideTheVocabulary:
    @pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma3_text"])
    def test_special_tokens_of_a_language_model(self, kind, tmp_path, caplog):
        peer = make_peer(kind)
        peer.config.bos_token_id, peer.config.eos_token_id = 50256, [2, 50256]
        peer.config.save_pretrained(tmp_path)
        save_model(peer, str(tmp_path / WEIGHTS))
        with caplog.at_level(logging.WARNING, logger="regard"):
            model = load(tmp_path)
        assert (model.start_id, model.end_ids) == (None, (2,))
        (note,) = model.notes
        assert "bos_token_id 50256, eos_token_id 50256" in note
        assert note in caplog.text
        ids = torch.randint(3, 31, (2, 7))
        torch.testing.assert_close(logits_of(model, ids), peer_logits(peer, ids), atol=2e-5, rtol=2e-5)
        model.save(tmp_path / "copy")
        assert load(tmp_path / "copy").notes == ()

    def test_a_gpt2_of_33_tokens_keeps_the_published_ones(self, tmp_path):
        peer = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=33, n_embd=24, n_layer=2, n_head=4, n_positions=19, initializer_range=0.4
            )
        ).eval()
        peer.save_pretrained(tmp_path)
        model = load(tmp_path)
        assert (model.start_id, model.end_ids, model.end_id) == (None, (), -1)
        found = Greedy().search(model, torch.tensor([[5, 6, 7]]), torch.tensor([3]), max_tokens=5)
        theirs = peer.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=5, do_sample=False)[0, 3:].tolist()
        assert list(found[0][0].ids) == theirs

    def test_only_an_empty_prompt_needs_the_start_token(self, tmp_path):
        model = language_model("gpt2")
        model.save(tmp_path / "model")
        fields = json.loads((tmp_path / "model" / "config.json").read_text())
        tokenizer = Tokenizer.from_str((tmp_path / "model" / "tokenizer.json").read_text())
        tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
        tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
        change_config(tmp_path / "model", bos_token_id=fields["vocab_size"], eos_token_id=fields["vocab_size"] + 5)
        (tmp_path / "model" / "generation_config.json").unlink()
        generator = Generator.load(tmp_path / "model")
        ((found,),) = generator.generate(["No. 1"], max_tokens=4)
        assert found.tokens == 4
        with pytest.raises(DataError, match="no start token"):
            generator.generate([""], max_tokens=4)

    @pytest.mark.parametrize("kind", ["t5", "umt5"])
    def test_end_and_padding_tokens_of_a_t5(self, kind, tmp_path):
        peer = make_peer(kind)
        peer.config.eos_token_id, peer.config.pad_token_id = 31, 32100
        peer.config.save_pretrained(tmp_path)
        save_model(peer, str(tmp_path / WEIGHTS))
        model = load(tmp_path)
        assert (model.end_ids, model.pad_id) == ((), 0)
        assert "pad_token_id 32100, eos_token_id 31" in model.notes[0]
        ids = torch.randint(3, 31, (2, 7))
        torch.testing.assert_close(logits_of(model, ids), peer_logits(peer, ids), atol=2e-5, rtol=2e-5)

    def test_special_tokens_of_a_clip(self, tmp_path):
        """Its text tower reads the vector of the end token, so only texts are refused."""
        clip = small_clip(channels=3)
        clip.save(tmp_path / "clip")
        config = json.loads((tmp_path / "clip" / "config.json").read_text())
        config["text_config"] |= {"eos_token_id": 5000, "bos_token_id": 5001, "pad_token_id": 5002}
        (tmp_path / "clip" / "config.json").write_text(json.dumps(config))
        model = load(tmp_path / "clip")
        pixels = torch.randn(2, 3, 12, 12)
        with torch.no_grad():
            assert torch.equal(model.vision(pixels).pooled, clip.eval().vision(pixels).pooled)
        with pytest.raises(OptionError, match=r"no end token[\s\S]*5000"):
            model.text(torch.tensor([[1, 2, 3]]))


def add_tokens(folder, *names):
    """Add tokens to tokenizer.json that the model has no vectors for."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(list(names))
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each kind of model that reads texts, with two tokens more than the model has."""
    folder = tmp_path_factory.mktemp("tokens")
    language_model("gpt2").save(folder / "gpt2")
    language_model("llama").save(folder / "llama")
    for kind in ("bert", "roberta", "modernbert"):
        masked_language_model(kind).save(folder / kind)
    save_t5(folder / "t5")
    classifier().save(folder / "classifier")
    for kind in folder.iterdir():
        fields = json.loads((kind / "config.json").read_text())
        vocabulary = (fields.get("encoder") or fields).get(
            "vocab_size", (fields.get("encoder") or {}).get("vocabulary")
        )
        added = vocabulary - Tokenizer.from_file(str(kind / "tokenizer.json")).get_vocab_size()
        add_tokens(kind, *[f"<spare{number}>" for number in range(added)], "<more>", "<most>")
    return folder


class TestTokensWithoutAVector:
    @pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "roberta", "modernbert", "t5", "classifier"])
    def test_texts_without_them_are_read(self, folders, kind):
        model = load(folders / kind)
        assert any("texts with a token that the model lacks are refused" in note for note in model.notes)
        tokenizer = model.tokenizer
        assert max(tokenizer.encode(["a dog"]).texts[0].ids) < tokenizer.num_embeddings
        for read in (
            lambda text: tokenizer.encode([text]),
            lambda text: tokenizer.tokenize([text]),
            lambda text: tokenizer.ids([text]),
            lambda text: tokenizer.plain_ids([text]),
            lambda text: tokenizer.with_limit(13).encode([text], truncate=True),
        ):
            read("a dog")
            with pytest.raises(DataError, match=r"has a token that the model has no vector for[\s\S]*<more>"):
                read("a <more> dog")

    @pytest.mark.parametrize("kind", ["gpt2", "llama"])
    def test_generate(self, folders, kind):
        generator = Generator.load(folders / kind)
        ((found,),) = generator.generate(["the cat"], max_tokens=3)
        assert found.tokens == 3
        with pytest.raises(DataError, match="no vector for"):
            generator.generate(["the <most> cat"], max_tokens=3)

    @pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
    def test_random_replacements_are_tokens_of_the_model(self, folders, kind):
        tokenizer = load(folders / kind).tokenizer
        assert TokenMasking.of(tokenizer).usable.max() < tokenizer.num_embeddings

    def test_a_padding_token_that_was_added(self, tmp_path):
        """The usual cause: a padding token for a model that had none, without a new row of the embedding."""
        language_model("llama").save(tmp_path / "model")
        add_tokens(tmp_path / "model", "[PAD]")
        fields = json.loads((tmp_path / "model" / "config.json").read_text())
        change_config(tmp_path / "model", pad_token_id=fields["vocab_size"])
        model = load(tmp_path / "model")
        batch = model.tokenizer.encode(["the cat sees", "a"])
        assert int(batch.ids.max()) < fields["vocab_size"]
        with torch.no_grad():
            whole = model(batch.ids, mask=batch.mask).logits[1, : batch.lengths[1]]
            alone = model(batch.ids[1:, : batch.lengths[1]]).logits[0]
        torch.testing.assert_close(whole, alone, atol=1e-5, rtol=1e-5)


STRIP = {"type": "Strip", "content": "a", "start": 1, "stop": 1}
"""A decoder of the library that fails for the token "a": it takes the letter from both of its ends."""


class TestTokenizersThatFail:
    def write(self, folder, **parts):
        language_model("gpt2").save(folder)
        fields = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(fields | parts))
        return folder

    def test_a_panic_is_found_while_loading(self, tmp_path):
        folder = self.write(tmp_path / "model", decoder=STRIP)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json makes the library tokenizers fail"):
            load(folder)

    def test_a_panic_in_a_search_is_an_error_of_ours(self, tmp_path, monkeypatch):
        """The tokens of a text together may fail where each alone does not."""
        folder = self.write(tmp_path / "model", decoder=STRIP)
        monkeypatch.setattr("regard.text.tokenizer.probe_tokenizer", lambda backend, name: None)
        tokenizer = load(folder).tokenizer
        (number,) = tokenizer.plain_ids(["a"])[0]
        with pytest.raises(CheckpointError, match=r"tokenizer\.json fails to decode tokens"):
            tokenizer.decode([number])

    def test_a_text_without_tokens_is_an_error_of_ours(self, tmp_path):
        """The library raises a bare exception for a character that a vocabulary without an unknown token lacks."""
        model = {"type": "WordLevel", "vocab": {"<|endoftext|>": 0, "a": 1, " ": 2}, "unk_token": "<none>"}
        folder = self.write(tmp_path / "model", model=model, decoder={"type": "Fuse"}, post_processor=None,
                            added_tokens=[], pre_tokenizer={"type": "Split", "pattern": {"Regex": "[\\s\\S]"},
                            "behavior": "Isolated", "invert": False})  # fmt: skip
        tokenizer = load(folder).tokenizer
        assert tokenizer.plain_ids(["a a"]) == [[1, 2, 1]]
        for read in (tokenizer.plain_ids, tokenizer.ids, tokenizer.tokenize, tokenizer.encode):
            with pytest.raises(CheckpointError, match=r"fails to encode a text[\s\S]*UNK"):
                read(["a b"])


class TestPoolingOfSentenceTransformers:
    @pytest.mark.parametrize("mode", ["mean", "cls", ["mean"], ["cls"], ("mean",)])
    def test_as_it_writes_it(self, tmp_path, mode):
        from sentence_transformers.sentence_transformer.modules import Pooling as Theirs

        (tmp_path / "modules.json").write_text(json.dumps(
            [{"type": "sentence_transformers.models.Transformer", "path": ""},
             {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
        ))  # fmt: skip
        (tmp_path / "1_Pooling").mkdir()
        Theirs(24, pooling_mode=mode).save(str(tmp_path / "1_Pooling"))
        assert Pooling.read(tmp_path) == Pooling((mode if isinstance(mode, str) else mode[0],), normalise=False)

    def test_a_list_of_one(self, tmp_path):
        (tmp_path / "modules.json").write_text(json.dumps([{"type": "a.Pooling", "path": ""}]))
        (tmp_path / "config.json").write_text(json.dumps({"embedding_dimension": 24, "pooling_mode": ["mean"]}))
        assert Pooling.read(tmp_path).modes == ("mean",)

    def test_several_modes_are_named(self, tmp_path):
        (tmp_path / "modules.json").write_text(json.dumps([{"type": "a.Pooling", "path": ""}]))
        (tmp_path / "config.json").write_text(json.dumps({"pooling_mode": ["mean", "lasttoken"]}))
        with pytest.raises(RefusedError, match="lasttoken"):
            Pooling.read(tmp_path).check()
