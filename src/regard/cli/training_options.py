"""Options of ``regard train`` that every task has, and how they become a run.

The command that a training prints at its end: how to use the model.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from regard.cli.option_group import make_group
from regard.cli.shared_options import Device, Overwrite, Resume, check_resume
from regard.cli.stderr import say, spell_in_language
from regard.device_names import AUTO
from regard.fields import declare
from regard.train import Settings

if TYPE_CHECKING:
    from regard.train import RunResult, Task


def print_next_command(done: RunResult, before: str, after: str) -> None:
    """Print a command with the model's folder between ``before`` and ``after``, once, for a model that learned."""
    if done.is_main and done.score is not None and done.learned:
        command = f"{before} {shlex.quote(str(done.out))} {after}"
        say(f"try: {command}")


def describe_run(
    command: str,
    *,
    score: str,
    at_first: str = "",
    epochs: int | None = None,
    is_cosine: bool = False,
    shared: str = "",
) -> str:
    """The paragraphs of a command's help about the end of a run, its interruption and several processes.

    ``score`` is what validations compare, which ``at_first`` may not improve, ``epochs`` those of fine-tuning without a
    limit, ``is_cosine`` whether a schedule may be a cosine, and ``shared`` what processes share.
    """
    fine_tuning = "" if epochs is None else f"Fine-tuning without a limit takes {epochs} epochs."
    extended = "A cosine schedule cannot be extended." if is_cosine else ""
    paragraphs = (
        f"[bold]Duration.[/bold] Training stops when {score} has not improved for --patience validations, or at the "
        f"limit of --minutes, --epochs or --steps. {at_first} {fine_tuning}",
        "[bold]Interrupted?[/bold] Repeat the command with --resume: it continues from the last checkpoint and reaches "
        "the same weights as an uninterrupted run. To extend a finished run, raise the limit that ended it. "
        f"{extended}",
        f"[bold]Several processes.[/bold] accelerate launch -m regard train {command} ... on GPUs; torchrun "
        f"--nproc-per-node 2 -m regard train {command} ... on CPUs. {shared}",
    )
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


_SCHEDULE_BY_STEPS = {
    "help": "Learning rate schedule: inverse_sqrt, cosine or constant. Default: cosine with --steps, else inverse_sqrt."
}


def training_options(
    *, better: str, is_schedule_by_steps: bool = False, weight_decay: float = 0.01
) -> dict[str, Mapping[str, Any]]:
    """A task's own facts about the options of training: the changes for ``expand_option_groups``.

    ``better`` is what a validation must have that is not counted by --patience, such as "a better loss". By steps the
    schedule is a cosine if --steps is given.
    """
    patience = f"Early stopping: validations without {better}; 0 disables it."
    return {
        "settings_schedule_name": _SCHEDULE_BY_STEPS if is_schedule_by_steps else {},
        "settings_weight_decay": {"default": weight_decay},
        "settings_patience": {"help": patience},
    }


@final
@dataclass(frozen=True, kw_only=True)
class Training:
    """How and where a model is trained, whatever the task. Raises OptionError for ``--resume`` with ``--overwrite``."""

    out: Path = field(
        metadata=declare(
            "Folder to write the model to.",
            option="--out -o",
            metavar="FOLDER",
            before=("validation", "environments"),
        )
    )
    settings: Settings = field(default_factory=Settings, metadata=declare("How it is trained."))
    device: Device = field(default=AUTO, metadata={"before": ("settings_seed",)})
    resume: Resume = False
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        check_resume(resume=self.resume, overwrite=self.overwrite)

    @classmethod
    def from_options(cls, given: dict[str, Any]) -> Training:
        """Make it of the options that were given. A cosine ends with --steps, and is the schedule by steps."""
        settings = given["settings"]
        schedule = settings["schedule"]
        schedule.setdefault("name", "cosine" if "steps" in settings else "inverse_sqrt")
        if schedule["name"] == "cosine" and "steps" in settings:
            schedule["steps"] = settings["steps"]
        return make_group(cls, given)

    def run(self, task: Task) -> RunResult:
        """Run the training; an interruption exits with code 130 and says how to resume.

        Raises what ``regard.train.run`` raises.
        """
        from regard.train import run
        from regard.train.reports import TerminalReport

        try:
            return run(
                task,
                self.settings,
                self.out,
                resume=self.resume,
                overwrite=self.overwrite,
                device=self.device,
                report=TerminalReport(spell_in_language),
            )
        except KeyboardInterrupt as interruption:
            if not interruption.args:
                raise
            say(f"regard: {interruption}")
            sys.exit(130)
