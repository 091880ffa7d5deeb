"""``regard embed --ray`` on a real cluster of two nodes: a worker, a node or the command killed; and bad input.

The single-machine command gives the expected bytes: each worker has one thread, as it has, so the same machine computes
the same bits.
"""

import gzip
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from cli_process import ENVIRONMENT, START_COMMAND
from ray_cluster import LOOPBACK, ClusterProcess

pytestmark = pytest.mark.slow

SLOWLY = ("--batch", "1")
"""Options that make a chunk take long enough to be killed."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    started = ClusterProcess(tmp_path_factory.mktemp("ray") / "cluster.log")
    yield started
    started.close()


@pytest.fixture
def embed(tiny_model, tmp_path):
    """Return a function that starts the command in the folder of the test."""

    def start(*arguments):
        return subprocess.Popen(
            [*START_COMMAND, "embed", "--model", tiny_model, *map(str, arguments)],
            cwd=tmp_path,
            env={**ENVIRONMENT, **LOOPBACK},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


@pytest.fixture
def corpus(tmp_path):
    """Three files of 12 chunks together, one of them gzip."""
    rng = random.Random(13)
    words = ["the", "animal", "did", "not", "cross", "tired", ""]
    (tmp_path / "corpus").mkdir()
    for name, count in (("a.txt", 2053), ("b.txt.gz", 1031), ("c.txt", 2049)):
        text = "".join(" ".join(rng.choices(words, k=rng.randrange(4))) + "\n" for _ in range(count)).encode()
        (tmp_path / "corpus" / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    return tmp_path / "corpus"


@pytest.fixture
def expected(embed, corpus, tmp_path):
    """Bytes that the single-machine command writes for each file."""
    assert_success(embed("--data", "corpus", "-o", "expected", "--format", "npy", *SLOWLY))
    found = read_outputs(tmp_path / "expected")
    assert sorted(found) == ["a.npy", "b.npy", "c.npy"]
    shutil.rmtree(tmp_path / "expected")
    return found


def read_outputs(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def finish(process):
    out, err = process.communicate(timeout=400)
    return process.returncode, out.decode(), err.decode()


def assert_success(process):
    code, _, error = finish(process)
    assert code == 0, error
    return error


def wait_for_records(folder, count, process):
    """Wait until ``count`` chunks are recorded, while the command runs."""
    end = time.monotonic() + 300
    while len(list(folder.glob("**/*.parts/0*.json"))) < count:
        assert process.poll() is None, finish(process)
        assert time.monotonic() < end
        time.sleep(0.01)


ON_RAY = ("--data", "corpus", "-o", "vectors", "--format", "npy", *SLOWLY)


def test_a_killed_worker_is_replaced_and_its_chunks_are_embedded_again(embed, cluster, expected, tmp_path):
    process = embed("--ray", cluster.address, *ON_RAY)
    wait_for_records(tmp_path, 2, process)
    before = cluster.workers()
    assert len(before) == 2
    before[0].send_signal(signal.SIGKILL)
    error = assert_success(process)
    assert "ray: 2 workers on 2 machines, each with a model and 1 thread" in error
    assert "3 files, 5,133 rows, 5,133 vectors" in error
    assert "Traceback" not in error
    assert "raylet" not in error
    assert read_outputs(tmp_path / "vectors") == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "vectors"]


@pytest.mark.parametrize("resumed_on", ["ray", "this machine"])
def test_a_killed_command_is_resumed(embed, cluster, expected, tmp_path, resumed_on):
    process = embed("--ray", cluster.address, *ON_RAY)
    wait_for_records(tmp_path, 3, process)
    process.kill()
    finish(process)
    assert (tmp_path / "vectors.parts").exists()
    assert_success(embed(*(("--ray", cluster.address) if resumed_on == "ray" else ()), *ON_RAY, "--resume"))
    assert read_outputs(tmp_path / "vectors") == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "vectors"]


def test_a_bad_line_ends_the_run_with_one_message(embed, cluster, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"one\ntwo\n" * 300 + b"t\xff\n" + b"three\n" * 300)
    code, _, error = finish(embed("--ray", cluster.address, "--data", "in.txt", "-o", "out.jsonl"))
    assert code == 3
    assert "line 601 of in.txt is not UTF-8" in error
    assert "Traceback" not in error
    assert_success(embed("--data", "in.txt", "-o", "one.jsonl", "--skip-bad"))
    error = assert_success(
        embed("--ray", cluster.address, "--data", "in.txt", "-o", "out.jsonl", "--skip-bad", "--resume")
    )
    assert "skipped: 1 line, line 601" in error
    for name in ("{}.jsonl", "{}.jsonl.skipped.jsonl"):
        assert (tmp_path / name.format("out")).read_bytes() == (tmp_path / name.format("one")).read_bytes()


def test_a_lost_node_leaves_the_work_to_the_other(embed, expected, tmp_path, tmp_path_factory):
    cluster = ClusterProcess(tmp_path_factory.mktemp("ray") / "cluster.log")
    try:
        process = embed("--ray", cluster.address, *ON_RAY)
        wait_for_records(tmp_path, 2, process)
        cluster.lose_node()
        error = assert_success(process)
    finally:
        cluster.close()
    assert "a machine left the cluster; going on with the others" in error
    assert "ray: 1 worker on 1 machine" in error
    assert read_outputs(tmp_path / "vectors") == expected


def test_without_an_address_a_cluster_of_this_machine_is_started_and_stopped(embed, tiny_model, tmp_path):
    (tmp_path / "in.txt").write_text("one\ntwo\n\nthree\n")
    error = assert_success(embed("--ray", "--data", "in.txt", "-o", "out.npy"))
    assert "on 1 machine" in error
    assert "out.npy: 4 rows, 4 vectors of 22 float32" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.npy"]


def test_an_address_without_a_cluster_is_refused(embed, tmp_path):
    (tmp_path / "in.txt").write_text("one\n")
    code, _, error = finish(embed("--ray", "127.0.0.1:9", "--data", "in.txt", "-o", "out.npy"))
    assert code == 7
    assert "there is no Ray cluster at 127.0.0.1:9" in error
    assert "Traceback" not in error
    assert sys.executable not in error
