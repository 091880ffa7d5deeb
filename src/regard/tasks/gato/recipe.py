"""The recipe of a Gato: environments, texts and pictures, how they are mixed, and the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_kind, check_number
from regard.fields import declare, option_field
from regard.tasks.presets import SIZES
from regard.tasks.recipe_fields import Recipe, declare_hyperparameters

TEXT, PICTURES = "text", "pictures"
"""The names of these sources beside the names of environments."""


def _declare_source(text: str, **facts: Any) -> dict[str, Any]:
    """Declare names or files of a source."""
    return declare(text, example="pass a tuple, for example ()", **facts)


def _parse_weights(assignments: Sequence[str]) -> dict[str, float]:
    """Parse the NAME=NUMBER of each weight that is given in the shell."""
    weights: dict[str, float] = {}
    for assignment in assignments:
        name, _, number = assignment.rpartition("=")
        try:
            weights[name] = float(number)
        except ValueError:
            name = ""
        if not name:
            raise OptionError(
                "wrong `weights`", expected="NAME=NUMBER", got=assignment, do='for example `weights={"text": 2}`'
            )
    return weights


def _check_weights(name: str, weights: object) -> None:
    check_kind(name, weights, dict, do=f"for example {name}={{}}")
    assert isinstance(weights, dict)
    for source, weight in weights.items():
        check_number(f"weight of {source}", weight, above=0.0)


@final
@explain_arguments
@dataclass(frozen=True)
class GatoRecipe(Recipe):
    """The data and the model.

    ``data`` is for environments without a scripted expert, ``length`` also what an agent remembers. Without
    ``episodes`` the episodes are recorded again in each run.

    Raises OptionError for values of the wrong type, numbers out of range, a weight without its source, and no data.
    """

    environments: tuple[str, ...] = field(
        default=(),
        metadata=_declare_source(
            "Environment whose scripted expert is recorded, such as CartPole-v1; repeat for more.", option="--task"
        ),
    )
    data: tuple[Path, ...] = field(
        default=(),
        metadata=_declare_source("Episodes that write_episodes wrote; repeat for more.", metavar="FILE.npz"),
    )
    texts: tuple[Path, ...] = field(
        default=(),
        metadata=_declare_source(
            "Texts: a file of plain text, JSON lines or a table, or a folder of these; repeat for more.",
            option="--text",
        ),
    )
    pictures: tuple[Path, ...] = field(
        default=(),
        metadata=_declare_source("Labelled pictures: a folder per label, a table, or an IDX file; repeat for more."),
    )
    skip_bad: bool = option_field(False, "Leave broken pictures out, and report them.")
    weights: dict[str, float] = field(
        default_factory=dict,
        metadata=declare(
            "How often a source is drawn: an environment, text or pictures; repeat for more. Default: 1 for each.",
            check=_check_weights,
            option="--weight",
            metavar="NAME=NUMBER",
            parse=_parse_weights,
            shell_kind=list[str],
            is_saved=False,
        ),
    )
    experience: int = option_field(20_000, "Time steps of the expert to record in each environment.", minimum=1)
    noise: float = option_field(
        0.2,
        "Highest probability that random actions begin in a time step of the recording; the expert shows how to "
        "recover from them.",
        minimum=0.0,
        maximum=1.0,
    )
    episodes: Path | None = option_field(
        None,
        "Folder of the recorded episodes, read if they are there. Default: OUT.episodes.",
        metavar="FOLDER",
        is_saved=False,
    )
    size: str | None = option_field(
        None,
        "Size of the model: tiny, small or base. Default: tiny.",
        choices=SIZES,
        noun="model size",
        metavar="SIZE",
        is_saved=False,
    )
    hyperparameters: dict[str, Any] = field(
        default_factory=dict, metadata=declare_hyperparameters("layers=2 or dropout=0.1")
    )
    vocabulary: int | None = option_field(None, "Size of its vocabulary. Default: chosen by the data.", minimum=1)
    picture_size: int | None = option_field(
        None,
        "Height and width of labelled pictures, rounded up to a multiple of 16. Default: theirs, at most 64.",
        minimum=1,
    )
    length: int | None = option_field(
        None,
        "Tokens of a training sequence, and of what an agent looks back on. Default: that of the size, or two time "
        "steps.",
        minimum=1,
        shell_range=(2, None),
        is_saved=False,
    )
    batch: int | None = option_field(None, "Sequences per batch. Default: that of the size.", minimum=1, is_saved=False)
    games: int = option_field(2, "Episodes to play in each environment at each validation.", minimum=0, is_saved=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.environments or self.data or self.texts or self.pictures):
            raise OptionError(
                "there is nothing to learn from",
                expected="environments, files of episodes, texts or pictures",
                got="none of them",
                do='`environments=("CartPole-v1",)`',
            )
        if self.skip_bad and not self.pictures:
            raise OptionError(
                "`skip_bad` has no effect without pictures",
                expected="`pictures=...` as well",
                got="no pictures",
                do="leave it out",
            )
        twice = sorted({environment for environment in self.environments if self.environments.count(environment) > 1})
        if twice:
            raise OptionError(
                "an environment is named twice",
                expected="each environment once",
                got=", ".join(twice),
                do="use `weights=...` to draw it more often",
            )

    @property
    def start(self) -> None:
        """A Gato is always a new one."""
        return None

    def check_weights(self, names: Sequence[str]) -> None:
        """Raise OptionError for a weight of a source that is not among ``names``."""
        unknown = sorted(set(self.weights) - set(names))
        if unknown:
            raise OptionError(
                "a weight names no source of the mixture",
                expected=", ".join(names),
                got=", ".join(unknown),
                do="correct the name: `weights=...`",
            )
