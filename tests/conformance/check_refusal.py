"""What a mechanism has no form for: then it refuses in its own words, and there is no promise to be tried."""

import re

import pytest

from conformance.calls import NamedTensors
from conformance.mask_cases import Layout, MaskCase
from regard.errors import RefusedError
from regard.kernels.request import Request


def is_refused(mechanism, given: NamedTensors, trial: MaskCase, at: Layout) -> bool:
    """Whether the mechanism refuses a mask; if so, that a call raises RefusedError with the reason and what to do."""
    mask = trial.mask(at)
    query, key, value = given["query"], given["key"], given["value"]
    reason = mechanism.refuses(Request(query, key, value, mask, given.get("bias"), mechanism.scale))
    if reason is None:
        return False
    with pytest.raises(RefusedError, match=rf"(?s)refuses: {re.escape(reason)}.*expected: .*got: .*to do: "):
        mechanism(query, key, value, mask, bias=given.get("bias"))
    return True
