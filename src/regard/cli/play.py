"""``regard play``: a Gato acts in environments: returns, also of an expert, a recording, a page of attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.completion import model_completer
from regard.cli.output_file import check_output_file, open_output_file
from regard.cli.progress import count_progress
from regard.cli.shared_options import Device, Overwrite
from regard.cli.stderr import say
from regard.cli.verb import Verb
from regard.errors import OptionError

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
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Episodes in each environment.")] = 20,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the first episode; the next have the next.")] = 0,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="Of drawing actions; 0 chooses the most probable one.")
    ] = 0.0,
    no_comparison: Annotated[
        bool, typer.Option("--no-comparison", help="Play without the expert and the random agent.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="FILE", help="Write the first episode as .gif, .png or .webp.", show_default=False
        ),
    ] = None,
    view: Annotated[
        Path | None,
        typer.Option(
            "--view", metavar="FILE", help="Write the first episode as a page, with its attention.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Write all numbers to this file, as JSON.", show_default=False
        ),
    ] = None,
    device: Device = None,
    overwrite: Overwrite = False,
) -> None:
    """Let a Gato act in environments; measure, record and show it."""
    check_output_file(out, overwrite=overwrite)
    _check_page(view, overwrite=overwrite)
    from regard.models import Gato

    loaded = Gato.load(model, device=device)
    names = _choose_environments(loaded, environments or [])
    recordings = _recording_paths(record, names, overwrite=overwrite)
    played = _play_all(
        loaded,
        names,
        range(seed, seed + episodes),
        temperature=temperature,
        compare=not no_comparison,
        read=view is not None,
        record=record is not None,
    )
    report = {
        "model": model,
        "temperature": temperature,
        "environments": [one.to_json() for one in played],
    }
    text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    _write_files(played, recordings, view, out, text, model, overwrite=overwrite)
    if as_json:
        print(text, end="")
    else:
        _print_table(played)


def _check_page(view: Path | None, *, overwrite: bool) -> None:
    if view is not None:
        from regard.view.page import check_output_path

        check_output_path(view, overwrite=overwrite)


def _choose_environments(model: Gato, asked: list[str]) -> list[str]:
    """The environments to play. Raises OptionError if none is asked for and the model does not tell its own."""
    from regard.playing.play import trained_environments

    trained = trained_environments(model)
    names = list(dict.fromkeys(asked or trained))
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


def _recording_paths(record: Path | None, names: list[str], *, overwrite: bool) -> list[Path]:
    """A file for each environment, whose name has the environment's name if there are several; checked."""
    if record is None:
        return []
    from regard.control.rendering import check_animation_path

    check_animation_path(record)
    paths = [record] if len(names) == 1 else [_path_of(record, name) for name in names]
    for path in paths:
        check_output_file(path, overwrite=overwrite)
    return paths


def _path_of(record: Path, environment: str) -> Path:
    return record.with_name(f"{record.stem}-{environment.replace('/', '-')}{record.suffix}")


def _play_all(
    model: Gato, names: list[str], seeds: range, *, temperature: float, compare: bool, read: bool, record: bool
) -> list[PlayedEnvironment]:
    """Play all environments, with a progress bar. All are checked before the first is played."""
    from regard.playing.measure_play import can_render, check_playable, measure_play

    for name in names:
        check_playable(model, name)
    renders = {name: (read or record) and can_render(name, required=record) for name in names}
    played, done = [], 0
    with count_progress(len(names) * len(seeds) * (3 if compare else 1), "episodes") as show:

        def advance() -> None:
            nonlocal done
            done += 1
            show(done)

        for name in names:
            options: dict[str, Any] = {"temperature": temperature, "compare": compare, "read": read}
            played.append(measure_play(model, name, seeds, render=renders[name], advance=advance, **options))
    return played


def _write_files(
    played: list[PlayedEnvironment],
    recordings: list[Path],
    view: Path | None,
    out: Path | None,
    text: str,
    model: str,
    *,
    overwrite: bool,
) -> None:
    """Write what was asked for, before anything is printed: a broken pipe (``| head``) must not prevent the files."""
    if recordings:
        from regard.control.rendering import write_animation

        for one, path in zip(played, recordings, strict=True):
            write_animation(path, one.frames, frames_per_second=one.frame_rate)
            _say_written(path)
    if view is not None:
        from regard.view.page import write_page

        readings = [one.reading for one in played if one.reading is not None]
        write_page(readings, view, model=Path(model).name or model, overwrite=overwrite)
        _say_written(view)
    if out is not None:
        with open_output_file(out) as file:
            file.write(text)
        _say_written(out)


def _say_written(path: Path) -> None:
    say(f"{path}: written, {path.stat().st_size / 1000:,.0f} kB")


def _print_table(played: list[PlayedEnvironment]) -> None:
    from rich import box
    from rich.table import Table

    from regard.cli.broken_pipe import PipedConsole

    count = len(played[0].seeds)
    seeds = f"seeds {played[0].seeds[0]} to {played[0].seeds[-1]}" if count > 1 else f"seed {played[0].seeds[0]}"
    caption = f"{count:,} {'episodes' if count > 1 else 'episode'}, {seeds}; mean return ± standard deviation"
    table = Table(box=box.SIMPLE_HEAD, caption=caption, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("environment", overflow="fold")
    for column in ("return", "range", "expert", "random", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in played:
        spread = f"{_number(one.model.mean)} ± {_number(one.model.deviation)}"
        table.add_row(
            one.environment, spread, _range(one.model), _mean(one.expert), _mean(one.random), _share(one.share)
        )
    PipedConsole(markup=False, highlight=False).print(table)


def _mean(returns: Returns | None) -> str:
    return "-" if returns is None else _number(returns.mean)


def _range(returns: Returns) -> str:
    return f"{_number(min(returns.values))} to {_number(max(returns.values))}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: float) -> str:
    """Three decimals below 10, as returns of 0.955 need, one above."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"
