"""Options of the search for the best text, and the search that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from regard.cli.shared_options import drop_none
from regard.errors import OptionError
from regard.fields import option_field

if TYPE_CHECKING:
    from regard.search import Search

_DEFAULT_SEED = 1
"""Seed of sampling without --seed."""
_SAMPLING = ("temperature", "top_k", "top_p", "seed")


@final
@dataclass(frozen=True)
class BeamOptions:
    """Options of beam search that every verb with a translator has."""

    width: int | None = option_field(None, "Beam width; 1 is greedy search. Default: 5.", minimum=1, option="--beam")
    length_penalty: float | None = option_field(
        None, "Length penalty: alpha of Wu et al. 2016; higher favours longer translations. Default: 0.6."
    )


@final
@dataclass(frozen=True)
class TranslationSearchOptions:
    """Options of the search of `regard translate` beside ``BeamOptions``."""

    coverage_penalty: float | None = option_field(
        None, "Coverage penalty: beta of Wu et al. 2016; higher omits less of the source. Default: 0."
    )
    patience: float | None = option_field(
        None,
        "Stop a sentence once this many beam widths of hypotheses have ended; inf searches on until the best is "
        "certain. Default: 1.",
    )
    sample: bool = option_field(False, "Sample translations instead of searching for the best.")
    temperature: float | None = option_field(None, "Temperature of sampling. Default: 1.")
    top_k: int | None = option_field(None, "Sample from the k most probable tokens. Default: all.", minimum=0)
    top_p: float | None = option_field(
        None, "Sample from the most probable tokens that together have this probability. Default: 1."
    )
    seed: int | None = option_field(None, "Random seed of sampling. Default: 1.")
    best: int = option_field(1, "Translations per sentence; the beam is at least as wide.", minimum=1)

    def choose_search(self, beam: BeamOptions) -> Search:
        """Choose the search strategy. Raises OptionError for an option of another strategy."""
        from regard.search import Sampling

        drawing = drop_none({name: getattr(self, name) for name in _SAMPLING})
        searching = drop_none({**vars(beam), "coverage_penalty": self.coverage_penalty, "patience": self.patience})
        other = searching if self.sample else drawing
        if other:
            names = ", ".join("--beam" if name == "width" else f"--{name.replace('_', '-')}" for name in other)
            raise OptionError(
                f"{names} has no effect {'with' if self.sample else 'without'} --sample",
                expected="options of beam search, or --sample with options of sampling",
                got=names,
                do=f"leave out {names}" if self.sample else f"add --sample, or leave out {names}",
            )
        if self.sample:
            return Sampling(best=self.best, **{"seed": _DEFAULT_SEED, **drawing})
        return make_search(searching, best=self.best)


def make_search(options: dict[str, Any], *, best: int = 1) -> Search:
    """Make a search from options of ``Beam``, at least ``best`` wide. Raises OptionError as ``Beam`` does."""
    from regard.search import Beam, Greedy

    if options == {"width": 1} and best == 1:
        return Greedy()
    return Beam(best=best, **{**options, "width": max(options.get("width", 5), best)})
