"""JSON data of the page that shows texts under several mechanisms side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.comparison.mechanism_choice import option_text
from regard.escape_text import direction_of, escape_text
from regard.language import translate, translate_message
from regard.mechanism_catalogue import find_row
from regard.view.attention_layer import choose_encoding
from regard.view.pack import ALPHABET, Json
from regard.view.page_data import attention_data, findings_data, opening_data
from regard.view.side_by_side import HeadMeasures, MechanismPanel, SideBySide
from regard.view.word_pairs import word_pairs

MEASURES = ("mass_kept", "mass_covered", "top_agreement", "output_error")


def build_side_by_side_data(readings: Sequence[SideBySide], model: str, room: int) -> Json:
    """Build all data that the page's script reads, with weights of at most ``room`` characters if possible."""
    letters, largest_error = choose_encoding([layer for reading in readings for layer in _layers_of(reading)], room)
    pairs = {number: (compared.exact, word_pairs(compared.exact)) for number, compared in enumerate(readings)}
    return {
        "model": escape_text(model),
        "letters": letters,
        "alphabet": ALPHABET,
        "largest_error": largest_error,
        "texts": [
            {
                "title": escape_text(compared.title),
                "direction": direction_of(compared.title),
                "top": compared.top,
                "threads": compared.threads,
                "attentions": [
                    attention_data(compared.exact, letters)
                    | opening_data(compared.exact, compared.exact)
                    | {"kind": "exact", "findings": findings_data(number, pairs)},
                    *(_attention(panel, letters) for panel in compared.panels if panel.computed is not None),
                ],
                "panels": _panels(compared),
            }
            for number, compared in enumerate(readings)
        ],
    }


def _layers_of(compared: SideBySide) -> list[Any]:
    computed = [panel.computed.layers for panel in compared.panels if panel.computed is not None]
    return [*compared.exact.layers, *(layer for layers in computed for layer in layers)]


def _attention(panel: MechanismPanel, letters: int) -> Json:
    """Encode the weights of a mechanism; its tokens are the same as in exact attention."""
    assert panel.computed is not None
    masks: list[str] = []
    return {
        "kind": panel.choice.label,
        "layers": [layer.pack(masks, letters) for layer in panel.computed.layers],
        "masks": masks,
        "statistics": {"columns": [], "rows": []},
    }


def _panels(compared: SideBySide) -> list[Json]:
    """Encode exact attention and each mechanism; ``at`` is the number of its weights, null if it refuses."""
    row = find_row(compared.exact_name)
    exact: Json = {
        "name": compared.exact_name,
        "unique_name": compared.exact_name,
        "label": compared.exact_name,
        "options": "",
        "equation": "" if row is None else row.equation,
        "cost": "" if row is None else row.cost,
        "notes": [translate("The model’s own attention, as it was trained")],
        "at": 0,
        "operations": compared.exact_operations,
        "seconds": compared.exact_seconds,
        "measures": _measures(_perfect(compared.exact.layers)),
        "summary": dict.fromkeys(MEASURES, 1.0) | {"output_error": 0.0},
    }
    panels, at = [exact], 0
    for name, panel in zip(compared.panel_names, compared.panels, strict=True):
        at += panel.computed is not None
        panels.append(_panel(name, panel, None if panel.computed is None else at))
    return panels


def _panel(name: str, panel: MechanismPanel, at: int | None) -> Json:
    """Encode a mechanism, which no other panel of the text has under ``name``."""
    choice = panel.choice
    encoded: Json = {
        "name": choice.name,
        "unique_name": escape_text(name),
        "label": escape_text(choice.label),
        "options": escape_text(", ".join(f"{name}={option_text(value)}" for name, value in choice.options.items())),
        "equation": choice.row.equation,
        "cost": choice.row.cost,
        "notes": [
            f"{name}={choice.options[name]}: {translate_message(reason)}" for name, reason in panel.fitted.items()
        ]
        + list(map(translate_message, panel.notes)),
        "at": at,
    }
    if panel.computed is None:
        return encoded | {"refusal": escape_text(translate_message(panel.refusal or ""))}
    summary = panel.computed.summary
    return encoded | {
        "operations": panel.computed.operations,
        "seconds": panel.computed.seconds,
        "measures": _measures(panel.computed.measures),
        "summary": {name: _finite(getattr(summary, name)) for name in MEASURES},
    }


def _measures(measures: HeadMeasures) -> Json:
    """Encode the measures of each layer and head."""
    return {name: [[_finite(float(head)) for head in layer] for layer in getattr(measures, name)] for name in MEASURES}


def _finite(number: float) -> float:
    """Round a measure; one without value, of a head that sees nothing, is 0, since its weights are."""
    return round(number, 5) if np.isfinite(number) else 0.0


def _perfect(layers: Sequence[Any]) -> HeadMeasures:
    """Return the measures of exact attention against itself."""
    ones = np.ones((len(layers), layers[0].heads), dtype=np.float32)
    return HeadMeasures(ones, ones, ones, np.zeros_like(ones))
