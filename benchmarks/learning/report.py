"""Reports: sections of docs/results.md, each with a table, a plot, and how it was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from benchmarks import plot_style
from benchmarks.formatting import threads
from benchmarks.learning import results
from benchmarks.plot_style import SCHEMES

FOLDER = Path(__file__).resolve().parent / "results"
ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"


def describe_machine(one: dict[str, Any]) -> str:
    """Threads and processor of a result, such as "2 threads of AMD EPYC 9B14"."""
    return f"{threads(one['machine'])} of {one['machine']['processor']}"


def percent(share: float) -> str:
    """A share in percent, with one decimal."""
    return f"{100 * share:.1f} %"


def markdown_table(header: str, rows: list[str]) -> str:
    """A table in Markdown of cells separated by " | "; all columns but the first are aligned to the right."""
    return "\n".join([f"| {header} |", f"|---|{'--:|' * header.count(' | ')}", *(f"| {row} |" for row in rows)])


@final
@dataclass(frozen=True)
class Report:
    """A section of docs/results.md.

    Args:
        name: of the file of published results.
        text: what is measured and how, with the heading.
        table: writes results in Markdown.
        note: writes what is said below the table.
        counts: the place of the result whose machine and versions count.
        plot: what the plots NAME-light.svg and NAME-dark.svg show; empty without plots.
        draw: draws the plot of results in one of the schemes, and returns the figure of matplotlib.
    """

    name: str
    text: str
    table: Callable[[dict[str, Any]], str]
    note: Callable[[dict[str, Any]], str] = lambda found: f"On {describe_machine(next(iter(found.values())))}.\n"
    counts: int = 0
    plot: str = ""
    draw: Callable[[dict[str, Any], str], Any] | None = None

    @property
    def path(self) -> Path:
        """The file of published results."""
        return FOLDER / f"{self.name}.json"

    def publish(self, found: dict[str, Any]) -> None:
        """Add results to those in this repository, without the folders of this machine, and draw the plots of all."""
        published = results.publish(self.path, found)
        self.write_plots(published, ASSETS)

    def write_plots(self, found: dict[str, Any], folder: Path) -> None:
        """Write the plots into a folder."""
        if self.draw is None:
            return
        import matplotlib as mpl

        mpl.use("svg")
        folder.mkdir(parents=True, exist_ok=True)
        for scheme in SCHEMES:
            path = folder / f"{self.name}-{scheme}.svg"
            with mpl.rc_context(plot_style.settings(scheme)):
                self.draw(found, scheme).savefig(path, format="svg", transparent=True, metadata={"Date": None})

    def render(self, found: dict[str, Any]) -> Iterator[str]:
        """The lines of the section; without results, only what is measured and how."""
        yield self.text
        if not found:
            return
        for scheme in SCHEMES if self.plot else ():
            yield f"![{self.plot}](assets/{self.name}-{scheme}.svg#only-{scheme})"
        yield f"{chr(10) if self.plot else ''}{self.table(found)}\n"
        yield self.note(found)
        one = list(found.values())[self.counts]
        graphics, versions = one["machine"].get("GPU"), one["versions"]
        measured = f"regard {versions['regard']} ({versions['commit']}), torch {versions['torch']}."
        yield f"<small>{f'{graphics}, ' if graphics else ''}{measured}</small>\n"
