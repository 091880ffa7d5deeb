"""The folder of a language model: transformers finds the special tokens in it, and a chat model keeps its template."""

from __future__ import annotations

import json

import pytest
import tokenizers
import transformers
from transformers import AutoTokenizer, GenerationConfig

import regard
from regard.errors import CheckpointError
from regard.generation import Generator
from small_language_models import documents, language_model

TEMPLATE = "{{ bos_token }}{% for one in messages %}<{{ one.role }}>{{ one.content }}\n{% endfor %}"
ROLES = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")


def special_ids(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tuple(getattr(tokenizer, role) for role in ROLES)


@pytest.fixture
def peer(tmp_path):
    """A Llama in a folder of transformers: a start token, another that ends a text, padding; without a template."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>", "</s>", "<pad>"], show_progress=False
    )
    backend.train_from_iterator(documents(), trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side="left"
    )
    sizes = {"hidden_size": 20, "intermediate_size": 13, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    config = transformers.LlamaConfig(vocab_size=300, max_position_embeddings=64, **sizes, **ids)
    model = transformers.LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**ids, do_sample=True, temperature=0.7)
    model.save_pretrained(tmp_path / "peer")
    tokenizer.save_pretrained(tmp_path / "peer")
    return tmp_path / "peer"


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize(("tokenizer", "unknown"), [("bpe", None), ("bytes", None), ("characters", 1)])
def test_a_new_model_names_its_special_tokens(tmp_path, kind, tokenizer, unknown):
    model = language_model(kind, tokenizer=tokenizer, pad_id=0)
    model.save(tmp_path / "m")
    assert special_ids(tmp_path / "m") == (0, 0, 0, unknown)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "m")
    assert loaded.model_max_length == 43
    # A token that is spelt like the start token is plain text, here as there.
    texts = [*documents()[:7], "A <|endoftext|> b\n\n c", "ä ☃"]
    assert [loaded(text)["input_ids"] for text in texts] == model.tokenizer.ids(texts)
    generation = GenerationConfig.from_pretrained(tmp_path / "m")
    assert (generation.bos_token_id, generation.eos_token_id, generation.pad_token_id) == (0, 0, 0)
    again = regard.load(tmp_path / "m")
    assert again.config == model.config
    again.save(tmp_path / "m", overwrite=True)
    assert special_ids(tmp_path / "m") == (0, 0, 0, unknown)


def test_a_model_without_special_tokens_names_none(tmp_path):
    language_model("llama", start_id=None, end_ids=()).save(tmp_path / "m")
    assert special_ids(tmp_path / "m")[:3] == (None, None, None)
    assert not (tmp_path / "m" / "generation_config.json").exists()


def test_a_folder_without_a_template_keeps_what_it_says(peer, tmp_path):
    regard.load(peer).save(tmp_path / "m")
    assert special_ids(tmp_path / "m") == special_ids(peer) == (0, 1, 2, None)
    assert AutoTokenizer.from_pretrained(tmp_path / "m").padding_side == "left"
    assert GenerationConfig.from_pretrained(tmp_path / "m").temperature == 0.7
    assert not (tmp_path / "m" / "chat_template.jinja").exists()
    with pytest.raises(CheckpointError, match="no chat template"):
        Generator.load(tmp_path / "m").chat_prompt("Hi")


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_template_is_kept_as_it_was(peer, tmp_path, place):
    if place == "chat_template.jinja":
        (peer / place).write_text(TEMPLATE, encoding="utf-8")
    else:
        fields = json.loads((peer / place).read_text()) | {"chat_template": TEMPLATE}
        (peer / place).write_text(json.dumps(fields))
    regard.load(peer).save(tmp_path / "m")
    assert (tmp_path / "m" / "chat_template.jinja").exists() == (place == "chat_template.jinja")
    prompt = "<s><user>Hi\n"
    assert Generator.load(tmp_path / "m").chat_prompt("Hi") == prompt
    found = AutoTokenizer.from_pretrained(tmp_path / "m")
    assert found.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == prompt


def test_a_template_of_an_older_model_in_the_folder_is_replaced(peer, tmp_path):
    (peer / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    regard.load(peer).save(tmp_path / "m")
    (tmp_path / "m" / "notes.txt").write_text("mine")
    language_model("llama").save(tmp_path / "m", overwrite=True, keep_others=True)
    assert (tmp_path / "m" / "notes.txt").exists()
    assert not (tmp_path / "m" / "chat_template.jinja").exists()
    assert special_ids(tmp_path / "m")[:2] == (0, 0)


def test_special_tokens_of_older_folders_have_a_file_of_their_own(peer, tmp_path):
    path = peer / "tokenizer_config.json"
    fields = json.loads(path.read_text())
    named = {name: fields.pop(name) for name in ("bos_token", "eos_token", "pad_token")}
    fields.pop("added_tokens_decoder", None)
    path.write_text(json.dumps(fields))
    named["eos_token"] = {"content": "</s>", "lstrip": False, "rstrip": False}
    (peer / "special_tokens_map.json").write_text(json.dumps(named))
    regard.load(peer).save(tmp_path / "m")
    assert special_ids(tmp_path / "m") == special_ids(peer) == (0, 1, 2, None)


@pytest.mark.parametrize(
    ("name", "content"), [("tokenizer_config.json", b"[1, 2"), ("chat_template.jinja", b"\xff{{ messages }}")]
)
def test_damaged_files_are_refused(peer, name, content):
    (peer / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        regard.load(peer)
