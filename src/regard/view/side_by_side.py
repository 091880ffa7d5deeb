"""One text under several mechanisms, side by side with the exact attention of the model.

Every mechanism gets the queries, keys and values that the model's layer computed, so that the mechanism alone differs:
nothing of what one layer changes reaches the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Float32

from regard.arguments import explain_arguments
from regard.comparison import ComparisonSummary, MechanismChoice
from regard.fields import repr_of_fields
from regard.view.layer_weights import LayerWeights
from regard.view.reading import Reading
from regard.view.reading_comparison import ReadingComparison, compare_readings


@final
@dataclass(frozen=True, eq=False)
class HeadMeasures:
    """The measures of each head against exact attention, as in ``regard.comparison``, (layers, heads)."""

    __repr__ = repr_of_fields

    mass_kept: Float32[np.ndarray, "_layers _heads"]
    mass_covered: Float32[np.ndarray, "_layers _heads"]
    top_agreement: Float32[np.ndarray, "_layers _heads"]
    output_error: Float32[np.ndarray, "_layers _heads"]


@final
@dataclass(frozen=True, eq=False)
class ComputedPanel:
    """A mechanism's weights for every head of the model, with its measures and cost.

    ``operations`` count the catalogue's cost for all heads and layers, without constant factors; None if the
    cost has no value. ``seconds`` is the shortest measured time of all layers.
    """

    __repr__ = repr_of_fields

    layers: tuple[LayerWeights, ...]
    measures: HeadMeasures
    summary: ComparisonSummary
    operations: int | None
    seconds: float


@final
@dataclass(frozen=True, eq=False)
class MechanismPanel:
    """A mechanism beside exact attention: what was chosen, and what it computed, or why it refuses.

    ``choice`` has all options that differ from the defaults, ``fitted`` the reasons for those that were set for the
    length of the text. ``notes`` say what the mechanism needs and the model was not trained with.
    """

    __repr__ = repr_of_fields

    choice: MechanismChoice
    fitted: dict[str, str]
    notes: tuple[str, ...]
    computed: ComputedPanel | None
    refusal: str | None

    @property
    def label(self) -> str:
        """The mechanism with the options that were chosen, without those that were set for the length of the text."""
        options = {name: value for name, value in self.choice.options.items() if name not in self.fitted}
        return MechanismChoice(self.choice.name, options).label


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class SideBySide:
    """One text: the exact attention of a model, and the same heads under other mechanisms.

    ``exact`` are weights alone, (heads, tokens, tokens) in each layer; ``exact_name`` is the model's mechanism.
    ``top`` is the number of keys whose agreement was measured, ``seconds`` the shortest time of exact attention.
    """

    __repr__ = repr_of_fields

    exact: Reading
    exact_name: str
    exact_operations: int | None
    exact_seconds: float
    panels: tuple[MechanismPanel, ...]
    top: int
    threads: int

    @property
    def panel_names(self) -> tuple[str, ...]:
        """The name of each panel's mechanism; its label, if other panels have the same mechanism."""
        names = [panel.choice.name for panel in self.panels]
        return tuple(
            name if names.count(name) == 1 else panel.label for name, panel in zip(names, self.panels, strict=True)
        )

    @property
    def comparisons(self) -> tuple[ReadingComparison, ...]:
        """Exact attention compared with each mechanism that does not refuse."""
        return tuple(
            compare_readings(
                self.exact, replace(self.exact, layers=panel.computed.layers), names=(self.exact_name, panel.label)
            )
            for panel in self.panels
            if panel.computed is not None
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is no layer to show."""
        return self.exact.is_empty

    @property
    def title(self) -> str:
        """The text, as the title of the page."""
        return self.exact.title
