"""The page of episodes: one self-contained HTML file, like that of ``page``, in which frames are data URIs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.arguments import explain_arguments
from regard.errors import DataError
from regard.view.episode_data import build_episodes_data
from regard.view.episode_reading import EpisodeReading
from regard.view.page import fill_template, write_readings

# Each file is one idea; a later file may use the names of the earlier ones.
SCRIPTS = (
    "decode.js",
    "colour.js",
    "dom.js",
    "episode_state.js",
    "theme.js",
    "print.js",
    "tabs.js",
    "episode_frame.js",
    "alternatives.js",
    "observed.js",
    "earlier_steps.js",
    "strongest_sources.js",
    "episode_heads.js",
    "episode.js",
)


@explain_arguments
def write_episodes_page(
    readings: EpisodeReading | Sequence[EpisodeReading], path: str | Path, *, model: str = "", overwrite: bool = False
) -> Path:
    """Write the page of one or more episodes, and return its path. Raises the errors of ``write_page``."""
    return write_readings(
        readings,
        EpisodeReading,
        path,
        render_episodes,
        maker="regard.playing.read_episode",
        model=model,
        overwrite=overwrite,
    )


def render_episodes(readings: Sequence[EpisodeReading], *, model: str = "") -> str:
    """Render the page as HTML text. Raises DataError if there is no episode, or one of a model without layers."""
    if not readings or not all(one.steps[0].action and one.steps[0].action[0].weights.size for one in readings):
        raise DataError(
            "there is nothing to show",
            expected="at least one episode, and a model with attention layers",
            got="no layer" if readings else "no episode",
            do="play an episode with a trained model",
        )
    return fill_template(
        "episode.html",
        styles=("page.css", "episode.css"),
        scripts=SCRIPTS,
        title=readings[0].environment,
        data=build_episodes_data(readings, model),
        images="data:",
    )
