"""Check that a mechanism refuses a mask that it does not support, with a reason; such a mask is not tested further."""

import re

import pytest

from conformance.calls import NamedTensors
from conformance.mask_cases import Layout, MaskCase
from regard.errors import RefusedError
from regard.kernels.request import Request


def is_refused(mechanism, given: NamedTensors, trial: MaskCase, at: Layout) -> bool:
    """Whether the mechanism refuses a mask. If so, assert that a call raises RefusedError with the reason."""
    mask = trial.mask(at)
    query, key, value = given["query"], given["key"], given["value"]
    reason = mechanism.refuses(Request(query, key, value, mask, given.get("bias"), mechanism.scale))
    if reason is None:
        return False
    with pytest.raises(RefusedError, match=rf"(?s)refuses: {re.escape(reason)}.*expected: .*got: .*to do: "):
        mechanism(query, key, value, mask, bias=given.get("bias"))
    return True
