"""``regard train translate`` as processes: on a full disk, two at once, and the results."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli_process import ENVIRONMENT, START_COMMAND, fork_command
from small_translators import ENGLISH_WORDS, word_pairs, write_word_pairs
from training_process import assert_two_processes_have_the_losses_of_one, last_weights, losses, metrics, train_in_two

SMALL = ["translate", "--data", "pairs.tsv", "--model", "tiny", "--set", "layers=1", "--set", "width=32", "--set",
         "inner=37", "--warmup", "10", "--batch-tokens", "301", "--validate-every", "20", "--dtype",
         "float32"]  # fmt: skip
FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: EncoderBlock,DecoderBlock
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_reshard_after_forward: true
  fsdp_cpu_ram_efficient_loading: true
mixed_precision: bf16
num_machines: 1
num_processes: 2
use_cpu: true
"""
"""A file as `accelerate config` writes it; the run's own precision and accumulation override it."""

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "regard"]


@pytest.fixture
def data(tmp_path) -> Path:
    write_word_pairs(tmp_path / "pairs.tsv", 211)
    return tmp_path


def run(folder: Path, *arguments, start=None, **options) -> subprocess.CompletedProcess:
    command = [*(start or START_COMMAND), *map(str, arguments)]
    options |= {"cwd": folder, "env": ENVIRONMENT, "timeout": 300}
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", **options)


def train(folder: Path, out: str, *arguments, **options) -> subprocess.CompletedProcess:
    return run(folder, "train", *SMALL, *arguments, "--out", out, **options)


@pytest.mark.slow  # the fast tests of two processes are of sounds (DDP) and of language models (FSDP)
@pytest.mark.parametrize("launcher", ["forks", "torchrun"])
def test_two_processes_have_the_losses_of_one(launcher, data):
    """Gradients are summed over processes, so the loss is the same except for rounding."""
    same = ["--set", "dropout=0", "--steps", 20, "--rate", 1e-3, "--average", 1]
    one = train(data, "one", *same, start=fork_command())
    assert one.returncode == 0, one.stderr
    if launcher == "forks":
        results = train_in_two(data, "two", [*SMALL, *same])
    else:
        results = [train(data, "two", *same, start=TORCHRUN)]
    said = "".join(result.stderr for result in results)
    assert {result.returncode for result in results} == {0}, said
    expected, actual = losses(data / "one.run"), losses(data / "two.run")
    assert expected == pytest.approx(actual, rel=1e-4)
    assert expected != actual  # there were two processes: their sums have another order of rounding
    assert said.count("subwords for") == 1  # only one process prints


@pytest.mark.slow  # the same
@pytest.mark.parametrize("attention", ["dsa", "nsa"])
def test_two_processes_train_what_leaves_parameters_without_gradients(attention, data):
    """The indexer of dsa, and the compression of nsa for short texts: DDP would wait for their gradients."""
    same = ["--attention", attention, "--set", "dropout=0", "--steps", 20, "--average", 1]
    assert_two_processes_have_the_losses_of_one(data, [*SMALL, *same])
    assert losses(data / "one.run")


@pytest.mark.slow
def test_precision_is_chosen_once_and_kept_on_resume(data):
    """The faster precision is measured once; a resumed run does not measure again, since its bits depend on it."""
    two = train(data, "two", "--steps", 2, "--dtype", "auto", start=TORCHRUN)
    assert two.returncode == 0, two.stderr
    assert two.stderr.count("multiplying in ") == 1
    chosen = json.loads((data / "two.run" / "run.json").read_text())["precision"]
    assert f"multiplying in {chosen}: " in two.stderr

    assert train(data, "whole", "--steps", 40, "--dtype", "bfloat16").returncode == 0
    assert train(data, "cut", "--steps", 20, "--dtype", "bfloat16").returncode == 0
    other = train(data, "cut", "--steps", 40, "--dtype", "float32", "--resume")
    assert "another --dtype" in other.stderr
    resumed = train(data, "cut", "--steps", 40, "--dtype", "auto", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "multiplying in " not in resumed.stderr
    assert last_weights(data / "cut.run") == last_weights(data / "whole.run")


@pytest.mark.slow
def test_chrf_replaces_bleu_for_very_short_sentences(data):
    """BLEU counts 4-grams, so even the best translation of a single word has BLEU 0."""
    lines = [f"{one}\t{other}\n" for one, other in ENGLISH_WORDS.items()] + [
        f"{one} {two}\t{ENGLISH_WORDS[one]} {ENGLISH_WORDS[two]}\n"
        for one, two in zip(ENGLISH_WORDS, reversed(ENGLISH_WORDS), strict=True)
    ]
    (data / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    result = train(data, "m", "--steps", 60, "--rate", 3e-3)
    assert result.returncode == 0, result.stderr
    assert "four words in a row" in result.stderr
    validations = metrics(data / "m.run", "validation")
    assert {one["bleu"] for one in validations} == {0}
    best = max(one["chrf"] for one in validations)
    assert f"chrF {best:.2f} on held-out pairs" in result.stderr


@pytest.mark.slow
def test_fsdp_run_of_two_processes_is_resumed_by_one(data):
    """With FSDP, weights are sharded over the processes."""
    (data / "fsdp.yaml").write_text(FSDP)
    same = ["--set", "dropout=0", "--rate", 1e-3, "--average", 1]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "fsdp.yaml",
                "--gradient_accumulation_steps", "3", "-m", "regard"]  # fmt: skip
    sharded = train(data, "spread", *same, "--steps", 20, start=launcher)
    assert sharded.returncode == 0, sharded.stderr
    assert train(data, "one", *same, "--steps", 20).returncode == 0
    assert losses(data / "one.run") == pytest.approx(losses(data / "spread.run"), rel=1e-4)
    resumed = train(data, "spread", *same, "--steps", 40, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after step 20" in resumed.stderr


@pytest.mark.slow
def test_full_disk_loses_only_the_steps_since_the_last_checkpoint(data):
    """A file size limit simulates a full disk: writing fails in the middle of a checkpoint."""
    assert train(data, "m", "--steps", 20).returncode == 0
    before = last_weights(data / "m.run")
    import resource

    def limit_file_size():
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    full = train(data, "m", "--steps", 40, "--resume", preexec_fn=limit_file_size)
    assert full.returncode == 5, full.stderr
    assert "--resume" in full.stderr
    assert "Traceback" not in full.stderr
    assert last_weights(data / "m.run") == before
    assert not list((data / "m.run" / "checkpoints").glob(".*"))
    assert train(data, "m", "--steps", 40, "--resume").returncode == 0


@pytest.mark.slow
def test_training_on_forty_pairs_warns(tmp_path):
    write_word_pairs(tmp_path / "pairs.tsv", 40)
    result = train(tmp_path, "m", "--steps", 20)
    assert result.returncode == 0, result.stderr
    assert "will not make a translator" in result.stderr
    assert run(tmp_path, "translate", "--model", "m", "hund").returncode == 0


@pytest.mark.slow  # docs/classifying.md, whose examples are fast tests, trains a model that answers rightly
def test_trained_model_translates_files_in_order(data):
    """Translation is word for word, so a small model learns it: most unseen pairs are translated correctly."""
    result = train(data, "m", "--steps", 400, "--rate", 4e-3, "--set", "dropout=0.1", "--set", "width=64")
    assert result.returncode == 0, result.stderr
    unseen = word_pairs(53, seed=99)
    lines = [source for source, _ in unseen]
    lines[7] = ""
    with gzip.open(data / "in.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    actual = run(data, "translate", "--model", "m", "--data", "in.txt.gz", "-o", "out.txt")
    assert actual.returncode == 0, actual.stderr
    out = (data / "out.txt").read_text(encoding="utf-8").splitlines()
    assert len(out) == 53
    assert out[7] == ""
    correct = sum(one == expected for one, (_, expected) in zip(out, unseen, strict=True))
    assert correct > 20
    again = run(data, "translate", "--model", "m", "--data", "in.txt.gz", "-o", "out.txt")
    assert again.returncode == 5  # it already exists
    score = run(data, "evaluate", "translate", "--model", "m", "--data", "pairs.tsv", "--format", "json")
    assert json.loads(score.stdout)["bleu"] > 50
    records = run(data, "translate", "--model", "m", "hund katze", "--format", "jsonl", "--best", "3")
    record = json.loads(records.stdout)
    assert len(record["translations"]) == 3
    assert {"word", "found_by"} <= set(record["words"][0])
    links = run(data, "translate", "--model", "m", "hund katze", "--format", "pharaoh").stdout.split()
    assert all(link.count("-") == 1 for link in links)


@pytest.mark.slow
def test_resume_with_other_data_is_refused(data):
    assert train(data, "m", "--steps", 20).returncode == 0
    write_word_pairs(data / "pairs.tsv", 99, seed=5)
    result = train(data, "m", "--steps", 40, "--resume")
    assert result.returncode == 5
    assert "the data has changed since the run in" in result.stderr


@pytest.mark.slow  # tests/unit/translation/test_export.py tests every format with random weights
def test_trained_model_translates_alike_in_ctranslate2(data):
    import ctranslate2
    import tokenizers

    assert train(data, "m", "--steps", 150, "--rate", 4e-3, "--set", "dropout=0").returncode == 0
    result = run(data, "export", "m", "--format", "ctranslate2", "--out", "ct2")
    assert result.returncode == 0, result.stderr
    sources = [source for source, _ in word_pairs(23, seed=42)]
    (data / "in.txt").write_text("\n".join(sources) + "\n", encoding="utf-8")
    ours = run(data, "translate", "--model", "m", "--data", "in.txt", "--beam", "1").stdout.splitlines()
    tokenizer = tokenizers.Tokenizer.from_file(str(data / "ct2" / "tokenizer.json"))
    other = ctranslate2.Translator(str(data / "ct2"), intra_threads=1)  # it sets torch's threads too
    results = other.translate_batch([tokenizer.encode(text).tokens for text in sources], beam_size=1)
    theirs = [tokenizer.decode([tokenizer.token_to_id(token) for token in one.hypotheses[0]]) for one in results]
    assert sum(one == two for one, two in zip(ours, theirs, strict=True)) >= 21  # rounding may break a tie differently
