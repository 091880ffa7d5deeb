"""The parts of ``regard embed --ray`` without a cluster: what workers answer, and what the command makes of answers.

``FakeDriver`` stands for Ray: it gives each stage's messages to the next one in any order, repeats some, dies after any
number of them, and may tell of a lost machine. The expected bytes are those of the single-machine job.
"""

import json
import random
import shutil
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import ClusterError, DataError, MissingPackageError, OptionError, OutputError, RegardError
from regard.ray_embedding import supervisor, worker
from regard.ray_embedding.driver import MACHINE_LOST, count_workers
from regard.ray_embedding.messages import Plan, PlannedFile, describe_error, restore_error
from regard.text import Embedder, embedding_job
from regard.text.embedding_job import EmbeddingOptions, TextLines, write_output
from regard.text.line_reader import LineReader
from regard.text.resumable_shards import Shards
from regard.text.vector_files import Npy
from small_classifiers import classifier

SETTINGS = {"format": "npy"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "classifier"
    classifier().save(folder)
    return folder


@pytest.fixture(scope="module")
def embedder(model):
    from regard.models import load

    return Embedder(load(model))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(embedding_job, "CHUNK_LINES", 3)


@pytest.fixture
def plan(model, embedder, tmp_path):
    return make_plan(model, embedder, tmp_path)


def make_plan(model, embedder, folder):
    """Plan of three files, of 4, 1 and 2 chunks, each with a started run."""
    files = []
    for index, count in enumerate((11, 3, 5)):
        source, out = folder / f"{index}.txt", folder / f"{index}.npy"
        source.write_text("".join(f"text {index} {line}\n" for line in range(count)))
        Shards(out).start(SETTINGS)
        files.append(PlannedFile(str(source), str(out), source.name))
    return Plan(
        address="local",
        files=tuple(files),
        model=str(model),
        device="cpu",
        dtype="float32",
        weights=None,
        fingerprint=TextLines(embedder, EmbeddingOptions()).fingerprint(),
        form="npy",
        field=None,
        options=EmbeddingOptions(),
    )


def single_machine(plan, embedder):
    """Bytes that the single-machine job writes."""
    found = []
    for file in plan.files:
        shards = Shards(Path(file.out).with_name("expected.npy"))
        shards.start(SETTINGS)
        with closing(LineReader(file.source, name=file.name)) as lines:
            form = Npy(tokens=False, width=embedder.model.width)
            write_output(shards, lines, TextLines(embedder, plan.options), form, lambda _: None)
        found.append(shards.out.read_bytes())
        shards.out.unlink()
    return found


def table_of(**columns):
    import pyarrow as pa

    return pa.table(columns)


def messages_of(table):
    return [json.loads(text) for text in table["message"].to_pylist()]


def read(plan, number=0):
    return [
        one for table in worker.read_files(table_of(file=[number]), plan=plan.to_json()) for one in messages_of(table)
    ]


def answer(plan, *messages, embed=None):
    embed = embed or worker.ChunkEmbedder(plan.to_json(), 1)
    return messages_of(embed(table_of(message=[json.dumps(message) for message in messages])))


def error_of(messages):
    (described,) = [message["error"] for message in messages if "error" in message]
    return restore_error(described)


class FakeDriver:
    """Answers of a pipeline, in an order drawn by ``rng``; it ends after ``lifetime`` of them with ``code``."""

    def __init__(self, plan, rng, lifetime, code):
        texts = [message for number in range(len(plan.files)) for message in read(plan, number)]
        embed = worker.ChunkEmbedder(plan.to_json(), 1)
        rng.shuffle(texts)
        died = lifetime < len(texts)
        texts = texts[:lifetime]
        if texts:
            texts += rng.choices(texts, k=2)  # repeated by Ray
        self.stdout = (json.dumps(one) for text in texts for one in answer(plan, text, embed=embed))
        self._code = code if died else 0

    def wait(self):
        return self._code


def run(plan, embedder, drivers, reports=None):
    """Run the supervisor with these drivers, each made from the plan of its turn."""

    @contextmanager
    def start(now, log):
        assert Plan.from_json(now.to_json()) == now
        yield next(drivers)(now)

    done = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "_start_driver", start)
        log = Path(plan.files[0].out).with_name("log")
        log.write_text("the last words\n")
        reports = [] if reports is None else reports
        form = Npy(tokens=False, width=embedder.model.width)
        found = supervisor.run_plan(
            plan, SETTINGS, form, log=log, report=reports.append, progress=lambda *numbers: done.append(numbers)
        )
        summaries = list(found)
    return summaries, done


@settings(max_examples=5)  # each loads its model up to three times
@given(seed=st.integers(0, 2**32), lifetimes=st.lists(st.integers(0, 9), max_size=2))
def test_any_order_repeats_and_lost_machines_give_the_single_machine_output(
    model, embedder, tmp_path_factory, seed, lifetimes
):
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding_job, "CHUNK_LINES", 3)
        started = make_plan(model, embedder, folder)
        rng = random.Random(seed)
        fruitful = [life or 1 for life in lifetimes]
        lives = iter([*fruitful, 10**9])
        drivers = iter(lambda: lambda now: FakeDriver(now, rng, next(lives), MACHINE_LOST), None)
        summaries, done = run(started, embedder, drivers)
        assert sorted(number for number, _ in summaries) == [0, 1, 2]
        assert sum(summary.rows for _, summary in summaries) == 11 + 3 + 5
        assert [Path(file.out).read_bytes() for file in started.files] == single_machine(started, embedder)
        assert sum(lines for _, lines in done) <= 11 + 3 + 5
        assert not list(folder.glob("*.parts"))
    shutil.rmtree(folder)


def test_a_run_of_workers_is_resumed_by_the_single_machine_job(plan, embedder):
    chunks = read(plan)
    assert [message.get("chunk") for message in chunks] == [0, 1, 2, 3, None]
    for part in (2, 0):  # a gap: only the first shard counts
        answer(plan, chunks[part])
    file = plan.files[0]
    shards = Shards(Path(file.out))
    after = shards.resume(SETTINGS)
    assert after.lines == 3
    with closing(LineReader(file.source)) as lines:
        form = Npy(tokens=False, width=embedder.model.width)
        write_output(shards, lines, TextLines(embedder, plan.options), form, lambda _: None, after=after)
    assert Path(file.out).read_bytes() == single_machine(plan, embedder)[0]


class TestWorker:
    def test_a_bad_line_is_the_last_message(self, plan):
        Path(plan.files[0].source).write_bytes(b"one\ntwo\nthree\nfo\xffur\nfive\n" + b"six\n" * 9)
        chunks = read(plan)
        assert [len(message["texts"]) for message in chunks] == [3, 1]
        error = error_of(answer(plan, *chunks))
        assert isinstance(error, DataError)
        assert error.what == "line 4 of 0.txt is not UTF-8"

    def test_a_missing_input_and_a_missing_folder_of_parts(self, plan):
        Path(plan.files[1].source).unlink()
        assert isinstance(error_of(read(plan, 1)), DataError)
        Shards(Path(plan.files[0].out)).remove()
        error = error_of(read(plan, 0))
        assert isinstance(error, OutputError)
        assert "share" in error.expected

    def test_a_changed_input_is_refused(self, plan):
        answer(plan, *read(plan))
        Path(plan.files[0].source).write_text("other text\n" * 11)
        resumed = replace(plan, files=(replace(plan.files[0], complete=4),))
        assert "differs" in error_of(read(resumed)).what

    def test_another_model_than_the_command_has_is_refused(self, plan):
        error = error_of(answer(replace(plan, fingerprint="other"), read(plan)[0]))
        assert "differs between machines" in error.what

    def test_a_chunk_that_kills_its_workers_is_given_up(self, plan, monkeypatch):
        chunk = read(plan)[1]

        def die(*arguments):
            raise SystemExit

        with monkeypatch.context() as patch:
            patch.setattr(worker, "embed_chunk", die)
            for _ in range(worker.MAX_ATTEMPTS):
                with pytest.raises(SystemExit):
                    answer(plan, chunk)
        error = error_of(answer(plan, chunk))
        assert isinstance(error, ClusterError)
        assert error.what == "4 workers died while they embedded lines 4 to 6 of 0.txt"
        Shards(Path(plan.files[0].out)).forget_attempts()
        assert answer(plan, chunk)[0]["lines"] == 3

    @pytest.mark.parametrize(
        ("raised", "what"),
        [
            (MemoryError(), "not enough memory"),
            (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "not enough memory"),
            (KeyError("x"), "a worker failed"),
        ],
    )
    def test_errors_that_are_not_ours(self, plan, monkeypatch, raised, what):
        def fail(*arguments):
            raise raised

        monkeypatch.setattr(worker, "embed_chunk", fail)
        error = error_of(answer(plan, read(plan)[0]))
        assert isinstance(error, ClusterError)
        assert what in error.what
        assert "`resume=True`" in error.do


class TestSupervisor:
    def test_the_first_error_is_raised(self, plan, embedder):
        Path(plan.files[2].source).write_bytes(b"one\n\xff\n")
        drivers = iter([lambda now: FakeDriver(now, random.Random(3), 99, 0)])
        with pytest.raises(DataError, match=r"line 2 of 2\.txt"):
            run(plan, embedder, drivers)

    @pytest.mark.parametrize("code", [1, -9])
    def test_a_driver_that_fails(self, plan, embedder, code):
        drivers = iter([lambda now: FakeDriver(now, random.Random(3), 2, code)])
        with pytest.raises(ClusterError, match=r"the last words[\s\S]*resume=True"):
            run(plan, embedder, drivers)

    def test_machines_that_keep_leaving_end_the_run(self, plan, embedder):
        reports = []
        drivers = iter(lambda: lambda now: FakeDriver(now, random.Random(3), 0, MACHINE_LOST), None)
        with pytest.raises(ClusterError):
            run(plan, embedder, drivers, reports)
        assert len(reports) == 2

    def test_ray_is_named_if_it_is_missing(self, monkeypatch):
        monkeypatch.setattr(supervisor, "find_spec", lambda name: None if name == "ray" else name)
        with pytest.raises(MissingPackageError, match=r"ray needs ray\n[\s\S]*regard\[ray\]"):
            supervisor.check_ray("")

    def test_addresses(self, monkeypatch):
        monkeypatch.setattr(supervisor, "find_spec", lambda name: name)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        assert supervisor.check_ray("") == "local"
        assert supervisor.check_ray("10.0.0.1:6379") == "10.0.0.1:6379"
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.7:6379")
        assert supervisor.check_ray("") == "10.0.0.7:6379"
        with pytest.raises(OptionError, match="Ray Client"):
            supervisor.check_ray("ray://10.0.0.1:10001")


def test_every_error_is_restored():
    def subclasses(kind):
        return [kind, *(one for child in kind.__subclasses__() for one in subclasses(child))]

    for kind in subclasses(RegardError):
        if kind.__module__ != "regard.errors":
            continue
        error = kind("what", expected="this", got="that", do="so")
        assert str(restore_error(json.loads(json.dumps(describe_error(error))))) == str(error)
        assert type(restore_error(describe_error(error))) is kind


@pytest.mark.parametrize(
    ("cpus", "workers", "threads"), [([1, 1], 2, 1), ([64], 16, 4), ([8, 3], 3, 3), ([4, 4, 7], 3, 4)]
)
def test_workers_and_threads(cpus, workers, threads):
    assert count_workers(cpus) == (workers, threads)
