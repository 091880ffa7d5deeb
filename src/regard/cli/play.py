"""``regard play``: a Gato acts in environments: returns, also of an expert, a recording, a page of attention."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer

from regard.cli.completion import model_completer
from regard.cli.option_group import expand_option_groups
from regard.cli.output_file import check_output_file, open_output_file
from regard.cli.progress import count_progress
from regard.cli.shared_options import Device, Overwrite, Weights
from regard.cli.stderr import say
from regard.cli.verb import Verb
from regard.device_names import AUTO
from regard.errors import OptionError
from regard.fields import option_field
from regard.language import count_noun, translate_message

if TYPE_CHECKING:
    from regard.control.returns import Returns
    from regard.models import Gato
    from regard.playing.measure_play import PlayedEnvironment

NOTES = """
[bold]Environments[/bold] are names of gymnasium and minigrid, such as CartPole-v1 or MiniGrid-Empty-5x5-v0. Without \
one, the model plays all that it was trained on. They need: pip install 'regard\\[control]'.

[bold]Returns.[/bold] The return of an episode is the sum of its rewards. The table has the mean, the standard \
deviation of single episodes and the range, and the means of the scripted expert and of random actions from the same \
seeds. Share is (return - random) / (expert - random): 100 % is as good as the expert, 0 % as random actions.

[bold]Chance.[/bold] Episode i begins from seed --seed + i. With --temperature 0 the most probable action is chosen; \
above 0 actions are drawn, and equal seeds give equal episodes.

[bold]Recording.[/bold] --record writes the first episode as .gif, .png (animated) or .webp. With several environments \
each has a file: episode-CartPole-v1.gif.

[bold]Page.[/bold] --view writes the first episode of each environment as a page: step by step the frame, what was \
observed, the probabilities of the actions, and what the action attended to, in every layer and head.

[bold]Examples[/bold]

  regard play gato/

  regard play gato/ CartPole-v1 --episodes 100 --json > returns.json

  regard play gato/ MiniGrid-Empty-5x5-v0 --episodes 1 --seed 7 --record episode.gif --view episode.html

  regard play gato/ CartPole-v1 --temperature 1 --no-comparison
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("play", cls=Verb, epilog=NOTES)(play)


@final
@dataclass(frozen=True)
class _Options:
    """How many episodes are played, how, and what is written."""

    episodes: int = option_field(20, "Episodes in each environment.", minimum=1)
    seed: int = option_field(0, "Seed of the first episode; the next have the next.", minimum=0)
    temperature: float = option_field(0.0, "Of drawing actions; 0 chooses the most probable one.", minimum=0.0)
    no_comparison: bool = option_field(False, "Play without the expert and the random agent.")
    record: Path | None = option_field(None, "Write the first episode as .gif, .png or .webp.", metavar="FILE")
    view: Path | None = option_field(None, "Write the first episode as a page, with its attention.", metavar="FILE")
    as_json: bool = option_field(False, "Print JSON, for programs.", option="--json")
    out: Path | None = option_field(None, "Write all numbers to this file, as JSON.", option="--out -o", metavar="FILE")
    weights: Weights = None
    device: Device = AUTO
    overwrite: Overwrite = False

    @property
    def seeds(self) -> range:
        """The seeds of the episodes."""
        return range(self.seed, self.seed + self.episodes)

    def check_files(self) -> None:
        """Raise OutputError or OptionError for the file of numbers or the page, before the model is loaded."""
        check_output_file(self.out, overwrite=self.overwrite)
        if self.view is not None:
            from regard.view.output_path import PAGE, check_output_path

            check_output_path(self.view, PAGE, overwrite=self.overwrite)

    def recording_paths(self, names: list[str]) -> list[Path]:
        """A file for each environment, whose name has the environment's name if there are several; checked."""
        if self.record is None:
            return []
        from regard.control.rendering import check_animation_path

        check_animation_path(self.record)
        paths = [self.record] if len(names) == 1 else [_path_of(self.record, name) for name in names]
        for path in paths:
            check_output_file(path, overwrite=self.overwrite)
        return paths


@expand_option_groups()
def play(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Folder of the Gato.", show_default=False, autocompletion=model_completer()
        ),
    ],
    environments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENVIRONMENT", help="Where it plays. Default: all that it was trained on.", show_default=False
        ),
    ] = None,
    *,
    options: _Options,
) -> None:
    """Let a Gato act in environments; measure, record and show it."""
    options.check_files()
    from regard.models import Gato

    loaded = Gato.load(model, device=options.device, weights=options.weights)
    names = _choose_environments(loaded, environments or [])
    recordings = options.recording_paths(names)
    played = _play_all(loaded, names, options)
    report = {
        "model": model,
        "temperature": options.temperature,
        "environments": [environment.to_json() for environment in played],
    }
    text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    _write_files(played, recordings, text, model, options)
    if options.as_json:
        print(text, end="")
    else:
        _print_table(played)


def _choose_environments(model: Gato, chosen: list[str]) -> list[str]:
    """The environments to play. Raises OptionError if none is asked for and the model does not tell its own."""
    from regard.playing.play import trained_environments

    trained = trained_environments(model)
    names = list(dict.fromkeys(chosen or trained))
    if not names:
        raise OptionError(
            "no environment was given, and the model does not tell any",
            expected="one or more environments",
            got="none",
            do="regard play MODEL CartPole-v1",
        )
    unseen = [name for name in names if trained and name not in trained]
    if unseen:
        say(f"the model was not trained on {', '.join(unseen)}, but on {', '.join(trained)}")
    return names


def _path_of(record: Path, environment: str) -> Path:
    return record.with_name(f"{record.stem}-{environment.replace('/', '-')}{record.suffix}")


def _play_all(model: Gato, names: list[str], options: _Options) -> list[PlayedEnvironment]:
    """Play all environments, with a progress bar. All are checked before the first is played."""
    from regard.playing.measure_play import can_render, check_playable, measure_play

    for name in names:
        check_playable(model, name)
    is_drawn = options.view is not None or options.record is not None
    renders = {name: is_drawn and can_render(name, required=options.record is not None) for name in names}
    played, done = [], 0
    agents = 1 if options.no_comparison else 3
    with count_progress(len(names) * options.episodes * agents, "episodes") as show:

        def advance() -> None:
            nonlocal done
            done += 1
            show(done)

        for name in names:
            measured = measure_play(
                model,
                name,
                options.seeds,
                temperature=options.temperature,
                compare=not options.no_comparison,
                read=options.view is not None,
                render=renders[name],
                advance=advance,
            )
            played.append(measured)
    return played


def _write_files(
    played: list[PlayedEnvironment], recordings: list[Path], text: str, model: str, options: _Options
) -> None:
    """Write what was asked for, before anything is printed: a broken pipe (``| head``) must not prevent the files."""
    if recordings:
        from regard.control.rendering import write_animation

        for environment, path in zip(played, recordings, strict=True):
            write_animation(path, environment.frames, frames_per_second=environment.frame_rate)
            _say_written(path)
    if options.view is not None:
        from regard.view.page import write_page

        readings = [environment.reading for environment in played if environment.reading is not None]
        write_page(readings, options.view, model=Path(model).name or model, overwrite=options.overwrite)
        _say_written(options.view)
    if options.out is not None:
        with open_output_file(options.out) as file:
            file.write(text)
        _say_written(options.out)


def _say_written(path: Path) -> None:
    say(f"{path}: written, {path.stat().st_size / 1000:,.0f} kB")


def _print_table(played: list[PlayedEnvironment]) -> None:
    from rich import box
    from rich.table import Table

    from regard.cli.broken_pipe import PipedConsole

    count = len(played[0].seeds)
    seeds = f"seeds {played[0].seeds[0]} to {played[0].seeds[-1]}" if count > 1 else f"seed {played[0].seeds[0]}"
    caption = f"{count_noun(count, 'episode')}, {seeds}; mean return ± standard deviation"
    table = Table(box=box.SIMPLE_HEAD, caption=translate_message(caption), show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(translate_message("environment"), overflow="fold")
    for column in ("return", "range", "expert", "random", "share"):
        table.add_column(translate_message(column), justify="right", no_wrap=True)
    for environment in played:
        spread = f"{_number(environment.model.mean)} ± {_number(environment.model.deviation)}"
        table.add_row(
            environment.environment,
            spread,
            _range(environment.model),
            _mean(environment.expert),
            _mean(environment.random),
            _share(environment.share),
        )
    PipedConsole(markup=False, highlight=False).print(table)


def _mean(returns: Returns | None) -> str:
    return "-" if returns is None else _number(returns.mean)


def _range(returns: Returns) -> str:
    return translate_message(f"{_number(min(returns.values))} to {_number(max(returns.values))}")


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: float) -> str:
    """Three decimals below 10, as returns of 0.955 need, one above."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
