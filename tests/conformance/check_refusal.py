"""Check that a mechanism refuses a mask that it does not support, with a reason; such a mask is not tested further."""

import re

import pytest

from conformance.calls import NamedTensors
from conformance.mask_cases import Layout, MaskCase
from regard.errors import RefusedError
from regard.kernels.request import Request, Terms


def is_refused(mechanism, tensors: NamedTensors, mask_case: MaskCase, layout: Layout) -> bool:
    """Whether the mechanism refuses a mask. If so, assert that a call raises RefusedError with the reason."""
    mask = mask_case.mask(layout)
    query, key, value = tensors["query"], tensors["key"], tensors["value"]
    reason = mechanism.refuses(Request(query, key, value, Terms(mask, tensors.get("bias"), mechanism.scale)))
    if reason is None:
        return False
    with pytest.raises(RefusedError, match=rf"(?s)refuses: {re.escape(reason)}.*expected: .*got: .*to do: "):
        mechanism(query, key, value, mask, bias=tensors.get("bias"))
    return True
