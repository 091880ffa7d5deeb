"""The recipe of a Gato: environments, texts and pictures, how they are mixed, and the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from regard.errors import OptionError, check_choice, check_count, check_flag, check_kind, check_number
from regard.tasks.gato.presets import SIZES
from regard.tasks.recipe_fields import check_optional, to_json_value

TEXT, PICTURES = "text", "pictures"
"""The names of these sources beside those of environments."""
_PATHS = ("data", "texts", "pictures")
_CHOSEN_LATER = ("size", "hyperparameters", "length", "batch", "weights")
_WITHOUT_INFLUENCE = ("episodes", "games")


@final
@dataclass(frozen=True)
class GatoRecipe:
    """The data and the model.

    Args:
        environments: names of environments whose scripted experts are recorded.
        data: files of episodes that ``write_episodes`` wrote, for environments without a scripted expert.
        texts: files of plain text or JSON lines, or folders of these.
        pictures: labelled pictures: folders with a folder for each label, tables, or IDX files.
        skip_bad: leave broken pictures out; otherwise they are an error.
        weights: how often each source is drawn, by the name of the environment, "text" or "pictures"; the default is 1.
        experience: time steps to record in each environment.
        noise: the highest probability that a burst of random actions begins in a time step that is recorded.
        episodes: a folder to keep the recorded episodes in, and to read them from; None records them again.
        size: tiny, small or base; None is tiny.
        hyperparameters: values that override those of the model's config.
        vocabulary: pieces of text; None chooses it by the amount of text.
        length: tokens of a training sequence, and of what an agent remembers; None is the size's, or two time steps.
        batch: sequences of a batch; None is the size's.
        picture_size: height and width of labelled pictures; None is the usual size of the data, at most 64.
        games: episodes to play in each environment at each validation.

    Raises OptionError for values of the wrong type, numbers out of range, a weight without its source, and no data.
    """

    environments: tuple[str, ...] = ()
    data: tuple[Path, ...] = ()
    texts: tuple[Path, ...] = ()
    pictures: tuple[Path, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    experience: int = 20_000
    noise: float = 0.2
    episodes: Path | None = None
    size: str | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    vocabulary: int | None = None
    length: int | None = None
    batch: int | None = None
    picture_size: int | None = None
    games: int = 2
    skip_bad: bool = False

    def __post_init__(self) -> None:
        for name, kind in {"environments": str, **dict.fromkeys(_PATHS, Path)}.items():
            check_kind(name, getattr(self, name), tuple, do=f"pass a tuple, for example {name}=()")
            for one in getattr(self, name):
                check_kind(name, one, kind, do=f"pass a tuple of {kind.__name__}")
        for name in ("hyperparameters", "weights"):
            check_kind(name, getattr(self, name), dict, do=f"for example {name}={{}}")
        check_optional(self, texts=("size",), counts=("vocabulary", "length", "batch", "picture_size"))
        check_flag("skip_bad", self.skip_bad)
        check_count("experience", self.experience)
        check_count("games", self.games, least=0)
        check_number("noise", self.noise, least=0.0, most=1.0)
        if self.size is not None:
            check_choice("model size", self.size, tuple(SIZES))
        for name, weight in self.weights.items():
            check_number(f"weight of {name}", weight, above=0.0)
        if not (self.environments or self.data or self.texts or self.pictures):
            raise OptionError(
                "there is nothing to learn from",
                expected="environments, files of episodes, texts or pictures",
                got="none of them",
                do='environments=("CartPole-v1",) (--task CartPole-v1)',
            )
        if self.skip_bad and not self.pictures:
            raise OptionError(
                "skip_bad (--skip-bad) has no effect without pictures",
                expected="pictures=... (--pictures) as well",
                got="no pictures",
                do="leave it out",
            )
        twice = sorted({one for one in self.environments if self.environments.count(one) > 1})
        if twice:
            raise OptionError(
                "an environment is named twice",
                expected="each environment once",
                got=", ".join(twice),
                do="use weights=... (--weight NAME=2) to draw it more often",
            )

    def check_weights(self, names: Sequence[str]) -> None:
        """Raise OptionError for a weight of a source that is not among ``names``."""
        unknown = sorted(set(self.weights) - set(names))
        if unknown:
            raise OptionError(
                "a weight names no source of the mixture",
                expected=", ".join(names),
                got=", ".join(unknown),
                do="correct the name: weights=... (--weight NAME=NUMBER)",
            )

    def fields(self) -> dict[str, Any]:
        """The fields as JSON values, except those that the data may decide and those that change no weights."""
        left_out = (*_CHOSEN_LATER, *_WITHOUT_INFLUENCE)
        return {name: to_json_value(value) for name, value in asdict(self).items() if name not in left_out}
