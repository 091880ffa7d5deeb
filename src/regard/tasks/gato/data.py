"""From a recipe to episodes, texts and pictures: recorded or read, and split into training and validation.

Recorded episodes have the seeds 10,000, 10,001, .., until there are enough time steps; the last tenth of the episodes
is held out. Games at validations have the seeds 0, 1, ..
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, final

from regard.control import (
    Episode,
    TextSpace,
    collect_episodes,
    find_expert,
    make_environment,
    read_episodes,
    write_episodes,
)
from regard.control.environments import environment_spaces
from regard.control.spaces import PATCH, DiscreteSpace, PictureSpace, Space
from regard.errors import DataError, OptionError
from regard.log import log
from regard.media import LabelledFile, read_and_report_labelled
from regard.tasks.file_task import split_labelled
from regard.tasks.gato.recipe import GatoRecipe
from regard.tasks.image_classification.data import PictureSet
from regard.tasks.labelled_data import find_labels, report_lost_labels
from regard.tasks.language_modelling import LanguageModelRecipe
from regard.tasks.language_modelling.data import split_documents
from regard.tasks.picture_batches import decode_pictures, measure_pictures
from regard.tasks.recipe_fields import DEFAULT_MEMORY
from regard.vision import ImageProcessor
from regard.vision.picture_file import PICTURES

Say: TypeAlias = Callable[[str], None]
Advance: TypeAlias = Callable[[str, int, int], None]
"""Told while episodes are recorded: the environment, the time steps recorded, and how many there will be."""
Steps = TypeVar("Steps", bound=Sized)
"""An episode, recorded or as tokens."""

_FIRST_SEED = 10_000
_HELD_OUT_SHARE = 10
_MOST_PIXELS = 64
"""Height and width of labelled pictures at most, unless the recipe says otherwise."""


@final
@dataclass(frozen=True, eq=False)
class EnvironmentSpaces:
    """The spaces of an environment."""

    name: str
    observation: dict[str, Space]
    action: Space

    @classmethod
    def of(cls, name: str) -> EnvironmentSpaces:
        """Make the environment and read its spaces.

        Raises OptionError for an unknown name, RefusedError for spaces without tokens, MissingPackageError without
        ``gymnasium``.
        """
        environment = make_environment(name)
        try:
            return cls(name, *environment_spaces(environment))
        finally:
            environment.close()

    @property
    def discrete_values(self) -> int:
        """The number of values of its largest discrete space."""
        return max((space.values for space in self._all if isinstance(space, DiscreteSpace)), default=1)

    @property
    def channels(self) -> set[int]:
        """The numbers of channels of its pictures."""
        return {space.channels for space in self._all if isinstance(space, PictureSpace)}

    @property
    def text_keys(self) -> list[str]:
        """The keys of the texts of an observation."""
        return [key for key, space in self.observation.items() if isinstance(space, TextSpace)]

    @property
    def _all(self) -> tuple[Space, ...]:
        return (*self.observation.values(), self.action)


def check_experts(recipe: GatoRecipe) -> None:
    """Raise OptionError for an environment without a scripted expert."""
    for name in recipe.environments:
        try:
            find_expert(name)
        except OptionError as error:
            raise OptionError(
                error.what,
                expected=error.expected,
                got=error.got,
                do="record episodes of your own: write_episodes(FILE, NAME, collect_episodes(NAME, seeds, "
                "expert=FUNCTION)), and pass `data='FILE'` in place of `environments=...`",
            ) from error


def load_episodes(recipe: GatoRecipe, advance: Advance) -> dict[str, list[Episode]]:
    """The episodes of all environments: recorded, or read from ``recipe.episodes`` and ``recipe.data``.

    Raises DataError for a file that cannot be used, OptionError as ``check_experts``.
    """
    found: dict[str, list[Episode]] = {}
    for name in recipe.environments:
        found[name] = _record(recipe, name, advance)
    for path in recipe.data:
        name, episodes = read_episodes(path)
        log.info(f"{path}: {len(episodes):,} episodes of {name}, {sum(map(len, episodes)):,} time steps")
        found.setdefault(name, []).extend(episodes)
    return found


def split_episodes(name: str, episodes: Sequence[Steps]) -> tuple[list[Steps], list[Steps]]:
    """Episodes for training, and the last tenth of them. Raises DataError for a single episode."""
    count = max(1, len(episodes) // _HELD_OUT_SHARE)
    if len(episodes) < 2:
        raise DataError(
            f"there are too few episodes of {name} to hold one out for validation",
            expected="at least 2 episodes",
            got=str(len(episodes)),
            do="record more: `experience=...`",
        )
    return list(episodes[:-count]), list(episodes[-count:])


def split_texts(recipe: GatoRecipe, *, seed: int) -> tuple[list[str], list[str]]:
    """Texts for training and for validation; none without texts in the recipe."""
    if not recipe.texts:
        return [], []
    return split_documents(LanguageModelRecipe(data=recipe.texts), seed=seed)


@final
@dataclass(frozen=True, eq=False)
class FoundPictures:
    """Labelled pictures before they are decoded: all, those whose headers can be read, and the usual longer edge."""

    named: list[LabelledFile]
    good: list[LabelledFile]
    edge: int


def find_pictures(recipe: GatoRecipe) -> FoundPictures | None:
    """List the labelled pictures and read their headers; None without pictures in the recipe.

    Raises DataError for pictures of one label only, and for broken ones unless the recipe skips them.
    """
    if not recipe.pictures:
        return None
    named = read_and_report_labelled(recipe.pictures, PICTURES, None)
    find_labels(named, PICTURES)
    good, usual, _, _ = measure_pictures(named, skip_bad=recipe.skip_bad)
    find_labels(good, PICTURES)
    return FoundPictures(named, good, max(usual))


def load_pictures(
    recipe: GatoRecipe, found: FoundPictures | None, *, channels: int, seed: int
) -> tuple[PictureSet, PictureSet] | tuple[None, None]:
    """Decode labelled pictures, for training and for validation; None if none were found.

    Raises as ``find_pictures``.
    """
    if found is None:
        return None, None
    size = recipe.picture_size or min(_MOST_PIXELS, found.edge)
    size = -(-size // PATCH) * PATCH
    halves = (0.5,) * channels
    processor = ImageProcessor((size, size), channels=channels, mean=halves, std=halves)
    decoded = decode_pictures(found.good, [], processor, memory=DEFAULT_MEMORY, skip_bad=recipe.skip_bad)
    training, held_out = split_labelled(*decoded, PICTURES, seed=seed)
    report_lost_labels(found.named, training.decoded.files, PICTURES)
    return training, held_out


def _record(recipe: GatoRecipe, name: str, advance: Advance) -> list[Episode]:
    path = None if recipe.episodes is None else recipe.episodes / _file_name(recipe, name)
    if path is not None and path.exists():
        stored, episodes = read_episodes(path)
        if stored != name:
            raise DataError(
                f"{path} holds episodes of another environment",
                expected=name,
                got=stored,
                do="move it away, and they are recorded again",
            )
        log.info(
            f"{name}: {len(episodes):,} recorded episodes, {sum(map(len, episodes)):,} time steps, read from {path}"
        )
        return episodes
    episodes, steps = [], 0
    for seed in itertools.count(_FIRST_SEED):
        episodes += collect_episodes(name, [seed], noise=recipe.noise)
        steps += len(episodes[-1])
        advance(name, min(steps, recipe.experience), recipe.experience)
        if steps >= recipe.experience and len(episodes) > 1:
            break
    log.info(f"{name}: {len(episodes):,} episodes of the scripted expert, {steps:,} time steps, noise {recipe.noise:g}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_episodes(path, name, episodes)
    return episodes


def _file_name(recipe: GatoRecipe, name: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.{recipe.experience}-steps.noise-{recipe.noise:g}.npz"
