"""``regard train`` as processes that are killed at random times or interrupted, for every task."""

from __future__ import annotations

import pytest

from small_classifiers import write_texts
from small_language_models import language_model, write_documents
from small_translators import write_word_pairs
from training_process import assert_ctrl_c_saves_a_checkpoint, assert_killed_run_ends_with_the_same_weights

SMALL = ["--set", "layers=1", "--set", "width=32", "--warmup", "10", "--validate-every", "20", "--dtype", "float32"]
BLOCKS = ["--data", "texts", "--batch", "7", "--block", "31", "--vocabulary", "290", *SMALL]
LM, MLM = ["lm", *BLOCKS], ["mlm", *BLOCKS]
CLASSIFY = ["classify", "--data", "texts.tsv", "--set", "inner=37", "--batch", "17", "--vocabulary", "350", *SMALL]
TRANSLATE = [
    "translate",
    "--data",
    "pairs.tsv",
    "--model",
    "tiny",
    "--set",
    "inner=37",
    "--batch-tokens",
    "301",
    *SMALL,
]
slow = pytest.mark.slow


@pytest.fixture
def data(tmp_path):
    write_documents(tmp_path / "texts", 211)
    write_texts(tmp_path / "texts.tsv")
    write_word_pairs(tmp_path / "pairs.tsv", 211)
    return tmp_path


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([*LM, "--set", "dropout=0.1"], id="lm", marks=slow),
        pytest.param([*LM, "--model", "llama"], id="lm-llama", marks=slow),
        pytest.param(MLM, id="mlm", marks=slow),
        pytest.param([*MLM, "--model", "modernbert"], id="mlm-modernbert", marks=slow),
        pytest.param(CLASSIFY, id="classify"),
        # tests/cli/test_t5.py resumes a run of this task in one process
        pytest.param(TRANSLATE, id="translate", marks=slow),
    ],
)
def test_run_killed_at_random_times_ends_with_the_same_weights(regard_command, data, options):
    assert_killed_run_ends_with_the_same_weights(data, options, regard_command)


@slow
def test_killed_run_of_adapters_ends_with_the_same_weights(regard_command, data):
    language_model("llama").save(data / "start")
    options = ["lm", "--data", "texts", "--from", "start", "--lora", 3, "--batch", 7, "--validate-every", 20]
    assert_killed_run_ends_with_the_same_weights(data, [*options, "--dtype", "float32"], regard_command)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([*LM, "--epochs", 100000], id="lm", marks=slow),
        pytest.param([*CLASSIFY, "--steps", 100000], id="classify", marks=slow),
        pytest.param([*TRANSLATE, "--steps", 100000], id="translate"),
    ],
)
def test_ctrl_c_saves_a_checkpoint_and_suggests_resume(regard_command, data, options):
    assert_ctrl_c_saves_a_checkpoint(data, options, regard_command)
