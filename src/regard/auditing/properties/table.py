"""The table of all properties, in the order in which they are tried and reported."""

from __future__ import annotations

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

PROPERTIES: tuple[Property, ...] = (
    *CAUSAL,
    *PREFIX,
    *WINDOW,
    *PADDING,
    *SOUNDS,
    *BATCH,
    *PACKED,
    *CACHE,
    *BEAM_SCORES,
    *OWN_CACHES,
    *VALUES_OF_HIDDEN_TOKENS,
    *MODES,
)
