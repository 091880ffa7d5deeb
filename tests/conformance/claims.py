"""The claims: one for each promise x mechanism x implementation x dtype. Each is one test."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch

import regard

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PROMISES = ("hidden", "empty rows", "refusals", "determinism", "agreement", "statistics")


class Claim(NamedTuple):
    """One promise of one mechanism; ``impl`` is "its own" if the mechanism has no choice of implementation."""

    promise: str
    mechanism: str
    impl: str
    dtype: str


def implementations(entry: Any) -> Sequence[str]:
    """Return the implementations of a mechanism that run on this machine; FlexAttention needs a GPU."""
    if not entry.mechanism.traits.implementations:
        return ("its own",)
    available = ("reference", "native", "sdpa", "auto", *(("flex",) if torch.cuda.is_available() else ()))
    return tuple(name for name in available if name == "auto" or name in entry.mechanism.traits.implementations)


def _list_claims() -> list[Claim]:
    claims = []
    for promise in PROMISES:
        for entry in regard.catalogue():
            for impl in implementations(entry):
                if promise == "statistics" and impl in ("sdpa", "flex"):
                    continue  # they refuse ``observe``, see the promise "refusals"
                for dtype in DTYPES if promise != "refusals" else ("float32",):  # independent of the dtype
                    if impl == "flex" and dtype == "float64":
                        continue  # refused
                    claims.append(Claim(promise, entry.name, impl, dtype))
    return claims


ALL_CLAIMS = _list_claims()
PORTABLE_CLAIMS = [claim for claim in ALL_CLAIMS if claim.impl != "flex"]
"""The claims that any machine can test; the committed table contains them."""


CATALOGUE_ROWS = {row.name: row for row in regard.catalogue()}


def parametrize_claims(promise: str) -> Any:
    """Parametrize a test over the claims of a promise."""
    return pytest.mark.parametrize(
        "claim",
        [
            pytest.param(claim, id="-".join(claim[1:]), marks=[pytest.mark.gpu] if claim.impl == "flex" else [])
            for claim in ALL_CLAIMS
            if claim.promise == promise
        ],
    )
