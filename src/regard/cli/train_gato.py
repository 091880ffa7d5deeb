"""``regard train gato``: train one network on environments, texts and pictures."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import final

import typer

from regard.cli.option_group import expand_option_groups
from regard.cli.progress import count_progress
from regard.cli.training_options import Training, print_next_command, training_options
from regard.cli.verb import Verb
from regard.tasks.gato import GatoRecipe

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


@expand_option_groups(**training_options(better="a better loss", is_schedule_by_steps=True))
def gato(recipe: GatoRecipe, training: Training) -> None:
    """Train one network that acts in environments, writes text and labels pictures."""
    from regard.tasks.gato import GatoTask

    if recipe.episodes is None and training.out.name:
        recipe = replace(recipe, episodes=training.out.with_name(f"{training.out.name}.episodes"))
    with _RecordingProgress() as progress:
        done = training.run(GatoTask(recipe, advance=progress.advance))
    if recipe.environments:
        print_next_command(done, "regard play", shlex.quote(recipe.environments[0]))


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
