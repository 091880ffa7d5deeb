"""The table of all properties, in the order in which they are tried and reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regard.auditing.properties.batch import BATCH
from regard.auditing.properties.beams import BEAM_SCORES
from regard.auditing.properties.cache import CACHE
from regard.auditing.properties.causal import CAUSAL
from regard.auditing.properties.modes import MODES
from regard.auditing.properties.own_caches import OWN_CACHES
from regard.auditing.properties.packed import PACKED
from regard.auditing.properties.padding import PADDING
from regard.auditing.properties.prefix import PREFIX
from regard.auditing.properties.property import Property
from regard.auditing.properties.sounds import SOUNDS
from regard.auditing.properties.values import VALUES_OF_HIDDEN_TOKENS
from regard.auditing.properties.window import WINDOW


def _by_token(properties: Sequence[Property]) -> tuple[Property, ...]:
    return tuple(replace(choice, is_by_token=True) for choice in properties)


PROPERTIES: tuple[Property, ...] = (
    *_by_token(CAUSAL),
    *_by_token(PREFIX),
    *WINDOW,
    *PADDING,
    *SOUNDS,
    *BATCH,
    *_by_token(PACKED),
    *_by_token(CACHE),
    *BEAM_SCORES,
    *_by_token(OWN_CACHES),
    *(replace(choice, is_by_token="later tokens" in choice.name) for choice in VALUES_OF_HIDDEN_TOKENS),
    *MODES,
)
