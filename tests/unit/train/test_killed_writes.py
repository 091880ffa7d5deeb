"""A process killed before each disk operation: files are complete afterwards, either the old or the new version."""

from __future__ import annotations

import subprocess

from cli_process import ENVIRONMENT, fork_command

KILLED = """
import os, sys
from pathlib import Path
import torch
from regard.models.checkpoint_writer import recover_model, write_folder
from regard.train.progress import Progress
from regard.train.run_folder import TrainingState, RunFolder

TOUCHING = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link"}

def killed_before(number, act):
    'Do it in a process that dies before it touches the disk so many times; whether it died.'
    child = os.fork()
    if child == 0:
        left = number
        def hook(event, arguments):
            nonlocal left
            left -= event in TOUCHING
            if left < 0:
                os._exit(9)
        sys.addaudithook(hook)
        act()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9

def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))

def written(folder, text):
    write_folder(folder / "model", {"config.json": text, "about.json": text}, {"a": torch.tensor([float(text)])},
                 overwrite=True, keep_others=True)

def try_a_model(top):
    number, seen, gone = 0, set(), 0
    while True:
        folder = top / str(number)
        written(folder, "1")
        (folder / "model" / "notes").mkdir()
        (folder / "model" / "notes" / "thesis.txt").write_text("years of work")
        died = killed_before(number, lambda: written(folder, "2"))
        gone += not (folder / "model").exists()
        recover_model(folder / "model")
        texts = {(folder / "model" / name).read_text() for name in ("config.json", "about.json")}
        assert len(texts) == 1, (number, texts)
        seen |= texts
        assert (folder / "model" / "notes" / "thesis.txt").read_text() == "years of work", number
        assert hidden(folder) == [], (number, hidden(folder))
        written(folder, "3")
        assert (folder / "model" / "config.json").read_text() == "3"
        assert (folder / "model" / "notes" / "thesis.txt").read_text() == "years of work"
        if not died:
            break
        number += 1
    print(number, sorted(seen), gone)

tensors = {"a": torch.zeros(3)}

def save(run, step, kept):
    progress = Progress(step=step, kept=kept)
    run.save(TrainingState(progress=progress, weights=tensors, optimizer=tensors, random=tensors))

def try_a_checkpoint(top):
    number, seen, gone = 0, set(), 0
    while True:
        run = RunFolder(top / str(number))
        run.begin({}, {})
        save(run, 7, 1.0)
        died = killed_before(number, lambda: save(run, 7, 2.0))
        gone += not (run.path / "checkpoints" / "step-00000007").exists()
        last = run.load_last()
        assert last is not None and last.progress.step == 7, number
        seen.add(last.progress.kept)
        save(run, 7, 3.0)
        assert run.load_last().progress.kept == 3.0
        assert hidden(run.path / "checkpoints") == [], number
        if not died:
            break
        number += 1
    print(number, sorted(seen), gone)

try_a_model(Path("models"))
try_a_checkpoint(Path("runs"))
"""


def test_kill_at_any_disk_operation_leaves_the_old_or_the_new_file(tmp_path):
    """Checks a model, and a checkpoint that is written again."""
    command = [*fork_command("python"), "-"]
    result = subprocess.run(
        command, input=KILLED, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    for line, seen in zip(result.stdout.splitlines(), ("['1', '2']", "[1.0, 2.0]"), strict=True):
        number, rest = line.split(" ", 1)
        assert int(number) > 10
        assert rest == f"{seen} 1"  # and at one moment no file has the name
