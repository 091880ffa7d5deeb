"""``regard train gato``: train one network on environments, texts and pictures."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

import typer

from regard.cli.completion import choice_completer
from regard.cli.next_command import say_next
from regard.cli.option_group import expand_option_group
from regard.cli.progress import count_progress
from regard.cli.training_options import (
    Out,
    ScheduleBySteps,
    TrainingOptions,
    Vocabulary,
    parse_hyperparameters,
    setting_option,
)
from regard.cli.verb import Verb
from regard.errors import OptionError

NOTES = """
[bold]Data.[/bold] --task names an environment of `gymnasium` or `minigrid` with a scripted expert: CartPole-*, \
Pendulum-*, MountainCarContinuous-*, Acrobot-*, MiniGrid-Empty-*, MiniGrid-FourRooms-*, MiniGrid-DoorKey-*. It is \
recorded once, into OUT.episodes. --data reads files of episodes of any environment. --text and --pictures add texts \
and labelled pictures, as for `regard train lm` and `regard train classify`; broken pictures are an error, or left \
out with --skip-bad. Each source is drawn equally often, unless --weight says otherwise.

[bold]Output.[/bold] The folder OUT has all that `regard.load` and `regard play` need; it is rewritten whenever the \
loss on held-out data improves. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

[bold]Validation.[/bold] Loss and accuracy on held-out episodes, texts and pictures, and --games episodes played in \
each environment: share is 1 for a return like the expert's, 0 for that of random actions.

[bold]Duration.[/bold] Training stops when the loss on held-out data has not improved for --patience validations, or \
at the limit of --minutes, --epochs or --steps.

[bold]Interrupted?[/bold] Repeat the command with --resume: it continues from the last checkpoint and reaches the same \
weights as an uninterrupted run. To extend a finished run, raise the limit that ended it; a cosine schedule cannot \
be extended.

[bold]Several processes.[/bold] accelerate launch -m regard train gato ... on GPUs; torchrun --nproc-per-node 2 \
-m regard train gato ... on CPUs.

[bold]Examples[/bold]

  regard train gato --task CartPole-v1 --steps 1000 --out model/

  regard train gato --task CartPole-v1 --task Pendulum-v1 --text book.txt --pictures digits/ --minutes 60 --out model/

  regard train gato --task MiniGrid-Empty-5x5-v0 --task Pendulum-v1 --weight Pendulum-v1=2 --size small --out model/

  regard train gato --data my-episodes.npz --out model/
"""


def register(train: typer.Typer) -> None:
    """Add the command to its verb."""
    train.command("gato", cls=Verb, epilog=NOTES)(gato)


@final
@dataclass(frozen=True)
class GatoTrainingOptions(TrainingOptions):
    """How a Gato is trained."""

    schedule: ScheduleBySteps = None
    patience: Annotated[
        int,
        typer.Option("--patience", min=0, help="Early stopping: validations without a better loss; 0 disables it."),
    ] = 10


@expand_option_group
def gato(
    out: Out,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help="Environment whose scripted expert is recorded, such as CartPole-v1; repeat for more.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="FILE.npz",
            help="Episodes that write_episodes wrote; repeat for more.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(
            "--text",
            metavar="PATH",
            help="Texts: a file of plain text, JSON lines, or a folder of these; repeat for more.",
            show_default=False,
        ),
    ] = None,
    pictures: Annotated[
        list[Path] | None,
        typer.Option(
            "--pictures",
            metavar="PATH",
            help="Labelled pictures: a folder per label, a table, or an IDX file; repeat for more.",
            show_default=False,
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave broken pictures out, and report them.")] = False,
    weight: Annotated[
        list[str] | None,
        typer.Option(
            "--weight",
            metavar="NAME=NUMBER",
            help="How often a source is drawn: an environment, text or pictures; repeat for more. Default: 1 for each.",
            show_default=False,
        ),
    ] = None,
    experience: Annotated[
        int, typer.Option("--experience", min=1, help="Time steps of the expert to record in each environment.")
    ] = 20_000,
    noise: Annotated[
        float,
        typer.Option(
            "--noise",
            min=0.0,
            max=1.0,
            help="Highest probability that random actions begin in a time step of the recording; the expert shows how "
            "to recover from them.",
        ),
    ] = 0.2,
    episodes: Annotated[
        Path | None,
        typer.Option(
            "--episodes",
            metavar="FOLDER",
            help="Folder of the recorded episodes, read if they are there. Default: OUT.episodes.",
            show_default=False,
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            metavar="SIZE",
            help="Size of the model: tiny, small or base. Default: tiny.",
            show_default=False,
            autocompletion=choice_completer(("tiny", "small", "base")),
        ),
    ] = None,
    numbers: Annotated[list[str] | None, setting_option("layers=2 or dropout=0.1")] = None,
    vocabulary: Vocabulary = None,
    picture_size: Annotated[
        int | None,
        typer.Option(
            "--picture-size",
            min=1,
            help="Height and width of labelled pictures, rounded up to a multiple of 16. Default: theirs, at most 64.",
            show_default=False,
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            min=2,
            help="Tokens of a training sequence, and of what an agent looks back on. Default: that of the size, or two "
            "time steps.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Sequences per batch. Default: that of the size.", show_default=False),
    ] = None,
    games: Annotated[
        int, typer.Option("--games", min=0, help="Episodes to play in each environment at each validation.")
    ] = 2,
    *,
    training: GatoTrainingOptions,
) -> None:
    """Train one network that acts in environments, writes text and labels pictures."""
    from regard.tasks.gato import GatoRecipe, GatoTask

    recipe = GatoRecipe(
        environments=tuple(task or ()),
        data=tuple(data or ()),
        texts=tuple(text or ()),
        pictures=tuple(pictures or ()),
        weights=parse_weights(weight or []),
        experience=experience,
        noise=noise,
        episodes=episodes or out.with_name(f"{out.name}.episodes") if out.name else None,
        size=size,
        hyperparameters=parse_hyperparameters(numbers or []),
        vocabulary=vocabulary,
        length=length,
        batch=batch,
        picture_size=picture_size,
        games=games,
        skip_bad=skip_bad,
    )
    with _RecordingProgress() as progress:
        done = training.run(GatoTask(recipe, advance=progress.advance), out)
    if task:
        say_next(done, "regard play", shlex.quote(task[0]))


def parse_weights(assignments: list[str]) -> dict[str, float]:
    """Parse the NAME=NUMBER of each --weight."""
    weights: dict[str, float] = {}
    for one in assignments:
        name, _, number = one.rpartition("=")
        try:
            weights[name] = float(number)
        except ValueError:
            name = ""
        if not name:
            raise OptionError("wrong --weight", expected="NAME=NUMBER", got=one, do="for example --weight text=2")
    return weights


@final
class _RecordingProgress:
    """The progress bar of the environment that is being recorded; none without a terminal."""

    def __init__(self) -> None:
        self._name, self._bar = "", ExitStack()
        self._update: Callable[[int], None] = lambda done: None

    def __enter__(self) -> _RecordingProgress:
        return self

    def __exit__(self, *reason: object) -> None:
        self._bar.close()

    def advance(self, name: str, done: int, of: int) -> None:
        """Show that ``done`` of ``of`` time steps are recorded, and close the bar after the last."""
        if name != self._name:
            self._name = name
            self._update = self._bar.enter_context(count_progress(of, f"time steps of {name}"))
        self._update(done)
        if done >= of:
            self._bar.close()
