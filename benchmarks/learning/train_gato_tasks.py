"""``python -m benchmarks.learning.train_gato_tasks``: one network acts, writes text and labels pictures.

A small Gato learns six control tasks from their scripted experts, the text of ``--text`` and the labels of 4,000 digits
at once; two of the same size learn the text and the pictures alone. Then the first plays each environment: share is
(return - random) / (expert - random), as in Reed et al. 2022, "A generalist agent", section 4.1. The same command
resumes interrupted runs, and keeps the results that are there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.learning import results
from benchmarks.learning.digits import write_digits
from benchmarks.learning.program import make_parser
from benchmarks.learning.report import GATO
from benchmarks.learning.train import train_model, trains_on_gpu
from regard.vision.idx_files import TRAINING

DISCRETE = ("CartPole-v1", "Acrobot-v1", "MiniGrid-Empty-8x8-v0", "MiniGrid-DoorKey-5x5-v0")
CONTINUOUS = ("Pendulum-v1", "MountainCarContinuous-v0")
ALL, TEXT, PICTURES = "all of them", "text", "pictures"


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("train_gato_tasks", __doc__, "trained/gato", "device")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="plain text")
    parser.add_argument("--minutes", type=float, default=40.0, help="of the network of all tasks")
    parser.add_argument("--alone", type=float, default=5.0, help="minutes of each network of one source")
    parser.add_argument("--size", default="tiny", choices=("tiny", "small", "base"))
    parser.add_argument("--episodes", type=int, default=50, help="episodes to play in each environment")
    return parser.parse_args()


def main() -> int:
    """Train the three networks, play, write results.json and print the tables."""
    asked = parse_options()
    write_digits(asked.out / "digits")
    text, pictures = ["--text", str(asked.text)], ["--pictures", str(asked.out / "digits" / TRAINING)]
    tasks = [part for name in (*DISCRETE, *CONTINUOUS) for part in ("--task", name)]
    common = ["--size", asked.size, "--patience", "0", *([] if asked.device is None else ["--device", asked.device])]
    runs = {
        ALL: [*tasks, *text, *pictures, *common, "--minutes", str(asked.minutes)],
        TEXT: [*text, *common, "--minutes", str(asked.alone)],
        PICTURES: [*pictures, *common, "--minutes", str(asked.alone)],
    }
    path = asked.out / "results.json"
    found = results.read(path)
    for name, options in runs.items():
        if found.get(name, {}).get("options") == " ".join(options):
            print(f"{name}: measured already, in {path}", file=sys.stderr)
            continue
        model = asked.out / name.replace(" ", "-")
        measured = {"options": " ".join(options), **train_model(model, "gato", options)}
        if name == ALL:
            measured["environments"] = play(model, asked.episodes, options)
        found = results.add(path, name, measured)
    if asked.publish:
        results.publish(GATO.path, found)
    print(GATO.table(found))
    return 0


def play(model: Path, episodes: int, options: list[str]) -> list[dict[str, Any]]:
    """Play all environments by `regard play`, and return what it says of each."""
    command = [sys.executable, "-m", "regard", "play", str(model), "--episodes", str(episodes), "--json"]
    command += ["--device", "cuda"] if trains_on_gpu(options) else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)  # the command has said why
    environments: list[dict[str, Any]] = json.loads(done.stdout)["environments"]
    return environments


if __name__ == "__main__":
    sys.exit(main())
