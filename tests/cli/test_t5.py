"""A T5 in the shell: translated with, viewed, embedded with, generated with, fine-tuned and trained."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
from regard.cli.app import app
from regard.errors import CheckpointError, DataError, OptionError, RefusedError
from regard.generation import Generator, TextToText, load_generator
from regard.models import T5Encoder
from regard.search import Greedy, Sampling
from regard.tasks.translation.data import CorpusBatches
from shell_command import shell_message
from small_language_models import language_model
from small_t5 import save_t5
from small_translators import transformer, write_pairs

PREFIX = "German: "
FAST = ["--data", "pairs.tsv", "--batch-tokens", "101", "--dtype", "float32", "--validate-every", "3", "--seed", "5"]
"""Few steps, each with the same bits in every run."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    save_t5(folder / "t5")
    save_t5(folder / "encoder", encoder=True)
    transformer().model.save(folder / "ours")
    language_model().save(folder / "decoder")
    write_pairs(folder / "pairs.tsv")
    return folder


@pytest.fixture(autouse=True)
def inside(folders, monkeypatch):
    monkeypatch.chdir(folders)


def run(*arguments):
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, list(arguments))
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def refusal(kind, *arguments):
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, list(arguments))
    assert isinstance(result.exception, kind), (result.output, result.exception)
    return shell_message(result.exception)


def peer_tokens(folder, text, **options):
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    banned = sorted({tokenizer.pad_token_id, tokenizer.unk_token_id, model.config.decoder_start_token_id})
    (row,) = model.generate(ids, suppress_tokens=banned, do_sample=False, num_beams=1, **options)
    return tokenizer.decode(row, skip_special_tokens=True), ids.shape[1]


def same_translation(folder, text, prefix=""):
    """Whether transformers writes the same translation."""
    theirs, length = peer_tokens(folder, prefix + text, max_new_tokens=1)
    theirs, _ = peer_tokens(folder, prefix + text, max_new_tokens=2 * length + 10)
    shown = run("translate", "--model", folder, text, "--beam", "1")
    return shown.stdout.rstrip("\n") == theirs


class TestFineTuning:
    def test_the_prefix_is_kept_and_transformers_opens_the_folder(self, folders):
        run("train", "translate", "--from", "t5", "--prefix", PREFIX, "--out", "tuned", "--steps", "6", *FAST)
        assert json.loads((folders / "tuned" / "about.json").read_text())["prefix"] == PREFIX
        before, after = (load_file(folders / name / "model.safetensors") for name in ("t5", "tuned"))
        assert before.keys() == after.keys()
        assert not torch.equal(before["shared.weight"], after["shared.weight"])
        assert same_translation("tuned", "hund katze", PREFIX)
        assert PREFIX in run("translate", "--model", "tuned", "hund katze").stderr
        assert PREFIX not in run("translate", "--model", "tuned", "--prefix", "", "hund katze").stderr
        scores = run("evaluate", "translate", "--model", "tuned", "--data", "pairs.tsv", "--beam", "1")
        assert PREFIX in scores.stderr
        assert "chrF" in scores.stdout
        # Again from the new folder: the prefix is its own.
        run("train", "translate", "--from", "tuned", "--out", "again", "--steps", "1", *FAST)
        assert regard.load(folders / "again").prefix == PREFIX
        run("train", "translate", "--from", "tuned", "--prefix", "", "--out", "none", "--steps", "1", *FAST)
        assert regard.load(folders / "none").prefix == ""

    @pytest.mark.parametrize(
        "start",
        [
            pytest.param(["--from", "t5", "--prefix", PREFIX], id="fine-tuned", marks=pytest.mark.slow),
            pytest.param(["--model", "t5", "--set", "layers=1", "--set", "width=16", "--vocabulary", "310"], id="new"),
        ],
    )
    def test_a_resumed_run_has_the_same_bits(self, folders, start, monkeypatch):
        command = ["train", "translate", *start, *FAST, "--save-seconds", "0", "--steps", "6"]
        for name in ("whole", "cut"):
            shutil.rmtree(name, ignore_errors=True)
            shutil.rmtree(f"{name}.run", ignore_errors=True)
        run(*command, "--out", "whole")
        own, calls = CorpusBatches.batch, []

        def interrupted(self, pairs):
            calls.append(pairs)
            if len(calls) == 6:
                raise RuntimeError("the power failed")
            return own(self, pairs)

        with monkeypatch.context() as patch:
            patch.setattr(CorpusBatches, "batch", interrupted)
            result = CliRunner().invoke(app, [*command, "--out", "cut"])
            assert isinstance(result.exception, RuntimeError)
        run(*command, "--out", "cut", "--resume")
        whole, cut = (load_file(folders / name / "model.safetensors") for name in ("whole", "cut"))
        assert whole.keys() == cut.keys()
        assert all(torch.equal(whole[name], cut[name]) for name in whole)

    def test_a_translator_of_regard(self, folders):
        run("train", "translate", "--from", "ours", "--out", "ours-tuned", "--steps", "1", *FAST)
        assert regard.load(folders / "ours-tuned").prefix == ""
        assert "prefix" not in json.loads((folders / "ours-tuned" / "about.json").read_text())


class TestNewT5:
    def test_transformers_opens_the_folder(self, folders):
        sizes = ["--set", "layers=1", "--set", "width=24", "--set", "heads=3", "--set", "dropout=0"]
        run("train", "translate", "--model", "t5", *sizes, "--vocabulary", "310", "--out", "new", "--steps", "20",
            "--rate", "0.01", "--warmup", "3", *FAST)  # fmt: skip
        model = regard.load(folders / "new")
        assert (model.config.width, model.config.heads, model.config.head_dim) == (24, 3, 8)
        assert model.subwords[0].has_placeholders
        assert same_translation("new", "hund katze")
        assert "is a translator" in refusal(RefusedError, "generate", "--model", "new", "hund")

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--model", "t5", "--attention", "linear"], "scaled dot-product attention"),
            (["--model", "t5", "--sharing", "separate"], "one vocabulary"),
            (["--model", "t5", "--set", "end_ids=[4]"], "determined by the tokenizer"),
            (["--model", "t5", "--set", "norm=pre"], "norm"),
            (["--model", "t5", "--prefix", PREFIX], "one task"),
            (["--model", "t5", "--from", "t5"], "contradict"),
            (["--from", "ours", "--prefix", PREFIX], "single task"),
            (["--from", "t5", "--set", "layers=1"], "fine-tuning cannot change"),
            (["--from", "missing"], "missing"),
        ],
    )
    def test_refused(self, arguments, words):
        assert words in refusal(OptionError, "train", "translate", *arguments, "--out", "x", *FAST)

    @pytest.mark.parametrize("name", ["gru", "missing/", "no/such"])
    def test_a_missing_folder_is_named(self, name):
        message = refusal(CheckpointError, "train", "translate", "--from", name, "--out", "x", *FAST)
        assert "the folder of a translator" in message

    @pytest.mark.parametrize(("name", "command"), [("decoder", "regard generate"), ("encoder", "regard embed")])
    def test_another_kind_of_model(self, name, command):
        message = refusal(CheckpointError, "train", "translate", "--from", name, "--out", "x", *FAST)
        assert "another kind of model" in message
        assert command in message


class TestTranslate:
    def test_formats(self):
        arguments = ["--model", "t5", "--prefix", PREFIX, "--beam", "2", "Two dogs run."]
        (line,) = run("translate", "--format", "jsonl", *arguments).stdout.splitlines()
        found = json.loads(line)
        assert found["source"] == "Two dogs run."
        assert {one["source"] for word in found["words"] for one in word["found_by"]} <= {"Two", "dogs", "run."}
        assert "-" in run("translate", "--format", "pharaoh", *arguments).stdout

    def test_refused(self):
        assert "single task" in refusal(OptionError, "translate", "--model", "ours", "--prefix", PREFIX, "hund")
        message = refusal(OptionError, "evaluate", "translate", "--hypotheses", "h", "--data", "d", "--prefix", "x")
        assert "--prefix has no effect without --model" in message


class TestViewAndEmbed:
    def test_without_transformers(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "regard.hf.checkpoint", None)
        for target in ([], ["--target", "Zwei Hunde laufen."]):
            shown = run("view", "--model", "t5", "--source", "Two dogs run.", *target).stdout
            assert "Source self-attention" in shown
            assert "Target self-attention" in shown
        assert "attends to" in run("view", "--model", "encoder", "Two dogs run.").stdout

    def test_prefix(self):
        """The source is shown with its prefix, as it is translated."""
        arguments = ["view", "--model", "t5", "--source", "Two dogs run."]
        assert run(*arguments, "--prefix", PREFIX).stdout != run(*arguments).stdout
        assert "single task" in refusal(OptionError, "view", "--model", "ours", "--source", "hund", "--prefix", PREFIX)
        assert "--prefix has no effect without --source" in refusal(OptionError, "view", "x", "--prefix", PREFIX)

    def test_vectors_are_those_of_the_encoder(self, folders):
        text = "Two dogs run."
        peer = transformers.T5EncoderModel.from_pretrained(folders / "t5").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folders / "t5")
        with torch.no_grad():
            hidden = peer(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        expected = torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)
        vector = torch.tensor(json.loads(run("embed", "--model", "t5", text).stdout)["vector"])
        torch.testing.assert_close(vector, expected, rtol=1e-4, atol=1e-5)
        assert isinstance(regard.load(folders / "encoder"), T5Encoder)


class TestGenerate:
    TEXT = "summarize: The dog is small."

    def test_greedy_equals_transformers(self, folders):
        theirs, _ = peer_tokens("t5", self.TEXT, max_new_tokens=9)
        shown = run("generate", "--model", "t5", self.TEXT, "--greedy", "--max-tokens", "9").stdout
        assert shown == theirs + "\n"
        generator = load_generator(folders / "t5")
        ((found,),) = generator.generate([self.TEXT], search=Greedy(), max_tokens=9)
        assert found.text == theirs
        *parts, last = generator.stream(self.TEXT, search=Greedy(), max_tokens=9)
        assert ("".join(parts), last) == (theirs, found)

    def test_files_and_samples(self, folders):
        (folders / "in.txt").write_text(f"{self.TEXT}\nsummarize: Two dogs.\n", encoding="utf-8")
        run("generate", "--model", "t5", "--data", "in.txt", "--samples", "3", "--max-tokens", "7", "-o", "out.jsonl")
        rows = [json.loads(line) for line in (folders / "out.jsonl").read_text(encoding="utf-8").splitlines()]
        assert [row["prompt"] for row in rows] == [self.TEXT] * 3 + ["summarize: Two dogs."] * 3
        alone = TextToText.load(folders / "t5", tokens=1)
        search = Sampling(seed=1, best=3, temperature=0.8, top_p=0.95)
        for prompt, first in ((self.TEXT, 0), ("summarize: Two dogs.", 3)):
            (found,) = alone.generate([prompt], search=search, max_tokens=7)
            assert [one.text for one in found] == [row["text"] for row in rows[first : first + 3]]

    def test_stop_strings(self, folders):
        generator = load_generator(folders / "t5")
        ((whole,),) = generator.generate([self.TEXT], max_tokens=9)
        stop = whole.text[3:5]
        ((found,),) = generator.generate([self.TEXT], max_tokens=9, stop=[stop])
        assert found.ended_by == "stop"
        assert found.text == whole.text[: whole.text.index(stop)]
        *parts, last = generator.stream(self.TEXT, max_tokens=9, stop=[stop])
        assert ("".join(parts), last) == (found.text, found)

    def test_refused(self, folders):
        assert "no chat template" in refusal(CheckpointError, "generate", "--model", "t5", "--chat", "dog")
        assert "no tokens" in refusal(DataError, "generate", "--model", "t5", "")
        assert "another kind" in refusal(CheckpointError, "generate", "--model", "encoder", "dog")
        generator = load_generator(folders / "t5")
        with pytest.raises(OptionError, match="single answer"):
            generator.stream("dog", search=Sampling(seed=1, best=2))
        with pytest.raises(OptionError, match="stop string is empty"):
            generator.generate(["dog"], stop=[""])
        assert isinstance(load_generator(folders / "decoder"), Generator)
