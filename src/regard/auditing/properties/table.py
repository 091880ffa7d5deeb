"""The table of all properties, in the order in which they are tried and reported."""

from __future__ import annotations

from regard.auditing.properties.batch import BATCH
from regard.auditing.properties.causal import CAUSAL
from regard.auditing.properties.packed import PACKED
from regard.auditing.properties.padding import PADDING
from regard.auditing.properties.property import Property

PROPERTIES: tuple[Property, ...] = (*CAUSAL, *PADDING, *BATCH, *PACKED)
