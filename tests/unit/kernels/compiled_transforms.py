"""torch.compile over torch.func transforms: correct, or refused with a message. Run by test_transforms.py.

Regression: in compiled code "native" did not detect an enclosing transform, and silently returned a tangent of 0.
"""

import pytest
import torch
from torch.func import grad, jvp, vmap

import regard
from regard import masks
from regard.errors import RefusedError

QUERY, KEY, VALUE = torch.randn(3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def loss(impl):
    return lambda query: regard.attention(query, KEY, VALUE, mask=masks.causal(), impl=impl).square().sum()


def twice(function):
    return grad(lambda query: grad(function)(query).square().sum())


TRANSFORMS = {
    "grad": grad,
    "jvp": lambda function: lambda query: jvp(function, (query,), (query,))[1],
    "vmap": lambda function: lambda query: vmap(function)(torch.stack([query, 2 * query])),
    "grad of grad": twice,
}


def check(name, impl):
    compiled = torch.compile(TRANSFORMS[name](loss(impl)), backend="eager")
    if impl in ("native", "sdpa"):
        with pytest.raises(RefusedError, match="refuses"):
            compiled(QUERY)
        return
    torch.testing.assert_close(compiled(QUERY), TRANSFORMS[name](loss("reference"))(QUERY), rtol=0, atol=1e-12)


if __name__ == "__main__":
    for name in TRANSFORMS:
        for impl in ("auto", "native", "sdpa", "reference"):
            torch.compiler.reset()
            check(name, impl)
