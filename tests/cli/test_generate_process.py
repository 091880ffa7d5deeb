"""``regard generate`` and ``regard evaluate lm``, as processes, or in this one if a test is not about processes."""

import json
import subprocess

import pytest

from cli_process import ENVIRONMENT, fork_command
from regard.generation import Generator, score_texts
from small_language_models import documents, language_model


@pytest.fixture
def folder(tmp_path):
    language_model().save(tmp_path / "m")
    return tmp_path


def regard(folder, *arguments, **options):
    options = {"cwd": folder, "env": ENVIRONMENT, "timeout": 300, "capture_output": True, **options}
    return subprocess.run([*fork_command(), *map(str, arguments)], text=True, encoding="utf-8", **options)


def test_a_text_is_printed_behind_its_prompt(folder):
    options = ["generate", "--model", "m", "the cat", "--max-tokens", 9, "--greedy"]
    ((expected,),) = Generator.load(folder / "m").generate(["the cat"], max_tokens=9)
    done = regard(folder, *options)
    assert (done.returncode, done.stdout) == (0, f"the cat{expected.text}\n")
    if expected.ended_by == "max_tokens":
        assert "the text was cut at --max-tokens 9" in done.stderr
    never = regard(folder, *options, "--stop", "☃")
    assert "no text reached a stop string: '☃'" in never.stderr


def test_the_same_seed_gives_the_same_text(run_here, folder):
    same = [run_here("generate", "--model", "m", "the cat", "--seed", seed, "--max-tokens", 20).stdout
            for seed in (1, 1, 2)]  # fmt: skip
    assert same[0] == same[1] != same[2]


def test_an_interrupted_text_ends_its_line(run_here, folder, monkeypatch):
    def stream(self, prompt, **options):
        yield " sat"
        raise KeyboardInterrupt

    monkeypatch.setattr(Generator, "stream", stream)
    done = run_here("generate", "--model", "m", "the cat")
    assert (done.returncode, done.stdout) == (130, "the cat sat\n")


def test_a_type_that_only_transformers_has(run_here, folder):
    (folder / "m" / "config.json").write_text('{"model_type": "cohere2"}')
    done = run_here("generate", "--model", "m", "the cat")
    assert done.returncode == 4
    assert "got:      model_type 'cohere2'" in done.stderr
    assert "gpt2, gpt_oss, llama" in done.stderr
    assert 'import regard.hf, and from_pretrained(folder, attn_implementation="regard")' in done.stderr


def test_prompts_of_a_file_become_json_lines(folder):
    (folder / "p.txt").write_text("the cat\na horse\n\n")
    done = regard(folder, "generate", "--model", "m", "--data", "p.txt", "-o", "out.jsonl", "--max-tokens", 5,
                  "--samples", 2)  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [one["prompt"] for one in lines] == ["the cat"] * 2 + ["a horse"] * 2 + [""] * 2
    assert set(lines[0]) == {"prompt", "text", "ended_by", "tokens", "log_probability"}


def test_a_long_prompt_keeps_the_finished_lines(folder):
    (folder / "p.txt").write_text("the cat\n" + "x" * 50 + "\n")
    done = regard(folder, "generate", "--model", "m", "--data", "p.txt", "-o", "out.jsonl", "--max-tokens", 5)
    assert done.returncode == 3
    assert "line 2 of p.txt is too long" in done.stderr
    assert "at most 42 tokens" in done.stderr
    assert len((folder / "out.jsonl.partial").read_text().splitlines()) == 1
    assert not (folder / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["x"], 2, "no model was given"),
        (["--model", "m", "x", "--chat"], 4, "no chat template"),
        (["--model", "m", "x", "--system", "y"], 2, "--system has no effect"),
        (["--model", "m", "x", "--greedy", "--top-k", 3], 2, "--top-k has no effect on greedy search"),
        (["--model", "none", "x"], 4, "no model 'none'"),
        (["--model", "m", "x", "--format", "csv"], 2, "unknown format"),
        (["--model", "m", "x" * 50], 3, "at most 42 tokens"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_cannot_be_done_is_refused(run_here, arguments, code, said):
    done = run_here("generate", *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout == ""


def test_unknown_text_in_prompts_is_reported(run_here, folder):
    language_model(tokenizer="characters").save(folder / "c")
    done = run_here("generate", "--model", "c", "the 日本語", "--greedy", "--max-tokens", 2)
    assert "replace text that the model's vocabulary does not have" in done.stderr


def test_evaluate(run_here, folder):
    (folder / "t.txt").write_text("\n".join(documents()[:2]))
    done = run_here("evaluate", "lm", "--model", "m", "--data", "t.txt", "--stride", 7, "--format", "json")
    assert done.returncode == 0, done.stderr
    scores = score_texts(Generator.load(folder / "m").model, ["\n".join(documents()[:2])], stride=7)
    found = json.loads(done.stdout)
    assert found["perplexity"] == pytest.approx(scores.perplexity, rel=1e-5)
    assert (found["stride"], found["length"], found["documents"]) == (7, 43, 1)
    shown = run_here("evaluate", "lm", "--model", "m", "--data", "t.txt", "--stride", 7)
    assert f"bits per byte {scores.bits_per_byte:.4f}" in shown.stdout


def test_int8_weights(run_here, folder):
    """Both commands compute with rounded weights: close to the exact ones, and not equal."""
    (folder / "t.txt").write_text("\n\n".join(documents()))
    options = ["evaluate", "lm", "--model", "m", "--data", "t.txt", "--format", "json"]
    exact, rounded = (
        json.loads(run_here(*options, *weights).stdout)["loss"] for weights in ((), ("--weights", "int8"))
    )
    assert exact != rounded
    assert abs(exact - rounded) < 0.02 * exact
    done = run_here("generate", "--model", "m", "the cat", "--greedy", "--max-tokens", 5, "--weights", "int8")
    assert (done.returncode, done.stdout[:7]) == (0, "the cat")
    (folder / "p.txt").write_text("the cat\nthe cat sees\n")
    done = run_here("generate", "--model", "m", "--data", "p.txt", "--max-tokens", 5, "--weights", "int8")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    refused = run_here("generate", "--model", "m", "the cat", "--weights", "int3")
    assert refused.returncode == 2
    assert "format of weights" in refused.stderr


def test_prompts_that_begin_alike_are_computed_once_and_reported(run_here, folder):
    lines = [f"the cat sees the dog and a horse {name}" for name in ("eats", "sees", "falls")]
    (folder / "p.txt").write_text("\n".join(lines) + "\n")
    options = ["generate", "--model", "m", "--data", "p.txt", "--max-tokens", 3]
    done = run_here(*options)
    generator = Generator.load(folder / "m")
    total = sum(len(generator.prompt_ids(line, "")) for line in lines)
    assert f"64 of {total} prompt tokens reused" in done.stderr
    without = run_here(*options, "--prefix-memory", 0, "--batch-tokens", 1, "--cache-memory", 1)
    assert "reused" not in without.stderr
    texts = [[json.loads(line)["text"] for line in run.stdout.splitlines()] for run in (done, without)]
    assert texts[0] == texts[1]


def test_a_prompt_that_the_cache_cannot_hold_is_refused_and_leaves_no_file(run_here, folder):
    (folder / "p.txt").write_text("the cat\n")
    options = ["generate", "--model", "m", "--data", "p.txt", "--cache-memory", 1, "-o", "out.jsonl"]
    done = run_here(*options, "--samples", 100)
    assert done.returncode == 3
    assert "line 1 of p.txt needs more memory for keys and values than there is" in done.stderr
    assert "bytes, for 100 texts of" in done.stderr
    assert not (folder / "out.jsonl").exists()
    assert run_here(*options, "--samples", 50).returncode == 0


def test_prompts_that_cannot_be_used_are_left_out(run_here, folder):
    (folder / "in.txt").write_bytes(b"the cat\nb\xff\na train\n")
    options = ["generate", "--model", "m", "--data", "in.txt", "--greedy", "--max-tokens", 3]
    assert run_here(*options).returncode == 3
    done = run_here(*options, "--skip-bad")
    assert done.returncode == 0
    assert [json.loads(line)["prompt"] for line in done.stdout.splitlines()] == ["the cat", "a train"]
    assert "without a text: line 2 of in.txt is not UTF-8" in done.stderr


@pytest.mark.parametrize(("name", "is_json"), [("out.jsonl", True), ("out.txt", False), ("out", False)])
def test_the_format_follows_from_the_suffix(run_here, folder, name, is_json):
    assert run_here("generate", "--model", "m", "the cat", "--max-tokens", 3, "-o", name).returncode == 0
    assert (folder / name).read_text(encoding="utf-8").startswith('{"prompt"' if is_json else "the cat")
