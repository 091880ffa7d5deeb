"""Options of the search for the best text, and the search that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.search import Search

BeamWidth = Annotated[
    int | None, typer.Option("--beam", min=1, help="Beam width; 1 is greedy search. Default: 5.", show_default=False)
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        help="Length penalty: alpha of Wu et al. 2016; higher favours longer translations. Default: 0.6.",
        show_default=False,
    ),
]


def make_search(options: dict[str, Any], *, best: int = 1) -> Search:
    """Make a search from options of ``Beam``, at least ``best`` wide. Raises OptionError as ``Beam`` does."""
    from regard.search import Beam, Greedy

    if options == {"width": 1} and best == 1:
        return Greedy()
    return Beam(best=best, **{**options, "width": max(options.get("width", 5), best)})
