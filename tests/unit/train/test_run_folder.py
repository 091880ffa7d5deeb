"""The run folder, files in it that no run wrote, and syncing all files to the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

import pytest
import torch

from regard.atomic_write import sync_folder
from regard.errors import OutputExistsError
from regard.models.checkpoint_writer import write_folder
from regard.text.resumable_shards import ShardRecord, Shards
from regard.train.progress import Progress
from regard.train.run_folder import RunFolder, TrainingState

TENSORS = {"a": torch.arange(5.0)}


@pytest.fixture
def run(tmp_path) -> RunFolder:
    run = RunFolder(tmp_path / "m.run")
    run.begin({"seed": 1}, {"tokenizer.json": "{}"})
    return run


def save(run, *steps):
    for step in steps:
        progress = Progress(step=step).after_validation(float(step), keep=1)
        run.save_snapshot(progress.best[0].name, TENSORS)
        run.save(TrainingState(progress=progress, weights=TENSORS, optimizer=TENSORS, random=TENSORS))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write_all_files(folder):
    """Write everything that is written atomically, once: a model folder, a run, parts."""
    run = RunFolder(folder / "m.run")
    run.begin({"seed": 1}, {"tokenizer.json": "{}"})
    save(run, 1)
    run.metrics.write_text('{"step": 1}\n')
    run.samples.write_text("step 1\n")
    run.remove_reports_after(1)
    write_folder(folder / "model", {"config.json": "{}", "1_Pooling/config.json": "{}"}, TENSORS)
    parts = Shards(folder / "out.npy")
    parts.start({})
    parts.add(ShardRecord(1, "", (), (), ()), lambda file: file.write(b"rows"))


def test_all_files_are_saved_if_only_writable_files_can_be_synced(tmp_path, monkeypatch):
    """As on Windows, where folders cannot be opened either."""
    sync = os.fsync

    def as_on_windows(handle):
        if stat.S_ISREG(os.fstat(handle).st_mode) and fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        sync(handle)

    monkeypatch.setattr(os, "fsync", as_on_windows)
    write_all_files(tmp_path)
    assert RunFolder(tmp_path / "m.run").load_last().progress.step == 1
    with monkeypatch.context() as patched:
        patched.setattr(os, "name", "nt")
        patched.setattr(os, "open", lambda *_: pytest.fail("a folder was opened"))
        sync_folder(tmp_path)


def test_every_file_and_then_its_folder_is_synced(tmp_path, monkeypatch):
    synced = []
    sync = os.fsync

    def record_sync(handle):
        sync(handle)
        named = {path.stat().st_ino for path in tmp_path.rglob("*") if not path.name.startswith(".")}
        synced.append((os.fstat(handle).st_ino, named))

    monkeypatch.setattr(os, "fsync", record_sync)
    write_all_files(tmp_path)
    for path in tmp_path.rglob("*"):
        number, folder = path.stat().st_ino, path.parent.stat().st_ino
        assert path.is_dir() or any(one == number for one, _ in synced), path
        assert any(one == folder and number in named for one, named in synced), path


def test_unknown_files_in_a_run_are_kept(run):
    save(run, 1, 2)
    others = {"checkpoints": ["step-00000001 copy", "backup"], "snapshots": ["backup"]}
    for folder, folders in others.items():
        for name in folders:
            (run.path / folder / name).mkdir()
        (run.path / folder / ".DS_Store").write_bytes(b"\0")
        (run.path / folder / "notes.txt").write_text("years of work")
    save(run, 3, 4)
    assert run.load_last().progress.step == 4
    for folder, folders in others.items():
        assert {*folders, "notes.txt"} <= set(names(run.path / folder))


def test_run_restarts_despite_leftovers_of_a_desktop_or_a_kill(run):
    for name in (".DS_Store", ".metrics.jsonl.partial", ".run.json.partial", ".source.tokenizer.json.partial"):
        (run.path / name).write_bytes(b"\0")
    run.begin({"seed": 2}, {})
    assert run.read_setting("seed") == 2
    assert names(run.path) == ["checkpoints", "run.json", "snapshots"]
    (run.path / ".thesis.partial").write_text("years of work")
    with pytest.raises(OutputExistsError, match="thesis"):
        run.begin({"seed": 3}, {})


def test_leftovers_of_kills_are_removed_at_the_next_checkpoint(run):
    save(run, 1)
    left = (".step-00000001.partial", ".step-00000001.0a1b2c3d.partial", ".step-00000001.0a1b2c3e.replaced")
    for name in left:
        (run.path / "checkpoints" / name).mkdir()
    (run.path / "snapshots" / ".step-00000001.safetensors.partial").write_bytes(b"half")
    assert run.load_last().progress.step == 1
    save(run, 2)
    assert names(run.path / "checkpoints") == ["step-00000001", "step-00000002"]
    assert names(run.path / "snapshots") == ["step-00000001.safetensors", "step-00000002.safetensors"]


def test_leftovers_that_could_not_be_removed_are_removed_later(run, monkeypatch):
    """Repeated kills while a leftover is being removed leave it each time."""
    save(run, 1)
    (run.path / "checkpoints" / ".step-00000001.0a1b2c3d.partial").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr("regard.atomic_write.shutil.rmtree", lambda *_, **__: None)
        save(run, 2, 3)
    assert len(names(run.path / "checkpoints")) > 3
    save(run, 4)
    assert names(run.path / "checkpoints") == ["step-00000003", "step-00000004"]


def test_checkpoint_that_was_being_replaced_is_restored(run):
    save(run, 1)
    folder = run.path / "checkpoints"
    (folder / "step-00000001").rename(folder / ".step-00000001.0a1b2c3d.replaced")
    assert run.has_checkpoint
    assert run.load_last().progress.step == 1
    save(run, 2)
    assert run.load_last().progress.step == 2
    save(run, 3)
    assert names(folder) == ["step-00000002", "step-00000003"]


def test_recipe_without_a_field_is_another_recipe(tmp_path):
    run = RunFolder(tmp_path / "m.run")
    run.begin({"recipe": {"topics": 3, "words": None}, "seed": 1}, {})
    run.check_same({"recipe": {"topics": 3}, "seed": 1})
    with pytest.raises(OutputExistsError, match=r"another recipe\.topics"):
        run.check_same({"recipe": {"words": None}, "seed": 1})


def test_a_difference_is_named_by_the_argument_that_decides_it(tmp_path):
    run = RunFolder(tmp_path / "m.run")
    run.begin({"model": {"mechanisms": ["kda"]}, "seed": 1}, {})
    with pytest.raises(OutputExistsError) as other:
        run.check_same({"model": {"mechanisms": ["linear"]}, "seed": 1}, None, {"model.mechanisms": "`attention`"}.get)
    assert other.value.what.endswith("was started with another `attention`")
    with pytest.raises(OutputExistsError) as other:
        run.check_same({"model": {"mechanisms": ["kda"]}, "seed": 2})
    assert other.value.what.endswith("was started with another `seed`")
