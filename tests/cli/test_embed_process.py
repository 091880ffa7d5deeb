"""``regard embed`` as a process: killed, interrupted, with a closed pipe, on a full disk; and its memory."""

import json
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli_process import ENVIRONMENT, fork_command


@pytest.fixture
def embed(regard_command, tiny_model, tmp_path):
    """Return a function that starts the command in an empty folder."""

    def start(*arguments, **options):
        piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        command = [*regard_command, "embed", "--model", tiny_model, *map(str, arguments)]
        return subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, **piped)

    return start


@pytest.fixture
def text_folder(tmp_path):
    """Folder with in.txt: 5,000 short texts, which are ten chunks."""
    rng = random.Random(13)
    words = ["the", "animal", "did", "not", "cross", "because", "tired"]
    lines = [" ".join(rng.choices(words, k=rng.randrange(5))) + "\n" for _ in range(5000)]
    (tmp_path / "in.txt").write_text("".join(lines))
    return tmp_path


def wait_for_exit(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, (out or b"").decode(), err.decode()


def wait_for_parts(folder, count, process):
    """Wait until ``count`` parts are complete. Return whether the process was still running then."""
    while process.poll() is None:
        if len(list(folder.glob("out.*.parts/*.json"))) > count:
            return True
        time.sleep(0.005)
    return False


@pytest.mark.parametrize(
    "options", [("-o", "out.npy"), pytest.param(("-o", "out.jsonl", "--tokens"), marks=pytest.mark.slow)]
)
def test_resume_after_kills_gives_the_same_file(embed, text_folder, options):
    options = ("--data", "in.txt", *options)
    out = text_folder / options[3]
    code, _, error = wait_for_exit(embed(*options))
    assert code == 0, error
    whole = out.read_bytes()
    out.unlink()
    rng = random.Random(17)
    kills = 0
    for count in (1, 4, 7):
        process = embed(*options, "--resume")
        if wait_for_parts(text_folder, count, process):
            time.sleep(rng.random() * 0.05)
            kills += 1
        process.kill()
        process.communicate()
    assert kills
    if not out.exists() or out.with_name(out.name + ".parts").exists():
        code, _, error = wait_for_exit(embed(*options, "--resume"))
        assert code == 0, error
    assert out.read_bytes() == whole
    assert sorted(path.name for path in text_folder.iterdir()) == ["in.txt", out.name]


def test_ctrl_c_suggests_resume(embed, text_folder):
    process = embed("--data", "in.txt", "-o", "out.npy", "--tokens")
    assert wait_for_parts(text_folder, 1, process)
    process.send_signal(signal.SIGINT)
    code, _, error = wait_for_exit(process)
    assert code == 130
    assert "interrupted" in error
    assert "--resume" in error
    assert "Traceback" not in error


def test_closed_output_pipe_is_no_error(embed, text_folder):
    process = embed("--data", "in.txt")
    first = json.loads(process.stdout.readline())
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=120) == 0
    process.stderr.close()
    assert first["text"] == (text_folder / "in.txt").read_text().splitlines()[0]


def test_full_standard_output_is_reported(embed):
    with Path("/dev/full").open("wb") as full:
        code, _, error = wait_for_exit(embed("a", stdout=full))
    assert code != 0
    assert "No space left on device" in error
    assert "Traceback" not in error


def test_endless_line_is_refused(embed):
    code, _, error = wait_for_exit(embed("--data", "/dev/zero"))
    assert code == 3
    assert "line 1 of /dev/zero is too long" in error


def test_resume_after_reaching_a_file_size_limit(embed, text_folder):
    limit = 300_000  # maximum bytes of a file: enough for the parts, too few for the output
    process = embed(
        "--data",
        "in.txt",
        "-o",
        "out.npy",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    code, _, error = wait_for_exit(process)
    assert code != 0
    assert "cannot be written" in error
    assert "--resume" in error
    assert "Traceback" not in error
    assert wait_for_exit(embed("--data", "in.txt", "-o", "out.npy", "--resume"))[0] == 0


PEAK_MEMORY_SCRIPT = """
import resource, sys
from regard.cli.app import main
for name in ("short", "long"):
    sys.argv = ["regard", "embed", "--model", {model!r}, "--data", f"{{name}}.txt", "-o", f"{{name}}.npy", "--tokens"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_is_independent_of_the_input_length(tiny_model, text_folder):
    """Twenty times as many texts take at most a tenth more memory."""
    lines = (text_folder / "in.txt").read_text()
    (text_folder / "short.txt").write_text(lines[: len(lines) // 10])
    (text_folder / "long.txt").write_text(lines * 2)
    program = PEAK_MEMORY_SCRIPT.format(model=tiny_model)
    run = subprocess.run(
        [*fork_command("python"), "-"],
        cwd=text_folder,
        env=ENVIRONMENT,
        input=program,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.returncode == 0
    short, long = map(int, run.stdout.split())
    assert long < 1.1 * short


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("a", "-o", "out.csv"), 2, "expected: a name ending in .npy, .jsonl or .parquet"),
        pytest.param(("--batch", "0", "a"), 2, "--batch", marks=pytest.mark.slow),
        pytest.param(("a" * 40,), 3, "got:      42 tokens", marks=pytest.mark.slow),
        ((), 3, "standard input is empty"),
        (("a", "--model", "/nowhere"), 4, "no model '/nowhere'"),
        (("a", "-o", "in.txt", "--format", "npy"), 5, "in.txt already exists"),
    ],
)
def test_exit_codes(embed, text_folder, arguments, code, message):
    got, out, error = wait_for_exit(embed(*arguments))
    assert (got, out) == (code, "")
    assert message in error
    assert "Traceback" not in error
