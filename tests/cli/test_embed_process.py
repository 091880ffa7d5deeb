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
def many(tmp_path):
    """A file of 5,000 short texts, which are ten chunks."""
    chance = random.Random(13)
    words = ["the", "animal", "did", "not", "cross", "because", "tired"]
    lines = [" ".join(chance.choices(words, k=chance.randrange(5))) + "\n" for _ in range(5000)]
    (tmp_path / "in.txt").write_text("".join(lines))
    return tmp_path


def finished(process):
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
def test_killed_at_random_moments(embed, many, options):
    options = ("--data", "in.txt", *options)
    out = many / options[3]
    code, _, error = finished(embed(*options))
    assert code == 0, error
    whole = out.read_bytes()
    out.unlink()
    chance = random.Random(17)
    kills = 0
    for count in (1, 4, 7):
        process = embed(*options, "--resume")
        if wait_for_parts(many, count, process):
            time.sleep(chance.random() * 0.05)
            kills += 1
        process.kill()
        process.communicate()
    assert kills
    if not out.exists() or out.with_name(out.name + ".parts").exists():
        code, _, error = finished(embed(*options, "--resume"))
        assert code == 0, error
    assert out.read_bytes() == whole
    assert sorted(path.name for path in many.iterdir()) == ["in.txt", out.name]


def test_interrupted(embed, many):
    process = embed("--data", "in.txt", "-o", "out.npy", "--tokens")
    assert wait_for_parts(many, 1, process)
    process.send_signal(signal.SIGINT)
    code, _, error = finished(process)
    assert code == 130
    assert "interrupted" in error
    assert "--resume" in error
    assert "Traceback" not in error


def test_the_reader_leaves(embed, many):
    process = embed("--data", "in.txt")
    first = json.loads(process.stdout.readline())
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=120) == 0
    process.stderr.close()
    assert first["text"] == (many / "in.txt").read_text().splitlines()[0]


def test_no_room_for_standard_output(embed):
    with Path("/dev/full").open("wb") as full:
        code, _, error = finished(embed("a", stdout=full))
    assert code != 0
    assert "No space left on device" in error
    assert "Traceback" not in error


def test_a_line_that_never_ends_is_not_read_to_its_end(embed):
    code, _, error = finished(embed("--data", "/dev/zero"))
    assert code == 3
    assert "line 1 of /dev/zero is too long" in error


def test_no_room_for_a_file(embed, many):
    limit = 300_000  # maximum bytes of a file: enough for the parts, too few for the output
    process = embed(
        "--data",
        "in.txt",
        "-o",
        "out.npy",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    code, _, error = finished(process)
    assert code != 0
    assert "cannot be written" in error
    assert "--resume" in error
    assert "Traceback" not in error
    assert finished(embed("--data", "in.txt", "-o", "out.npy", "--resume"))[0] == 0


PEAKS = """
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


def test_memory_does_not_grow_with_the_input(tiny_model, many):
    """Twenty times as many texts take at most a tenth more memory."""
    lines = (many / "in.txt").read_text()
    (many / "short.txt").write_text(lines[: len(lines) // 10])
    (many / "long.txt").write_text(lines * 2)
    program = PEAKS.format(model=tiny_model)
    run = subprocess.run(
        [*fork_command("python"), "-"], cwd=many, env=ENVIRONMENT, input=program, stdout=subprocess.PIPE, text=True
    )
    assert run.returncode == 0
    short, long = map(int, run.stdout.split())
    assert long < 1.1 * short


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("a", "-o", "out.csv"), 2, "expected: a name ending in .npy, .jsonl or .parquet"),
        (("--batch", "0", "a"), 2, "--batch"),
        (("a" * 40,), 3, "got:      42 tokens"),
        ((), 3, "standard input is empty"),
        (("a", "--model", "/nowhere"), 4, "no model '/nowhere'"),
        (("a", "-o", "in.txt", "--format", "npy"), 5, "in.txt already exists"),
    ],
)
def test_exit_codes(embed, many, arguments, code, message):
    got, out, error = finished(embed(*arguments))
    assert (got, out) == (code, "")
    assert message in error
    assert "Traceback" not in error
